#!/usr/bin/env python3
"""sley-check: whether a certificate proves the file that runs. Plain Python, without sley or NumPy.

    sley verify FILE --certificate CERTIFICATE      writes witnesses, which needn't be believed
    sley-check FILE CERTIFICATE                     reads the file itself, and looks at every step

It accepts a file only if in every call each output chunk holds what the collective promises, no two
accesses to a chunk race, and no call hangs. What plans and their runtimes mean is on sley's page
docs/machine.md, whose headings are named here. Of the certificate it believes nothing: the numbers
in it show where to look, and a wrong one leads to a refusal. For each way in which a file is
executed there are

    events    a number for each event of a tile: an instruction or, where every chunk takes a slot,
              a chunk of one. It is larger than those of all events that must come before.
    meetings  of plans that run instruction by instruction: when each instruction is current.
    staged    of plans for Direct: the sends with messages that don't stay in the sender's memory.
    hops      steps of paths: (instruction, the number of a hop before it in this list, or -1).
    paths     (first, second, hop): the path that orders two accesses to a chunk.

It doesn't check the limits of a runtime's tables, or that the hardware's fences do what a runtime
takes them to do. Exit status: 0 accepted, 1 refused, 2 for wrong arguments or a missing file.
"""

# ruff: noqa: N818
from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import re
import sys
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from itertools import accumulate, chain, pairwise

NONE = -1
MOST, MOST_RANKS = 1 << 26, 1 << 16
"""The most chunks of all buffers, and of all messages, so that a small file can't take all memory;
and the most ranks."""
MOST_BYTES = 1 << 30
"""The most bytes of a certificate, not compressed."""
NUMBER = re.compile(r"\d+")


class Refused(Exception):
    """A rule that doesn't hold. The text begins with its name."""


def need(holds, rule, *found):
    """Refuses by a rule that doesn't hold."""
    if not holds:
        raise Refused(f"{rule}: " + " ".join(map(str, found)))


WRONG = (Refused, LookupError, TypeError, ValueError, ArithmeticError, EOFError, zlib.error)
WRONG += (gzip.BadGzipFile, RecursionError, MemoryError)
"""What is raised for a file or a certificate that isn't accepted."""


# ---- Words -----------------------------------------------------------------------------------


class Op:
    """What an operation does ("Thread blocks")."""

    def __init__(self, name):
        words = name.split("_")
        self.name, self.sends, self.receives = name, "send" in words, "recv" in words
        self.reduces = "reduce" in words
        self.reads = name != "nop" and (self.reduces or not self.receives)  # its source
        self.writes = name not in ("nop", "send", "recv_reduce_send")
        self.copies = name in ("copy", "copy_send")


OPS = [
    Op(name)
    for name in (
        *("nop", "send", "recv", "copy", "reduce", "recv_reduce_copy", "recv_copy_send"),
        *("recv_reduce_send", "recv_reduce_copy_send", "copy_send"),
    )
]
BUFFERS = INPUT, OUTPUT, SCRATCH = range(3)

STANDARD = {
    # Whether the input has a part for each rank, whether the output has, whether it reduces,
    # whether only the root has an input, and whether only one rank has an output.
    "allreduce": (False, False, True, False, False),
    "allgather": (False, True, False, False, False),
    "reducescatter": (True, False, True, False, False),
    "alltoall": (True, True, False, False, False),
    "broadcast": (False, False, False, True, False),
    "reduce": (False, False, True, False, True),
    "gather": (False, True, False, False, True),
    "scatter": (True, False, False, True, False),
    "sendrecv": (False, False, False, True, True),
    "alltonext": (False, False, False, False, False),
    "alltoallv": (True, True, False, False, False),
    "allgatherv": (False, True, False, False, False),
}


class Promise:
    """What each rank has before a call, and must have after it ("Memory").

    inputs, outputs: the sizes of the buffers in chunks, by rank. bases: by buffer and rank, the
    chunk at which they begin, in place. initial: by rank, whether each input chunk holds data.
    wanted(rank, index): the inputs that an output chunk must combine, None for any: a tuple of
    (index in the input, how often that of each rank), ascending. The second is a number with a
    digit for each rank, of `digit` bits; the highest of these is `guard`, and 0.
    """

    def __init__(self, name, ranks, chunks, in_place, root, *, varies=False, most=1):
        """most: how often an input may be in a sum."""
        need(0 < ranks < MOST_RANKS and chunks > 0, "promise", ranks, "ranks,", chunks, "chunks")
        self.name, self.ranks, self.chunks, self.in_place = name, ranks, chunks, in_place
        self.root, self.varies, self.digit = root, varies, most.bit_length() + 1
        # A 1 in each digit.
        self.every = ((1 << self.digit * ranks) - 1) // ((1 << self.digit) - 1)
        self.guard = self.every << self.digit - 1

    def union(self, sums):
        """The inputs of several sums together; None if one comes too often, or with None."""
        found = {}
        for one in sums:
            if one is None:
                return None
            for index, ranks in one:
                found[index] = total = found.get(index, 0) + ranks
                if total & self.guard:
                    return None
        return tuple(sorted(found.items()))

    @classmethod
    def standard(cls, name, ranks, chunks, in_place, root, *, to=NONE, most=1):
        """The collective of a name. to: the rank with the output of a SendRecv."""
        need(name in STANDARD, "promise", f"{name!r} promises nothing that is known here")
        in_parts, out_parts, reduces, from_root, to_one = STANDARD[name]
        varies = name.endswith("v")
        need(not (varies and in_place), "promise", "varying counts in place")
        found = cls(name, ranks, chunks, in_place, root, varies=varies, most=most)
        need(not (from_root or to_one) or 0 <= root < ranks, "promise", "root", root)
        receiver = to if name == "sendrecv" else root
        # In place, the one buffer of a broadcast or a reduction is on every rank.
        shared = in_place and not in_parts and not out_parts and from_root != to_one
        gives = [not from_root or rank == root for rank in range(ranks)]
        gets = [not to_one or rank == receiver for rank in range(ranks)]
        sizes = [chunks * (ranks if parts else 1) for parts in (in_parts, out_parts)]
        need(max(sizes) * ranks < MOST, "promise", "too many chunks")
        found.inputs = [sizes[0] if one or shared else 0 for one in gives]
        found.outputs = [sizes[1] if one or shared else 0 for one in gets]
        found.initial = [[one] * size for one, size in zip(gives, found.inputs, strict=True)]
        found.bases = [[0] * ranks, [0] * ranks]
        if in_place and in_parts != out_parts:  # the smaller buffer is the rank's part of the other
            larger = found.outputs if out_parts else found.inputs
            own = [rank * chunks if larger[rank] else 0 for rank in range(ranks)]
            found.bases[INPUT if out_parts else OUTPUT] = own

        def wanted(rank, index):
            if not gets[rank] or (name == "alltonext" and rank == 0):
                return None
            part, chunk = divmod(index, chunks) if out_parts else (root, index)
            giver = rank - 1 if name == "alltonext" else part
            givers = found.every if reduces else 1 << found.digit * giver
            return ((chunk + (rank * chunks if in_parts else 0), givers),)

        found.wanted = wanted
        return found

    def places(self):
        """The output chunks with a promise, as (rank, index)."""
        for rank, size in enumerate(self.outputs):
            yield from ((rank, k) for k in range(size) if self.wanted(rank, k) is not None)

    def equals(self, other):
        """Whether both have the same buffers, data and results."""
        words = ("inputs", "outputs", "bases", "initial", "varies")
        if any(getattr(self, word) != getattr(other, word) for word in words):
            return False
        results = ({at: one.wanted(*at) for at in one.places()} for one in (self, other))
        return next(results) == next(results)


