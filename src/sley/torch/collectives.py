"""Collectives: the collectives of a process group.

`opts` is the options object that `torch.distributed` passes, with `reduceOp`, `rootRank`,
`timeout` and `asyncOp` as the collective needs them, or the plain value that PyTorch also accepts;
roots are ranks of the group. All return work objects and raise CollectiveError, with B902 for
tensors that don't fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

from sley.communicator.selection.kinds import ALL_TO_ALL
from sley.engine.types import DATA_TYPES
from sley.torch.arguments import (
    as_list,
    check_kinds,
    check_length,
    check_lists,
    check_own,
    check_parts,
    options,
    premultiplied,
    single,
    split_rows,
    summing,
)
from sley.torch.calls import CallRunner, together
from sley.torch.elements import Element, element_of, reduction_of
from sley.torch.fallback import Fallback
from sley.torch.memory import apart_from, check_apart, to_read, to_update, to_write

_TOKEN = Element(DATA_TYPES["int8"], DATA_TYPES["int8"].number)
"""A barrier is an AllReduce of one of these."""

Tensors: TypeAlias = "Tensor | Sequence[Tensor]"
Lists = Sequence[Sequence[Tensor]]


class Collectives:
    """Collectives among the ranks of a group, on its endpoint; on another backend (`fallback`) if
    the endpoint doesn't support them.

    token: what barriers reduce.
    """

    def __init__(self, runner: CallRunner, fallback: Fallback) -> None:
        self._runner, self._fallback = runner, fallback
        self._rank, self._ranks = runner.rank, runner.ranks
        self.token = torch.zeros(1, dtype=torch.int8)

    # Every rank gets the reduction of all ranks' data.

    def allreduce(
        self,
        tensors: Tensors,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        op: Any = None,
    ) -> dist.Work:
        tensors = as_list(tensors)
        opts = options(AllreduceOptions, opts, timeout, reduceOp=op)
        tensor = single("all_reduce", tensors)
        reduction = reduction_of(tensor, opts.reduceOp)
        if reduction is None:
            scaled = premultiplied("all_reduce", tensors, opts.reduceOp)
            if scaled is not None:
                check_apart(tensors)
                tensor.detach().copy_(scaled[0])
                return self.allreduce(tensors, summing(opts))
            if tensor.is_cpu and tensor.layout is not torch.strided:
                self._runner.meet_for_sparse(self.token)
            return self._fallback.find("all_reduce", tensor, opts.reduceOp).allreduce(tensors, opts)
        return self._runner.run_in_place("all_reduce", opts, tensor, to_update(tensor), *reduction)

    # One rank sends to all, or receives from all.

    def broadcast(
        self,
        tensors: Tensors,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> dist.Work:
        tensors = as_list(tensors)
        opts = options(BroadcastOptions, opts, timeout, rootRank=root)
        tensor = single("broadcast", tensors)
        element = element_of(tensor)
        if element is None:
            return self._fallback.find("broadcast", tensor).broadcast(tensors, opts)
        is_root = opts.rootRank == self._rank
        memory = to_read(tensors) if is_root else to_write(tensors)
        return self._runner.run_in_place(
            "broadcast", opts, tensor, memory, element, root=opts.rootRank
        )

    def reduce(
        self,
        tensors: Tensors,
        opts: Any = None,
        op: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> dist.Work:
        tensors = as_list(tensors)
        opts = options(ReduceOptions, opts, timeout, rootRank=root, reduceOp=op)
        tensor = single("reduce", tensors)
        reduction = reduction_of(tensor, opts.reduceOp)
        is_root = opts.rootRank == self._rank
        if reduction is None:
            scaled = premultiplied("reduce", tensors, opts.reduceOp)
            if scaled is None:
                return self._fallback.find("reduce", tensor, opts.reduceOp).reduce(tensors, opts)
            if is_root:
                check_apart(tensors)
                tensor.detach().copy_(scaled[0])
            return self.reduce(tensors if is_root else scaled, summing(opts))
        memory = to_update(tensor) if is_root else to_read(tensors)  # the others' stay unchanged
        return self._runner.run_in_place("reduce", opts, tensor, memory, *reduction, opts.rootRank)

    def gather(
        self,
        output_tensors: Lists | Sequence[Tensor],
        input_tensors: Tensors,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> dist.Work:
        if isinstance(input_tensors, Tensor):
            output_tensors = [output_tensors]
        inputs = as_list(input_tensors)
        opts = options(GatherOptions, opts, timeout, rootRank=root)
        part = single("gather", inputs)
        element = element_of(part)
        if element is None:
            return self._fallback.find("gather", part).gather(output_tensors, inputs, opts)
        outputs: Sequence[Tensor] = []
        if opts.rootRank == self._rank:
            outputs = single("gather", output_tensors)
            check_lists("gather", outputs, part, self._ranks)
        return self._runner.run(
            "gather", opts, part.numel(), inputs, outputs, element, root=opts.rootRank
        )

    def gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> dist.Work:
        opts = options(GatherOptions, opts)
        element = element_of(input)
        if element is None:
            return self._fallback.find("gather", input).gather_single(output, input, opts)
        outputs = []
        if opts.rootRank == self._rank:
            outputs = [output]
            check_parts("gather", output, input.numel(), input, self._ranks)
        return self._runner.run(
            "gather", opts, input.numel(), [input], outputs, element, root=opts.rootRank
        )

    def scatter(
        self,
        output_tensors: Tensors,
        input_tensors: Lists | Sequence[Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> dist.Work:
        if isinstance(output_tensors, Tensor):
            input_tensors = [input_tensors]
        outputs = as_list(output_tensors)
        opts = options(ScatterOptions, opts, timeout, rootRank=root)
        part = single("scatter", outputs)
        element = element_of(part)
        if element is None:
            return self._fallback.find("scatter", part).scatter(outputs, input_tensors, opts)
        inputs: Sequence[Tensor] = []
        if opts.rootRank == self._rank:
            inputs = single("scatter", input_tensors)
            check_lists("scatter", inputs, part, self._ranks)
        return self._runner.run(
            "scatter", opts, part.numel(), inputs, outputs, element, root=opts.rootRank
        )

    # Every rank gets all ranks' data.

    def allgather(
        self,
        output_tensors: Lists | Sequence[Tensor],
        input_tensors: Tensors,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> dist.Work:
        if isinstance(input_tensors, Tensor):
            output_tensors = [output_tensors]
        inputs = as_list(input_tensors)
        opts = options(AllgatherOptions, opts, timeout)
        part = single("all_gather", inputs)
        element = element_of(part)
        if element is None:
            return self._fallback.find("all_gather", part).allgather(output_tensors, inputs, opts)
        outputs = single("all_gather", output_tensors)
        check_length("all_gather", outputs, self._ranks)
        check_kinds("all_gather", outputs, part)
        if any(tensor.numel() != part.numel() for tensor in outputs):
            check_own("all_gather", self._rank, part, outputs[self._rank])
            return self._runner.run_varying("all_gather_v", opts, inputs, outputs, outputs, element)
        return self._runner.run("all_gather", opts, part.numel(), inputs, outputs, element)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> dist.Work:
        opts = options(AllgatherOptions, opts)
        element = element_of(input)
        if element is None:
            return self._fallback.find("all_gather", input)._allgather_base(output, input, opts)
        check_parts("all_gather", output, input.numel(), input, self._ranks)
        return self._runner.run("all_gather", opts, input.numel(), [input], [output], element)

    # Every rank gets its part of the reduction of all ranks' data.

    def reduce_scatter(
        self,
        output_tensors: Tensors,
        input_tensors: Lists | Sequence[Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        op: Any = None,
    ) -> dist.Work:
        if isinstance(output_tensors, Tensor):
            input_tensors = [input_tensors]
        outputs = as_list(output_tensors)
        opts = options(ReduceScatterOptions, opts, timeout, reduceOp=op)
        part = single("reduce_scatter", outputs)
        reduction = reduction_of(part, opts.reduceOp)
        inputs = single("reduce_scatter", input_tensors)
        if reduction is None:
            scaled = premultiplied("reduce_scatter", inputs, opts.reduceOp)
            if scaled is not None:
                return self.reduce_scatter(outputs, [scaled], summing(opts))
            other = self._fallback.find("reduce_scatter", part, opts.reduceOp)
            return other.reduce_scatter(outputs, input_tensors, opts)
        check_length("reduce_scatter", inputs, self._ranks)
        check_kinds("reduce_scatter", inputs, part)
        check_own("reduce_scatter", self._rank, inputs[self._rank], part)
        if any(tensor.numel() != part.numel() for tensor in inputs):
            return self._reduce_scatter_unequal(opts, inputs, part)
        return self._runner.run("reduce_scatter", opts, part.numel(), inputs, outputs, *reduction)

    def _reduce_scatter_unequal(
        self, opts: Any, inputs: Sequence[Tensor], output: Tensor
    ) -> dist.Work:
        """A Reduce to each rank in turn: padded parts, or an AllReduce of all, take longer."""
        check_apart([output])
        parts = list(inputs)
        if not output.is_set_to(inputs[self._rank]):
            parts = apart_from(output, inputs)
            output.detach().copy_(parts[self._rank].detach().reshape(output.shape))
        parts[self._rank] = output
        works = []
        for root, part in enumerate(parts):
            one = options(ReduceOptions, None, rootRank=root, reduceOp=opts.reduceOp)
            one.timeout, one.asyncOp = opts.timeout, opts.asyncOp
            works.append(self.reduce([part], one))
        return together(works, [output])

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> dist.Work:
        opts = options(ReduceScatterOptions, opts)
        reduction = reduction_of(output, opts.reduceOp)
        if reduction is None:
            scaled = premultiplied("reduce_scatter", [input], opts.reduceOp)
            if scaled is not None:
                return self.reduce_scatter_single(output, scaled[0], summing(opts))
            other = self._fallback.find("reduce_scatter", output, opts.reduceOp)
            return other._reduce_scatter_base(output, input, opts)
        check_parts("reduce_scatter", input, output.numel(), output, self._ranks)
        return self._runner.run(
            "reduce_scatter", opts, output.numel(), [input], [output], *reduction
        )

    # Every rank sends each other rank a different part.

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> dist.Work:
        """Split sizes are rows (of the first dimension) for each rank; by default the parts are
        equal."""
        opts = options(AllToAllOptions, opts, timeout)
        element = element_of(input)
        if element is None:
            other = self._fallback.find(ALL_TO_ALL, input)
            splits = list(output_split_sizes), list(input_split_sizes)
            return other.alltoall_base(output, input, *splits, opts)
        if len(output_split_sizes) == len(input_split_sizes) == 0:
            numel = input.numel() // self._ranks
            check_parts(ALL_TO_ALL, input, numel, output, self._ranks)
            check_parts(ALL_TO_ALL, output, numel, input, self._ranks)
            return self._runner.run(ALL_TO_ALL, opts, numel, [input], [output], element)
        # Sizes that are all equal on this rank may differ on other ranks.
        outputs = split_rows(ALL_TO_ALL, output, output_split_sizes, self._ranks)
        inputs = split_rows(ALL_TO_ALL, input, input_split_sizes, self._ranks)
        return self._exchange(opts, inputs, outputs, [output])

    def alltoall(
        self,
        output_tensors: Sequence[Tensor],
        input_tensors: Sequence[Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> dist.Work:
        opts = options(AllToAllOptions, opts, timeout)
        for tensor in (*input_tensors, *output_tensors):
            if element_of(tensor) is None:
                other = self._fallback.find(ALL_TO_ALL, tensor)
                return other.alltoall(output_tensors, input_tensors, opts)
        for tensors in (output_tensors, input_tensors):
            check_length(ALL_TO_ALL, tensors, self._ranks)
        first, everything = input_tensors[0], [*input_tensors, *output_tensors]
        if any(tensor.numel() != first.numel() for tensor in everything):
            return self._exchange(opts, input_tensors, output_tensors, output_tensors)
        check_kinds(ALL_TO_ALL, everything, first)
        element = element_of(first)
        assert element is not None  # all have been looked at
        numel = first.numel()
        return self._runner.run(ALL_TO_ALL, opts, numel, input_tensors, output_tensors, element)

    def _exchange(
        self,
        opts: Any,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        results: Sequence[Tensor],
    ) -> dist.Work:
        given, taken = inputs[self._rank], outputs[self._rank]
        element = element_of(given)
        assert element is not None  # the caller has looked
        check_kinds(ALL_TO_ALL, [*inputs, *outputs], given)
        check_own(ALL_TO_ALL, self._rank, given, taken)
        return self._runner.run_varying("all_to_all_v", opts, inputs, outputs, results, element)

    # No rank continues before all have called it.

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> dist.Work:
        opts = options(BarrierOptions, opts, timeout)
        device = opts.device
        if device is not None and device.type != "cpu":
            return self._fallback.on(device).barrier(opts)
        return self._runner.run_in_place("barrier", opts, self.token, to_update(self.token), _TOKEN)
