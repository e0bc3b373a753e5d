"""A model of MSCCL++'s executor on units of 16 bytes, written from the facts about its code.

It executes a plan's JSON for one size of chunk: blocks take turns at random, each operation is done
at once. Memory holds in each unit the sorted input units, (rank, unit), that it is the sum of.

A buffer of the caller begins somewhere in an allocation, and the executor registers allocations
(executor.cc, execute). A block's own accesses begin at the buffer, a port reads from the start of
the allocation, and what is written or read in another rank's allocation has the offset of the
block's own buffer (execution_plan.cc, getConstOffset).
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from sley.formats import mscclpp
from sley.ir.collective import Collective
from sley.ir.collectives import STANDARD
from sley.ir.conditions import Condition, Offset
from sley.ir.tables import NONE
from support.inputs.mscclpp_plans import text_of

UNIT = 16
Value = tuple[tuple[int, int], ...]
Place = tuple[int, str, int]
"""A rank, an allocation of it, and a unit."""

_UNPACKED = {"upkt", "rppkt", "gstorepkt"}
_PACKETS_READ = {"repkt", "respkt", "recpkt", "recspkt"}


def _cut(units: int, share: int, shares: int) -> int:
    """Where a share begins; right only for at least as many units as shares."""
    least, rest = divmod(units, shares)
    own = share % units
    return share * least + (own if own < rest else rest)


class Executor:
    """One call of a plan, with buffers as in MSCCL++'s executor_test.py. chunk: units of a chunk.
    begin: by rank, the unit of its allocations at which its data begin; in place, these are the
    larger buffer, and the smaller one is the rank's part of it."""

    def __init__(
        self, document: Any, chunk: int, seed: int = 0, begin: Sequence[int] | None = None
    ) -> None:
        self.gpus = document["gpus"]
        self.chunk = chunk
        self.random = random.Random(seed)
        self.memory: dict[Place, Value] = {}
        self.packets: dict[tuple[int, int], Value] = {}
        self.counters: dict[Any, int] = defaultdict(int)
        self.barriers: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
        self.ports: dict[tuple[int, int], deque[Any]] = defaultdict(deque)
        self.pointer: dict[tuple[int, str], tuple[str, int]] = {}
        ranks = len(self.gpus)
        for rank, gpu in enumerate(self.gpus):
            shift = dict.fromkeys("io", 0 if begin is None else begin[rank])
            if document["inplace"]:
                smaller = "i" if gpu["input_chunks"] < gpu["output_chunks"] else "o"
                if gpu["input_chunks"] != gpu["output_chunks"]:
                    least = min(gpu["input_chunks"], gpu["output_chunks"])
                    shift[smaller] += rank * least * chunk
            for buffer in "io":
                shared = document["inplace"]
                self.pointer[rank, buffer] = ("data" if shared else buffer, shift[buffer])
            self.pointer[rank, "s"] = ("s", 0)
            for number, semaphore in enumerate(gpu["semaphores"]):
                self.counters["semaphore", rank, number] = semaphore["init_value"]
        for rank in range(ranks):
            for unit in range(self.gpus[rank]["input_chunks"] * chunk):
                self._write((rank, *self.pointer[rank, "i"]), unit, ((rank, unit),))

    def read(self, rank: int, buffer: str, unit: int) -> Value:
        """What the caller finds in a unit of a buffer."""
        return self._read((rank, *self.pointer[rank, buffer]), unit)

    def _read(self, place: Place, unit: int) -> Value:
        rank, name, first = place
        return self.memory.get((rank, name, first + unit), (("?", rank, name, first + unit),))  # type: ignore[return-value]

    def _write(self, place: Place, unit: int, value: Value) -> None:
        rank, name, first = place
        self.memory[rank, name, first + unit] = value

    def sum_of(self, values: list[Value]) -> Value:
        """The sum of values, in the order of the executor's sums."""
        return tuple(sorted((unit for value in values for unit in value), key=str))

    def run(self) -> bool:
        """Executes the call; false if it hangs."""
        running: list[Any] = [
            self._block(rank, block)
            for rank, gpu in enumerate(self.gpus)
            for block in gpu["threadblocks"]
        ]
        idle = 0
        while running or any(self.ports.values()):
            work = [*running, *(key for key, queue in self.ports.items() if queue)]
            one = self.random.choice(work)
            if isinstance(one, tuple):
                self.ports[one].popleft()()
                idle = 0
            else:
                state = next(one, "end")
                if state == "end":
                    running.remove(one)
                idle = idle + 1 if state == "waits" else 0
            if idle > 200 * len(work):
                return False
        return True

    def _block(self, rank: int, block: Any) -> Iterator[str]:
        for op in block["ops"]:
            if op["name"] != "pipeline":
                yield from self._operation(rank, block, op, 0, 1 << 40)
                continue
            unit = op["iter_context"]["unit_size"] // UNIT
            total = op["iter_context"]["num_chunks"] * self.chunk
            for iteration in range(-(-total // unit)):
                for inner in op["ops"]:
                    yield from self._operation(rank, block, inner, iteration * unit, unit)

    def _ids(self, block: Any, word: str) -> list[int]:
        lists = [one["channel_ids"] for one in block["channels"] if one["channel_type"] == word]
        return [number for own in lists for number in own]

    def _end(self, rank: int, word: str, number: int) -> tuple[int, int]:
        """The peer of a GPU's channel, and the number of channels to it before."""
        peers = [
            peer
            for one in self.gpus[rank]["channels"]
            if one["channel_type"] == word
            for peer in one["connected_to"]
        ]
        return peers[number], peers[:number].count(peers[number])

    def _operation(self, rank: int, block: Any, op: Any, offset: int, unit: int) -> Iterator[str]:
        name, word = op["name"], op.get("channel_type", "")
        own = self._ids(block, word)
        ends = [(own[one], *self._end(rank, word, own[one])) for one in op.get("channel_ids", ())]
        if name in ("signal", "rlxsignal"):
            for number, peer, k in ends:
                self._signal(rank, word, number, peer, k)
        elif name in ("wait", "rlxwait"):
            for _, peer, k in ends:
                yield from self._take((word, rank, peer, k))
        elif name.startswith("sem_"):
            for number in op["semaphore_ids"]:
                if name == "sem_release":
                    self.counters["semaphore", rank, number] += 1
                else:
                    yield from self._take(("semaphore", rank, number))
        elif name == "barrier":
            barrier = self.barriers[rank, op["barrier_id"]]
            round_, barrier[1] = barrier[0], barrier[1] + 1
            if barrier[1] == op["num_threadblocks"]:
                barrier[:] = [round_ + 1, 0]
            while barrier[0] == round_:
                yield "waits"
        elif "src_buff" in op:
            yield from self._move(rank, block, op, (ends, offset, unit))
        yield "did"

    def _signal(self, rank: int, word: str, number: int, peer: int, k: int) -> None:
        def post() -> None:
            self.counters[word, peer, rank, k] += 1

        if word == "port":
            self.ports[rank, number].append(post)
        else:
            post()

    def _take(self, counter: Any) -> Iterator[str]:
        while not self.counters[counter]:
            yield "waits"
        self.counters[counter] -= 1

    def _span(
        self, rank: int, block: Any, op: Any, one: Any, offset: int, unit: int
    ) -> tuple[list[Place], int]:
        """Where a range begins on each of its ranks, and its number of units."""
        local = "type" in one
        if local:
            ranks, buffer = [rank], one["type"]
        elif "switch_channel_id" in one:
            groups = [
                (channel["buffer_type"], group["ranks"])
                for channel in self.gpus[rank]["channels"]
                if channel["channel_type"] == "switch"
                for group in channel["rank_groups"]
            ]
            buffer, ranks = groups[self._ids(block, "switch")[one["switch_channel_id"]]]
        else:
            lists = [
                own["remote_buffer_ids"]
                for own in block["remote_buffer_refs"]
                if own["access_channel_type"] == op["channel_type"]
            ]
            ids = [number for own in lists for number in own]
            remote = self.gpus[rank]["remote_buffers"][ids[one["buffer_id"]]]
            ranks, buffer = [remote["rank"]], remote["type"]
        begin, units = one["index"] * self.chunk, one["size"] * self.chunk
        info = op.get("tbg_info", {"tb_id": 0, "tbg_size": 1})
        first = _cut(units, info["tb_id"], info["tbg_size"])
        last = _cut(units, info["tb_id"] + 1, info["tbg_size"])
        # The start of the allocation, for a port; else the own buffer's offset, for all ranks.
        base = 0 if local and op.get("channel_type") == "port" else self.pointer[rank, buffer][1]
        at = base + begin + first + offset
        places = [(of, self.pointer[of, buffer][0], at) for of in ranks]
        return places, min(last - first - offset, unit)

    def _move(
        self, rank: int, block: Any, op: Any, more: tuple[list[Any], int, int]
    ) -> Iterator[str]:
        name, (ends, offset, unit) = op["name"], more
        src = [self._span(rank, block, op, one, offset, unit) for one in op["src_buff"]]
        dst = [self._span(rank, block, op, one, offset, unit) for one in op["dst_buff"]]
        if name in ("put", "pws", "pwsf", "get"):
            for lane, (one, other) in enumerate(zip(src, dst, strict=True)):
                if name == "get":
                    one, other = self._exchanged(rank, op["dst_buff"][lane], one, other)
                copy = lambda one=one, other=other: self._copy(one, other)  # noqa: E731
                if op["channel_type"] != "port":
                    copy()
                    continue
                self.ports[rank, ends[lane][0]].append(copy)
                if name in ("pws", "pwsf"):
                    self._signal(rank, "port", *ends[lane])
            while name == "pwsf" and any(self.ports[rank, end[0]] for end in ends):
                yield "waits"
            return
        if name == "ppkt":
            for one, other in zip(src, dst, strict=True):
                for k in range(one[1]):
                    self._put_packet(other[0][0], k, self._read(one[0][0], k))
            return
        packets_in = src if name in _UNPACKED else src[1:] if name in _PACKETS_READ else []
        while any(
            (rank, one[0][0][2] + k) not in self.packets
            for one in packets_in
            for k in range(one[1])
        ):
            yield "waits"
        if name == "rppkt" and op["channel_type"] == "port":
            for end, other in zip(ends, dst, strict=True):
                self.ports[rank, end[0]].append(lambda other=other: self._send(src[0], other))
            return
        for k in range(src[0][1]):
            packets = [self._packet(place, k) for one in packets_in for place in one[0]]
            others = [one for one in src if one not in packets_in]
            plain = [self._read(place, k) for one in others for place in one[0]]
            # handleReduceSendPackets adds the plain operand last.
            value = self.sum_of([*packets, *plain])
            for number, other in enumerate(dst):
                is_plain = number == 0 and name not in ("cpkt", "rppkt", "gstorepkt")
                is_packet = not is_plain and name.endswith("pkt")
                for place in other[0]:
                    (self._put_packet if is_packet else self._write)(place, k, value)

    def _exchanged(self, rank: int, local: Any, one: Any, other: Any) -> tuple[Any, Any]:
        """The source and the destination of a get, which exchanges their offsets (handleGet)."""
        pointer = self.pointer[rank, local["type"]][1]
        ((peer, source, at),), ((_, destination, own),) = one[0], other[0]
        return ([(peer, source, own - pointer)], one[1]), (
            [(rank, destination, pointer + at)],
            one[1],
        )

    def _copy(self, one: Any, other: Any) -> None:
        for k in range(other[1]):
            self._write(other[0][0], k, self._read(one[0][0], k))

    def _packet(self, place: Place, k: int) -> Value:
        return self.packets[place[0], place[2] + k]

    def _put_packet(self, place: Place, k: int, value: Value) -> None:
        self.packets[place[0], place[2] + k] = value

    def _send(self, one: Any, other: Any) -> None:
        for k in range(one[1]):
            self._put_packet(other[0][0], k, self._packet(one[0][0], k))


def begin_under(conditions: Iterable[Condition], ranks: int, chance: random.Random) -> list[int]:
    """Where buffers begin in their allocations, at random as far as conditions of a proof allow."""
    demands = [one.demand for one in conditions if isinstance(one.demand, Offset)]
    found = [chance.randrange(9) for _ in range(ranks)]
    if any(not one.zero for one in demands):
        found = [0 if any(one.zero for one in demands) else found[0]] * ranks
    at_start = {rank for one in demands if one.zero for rank in one.ranks}
    return [0 if rank in at_start else begin for rank, begin in enumerate(found)]


def result_of(document: Any, chunk: int, seed: int = 0, begin: Sequence[int] | None = None) -> str:
    """What a call with chunks of `chunk` units gives: "right", "wrong" or "hangs". begin: as of
    Executor."""
    plan = mscclpp.read(text_of(document)).plan
    c = plan.collective
    units = c.chunks // plan.parts * chunk
    root = max(c.root, 0)
    whole = STANDARD[c.name].of(c.ranks, units, in_place=c.in_place, root=root)
    executor = Executor(document, chunk, seed, begin)
    if not executor.run():
        return "hangs"
    return "right" if _is_right(executor, whole) else "wrong"


def _is_right(executor: Executor, whole: Collective) -> bool:
    """Whether every output unit is the sum of the input units that the collective promises."""
    owner = np.repeat(np.arange(whole.ranks), whole.input_chunks)
    position = np.arange(len(owner)) - whole.input_offset[owner]
    for rank in range(whole.ranks):
        first = int(whole.output_offset[rank])
        for unit in range(int(whole.output_chunks[rank])):
            value = int(whole.expected[first + unit])
            if value == NONE:
                continue
            ids = whole.values[value]
            wanted = sorted((int(owner[i]), int(position[i])) for i in ids)
            if list(executor.read(rank, "o", unit)) != wanted:
                return False
    return True