class Plan:
    """What is executed: blocks of instructions on ranks, connections, and a promise.

    columns: by name, of each instruction op, src_buffer, src_index, dst_buffer, dst_index, count,
    send_peer, recv_peer and channel. A peer from the number of ranks on is one of `groups`.
    flagged: whether each word of a message has its own flag, and nothing else orders memory.
    """

    def __init__(
        self, promise, columns, block_rank, blocks, waits, scratch, slots, *,
        per_chunk, by_instruction=False, direct=False, groups=(), keeps_input=False, flagged=False,
        notes=(),
    ):  # fmt: skip
        self.promise, self.blocks, self.waits, self.slots = promise, blocks, waits, slots
        self.per_chunk, self.by_instruction, self.direct = per_chunk, by_instruction, direct
        self.groups, self.keeps_input, self.notes = groups, keeps_input, list(notes)
        # Whether messages order nothing for others than themselves: one may be left out where
        # counts vary, and shows only its own words with LL and LL128, if a runtime adds no waits.
        self.local = flagged or promise.varies
        self.rows, self.block_rank = len(columns["op"]), list(block_rank)
        self.count, self.channel = columns["count"], columns["channel"]
        self.send_peer, self.recv_peer = columns["send_peer"], columns["recv_peer"]
        self._check_tables(columns["op"], block_rank, scratch)
        self.op = [OPS[op] for op in columns["op"]]
        self.block, self.rank = array("q", [0]) * self.rows, array("q", [0]) * self.rows
        for block, (first, end) in enumerate(pairwise(blocks)):
            for row in range(first, end):
                self.block[row], self.rank[row] = block, block_rank[block]
        self._lay_out(scratch)
        self.src = self._cells("source", columns, "src", [op.reads for op in self.op])
        self.dst = self._cells("destination", columns, "dst", [op.writes for op in self.op])
        self._check_rows()
        # The place of an instruction's first chunk among the chunks of all; a nop has one, too.
        self.at = array("q", [0])
        for count in self.count:
            self.at.append(self.at[-1] + max(count, 1))

    def _check_tables(self, ops, block_rank, scratch):
        rows, ranks = self.rows, self.promise.ranks
        need(self.slots >= 1, "tables", self.slots, "slots")
        for values in (self.count, self.channel, self.send_peer, self.recv_peer, self.waits):
            need(len(values) == rows, "tables", "a column of another length")
        need(all(0 <= op < len(OPS) for op in ops), "tables", "an unknown operation")
        need(len(scratch) == ranks and min(scratch) >= 0, "tables", "sizes of scratch")
        need(sum(scratch) < MOST, "tables", "too much scratch")
        need(min(self.count, default=0) >= 0 and sum(self.count) < MOST, "tables", "counts")
        need(list(block_rank) == sorted(block_rank), "tables", "blocks that are not rank by rank")
        need(all(0 <= rank < ranks for rank in block_rank), "tables", "a block of no rank")
        need(len(self.blocks) == len(block_rank) + 1, "tables", "the number of blocks")
        need(self.blocks[0] == 0 and self.blocks[-1] == rows, "tables", "the ends of blocks")
        need(list(self.blocks) == sorted(self.blocks), "tables", "the order of blocks")
        for group in self.groups:
            need(group and all(0 <= rank < ranks for rank in group), "tables", "group", group)
            need(len({*group}) == len(group), "tables", "a group with a rank twice", group)

    def _lay_out(self, scratch):
        """Numbers the chunks of all buffers: cells. In place, two buffers share them."""
        promise, total = self.promise, 0
        self.base, self.end = [[], [], []], [[], [], []]
        for rank, sizes in enumerate(zip(promise.inputs, promise.outputs, strict=True)):
            starts = [base[rank] for base in promise.bases]
            if not promise.in_place:
                starts = [0, sizes[0]]
            data = max(start + size for start, size in zip(starts, sizes, strict=True))
            starts, sizes = [*starts, data], [*sizes, scratch[rank]]
            for buffer in BUFFERS:
                self.base[buffer].append(total + starts[buffer])
                self.end[buffer].append(total + starts[buffer] + sizes[buffer])
            total += data + scratch[rank]
        self.cells = total

    def _cells(self, word, columns, side, used):
        """The cell of each instruction's first chunk at one side, NONE if it has none."""
        found = array("q", [NONE]) * self.rows
        buffers, indexes = columns[f"{side}_buffer"], columns[f"{side}_index"]
        for row in range(self.rows):
            if used[row]:
                buffer, rank = buffers[row], self.rank[row]
                need(buffer in BUFFERS, "operands", word, "of", self.name(row))
                start = self.base[buffer][rank] + indexes[row]
                # In place, either name may be used for what is in either buffer.
                names = (
                    (INPUT, OUTPUT) if self.promise.in_place and buffer != SCRATCH else (buffer,)
                )
                inside = any(
                    self.base[one][rank] <= start and start + self.count[row] <= self.end[one][rank]
                    for one in names
                )
                need(inside, "operands", "the", word, "of", self.name(row), "is outside")
                found[row] = start
        return found

    def _check_rows(self):
        for row, op in enumerate(self.op):
            right = self.count[row] >= 1 if op.name != "nop" else self.count[row] <= 1
            need(right, "operands", self.name(row), "has a count of", self.count[row])
            if op.reads and op.writes:  # threads move elements in no order ("Thread blocks")
                distance = abs(self.src[row] - self.dst[row])
                apart = distance == 0 or distance >= self.count[row]
                need(apart, "operands", self.name(row), "overlaps itself")
            for used, peer in ((op.sends, self.send_peer[row]), (op.receives, self.recv_peer[row])):
                if used:
                    known = 0 <= peer < self.promise.ranks + len(self.groups)
                    need(known, "operands", self.name(row), "has no peer", peer)
                    own = self.rank[row] in self.peers(peer)
                    need(not own and self.channel[row] >= 0, "operands", self.name(row), "peer")
            for target in self.waits[row]:
                same = 0 <= target < self.rows and self.rank[target] == self.rank[row]
                need(same, "operands", self.name(row), "waits for none of its rank")

    def peers(self, peer):
        """The ranks that a peer stands for ("Groups")."""
        return (peer,) if peer < self.promise.ranks else self.groups[peer - self.promise.ranks]

    def name(self, row):
        """An instruction for people."""
        return Name(self, row)


