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

To read it, begin with `check`. An instruction is a row: its number among those of all blocks.
"""

# ruff: noqa: N818
from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import re
import signal
import sys
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from heapq import heappop, heappush
from itertools import accumulate, chain, pairwise

NONE = -1
"""In place of a number: no rank, row, cell, value or tree. None only means "not given"."""
MOST = 1 << 26
"""The most chunks of all buffers, and of all messages, so that a small file can't take all
memory."""
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
WRONG += (RecursionError, MemoryError)
"""What is raised for a file or a certificate that isn't accepted."""


# ---- Words -----------------------------------------------------------------------------------


class Op:
    """What an operation does ("Thread blocks")."""

    def __init__(self, name: str):
        words = name.split("_")
        self.name, self.sends, self.receives = name, "send" in words, "recv" in words
        self.reduces = "reduce" in words
        self.reads = name != "nop" and (self.reduces or not self.receives)  # its source
        self.writes = name not in ("nop", "send", "recv_reduce_send")


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


@dataclass
class Promise:
    """What each rank has before a call, and must have after it ("Memory"). Lists of chunks have
    those of rank 0, then those of rank 1, and so on."""

    name: str
    ranks: int
    chunks: int  # of one part of a buffer
    in_place: bool
    root: int  # NONE without one
    varies: bool  # whether the counts of parts do
    inputs: list[int]  # chunks of the input, by rank
    outputs: list[int]
    bases: list[list[int]]  # by buffer and rank, the chunk of the memory at which it begins
    initial: list[bool]  # of each input chunk, whether it holds data
    expected: list[int]  # of each output chunk, the number of the value that it must hold, or NONE
    values: list[tuple[int, ...]]  # in the order of `expected`; the input chunks in it, ascending


def standard(name, ranks, chunks, in_place, root, to=NONE) -> Promise:
    """The collective of a name. to: the rank with the output of a SendRecv."""
    need(name in STANDARD, "promise", f"{name!r} promises nothing that is known here")
    in_parts, out_parts, reduces, from_root, to_one = STANDARD[name]
    varies = name.endswith("v")
    need(ranks > 0 and chunks > 0, "promise", ranks, "ranks,", chunks, "chunks")
    need(not (varies and in_place), "promise", "varying counts in place")
    need(not (from_root or to_one) or 0 <= root < ranks, "promise", "root", root)
    receiver = to if name == "sendrecv" else root
    # In place, the one buffer of a broadcast or a reduction is on every rank.
    shared = in_place and not in_parts and not out_parts and from_root != to_one
    gives = [not from_root or rank == root for rank in range(ranks)]
    gets = [not to_one or rank == receiver for rank in range(ranks)]
    sizes = [chunks * (ranks if parts else 1) for parts in (in_parts, out_parts)]
    need(max(sizes) * ranks < MOST, "promise", "too many chunks")
    inputs = [sizes[0] if one or shared else 0 for one in gives]
    outputs = [sizes[1] if one or shared else 0 for one in gets]
    bases = [[0] * ranks, [0] * ranks]
    if in_place and in_parts != out_parts:  # the smaller buffer is the rank's part of the other
        larger = outputs if out_parts else inputs
        own = [rank * chunks if larger[rank] else 0 for rank in range(ranks)]
        bases[INPUT if out_parts else OUTPUT] = own
    numbers, expected = {}, []
    for rank, size in enumerate(outputs):
        for index in range(size):
            part, chunk = divmod(index, chunks) if out_parts else (root, index)
            giver = NONE if reduces else rank - 1 if name == "alltonext" else part
            value = (giver, chunk + (rank * chunks if in_parts else 0))
            known = gets[rank] and (reduces or giver != NONE)
            expected.append(numbers.setdefault(value, len(numbers)) if known else NONE)
    first = [*accumulate(inputs, initial=0)]
    values = [
        tuple(first[rank] + index for rank in (range(ranks) if reduces else (giver,)))
        for giver, index in numbers
    ]
    initial = [one for one, size in zip(gives, inputs, strict=True) for _ in range(size)]
    return Promise(
        name, ranks, chunks, in_place, root, varies, inputs, outputs, bases, initial, expected,
        values,
    )  # fmt: skip


