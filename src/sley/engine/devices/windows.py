"""Windows: the slots of groups' messages, in memory that a switch reads and writes.

A team, the ranks of a group and the one at the other end, has a window: a part on the device of
each, of one size. The messages of a bundle have a *lane*, at one offset of all parts. What a rank
sends to a group it stores through the switch, into the parts of all. What it receives from a group
the members store into their own parts, from which the switch loads it. The switch reads the rank's
own part, too, which is zero there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sley.engine.devices.device import Device, Window
from sley.engine.devices.tables import symbol
from sley.engine.kernels import switches
from sley.engine.kernels.operands import BlockEnds, Operands
from sley.engine.kernels.switches import teams
from sley.engine.types import DataType
from sley.ir.plan import Plan
from sley.ir.tables import NONE, IntArray, LongArray
from sley.ir.words import ReduceOp

LANE_ALIGNMENT = 256


def single_messages(plan: Plan, devices: Mapping[int, Device], *, is_one_process: bool) -> str:
    """Why the messages of a plan's groups are sent one by one; empty if a switch moves them, or if
    the plan has no groups.

    devices: of the ranks of this process. is_one_process: whether all ranks are among them.
    """
    if not len(plan.groups):
        return ""
    if not is_one_process:
        return "the ranks are in several processes"
    if why := switches.single_messages(plan):
        return why
    found = ([devices[rank] for rank in team] for team in teams(plan))
    return next(filter(None, (team[0].lacks_switch(team) for team in found)), "")


def way_of_groups(plan: Plan, single: str, dtype: DataType, op: ReduceOp) -> str:
    """How calls run a plan's instructions whose peer is a group, in words; empty without any.

    single: what `single_messages` says of the plan.
    """
    if not len(plan.groups):
        return ""
    if single:
        return f"as single messages, since {single}"
    if plan.reduces and not switches.reduction(dtype.number, op)[1]:
        return (
            "through the switch, but reductions message by message, since it has no "
            f"{op.name} of {dtype.name}"
        )
    return "through the switch"


@dataclass(frozen=True)
class Lanes:
    """Where the slots of a plan's connections are that belong to bundles.

    teams: the ranks of each team of all plans over the same links, ascending. sizes: the bytes of a
    part of each team's window. lanes: the team and the offset of each lane.
    team: int32 (connections,), the team of each connection; NONE if its slots are in a mailbox.
    owner: int32 (connections,), the rank in whose part its slots are: the receiver, or the sender
    if a switch reads them. offset: int64 (connections,), their offset in the part, in bytes.
    """

    teams: list[tuple[int, ...]]
    sizes: list[int]
    lanes: list[tuple[int, int]]
    team: IntArray
    owner: IntArray
    offset: LongArray

    @classmethod
    def of(cls, every: Sequence[Operands], slots_bytes: int) -> list[Lanes]:
        """The lanes of each of several plans; slots_bytes: of all slots of a connection. Bundles
        have one lane if they are the same connections, at the same end: nobody else writes it."""
        found = sorted({team for o in every if len(o.plan.groups) for team in teams(o.plan)})
        sizes, lanes = [0] * len(found), dict[tuple[str, bytes], tuple[int, int]]()
        room = -(-slots_bytes // LANE_ALIGNMENT) * LANE_ALIGNMENT
        made = []
        for o in every:
            c = o.connections
            team, owner = np.full(len(c), NONE, np.int32), c.dst.copy()
            offset = np.zeros(len(c), np.int64)
            for word, ends, own, others in (
                ("to", o.sends, c.src, c.dst),
                ("from", o.receives, c.dst, c.src),
            ):
                for members in _bundles(ends):
                    ranks = {int(own[members[0]]), *others[members].tolist()}
                    at = found.index(tuple(sorted(ranks)))
                    key = word, c.keys[members].tobytes()
                    _, lane = lanes.setdefault(key, (at, sizes[at]))
                    sizes[at] = max(sizes[at], lane + room)
                    team[members], owner[members], offset[members] = at, others[members], lane
            made.append((team, owner, offset))
        return [cls(found, sizes, list(lanes.values()), *own) for own in made]

    def symbols(self, ranks: int) -> tuple[LongArray, LongArray]:
        """int64 (connections,), twice: the connections' slots, and the same behind the switch, as
        symbols whose segments are behind those of `ranks` mailboxes; 0 without a lane."""
        slots, switched = np.zeros((2, len(self.team)), np.int64)
        first = ranks + np.cumsum([0, *map(len, self.teams)])
        behind = {lane: int(first[-1]) + number for number, lane in enumerate(self.lanes)}
        for k in np.flatnonzero(self.team != NONE).tolist():
            team, offset = int(self.team[k]), int(self.offset[k])
            part = self.teams[team].index(int(self.owner[k]))
            slots[k] = symbol(int(first[team]) + part, offset)
            switched[k] = symbol(behind[team, offset], 0)
        return slots, switched

    def bases(self, windows: Sequence[Window]) -> list[int]:
        """The addresses of these segments: the parts of all windows, and the lanes behind their
        switches."""
        parts = [part.address for window in windows for part in window.parts]
        return parts + [windows[team].through(offset) for team, offset in self.lanes]


def _bundles(ends: BlockEnds) -> list[LongArray]:
    """The connections of each bundle of several, at one end."""
    sizes = np.bincount(ends.bundle, minlength=len(ends.bundle))
    return [np.flatnonzero(ends.bundle == first) for first in np.flatnonzero(sizes > 1)]
