"""Topology files of other tools in small, one of each form."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from sley import topologies


def pci(bus: str, kind: str, inner: str = "", **more: Any) -> str:
    """A <pci> of NCCL's XML with 16 lanes of PCIe 4.0."""
    words = {"link_speed": "16 GT/s", "link_width": 16} | more
    text = " ".join(f'{name}="{value}"' for name, value in words.items())
    return f'<pci busid="{bus}" class="{kind}" {text}>{inner}</pci>'


def gpu(bus: str, rank: int, links: str = "", sm: str = 'sm="80"') -> str:
    """A GPU as NCCL writes it."""
    return pci(bus, "0x030200", f'<gpu dev="{rank}" {sm} rank="{rank}">{links}</gpu>')


def card(bus: str, *speeds: int) -> str:
    """A network card as NCCL writes it, with a port for each speed in Mb/s."""
    nets = "".join(f'<net name="n" dev="{i}" speed="{s}"/>' for i, s in enumerate(speeds))
    return pci(bus, "0x020700", f"<nic>{nets}</nic>")


def switch(bus: str, *inside: str) -> str:
    """A PCIe switch."""
    return pci(bus, "0x060400", "".join(inside))


def cpu(*inside: str, words: str = 'arch="x86_64" vendor="AuthenticAMD"') -> str:
    """A processor."""
    return f"<cpu {words}>{''.join(inside)}</cpu>"


def system(*cpus: str) -> str:
    """A whole file of NCCL's XML."""
    return f'<system version="1">{"".join(cpus)}</system>'


NVSWITCH = '<nvlink target="ffffff" count="18" tclass="0x068000"/>'

CLOUD = system(
    cpu(
        switch("f0", pci("0003:00:00.0", "0x030200"), pci("0101:00:00.0", "0x020700")),
        switch("f1", pci("0001:00:00.0", "0x030200"), pci("0102:00:00.0", "0x020000")),
    ),
    cpu(
        switch("f2", pci("0002:00:00.0", "0x120000"), pci("0103:00:00.0", "0x020700")),
        switch("f3", pci("0004:00:00.0", "0x030000"), pci("0104:00:00.0", "0x020700")),
    ),
)
"""A PCIe tree without <gpu> and <net>, as clouds supply it for NCCL_TOPO_FILE."""

HOSTS = system(
    *(
        cpu(
            *(
                switch(
                    f"s{g}",
                    gpu(f"0{g}", 2 * host + g, NVSWITCH, 'sm="100"'),
                    card(f"c{g}", 400_000),
                )
                for g in range(2)
            ),
            words=f'host_hash="0x{host}a" arch="arm64"',
        )
        for host in range(2)
    )
)
"""Two hosts that NVLink joins, with the same bus ids."""

HEAD = '<?xml version="1.0"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n'


def hwloc(version: str, matrix: str, device: str = "0302 [10de:20b2]", verbs: int = 32) -> str:
    """hwloc's XML of a machine with a GPU and a card at each of two packages."""
    packages = "".join(
        f'<object type="Package" gp_index="{p + 1}"><info name="CPUVendor" value="GenuineIntel"/>'
        f'<object type="Bridge" gp_index="{p + 11}" bridge_type="0-1">'
        f'<object type="Bridge" gp_index="{p + 21}" bridge_type="1-1" pci_link_speed="31.507692">'
        f'<object type="PCIDev" gp_index="{p + 31}" pci_busid="0000:0{p}:00.0" '
        f'pci_type="{device} [10de:1463] a1 00" pci_link_speed="31.507692">'
        f'<object type="OSDev" gp_index="{p + 41}" name="nvml{p}" osdev_type="12"/></object>'
        f'<object type="PCIDev" gp_index="{p + 51}" pci_busid="0000:1{p}:00.0" '
        'pci_type="0200 [15b3:101b] [15b3:0007] 00 00" pci_link_speed="31.507692">'
        f'<object type="OSDev" gp_index="{p + 61}" name="mlx5_{p}" osdev_type="{verbs}">'
        f'<info name="Port1State" value="{4 - 3 * p}"/></object></object></object>'
        '<object type="PCIDev" gp_index="70" pci_type="0300 [1a03:2000]"/>'
        '<object type="PCIDev" pci_type="0200 [8086:1521]" pci_link_speed="31.507692"/>'
        "</object></object>"
        for p in range(2)
    )
    machine = f'<object type="Machine">{packages}</object>'
    return f'{HEAD}<topology version="{version}">{machine}{matrix}</topology>'


def matrix(name: str, indexes: str, values: str, tag: str = "distances2hetero") -> str:
    """A matrix of hwloc's XML, in two pieces."""
    half = values[: len(values) // 2].rpartition(" ")[0]
    return (
        f'<{tag} name="{name}"><indexes length="1">{indexes} </indexes>'
        f'<u64values length="1">{half} </u64values>'
        f'<u64values length="1">{values[len(half) :]}</u64values></{tag}>'
    )


HWLOC_2 = hwloc(
    "2.0",
    matrix("NVLinkBandwidth", "41 42", "1000000 300000 300000 1000000", "distances2"),
    verbs=3,
)
HWLOC_3 = hwloc(
    "3.0",
    '<object type="PCIDev" gp_index="99" subtype="NVSwitch" pci_type="0680 [10de:1af1]"/>'
    + matrix(
        "NVLinkBandwidth", "OSDev:41 OSDev:42 PCIDev:99", "9 0 300000 0 9 300000 300000 300000 9"
    ),
)
"""hwloc's XML of both versions: with direct NVLinks, and with an NVSwitch."""

MATRIX = """\
\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity
GPU0\tX\tNV18\tPIX\t0-1\t0
GPU1\tNV18\tX\tSYS\t2-3\t1
NIC0\tPIX\tSYS\tX
"""

FILES = {
    "cloud.xml": CLOUD,
    "hosts.xml": HOSTS,
    "hwloc-2.xml": HWLOC_2,
    "hwloc-3.xml": HWLOC_3,
    "topo.txt": MATRIX,
}
"""The text of a file of each form, by a name for it."""

_NOISE = ("", '"', "<", "/", "0", "-1", "9" * 20, " ", "\0", "\u00e9", "object", "0x068001")


def read_damaged(rng: random.Random, folder: Path) -> topologies.LoadedTopology:
    """Reads a damaged file, also completed like a machine."""
    name, text = rng.choice(list(FILES.items()))
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice(_NOISE) + text[at + rng.randrange(12) :]
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return topologies.read(path, nodes=rng.choice([None, 2]), like=rng.choice([None, "ndv2", "p5"]))