@dataclass
class Plan:
    """What is executed: blocks of instructions on ranks, connections, and a promise. Memory is
    numbered by chunks, rank after rank: cells. In place, two buffers share them."""

    promise: Promise
    columns: dict[str, Sequence[int]]  # by name (COLUMNS), of each row
    block_rank: list[int]
    blocks: list[int]  # of each block its first row, then the number of all rows
    waits: tuple[Sequence[int], Sequence[int]]  # the rows that wait, ascending, and for which rows
    scratch: list[int]  # chunks, by rank
    slots: int  # of each connection
    _: KW_ONLY
    per_chunk: bool  # whether each chunk takes a slot; otherwise each message takes one
    by_instruction: bool = False  # the order of tiles ("Order, races and hangs")
    direct: bool = False
    groups: Sequence[Sequence[int]] = ()  # of ranks; peers from the number of ranks on
    keeps_input: bool = False  # whether the input must be
    flagged: bool = False  # each word of a message has its own flag, and nothing else orders memory
    notes: Sequence[str] = ()  # conditions

    def __post_init__(self):
        columns, self.rows = self.columns, len(self.columns["op"])
        self.count, self.channel = columns["count"], columns["channel"]
        self.send_peer, self.recv_peer = columns["send_peer"], columns["recv_peer"]
        self._check_tables()
        # Whether messages order nothing for others than themselves: one may be left out where
        # counts vary, and shows only its own words with LL and LL128, if a runtime adds no waits.
        self.local = self.flagged or self.promise.varies
        self.op = [OPS[op] for op in columns["op"]]
        self.block, self.rank = array("q"), array("q")
        for block, (first, end) in enumerate(pairwise(self.blocks)):
            self.block.extend([block] * (end - first))
            self.rank.extend([self.block_rank[block]] * (end - first))
        self._lay_out()
        # The cell of each row's first chunk at either side, NONE if it has none.
        self.src = self._cells("src", [op.reads for op in self.op])
        self.dst = self._cells("dst", [op.writes for op in self.op])
        self._check_rows()
        # The place of a row's first chunk among the chunks of all rows; a nop has one, too.
        self.at = array("q", accumulate((max(count, 1) for count in self.count), initial=0))

    def _check_tables(self):
        rows, ranks, scratch, blocks = self.rows, self.promise.ranks, self.scratch, self.blocks
        columns = self.columns.values()
        need(self.slots >= 1, "tables", self.slots, "slots")
        need(all(len(column) == rows for column in columns), "tables", "lengths of columns")
        need(all(0 <= op < len(OPS) for op in self.columns["op"]), "tables", "operations")
        need(len(scratch) == ranks and min(scratch) >= 0, "tables", "sizes of scratch")
        need(max(sum(scratch), sum(self.count)) < MOST, "tables", "too many chunks")
        known = all(0 <= rank < ranks for rank in self.block_rank)
        need(known and self.block_rank == sorted(self.block_rank), "tables", "ranks of blocks")
        need(len(blocks) == len(self.block_rank) + 1, "tables", "the number of blocks")
        ends = blocks[0] == 0 and blocks[-1] == rows and blocks == sorted(blocks)
        need(ends, "tables", "the ends of blocks")
        for group in self.groups:
            once = group and len({*group}) == len(group)
            need(once and 0 <= min(group) <= max(group) < ranks, "tables", "group", group)

    def _lay_out(self):
        """Numbers the cells: base and end by buffer and rank."""
        promise, self.cells = self.promise, 0
        self.base, self.end = [[], [], []], [[], [], []]
        for rank, sizes in enumerate(zip(promise.inputs, promise.outputs, strict=True)):
            starts = [base[rank] for base in promise.bases] if promise.in_place else [0, sizes[0]]
            data = max(start + size for start, size in zip(starts, sizes, strict=True))
            starts, sizes = [*starts, data], [*sizes, self.scratch[rank]]
            for buffer in BUFFERS:
                self.base[buffer].append(self.cells + starts[buffer])
                self.end[buffer].append(self.cells + starts[buffer] + sizes[buffer])
            self.cells += data + self.scratch[rank]

    def _cells(self, side, used):
        found = array("q", [NONE]) * self.rows
        # In place, either name may be used for what is in either buffer.
        both = (INPUT, OUTPUT)
        names = [both, both, (SCRATCH,)] if self.promise.in_place else [(k,) for k in BUFFERS]
        buffers, indexes = self.columns[f"{side}_buffer"], self.columns[f"{side}_index"]
        for row, rank in enumerate(self.rank):
            if used[row]:
                buffer, count, inside = buffers[row], self.count[row], False
                self.need(buffer in BUFFERS, "operands", row, "has no buffer", side)
                found[row] = start = self.base[buffer][rank] + indexes[row]
                for name in names[buffer]:
                    inside |= self.base[name][rank] <= start <= self.end[name][rank] - count
                self.need(inside, "operands", "the", side, "of", row, "is outside")
        return found

    def _check_rows(self):
        for row, op in enumerate(self.op):
            count, apart = self.count[row], abs(self.src[row] - self.dst[row])
            self.need(count in (0, 1) if op.name == "nop" else count >= 1, "operands", row, "count")
            if op.reads and op.writes:  # threads move elements in no order ("Thread blocks")
                self.need(apart == 0 or apart >= count, "operands", row, "overlaps itself")
        for row, target in zip(*self.waits, strict=True):
            same = 0 <= target < self.rows and self.rank[target] == self.rank[row]
            self.need(same, "operands", row, "waits for none of its rank")

    def peers(self, row: int, peer: int) -> Sequence[int]:
        """The ranks that a row's peer stands for ("Groups")."""
        ranks = self.promise.ranks
        known = 0 <= peer < ranks + len(self.groups) and self.channel[row] >= 0
        self.need(known, "operands", row, "has no peer")
        found = (peer,) if peer < ranks else self.groups[peer - ranks]
        self.need(self.rank[row] not in found, "operands", row, "is its own peer")
        return found

    def chunks(self, buffer: int):
        """The chunks of an input or output, as (rank, index, cell)."""
        sizes = (self.promise.inputs, self.promise.outputs)[buffer]
        for rank, (base, size) in enumerate(zip(self.base[buffer], sizes, strict=True)):
            yield from ((rank, index, base + index) for index in range(size))

    def need(self, holds, rule: str, *found: int | str):
        """Refuses by a rule that doesn't hold. found: numbers are rows."""
        if not holds:
            need(False, rule, *(self.name(k) if isinstance(k, int) else k for k in found))

    def name(self, row: int) -> str:
        """A row for people."""
        rank, block = self.rank[row], self.block[row]
        number, step = block - self.block_rank.index(rank), row - self.blocks[block]
        return f"step {step} ({self.op[row].name}) of block {number} of rank {rank}"