class Name:
    """The name of an instruction. It is spelled only for a refusal."""

    def __init__(self, plan, row):
        self.plan, self.row = plan, row

    def __str__(self):
        plan, row = self.plan, self.row
        rank, block = plan.rank[row], plan.block[row]
        number, step = block - plan.block_rank.index(rank), row - plan.blocks[block]
        return f"step {step} ({plan.op[row].name}) of block {number} of rank {rank}"


# ---- Rules -----------------------------------------------------------------------------------


class Connections:
    """The FIFOs of a plan: which receive takes the message of which send ("Connections").

    senders: of each receiving instruction the sends of its messages; receivers: of each sending one
    the receives. ends: of each connection the sends and the receives, in order.
    """

    def __init__(self, plan):
        sends, receives = defaultdict(list), defaultdict(list)
        for row, op in enumerate(plan.op):
            own, channel = plan.rank[row], plan.channel[row]
            for to in plan.peers(plan.send_peer[row]) if op.sends else ():
                sends[own, to, channel].append(row)
            for of in plan.peers(plan.recv_peer[row]) if op.receives else ():
                receives[of, own, channel].append(row)
        self.ends = [(sends[key], receives[key]) for key in {**sends, **receives}]
        self.senders, self.receivers = defaultdict(list), defaultdict(list)
        for puts, takes in self.ends:
            about = plan.name((puts or takes)[0])
            need(len(puts) == len(takes), "matching", about, len(puts), "sends", len(takes))
            for rows in (puts, takes):
                need(len({plan.block[row] for row in rows}) <= 1, "one-block", about)
            for put, take in zip(puts, takes, strict=False):
                need(plan.count[put] == plan.count[take], "message-size", plan.name(put))
                self.receivers[put].append(take)
                self.senders[take].append(put)


class Events:
    """The witness that no call hangs: the number of each event."""

    def __init__(self, plan, numbers):
        self.start = plan.at if plan.per_chunk else range(plan.rows + 1)
        self.number = integers(numbers, self.start[plan.rows], "events")

    def of(self, rows):
        """The numbers of instructions, one after another."""
        return [n for row in rows for n in self.number[self.start[row] : self.start[row + 1]]]

    def first(self, row):
        """The number of an instruction's first event."""
        return self.number[self.start[row]]

    def last(self, row):
        """The number of an instruction's last event."""
        return self.number[self.start[row + 1] - 1]


def check_hangs(plan, connections, events, meetings):
    """One tile ends, since no event waits for itself; in instruction order so do many tiles, since
    the instructions with one number need none with a larger one ("Order, races and hangs")."""
    for first, end in pairwise(plan.blocks):
        numbers = events.number[events.start[first] : events.start[end]]
        need(all(a < b for a, b in pairwise(numbers)), "block-order", "a block from", first)
    for row, targets in enumerate(plan.waits):
        for target in targets:
            need(events.last(target) < events.first(row), "wait-order", plan.name(row))
    for puts, takes in connections.ends:
        put, take = events.of(puts), events.of(takes)
        carried, freed = (
            zip(*ends, strict=False) for ends in ((put, take), (take, put[plan.slots :]))
        )
        need(all(a < b for a, b in carried), "message-order", plan.name(puts[0]))
        need(all(a < b for a, b in freed), "slot-order", plan.name(puts[0]))
    if not plan.by_instruction:
        return
    meeting = integers(meetings, plan.rows, "meetings")
    for first, end in pairwise(plan.blocks):
        need(all(a < b for a, b in pairwise(meeting[first:end])), "meeting-block", first)
    for take, puts in connections.senders.items():
        need(all(meeting[put] == meeting[take] for put in puts), "meeting-ends", plan.name(take))
    for row, targets in enumerate(plan.waits):
        late = [target for target in targets if meeting[target] > meeting[row]]
        need(not late, "meeting-wait", plan.name(row))


