"""Calls: a group's calls on its endpoint, synchronous or not, as PyTorch's work objects."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import BarrierOptions
from torch.autograd import profiler

from sley.communicator import Call, Parts, Work
from sley.communicator.calls import division_of
from sley.communicator.endpoint import Endpoint
from sley.communicator.selection.kinds import ALL_TO_ALL, BARRIER, CALLS
from sley.engine.types import DATA_TYPES
from sley.errors import SleyError
from sley.ir.words import ReduceOp
from sley.torch.elements import Element
from sley.torch.flight_recorder import GroupLog
from sley.torch.memory import (
    NOWHERE,
    Memory,
    copy_of,
    hold,
    is_in_a_row,
    to_read,
    to_update,
    to_write,
)
from sley.torch.work import UNSET, Finished, Pending, Together, collective_error


class CallRunner:
    """Runs the calls of a group on its endpoint.

    rank, ranks: of the endpoint. sequence_number: the number of collectives called so far.
    coalesced: the calls since `start_coalescing`; None outside of such a batch. log: records the
    calls for PyTorch's tools, all of which go through Python then; None: nothing does.
    """

    def __init__(self, endpoint: Endpoint, log: GroupLog | None = None) -> None:
        self.endpoint, self.log = endpoint, log
        self.rank, self.ranks = endpoint.rank, endpoint.ranks
        self.sequence_number = 0
        self.coalesced: list[dist.Work] | None = None

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
        call.element = element.number
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
        copied first. Tensors of a list may be anywhere, so they are never in place: on another rank
        they may not be adjacent. An AllToAll runs with varying counts if another rank's vary.
        """
        if is_in_a_row(inputs) and is_in_a_row(outputs):
            source = to_read(inputs) if inputs else NOWHERE
            target = to_write(outputs) if outputs else NOWHERE
            count = numel * element.parts
            if source.overlaps(target):
                own = self.rank * count * element.dtype.size_bytes
                source_own = source.address + (own if source.size_bytes > target.size_bytes else 0)
                target_own = target.address + (own if target.size_bytes > source.size_bytes else 0)
                row = CALLS[kind]
                is_single = len(inputs) == len(outputs) == 1
                # On all ranks, or on none.
                is_in_place = is_single and row.has_place_of_rank and not row.roles
                if source_own != target_own or not is_in_place:
                    source = copy_of(inputs)
            call = Call(kind, *source.place, *target.place, count, element.dtype, op, root)
            memories = [source, target]
        else:  # tensors of one size each that aren't adjacent
            memories, parts = _apart(element, inputs, outputs)
            call = Call(kind, 0, 0, 0, 0, parts.most, element.dtype, op, root, blocks=parts)
        call.element = element.number
        call.may_vary = kind == ALL_TO_ALL
        return self._run(call, opts, outputs, *memories)

    def run_packed(
        self,
        kind: str,
        opts: Any,
        sizes: Sequence[int],
        memories: tuple[Memory, Memory],
        outputs: Sequence[Tensor],
        element: Element,
        op: ReduceOp = ReduceOp.SUM,
    ) -> dist.Work:
        """A collective from the first of `memories`, a copy of its input, to the second, in place
        of several of these sizes."""
        source, target = memories
        count = sum(sizes) * element.parts
        call = Call(kind, *source.place, *target.place, count, element.dtype, op)
        call.element, call.division = element.number, division_of(sizes)
        return together([self._run(call, opts, outputs, target, source)], outputs)

    def meet_for_sparse(self, token: Tensor) -> None:
        """A barrier before gloo runs an all_reduce of a sparse tensor: a rank that makes another
        call instead is an error on all, and not left to gloo's timeout."""
        memory, int8 = to_update(token), DATA_TYPES["int8"]
        call = Call(BARRIER, *memory.place, *memory.place, 1, int8, division=1)
        opts = BarrierOptions()
        opts.asyncOp = False
        self._run(call, opts, [token], memory)

    def run_varying(
        self,
        kind: str,
        opts: Any,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        results: Sequence[Tensor],
        element: Element,
    ) -> dist.Work:
        """A collective of varying counts from `inputs` to `outputs`, parts of any sizes."""
        memories, parts = _apart(element, inputs, outputs)
        call = Call(kind, 0, 0, 0, 0, 0, element.dtype, parts=parts)
        call.element = element.number
        return self._run(call, opts, results, *memories)

    def _run(
        self, call: Call, opts: Any, outputs: Sequence[Tensor], *memories: Memory
    ) -> dist.Work:
        """Starts `call` on `memories`, and waits for its end unless it is asynchronous."""
        self.sequence_number += 1
        # None: the endpoint's.
        timeout_s = opts.timeout.total_seconds() if opts.timeout > UNSET else None
        event = self._begin(call) if profiler._is_profiler_enabled else None
        entry = None if self.log is None else self.log.begin(self.sequence_number, call)
        try:
            if not opts.asyncOp and timeout_s is None:
                self.endpoint.submit(call)
                _unpack(memories)
                _end(event)
                if entry is not None:
                    entry.end()
                return _finished_work(outputs)
            work = self.endpoint.submit(call, async_op=True)
        except SleyError as error:
            _end(event)
            if entry is not None:
                entry.log.recorder.tell()
            raise collective_error(error) from None
        if event is not None:
            work.on_done(lambda: _end(event))
        if entry is not None:
            work.on_done(lambda: entry.end(work))
        unpack = partial(_unpack, memories)
        pending = self.pending(
            [work], outputs, owners=hold(memories), unpack=unpack, timeout_s=timeout_s
        )
        if not opts.asyncOp:
            pending.wait()
        return pending

    def _begin(self, call: Call) -> profiler.record_function:
        """Begins the event of a call in PyTorch's profile, with its kind, size and plan. It ends
        with the call, for an asynchronous one in the engine's thread."""
        event = profiler.record_function(f"sley:{self.endpoint.describe(call)}")
        event.__enter__()
        return event

    def pending(self, parts: Sequence[Work], outputs: Sequence[Tensor], **more: Any) -> Pending:
        """A work object for calls in progress."""
        on_error = None if self.log is None else self.log.recorder.tell
        work = Pending(parts, outputs, on_error=on_error, **more)
        if self.coalesced is not None:
            self.coalesced.append(work)
        return work

    def start_coalescing(self) -> None:
        self.coalesced = []

    def end_coalescing(self) -> dist.Work:
        """One work object for all calls since `start_coalescing`."""
        works, self.coalesced = self.coalesced or [], None
        return Together(works, [tensor for work in works for tensor in work.result()])