# ---- Rules -----------------------------------------------------------------------------------


class Connections:
    """The FIFOs of a plan: which row receives the message of which row ("Connections").

    ends: of each connection the rows that send and those that receive, in order. senders: of each
    row those that send what it receives.
    """

    def __init__(self, plan: Plan):
        sends, receives = (defaultdict(lambda: array("q")) for _ in range(2))
        for row, op in enumerate(plan.op):
            own, channel = plan.rank[row], plan.channel[row]
            for to in plan.peers(row, plan.send_peer[row]) if op.sends else ():
                sends[own, to, channel].append(row)
            for of in plan.peers(row, plan.recv_peer[row]) if op.receives else ():
                receives[of, own, channel].append(row)
        self.ends = [(sends[key], receives[key]) for key in {**sends, **receives}]
        self.senders = [()] * plan.rows
        for puts, takes in self.ends:
            first = (puts or takes)[0]
            plan.need(len(puts) == len(takes), "matching", first, f"{len(puts)} and {len(takes)}")
            for rows in (puts, takes):
                plan.need(len({plan.block[row] for row in rows}) <= 1, "one-block", first)
            for put, take in zip(puts, takes, strict=False):
                plan.need(plan.count[put] == plan.count[take], "message-size", put)
                self.senders[take] += (put,)


