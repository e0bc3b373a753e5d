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

from sley.torch.arguments import check_lists, check_parts
from sley.torch.calls import CallRunner, together
from sley.torch.collectives import reduced
from sley.torch.fallback import Fallback
from sley.torch.forms import COALESCED, Form, made
from sley.torch.memory import Memory, Unpack, UnpackColumns, check_apart, flat, row_of

_PACKED_BYTES = 32 << 10
"""The average size of a rank's tensors up to which packing them takes less time."""


class Coalesced:
    """Several collectives among the ranks of a group, of tensors that have the same sizes and types
    on all ranks. methods: the group's methods by their forms. fallback: for other devices."""

    def __init__(
        self, runner: CallRunner, methods: Mapping[Form, Callable[..., Any]], fallback: Fallback
    ) -> None:
        self._runner, self._ranks, self._methods = runner, runner.ranks, methods
        self._fallback = fallback

    def call(self, form: Form, /, *given: Any, **named: Any) -> dist.Work:
        """A call of the form's method. `allgather_coalesced` takes, for each rank, a list with a
        tensor for each input."""
        tensors, opts = form.bind(given, named)
        each, outputs, inputs = COALESCED[form], tensors[0], tensors[-1]
        wholes = outputs if form.row.output_parts else inputs
        parts = inputs if form.row.output_parts else outputs  # the rank's own
        if parts and not parts[0].is_cpu and not each.takes_lists:
            other = self._fallback.on(parts[0].device)
            return getattr(other, form.methods[-1])(*tensors, opts)
        if each.takes_lists:
            wholes = list(zip(*outputs, strict=True))
            outputs = [tensor for of_rank in outputs for tensor in of_rank]
        found = reduced(form, parts[0], opts) if _are_packed(parts, opts) else None
        if found is None:
            one = made(each.options, opts)
            calls = _calls(each, wholes if each.takes_lists else outputs, inputs)
            return together([self._methods[each](*call, one) for call in calls], outputs)
        if form.row.has_parts:
            for whole, part in zip(wholes, parts, strict=True):
                if each.takes_lists:
                    check_lists(form.kind, whole, part, self._ranks)
                else:
                    check_parts(form.kind, whole, part.numel(), part, self._ranks)
        check_apart(outputs)
        memories = self._pack(each, inputs, outputs)
        sizes = [tensor.numel() for tensor in parts]
        return self._runner.run_packed(form.kind, opts, sizes, memories, outputs, *found)

    def _pack(
        self, each: Form, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> tuple[Memory, Memory]:
        """The memory of all inputs, a copy, and memory for all outputs. each: the form of a call;
        if it takes lists, the outputs come by rank."""
        if each.row.input_parts:
            lines = [one.detach().reshape(self._ranks, -1) for one in inputs]
            row = outputs[0].new_empty(sum(tensor.numel() for tensor in outputs))
            return row_of(torch.cat(lines, 1)), row_of(row, Unpack(row, outputs))
        row = flat(inputs)
        if not each.row.has_parts:
            return row_of(row), row_of(row, Unpack(row, outputs))
        gathered = row.new_empty(self._ranks, len(row))
        if not each.takes_lists:
            return row_of(row), row_of(gathered, UnpackColumns(gathered, outputs))
        return row_of(row), row_of(gathered, Unpack(gathered.view(-1), outputs))


def _calls(each: Form, outputs: Sequence[Any], inputs: Sequence[Tensor]) -> list[tuple[Any, ...]]:
    """The tensors of each call, of the form `each`."""
    if not each.row.has_parts:
        return [([tensor],) for tensor in inputs]
    pairs = list(zip(outputs, inputs, strict=True))
    return [([output], [given]) for output, given in pairs] if each.takes_lists else list(pairs)


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
