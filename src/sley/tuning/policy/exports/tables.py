"""Tables: a policy as the lines that tuners of NCCL, RCCL and NCCLX read.

NCCL's line: collective, least and greatest size in bytes (both included), algorithm, protocol,
channels, nodes, ranks. The first line that matches a call and whose algorithm NCCL allows is taken.

NVIDIA's example plug-in (NVIDIA/nccl, plugins/tuner/example) has traps, which the lines avoid:
- A call without a line runs with one channel. So each collective has further lines for the other
  calls. No line can leave NCCL's choice alone: channels are taken only with an algorithm.
- Channels of -1 are one channel, those of 0 are NCCL's own number (enqueue.cc takes a 0 for no
  answer).
- An unknown word silently means allreduce, ring or simple, a longer line than 255 characters is cut
  in two.
RCCL's tuner (ROCm/rocm-systems, projects/rccl/src/plugin/tuner/csv_tuner.cc) reads the same lines,
but leaves a call without a line alone, and refuses 0 channels: its file has no further lines.

NCCLX's line (NCCLX_TUNER_CONFIG_FILE): collective, bytes per rank, algorithm, protocol, channels,
nodes, ranks of a node; the second and the last two are intervals such as [0,1023], [1024,) or 8.
Further columns, which differ between versions, are left out. The first line that matches a call,
and has an algorithm that NCCL allows, is taken; without one, NCCL chooses. A wrong line fails the
communicator.
Source: meta-pytorch/torchcomms, comms/ncclx/meta/tuner (README.md, MetaTuner.cc, Int64Range.cc).
Bytes per rank are the size divided by the ranks, rounded down: in AllGather and ReduceScatter,
whose size is a multiple of the ranks, one rank's part. A size between two multiples of the ranks
has the decision of the smaller multiple.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sley.communicator.selection.policy import Policy, label
from sley.errors.policy import D905
from sley.ir.sizes import SizeRange
from sley.tuning.policy.nccl_names import COLLECTIVES, NcclChoice, nccl_rows

NO_END = 2**64 - 1
"""The greatest size of a line without an end."""

OWN_CHANNELS = 0
"""The number of channels that lets NCCL choose it."""

ONE_CHANNEL_BYTES = 8192
"""Below this size NCCL's rings and trees have one channel anyway: 2 channels of 512 threads, each
with 8 bytes (NCCL_LL_THREAD_THRESHOLD), aren't worth it. So no line is needed."""

LL_BYTES = 256 << 10
"""Up to this size, calls without a decision run with LL."""

_NCCL = (
    "NCCL_TUNER_CONFIG_FILE for {}",
    "collective,min bytes,max bytes,algorithm,protocol,channels,nodes,ranks",
)
_NCCLX = (
    "NCCLX_TUNER_CONFIG_FILE for NCCLX",
    "collective,bytesPerRank,algorithm,protocol,channels,nNodes,nLocalRanks",
)
"""The comments that begin a table: who reads it, and its columns."""

_PARTS = ("allgather", "reducescatter")
"""The collectives whose sizes are multiples of the ranks."""


@dataclass(frozen=True)
class Export:
    """A policy as the text of a file.

    remarks: what the file can't express, and ranges that are left out, a sentence each.
    """

    text: str
    remarks: Sequence[str]


def title(policy: Policy) -> str:
    """The policy's machine and agent in words of ASCII on one line, for a comment."""
    words = f"trained for {policy.machine}" + (f" by {policy.agent}" if policy.agent else "")
    plain = words.encode("ascii", "replace").decode()
    return "".join(c if c.isprintable() and c not in "*/\\" else " " for c in plain)[:120]


def nccl_csv(policy: Policy) -> Export:
    """The CSV for NVIDIA's example plug-in. Calls of `ONE_CHANNEL_BYTES` and more without a
    decision run a ring with NCCL's number of channels. Errors: D905 if NCCL has none of the
    policy's algorithms."""
    lines, remarks = _lines(policy, "NCCL")
    lines += ["# all other calls, which would have one channel"]
    lines += [line for collective in COLLECTIVES for line in _other_lines(collective)]
    remarks.append(
        f"other calls of {ONE_CHANNEL_BYTES} bytes and more run a ring with NCCL's number of "
        "channels, because the example plug-in can't leave them to NCCL; the generated plug-in can"
    )
    reader, columns = _NCCL
    return _table(policy, reader.format("NVIDIA's example tuner plug-in"), columns, lines, remarks)


