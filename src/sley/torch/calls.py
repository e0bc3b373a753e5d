"""Calls: a group's calls on its endpoint, synchronous or not, as PyTorch's work objects."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sley.communicator import Call, Work
from sley.communicator.endpoint import Endpoint
from sley.communicator.messages import ALL_TO_ALL_TAG
from sley.errors import SleyError
from sley.ir.words import ReduceOp
from sley.selection.kinds import CALLS
from sley.torch.elements import Element
from sley.torch.memory import NOWHERE, Memory, copy_of, span, to_read, to_write
from sley.torch.work import (
    UNSET,
    Finished,
    Part,
    Pending,
    Together,
    call_at_end,
    collective_error,
    wait_for,
)


class _Detour:
    """A planned call in progress. If another rank does it without a plan, the calls that
    `unplanned` starts replace it."""

    def __init__(self, planned: Work, unplanned: Callable[[], Sequence[Part]]) -> None:
        self._planned, self._unplanned = planned, unplanned
        self._lock = threading.Lock()
        self._parts: Sequence[Part] | None = None
        self._error: SleyError | None = None

    def wait(self, timeout_s: float | None = None) -> bool:
        if not wait_for(self._in_order(), timeout_s):
            return False
        if self._error is not None:
            raise self._error
        return True

    def is_done(self) -> bool:
        return all(part.is_done() for part in self._in_order())

    def check(self) -> None:
        for part in self._in_order():
            part.check()
        if self._error is not None:
            raise self._error

    def on_done(self, callback: Callable[[], None]) -> None:
        self._planned.on_done(lambda: call_at_end(self._replacements(), callback))

    def _in_order(self) -> Iterator[Part]:
        yield self._planned
        yield from self._replacements()

    def _replacements(self) -> Sequence[Part]:
        """The calls that replace the planned one, started once it has ended."""
        with self._lock:
            if self._parts is None:
                self._parts = ()
                self._planned.error()  # sets is_unplanned
                try:
                    self._parts = self._unplanned() if self._planned.is_unplanned else ()
                except SleyError as error:
                    self._error = error
            return self._parts


class CallRunner:
    """Runs the calls of a group on its endpoint.

    rank, ranks: of the endpoint. sequence_number: the number of collectives called so far.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.rank, self.ranks = endpoint.rank, endpoint.ranks
        self.sequence_number = 0
        self._coalesced: list[Pending] | None = None

    def run_in_place(
        self,
        kind: str,
        opts: Any,
        tensor: Tensor,
        memory: Memory,
        element: Element,
        op: ReduceOp = ReduceOp.SUM,
        root: int = 0,
    ) -> dist.Work:
        """A collective whose input and output are the same `tensor`, at `memory`."""
        count = tensor.numel() * element.parts
        call = Call(kind, *memory.place, *memory.place, count, element.dtype, op, root)
        return self._run(call, opts, [tensor], memory)

    def run(
        self,
        kind: str,
        opts: Any,
        numel: int,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        element: Element,
        op: ReduceOp = ReduceOp.SUM,
        root: int = 0,
    ) -> dist.Work:
        """A collective from `inputs` to `outputs`; a rank's part has `numel` elements.

        If the two overlap in a way that the collective doesn't define as in place, the input is
        copied first.
        """
        source = to_read(inputs) if inputs else NOWHERE
        target = to_write(outputs) if outputs else NOWHERE
        count = numel * element.parts
        if source.overlaps(target):
            own = self.rank * count * element.dtype.size_bytes
            source_own = source.address + (own if source.size_bytes > target.size_bytes else 0)
            target_own = target.address + (own if target.size_bytes > source.size_bytes else 0)
            row = CALLS[kind]
            is_in_place = row.has_place_of_rank and not row.roles  # on all ranks, or on none
            if source_own != target_own or not is_in_place:
                source = copy_of(inputs)
        call = Call(kind, *source.place, *target.place, count, element.dtype, op, root)
        return self._run(call, opts, outputs, source, target)

    def all_to_all(
        self, opts: Any, numel: int, input: Tensor, output: Tensor, element: Element
    ) -> dist.Work:
        """An AllToAll of equal parts of `numel` elements. If another rank has given sizes and calls
        `exchange`, this rank exchanges messages, too."""
        source, target = to_read([input]), to_write([output])
        if source.overlaps(target):
            source = copy_of([input])
        count = numel * element.parts
        size_bytes = count * element.dtype.size_bytes

        def parts(of: Memory) -> list[Memory]:
            places = (of.address + rank * size_bytes for rank in range(self.ranks))
            return [Memory(address, size_bytes, of) for address in places]

        if count == 0:  # with nothing to wait for, this rank would not notice other ranks' messages
            return self._exchange(opts, parts(source), parts(target), [output], None)
        call = Call(
            "all_to_all", *source.place, *target.place, count, element.dtype, may_be_unplanned=True
        )
        number = self.sequence_number

        def messages() -> Sequence[Part]:
            return self._send_and_receive(number, parts(source), parts(target))

        return self._run(call, opts, [output], source, target, unplanned=messages)

    def exchange(
        self, opts: Any, inputs: Sequence[Tensor], outputs: Sequence[Tensor], results: Any
    ) -> dist.Work:
        """An AllToAll by messages: sends `inputs[r]` to rank r and receives `outputs[r]` from it;
        also empty ones, so that a rank that expects another size gets an error."""
        sources = [to_read([tensor]) for tensor in inputs]
        targets = [to_write([tensor]) for tensor in outputs]
        if span(sources).overlaps(span(targets)):
            sources = [copy_of([tensor]) for tensor in inputs]
        return self._exchange(opts, sources, targets, results, unpack_all(targets))

    def _exchange(
        self,
        opts: Any,
        sources: Sequence[Memory],
        targets: Sequence[Memory],
        results: Sequence[Tensor],
        unpack: Callable[[], None] | None,
    ) -> dist.Work:
        number = self.sequence_number
        self.sequence_number += 1
        try:
            self.endpoint.skip_plan()
            parts = self._send_and_receive(number, sources, targets)
        except SleyError as error:
            raise collective_error(error) from error
        owners, timeout_s = (sources, targets), timeout_of(opts)
        work = self.pending(parts, results, owners=owners, unpack=unpack, timeout_s=timeout_s)
        if not opts.asyncOp:
            work.wait()
        return work

    def _send_and_receive(
        self, number: int, sources: Sequence[Memory], targets: Sequence[Memory]
    ) -> list[Part]:
        """Starts the messages of an AllToAll with this number; copies the rank's own part."""
        tag = ALL_TO_ALL_TAG - number
        ctypes.memmove(targets[self.rank].address, *sources[self.rank].place)
        send, receive = self.endpoint.send_memory, self.endpoint.recv_memory
        return [
            start(*memory.place, rank, tag, is_async=True)
            for start, memories in ((receive, targets), (send, sources))
            for rank, memory in enumerate(memories)
            if rank != self.rank
        ]

    def _run(
        self,
        call: Call,
        opts: Any,
        outputs: Sequence[Tensor],
        *memories: Memory,
        unplanned: Callable[[], Sequence[Part]] | None = None,
    ) -> dist.Work:
        """Starts `call` on `memories`, and waits for its end unless it is asynchronous. unplanned:
        starts the calls that replace it if another rank does it without a plan."""
        self.sequence_number += 1
        timeout_s = timeout_of(opts)
        try:
            if not opts.asyncOp and timeout_s is None:
                work = self.endpoint.submit(call)
                if unplanned is not None and work.is_unplanned:
                    for part in unplanned():
                        part.wait()
                for memory in memories:
                    if memory.unpack is not None:
                        memory.unpack()
                return _finished_work(outputs)
            work = self.endpoint.submit(call, is_async=True)
        except SleyError as error:
            raise collective_error(error) from error
        part = work if unplanned is None else _Detour(work, unplanned)
        pending = self.pending(
            [part], outputs, owners=memories, unpack=unpack_all(memories), timeout_s=timeout_s
        )
        if not opts.asyncOp:
            pending.wait()
        return pending

    def pending(self, parts: Sequence[Part], outputs: Sequence[Tensor], **more: Any) -> Pending:
        """A work object for calls in progress."""
        work = Pending(parts, outputs, **more)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def start_coalescing(self, device: torch.device) -> None:
        self._coalesced = []

    def end_coalescing(self, device: torch.device) -> dist.Work:
        """One work object for all calls since `start_coalescing`."""
        works, self._coalesced = self._coalesced or [], None
        return Together(works, [tensor for work in works for tensor in work.result()])


def timeout_of(opts: Any) -> float | None:
    """The timeout of a call in seconds; None for the endpoint's."""
    timeout: timedelta = opts.timeout
    return timeout.total_seconds() if timeout > UNSET else None


def together(works: Sequence[dist.Work], outputs: Sequence[Tensor]) -> dist.Work:
    """One work object for several."""
    if all(isinstance(work, Finished) for work in works):
        return _finished_work(outputs)
    return Together(works, outputs)


def _finished_work(outputs: Sequence[Tensor]) -> Finished:
    work = Finished()
    work.outputs = outputs
    return work


def unpack_all(memories: Sequence[Memory]) -> Callable[[], None] | None:
    """A function that copies all received data to the caller's tensors; None if none is needed."""
    unpacks = [memory.unpack for memory in memories if memory.unpack is not None]
    if len(unpacks) < 2:
        return unpacks[0] if unpacks else None

    def unpack() -> None:
        for one in unpacks:
            one()

    return unpack
