"""A model of MSCCL++'s executor on units of 16 bytes, written from the facts about its code.

It executes a plan's JSON for one size of chunk: blocks take turns at random, each operation is done
at once. Memory holds in each unit the sorted input units, (rank, unit), that it is the sum of.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any

UNIT = 16
Value = tuple[tuple[int, int], ...]

_UNPACKED = {"upkt", "rppkt", "gstorepkt"}
_PACKETS_READ = {"repkt", "respkt", "recpkt", "recspkt"}


def _cut(units: int, share: int, shares: int) -> int:
    """Where a share begins; right only for at least as many units as shares."""
    least, rest = divmod(units, shares)
    own = share % units
    return share * least + (own if own < rest else rest)


class Executor:
    """One call of a plan. chunk: units of a chunk."""

    def __init__(self, document: Any, chunk: int, seed: int = 0) -> None:
        self.gpus = document["gpus"]
        self.chunk = chunk
        self.random = random.Random(seed)
        self.memory: dict[tuple[int, str, int], Value] = {}
        self.packets: dict[tuple[int, int], Value] = {}
        self.counters: dict[Any, int] = defaultdict(int)
        self.barriers: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
        self.ports: dict[tuple[int, int], deque[Any]] = defaultdict(deque)
        self.place: dict[tuple[int, str], tuple[str, int]] = {}
        ranks = len(self.gpus)
        for rank, gpu in enumerate(self.gpus):
            shift = {"i": 0, "o": 0}
            if document["inplace"]:
                smaller = "i" if gpu["input_chunks"] < gpu["output_chunks"] else "o"
                if gpu["input_chunks"] != gpu["output_chunks"]:
                    least = min(gpu["input_chunks"], gpu["output_chunks"])
                    shift[smaller] = rank * least * chunk
            for buffer in "io":
                shared = document["inplace"]
                self.place[rank, buffer] = ("data" if shared else buffer, shift[buffer])
            self.place[rank, "s"] = ("s", 0)
            for number, semaphore in enumerate(gpu["semaphores"]):
                self.counters["semaphore", rank, number] = semaphore["init_value"]
        for rank in range(ranks):
            for unit in range(self.gpus[rank]["input_chunks"] * chunk):
                self.write(rank, "i", unit, ((rank, unit),))

    def _cell(self, rank: int, buffer: str, unit: int) -> tuple[int, str, int]:
        name, shift = self.place[rank, buffer]
        return rank, name, shift + unit

    def read(self, rank: int, buffer: str, unit: int) -> Value:
        return self.memory.get(self._cell(rank, buffer, unit), (("?", rank, buffer, unit),))  # type: ignore[return-value]

    def write(self, rank: int, buffer: str, unit: int, value: Value) -> None:
        self.memory[self._cell(rank, buffer, unit)] = tuple(sorted(value, key=str))

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
    ) -> tuple[list[int], str, int, int]:
        """The ranks, buffer, first unit and number of units of a range."""
        if "type" in one:
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
        return ranks, buffer, begin + first + offset, min(last - first - offset, unit)

    def _move(
        self, rank: int, block: Any, op: Any, more: tuple[list[Any], int, int]
    ) -> Iterator[str]:
        name, (ends, offset, unit) = op["name"], more
        src = [self._span(rank, block, op, one, offset, unit) for one in op["src_buff"]]
        dst = [self._span(rank, block, op, one, offset, unit) for one in op["dst_buff"]]
        if name in ("put", "pws", "pwsf", "get"):
            for lane, (one, other) in enumerate(zip(src, dst, strict=True)):
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
                for k in range(one[3]):
                    value = self.read(one[0][0], one[1], one[2] + k)
                    self.packets[other[0][0], other[2] + k] = value
            return
        packets_in = src if name in _UNPACKED else src[1:] if name in _PACKETS_READ else []
        while any(
            (rank, one[2] + k) not in self.packets for one in packets_in for k in range(one[3])
        ):
            yield "waits"
        if name == "rppkt" and op["channel_type"] == "port":
            for end, other in zip(ends, dst, strict=True):
                self.ports[rank, end[0]].append(lambda other=other: self._send(rank, src[0], other))
            return
        for k in range(src[0][3]):
            value: Value = ()
            for one in src:
                for owner in one[0]:
                    held = one in packets_in
                    value += (
                        self.packets[rank, one[2] + k]
                        if held
                        else self.read(owner, one[1], one[2] + k)
                    )
            for number, other in enumerate(dst):
                plain = number == 0 and name not in ("cpkt", "rppkt", "gstorepkt")
                is_packet = not plain and name.endswith("pkt")
                for owner in other[0]:
                    if is_packet:
                        self.packets[owner, other[2] + k] = value
                    else:
                        self.write(owner, other[1], other[2] + k, value)

    def _copy(self, one: Any, other: Any) -> None:
        for k in range(other[3]):
            value = self.read(one[0][0], one[1], one[2] + k)
            self.write(other[0][0], other[1], other[2] + k, value)

    def _send(self, rank: int, one: Any, other: Any) -> None:
        for k in range(one[3]):
            self.packets[other[0][0], other[2] + k] = self.packets[rank, one[2] + k]