def rccl_csv(policy: Policy) -> Export:
    """The CSV for RCCL's own tuner, which leaves other calls to RCCL. Errors: D905."""
    reader, columns = _NCCL
    return _table(policy, reader.format("RCCL's CSV tuner"), columns, *_lines(policy, "RCCL"))


def ncclx_csv(policy: Policy) -> Export:
    """The CSV for NCCLX. Errors: D905 if no range remains."""
    rows, remarks = nccl_rows(policy, "NCCLX", "the lines have")
    machine, lines = policy.machine, list[str]()
    for row, choice in rows:
        interval, note = _interval(row.collective, row.sizes, machine.ranks)
        if note:
            remarks.append(f"{label(row)}: {note}")
        if interval:
            lines.append(_line(row.collective, interval, choice, (machine.nodes, machine.gpus)))
    if not lines:
        expected = f"a range with a multiple of {machine.ranks} bytes"
        raise D905.error(expected=expected, found="; ".join(remarks))
    return _table(policy, *_NCCLX, lines, remarks)


def _table(
    policy: Policy, reader: str, columns: str, lines: Iterable[str], remarks: Sequence[str]
) -> Export:
    head = [f"# {text}" for text in (title(policy), reader, columns)]
    return Export("".join(f"{line}\n" for line in (*head, *lines)), remarks)


def _lines(policy: Policy, runtime: str) -> tuple[list[str], list[str]]:
    """NCCL's lines of a policy, and remarks."""
    rows, remarks = nccl_rows(policy, runtime, "the CSV has")
    place = (policy.machine.nodes, policy.machine.ranks)
    lines = [_line(row.collective, _ends(row.sizes), choice, place) for row, choice in rows]
    return lines, remarks


def _other_lines(collective: str) -> list[str]:
    """The lines for calls of a collective without a decision, of any communicator. An AllReduce may
    be restricted to trees (NCCL_ALGO), and is then left with the second algorithm."""
    algorithms = ("ring", "tree") if collective == "allreduce" else ("ring",)
    ends = {"ll": LL_BYTES, "simple": None}
    return [
        _line(
            collective,
            _ends(SizeRange(ONE_CHANNEL_BYTES, end)),
            NcclChoice(algorithm, protocol, OWN_CHANNELS),
            (-1, -1),
        )
        for algorithm in algorithms
        for protocol, end in ends.items()
    ]


def _line(collective: str, sizes: str, choice: NcclChoice, place: tuple[int, int]) -> str:
    words = (collective, sizes, choice.algorithm, choice.protocol, choice.channels, *place)
    return ",".join(map(str, words))


def _ends(sizes: SizeRange) -> str:
    return f"{sizes.begin_bytes},{NO_END if sizes.end_bytes is None else sizes.end_bytes}"


def _interval(collective: str, sizes: SizeRange, ranks: int) -> tuple[str, str]:
    """The interval of bytes per rank, empty if no multiple of the ranks is in the range; and a
    remark, or nothing."""
    begin = -(-sizes.begin_bytes // ranks)
    if sizes.end_bytes is None:
        ends_within, interval = False, f"[{begin},)"
    else:
        end = sizes.end_bytes // ranks
        if end < begin:
            return "", f"left out, no multiple of {ranks} bytes is in it"
        ends_within, interval = (sizes.end_bytes + 1) % ranks != 0, f"[{begin},{end}]"
    # The sizes beyond the last multiple, or before the first one, get a neighbour's decision.
    if collective not in _PARTS and (sizes.begin_bytes % ranks or ends_within):
        return interval, f"NCCLX rounds sizes down to multiples of {ranks} bytes"
    return interval, ""