class Events:
    """The witness that no call hangs: the number of each event."""

    def __init__(self, plan: Plan, numbers):
        self.start = plan.at if plan.per_chunk else range(plan.rows + 1)
        self.number = integers(numbers, self.start[plan.rows], "events")

    def of(self, rows: Sequence[int]) -> list[int]:
        """The numbers of the events of rows."""
        return [n for row in rows for n in self.number[self.start[row] : self.start[row + 1]]]

    def first(self, row: int) -> int:
        """The number of a row's first event."""
        return self.number[self.start[row]]

    def last(self, row: int) -> int:
        """The number of a row's last event."""
        return self.number[self.start[row + 1] - 1]


def check_hangs(plan: Plan, connections: Connections, events: Events):
    """One tile ends, since no event waits for itself."""
    for first, end in pairwise(plan.blocks):
        grows = increases(events.number[events.start[first] : events.start[end]])
        need(grows, "block-order", "a block from", first)
    for row, target in zip(*plan.waits, strict=True):
        plan.need(events.last(target) < events.first(row), "wait-order", row)
    for puts, takes in connections.ends:
        put, take = events.of(puts), events.of(takes)
        carried, freed = zip(put, take, strict=False), zip(take, put[plan.slots :], strict=False)
        plan.need(all(a < b for a, b in carried), "message-order", puts[0])
        plan.need(all(a < b for a, b in freed), "slot-order", puts[0])


def check_meetings(plan: Plan, connections: Connections, meetings):
    """In instruction order many tiles end, since the rows with one number need none with a larger
    one ("Order, races and hangs")."""
    meeting = integers(meetings, plan.rows, "meetings")
    for first, end in pairwise(plan.blocks):
        need(increases(meeting[first:end]), "meeting-block", first)
    for take, puts in enumerate(connections.senders):
        plan.need(all(meeting[put] == meeting[take] for put in puts), "meeting-ends", take)
    for row, target in zip(*plan.waits, strict=True):
        plan.need(meeting[target] <= meeting[row], "meeting-wait", row)


def increases(numbers: Sequence[int]) -> bool:
    """Whether each number is larger than the one before."""
    return all(a < b for a, b in pairwise(numbers))


class Order:
    """The witness that accesses don't race: paths of blocks, waits and messages.

    paths: by the two rows that a path orders, whether it orders all of both, or only elements that
    have one place in their messages. waiting, waited: of each wait the two rows, each with a number
    in front for the two blocks, so that those of two blocks stand together; and of `waited` the
    latest until then.
    """

    def __init__(self, plan: Plan, connections: Connections, hops, paths):
        self.plan, self.paths = plan, {}
        waits = []
        for row, target in zip(*plan.waits, strict=True):
            blocks = self._blocks(target, row)
            waits.append((blocks + row, blocks + target))
        waits.sort()
        self.waiting = array("q", (row for row, _ in waits))
        self.waited = array("q", accumulate((target for _, target in waits), max))
        # Of the path from each hop on: its rows at both ends, whether it orders all of both, and
        # whether no message is in it.
        known = []
        for row, after in hops:
            need(0 <= row < plan.rows and NONE <= after < len(known), "hop", row, after)
            if after == NONE:
                known.append((row, row, False, True))
                continue
            begin, end, whole, local = known[after]
            # Blocks and waits order whole instructions, messages only elements with one place.
            step = self.before(row, begin)
            sent = step or row in connections.senders[begin]
            plan.need(sent, "hop", row, "isn't before", begin)
            known.append((row, end, step or whole, step and local))
        for first, second, hop in paths:
            need(0 <= hop < len(known), "path", first, second, hop)
            begin, end, whole, local = known[hop]
            starts, arrives = self.before(first, begin), self.before(end, second)
            reaches = (starts or first == begin) and (arrives or second == end)
            plan.need(reaches, "path", first, "isn't before", second)
            if local or not plan.local:
                whole = whole or starts or arrives or self.paths.get((first, second), False)
                self.paths[first, second] = whole

    def _blocks(self, first: int, second: int) -> int:
        """The number in front of waits in the second row's block for the first one's."""
        blocks, block = len(self.plan.block_rank), self.plan.block
        return (block[second] * blocks + block[first]) * self.plan.rows

    def before(self, first: int, second: int) -> bool:
        """Whether a block or one wait orders two rows."""
        if self.plan.block[first] == self.plan.block[second]:
            return first < second
        blocks = self._blocks(first, second)
        last = bisect_right(self.waiting, blocks + second) - 1
        return last >= 0 and self.waited[last] >= blocks + first

    def check(self, first: int, second: int, aligned: bool):
        """Refuses accesses of two rows that nothing orders. aligned: whether the chunk has one
        place in the messages of both."""
        if first != second and not self.before(first, second):
            self.plan.need((first, second) in self.paths, "race", first, "and", second)
            whole = aligned or self.paths.get((first, second))
            self.plan.need(whole, "race-of-pieces", first, "and", second)


