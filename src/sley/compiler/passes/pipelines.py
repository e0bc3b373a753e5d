"""Pipelines: HPDS (ResCCL 4.3, algorithm 1) and its round-robin baseline (ResCCL 5.3).

Transfers are assigned to sub-pipelines, one sub-pipeline after another. A transfer fits into a
sub-pipeline if all its predecessors are assigned, to this one or an earlier one, and this one uses
none of its links. The two differ in the chunk that comes next: HPDS takes the chunk that has had
the fewest turns so far, of several the lowest; round robin takes the chunks in a cycle.

A chunk, here, is a group of transfers that access common memory, directly or through others. Where
each transfer moves one chunk between equal places, as in ResCCL's language, that is the chunk with
its copies and sums on all ranks.

The result is an order of whole transfers, in which every receive follows its send. Blocks that list
their instructions in it never hang, in either loop order, with any number of slots: the transfers
could run one after another, and the network is determinate. No receive is fused with a send. A copy
within a rank that is one instruction with a send belongs to that transfer.
"""

from __future__ import annotations

from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sley.compiler.passes.loops import Arcs, Loop
from sley.ir.dag import InstructionDag, Links, Order
from sley.ir.graph import levels
from sley.ir.program import Program
from sley.ir.tables import NONE, Edges, IntArray, LongArray, inverse, offsets_of, spans
from sley.ir.words import Schedule


