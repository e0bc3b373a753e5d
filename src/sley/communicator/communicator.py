"""Communicator: collectives and messages on NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from sley.communicator.arrays import (
    check_apart,
    check_arrays,
    check_order,
    check_parts,
    check_root,
    check_tag,
    check_writable,
    count_of,
    element_of,
    own_count_of,
    places_of,
    root_array,
    span,
    type_of,
    words_of,
)
from sley.communicator.calls import OWN, Call, Parts, Work, element_number
from sley.communicator.endpoint import Endpoint
from sley.communicator.rendezvous.hosts import Hosts
from sley.communicator.rendezvous.stores import Store
from sley.communicator.selection.kinds import CALLS
from sley.communicator.selection.plans import Plans
from sley.communicator.settings import Settings
from sley.communicator.stats import CallStats
from sley.engine.types import Array, name_of, reduction
from sley.engine.varying import blocks_of
from sley.errors.calls import N627
from sley.ir.plan import Plan, check_kind
from sley.ir.words import ReduceOp


class Communicator(AbstractContextManager["Communicator"]):
    """Ranks that run collectives together, each in a process of its own (or a thread).

    store: the ranks find one another over it. name: appears in messages; the open communicators of
    a store need different names. settings: by default, those of the environment. environ: replaces
    the environment for SLEY_NICS and SLEY_HOST_ID.

    All ranks make it together, make the same calls in the same order, and close it. `plans` chooses
    the plan for each call. After a call has ended with an error, all further calls fail: close the
    communicator on all ranks, and make it again. Errors: N60x, R507.

    Arrays are contiguous. Reductions take the types of `sley.engine.DATA_TYPES`, with
    dtype="bfloat16" for uint16 arrays of its bits, and so for float8_e4m3fn and float8_e5m2; other
    calls take any type. Every rank calls with arrays of the same sizes and type. With
    async_op=True a call returns at once, and its arrays must be left alone until `Work.wait`;
    otherwise it has ended on return. Output and input may be the same memory where the collective
    allows it. Errors: N620 to N633.

    As in MPI, each call takes the arguments that it has in the order data, out, op, root.

    rank, ranks, name: as given. hosts: which ranks share a host. plans: chooses plans.
    endpoint: the same calls on memory, given by address.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        ranks: int,
        *,
        name: str = "sley",
        settings: Settings | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.endpoint = Endpoint(store, rank, ranks, name=name, settings=settings, environ=environ)
        self.rank, self.ranks, self.name = self.endpoint.rank, self.endpoint.ranks, name
        self.hosts: Hosts = self.endpoint.hosts
        self.plans: Plans = self.endpoint.plans

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leaves the communicator; closing twice does nothing. Calls in progress end with N623."""
        self.endpoint.close()

    def abort(self) -> None:
        """Ends every call in progress, on all ranks; all further calls fail."""
        self.endpoint.abort()

    def replan(self) -> None:
        """Measures the interfaces between hosts, takes those that are back, and fits the plans to
        their rates: a collective call, with `Settings.replan`. Errors: R514, N601, N622, N628,
        N635."""
        self.endpoint.replan()

    def stats(self) -> list[CallStats]:
        """Statistics of this rank's calls: a row for each plan that has run."""
        return self.endpoint.stats()

    def all_reduce(
        self,
        data: Array,
        out: Array | None = None,
        op: ReduceOp | str = ReduceOp.SUM,
        *,
        dtype: str | None = None,
        async_op: bool = False,
    ) -> Work:
        """Replaces `data`, or fills `out`, with the reduction of all ranks' data."""
        return self._call("all_reduce", data, data if out is None else out, dtype, op, 0, async_op)

    def all_gather(
        self, data: Array, out: Array, *, dtype: str | None = None, async_op: bool = False
    ) -> Work:
        """Puts all ranks' data into `out`, by rank; `data` may be the rank's part of `out`."""
        return self._call("all_gather", data, out, dtype, ReduceOp.SUM, 0, async_op)

    def reduce_scatter(
        self,
        data: Array,
        out: Array,
        op: ReduceOp | str = ReduceOp.SUM,
        *,
        dtype: str | None = None,
        async_op: bool = False,
    ) -> Work:
        """Puts the rank's part of the reduction of all ranks' data into `out`, which may be that
        part of `data`."""
        return self._call("reduce_scatter", data, out, dtype, op, 0, async_op)

    def all_to_all(
        self, data: Array, out: Array, *, dtype: str | None = None, async_op: bool = False
    ) -> Work:
        """Sends part r of `data` to rank r, and puts what rank r sends into part r of `out`, which
        may be `data`."""
        return self._call("all_to_all", data, out, dtype, ReduceOp.SUM, 0, async_op)

    def all_to_all_v(
        self,
        data: Sequence[Array],
        out: Sequence[Array],
        *,
        dtype: str | None = None,
        async_op: bool = False,
    ) -> Work:
        """Sends `data[r]` to rank r, and puts what rank r sends into `out[r]`: arrays of any sizes,
        also empty ones. Errors: N631, too, if what rank r sends has another size."""
        data = check_parts("all_to_all_v", self.ranks, data, "data")
        out = check_parts("all_to_all_v", self.ranks, out, "out")
        return self._call_parts("all_to_all_v", data, out, dtype, async_op)

    def all_gather_v(
        self,
        data: Array,
        out: Sequence[Array],
        *,
        dtype: str | None = None,
        async_op: bool = False,
    ) -> Work:
        """Puts the data of rank r, of any size, into `out[r]`. Errors: N631, too, if the two have
        different sizes."""
        out = check_parts("all_gather_v", self.ranks, out, "out")
        return self._call_parts("all_gather_v", (data,), out, dtype, async_op)

    def broadcast(
        self, data: Array, root: int = 0, *, dtype: str | None = None, async_op: bool = False
    ) -> Work:
        """Replaces `data` with the root's."""
        return self._call("broadcast", data, data, dtype, ReduceOp.SUM, root, async_op)

    def reduce(
        self,
        data: Array,
        op: ReduceOp | str = ReduceOp.SUM,
        root: int = 0,
        *,
        dtype: str | None = None,
        async_op: bool = False,
    ) -> Work:
        """Replaces the root's `data` with the reduction of all ranks' data."""
        return self._call("reduce", data, data, dtype, op, root, async_op)

    def gather(
        self,
        data: Array,
        out: Array | None,
        root: int = 0,
        *,
        dtype: str | None = None,
        async_op: bool = False,
    ) -> Work:
        """Puts all ranks' data into the root's `out`, by rank; other ranks' `out` is ignored."""
        out = root_array("gather", out) if self.rank == check_root(root, self.ranks) else None
        return self._call("gather", data, out, dtype, ReduceOp.SUM, root, async_op)

    def scatter(
        self,
        data: Array | None,
        out: Array,
        root: int = 0,
        *,
        dtype: str | None = None,
        async_op: bool = False,
    ) -> Work:
        """Puts part r of the root's `data` into rank r's `out`; other ranks' `data` is ignored."""
        data = root_array("scatter", data) if self.rank == check_root(root, self.ranks) else None
        return self._call("scatter", data, out, dtype, ReduceOp.SUM, root, async_op)

    def run(
        self,
        plan: Plan,
        data: Array | Sequence[Array],
        out: Array | Sequence[Array] | None = None,
        op: ReduceOp | str = ReduceOp.SUM,
        *,
        count: int | None = None,
        dtype: str | None = None,
        async_op: bool = False,
    ) -> Work:
        """Runs a plan of the caller's (`sley.compile`), of any collective. Its first run proves it.

        data, out: the rank's input and output, whole blocks as in `sley.execute`; empty where the
        rank has none. In place, `data` is all of the rank's data, and `out` is None. If the counts
        of the plan's collective vary, both are lists of arrays, one for each block. count:
        elements of a block, for a rank without data. Errors: C307, N627, N651, N652, V2xx.
        """
        check_kind(plan)
        c = plan.collective
        if c.varies:
            if count is not None:
                expected = f"no count, as those of {c} vary"
                raise N627.error(expected=expected, found=f"count={count!r}")
            inputs = check_parts("run", blocks_of(c, c.input_chunks), data, "data")
            outputs = check_parts("run", blocks_of(c, c.output_chunks), out, "out")
            return self._call_parts(OWN, inputs, outputs, dtype, async_op, plan)
        given: tuple[Any, ...] = (data,) if out is None else (data, out)
        element = type_of("run", given, dtype, reduces=plan.reduces)
        for array in given if plan.input_writes.size else given[-1:]:
            check_writable("run", array.flags.writeable)
        spans = [span(array) for array in given]
        count = own_count_of(plan, self.rank, [array.size for array in given], count)
        count *= words_of(given[0], element)
        own = element_of(given[0], element)
        call = Call(
            OWN, *spans[0], *spans[-1], count, element, reduction(op), plan=plan, element=own
        )
        return self.endpoint.submit(call, async_op=async_op, owners=given)

    def send(self, data: Array, dst: int, tag: int = 0, *, async_op: bool = False) -> Work:
        """Sends an array to a rank, which receives one of the same size and type, with the same
        tag."""
        check_arrays("send", (data,))
        check_tag(tag)
        element = element_number(name_of(data.dtype))
        return self.endpoint.messages.send(
            *span(data), dst, tag, element=element, async_op=async_op, owners=(data,)
        )

    def recv(
        self, out: Array, src: int | None = None, tag: int = 0, *, async_op: bool = False
    ) -> Work:
        """Receives an array from a rank, or from any (src=None): `Work.source` names the sender."""
        check_arrays("recv", (out,))
        check_writable("recv", out.flags.writeable)
        check_tag(tag)
        element = element_number(name_of(out.dtype))
        return self.endpoint.messages.recv(
            *span(out), src, tag, element=element, async_op=async_op, owners=(out,)
        )

    def barrier(self, *, async_op: bool = False) -> Work:
        """Ends when all ranks have called it."""
        byte = np.zeros(1, np.int8)
        return self._call("barrier", byte, byte, None, ReduceOp.SUM, 0, async_op)

    def _call_parts(
        self,
        kind: str,
        data: tuple[Array, ...],
        out: tuple[Array, ...],
        dtype: str | None,
        async_op: bool,
        plan: Plan | None = None,
    ) -> Work:
        """A call of varying counts."""
        element = type_of(kind, (*data, *out), dtype, reduces=False)
        for array in out:
            check_writable(kind, array.flags.writeable)
        check_apart(kind, data, out)
        parts = Parts.of(places_of(data, element), places_of(out, element))
        own = element_of((*data, *out)[0], element)
        call = Call(kind, 0, 0, 0, 0, 0, element, plan=plan, parts=parts, element=own)
        return self.endpoint.submit(call, async_op=async_op, owners=(*data, *out))

    def _call(
        self,
        kind: str,
        data: Array | None,
        out: Array | None,
        dtype: str | None,
        op: ReduceOp | str,
        root: int,
        async_op: bool,
    ) -> Work:
        check_order(kind, out, op)
        root = check_root(root, self.ranks)
        given = tuple(array for array in (data, out) if array is not None)
        row, at_root = CALLS[kind], self.rank == root
        element = type_of(kind, given, dtype, reduces=row.reduces)
        has_output = at_root or not row.output_of
        gives_all = at_root and bool(row.input_of) and out is data
        if out is not None and has_output and not gives_all:
            check_writable(kind, out.flags.writeable)
        sizes = [0 if array is None else array.size for array in (data, out)]
        count = count_of(kind, self.ranks, *sizes, at_root=at_root) * words_of(given[0], element)
        input_is_read_only = data is not None and not data.flags.writeable
        call = Call(
            kind,
            *span(data),
            *span(out),
            count,
            element,
            reduction(op),
            root,
            input_is_read_only=input_is_read_only,
            output_is_read_only=input_is_read_only and out is data,
            element=element_of(given[0], element),
        )
        return self.endpoint.submit(call, async_op=async_op, owners=given)
