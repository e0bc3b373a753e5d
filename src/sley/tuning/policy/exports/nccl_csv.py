"""NCCL's CSV: the lines that NVIDIA's example tuner plug-in reads, and RCCL's own CSV tuner.

A line: collective, least and greatest size in bytes (both included), algorithm, protocol, channels,
nodes, ranks. The first line that matches a call and whose algorithm NCCL allows is taken.

The plug-in (NVIDIA/nccl, plugins/tuner/example) has traps, which the lines avoid:
- A call without a line runs with one channel. So each collective has further lines for the other
  calls. No line can leave NCCL's choice alone: channels are taken only with an algorithm.
- Channels of -1 are one channel, those of 0 are NCCL's own number (enqueue.cc takes a 0 for no
  answer).
- An unknown word silently means allreduce, ring or simple, a longer line than 255 characters is cut
  in two.
RCCL's tuner (ROCm/rocm-systems, projects/rccl/src/plugin/tuner/csv_tuner.cc) reads the same lines,
but leaves a call without a line alone, and refuses 0 channels: its file has no further lines.
"""

from __future__ import annotations

from collections.abc import Iterable

from sley.tuning.policy.exports.export import Export, tile_remarks, title
from sley.tuning.policy.nccl_names import COLLECTIVES, NcclChoice, NcclRange, nccl_ranges
from sley.tuning.policy.policy import Policy

NO_END = 2**64 - 1
"""The greatest size of a line without an end."""

OWN_CHANNELS = 0
"""The number of channels that lets NCCL choose it."""

ONE_CHANNEL_BYTES = 8192
"""Below this size NCCL's rings and trees have one channel anyway: 2 channels of 512 threads, each
with 8 bytes (NCCL_LL_THREAD_THRESHOLD), aren't worth it. So no line is needed."""

LL_BYTES = 256 << 10
"""Up to this size, calls without a decision run with LL."""

_HEAD = """\
# {title}
# NCCL_TUNER_CONFIG_FILE for {reader}
# collective,min bytes,max bytes,algorithm,protocol,channels,nodes,ranks
"""


def nccl_csv(policy: Policy) -> Export:
    """The CSV for NVIDIA's example plug-in. Calls of `ONE_CHANNEL_BYTES` and more without a
    decision run a ring with NCCL's number of channels. Errors: D905 if NCCL has none of the
    policy's algorithms."""
    ranges, remarks = nccl_ranges(policy, "NCCL")
    lines = _lines(ranges, policy)
    lines += ["# all other calls, which would have one channel"]
    lines += [line for collective in COLLECTIVES for line in _other_lines(collective)]
    notes = (
        *remarks,
        *tile_remarks(ranges, "the CSV has"),
        f"other calls of {ONE_CHANNEL_BYTES} bytes and more run a ring with NCCL's number of "
        "channels, because the example plug-in can't leave them to NCCL; the generated plug-in can",
    )
    return Export(_text(policy, lines, "NVIDIA's example tuner plug-in"), notes)


def rccl_csv(policy: Policy) -> Export:
    """The CSV for RCCL's own tuner, which leaves other calls to RCCL. Errors: D905."""
    ranges, remarks = nccl_ranges(policy, "RCCL")
    notes = (*remarks, *tile_remarks(ranges, "the CSV has"))
    return Export(_text(policy, _lines(ranges, policy), "RCCL's CSV tuner"), notes)


def _text(policy: Policy, lines: Iterable[str], reader: str) -> str:
    head = _HEAD.format(title=title(policy), reader=reader)
    return head + "".join(f"{line}\n" for line in lines)


def _lines(ranges: Iterable[NcclRange], policy: Policy) -> list[str]:
    place = (policy.machine.nodes, policy.machine.ranks)
    return [
        _line(
            one.collective,
            one.range.sizes.begin_bytes,
            one.range.sizes.end_bytes,
            one.choice,
            place,
        )
        for one in ranges
    ]


def _other_lines(collective: str) -> list[str]:
    """The lines for calls of a collective without a decision, of any communicator. An AllReduce may
    be restricted to trees (NCCL_ALGO), and is then left with the second algorithm."""
    algorithms = ("ring", "tree") if collective == "allreduce" else ("ring",)
    return [
        _line(collective, begin, end, NcclChoice(algorithm, protocol, OWN_CHANNELS), (-1, -1))
        for algorithm in algorithms
        for begin, end, protocol in (
            (ONE_CHANNEL_BYTES, LL_BYTES, "ll"),
            (ONE_CHANNEL_BYTES, None, "simple"),
        )
    ]


def _line(
    collective: str, begin: int, end: int | None, choice: NcclChoice, place: tuple[int, int]
) -> str:
    words = (choice.algorithm, choice.protocol, choice.channels, *place)
    return ",".join(map(str, (collective, begin, NO_END if end is None else end, *words)))
