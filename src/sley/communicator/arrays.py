"""Arrays: validates a call's arrays, and derives its type, count and placement (N627)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from sley.communicator.calls import Call, element_number
from sley.communicator.selection.kinds import CALLS
from sley.engine import arguments
from sley.engine.limits import whole
from sley.engine.types import DATA_TYPES, Array, DataType, name_of
from sley.errors import counted
from sley.errors.calls import N627
from sley.ir.plan import Plan
from sley.ir.tables import NONE
from sley.ir.words import ReduceOp

T = TypeVar("T")

_MOST_TAG = 2**63 - 1

_WORDS = {
    DATA_TYPES[name].size_bytes: DATA_TYPES[name] for name in ("uint8", "int16", "int32", "int64")
}


def check_arrays(kind: str, arrays: Sequence[Any]) -> None:
    """Refuses arrays of several types, with gaps, or of references to objects."""
    if not arrays:
        raise N627.error(expected=f"an array for {kind}", found="None")
    for array in arrays:
        if not isinstance(array, np.ndarray):
            raise N627.error(expected=f"arrays for {kind}", found=type(array).__name__)
        if not (array.flags.c_contiguous and array.flags.aligned):
            found = f"strides {array.strides} for shape {array.shape}"
            if not array.flags.aligned:
                found = f"{array.dtype} that are not aligned to their size"
            raise N627.error(expected=f"contiguous arrays for {kind}", found=found)
        if array.dtype.hasobject:
            found = "references to objects, which mean nothing to another process"
            raise N627.error(expected=f"numbers for {kind}", found=found)
    types = dict.fromkeys(array.dtype for array in arrays)  # texts of types take microseconds
    if len(types) > 1:
        found = " and ".join(map(str, types))
        raise N627.error(expected=f"arrays of one type for {kind}", found=found)


def check_order(kind: str, out: Any, op: Any) -> None:
    """Refuses arguments in another order than data, out, op, root: an operation as `out`, or of a
    call with a root anything else as `op`."""
    found, remedy = "", ""
    if isinstance(out, ReduceOp | str):
        found, remedy = f"out={out!r}", f"Say {kind}(data, op=...), or give op after out."
    elif CALLS[kind].roles and not isinstance(op, ReduceOp | str):
        found, remedy = f"op={op!r}", f"Say {kind}(data, root=...), or give root after op."
    if found:
        expected = f"the arguments of {kind} in the order data, out, op, root"
        raise N627.error(expected=expected, found=found, remedy=remedy)


def check_writable(kind: str, is_writable: bool) -> None:
    """Refuses read-only memory for a result."""
    if not is_writable:
        raise N627.error(expected=f"an array that {kind} may write to", found="a read-only one")


def check_root(root: Any, ranks: int) -> int:
    """The root as an int. Refuses one that is not a rank."""
    return whole(root, "root", 0, ranks - 1, N627)


def root_array(kind: str, array: T | None) -> T:
    """The array of all parts that the root of a call gives. Refuses None."""
    if array is None:
        raise N627.error(expected=f"the root's array of all parts for {kind}", found="None")
    return array


def check_tag(tag: Any) -> None:
    """Refuses a tag that is not an integer from 0 to 2**63 - 1."""
    whole(tag, "tag", 0, _MOST_TAG, N627)


def type_of(kind: str, arrays: tuple[Array, ...], name: str | None, *, reduces: bool) -> DataType:
    """The elements' type. A call that doesn't reduce takes any type: the elements of one that the
    engine doesn't know are moved as several words of a type that it knows. Errors: R504, too."""
    check_arrays(kind, arrays)
    given = arrays[0].dtype
    if name is None and not reduces and name_of(given) not in DATA_TYPES:
        return _WORDS[min(8, math.gcd(given.itemsize, given.alignment))]
    return arguments.type_of({f"arrays of {kind}": name_of(given)}, name, N627)


def element_of(array: Array, element: DataType) -> int:
    """The number of the arrays' type in records; NONE if it is the engine's `element`."""
    name = name_of(array.dtype)
    return NONE if array.dtype == element.array else element_number(name)


def words_of(array: Array | None, element: DataType) -> int:
    """How many of the engine's elements make up one of the array's."""
    return 1 if array is None else array.itemsize // element.size_bytes


def span(array: Array | None) -> tuple[int, int]:
    """Address and bytes of an array; zeros for None."""
    if array is None:
        return 0, 0
    return int(array.__array_interface__["data"][0]), array.nbytes


