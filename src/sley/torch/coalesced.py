"""Coalesced: several collectives of one kind as one, as `torch.distributed` coalesces them.

An asynchronous call takes longer than copies of small tensors do: these are packed into one row of
memory, for one call of the endpoint. Large tensors, and those of synchronous calls, which may be
ready calls, each have their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    ReduceScatterOptions,
)

from sley.torch.arguments import check_lists, check_parts, options
from sley.torch.calls import CallRunner, together
from sley.torch.collectives import Lists
from sley.torch.elements import element_of, reduction_of
from sley.torch.memory import Unpack, UnpackColumns, check_apart, flat, row_of

_PACKED_BYTES = 32 << 10
"""The average size of a rank's tensors up to which packing them takes less time."""


class Coalesced:
    """Several collectives among the ranks of a group, of tensors that have the same sizes and types
    on all ranks. methods: those of `Collectives` by their names, or ready ones in their place."""

    def __init__(self, runner: CallRunner, methods: Mapping[str, Callable[..., Any]]) -> None:
        self._runner, self._ranks, self._methods = runner, runner.ranks, methods

    def _run_each(
        self, name: str, calls: Sequence[tuple[Any, ...]], outputs: Sequence[Tensor]
    ) -> dist.Work:
        """Calls of a method, one after another."""
        return together([self._methods[name](*arguments) for arguments in calls], outputs)

    def allreduce_coalesced(
        self, tensors: Sequence[Tensor], opts: Any = None, *, op: Any = None
    ) -> dist.Work:
        opts = options(AllreduceCoalescedOptions, opts, reduceOp=op)
        reduction = reduction_of(tensors[0], opts.reduceOp) if _are_packed(tensors, opts) else None
        if reduction is None:
            one = AllreduceOptions()
            one.reduceOp, one.timeout, one.asyncOp = opts.reduceOp, opts.timeout, opts.asyncOp
            return self._run_each("allreduce", [([tensor], one) for tensor in tensors], tensors)
        check_apart(tensors)
        row = flat(tensors)
        memories = row_of(row), row_of(row, Unpack(row, tensors))
        sizes = [tensor.numel() for tensor in tensors]
        return self._runner.run_packed("all_reduce", opts, sizes, memories, tensors, *reduction)

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> dist.Work:
        pairs = list(zip(outputs, inputs, strict=True))
        opts = options(AllgatherOptions, opts)
        element = element_of(inputs[0]) if _are_packed(inputs, opts) else None
        if element is None:
            return self._run_each("all_gather_single", [(*pair, opts) for pair in pairs], outputs)
        for output, given in pairs:
            check_parts("all_gather", output, given.numel(), given, self._ranks)
        check_apart(outputs)
        row = flat(inputs)
        gathered = row.new_empty(self._ranks, len(row))
        memories = row_of(row), row_of(gathered, UnpackColumns(gathered, outputs))
        sizes = [tensor.numel() for tensor in inputs]
        return self._runner.run_packed("all_gather", opts, sizes, memories, outputs, element)

    def allgather_coalesced(
        self, output_lists: Lists, inputs: Sequence[Tensor], opts: Any = None
    ) -> dist.Work:
        """output_lists: for each rank, a list with a tensor for each of its `inputs`."""
        opts = options(AllgatherOptions, opts)
        lists = [[tensors[i] for tensors in output_lists] for i in range(len(inputs))]
        pairs = list(zip(lists, inputs, strict=True))
        outputs = [tensor for tensors in zip(*lists, strict=True) for tensor in tensors]
        element = element_of(inputs[0]) if _are_packed(inputs, opts) else None
        if element is None:
            calls = [([tensors], [tensor], opts) for tensors, tensor in pairs]
            return self._run_each("allgather", calls, outputs)
        for tensors, tensor in pairs:
            check_lists("all_gather", tensors, tensor, self._ranks)
        check_apart(outputs)
        row = flat(inputs)
        gathered = row.new_empty(self._ranks * len(row))
        memories = row_of(row), row_of(gathered, Unpack(gathered, outputs))
        sizes = [tensor.numel() for tensor in inputs]
        return self._runner.run_packed("all_gather", opts, sizes, memories, outputs, element)

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> dist.Work:
        pairs = list(zip(outputs, inputs, strict=True))
        opts = options(ReduceScatterOptions, opts)
        reduction = reduction_of(outputs[0], opts.reduceOp) if _are_packed(outputs, opts) else None
        if reduction is None:
            calls = [(*pair, opts) for pair in pairs]
            return self._run_each("reduce_scatter_single", calls, outputs)
        for output, given in pairs:
            check_parts("reduce_scatter", given, output.numel(), output, self._ranks)
        check_apart(outputs)
        columns = [
            tensor.detach().reshape(self._ranks, tensor.numel() // self._ranks) for tensor in inputs
        ]
        sizes = [tensor.numel() for tensor in outputs]
        part = outputs[0].new_empty(sum(sizes))
        memories = row_of(torch.cat(columns, 1)), row_of(part, Unpack(part, outputs))
        return self._runner.run_packed("reduce_scatter", opts, sizes, memories, outputs, *reduction)


def _are_packed(tensors: Sequence[Tensor], opts: Any) -> bool:
    """Whether one call for all of `tensors`, of a rank's parts, is faster than one for each; or the
    only right one, since a tensor is there twice."""
    if (
        len(tensors) < 2
        or len({tensor.dtype for tensor in tensors}) > 1
        or not all(tensor.is_cpu and tensor.layout is torch.strided for tensor in tensors)
    ):
        return False
    size_bytes = sum(tensor.nbytes for tensor in tensors)
    are_small = size_bytes <= len(tensors) * _PACKED_BYTES
    return (opts.asyncOp and are_small) or len(set(map(id, tensors))) < len(tensors)
