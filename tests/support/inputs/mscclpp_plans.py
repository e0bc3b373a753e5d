"""MSCCL++ execution plans as JSON objects, written operation by operation.

The channels, remote buffers and references of a plan are made as its operations name them.
"""

from __future__ import annotations

import json
from typing import Any

import sley
from sley.formats import FORMATS, Target
from sley.formats.mscclpp.parse import parse

MEMORY, PORT, SWITCH = "memory", "port", "switch"

Range = tuple[Any, ...]
"""("i", index, size) of the own GPU; (rank, "i", index, size) of another; ("all", "i", index, size)
of the switch channel of all ranks."""


class Block:
    """A thread block of a GPU; methods add operations and return the block."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.ops: list[dict[str, Any]] = []
        self.channels: dict[str, list[int]] = {}
        self.buffers: dict[str, list[int]] = {}
        self._open = self.ops

    def _add(self, name: str, **keys: Any) -> Block:
        self._open.append({"name": name, **keys})
        return self

    def _channel(self, word: str, channel: int) -> int:
        own = self.channels.setdefault(word, [])
        if channel not in own:
            own.append(channel)
        return own.index(channel)

    def _range(self, word: str, one: Range) -> dict[str, Any]:
        *where, buffer, index, size = one
        keys = {"index": index, "size": size}
        if not where:
            return {"type": buffer, **keys}
        if where == ["all"]:
            return {"switch_channel_id": self._channel(SWITCH, self.gpu.group(buffer)), **keys}
        own = self.buffers.setdefault(word, [])
        remote = self.gpu.remote(where[0], buffer, word)
        if remote not in own:
            own.append(remote)
        return {"buffer_id": own.index(remote), **keys}

    def nop(self) -> Block:
        return self._add("nop")

    def barrier(self, number: int, blocks: int) -> Block:
        return self._add("barrier", barrier_id=number, num_threadblocks=blocks)

    def on(self, name: str, *peers: int, word: str = MEMORY, lane: int = 0) -> Block:
        """A signal, wait or flush on the lane-th channel of this block to each of the peers."""
        ids = [self._channel(word, self.gpu.channel(self, word, peer, lane)) for peer in peers]
        return self._add(name, channel_ids=ids, channel_type=word)

    def semaphore(self, name: str, *ids: int) -> Block:
        return self._add(name, semaphore_ids=list(ids))

    # More than eight parameters would be the keys of an operation.
    def move(
        self,
        name: str,
        src: list[Range],
        dst: list[Range],
        *,
        word: str = MEMORY,
        share: tuple[int, int] | None = None,
        **keys: Any,
    ) -> Block:
        """An operation that moves data. share: tb_id and tbg_size."""
        found: dict[str, Any] = {
            "src_buff": [self._range(word, one) for one in src],
            "dst_buff": [self._range(word, one) for one in dst],
            "channel_type": word,
        }
        if word == PORT:
            found["channel_ids"] = [
                self._channel(PORT, self.gpu.channel(self, PORT, one[0], 0)) for one in dst
            ]
        if share is not None:
            found["tbg_info"] = {"tb_id": share[0], "tbg_size": share[1]}
        return self._add(name, **found, **keys)

    def pipeline(self, unit_size: int, num_chunks: int = 1) -> Block:
        """A pipeline, which takes the operations until `done`."""
        ops: list[dict[str, Any]] = []
        context = {"unit_size": unit_size, "num_chunks": num_chunks}
        self._add("pipeline", iter_context=context, ops=ops)
        self._open = ops
        return self

    def done(self) -> Block:
        self._open = self.ops
        return self


class Gpu:
    """A GPU of a plan."""

    def __init__(self, plan: Made, rank: int, chunks: tuple[int, int, int]) -> None:
        self.plan = plan
        self.rank = rank
        self.chunks = chunks
        self.blocks: list[Block] = []
        self.semaphores: list[int] = []
        self.peers: dict[str, list[int]] = {MEMORY: [], PORT: []}
        self.groups: list[str] = []
        self.remotes: list[tuple[int, str, str]] = []
        self._channels: dict[tuple[int, str, int, int], int] = {}

    def block(self) -> Block:
        self.blocks.append(Block(self))
        return self.blocks[-1]

    def channel(self, block: Block, word: str, peer: int, lane: int) -> int:
        key = (self.blocks.index(block), word, peer, lane)
        if key not in self._channels:
            self._channels[key] = len(self.peers[word])
            self.peers[word].append(peer)
        return self._channels[key]

    def group(self, buffer: str) -> int:
        for gpu in self.plan.gpus:
            if buffer not in gpu.groups:
                gpu.groups.append(buffer)
        return self.groups.index(buffer)

    def remote(self, rank: int, buffer: str, word: str) -> int:
        key = (rank, buffer, word)
        if key not in self.remotes:
            self.remotes.append(key)
        return self.remotes.index(key)

    def to_json(self) -> dict[str, Any]:
        ranks = list(range(len(self.plan.gpus)))
        switches = [
            {
                "channel_type": SWITCH,
                "buffer_type": buffer,
                "rank_groups": [{"size": len(ranks), "ranks": ranks}],
            }
            for buffer in self.groups
        ]
        return {
            "id": self.rank,
            "input_chunks": self.chunks[0],
            "output_chunks": self.chunks[1],
            "scratch_chunks": self.chunks[2],
            "threadblocks": [
                {
                    "id": number,
                    "ops": block.ops,
                    "channels": [
                        {"channel_type": word, "channel_ids": ids}
                        for word, ids in block.channels.items()
                    ],
                    "remote_buffer_refs": [
                        {"access_channel_type": word, "remote_buffer_ids": ids}
                        for word, ids in block.buffers.items()
                    ],
                }
                for number, block in enumerate(self.blocks)
            ],
            "channels": [
                {"channel_type": word, "connected_to": peers}
                for word, peers in self.peers.items()
                if peers
            ]
            + switches,
            "remote_buffers": [
                {"rank": rank, "type": buffer, "access_channel_types": [word]}
                for rank, buffer, word in self.remotes
            ],
            "semaphores": [{"init_value": value} for value in self.semaphores],
        }


class Made:
    """A plan; `header` are further keys of the file."""

    def __init__(
        self,
        collective: str,
        ranks: int,
        chunks: tuple[int, int, int],
        **header: Any,
    ) -> None:
        self.header: dict[str, Any] = {
            "name": "by hand",
            "collective": collective,
            "protocol": "Simple",
            "inplace": False,
            **header,
        }
        self.gpus = [Gpu(self, rank, chunks) for rank in range(ranks)]

    def to_json(self) -> dict[str, Any]:
        return {**self.header, "gpus": [gpu.to_json() for gpu in self.gpus]}

    @property
    def text(self) -> str:
        return text_of(self.to_json())


def text_of(document: Any) -> str:
    """The text of a JSON document, a line for each entry."""
    return json.dumps(document, indent=1)


def text_read_back(plan: sley.Plan, target: Target, **settings: Any) -> str:
    """The text of the file of a plan, which is read as the raw plan that it was made of."""
    raw = FORMATS[".json"].make(plan, target, **settings)
    text = FORMATS[".json"].text(raw)
    assert parse(text) == raw
    return text


def edited(document: Any, path: str, value: Any) -> Any:
    """The document, in which the value at a path such as "gpus.0.id" is another one; `GONE` removes
    it. Dictionaries and lists on the path are changed in place."""
    *parents, last = [int(word) if word.lstrip("-").isdigit() else word for word in path.split(".")]
    owner = document
    for word in parents:
        owner = owner[word]
    if value is GONE:
        del owner[last]
    else:
        owner[last] = value
    return document


GONE = object()
"""The value of a key that `edited` removes."""