def count_of(kind: str, ranks: int, source: int, target: int, *, at_root: bool) -> int:
    """Elements of one part, from those of the rank's input and output. Where only the root has a
    buffer, other ranks may give an array of its size, or none."""
    row = CALLS[kind]
    parts_in, parts_out = (ranks if p else 1 for p in (row.input_parts, row.output_parts))
    sides = [
        (source, parts_in, at_root or not row.input_of),
        (target, parts_out, at_root or not row.output_of),
    ]
    size, parts = next((size, parts) for size, parts, has_it in sides if has_it)
    count = size // parts
    if not all(size == parts * count or (not size and not has_it) for size, parts, has_it in sides):
        expected = f"{counted(parts_in * count, 'element')} in, {parts_out * count} out"
        if size % parts:
            expected = f"a multiple of {parts} elements"
        raise N627.error(
            expected=f"{expected}, for {kind} over {ranks} ranks",
            found=f"{counted(source, 'element')} in, {target} out",
        )
    return count


def places_of(arrays: Sequence[Array], element: DataType) -> list[tuple[int, int]]:
    """The address and the engine's elements of each array."""
    return [(span(array)[0], array.nbytes // element.size_bytes) for array in arrays]


def check_parts(kind: str, blocks: int, arrays: Any, what: str) -> tuple[Array, ...]:
    """The arrays of a buffer's parts. Refuses anything but one for each block."""
    expected = f"a list of {counted(blocks, 'array')} as {kind}'s {what}, one for each part"
    if isinstance(arrays, np.ndarray) or not isinstance(arrays, Sequence):
        raise N627.error(expected=expected, found=type(arrays).__name__)
    if len(arrays) != blocks:
        raise N627.error(expected=expected, found=f"{len(arrays)}")
    return tuple(arrays)


def check_apart(kind: str, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Refuses parts that share memory with another part which is written."""
    parts = [(*span(array), False) for array in inputs] + [
        (*span(array), True) for array in outputs
    ]
    ends, writes = 0, False  # of the parts so far
    for start, size, is_written in sorted(part for part in parts if part[1]):
        if start < ends and (is_written or writes):
            raise N627.error(
                expected=f"outputs of {kind} that share no memory with another part",
                found="arrays that share memory",
            )
        if start + size > ends:
            ends, writes = start + size, is_written
        else:
            writes |= is_written


def own_count_of(plan: Plan, rank: int, elements: Sequence[int], count: int | None) -> int:
    """Elements of a block of a call with its own plan, from those of the rank's arrays."""
    if rank >= plan.collective.ranks:
        return 0  # refused with the plan
    in_place, has_out = plan.collective.in_place, len(elements) == 2
    if in_place == has_out:
        raise N627.error(
            expected=f"{'data alone' if in_place else 'data and out'} for {plan.collective}",
            found="data and out" if has_out else "data alone",
            remedy="Leave `out` out: the plan is in place." if in_place else "Give `out`, too.",
        )
    return arguments.count_of(arguments.parts_of(plan, rank, elements), count, N627)


def is_in_place(call: Call, rank: int) -> bool:
    """Whether a call is in place. Refuses input and output that overlap in any other way, because
    the call might overwrite what it has yet to read."""
    start = max(call.input, call.output)
    end = min(call.input + call.input_bytes, call.output + call.output_bytes)
    is_shared = call.input_bytes > 0 and call.output_bytes > 0 and start < end
    if call.plan is not None:
        in_place = call.plan.collective.in_place
        if is_shared and not in_place:
            raise N627.error(expected="data and out apart", found="arrays that share memory")
        return in_place
    if not is_shared:
        return False
    less, more = sorted([(call.input_bytes, call.input), (call.output_bytes, call.output)])
    own = rank * less[0] if less[0] != more[0] else 0
    if less[1] != more[1] + own:
        raise N627.error(
            expected=f"a {call.kind} whose smaller array is the rank's part of the other, or whose "
            "arrays are the same, or apart",
            found=f"arrays that overlap: one begins {less[1] - more[1]} bytes after the other",
        )
    # In a gather and a scatter only the root's arrays can overlap, which the other ranks don't see;
    # so all run the plan out of place, which copies the root's own part harmlessly onto itself.
    row = CALLS[call.kind]
    return not (row.roles and row.has_place_of_rank)


def memory_of(call: Call, in_place: bool) -> tuple[int, int, int, int]:
    """The engine's two memories: input and output, or in place all of the rank's data, and none."""
    if not in_place:
        return call.input, call.input_bytes, call.output, call.output_bytes
    start = min(call.input, call.output)
    end = max(call.input + call.input_bytes, call.output + call.output_bytes)
    return start, end - start, 0, 0
