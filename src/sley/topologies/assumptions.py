"""Assumptions: the rates that importers fill in when a file does not give them."""

from __future__ import annotations

from sley.errors import Diagnostic, Place
from sley.errors.topology import T610
from sley.topologies.node import Rate

CARD_SHARE = 0.96
"""Reached over nominal rate of a network card: 24 of 25 GB/s with NCCL on HDR InfiniBand."""

PCIE_4 = Rate(31.5, 24.0)
"""16 lanes of PCIe 4.0; the reached rate is the one in NCCL's tables."""

PROCESSORS = Rate(16.0, 16.0)
"""A link between two processors: NCCL's figure for the first two generations of EPYC."""

_NVLINK: dict[int, tuple[float, float]] = {
    60: (20.0, 18.0),
    70: (25.0, 20.0),
    80: (25.0, 20.0),
    86: (14.0, 12.0),
    90: (25.0, 20.6),
    100: (50.0, 40.1),
}
"""Rates of one NVLink by the lowest compute capability that has them: nominal (data sheet) and
reached (NCCL)."""


def nvlink_rate(capability: int) -> Rate:
    """The rate of one NVLink of a GPU with this compute capability (80 for an A100)."""
    known = [c for c in _NVLINK if c <= capability]
    return Rate(*_NVLINK[max(known, default=70)])


def note_assumption(notes: list[Diagnostic], place: Place, found: str) -> None:
    """Appends a remark (T610) about an assumption to `notes`."""
    notes.append(T610.diagnostic(at=place, expected="a complete description", found=found))