class Order:
    """The witness that accesses don't race: paths of blocks, waits and messages."""

    def __init__(self, plan, connections, hops, paths):
        self.plan, self.whole = plan, {}
        self.waited = [{} for _ in plan.blocks]  # by block: the last row of each other one, so far
        rows, ends, whole, local = [], [], [], []
        for row, after in hops:
            need(0 <= row < plan.rows and NONE <= after < len(rows), "hop", row, after)
            rows.append(row)
            if after == NONE:
                ends.append(row), whole.append(False), local.append(True)
                continue
            to = rows[after]
            # Blocks and waits order whole instructions, messages only elements with one place.
            step = plan.block[row] == plan.block[to] and row < to
            step = step or row in plan.waits[to]
            need(step or row in connections.senders[to], "hop", plan.name(row), plan.name(to))
            ends.append(ends[after])
            whole.append(step or whole[after])
            local.append(step and local[after])
        for first, second, hop in paths:
            need(0 <= hop < len(rows), "path", first, second, hop)
            begin, end = rows[hop], ends[hop]
            starts = first <= begin and plan.block[first] == plan.block[begin]
            arrives = end <= second and plan.block[end] == plan.block[second]
            need(starts and arrives, "path", plan.name(first), plan.name(second))
            if local[hop] or not plan.local:
                strong = whole[hop] or first < begin or end < second
                self.whole[first, second] = strong or self.whole.get((first, second), False)

    def begin(self, row):
        """Takes note of an instruction's waits. Those of a block begin in order."""
        for target in self.plan.waits[row]:
            waited, block = self.waited[self.plan.block[row]], self.plan.block[target]
            waited[block] = max(waited.get(block, NONE), target)

    def check(self, first, second, aligned):
        """Refuses two accesses that nothing orders. aligned: whether the chunk has one place in the
        messages of both."""
        plan = self.plan
        block, other = plan.block[first], plan.block[second]
        if block == other or self.waited[other].get(block, NONE) >= first:
            return
        whole = self.whole.get((first, second))
        need(whole is not None, "race", plan.name(first), "and", plan.name(second))
        need(whole or aligned, "race-of-pieces", plan.name(first), "and", plan.name(second))


class Sums:
    """Trees of inputs, by numbers; equal trees have one number ("The order of sums").

    The first ones are the input chunks of all ranks. Of the others, parts: what each combines, and
    first whether a switch does so in an order of its own. inputs: of each tree, as
    `Promise.wanted`, None if one comes too often.
    """

    def __init__(self, promise):
        self.promise, self.number = promise, {}
        self.leaves = [(rank, k) for rank, n in enumerate(promise.inputs) for k in range(n)]
        self.parts = []
        self.inputs = []

    def inputs_of(self, tree):
        """The inputs of a tree."""
        if tree < len(self.leaves):
            rank, index = self.leaves[tree]
            return ((index, 1 << self.promise.digit * rank),)
        return self.inputs[tree - len(self.leaves)]

    def combined(self, trees, switched=False):
        """The tree with these parts, in any order of them; NONE if one of them holds no data."""
        if len(trees) == 1 or NONE in trees:
            return min(trees)
        key = (switched, *sorted(trees))
        new = len(self.leaves) + len(self.parts)
        if (found := self.number.setdefault(key, new)) == new:
            self.parts.append(key)
            self.inputs.append(self.promise.union(map(self.inputs_of, key[1:])))
        return found

    def orders(self, trees):
        """The number of different orders of trees over ranks, and one of them as a text: (0+1)+2.
        What a switch combines is in braces."""
        own = self.promise.name not in STANDARD  # a sum may have several chunks of a rank
        names = [f"{rank}[{index}]" if own else f"{rank}" for rank, index in self.leaves]
        # Equal shapes have equal numbers. A tree comes after its parts, in both lists.
        numbers, shapes = {}, []
        for key in chain(names, self.parts):
            if not isinstance(key, str):
                key = (key[0], *sorted(shapes[tree] for tree in key[1:]))
            shapes.append(numbers.setdefault(key, len(numbers)))
        found = {shapes[tree] for tree in trees}
        keys, texts, left = [*numbers], {}, [*found][:1]
        while left:  # ends: a shape comes after its parts
            key = keys[left[-1]]
            missing = [] if isinstance(key, str) else [k for k in key[1:] if k not in texts]
            left += missing
            if isinstance(key, str):
                texts[left.pop()] = key
            elif not missing:
                parts = sorted((texts[k] for k in key[1:]), key=lambda t: int(NUMBER.search(t)[0]))
                text = f"{{{', '.join(parts)}}}" if key[0] else f"({'+'.join(parts)})"
                texts[left.pop()] = text
        return len(found), [*texts.values()][-1] if found else ""


