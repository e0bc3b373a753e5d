"""Forms: how PyTorch makes the collectives of a group, in one table.

A form drives the group's method (`Collectives`, `Coalesced`), its ready calls, its operator in
`torch.ops.sley`, and its methods of torchcomms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch._C import _distributed_c10d as c10d

from sley.communicator.selection.kinds import ALL_TO_ALL, BARRIER, CALLS
from sley.ir.collectives import Standard

_FIELDS = {"root": "rootRank", "op": "reduceOp", "timeout": "timeout"}
"""PyTorch's words for fields of options, in the order in which its methods take plain values."""

_ONE = ("tensors",)
_PAIR = ("output", "input")
_SPLIT = (*_PAIR, "output_split_sizes", "input_split_sizes")
_LISTS = ("output_tensors", "input_tensors")


@dataclass(frozen=True, eq=False)
class Form:
    """A way of calling a kind of collectives.

    kind: of calls. options: PyTorch's class of them. arguments: names of the method's arguments
    before the options. methods: the method's names in process groups of all releases of PyTorch;
    the last is in most. operator: in `torch.ops.sley`, if there is one. varying: the name in
    torchcomms for parts that differ in size, if it has one. is_ready: whether equal calls may run
    again without Python.
    """

    kind: str
    options: type
    arguments: tuple[str, ...]
    methods: tuple[str, ...]
    operator: str = ""
    varying: str = ""
    is_ready: bool = True

    @cached_property
    def row(self) -> Standard:
        """The collective."""
        return CALLS[self.kind]

    @cached_property
    def takes_lists(self) -> bool:
        """Whether input and output are lists of tensors; otherwise each is a tensor."""
        return self.arguments == _LISTS

    @property
    def comms(self) -> tuple[str, ...]:
        """The names in torchcomms."""
        name = f"{self.kind}_single" if self.arguments in (_PAIR, _SPLIT) else self.kind
        return (name, self.varying) if self.varying else (name,)

    def bind(self, given: Sequence[Any], named: dict[str, Any]) -> tuple[Sequence[Any], Any]:
        """The arguments of a call of the method before its options, and the options: given as an
        object, as plain values in the order of `_FIELDS`, or by these words."""
        number = len(self.arguments)
        if not named and len(given) == number + 1 and isinstance(given[-1], self.options):
            return given[:-1], given[-1]
        tensors, values, named = list(given[:number]), list(given[number:]), dict(named)
        tensors += [named.pop(word) for word in self.arguments[len(given) :] if word in named]
        if (opts := named.pop("opts", None)) is not None:
            values.insert(0, opts)
        words = [word for word, field in _FIELDS.items() if hasattr(self.options, field)]
        free = [word for word in words if word not in named]
        is_object = bool(values) and isinstance(values[0], self.options)
        is_known = is_object or (len(values) <= len(free) and named.keys() <= set(words))
        if len(tensors) < number or not is_known:
            takes = ", ".join((*self.arguments, "opts", *words))
            raise TypeError(f"{self.methods[0]} takes ({takes}), not {len(given)} and {[*named]}")
        if is_object:
            return tensors, values[0]
        found = [*zip(free, values, strict=False), *named.items()]
        fields = {_FIELDS[word]: value for word, value in found if value is not None}
        return tensors, made(self.options, **fields)

    def call(
        self, group: Any, given: Sequence[Any], reduction: Callable[[Any], Any], **fields: Any
    ) -> Any:
        """Calls the method of a group of any backend; the work object.

        given: what operators and torchcomms get: tensors, then the root and the reduction if the
        kind has them. reduction: translates the latter to PyTorch's. fields: of the options.
        """
        rest = list(given)
        if hasattr(self.options, "reduceOp"):
            fields["reduceOp"] = reduction(rest.pop())
        if hasattr(self.options, "rootRank"):
            fields["rootRank"] = rest.pop()
        if self.arguments == _ONE or (self.takes_lists and self.kind != ALL_TO_ALL):
            rest = [[one] for one in rest]  # PyTorch's lists are from times of several GPUs each
        rest += [[]] * (len(self.arguments) - len(rest))  # no split sizes: equal parts
        return getattr(group, self.methods[-1])(*rest, made(self.options, **fields))


def made(kind: type, like: Any = None, **fields: Any) -> Any:
    """Options of the class `kind`, with these fields, and others as in the options `like`."""
    options = kind()
    for name in (*_FIELDS.values(), "asyncOp"):
        if hasattr(like, name) and hasattr(kind, name):
            setattr(options, name, getattr(like, name))
    for name, value in fields.items():
        setattr(options, name, value)
    return options


_ALL_REDUCE = Form("all_reduce", c10d.AllreduceOptions, _ONE, ("allreduce",), "all_reduce_")
REDUCE = Form("reduce", c10d.ReduceOptions, _ONE, ("reduce",), "reduce_")
_ALL_GATHER = Form(
    "all_gather",
    c10d.AllgatherOptions,
    _PAIR,
    ("all_gather_single", "_allgather_base"),
    "all_gather_into",
)
_ALL_GATHER_LISTS = Form(
    "all_gather", c10d.AllgatherOptions, _LISTS, ("allgather",), varying="all_gather_v"
)
_REDUCE_SCATTER = Form(
    "reduce_scatter",
    c10d.ReduceScatterOptions,
    _PAIR,
    ("reduce_scatter_single", "_reduce_scatter_base"),
    "reduce_scatter_into",
)
_ALL_TO_ALL = Form(
    ALL_TO_ALL,
    c10d.AllToAllOptions,
    _SPLIT,
    ("all_to_all_single", "alltoall_base"),
    "all_to_all_into",
    "all_to_all_v_single",
)
FORMS = (
    _ALL_REDUCE,
    Form("broadcast", c10d.BroadcastOptions, _ONE, ("broadcast",), "broadcast_"),
    REDUCE,
    _ALL_GATHER,
    _ALL_GATHER_LISTS,
    _REDUCE_SCATTER,
    replace(
        _REDUCE_SCATTER,
        arguments=_LISTS,
        methods=("reduce_scatter",),
        operator="",
        varying="reduce_scatter_v",
    ),
    _ALL_TO_ALL,
    Form(ALL_TO_ALL, c10d.AllToAllOptions, _LISTS, ("alltoall",)),
    Form("gather", c10d.GatherOptions, _LISTS, ("gather",)),
    Form(
        "gather", c10d.GatherOptions, _PAIR, ("gather_into_tensor", "gather_single"), is_ready=False
    ),
    Form("scatter", c10d.ScatterOptions, _LISTS, ("scatter",)),
    Form(BARRIER, c10d.BarrierOptions, (), ("barrier",)),
)
"""The forms of all collectives."""

OPERATORS = tuple(form for form in FORMS if form.operator)
"""The forms that are operators too."""

COALESCED = {
    Form("all_reduce", c10d.AllreduceCoalescedOptions, _ONE, ("allreduce_coalesced",)): _ALL_REDUCE,
    Form(
        "all_gather",
        c10d.AllgatherOptions,
        ("outputs", "inputs"),
        ("all_gather_single_coalesced", "allgather_into_tensor_coalesced"),
    ): _ALL_GATHER,
    Form(
        "all_gather", c10d.AllgatherOptions, ("output_lists", "inputs"), ("allgather_coalesced",)
    ): _ALL_GATHER_LISTS,
    Form(
        "reduce_scatter",
        c10d.ReduceScatterOptions,
        ("outputs", "inputs"),
        ("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"),
    ): _REDUCE_SCATTER,
}
"""The forms of several collectives as one, with the form of each."""
