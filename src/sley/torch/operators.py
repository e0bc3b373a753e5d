"""Operators: collectives as operators of PyTorch, `torch.ops.sley`.

`torch.compile` keeps them in its graphs, and the profiler shows them. Those whose names end in an
underscore or in `_into` write to a tensor that they are given, and return nothing:

all_reduce_(tensor, reduce_op, group_name)
broadcast_(tensor, root, group_name)
reduce_(tensor, root, reduce_op, group_name)
all_gather_into(output, input, group_name)
reduce_scatter_into(output, input, reduce_op, group_name)
all_to_all_into(output, input, group_name)

all_reduce, all_gather, reduce_scatter and all_to_all return a new tensor instead. A call has ended
when its operator returns. reduce_op: "sum", "avg", "product", "min", "max", "band", "bor", "bxor".
group_name: a process group's `group_name`; of any backend, but only those of sley's are fast.

From PyTorch 2.10 on, ready calls of tensors on CPUs run in C++ alone; other calls, and all with
older versions, are made by the group's methods. Errors are RuntimeErrors with the text of the
diagnostic.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _resolve_process_group

from sley.communicator.calls import ready_kind
from sley.engine import native
from sley.engine.outcomes import Report
from sley.ir.collectives import Standard
from sley.torch.calls import CallRunner
from sley.torch.elements import REDUCTIONS
from sley.torch.forms import OPERATORS, Form
from sley.torch.ready import error_of_ready, types

_OPS = {reduction.name.lower(): op for op, reduction in REDUCTIONS.items()}
"""PyTorch's operations by their names in `torch.ops.sley`."""


def _op_of(name: str) -> dist.ReduceOp:
    if name not in _OPS:
        raise ValueError(f"reduce_op {name!r} is none of {', '.join(_OPS)}")
    return _OPS[name]


def _writing(form: Form) -> Callable[..., None]:
    """How a group makes the calls of an operator that writes to a tensor. The options of PyTorch's
    own functions, which wait, say the same."""

    def call(*arguments: Any) -> None:
        *given, name = arguments
        form.call(_resolve_process_group(name), given, _op_of).wait()

    return call


def _schema(row: Standard, *, returns: bool = False) -> str:
    """The arguments of an operator that writes to a tensor, or returns one."""
    words = ["Tensor(a!) output", "Tensor input"] if row.has_parts else ["Tensor(a!) tensor"]
    words = ["Tensor input"] if returns else words
    words += ["int root"] * bool(row.roles) + ["str reduce_op"] * row.reduces + ["str group_name"]
    return f"({', '.join(words)}) -> {'Tensor' if returns else '()'}"


def _returning(form: Form) -> Callable[..., Tensor]:
    """The operator that returns a new tensor, in terms of the one that writes to a tensor."""
    row = form.row

    def call(input: Tensor, *rest: Any) -> Tensor:
        write = getattr(torch.ops.sley, form.operator)
        if not row.has_parts:
            output = input.clone(memory_format=torch.contiguous_format)
            write(output, *rest)
            return output
        if row.has_place_of_rank:
            ranks = _resolve_process_group(rest[-1]).size()
            output = _empty_rows(input, *((ranks, 1) if row.output_parts else (1, ranks)))
        else:
            output = torch.empty_like(input, memory_format=torch.contiguous_format)
        write(output, input, *rest)
        return output

    return call


def _empty_rows(input: Tensor, times: int, parts: int) -> Tensor:
    """A tensor like `input` with `times / parts` as many rows (of the first dimension)."""
    if input.dim() == 0 or input.shape[0] % parts:
        raise ValueError(f"the rows of shape {tuple(input.shape)} are no multiple of {parts}")
    return input.new_empty([input.shape[0] * times // parts, *input.shape[1:]])


def define() -> torch.library.Library:
    """Defines the operators, with C++ kernels where PyTorch has LibTorch's stable interface. They
    exist as long as the returned object."""
    library = torch.library.Library("sley", "DEF")
    for form in OPERATORS:
        name, method, schema = form.operator, _writing(form), _schema(form.row)
        library.define(f"{name}{schema}")
        library.define(f"_{name}{schema}")
        library.impl(name, method, "CompositeExplicitAutograd")
        library.impl(f"_{name}", _noting_errors(method), "CompositeExplicitAutograd")
        for key in ("Conjugate", "Negative"):
            library.impl(name, _resolving(name), key)
        torch.library.register_fake(f"sley::{name}", _do_nothing, lib=library)
        if not form.row.roles:
            library.define(f"{form.kind}{_schema(form.row, returns=True)}")
            library.impl(form.kind, _returning(form), "CompositeImplicitAutograd")
    return library


def _do_nothing(*arguments: object) -> None:
    """What an operator does on tensors without data."""


def _resolving(name: str) -> Callable[..., None]:
    """An operator on views that PyTorch has marked as conjugated or negated: it runs on copies, and
    its result is copied to its first tensor. PyTorch's own way expects an operator's result."""

    def call(*arguments: Any) -> None:
        plain = [
            one.resolve_conj().resolve_neg() if isinstance(one, Tensor) else one
            for one in arguments
        ]
        getattr(torch.ops.sley, name)(*plain)
        if plain[0] is not arguments[0]:
            with torch.no_grad():
                arguments[0].copy_(plain[0])

    return call


def _noting_errors(method: Callable[..., None]) -> Callable[..., None]:
    """`method` for a call that a kernel in C++ leaves to Python: LibTorch would lose an exception,
    so the kernel gets it otherwise."""

    def call(*arguments: Any) -> None:
        try:
            method(*arguments)
        except BaseException as error:
            native.set_operator_error(error)

    return call


def add_group(name: str, runner: CallRunner) -> None:
    """Makes the ready calls of a group known to the operators, unless they are recorded."""
    if not _has_kernels or runner.log is not None:
        return
    kept = weakref.ref(runner)

    def explain(key: native.CallKey, report: Report) -> str:
        runner = kept()
        return "the group has ended" if runner is None else str(error_of_ready(runner, key, report))

    native.add_group(name, runner.endpoint.ready, runner.rank, runner.ranks, explain)


def remove_group(name: str, ready: native.ReadyCalls) -> None:
    """Makes a group unknown to the operators again."""
    if _has_kernels:
        native.remove_group(name, ready)


def _add_kernels() -> bool:
    """Adds the kernels in C++; whether this LibTorch has what they need."""
    path = next((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*"), None)
    if path is None:
        return False
    try:
        native.add_operators(
            str(path),
            [(t.name, t.moved, t.reduced, t.size_bytes, t.number) for t in types()],
            {name: int(REDUCTIONS[op]) for name, op in _OPS.items()},
            [(form.operator, ready_kind(form.kind)) for form in OPERATORS],
        )
    except RuntimeError:
        return False
    return True


LIBRARY = define()
_has_kernels = _add_kernels()