class Run:
    """All instructions on trees, in the order of their events. Any other run has the same accesses
    to each chunk in the same order, since none race.

    memory: the tree in each cell. sent: the trees of the messages that each instruction sends.
    writer: the last instruction that wrote a cell, readers: those that have read it since, pulls:
    the receives that read what is in it. belongs: of varying counts, what may be in a cell.
    """

    def __init__(self, plan, connections, events, order, staged):
        self.plan, self.connections, self.events = plan, connections, events
        self.order, self.staged, self.sums = order, staged, Sums(plan.promise)
        self.memory, self.writer = (array("q", [NONE]) * plan.cells for _ in range(2))
        self.sent = array("q", [NONE]) * plan.at[-1]
        self.readers, self.pulls, self.belongs = {}, {}, {}
        switched = any(len(puts) > 1 for puts in connections.senders.values())
        self.reduces = switched or any(op.reduces for op in plan.op)
        promise = plan.promise
        for tree, (rank, index) in enumerate(self.sums.leaves):
            cell = plan.base[INPUT][rank] + index
            self.memory[cell] = tree if promise.initial[rank][index] else NONE
            self.belongs[cell] = self.sums.inputs_of(tree)
        for rank, index in promise.places() if promise.varies else ():
            self.belongs[plan.base[OUTPUT][rank] + index] = promise.wanted(rank, index)
        need(not (self.reduces and promise.varies), "varying", "sums of counts that vary")
        for row in sorted(range(plan.rows), key=events.first):
            order.begin(row)
            values = self.read(row)
            full = not promise.varies or NONE not in values
            need(full, "varying", plan.name(row), "reads no data")
            self.write(row, values)

    def read(self, row):
        """The results of an instruction, a tree for each chunk."""
        plan, values = self.plan, ()
        op, count, src, dst = plan.op[row], plan.count[row], plan.src[row], plan.dst[row]
        if op.receives:
            of = [plan.at[put] for put in self.connections.senders[row]]
            messages = zip(*(self.sent[at : at + count] for at in of), strict=True)
            values = [self.sums.combined(trees, switched=len(of) > 1) for trees in messages]
        elif op.name == "reduce":
            values = self.memory[dst : dst + count]
        if not op.reads:
            return values
        for cell in range(src, src + count):
            self.check(cell, self.writer[cell], plan.dst, row, src)
            self.readers.setdefault(cell, []).append(row)
        local = self.memory[src : src + count]
        if not op.reduces:
            return local
        return [self.sums.combined(pair) for pair in zip(local, values, strict=True)]

    def write(self, row, values):
        """Stores the results of an instruction, and sends them."""
        plan = self.plan
        op, count, src, dst = plan.op[row], plan.count[row], plan.src[row], plan.dst[row]
        # Where nothing is reduced, a copy of chunks onto themselves changes nothing.
        stores = op.writes and (self.reduces or not op.copies or src != dst)
        for cell, value in zip(range(dst, dst + count), values, strict=True) if stores else ():
            self.check(cell, self.writer[cell], plan.dst, row, dst)
            for reader in self.readers.pop(cell, ()):
                self.check(cell, reader, plan.src, row, dst)
            # Direct: data that stay in the sender's memory are read there ("Holds").
            for take in self.pulls.pop(cell, ()):
                read = self.events.last(take) < self.events.first(row)
                need(read, "hold-order", plan.name(row), "overwrites what is still read")
            if plan.promise.varies and cell in self.belongs:
                same = self.sums.inputs_of(value) == self.belongs[cell]
                need(same, "varying", plan.name(row), "writes a chunk of another length")
            self.writer[cell], self.memory[cell] = row, value
        if op.sends:
            self.sent[plan.at[row] : plan.at[row] + count] = array("q", values)
            if plan.direct and row not in self.staged:
                need(op.name != "recv_reduce_send", "staged", plan.name(row))
                at = dst if op.receives else src
                for cell in range(at, at + count):
                    self.pulls.setdefault(cell, []).extend(self.connections.receivers[row])

    def check(self, cell, first, starts, second, start):
        """Refuses two accesses to a cell that nothing orders. starts: of instructions like the
        first one, the cells of their first chunks; start: that of the second one."""
        if first not in (NONE, second):
            self.order.check(first, second, cell - starts[first] == cell - start)

    def orders(self):
        """Refuses results other than the promise. Returns the orders of its sums."""
        promise, sums = self.plan.promise, set()
        for rank, index in promise.places():
            tree = self.memory[self.plan.base[OUTPUT][rank] + index]
            right = tree != NONE and self.sums.inputs_of(tree) == promise.wanted(rank, index)
            need(right, "result", f"out[{index}] of rank", rank)
            sums.add(tree)
        return self.sums.orders({tree for tree in sums if tree >= len(self.sums.leaves)})


def integers(values, number, word):
    """So many whole numbers of a certificate."""
    need(isinstance(values, list) and len(values) == number, word, "not", number, "numbers")
    return array("q", values)


def check(plan, witness):
    """Refuses a plan that the witnesses don't prove. Returns the conditions under which it is."""
    promise = plan.promise
    connections = Connections(plan)
    events = Events(plan, witness["events"])
    check_hangs(plan, connections, events, witness.get("meetings"))
    order = Order(plan, connections, witness["hops"], witness["paths"])
    run = Run(plan, connections, events, order, {*witness.get("staged", ())})
    kept = promise.in_place or not any(
        plan.base[INPUT][rank] <= plan.dst[row] < plan.base[INPUT][rank] + promise.inputs[rank]
        for row, rank in enumerate(plan.rank)
        if plan.op[row].writes
    )
    need(kept or not plan.keeps_input, "input", "the caller's input is overwritten")
    conditions = ["in place" if promise.in_place else "out of place"]
    conditions += [f"root {promise.root}"] if promise.root != NONE else []
    unit = "chunk" if plan.per_chunk else "message"
    conditions.append(f"{plan.slots} slots or more, one for each {unit}")
    if plan.direct:
        sends = {row for row, op in enumerate(plan.op) if op.sends}
        pulled = len(sends - run.staged)
        conditions.append(f"{pulled} of {len(sends)} messages at most stay in the sender's memory")
    conditions += [] if kept else ["the input may be overwritten"]
    return conditions + plan.notes, run.orders()


# ---- Plan files (sley's formats/plan_file.py) --------------------------------------------------

TYPES = {"<i8": "q", "<i4": "i", "|i1": "b", "|u1": "B", "|b1": "B", "<f8": "d", "<f4": "f"}
COLUMNS = ("op", "src_buffer", "src_index", "dst_buffer", "dst_index", "count", "send_peer")
COLUMNS += ("recv_peer", "channel")


def read_plan(data, slots=None):
    """The plan of a file of sley, as sley's own engines execute it."""
    need(data[:8] == b"sleyplan" and data[8:10] == b"\1\0", "file", "not a plan of version 1")
    end = 32 + int.from_bytes(data[12:16], "little")
    head, columns = json.loads(data[32:end]), {}
    position = end + -end % 8
    for name, kind, length in head["columns"]:
        columns[name] = column = array(TYPES[kind])
        size = length * column.itemsize
        column.frombytes(data[position : position + size])
        if sys.byteorder == "big":
            column.byteswap()
        need(len(column) == length, "file", "column", name, "is short")
        position += size + -size % 8
    need(position == len(data), "file", "the end isn't that of the last column")
    words = head["plan"]
    promise = promise_of(words["collective"], columns)
    groups = parts_of(columns, "groups") if "groups.offset" in columns else ()
    plain, direct = (words["protocol"] == name for name in ("Simple", "Direct"))
    known = not groups or (plain and promise.varies is False)
    need(known, "groups", "those of", words["protocol"], "have no rules here")
    rows = {name: columns[f"instructions.{name}"] for name in COLUMNS}
    return [
        Plan(
            promise,
            rows,
            columns["plan.block_rank"],
            columns["plan.block_offset"],
            parts_of(columns, "waits"),
            columns["plan.scratch_chunks"],
            words["slots"] if slots is None else slots,
            # Of Direct, whose engines are sley's alone, every message takes one slot.
            per_chunk=words["per_chunk"] and not direct,
            by_instruction={"tile": False, "instruction": True}[words["loop_order"]],
            direct=direct,
            groups=groups,
        )
    ]


