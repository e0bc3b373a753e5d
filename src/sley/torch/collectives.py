"""Collectives: the collectives of a process group.

A group's methods take what `torch.distributed` passes (`forms`): tensors, and options with
`reduceOp`, `rootRank`, `timeout` and `asyncOp` as the collective needs them. Roots are ranks of the
group. They return work objects and raise CollectiveError, with B902 for tensors that don't fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import ReduceOptions

from sley.communicator.selection.kinds import ALL_TO_ALL, BARRIER
from sley.engine.types import DATA_TYPES
from sley.ir.words import ReduceOp
from sley.torch.arguments import (
    as_list,
    check_kinds,
    check_length,
    check_lists,
    check_own,
    check_parts,
    premultiplied,
    single,
    split_rows,
)
from sley.torch.calls import CallRunner, together
from sley.torch.elements import Element, element_of, reduction_of
from sley.torch.fallback import Fallback
from sley.torch.forms import REDUCE, Form, made
from sley.torch.memory import apart_from, check_apart, to_read, to_update, to_write

_TOKEN = Element(DATA_TYPES["int8"], DATA_TYPES["int8"].number)
"""A barrier is an AllReduce of one of these."""

Reduced: TypeAlias = "tuple[Element, ReduceOp]"


class Collectives:
    """Collectives among the ranks of a group, on its endpoint; on another backend (`fallback`) if
    the endpoint doesn't support them.

    token: what barriers reduce.
    """

    def __init__(self, runner: CallRunner, fallback: Fallback) -> None:
        self._runner, self._fallback = runner, fallback
        self._rank, self._ranks = runner.rank, runner.ranks
        self.token = torch.zeros(1, dtype=torch.int8)

    def method(self, form: Form) -> Callable[..., dist.Work]:
        """The group's method of a form, which makes its calls."""
        exchange = self._exchange_lists if form.takes_lists else self._exchange_rows
        special: dict[str, Callable[..., dist.Work]]
        special = {ALL_TO_ALL: exchange, BARRIER: self._barrier}
        run = special.get(form.kind, self._call_parts if form.row.has_parts else self._update)
        return partial(self._call, run, form)

    def _call(
        self, run: Callable[..., dist.Work], form: Form, /, *given: Any, **named: Any
    ) -> dist.Work:
        tensors, opts = form.bind(given, named)
        return run(form, opts, *tensors)

    def _update(self, form: Form, opts: Any, tensors: Tensor | Sequence[Tensor]) -> dist.Work:
        """A collective whose input and output are one tensor: all_reduce, broadcast, reduce."""
        row, tensors = form.row, as_list(tensors)
        tensor = single(form.kind, tensors)
        found = reduced(form, tensor, opts)
        root = opts.rootRank if row.roles else 0
        at_root = bool(row.roles) and root == self._rank
        is_reduced_here = row.reduces and (at_root or not row.roles)
        if found is None:
            scaled = premultiplied(form.kind, tensors, opts)
            if scaled is None:
                return self._elsewhere(form, opts, tensor, tensors)
            if is_reduced_here:
                check_apart(tensors)
                tensor.detach().copy_(scaled[0])
            return self._update(form, _summing(opts), tensors if is_reduced_here else scaled)
        if is_reduced_here:
            memory = to_update(tensor)
        else:  # at a broadcast's root, and at other ranks of a reduce, it stays unchanged
            memory = to_read(tensors) if at_root or row.reduces else to_write(tensors)
        return self._runner.run_in_place(form.kind, opts, tensor, memory, *found, root)

    def _call_parts(self, form: Form, opts: Any, output: Any, input: Any) -> dist.Work:
        """A collective with an input or an output of a part for each rank, as one tensor or as a
        list: all_gather, reduce_scatter, gather, scatter."""
        kind, row = form.kind, form.row
        part, whole = (input, output) if row.output_parts else (output, input)
        if form.takes_lists:
            if isinstance(part, Tensor):
                output, input, whole = [output], [input], [whole]
            else:
                part = single(kind, part)
        found = reduced(form, part, opts)
        has_all = not row.roles or opts.rootRank == self._rank
        parts: Sequence[Tensor] = []
        if has_all:
            parts = single(kind, whole) if form.takes_lists else [whole]
        if found is None:
            scaled = premultiplied(kind, parts, opts)
            if scaled is None:
                return self._elsewhere(form, opts, part, output, input)
            whole = [scaled] if form.takes_lists else scaled[0]
            return self._call_parts(form, _summing(opts), output, whole)
        if not has_all:
            pass
        elif not form.takes_lists:
            check_parts(kind, whole, part.numel(), part, self._ranks)
        elif row.roles:
            check_lists(kind, parts, part, self._ranks)
        else:
            check_length(kind, parts, self._ranks)
            check_kinds(kind, parts, part)
            if any(tensor.numel() != part.numel() for tensor in parts):
                return self._call_unequal(form, opts, parts, part, found)
        inputs, outputs = ([part], parts) if row.output_parts else (parts, [part])
        root = opts.rootRank if row.roles else 0
        return self._runner.run(kind, opts, part.numel(), inputs, outputs, *found, root)

    def _call_unequal(
        self, form: Form, opts: Any, parts: Sequence[Tensor], own: Tensor, found: Reduced
    ) -> dist.Work:
        """An all_gather or reduce_scatter of parts that differ in size."""
        if form.row.output_parts:
            check_own(form.kind, self._rank, own, parts[self._rank])
            kind, (element, _) = "all_gather_v", found
            return self._runner.run_varying(kind, opts, [own], parts, parts, element)
        # A Reduce to each rank in turn: padded parts, or an AllReduce of all, take longer.
        check_own(form.kind, self._rank, parts[self._rank], own)
        check_apart([own])
        parts = list(parts)
        if not own.is_set_to(parts[self._rank]):
            parts = apart_from(own, parts)
            own.detach().copy_(parts[self._rank].detach().reshape(own.shape))
        parts[self._rank] = own
        works = [
            self._update(REDUCE, made(ReduceOptions, opts, rootRank=root), [part])
            for root, part in enumerate(parts)
        ]
        return together(works, [own])

    def _exchange_rows(
        self,
        form: Form,
        opts: Any,
        output: Tensor,
        input: Tensor,
        output_rows: Sequence[int],
        input_rows: Sequence[int],
    ) -> dist.Work:
        """An all_to_all of a tensor's parts: so many rows (of the first dimension) for each rank;
        equal ones without numbers."""
        element = element_of(input)
        if element is None:
            rows = list(output_rows), list(input_rows)
            return self._elsewhere(form, opts, input, output, input, *rows)
        if len(output_rows) == len(input_rows) == 0:
            numel = input.numel() // self._ranks
            check_parts(form.kind, input, numel, output, self._ranks)
            check_parts(form.kind, output, numel, input, self._ranks)
            return self._runner.run(form.kind, opts, numel, [input], [output], element)
        # Sizes that are all equal on this rank may differ on other ranks.
        outputs = split_rows(form.kind, output, output_rows, self._ranks)
        inputs = split_rows(form.kind, input, input_rows, self._ranks)
        return self._exchange(form, opts, inputs, outputs, [output])

    def _exchange_lists(
        self, form: Form, opts: Any, outputs: Sequence[Tensor], inputs: Sequence[Tensor]
    ) -> dist.Work:
        """An all_to_all of a tensor for each rank."""
        for tensor in (*inputs, *outputs):
            if element_of(tensor) is None:
                return self._elsewhere(form, opts, tensor, outputs, inputs)
        for tensors in (outputs, inputs):
            check_length(form.kind, tensors, self._ranks)
        first, everything = inputs[0], [*inputs, *outputs]
        if any(tensor.numel() != first.numel() for tensor in everything):
            return self._exchange(form, opts, inputs, outputs, outputs)
        check_kinds(form.kind, everything, first)
        element = element_of(first)
        assert element is not None  # all have been looked at
        return self._runner.run(form.kind, opts, first.numel(), inputs, outputs, element)

    def _exchange(
        self,
        form: Form,
        opts: Any,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        results: Sequence[Tensor],
    ) -> dist.Work:
        given, taken = inputs[self._rank], outputs[self._rank]
        element = element_of(given)
        assert element is not None  # the caller has looked
        check_kinds(form.kind, [*inputs, *outputs], given)
        check_own(form.kind, self._rank, given, taken)
        return self._runner.run_varying("all_to_all_v", opts, inputs, outputs, results, element)

    def _barrier(self, form: Form, opts: Any) -> dist.Work:
        """No rank continues before all have called it."""
        if opts.device is not None and opts.device.type != "cpu":
            return self._fallback.on(opts.device).barrier(opts)
        return self._runner.run_in_place(form.kind, opts, self.token, to_update(self.token), _TOKEN)

    def _elsewhere(self, form: Form, opts: Any, tensor: Tensor, *given: Any) -> dist.Work:
        """The same call on the backend for `tensor`, which the endpoint doesn't support."""
        if form.kind == "all_reduce" and tensor.is_cpu and tensor.layout is not torch.strided:
            self._runner.meet_for_sparse(self.token)
        other = self._fallback.find(form.kind, tensor, getattr(opts, "reduceOp", None))
        return getattr(other, form.methods[-1])(*given, opts)


def reduced(form: Form, tensor: Tensor, opts: Any) -> Reduced | None:
    """How the elements of `tensor` are moved, or reduced; None if the endpoint can't."""
    if form.row.reduces:
        return reduction_of(tensor, opts.reduceOp)
    element = element_of(tensor)
    return None if element is None else (element, ReduceOp.SUM)


def _summing(opts: Any) -> Any:
    """The options `opts` of a call, with SUM as its reduction."""
    return made(type(opts), opts, reduceOp=dist.ReduceOp(dist.ReduceOp.SUM))
