"""Topologies as tools print them: NCCL's log, rocm-smi and amd-smi; and damaged ones."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence

Cell = Callable[[int, int], object]


_LATE = 3
"""The lines by which the second thread of a log is behind the first."""


def nccl_log(
    nvlink: Callable[[int], Sequence[str]],
    *,
    gpus: int = 8,
    cards: bool = True,
    pcie: float = 48.0,
    devices: bool = False,
    names: str = "0-{}",
) -> str:
    """The log of a node with two processors, below each a PCIe switch for every GPU and its card,
    which two threads print at once. nvlink: the links below a GPU, as after "+ ". devices: whether
    GPUs hang below devices, as newer versions print them. names: of vertices, older ones without
    "0-"."""
    lines = ["=== System : maxBw 48.0 totalBw 370.8 ==="]
    for cpu in (0, 1):
        lines.append(f"CPU/{names.format(cpu)} (1/1/2)")
        lines.append(f"+ SYS[10.0] - CPU/{names.format(1 - cpu)}")
        for gpu in range(cpu * gpus // 2, (cpu + 1) * gpus // 2):
            bus = names.format(f"{gpu + 1:x}0000")
            above = f"+ PCI[{pcie:.1f}] - "
            lines.append(f"{above}PCI/{bus} (1000c03015d9)")
            name = f"DEV/{bus} (10de)" if devices else f"GPU/{bus} ({gpu})"
            space = " " * len(above)
            lines.append(f"{space}{above}{name}")
            below = [f"LOC[5000.0] - GPU/{bus}"] if devices else []
            lines += [f"{space}{space}+ {link}" for link in [*below, *nvlink(gpu)]]
            if cards:
                lines.append(f"{space}{above}NIC/{bus}")
                net = f"NET/{names.format(f'{gpu:x}')} (0/ec0d/1/50.000000)"
                lines.append(f"{space}{space}+ NET[50.0] - {net}")
    lines.append("=" * 42)
    lines.append("GPU/10000 :GPU/0-10000 (0/5000.0/LOC)")
    first, second = (f"node1:77:{90 + t} [{t}] NCCL INFO " for t in (3, 1))
    late = [None] * _LATE
    pairs = zip([*lines, *late], [*late, *lines], strict=True)
    printed = [
        (thread, line) for pair in pairs for thread, line in zip((first, second), pair, strict=True)
    ]
    return "".join(f"{thread}{line}\n" for thread, line in printed if line)


def _table(title: str, names: Sequence[str], cell: Cell) -> str:
    width = max(map(len, names)) + 1
    rows = ["".ljust(width) + "".join(name.ljust(13) for name in names)]
    rows += [
        name.ljust(width) + "".join(str(cell(a, b)).ljust(13) for b in range(len(names)))
        for a, name in enumerate(names)
    ]
    return "\n".join([title, *rows, ""])


def rocm_smi(
    gpus: int, kind: Cell, *, weight: Cell = lambda a, b: 15 * (a != b), numa: Sequence[int] = ()
) -> str:
    """The output of rocm-smi --showtopo."""
    names = [f"GPU{gpu}" for gpu in range(gpus)]

    def hops(a: int, b: int) -> int:
        near = numa and numa[a] == numa[b]
        return 0 if a == b else 1 if kind(a, b) == "XGMI" else 2 if near else 3

    def title(words: str) -> str:
        return f" {words} ".center(80, "=")

    tables = (("Weight", weight), ("Hops", hops), ("Link Type", kind))
    text = [_table(title(f"{word} between two GPUs"), names, cell) for word, cell in tables]
    nodes = [f"GPU[{gpu}]\t\t: (Topology) Numa Node: {node}" for gpu, node in enumerate(numa)]
    return "\n".join(
        [title("ROCm System Management Interface"), *text, title("Numa Nodes"), *nodes]
    )


def buses(gpus: int) -> list[str]:
    """The names of GPUs in amd-smi's output."""
    return [f"0000:{16 * gpu + 12:02x}:00.0" for gpu in range(gpus)]


def amd_smi(gpus: int, kind: Cell, bandwidth: Cell, hops: Cell = lambda a, b: int(a != b)) -> str:
    """The output of amd-smi topology."""
    tables = [
        ("ACCESS", lambda a, b: "ENABLED"),
        ("WEIGHT", lambda a, b: 15 * (a != b)),
        ("HOPS", hops),
        ("LINK TYPE", kind),
        ("NUMA BW", bandwidth),
        ("CACHE COHERANCY", lambda a, b: "SELF" if a == b else "NC"),
    ]
    return "".join(_table(f"{name} TABLE:", buses(gpus), cell) for name, cell in tables)


def amd_smi_json(gpus: int, kind: Cell, bandwidth: Cell) -> str:
    """The output of amd-smi topology --json."""
    names = buses(gpus)
    return json.dumps(
        [
            {
                "gpu": a,
                "bdf": names[a],
                "links": [
                    {
                        "gpu": b,
                        "bdf": names[b],
                        "weight": 15 * (a != b),
                        "link_status": "ENABLED",
                        "link_type": kind(a, b),
                        "num_hops": int(a != b),
                        "bandwidth": bandwidth(a, b),
                    }
                    for b in range(gpus)
                ],
            }
            for a in range(gpus)
        ],
        indent=4,
    )


def xgmi(a: int, b: int) -> str:
    """A mesh of xGMI, as amd-smi writes it."""
    return "SELF" if a == b else "XGMI"


def old_xgmi(a: int, b: int) -> str:
    """A mesh of xGMI, as rocm-smi writes it."""
    return "0" if a == b else "XGMI"


def one_link(a: int, b: int) -> str:
    """The bandwidth of one link between each two GPUs."""
    return "N/A" if a == b else "50000-50000"


_WORDS = (
    "N/A",
    "-1",
    "0",
    "9" * 30,
    "XGMI",
    "GPU0",
    "CPU/0-0",
    "5000.0",
    "+",
    "[]",
    "\u0664",
    "0-0",
)


def mutated(rng: random.Random) -> str:
    """A printed topology with one to three changes of lines, words or characters."""
    text = rng.choice(
        [
            nccl_log(lambda _: ["NVL[370.8] - NVS/0-0"], gpus=4),
            nccl_log(lambda gpu: [f"XGMI[48.0] - DEV/0-{2 - gpu % 2}0000"], gpus=2, devices=True),
            rocm_smi(4, old_xgmi, numa=[0, 0, 1, 1]),
            amd_smi(4, xgmi, one_link),
            amd_smi_json(3, xgmi, one_link),
        ]
    )
    for _ in range(rng.randrange(1, 4)):
        lines = text.split("\n")
        at = rng.randrange(len(lines))
        words = lines[at].split(" ")
        match rng.randrange(5):
            case 0:
                del lines[at]
            case 1:
                lines.insert(rng.randrange(len(lines)), lines[at])
            case 2:
                words[rng.randrange(len(words))] = rng.choice(_WORDS)
                lines[at] = " ".join(words)
            case 3:
                lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]
            case _:
                place = rng.randrange(len(lines[at]) + 1)
                lines[at] = lines[at][:place] + rng.choice(_WORDS) + lines[at][place + 1 :]
        text = "\n".join(lines)
    return text
