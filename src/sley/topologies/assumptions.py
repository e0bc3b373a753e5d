"""Importing: what the files of other tools have in common, rates that they don't say."""

from __future__ import annotations

from sley.errors import Diagnostic, Place
from sley.errors.topology import T610
from sley.topologies.node import Rate

CARD_SHARE = 0.96
"""What a card reaches of its nominal rate: 24 of 25 GB/s with NCCL on HDR InfiniBand."""

PCIE_4 = Rate(31.5, 24.0)
"""16 lanes of PCIe 4.0; what NCCL reckons with is taken as reached."""

PROCESSORS = Rate(16.0, 16.0)
"""Between two processors: NCCL's figure for EPYC of the first two generations."""

_NVLINK: dict[int, tuple[float, float]] = {
    60: (20.0, 18.0),
    70: (25.0, 20.0),
    80: (25.0, 20.0),
    86: (14.0, 12.0),
    90: (25.0, 20.6),
    100: (50.0, 40.1),
}
"""One NVLink by the compute capability of its GPU from which it holds: data sheet, and NCCL."""


def nvlink_rate(capability: int) -> Rate:
    """One NVLink of a GPU, by its compute capability (80 for an A100)."""
    known = [c for c in _NVLINK if c <= capability]
    return Rate(*_NVLINK[max(known, default=70)])


def assumed(notes: list[Diagnostic], place: Place, found: str) -> None:
    """Adds the remark that something is assumed."""
    notes.append(T610.diagnostic(at=place, expected="a file that says everything", found=found))