def parts_of(columns, table):
    """The lists of a table of offsets and targets."""
    offset, target = columns[f"{table}.offset"], columns[f"{table}.target"].tolist()
    whole = len(offset) and offset[0] == 0 and offset[-1] == len(target)
    need(whole and list(offset) == sorted(offset), "tables", "offsets of", table)
    return [target[first:end] for first, end in pairwise(offset)]


COLLECTIVE = ("input_chunks", "output_chunks", "input_base", "output_base", "initial", "expected")


def promise_of(words, columns):
    """The promise of a plan file. That of a collective with a known name must be this collective's;
    another one is what the file says, which only its author can judge."""
    name, ranks, chunks, in_place, root, *varying = words
    of = {word: columns[f"collective.{word}"].tolist() for word in COLLECTIVE}
    for word in COLLECTIVE[:4]:
        need(len(of[word]) == ranks and min(of[word]) >= 0, "promise", word)
    starts = [list(accumulate(of[word], initial=0)) for word in COLLECTIVE[:2]]
    lengths = [len(of["initial"]), len(of["expected"])]
    need(lengths == [one[-1] for one in starts], "promise", "sizes of the buffers")
    values = []
    for ids in parts_of(columns, "values"):
        need(ids and min(ids) >= 0 and max(ids) < lengths[0], "promise", "inputs", ids)
        owners = [bisect_right(starts[0], k) - 1 for k in ids]
        pairs = zip(owners, ids, strict=True)
        values.append(Counter((rank, k - starts[0][rank]) for rank, k in pairs))
    # Of all values, so that both promises below count alike.
    most = max((max(one.values()) for one in values), default=1)
    found = Promise(name, ranks, chunks, in_place, root, varies=bool(varying), most=most)
    found.inputs, found.outputs = of["input_chunks"], of["output_chunks"]
    found.bases = [of["input_base"], of["output_base"]]
    whole = all(base % chunks == 0 for bases in found.bases for base in bases)
    need(whole and sum(lengths) < MOST, "promise", "places of the buffers")
    found.initial = [list(map(bool, of["initial"][a:b])) for a, b in pairwise(starts[0])]
    sets = []
    for value in values:
        terms = (((index, n << found.digit * rank),) for (rank, index), n in value.items())
        sets.append(found.union(terms))
    sets.append(None)  # by the number -1
    need(all(NONE <= k < len(sets) - 1 for k in of["expected"]), "promise", "expected")
    found.wanted = lambda rank, index: sets[of["expected"][starts[1][rank] + index]]
    if name in STANDARD:
        to = next((rank for rank, size in enumerate(found.outputs) if size), 0)
        own = Promise.standard(name, ranks, chunks, in_place, root, to=to, most=most)
        need(found.equals(own), "promise", "not that of", name)
    need(name in STANDARD or not found.varies, "promise", "varying counts of", ascii(name))
    return found


# ---- MSCCL XML ("In MSCCL XML") ----------------------------------------------------------------


class Target:
    """A runtime that reads MSCCL XML.

    names: the collectives by its names. fused: whether it runs fused operations. slot_bytes: by
    protocol, the bytes of a slot; of Simple a quarter for the collectives `short`. both_places:
    whether it reads `outofplace`, otherwise `inplace` says both. last_size: of the calls for which
    it takes a file with this maxBytes; None without a limit.
    """

    def __init__(self, names, *, ll, ll128, fused=True, short=(), both_places=True):
        self.names, self.fused, self.short, self.both_places = names, fused, short, both_places
        self.slot_bytes = {"Simple": 2 << 20, "LL": ll, "LL128": ll128}

    def last_size(self, most):
        """See above. most: of the attribute, NONE without it."""
        if self.both_places:
            return None if most <= 0 or most >= 1 << 40 else most
        most = 128 << 20 if most == NONE else most
        return None if most >= 1 << 40 else most - 1


COMMON = {name: name for name in ("allreduce", "allgather", "reduce", "broadcast", "alltoall")}
MORE = COMMON | {name: name for name in ("reducescatter", "gather", "scatter")}
SHORT = ("broadcast", "reduce")
TARGETS = {
    "executor": Target(MORE, ll=32 << 10, ll128=576_000, short=SHORT),
    "rccl": Target(MORE, ll=16 << 10, ll128=230_400, short=SHORT, fused=False),
    "msccl": Target(
        COMMON | {"reduce_scatter": "reducescatter"}, ll=32 << 10, ll128=576_000, both_places=False
    ),
}
XML_OPS = {
    "nop": "nop", "s": "send", "r": "recv", "cpy": "copy", "re": "reduce",
    "rrc": "recv_reduce_copy", "rcs": "recv_copy_send", "rrs": "recv_reduce_send",
    "rrcs": "recv_reduce_copy_send",
}  # fmt: skip
SLOTS = {"Simple": 2, "LL": 8, "LL128": 8}
REDUCE_RUN = 16
"""A block's reduction after which parsers end a run of merged ones, and the most in a run."""
TAG = re.compile(r'\s*<(/?)([a-z]+)((?: [A-Za-z_]+="[^"&]*")*) ?(/?)>|\s*<!--[^=]*?-->')


def elements(text):
    """The tree of a file's tags, as (name, attributes, children); no text may be between them."""
    root = ("", {}, [])
    path, position = [root], 0
    while match := TAG.match(text, position):
        position = match.end()
        closes, name, attributes, empty = match.groups()
        if name is None:
            continue
        if closes:
            need(path.pop()[0] == name and not attributes, "file", "a tag that ends", name)
            continue
        pairs = re.findall(r' (\w+)="([^"]*)"', attributes)
        one = (name, dict(pairs), [])
        need(len(one[1]) == len(pairs), "file", "an attribute twice")
        path[-1][2].append(one)
        path += [] if empty else [one]
    need(len(path) == 1 and not text[position:].strip(), "file", "tags at", text[position:][:40])
    return root[2]


