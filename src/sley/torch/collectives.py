"""The collectives of a process group.

PyTorch's newer releases renamed methods (`_allgather_base` became `all_gather_single`, ...); a
group has both names. `opts` is the options object that `torch.distributed` passes, with `reduceOp`,
`rootRank`, `timeout` and `asyncOp` as the collective needs them, or the plain value that PyTorch
also takes in its place; roots are ranks of the group. All give back work objects and raise
CollectiveError, or SleyError for tensors that don't fit (B902).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeAlias

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

from sley.communicator import Call
from sley.engine.types import DATA_TYPES
from sley.ir.words import ReduceOp
from sley.torch.arguments import listed, only, options, same_lists, same_parts
from sley.torch.calls import Calls
from sley.torch.elements import Element, moved, reduced
from sley.torch.memory import NOWHERE, Memory, copied, to_read, to_update, to_write

_TOKEN = Element(DATA_TYPES["int8"])
"""A barrier is an AllReduce of one of these."""

_IN_PLACE = ("all_gather", "reduce_scatter")
"""Collectives of parts that are in place on all ranks or on none."""

Tensors: TypeAlias = "Tensor | Sequence[Tensor]"
Lists = Sequence[Sequence[Tensor]]


class Collectives(Calls):
    """Collectives among the ranks of a communicator."""

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._ranks

    # Every rank gets the reduction of all.

    def allreduce(
        self,
        tensors: Tensors,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        op: Any = None,
    ) -> dist.Work:
        if type(opts) is not AllreduceOptions:
            tensors = listed(tensors)
            opts = options(AllreduceOptions, opts, timeout, reduceOp=op)
        tensor = only("all_reduce", tensors)
        found = reduced(tensor, opts.reduceOp)
        if found is None:
            return self._others.serving("all_reduce", tensor, opts.reduceOp).allreduce(
                tensors, opts
            )
        return self._here("all_reduce", opts, tensor, to_update(tensor), *found)

    def allreduce_coalesced(
        self, tensors: Sequence[Tensor], opts: Any = None, *, op: Any = None
    ) -> dist.Work:
        opts = options(AllreduceCoalescedOptions, opts, reduceOp=op)
        one = AllreduceOptions()
        one.reduceOp, one.timeout, one.asyncOp = opts.reduceOp, opts.timeout, opts.asyncOp
        return self._together([self.allreduce([tensor], one) for tensor in tensors], tensors)

    # One rank gives to all, or gets from all.

    def broadcast(
        self,
        tensors: Tensors,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> dist.Work:
        tensors = listed(tensors)
        opts = options(BroadcastOptions, opts, timeout, rootRank=root)
        tensor = only("broadcast", tensors)
        element = moved(tensor)
        if element is None:
            return self._others.serving("broadcast", tensor).broadcast(tensors, opts)
        is_root = opts.rootRank == self._rank
        memory = to_read(tensors) if is_root else to_write(tensors)
        return self._here("broadcast", opts, tensor, memory, element, root=opts.rootRank)

    def reduce(
        self,
        tensors: Tensors,
        opts: Any = None,
        op: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> dist.Work:
        tensors = listed(tensors)
        opts = options(ReduceOptions, opts, timeout, rootRank=root, reduceOp=op)
        tensor = only("reduce", tensors)
        found = reduced(tensor, opts.reduceOp)
        if found is None:
            return self._others.serving("reduce", tensor, opts.reduceOp).reduce(tensors, opts)
        is_root = opts.rootRank == self._rank
        memory = to_update(tensor) if is_root else to_read(tensors)  # the others' stay as they are
        return self._here("reduce", opts, tensor, memory, *found, opts.rootRank)

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
        inputs = listed(input_tensors)
        opts = options(GatherOptions, opts, timeout, rootRank=root)
        part = only("gather", inputs)
        element = moved(part)
        if element is None:
            return self._others.serving("gather", part).gather(output_tensors, inputs, opts)
        outputs: Sequence[Tensor] = []
        if opts.rootRank == self._rank:
            outputs = only("gather", output_tensors)
            same_lists("gather", outputs, part, self._ranks)
        return self._between(
            "gather", opts, part.numel(), inputs, outputs, element, root=opts.rootRank
        )

    def gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> dist.Work:
        opts = options(GatherOptions, opts)
        element = moved(input)
        if element is None:
            return self._others.serving("gather", input).gather_single(output, input, opts)
        outputs = []
        if opts.rootRank == self._rank:
            outputs = [output]
            same_parts("gather", output, input.numel(), input, self._ranks)
        return self._between(
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
        outputs = listed(output_tensors)
        opts = options(ScatterOptions, opts, timeout, rootRank=root)
        part = only("scatter", outputs)
        element = moved(part)
        if element is None:
            return self._others.serving("scatter", part).scatter(outputs, input_tensors, opts)
        inputs: Sequence[Tensor] = []
        if opts.rootRank == self._rank:
            inputs = only("scatter", input_tensors)
            same_lists("scatter", inputs, part, self._ranks)
        return self._between(
            "scatter", opts, part.numel(), inputs, outputs, element, root=opts.rootRank
        )

    # Every rank gets what all have.

    def allgather(
        self,
        output_tensors: Lists | Sequence[Tensor],
        input_tensors: Tensors,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> dist.Work:
        if isinstance(input_tensors, Tensor):
            output_tensors = [output_tensors]
        inputs = listed(input_tensors)
        opts = options(AllgatherOptions, opts, timeout)
        part = only("all_gather", inputs)
        element = moved(part)
        if element is None:
            return self._others.serving("all_gather", part).allgather(output_tensors, inputs, opts)
        outputs = only("all_gather", output_tensors)
        same_lists("all_gather", outputs, part, self._ranks)
        return self._between("all_gather", opts, part.numel(), inputs, outputs, element)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> dist.Work:
        opts = options(AllgatherOptions, opts)
        element = moved(input)
        if element is None:
            return self._others.serving("all_gather", input)._allgather_base(output, input, opts)
        same_parts("all_gather", output, input.numel(), input, self._ranks)
        return self._between("all_gather", opts, input.numel(), [input], [output], element)

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> dist.Work:
        works = [
            self.all_gather_single(output, input, opts)
            for output, input in zip(outputs, inputs, strict=True)
        ]
        return self._together(works, outputs)

    def allgather_coalesced(
        self, output_lists: Lists, inputs: Sequence[Tensor], opts: Any = None
    ) -> dist.Work:
        """`output_lists` has, for each rank, a list with a tensor for each of its `inputs`."""
        works = [
            self.allgather([[tensors[index] for tensors in output_lists]], [tensor], opts)
            for index, tensor in enumerate(inputs)
        ]
        return self._together(works, [tensor for tensors in output_lists for tensor in tensors])

    # Every rank gets its part of the reduction of all.

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
        outputs = listed(output_tensors)
        opts = options(ReduceScatterOptions, opts, timeout, reduceOp=op)
        part = only("reduce_scatter", outputs)
        found = reduced(part, opts.reduceOp)
        if found is None:
            other = self._others.serving("reduce_scatter", part, opts.reduceOp)
            return other.reduce_scatter(outputs, input_tensors, opts)
        inputs = only("reduce_scatter", input_tensors)
        same_lists("reduce_scatter", inputs, part, self._ranks)
        return self._between("reduce_scatter", opts, part.numel(), inputs, outputs, *found)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> dist.Work:
        opts = options(ReduceScatterOptions, opts)
        found = reduced(output, opts.reduceOp)
        if found is None:
            other = self._others.serving("reduce_scatter", output, opts.reduceOp)
            return other._reduce_scatter_base(output, input, opts)
        same_parts("reduce_scatter", input, output.numel(), output, self._ranks)
        return self._between("reduce_scatter", opts, output.numel(), [input], [output], *found)

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> dist.Work:
        works = [
            self.reduce_scatter_single(output, input, opts)
            for output, input in zip(outputs, inputs, strict=True)
        ]
        return self._together(works, outputs)

    # Nobody goes on before all have come.

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> dist.Work:
        opts = options(BarrierOptions, opts, timeout)
        device = opts.device
        if device is not None and device.type != "cpu":
            return self._others.on(device).barrier(opts)
        return self._here("barrier", opts, self._token, to_update(self._token), _TOKEN)

    def _here(
        self,
        kind: str,
        opts: Any,
        tensor: Tensor,
        memory: Memory,
        element: Element,
        op: ReduceOp = ReduceOp.SUM,
        root: int = 0,
    ) -> dist.Work:
        """A collective whose input and output are the same `tensor`, which lies in `memory`."""
        address, size_bytes = memory.address, memory.size_bytes
        count = tensor.numel() * element.parts
        call = Call(kind, address, size_bytes, address, size_bytes, count, element.dtype, op, root)
        return self._run(call, opts, [tensor], memory)

    def _between(
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
        """A collective from `inputs` to `outputs`, of which a rank's part has `numel` elements.

        Where the two share memory and that is not the collective's way of being in place, the
        input is copied first.
        """
        source = to_read(inputs) if inputs else NOWHERE
        target = to_write(outputs) if outputs else NOWHERE
        count = numel * element.parts
        if source.overlaps(target):
            own = self._rank * count * element.dtype.size_bytes
            source_own = source.address + (own if source.size_bytes > target.size_bytes else 0)
            target_own = target.address + (own if target.size_bytes > source.size_bytes else 0)
            if source_own != target_own or kind not in _IN_PLACE:
                source = copied(inputs)
        call = Call(
            kind,
            source.address,
            source.size_bytes,
            target.address,
            target.size_bytes,
            count,
            element.dtype,
            op,
            root,
        )
        return self._run(call, opts, outputs, source, target)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    gather_into_tensor = gather_single
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
