"""Communicator: ranks that run collectives together, on NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

import numpy as np

from sley.communicator.endpoint import Endpoint, overlap
from sley.communicator.records import OWN, Call
from sley.communicator.work import Work
from sley.errors.calls import N627
from sley.ir.plan import Plan
from sley.ir.words import ReduceOp
from sley.runtime.program import buffer_sizes
from sley.runtime.settings import whole
from sley.runtime.types import Array, DataType, data_type, reduction


class Communicator(Endpoint):
    """Ranks that run collectives together, each in a process of its own (or a thread).

    store: over which they find one another. name: for messages; communicators of one store have
    names of their own. settings: those of the environment without. environ: SLEY_NICS and
    SLEY_HOST_ID.

    All ranks make it together, make the same calls in the same order, and close it. Which plan runs
    for a call is `plans`' choice. After an error that a call ended with, no call goes through any
    more: close it on all ranks, and make it again. Errors: N60x, R507.

    Arrays are contiguous, of one of the types of `sley.runtime.DATA_TYPES`; dtype="bfloat16" for
    uint16 arrays of its bits. Every rank calls with arrays of the same sizes and type. With
    is_async=True a call returns while it is at work, and its arrays are to be left alone until
    `Work.wait`; otherwise it has ended on return. Output and input may be the same memory where
    the collective says so. Errors: N620 to N627.
    """

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def all_reduce(
        self,
        data: Array,
        op: ReduceOp = ReduceOp.SUM,
        *,
        out: Array | None = None,
        dtype: str | None = None,
        is_async: bool = False,
    ) -> Work:
        """Replaces `data` (in `out`, where given) by the reduction of all ranks' data."""
        return self._call("all_reduce", data, data if out is None else out, dtype, op, 0, is_async)

    def all_gather(
        self, out: Array, data: Array, *, dtype: str | None = None, is_async: bool = False
    ) -> Work:
        """Puts all ranks' data into `out`, one behind another; `data` may be the rank's part."""
        return self._call("all_gather", data, out, dtype, ReduceOp.SUM, 0, is_async)

    def reduce_scatter(
        self,
        out: Array,
        data: Array,
        op: ReduceOp = ReduceOp.SUM,
        *,
        dtype: str | None = None,
        is_async: bool = False,
    ) -> Work:
        """Puts the rank's part of the reduction of all ranks' data into `out`, which may be that
        part of `data`."""
        return self._call("reduce_scatter", data, out, dtype, op, 0, is_async)

    def all_to_all(
        self, out: Array, data: Array, *, dtype: str | None = None, is_async: bool = False
    ) -> Work:
        """Part r of `data` goes to rank r; what comes from rank r is part r of `out`, which may be
        `data`."""
        return self._call("all_to_all", data, out, dtype, ReduceOp.SUM, 0, is_async)

    def broadcast(
        self, data: Array, root: int = 0, *, dtype: str | None = None, is_async: bool = False
    ) -> Work:
        """Replaces `data` by the root's."""
        return self._call("broadcast", data, data, dtype, ReduceOp.SUM, root, is_async)

    def reduce(
        self,
        data: Array,
        root: int = 0,
        op: ReduceOp = ReduceOp.SUM,
        *,
        dtype: str | None = None,
        is_async: bool = False,
    ) -> Work:
        """Replaces the root's `data` by the reduction of all ranks'; theirs stay as they are."""
        return self._call("reduce", data, data, dtype, op, root, is_async)

    def gather(
        self,
        out: Array | None,
        data: Array,
        root: int = 0,
        *,
        dtype: str | None = None,
        is_async: bool = False,
    ) -> Work:
        """Puts all ranks' data into the root's `out`, one behind another; that of others is left
        alone."""
        out = out if self.rank == root else None
        return self._call("gather", data, out, dtype, ReduceOp.SUM, root, is_async)

    def scatter(
        self,
        out: Array,
        data: Array | None,
        root: int = 0,
        *,
        dtype: str | None = None,
        is_async: bool = False,
    ) -> Work:
        """Puts part r of the root's `data` into rank r's `out`; that of others is left alone."""
        data = data if self.rank == root else None
        return self._call("scatter", data, out, dtype, ReduceOp.SUM, root, is_async)

    def run(
        self,
        plan: Plan,
        data: Array,
        out: Array | None = None,
        op: ReduceOp = ReduceOp.SUM,
        *,
        count: int | None = None,
        dtype: str | None = None,
        is_async: bool = False,
    ) -> Work:
        """Runs a plan of the caller's (`sley.compile`), whatever its collective. It is proven
        first, once.

        data, out: the rank's input and output, of whole blocks as in `sley.execute`; empty where
        it has none. In place there is no `out`, and `data` is all of the rank's data. count:
        elements of a block, for a rank that has no data. Errors: N651, N652, V2xx.
        """
        given = (data,) if out is None else (data, out)
        element = _type_of("run", given, dtype)
        spans = [_span(array) for array in given]
        elements = [size_bytes // element.size_bytes for _, size_bytes in spans]
        call = Call(
            OWN,
            *spans[0],
            *spans[-1],
            _count_of(plan, self.rank, elements, count),
            element,
            reduction(op),
            plan=plan,
        )
        if not plan.collective.in_place and overlap(call):
            raise N627.error(expected="data and out apart", found="arrays that share memory")
        return self.submit(call, is_async=is_async, kept=given)

    def send(self, data: Array, dst: int, tag: int = 0, *, is_async: bool = False) -> Work:
        """Sends an array to a rank, which receives one of the same size with the same tag."""
        _check_arrays("send", (data,))
        address, size_bytes = _span(data)
        return self.send_memory(address, size_bytes, dst, tag, is_async=is_async, kept=(data,))

    def recv(
        self, out: Array, src: int | None = None, tag: int = 0, *, is_async: bool = False
    ) -> Work:
        """Receives an array from a rank, or without one from any: `Work.source` then says from
        which."""
        _check_arrays("recv", (out,))
        address, size_bytes = _span(out)
        return self.recv_memory(address, size_bytes, src, tag, is_async=is_async, kept=(out,))

    def barrier(self, *, is_async: bool = False) -> Work:
        """Ends when all ranks have called it."""
        here = np.zeros(1, np.int8)
        return self._call("barrier", here, here, None, ReduceOp.SUM, 0, is_async)

    def _call(
        self,
        kind: str,
        data: Array | None,
        out: Array | None,
        dtype: str | None,
        op: ReduceOp,
        root: int,
        is_async: bool,
    ) -> Work:
        given = tuple(array for array in (data, out) if array is not None)
        element = _type_of(kind, given, dtype)
        source, source_bytes = _span(data)
        target, target_bytes = _span(out)
        item = element.size_bytes
        count = _count(kind, self.ranks, source_bytes // item, target_bytes // item)
        call = Call(
            kind,
            source,
            source_bytes,
            target,
            target_bytes,
            count,
            element,
            reduction(op),
            root,
        )
        return self.submit(call, is_async=is_async, kept=given)


def _check_arrays(kind: str, arrays: tuple[Array, ...]) -> None:
    for array in arrays:
        if not (isinstance(array, np.ndarray) and array.flags.c_contiguous):
            raise N627.error(expected=f"contiguous arrays for {kind}", found=_shape_of(array))
        if array.dtype != arrays[0].dtype:
            found = f"{arrays[0].dtype} and {array.dtype}"
            raise N627.error(expected=f"arrays of one type for {kind}", found=found)


def _type_of(kind: str, arrays: tuple[Array, ...], name: str | None) -> DataType:
    _check_arrays(kind, arrays)
    element = data_type(arrays[0].dtype.name if name is None else name)
    if element.array != arrays[0].dtype:
        found = f"{arrays[0].dtype}"
        raise N627.error(expected=f"arrays of {element.array} for {element.name}", found=found)
    return element


def _shape_of(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"strides {value.strides} for shape {value.shape}"
    return type(value).__name__


def _span(array: Array | None) -> tuple[int, int]:
    if array is None:
        return 0, 0
    return int(array.__array_interface__["data"][0]), array.nbytes


def _count(kind: str, ranks: int, source: int, target: int) -> int:
    """Elements of one block, for so many in the two arrays; N627 where they don't go together."""
    if kind == "all_gather":
        fits, block = target == ranks * source, source
    elif kind == "reduce_scatter":
        fits, block = source == ranks * target, target
    elif kind == "all_to_all":
        fits, block = source == target and source % ranks == 0, source // ranks
    elif kind == "gather":
        fits, block = target in (0, ranks * source), source
    elif kind == "scatter":
        fits, block = source in (0, ranks * target), target
    else:
        fits, block = source == target, source
    if not fits:
        raise N627.error(
            expected=f"arrays that fit a {kind} over {ranks} ranks",
            found=f"{source} elements in, {target} out",
        )
    return block


def _count_of(plan: Plan, rank: int, elements: Sequence[int], count: int | None) -> int:
    """Elements of a block of a call with its own plan, for so many in the rank's arrays; N627 where
    they don't go together."""
    c = plan.collective
    if rank >= c.ranks:
        return 0  # refused with the plan
    one = buffer_sizes(plan, rank, 1)
    blocks = [one.data] if c.in_place else [one.input, one.output]
    if len(blocks) == len(elements):
        if count is None:
            count = next((have // of for have, of in zip(elements, blocks, strict=True) if of), 0)
        if list(elements) == [count * of for of in blocks]:
            return whole(count, "count", 0)
    raise N627.error(
        expected=f"{' and '.join(f'{of} blocks' for of in blocks)} on rank {rank} for {c}",
        found=f"{' and '.join(map(str, elements))} elements",
    )