class Sums:
    """Trees of inputs, by numbers; equal trees have one number ("The order of sums"). The first are
    the input chunks of all ranks: leaves. Any other one is a key of `number`: whether a switch
    combines its parts, in an order of its own, and the parts, which have smaller numbers."""

    def __init__(self, promise: Promise):
        self.promise, self.leaves, self.number = promise, sum(promise.inputs), {}

    def combined(self, trees: Sequence[int], switched: bool = False) -> int:
        """The tree with these parts, in any order of them; NONE if one of them holds no data."""
        if len(trees) == 1 or NONE in trees:
            return min(trees)
        key = (switched, *sorted(trees))
        return self.number.setdefault(key, self.leaves + len(self.number))

    def check(self, results):
        """Refuses trees that aren't what is promised. results: by tree and number of the value, a
        place with both."""
        trees = [*self.number]
        for (tree, value), place in results.items():
            wanted = self.promise.values[value]
            often, left = Counter({tree: 1}), [-tree]  # a heap, so that wholes are before parts
            while left and -left[0] >= self.leaves and often[-left[0]] <= len(wanted):
                whole = -heappop(left)
                for part in trees[whole - self.leaves][1:]:
                    if part not in often:
                        heappush(left, -part)
                    often[part] += often[whole]
                del often[whole]
            need(often == Counter(wanted), "result", *place)

    def orders(self, trees) -> set[str]:
        """The orders of trees over ranks: ((0+1)+2). What a switch combines is in braces; a part of
        more than 100 letters is spelled as a number from their SHA-256."""
        own = self.promise.name not in STANDARD  # a sum may have several chunks of a rank
        texts = [
            f"{rank}[{k}]" if own else f"{rank}"
            for rank, size in enumerate(self.promise.inputs)
            for k in range(size)
        ]
        for switched, *parts in self.number:  # each after its parts
            terms = sorted((texts[part] for part in parts), key=first_number)
            text = f"{{{', '.join(terms)}}}" if switched else f"({'+'.join(terms)})"
            if len(text) > 100:
                text = "0x" + hashlib.sha256(text.encode()).hexdigest()
            texts.append(text)
        return {texts[tree] for tree in trees}


def first_number(text: str) -> tuple[int, str]:
    """The first number in a text, then the text."""
    return int(NUMBER.search(text)[0]), text


