"""Ready calls: synchronous collectives on plain tensors that the engine runs without Python.

The first of equal calls goes through `Collectives`, which finds its plan; later ones go from
`torch.distributed` to the engine directly. PyTorch's tensors are read over DLPack's C interface,
which PyTorch has from 2.10 on; without it, all calls go through `Collectives`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple, NoReturn

import torch
import torch.autograd.profiler
import torch.distributed as dist
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
    BroadcastOptions,
    ReduceOptions,
    ReduceScatterOptions,
)

from sley.communicator import Call
from sley.communicator.calls import kind_named, kind_number
from sley.engine import native
from sley.engine.outcomes import Report
from sley.engine.types import DATA_TYPES
from sley.errors import SleyError
from sley.ir.words import ReduceOp
from sley.selection.kinds import CALLS
from sley.torch.calls import CallRunner
from sley.torch.collectives import Collectives
from sley.torch.elements import REDUCTIONS, element_of, reduction_of
from sley.torch.work import UNSET, CollectiveError, collective_error

_TYPES = tuple(DATA_TYPES.values())


class Form(NamedTuple):
    """How PyTorch makes calls of one kind that may be ready.

    method: of `Collectives`. in_groups: the same of process groups in all releases. operator: in
    `torch.ops.sley`. options: their class.
    """

    method: str
    in_groups: str
    operator: str
    options: type


FORMS: Mapping[str, Form] = {
    "all_reduce": Form("allreduce", "allreduce", "all_reduce_", AllreduceOptions),
    "broadcast": Form("broadcast", "broadcast", "broadcast_", BroadcastOptions),
    "reduce": Form("reduce", "reduce", "reduce_", ReduceOptions),
    "all_gather": Form("all_gather_single", "_allgather_base", "all_gather_into", AllgatherOptions),
    "reduce_scatter": Form(
        "reduce_scatter_single", "_reduce_scatter_base", "reduce_scatter_into", ReduceScatterOptions
    ),
    "all_to_all": Form("all_to_all_single", "alltoall_base", "all_to_all_into", AllToAllOptions),
}
"""The forms, by the kinds of calls."""

_SUM = dist.ReduceOp(dist.ReduceOp.SUM)
_DL_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}
"""DLPack's codes of types, by the beginnings of PyTorch's names."""


def ready_methods(collectives: Collectives, runner: CallRunner) -> dict[str, Callable[..., Any]]:
    """Functions that replace methods of `collectives`, by their names: they run ready calls, and
    leave others to the methods. Nothing if this PyTorch doesn't allow it."""
    exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if exchange is None:
        return {}
    calls = native.TensorCalls.create(
        runner.endpoint.ready,
        exchange,
        (torch.Tensor, torch.nn.Parameter),
        runner.rank,
        runner.ranks,
        [(one.code, 8 * one.size_bytes, one.moved) for one in types()],
        [(one.code, 8 * one.size_bytes, one.reduced) for one in types()],
        _reductions(),
        vars(torch.autograd.profiler),
        UNSET,
        _fail(runner),
    )
    return {
        form.method: calls.function(
            ready_kind(kind), form.options, getattr(collectives, form.method)
        )
        for kind, form in FORMS.items()
    }


def ready_kind(name: str) -> native.Kind:
    """A kind of calls, for the engine's ready calls."""
    row = CALLS[name]
    parts = row.input_parts, row.output_parts
    return native.Kind(kind_number(name), row.reduces, bool(row.roles), *parts)


def error_of_ready(runner: CallRunner, key: native.CallKey, report: Report) -> CollectiveError:
    """The error of a ready call."""
    name = kind_named(key.kind)
    call = Call(name, 0, 0, 0, 0, key.count, _TYPES[key.dtype], ReduceOp(key.op), key.root)
    call.may_vary = name == "all_to_all"
    try:
        error = runner.endpoint.error_of_ready(call, key.in_place, report)
    except SleyError as closed:
        error = closed
    assert error is not None
    return collective_error(error)


def _fail(runner: CallRunner) -> Callable[..., NoReturn]:
    """A function that raises the error of a ready call."""

    def fail(key: native.CallKey, report: Report) -> NoReturn:
        raise error_of_ready(runner, key, report)

    return fail


class Type(NamedTuple):
    """A type of PyTorch's whose elements are one of the engine's each. code: DLPack's. moved,
    reduced: the engine's number of the elements that are moved, and reduced; -1: none."""

    name: str
    code: int
    moved: int
    reduced: int
    size_bytes: int


@cache
def types() -> list[Type]:
    """The types whose calls may be ready."""
    found = []
    for dtype in {value for value in vars(torch).values() if isinstance(value, torch.dtype)}:
        name = str(dtype).removeprefix("torch.")
        stem = name.rstrip("0123456789")
        if stem not in _DL_CODES or name not in (stem, f"{stem}{8 * dtype.itemsize}"):
            continue
        sample = torch.empty(0, dtype=dtype)
        element, reduction = element_of(sample), reduction_of(sample, _SUM)
        moved = -1 if element is None else element.dtype.number
        is_same = reduction is not None and reduction[1] is ReduceOp.SUM  # not for bools
        reduced = reduction[0].dtype.number if reduction and is_same else -1
        found.append(Type(name, _DL_CODES[stem], moved, reduced, dtype.itemsize))
    return found


@cache
def _reductions() -> list[int]:
    """The engine's operations by the hash of PyTorch's, which is a small number; -1 for none."""
    numbers = [-1] * 64
    for op, reduction in REDUCTIONS.items():
        assert 0 <= hash(op) < len(numbers)
        assert numbers[hash(op)] == -1
        numbers[hash(op)] = int(reduction)
    return numbers
