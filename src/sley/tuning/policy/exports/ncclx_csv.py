"""NCCLX's CSV: the lines that its built-in tuner reads (NCCLX_TUNER_CONFIG_FILE).

A line: collective, bytes per rank, algorithm, protocol, channels, nodes, ranks of a node; the
second and the last two are intervals such as [0,1023], [1024,) or 8. Further columns, which differ
between versions, are left out. The first line that matches a call and whose algorithm NCCL allows
is taken; without one, NCCL chooses. A wrong line fails the communicator.
Source: meta-pytorch/torchcomms, comms/ncclx/meta/tuner (README.md, MetaTuner.cc, Int64Range.cc).

Bytes per rank are the size divided by the ranks, rounded down: in AllGather and ReduceScatter,
whose size is a multiple of the ranks, one rank's part. A size between two multiples of the ranks
has the decision of the smaller multiple.
"""

from __future__ import annotations

from sley.errors.policy import D905
from sley.tuning.policy.exports.export import Export, tile_remarks, title
from sley.tuning.policy.nccl_names import NcclRange, nccl_ranges
from sley.tuning.policy.policy import Policy

_HEAD = """\
# {title}
# NCCLX_TUNER_CONFIG_FILE for NCCLX
# collective,bytesPerRank,algorithm,protocol,channels,nNodes,nLocalRanks
"""

_PARTS = ("allgather", "reducescatter")
"""The collectives whose sizes are multiples of the ranks."""


def ncclx_csv(policy: Policy) -> Export:
    """The CSV for NCCLX. Errors: D905 if no range remains."""
    ranges, remarks = nccl_ranges(policy, "NCCLX")
    notes = [*remarks, *tile_remarks(ranges, "the lines have")]
    lines: list[str] = []
    for one in ranges:
        interval, note = _interval(one, policy.machine.ranks)
        if note:
            notes.append(f"{one.label}: {note}")
        if interval:
            c, m = one.choice, policy.machine
            words = (one.collective, interval, c.algorithm, c.protocol, c.channels, m.nodes, m.gpus)
            lines.append(",".join(map(str, words)))
    if not lines:
        raise D905.error(
            expected=f"a range with a multiple of {policy.machine.ranks} bytes",
            found="; ".join(notes),
        )
    head = _HEAD.format(title=title(policy))
    return Export(head + "".join(f"{line}\n" for line in lines), tuple(notes))


def _interval(one: NcclRange, ranks: int) -> tuple[str, str]:
    """The interval of bytes per rank, empty if no multiple of the ranks is in the range; and a
    remark, or nothing."""
    begin_bytes, end_bytes = one.range.sizes.begin_bytes, one.range.sizes.end_bytes
    begin = -(-begin_bytes // ranks)
    if end_bytes is None:
        ends_within, interval = False, f"[{begin},)"
    else:
        end = end_bytes // ranks
        if end < begin:
            return "", f"left out, no multiple of {ranks} bytes is in it"
        ends_within, interval = (end_bytes + 1) % ranks != 0, f"[{begin},{end}]"
    if one.collective not in _PARTS and (begin_bytes % ranks or ends_within):
        return interval, f"NCCLX rounds sizes down to multiples of {ranks} bytes"
    return interval, ""