class Run:
    """All rows on trees, in the order of their events. Any other run has the same accesses to each
    chunk in the same order, since none race.

    memory: the tree in each cell. sent: that of each chunk that is sent. writer: the last row that
    wrote a cell, readers: those that have read it since, pulls: of Direct, the receives that read
    it in the sender's memory. belongs: of varying counts, the one input that may be in a cell.
    """

    def __init__(self, plan: Plan, connections: Connections, events: Events, order: Order, staged):
        self.plan, self.senders, self.events, self.order = plan, connections.senders, events, order
        promise, self.sums = plan.promise, Sums(plan.promise)
        self.memory, self.writer = (array("q", [NONE]) * plan.cells for _ in range(2))
        self.sent = array("q", [NONE]) * plan.at[-1]
        self.readers, self.pulls, self.belongs = defaultdict(list), defaultdict(list), {}
        # Of each row with a message that is read in the sender's memory, the receive.
        self.pulled = {}
        for puts, takes in connections.ends if plan.direct else ():
            self.pulled |= {a: b for a, b in zip(puts, takes, strict=True) if a not in staged}
        switched = any(len(puts) > 1 for puts in self.senders)
        self.reduces = switched or any(op.reduces for op in plan.op)
        need(not (self.reduces and promise.varies), "varying", "sums of counts that vary")
        for tree, (_, _, cell) in enumerate(plan.chunks(INPUT)):
            self.memory[cell] = tree if promise.initial[tree] else NONE
            if promise.varies:
                self.belongs[cell] = tree
        for (_, _, cell), value in zip(plan.chunks(OUTPUT), promise.expected, strict=True):
            if promise.varies and value != NONE:
                [self.belongs[cell]] = promise.values[value]

    def step(self, row: int):
        """Runs a row chunk by chunk, since its two sides are one or apart."""
        plan, op, puts = self.plan, self.plan.op[row], self.senders[row]
        src, dst, memory, varies = plan.src[row], plan.dst[row], self.memory, plan.promise.varies
        # Where nothing is reduced, a copy of chunks onto themselves changes nothing.
        stores = op.writes and (self.reduces or src != dst)
        for k in range(plan.count[row] if op.name != "nop" else 0):
            terms = []
            if puts:
                messages = [self.sent[plan.at[put] + k] for put in puts]
                terms.append(self.sums.combined(messages, switched=True))
            if op.name == "reduce":
                terms.append(memory[dst + k])
            if op.reads:
                if (writer := self.writer[src + k]) != NONE:
                    self.order.check(writer, row, plan.dst[writer] == src)
                self.readers[src + k].append(row)
                terms.append(memory[src + k])
            value = terms[0] if len(terms) == 1 else self.sums.combined(terms)
            if varies:
                plan.need(value != NONE, "varying", row, "reads no data")
            if stores:
                self.release(row, dst + k)
                if varies:
                    right = value == self.belongs.get(dst + k, value)
                    plan.need(right, "varying", row, "writes a chunk of another length")
                self.writer[dst + k], memory[dst + k] = row, value
            if op.sends:
                self.sent[plan.at[row] + k] = value
        if row in self.pulled:
            plan.need(op.name != "recv_reduce_send", "staged", row)
            first = dst if op.receives else src
            for cell in range(first, first + plan.count[row]):
                self.pulls[cell].append(self.pulled[row])

    def release(self, row: int, cell: int):
        """Refuses to overwrite a cell that may still be in use."""
        plan, dst = self.plan, self.plan.dst[row]
        if (writer := self.writer[cell]) != NONE:
            self.order.check(writer, row, plan.dst[writer] == dst)
        for reader in self.readers.pop(cell, ()):
            self.order.check(reader, row, plan.src[reader] == dst)
        for take in self.pulls.pop(cell, ()):  # ("Holds")
            read = self.events.last(take) < self.events.first(row)
            plan.need(read, "hold-order", row, "overwrites what is still read")

    def results(self) -> set[str]:
        """Refuses results other than the promise. Returns the orders of its sums."""
        found = {}
        for (rank, index, cell), value in zip(
            self.plan.chunks(OUTPUT), self.plan.promise.expected, strict=True
        ):
            if value != NONE:
                found[self.memory[cell], value] = f"out[{index}] of rank", rank
        self.sums.check(found)
        return self.sums.orders(tree for tree, _ in found if tree >= self.sums.leaves)