def number(attributes, name, default=None):
    """A whole number of a tag, as C reads it: of 32 bits, but for sizes of calls."""
    text = attributes.get(name, "" if default is None else str(default))
    need(re.fullmatch(r"0|-?[1-9][0-9]{0,18}", text), "file", name, ascii(text))
    value = int(text)
    bits = 63 if name.endswith("Bytes") else 31
    need(-(1 << bits) <= value < 1 << bits, "file", name, value)
    return value


class Steps:
    """The steps of a file that are no nops, as a runtime merges and numbers them.

    rows: the attributes of each; ends: of each block the first row after it. first: whether a row
    begins a transmission. waits: of each row the rows that it waits for.
    """

    def __init__(self, blocks):
        """blocks: (rank, number of the block on it, attributes of its steps)."""
        self.rows, self.first, self.ends = [], [], [0]
        waiting, self.announced, self.sizes = [], {}, {}
        for rank, block, steps in blocks:
            self.sizes[rank, block] = len(steps)
            waiting += self._add_block(rank, block, steps)
        self.waits = [[] for _ in self.rows]
        for row, own, named, goal in waiting:
            need(0 <= goal < self.sizes.get(named, 0), "steps", "no step", goal, "of", named)
            # The first announcement of this number or a greater one ends the wait.
            known = self.announced[named]
            at = bisect_left(known, (goal, NONE))
            ends = at < len(known) and (named != own or known[at][1] < row)
            need(ends, "never-ends", "a wait of rank and block", own)
            self.waits[row] += [other for _, other in known[at : at + 1]] if named != own else []

    def _add_block(self, rank, block, steps):
        """Adds a block's steps. Returns its waits, as (row, the own block, the other, number)."""
        announced = self.announced[rank, block] = []
        found, pending, last = [], [], {}
        transmission, reductions, run = NONE, 0, 0
        for s, step in enumerate(steps):
            need(number(step, "s") == s, "steps", "s of block", block, "of rank", rank)
            need(step["type"] in XML_OPS and step["hasdep"] in ("0", "1"), "file", step)
            if waits := number(step, "depid") != NONE:
                pending.append((number(step, "depid"), number(step, "deps")))
            if step["type"] == "nop":
                continue
            # A reduction into the same place is merged into the one before it.
            same = all(step[k] == last.get(k) for k in ("type", "dstbuf", "dstoff", "srcbuf"))
            joins = same and step["type"] == "re" and not waits and last["hasdep"] == "0"
            joins = joins and reductions != REDUCE_RUN
            reductions += step["type"] == "re"
            run = run + 1 if joins else 1
            need(run <= REDUCE_RUN, "merged", "more than", REDUCE_RUN, "reductions at once")
            need(not joins or step["cnt"] == last["cnt"], "merged", "counts that differ")
            if not joins:
                # Waits of nops go to the next transmission, which must have one itself.
                need(waits or not pending, "nops", "a step after nops without a wait")
                own = (rank, block)
                found += [(len(self.rows), own, (rank, other), at) for other, at in pending]
            # A transmission takes a number for each of its waits, and for each merged step.
            transmission += 1 if joins else max(len(pending), 1)
            pending = pending if joins else []
            if step["hasdep"] == "1":
                announced.append((transmission, len(self.rows)))
            self.rows.append(step)
            self.first.append(not joins)
            last = step
        self.ends.append(len(self.rows))
        return found


def blocks_of(gpus):
    """The blocks of the tags of GPUs: (rank, number, attributes of the steps), and their own
    attributes."""
    need([number(gpu[1], "id") for gpu in gpus] == [*range(len(gpus))], "file", "ids of GPUs")
    blocks, tags, sending, receiving = [], [], [], []
    for rank, (_, _, children) in enumerate(gpus):
        children = [child for child in children if child[0] != "copy"]  # which runtimes ignore
        children = sorted(children, key=lambda block: number(block[1], "id"))
        for block, (name, tag, steps) in enumerate(children):
            need(name == "tb" and number(tag, "id") == block, "file", "ids of blocks")
            need(all(step[0] == "step" for step in steps), "file", "no <step>")
            blocks.append((rank, block, [step[1] for step in steps]))
            tags.append(tag)
            send, receive, channel = (number(tag, word) for word in ("send", "recv", "chan"))
            sending += [(rank, send, channel)] if send != NONE else []
            receiving += [(receive, rank, channel)] if receive != NONE else []
    # Ranks connect what their blocks name, and wait for the other end.
    need(sorted(sending) == sorted(receiving), "peers", *({*sending} ^ {*receiving}))
    need(len({*sending}) == len(sending), "peers", "two blocks at an end of a connection")
    return blocks, tags