def pipelines(dag: InstructionDag, links: Links, schedule: Schedule) -> Order:
    """The order of sub-pipelines; HPDS or ROUND_ROBIN."""
    program = dag.chunks.program
    dag = _without_cycles(dag)
    group = chunk_groups(program)
    groups = int(group.max(initial=NONE)) + 1
    # Copies that are sent are no transfers of their own here: the plan in place has none.
    own = np.flatnonzero(~dag.sent)
    number = np.full(len(program.transfers), NONE)
    number[own] = np.arange(len(own))
    before, after = (number[rows] for rows in dag.dependencies)
    later = Edges.from_pairs(len(own), before, after)
    sequence, pipeline = np.empty((2, len(own)), np.int32)
    # Each sub-pipeline queues all groups, and there is one for each transfer on the busiest link.
    busiest = int(np.bincount(links.first[links.first != NONE]).max(initial=1))
    _schedule(
        max(len(own), busiest * groups // 4),
        schedule is Schedule.ROUND_ROBIN,
        Arcs.of(later),
        np.bincount(later.target, minlength=len(own)).astype(np.int32),
        _Groups.empty(group[own], groups),
        _Links(links.first[own], links.second[own], np.zeros(links.number, np.int32)),
        sequence,
        pipeline,
    )
    of_transfer = np.full(len(program.transfers), NONE, np.int32)
    of_transfer[own] = pipeline
    return whole_transfers(dag, own[sequence], of_transfer)


def whole_transfers(dag: InstructionDag, sequence: NDArray[Any], pipeline: NDArray[Any]) -> Order:
    """The order in which the transfers run one after another, each receive after its send.

    sequence: the transfers in that order; the copies that are sent may be in it at any place.
    pipeline: (transfers,), the sub-pipeline of each transfer.
    """
    sequence = sequence[~dag.sent[sequence]]
    remote = dag.remote[sequence]
    first = offsets_of(np.where(remote, 2, 1))[:-1]
    receive, send, number = np.full((3, int(len(sequence) + remote.sum())), NONE, np.int32)
    receive[first] = dag.copied[sequence]
    receive[first + remote] = sequence
    send[first[remote]] = sequence[remote]
    number[first] = number[first + remote] = pipeline[sequence]
    return Order(receive, send, number)


def _without_cycles(dag: InstructionDag) -> InstructionDag:
    """The instruction DAG without those of `copied` that, as parts of the transfers with which
    they are sent, would wait for themselves."""
    # Each pass separates a copy from its send, so it ends; without such copies there is no cycle.
    while dag.sent.any():
        before, after = dag.dependencies
        # On a cycle or between two.
        cyclic = levels(len(dag.copied), before, after) == NONE
        cyclic &= levels(len(dag.copied), after, before) == NONE
        if not cyclic.any():
            break
        dag = replace(dag, copied=np.where(cyclic, NONE, dag.copied))
    return dag


def chunk_groups(program: Program) -> IntArray:
    """int32 (transfers,): the chunk that each transfer belongs to, numbered from 0 in the order of
    the lowest index that any of its transfers writes."""
    t, owner = program.transfers, np.full(program.layout.cells, NONE)
    reader, read = spans(program.source_cells, t.count)
    _, written = spans(program.destination_cells, t.count)
    parent = np.arange(len(t), dtype=np.int32)
    _join(len(read), reader.astype(np.int32), read, written, owner, parent)
    roots, group = np.unique(parent, return_inverse=True)
    lowest = np.full(len(roots), np.iinfo(np.int32).max)
    np.minimum.at(lowest, group, t.dst_index)
    return inverse(np.lexsort((roots, lowest)))[group].astype(np.int32)


@Loop
def _join(
    transfer: IntArray, read: LongArray, written: LongArray, owner: LongArray, parent: IntArray
) -> None:
    """Joins the transfers of each cell into one set; `parent` becomes the lowest transfer of each
    transfer's set.

    transfer, read, written: a row for each chunk moved. owner: (cells,), NONE at first.
    """
    # Sets as trees, joined at the lower root, with halved paths: almost linear.
    for k in range(2 * len(transfer)):
        row = k >> 1
        cell = read[row] if k % 2 == 0 else written[row]
        a = transfer[row]
        # Ends: a parent is a lower number.
        while parent[a] != a:
            parent[a] = parent[parent[a]]
            a = parent[a]
        b = owner[cell]
        if b == NONE:
            owner[cell] = a
            continue
        while parent[b] != b:
            parent[b] = parent[parent[b]]
            b = parent[b]
        if a < b:
            parent[b] = a
        else:
            parent[a] = b
    for a in range(len(parent)):
        parent[a] = parent[parent[a]]  # lower ones are roots or have a root as parent already


class _Groups(NamedTuple):
    """The chunks that transfers belong to, and the ready transfers of each.

    of: (transfers,), the group of each transfer. ready: the transfers of group g that wait for
    nothing, from place room[g] on, size[g] of them. turns: how many turns each group has had.
    """

    of: IntArray
    room: LongArray
    ready: IntArray
    size: IntArray
    turns: LongArray

    @classmethod
    def empty(cls, group: IntArray, groups: int) -> _Groups:
        """No transfer is ready."""
        return cls(
            group,
            offsets_of(np.bincount(group, minlength=groups)),
            np.zeros(len(group), np.int32),
            np.zeros(groups, np.int32),
            np.zeros(groups, np.int64),
        )


class _Links(NamedTuple):
    """The links of each transfer. used: the last sub-pipeline, from 1, that uses each link."""

    first: IntArray
    second: IntArray
    used: IntArray


def _take_fitting(
    g: int, number: int, groups: _Groups, links: _Links, sequence: IntArray, taken: int
) -> int:
    """Moves the ready transfers of group g whose links are free in sub-pipeline `number` into
    `sequence`, from place `taken` on. Returns the place after them."""
    _, room, ready, size, _ = groups
    first, second, used = links
    # Those that don't fit stay in front, in their order, so the oldest is tried first next time.
    begin, left = room[g], 0
    for k in range(begin, begin + size[g]):
        t = ready[k]
        a, b = first[t], second[t]
        if (a != NONE and used[a] == number) or (b != NONE and used[b] == number):
            ready[begin + left] = t
            left += 1
            continue
        if a != NONE:
            used[a] = number
        if b != NONE:
            used[b] = number
        sequence[taken] = t
        taken += 1
    size[g] = left
    return taken


def _make_ready(groups: _Groups, t: int) -> None:
    """Adds a transfer to the ready ones of its group."""
    g = groups.of[t]
    groups.ready[groups.room[g] + groups.size[g]] = t
    groups.size[g] += 1


@Loop
def _schedule(
    in_turn: bool,
    later: Arcs,
    waiting: IntArray,
    groups: _Groups,
    links: _Links,
    sequence: IntArray,
    pipeline: IntArray,
) -> None:
    """Algorithm 1. Fills `sequence` with the transfers in order, `pipeline` with the sub-pipeline
    of each.

    in_turn: round robin. later: the transfers that depend on each one. waiting: how many each one
    depends on.
    """
    (offset, target), size, turns = later, groups.size, groups.turns
    transfers, number_of_groups = len(waiting), len(size)
    # Ascending, so that of a group's ready transfers the earliest in the program comes first.
    for t in range(transfers):
        if waiting[t] == 0:
            _make_ready(groups, t)
    taken, number, start = 0, 0, 0
    # A new sub-pipeline has all links free, and without cycles some transfer is ready: each takes
    # at least one.
    while taken < transfers:
        number += 1
        # The group of the least key is next: turns times number of groups, plus place.
        queue = [0]
        queue.pop()
        for place in range(number_of_groups):
            g = (start + place) % number_of_groups if in_turn else place
            if size[g] > 0:
                queue.append(place if in_turn else turns[g] * number_of_groups + g)
        heapify(queue)
        g = 0
        # A group that contributed returns with a higher key; one that could not does not return,
        # since the links that it needs stay in use until the next sub-pipeline.
        while len(queue) > 0:
            key = heappop(queue)
            g = (key + start) % number_of_groups if in_turn else key % number_of_groups
            before, taken = taken, _take_fitting(g, number, groups, links, sequence, taken)
            if taken == before:
                continue  # the paper clears its flag
            for k in range(before, taken):
                t = sequence[k]
                pipeline[t] = number - 1
                for edge in range(offset[t], offset[t + 1]):
                    after = target[edge]
                    waiting[after] -= 1
                    if waiting[after] == 0:
                        _make_ready(groups, after)
            turns[g] += 1
            heappush(queue, key + number_of_groups)
        if in_turn:
            start = (g + 1) % number_of_groups