def _apart(
    element: Element, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> tuple[list[Memory], Parts]:
    """The memories of tensors to read and to write, copies of the first if the two overlap; and the
    same as the engine's parts."""
    sources = [to_read([tensor]) for tensor in inputs]
    targets = [to_write([tensor]) for tensor in outputs]
    if any(source.overlaps(target) for source in sources for target in targets):
        sources = [copy_of([tensor]) for tensor in inputs]
    places = [
        [(part.address, part.size_bytes // element.dtype.size_bytes) for part in side]
        for side in (sources, targets)
    ]
    return [*sources, *targets], Parts.of(*places)


def _end(event: profiler.record_function | None) -> None:
    if event is not None:
        event.__exit__(None, None, None)


def together(works: Sequence[dist.Work | None], outputs: Sequence[Tensor]) -> dist.Work:
    """One work object for several. None: of a call that has ended."""
    pending = [work for work in works if work is not None and not isinstance(work, Finished)]
    return Together(pending, outputs) if pending else _finished_work(outputs)


def _finished_work(outputs: Sequence[Tensor]) -> Finished:
    work = Finished()
    work.outputs = outputs
    return work


def _unpack(memories: Sequence[Memory]) -> None:
    """Copies all received data to the caller's tensors."""
    for memory in memories:
        if memory.unpack is not None:
            memory.unpack()