def integers(values, number: int, word: str) -> Sequence[int]:
    """So many whole numbers of a certificate."""
    need(isinstance(values, list) and len(values) == number, word, "not", number, "numbers")
    return array("q", values)


def check(plan: Plan, witness) -> tuple[list[str], set[str]]:
    """Refuses a plan that the witnesses don't prove. Returns the conditions under which it is right
    and the orders in which it sums."""
    promise, connections = plan.promise, Connections(plan)
    events = Events(plan, witness["events"])
    check_hangs(plan, connections, events)
    if plan.by_instruction:
        check_meetings(plan, connections, witness["meetings"])
    order = Order(plan, connections, witness["hops"], witness["paths"])
    run = Run(plan, connections, events, order, {*witness.get("staged", ())})
    for row in sorted(range(plan.rows), key=events.first):
        run.step(row)
    first = plan.base[INPUT]
    kept = promise.in_place or not any(
        op.writes and first[rank] <= cell < first[rank] + promise.inputs[rank]
        for op, rank, cell in zip(plan.op, plan.rank, plan.dst, strict=True)
    )
    need(kept or not plan.keeps_input, "input", "the caller's input is overwritten")
    conditions = ["in place" if promise.in_place else "out of place"]
    conditions += [f"root {promise.root}"] if promise.root != NONE else []
    unit = "chunk" if plan.per_chunk else "message"
    conditions.append(f"{plan.slots} slots or more, one for each {unit}")
    if plan.direct:
        sends = sum(op.sends for op in plan.op)
        pulled = f"{len(run.pulled)} of {sends}"
        conditions.append(f"{pulled} messages at most stay in the sender's memory")
    conditions += [] if kept else ["the input may be overwritten"]
    return [*conditions, *plan.notes], run.results()


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
    waits = parts_of(columns, "waits")
    need(len(waits) == len(rows["op"]), "tables", "the number of waits")
    waiting = array("q", (row for row, targets in enumerate(waits) for _ in targets))
    return [
        Plan(
            promise,
            rows,
            columns["plan.block_rank"].tolist(),
            columns["plan.block_offset"].tolist(),
            (waiting, columns["waits.target"]),
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
    offset, target = columns[f"{table}.offset"].tolist(), columns[f"{table}.target"]
    whole = offset and offset[0] == 0 and offset[-1] == len(target)
    need(whole and offset == sorted(offset), "tables", "offsets of", table)
    return [target[first:end] for first, end in pairwise(offset)]


COLLECTIVE = ("input_chunks", "output_chunks", "input_base", "output_base", "initial", "expected")


def promise_of(words, columns) -> Promise:
    """The promise of a plan file. That of a collective with a known name must be this collective's;
    another one is what the file says, which only its author can judge."""
    name, ranks, chunks, in_place, root, *varying = words
    inputs, outputs, *bases, initial, expected = (
        columns[f"collective.{word}"].tolist() for word in COLLECTIVE
    )
    for sizes in (inputs, outputs, *bases):
        need(len(sizes) == ranks and min(sizes) >= 0, "promise", "sizes or places of the buffers")
    need(len(initial) == sum(inputs) and len(expected) == sum(outputs), "promise", "sizes")
    need(len(initial) + len(expected) < MOST, "promise", "too many chunks")
    need(all(base % chunks == 0 for base in chain(*bases)), "promise", "places of the buffers")
    values = [tuple(sorted(ids)) for ids in parts_of(columns, "values")]
    known = all(ids and ids[0] >= 0 and ids[-1] < len(initial) for ids in values)
    need(known and all(NONE <= k < len(values) for k in expected), "promise", "values")
    numbers = {
        k: number for number, k in enumerate(dict.fromkeys(k for k in expected if k != NONE))
    }
    expected = [numbers.get(k, NONE) for k in expected]
    values = [values[k] for k in numbers]
    found = Promise(
        name, ranks, chunks, in_place, root, bool(varying), inputs, outputs, bases, initial,
        expected, values,
    )  # fmt: skip
    if name in STANDARD:
        to = next((rank for rank, size in enumerate(outputs) if size), 0)
        own = standard(name, ranks, chunks, in_place, root, to)
        need(found == own, "promise", "not that of", name)
    need(name in STANDARD or not varying, "promise", "varying counts of", ascii(name))
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
    begins a transmission. waits: rows that wait, and of each a row that it waits for.
    """

    def __init__(self, blocks):
        """blocks: (rank, number of the block on it, attributes of its steps)."""
        self.rows, self.first, self.ends = [], [], [0]
        waiting, self.announced, self.sizes = [], {}, {}
        for rank, block, steps in blocks:
            self.sizes[rank, block] = len(steps)
            waiting += self._add_block(rank, block, steps)
        self.waits = [], []
        for row, own, named, goal in waiting:
            need(0 <= goal < self.sizes.get(named, 0), "steps", "no step", goal, "of", named)
            # The first announcement of this number or a greater one ends the wait.
            known = self.announced[named]
            at = bisect_left(known, (goal, NONE))
            ends = at < len(known) and (named != own or known[at][1] < row)
            need(ends, "never-ends", "a wait of rank and block", own)
            for _, other in known[at : at + 1] if named != own else ():
                self.waits[0].append(row)
                self.waits[1].append(other)

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
            standard(name, len(gpus), per_loop // parts, place, root if rooted else NONE),
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
            plan.need(apart, "merged", row)
        found.append(plan)
    need(found, "file", "it is for no calls", "" if in_place is None else "of this place")
    return found


# ---- The command -------------------------------------------------------------------------------


def read_certificate(text):
    """The witnesses of each execution, by whether it is in place."""
    try:
        content = json.loads(content_of(text))
        if (version := content["version"]) == 1:
            return {one["in_place"]: one for one in content["executions"]}
    except WRONG as error:
        raise Refused(f"certificate: none of `sley verify --certificate` ({error})") from error
    raise Refused(f"certificate: version {version} isn't known")


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
            if given.target is None:
                parser.error(f"{given.file} is no plan of sley; MSCCL XML needs --target")
            plans = read_xml(
                data,
                given.target,
                root=given.root,
                slots=given.slots,
                in_place=given.in_place,
                most=given.max_bytes,
                slot_bytes=given.slot_bytes,
            )
        witnesses = read_certificate(text)
        found = []
        for plan in plans:
            in_place = plan.promise.in_place
            need(in_place in witnesses, "certificate", "none for calls with in_place", in_place)
            found.append((plan, *check(plan, witnesses[in_place])))
    except WRONG as error:
        what = "" if isinstance(error, Refused) else f"malformed: {type(error).__name__}: "
        print(f"refused: {given.file}: {what}{error}")
        return 1
    for plan, conditions, orders in found:
        promise, name = plan.promise, plan.promise.name
        if name not in STANDARD:
            name = f"{name!a}, with the promise of the file,"
        print(f"accepted: a correct {name} on {promise.ranks} ranks; no race; no hang")
        for condition in conditions:
            print(f"  for: {condition}")
        if orders:
            several = f"order of sums: {len(orders)}"
            print(f"  {several if len(orders) > 1 else f'order of every sum: {orders.pop()}'}")
    return 0


def content_of(text):
    """The content of a certificate, which may be compressed."""
    if text[:2] != b"\x1f\x8b":
        return text
    content = zlib.decompressobj(wbits=31).decompress(text, MOST_BYTES + 1)
    need(len(content) <= MOST_BYTES, "certificate", "more than", MOST_BYTES, "bytes")
    return content


def command():
    """Runs the command as a process, which ends as others do if nobody reads what it prints."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    gc.disable()  # there are no cycles, and many objects to look for them in
    try:
        code = main()
        sys.stdout.flush()
    except OSError as problem:  # such as a full disk
        sys.stderr.write(f"sley-check: {problem}\n")
        sys.stderr.flush()
        os._exit(2)  # what Python still holds can't be written either
    return code


if __name__ == "__main__":
    sys.exit(command())
