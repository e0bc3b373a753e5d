"""Analysis: what a plan's messages, switches and conflicting accesses are, before their data have
places.

The executor has two operations of switches (MSCCL++, by reading): gstore writes own data to
all ranks of a channel, and glres reads the sum of all ranks' data and writes it to all of them. The
own rank is always one of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sley.errors import counted
from sley.errors.formats import F438
from sley.formats.format import Problems
from sley.ir import happens_before
from sley.ir.connections import Messages
from sley.ir.graph import levels
from sley.ir.plan import Plan
from sley.ir.tables import NONE, BoolArray, IntArray, LongArray
from sley.ir.words import RECEIVES, REDUCES, SENDS, Op


@dataclass(frozen=True)
class Analysis:
    """A plan with everything that its placing and its blocks are derived from.

    conflicts: int64 (pairs, 2), pairs of instructions with conflicting, adjacent accesses.
    order: which instruction happens before which.
    ports: bool (instructions,), the sends through ports.
    """

    plan: Plan
    messages: Messages
    switching: Switching
    conflicts: LongArray
    order: happens_before.HappensBefore
    ports: BoolArray

    @classmethod
    def of(cls, plan: Plan, nodes: IntArray, problems: Problems) -> Analysis:
        """nodes: int32 (ranks,), the host of each rank. Messages between hosts go through ports.
        Raises the problems, earlier ones included. Errors: F438."""
        rank, ports = plan.rank, np.zeros(len(plan.instructions), bool)
        messages = Messages.of(plan)
        switching = Switching.of(plan, messages, nodes, problems)
        problems.raise_any()
        ports[messages.send] = nodes[rank[messages.send]] != nodes[rank[messages.receive]]
        before, after = messages.happens_before(plan)
        level = levels(len(plan.instructions), before, after)
        first, second, *_ = happens_before.hazards(plan, level)
        conflicts = np.unique(np.stack([first, second], axis=1), axis=0)
        order = happens_before.HappensBefore(plan, messages, level)
        return cls(plan, messages, switching, conflicts, order, ports)


@dataclass(frozen=True)
class Switching:
    """The instructions that use a switch, and the messages that go through it.

    ranks: by such an instruction, the ranks of its switch channels, ascending.
    offers: by instruction that reduces in the switch, the sends whose data the switch reads.
    sum_of: by such a send, the instruction that reduces.
    stores: by instruction whose result the switch writes, the receives of it: of all instructions
        in `ranks`.
    """

    ranks: Mapping[int, tuple[int, ...]]
    offers: Mapping[int, Sequence[int]]
    sum_of: Mapping[int, int]
    stores: Mapping[int, Sequence[int]]

    @classmethod
    def of(cls, plan: Plan, messages: Messages, nodes: IntArray, problems: Problems) -> Switching:
        """What the switch channels of a plan do; adds problems for what they can't. nodes: int32
        (ranks,), the host of each rank. Errors: F438."""
        offers: dict[int, list[int]] = defaultdict(list)
        stores: dict[int, list[int]] = defaultdict(list)
        t, ranks = plan.instructions, plan.collective.ranks
        of_group = set(plan.grouped.tolist())
        for send, receive in zip(messages.send.tolist(), messages.receive.tolist(), strict=True):
            if t.recv_peer[receive] >= ranks:
                offers[receive].append(send)
            if t.send_peer[send] >= ranks:
                stores[send].append(receive)
        for row in sorted(of_group):
            far = [t.send_peer[of] for of in offers[row]] + [t.recv_peer[of] for of in stores[row]]
            _check(plan, row, nodes, problems, both=max(far, default=NONE) >= ranks)
        return cls(
            {row: _ranks(plan, row) for row in sorted(of_group)},
            {row: sends for row, sends in offers.items() if sends},
            {send: row for row, sends in offers.items() for send in sends},
            {row: receives for row, receives in stores.items() if receives},
        )


def _groups(plan: Plan, row: int) -> tuple[list[int], list[int]]:
    """The ranks from which an instruction receives, and those to which it sends: a group's members,
    or the only peer."""
    t, op = plan.instructions, int(plan.instructions.op[row])
    sources = plan.peers(int(t.recv_peer[row])) if RECEIVES[op] else []
    return sources, plan.peers(int(t.send_peer[row])) if SENDS[op] else []


def _ranks(plan: Plan, row: int) -> tuple[int, ...]:
    return tuple(sorted({int(plan.rank[row]), *_groups(plan, row)[1]}))


def _check(plan: Plan, row: int, nodes: IntArray, problems: Problems, *, both: bool) -> None:
    """Refuses an instruction with a group that neither gstore nor glres performs. both: whether the
    other end of one of its messages is that of a group too."""
    at, t = plan.place(row), plan.instructions
    sources, targets = _groups(plan, row)
    reduces = int(t.recv_peer[row]) >= plan.collective.ranks and bool(sources)
    ranks = _ranks(plan, row)
    if reduces and not REDUCES[t.op[row]]:
        expected = "a switch that reduces own data too, as glres does"
        found = f"a {Op(int(t.op[row])).name.lower()} of {counted(len(sources), 'rank')} alone"
    elif reduces and sources != targets:
        expected = "a result that goes to all ranks from which the switch reads, as in glres"
        found = f"data of ranks {_text(sources)}, and a result for {_text(targets) or 'no other'}"
    elif both:
        expected, found = "a group at one end of a message", "groups at both ends"
    elif len(set(nodes[list(ranks)].tolist())) > 1:
        expected = "the ranks of a switch channel on one host"
        found = f"ranks {_text(ranks)} on several"
    else:
        return
    problems.add(F438, at, expected, found)
    problems.raise_full()


def _text(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
