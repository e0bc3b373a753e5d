"""Ready calls: synchronous collectives, and messages, of plain tensors that the engine runs without
Python.

The first of equal calls goes through `Collectives`, which finds its plan; later ones go from
`torch.distributed` to the engine directly, as all messages do. PyTorch's tensors are read over
DLPack's C interface, which PyTorch has from 2.10 on; without it, all calls go through `Collectives`
and `Messages`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple, NoReturn

import torch
import torch.autograd.profiler
import torch.distributed as dist

from sley.communicator import Call
from sley.communicator.calls import element_number, kind_named, kind_number, ready_kind
from sley.communicator.selection.kinds import ALL_TO_ALL, BARRIER
from sley.engine import native
from sley.engine.outcomes import Report
from sley.engine.types import DATA_TYPES
from sley.errors import SleyError
from sley.ir.words import ReduceOp
from sley.torch.calls import CallRunner
from sley.torch.collectives import Collectives
from sley.torch.elements import REDUCTIONS, element_of, every_type, reduction_of
from sley.torch.forms import FORMS
from sley.torch.memory import Held
from sley.torch.messages import Message, Messages
from sley.torch.work import UNSET, CollectiveError, Finished, collective_error

_TYPES = tuple(DATA_TYPES.values())


MESSAGES = (("send", True, False), ("recv", False, False), ("recv_anysource", False, True))
"""The methods of `Messages`: whether each sends, and whether it names no other rank."""

_SUM = dist.ReduceOp(dist.ReduceOp.SUM)
_DL_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}
_DL_CODES |= {"float8_e4m3fn": 10, "float8_e5m2": 12}
"""DLPack's codes of types, by PyTorch's names or their beginnings."""


def ready_methods(
    collectives: Collectives, messages: Messages, runner: CallRunner
) -> dict[str, Callable[..., Any]]:
    """Functions that replace a group's methods of `FORMS`, by their first names, and methods of
    `messages`: they run ready calls, and messages of plain tensors, and leave others to
    `collectives` and `messages`. Nothing if this PyTorch doesn't allow it."""
    exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    in_python = runner.endpoint.settings.replan or runner.log  # calls take turns, or are recorded
    if exchange is None or in_python:
        return {}
    calls = native.TensorCalls.create(
        runner.endpoint.ready,
        exchange,
        (torch.Tensor, torch.nn.Parameter),
        runner.rank,
        runner.ranks,
        [(one.code, 8 * one.size_bytes, one.moved, one.number) for one in types()],
        [(one.code, 8 * one.size_bytes, one.reduced, one.number) for one in types()],
        _reductions(),
        vars(torch.autograd.profiler),
        UNSET,
        partial(_fail, runner),
    )
    methods: dict[str, Callable[..., Any]] = {}
    for form in FORMS:
        name, otherwise = form.methods[0], collectives.method(form)
        if form.kind == BARRIER:
            barrier = native.Kind(kind_number(BARRIER), False, False, False, False)
            token, cpu = collectives.token, torch.device("cpu")
            methods[name] = calls.barrier(barrier, form.options, token, cpu, otherwise)
        elif form.is_ready:
            kind = ready_kind(form.kind)
            methods[name] = calls.function(kind, form.options, form.takes_lists, otherwise)
    own = runner.endpoint.messages
    for name, is_send, from_any in MESSAGES:
        methods[name] = calls.messages(
            own.native,
            is_send,
            from_any,
            runner,
            Finished,
            partial(Message, own),
            lambda tensor: Held([tensor.untyped_storage()]),
            getattr(messages, name),
        )
    return methods


def error_of_ready(runner: CallRunner, key: native.CallKey, report: Report) -> CollectiveError:
    """The error of a ready call."""
    name = kind_named(key.kind)
    call = Call(name, 0, 0, 0, 0, key.count, _TYPES[key.dtype], ReduceOp(key.op), key.root)
    call.element = key.element
    call.may_vary = name == ALL_TO_ALL
    try:
        error = runner.endpoint.error_of(call, key.in_place, report)
    except SleyError as closed:
        error = closed
    assert error is not None
    return collective_error(error)


def _fail(runner: CallRunner, key: native.CallKey, report: Report) -> NoReturn:
    raise error_of_ready(runner, key, report)


class Type(NamedTuple):
    """A type of PyTorch's whose elements are one of the engine's each. code: DLPack's. moved,
    reduced: the engine's number of the elements that are moved, and reduced; -1: none. number: its
    own, by `element_number`."""

    name: str
    code: int
    moved: int
    reduced: int
    size_bytes: int
    number: int


@cache
def types() -> list[Type]:
    """The types whose calls may be ready."""
    found = []
    for dtype in every_type():
        name = str(dtype).removeprefix("torch.")
        stem = name if name in _DL_CODES else name.rstrip("0123456789")
        if stem not in _DL_CODES or name not in (stem, f"{stem}{8 * dtype.itemsize}"):
            continue
        sample = torch.empty(0, dtype=dtype)
        element, reduction = element_of(sample), reduction_of(sample, _SUM)
        moved = -1 if element is None else element.dtype.number
        is_same = reduction is not None and reduction[1] is ReduceOp.SUM  # not for bools
        reduced = reduction[0].dtype.number if reduction and is_same else -1
        number = element_number(name)
        found.append(Type(name, _DL_CODES[stem], moved, reduced, dtype.itemsize, number))
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