def read_xml(data, target, *, root=None, slots=None, in_place=None, most=None, slot_bytes=None):
    """What a runtime executes of an MSCCL XML file: a plan for each place that it allows."""
    need(target in TARGETS, "target", "one of", *TARGETS, "is needed")
    runtime, tree = TARGETS[target], elements(data.decode())
    need(len(tree) == 1 and tree[0][0] == "algo", "file", "no <algo>")
    _, head, gpus = tree[0]
    need(all(gpu[0] == "gpu" for gpu in gpus), "file", "no <gpu>")
    gpus = sorted(gpus, key=lambda gpu: number(gpu[1], "id"))
    need(len(gpus) == number(head, "ngpus"), "file", len(gpus), "GPUs")
    blocks, tags = blocks_of(gpus)
    steps = Steps(blocks)
    coll, per_loop, proto = head["coll"], number(head, "nchunksperloop"), head["proto"]
    need(coll in runtime.names, "promise", f"{coll!a} promises nothing that is known here")
    in_parts, out_parts, reduces, from_root, to_one = STANDARD[name := runtime.names[coll]]
    rooted = from_root or to_one
    parts = len(gpus) if (in_parts or out_parts) and not rooted else 1
    need(per_loop > 0 and per_loop % parts == 0, "promise", "nchunksperloop", per_loop)
    if root is None:  # the only rank with the root's buffer
        word = "i_chunks" if from_root else "o_chunks"
        holders = [rank for rank, gpu in enumerate(gpus) if number(gpu[1], word) > 0]
        root = holders[0] if len(holders) == 1 else 0
    columns = {word: [] for word in COLUMNS}
    names = [op.name for op in OPS]
    for (first, end), tag in zip(pairwise(steps.ends), tags, strict=True):
        for step in steps.rows[first:end]:
            op = OPS[names.index(XML_OPS[step["type"]])]
            fused = op.receives and (op.sends or op.reduces)
            need(runtime.fused or not fused, "operation", op.name, "isn't run by", target)
            columns["op"].append(OPS.index(op))
            for side in ("src", "dst"):
                columns[f"{side}_buffer"].append("ios".find(step[f"{side}buf"]))
                columns[f"{side}_index"].append(number(step, f"{side}off"))
            columns["count"].append(number(step, "cnt"))
            columns["send_peer"].append(number(tag, "send"))
            columns["recv_peer"].append(number(tag, "recv"))
            columns["channel"].append(number(tag, "chan"))
    least, end = number(head, "minBytes", 0), runtime.last_size(number(head, "maxBytes", NONE))
    end = most if most is not None and (end is None or most < end) else end
    need(end is None or max(least, 1) <= end, "sizes", "no calls from", least, "to", end)
    notes = [f"calls from {least} bytes" + (f" to {end} bytes" if end is not None else "")]
    notes[0] += f", in elements a multiple of {per_loop}"
    notes += ["sum, prod, min or max"] if reduces else []
    # Without a limit of the calls a chunk may fill a slot, so that each takes one.
    slot_bytes = slot_bytes or runtime.slot_bytes[proto] // (
        4 if proto == "Simple" and coll in runtime.short else 1
    )
    sizes = zip(columns["count"], columns["op"], strict=True)
    longest = max((count for count, op in sizes if OPS[op].sends), default=1)
    needed = None if end is None or longest == 1 else longest * -(-end // per_loop)
    per_chunk = needed is None or needed > slot_bytes
    notes += [] if per_chunk else [f"slots of {needed} bytes or more"]
    inside = number(head, "inplace") == 1
    outside = number(head, "outofplace") == 1 if runtime.both_places else not inside
    found = []
    for place in [place for place, on in ((True, inside), (False, outside)) if on]:
        if in_place not in (None, place):
            continue
        plan = Plan(
            Promise.standard(name, len(gpus), per_loop // parts, place, root if rooted else NONE),
            columns,
            [rank for rank, _, _ in blocks],
            steps.ends,
            steps.waits,
            [number(gpu[1], "s_chunks") for gpu in gpus],
            SLOTS[proto] if slots is None else slots,
            per_chunk=per_chunk,
            keeps_input=True,
            flagged=proto != "Simple",
            notes=notes,
        )
        for row, first in enumerate(steps.first):  # merged steps read all sources before they write
            apart = first or abs(plan.src[row] - plan.dst[row]) >= plan.count[row]
            need(apart, "merged", plan.name(row))
        found.append(plan)
    need(found, "file", "it is for no calls", "" if in_place is None else "of this place")
    return found


# ---- The command -------------------------------------------------------------------------------


def main(arguments=None):
    """Runs the command. Returns its exit status."""
    parser = argparse.ArgumentParser("sley-check", description=__doc__.split("\n\n")[0])
    parser.add_argument("file", help="a plan of sley (.plan), or MSCCL XML with --target")
    parser.add_argument("certificate", help="what `sley verify FILE --certificate` wrote")
    parser.add_argument("--target", choices=TARGETS, help="the runtime that executes an XML file")
    parser.add_argument("--slots", type=int, help="messages that a connection holds")
    parser.add_argument("--root", type=int, help="root of an XML file's collective")
    parser.add_argument("--max-bytes", type=int, help="only calls up to this size")
    parser.add_argument("--slot-bytes", type=int, help="bytes of a slot")
    for word, value in (("--in-place", True), ("--out-of-place", False)):
        parser.add_argument(word, dest="in_place", action="store_const", const=value)
    given = parser.parse_args(arguments)
    try:
        with open(given.file, "rb") as file:  # noqa: PTH123 - as short as it can be
            data = file.read()
        with open(given.certificate, "rb") as file:  # noqa: PTH123
            text = file.read()
    except OSError as error:
        print(f"sley-check: {error}", file=sys.stderr)
        return 2
    try:
        if data.startswith(b"sley"):
            need(given.target is None, "target", "sley's engines run a plan of sley")
            plans = read_plan(data, given.slots)
        else:
            plans = read_xml(
                data,
                given.target,
                root=given.root,
                slots=given.slots,
                in_place=given.in_place,
                most=given.max_bytes,
                slot_bytes=given.slot_bytes,
            )
        content = json.loads(content_of(text))
        need(content["version"] == 1, "certificate", "version", content["version"], "isn't known")
        witnesses = {one["in_place"]: one for one in content["executions"]}
        found = []
        for plan in plans:
            in_place = plan.promise.in_place
            need(in_place in witnesses, "certificate", "none for calls with in_place", in_place)
            found.append((plan, *check(plan, witnesses[in_place])))
    except WRONG as error:
        what = "" if isinstance(error, Refused) else f"malformed: {type(error).__name__}: "
        print(f"refused: {given.file}: {what}{error}")
        return 1
    for result in found:
        report(*result)
    return 0


def content_of(text):
    """The content of a certificate, which may be compressed."""
    if text[:2] != b"\x1f\x8b":
        return text
    with gzip.open(io.BytesIO(text)) as file:
        content = file.read(MOST_BYTES + 1)
    need(len(content) <= MOST_BYTES, "certificate", "more than", MOST_BYTES, "bytes")
    return content


def report(plan, conditions, orders):
    """Prints what is proven."""
    promise, (number_of, text) = plan.promise, orders
    own = promise.name not in STANDARD
    name = f"{promise.name!a}, with the promise of the file," if own else promise.name
    print(f"accepted: a correct {name} on {promise.ranks} ranks; no race; no hang")
    for condition in conditions:
        print(f"  for: {condition}")
    if number_of:
        if len(text) > 100:
            text = "sha256 " + hashlib.sha256(text.encode()).hexdigest()
        print(f"  order of sums: {number_of}" if number_of > 1 else f"  order of every sum: {text}")


if __name__ == "__main__":
    sys.exit(main())
