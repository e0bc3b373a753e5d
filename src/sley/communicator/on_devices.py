"""DeviceCommunicator: collectives on GPUs, or on threads of this machine's CPUs."""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

from sley.communicator.arrays import (
    check_order,
    check_root,
    check_writable,
    count_of,
    is_in_place,
    memory_of,
    root_array,
)
from sley.communicator.calls import Call, kind_number, ready_kind
from sley.communicator.device_opening import DeviceCore, DeviceOpening
from sley.communicator.failures import Failure, caused, closed, failed_before
from sley.communicator.rendezvous.bootstrap import bootstrap, check_place, decline
from sley.communicator.rendezvous.hosts import Process
from sley.communicator.rendezvous.stores import Store
from sley.communicator.selection.kinds import BARRIER, CALLS, size_of
from sley.communicator.settings import Settings
from sley.communicator.stats import OPEN, OPEN_LOCK, CallStats, log_to_stderr, opened
from sley.engine import arguments, native
from sley.engine.devices import Device, LinkSet, open_devices
from sley.engine.devices import Settings as KernelSettings
from sley.engine.devices.arguments import check_factor
from sley.engine.devices.programs import check_capture
from sley.engine.limits import instance, whole
from sley.engine.types import DATA_TYPES, USUAL_TYPES, DataType, data_type, reduction
from sley.errors import Diagnostic, Place, SleyError, telling
from sley.errors.calls import N627
from sley.errors.devices import K508, K514
from sley.errors.runtime import R508
from sley.ir.topology import Topology
from sley.ir.words import ReduceOp

_MOST_KEY = 2**31 - 1

_LOOK_S = 0.25
"""How often the other ranks' processes are looked at: a few system calls each time."""

_RANK_BITS = 32
"""Of the number that says why calls were given up: the rank that caused it, below the failure."""


class Registration(NamedTuple):
    """Memory that `DeviceCommunicator.register` has registered.

    number: of the registration, equal on all ranks. readers: the other ranks that read this rank's
    memory in place.
    """

    number: int
    readers: tuple[int, ...]


class DeviceCommunicator(AbstractContextManager["DeviceCommunicator"]):
    """Ranks that run collectives together on the GPUs of a host, each a process or a thread.
    Threads of the CPU are a device, too.

    store, rank, ranks, name, environ: as for `Communicator`. device: the rank's, or its name
    ("cuda:0"); several ranks may have one device. settings: of these, `timeout_s`, `plan_dir`,
    `plan_dir_strict` and `use_cache` apply; by default those of the environment. kernels: how plans
    run; by default the library's plans in the interpreter, whose kernels run all of them, and the
    user's in generated code if it was compiled before, as in a package. types, ops: whose kernels
    are loaded now. topology: the machine for which plans are chosen, or its name; by default one
    like the devices.

    All ranks make it together, make the same calls in the same order, and close it. When it is made
    it chooses the plans of all calls, and allocates what they share. Some calls lack something: the
    first of a type or operation that wasn't named, and one whose plan has scratch, if it is larger
    than those before. It waits on all ranks until no call is under way, and gets it; in the capture
    of a graph it is refused (K518). After a call has failed, all further calls fail (N630).

    Arrays are contiguous and on the rank's device: tensors of PyTorch or CuPy, anything with DLPack
    or the CUDA array interface, and NumPy's on threads. Their types are `sley.engine.DATA_TYPES`,
    with dtype="bfloat16" for uint16 arrays of its bits, and so for the 8-bit ones. All ranks give
    arrays of the same sizes and type. Output and input may be the same memory where the collective
    allows it, on any of the ranks, of an all_to_all on all. With the caller's `stream` a call
    returns when it is started; its error comes from `error`, `check`, `synchronize` or a later
    call. Otherwise it follows the device's default stream, and has ended on return. Threads may
    share a communicator. Errors: N60x, N62x, K5xx, R5xx.

    rank, ranks, name, device, settings, kernels: as given. hosts: one. plans: chose the plans;
    `register` is refused there.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        ranks: int,
        device: Device | str,
        *,
        name: str = "sley",
        settings: Settings | None = None,
        kernels: KernelSettings | None = None,
        types: Sequence[str] = USUAL_TYPES,
        ops: Sequence[ReduceOp | str] = (ReduceOp.SUM,),
        topology: Topology | str | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        log_to_stderr()
        check_place(rank, ranks)
        self.rank, self.ranks, self.name = int(rank), int(ranks), name
        tell = partial(decline, store, self.rank, self.ranks, name=name, environ=environ)
        with telling(tell):
            self.device = device if isinstance(device, Device) else open_devices(str(device), 1)[0]
            settings = Settings.from_environment() if settings is None else settings
            self.settings = instance(settings, Settings, "settings")
            kernels = KernelSettings() if kernels is None else kernels
            self.kernels = instance(kernels, KernelSettings, "kernels")
            own = tuple(map(data_type, instance(types, Sequence, "types")))
            named = tuple(map(reduction, instance(ops, Sequence, "ops")))
        self._store, self._topology, self._environ = store, topology, environ
        self._splits = 0
        self._core: DeviceCore | None = None
        self._links: LinkSet | None = None
        """From before it is open until it is closed."""
        self._failure: tuple[Diagnostic, ...] = ()
        """Of the first call that has failed. Not the error: its traceback would keep all this."""
        self._is_told = False
        """Whether a caller has got it."""
        self._process = os.getpid()
        self._lock = threading.RLock()
        """Held while a call is started, and by what all ranks do together."""
        # What they share, and what decides when a call lacks a kernel.
        agreed = {
            "calls": "on devices",
            "platform": self.device.platform,
            "slots": str(self.kernels.slots),
            "slot_bytes": str(self.kernels.slot_bytes),
            "types": " ".join(each.name for each in own),
            "ops": " ".join(each.name for each in named),
        }
        rendezvous = bootstrap(
            store,
            self.rank,
            self.ranks,
            name=name,
            timeout_s=self.settings.patience_s,
            agreed=agreed,
            offered={"device": self.device.identity.hex(), "blocks": str(self.device.blocks)},
            environ=environ,
        )
        given = self.device, self.settings, self.kernels, own, named
        self._opening = DeviceOpening(rendezvous, *given)
        self.hosts = rendezvous.hosts
        self.plans, self._table = self._opening.choose(topology)
        with self._noting():
            self._core = self._opening.core(self._table, self._watched)

    def __exit__(self, kind: object, problem: object, trace: object) -> None:
        # After an exception here, other ranks may never call `close`.
        self._close(meet=problem is None)

    def close(self) -> None:
        """Waits for this rank's calls and, unless a call has failed, until all ranks call it, then
        leaves the communicator and frees its memory. A second call does nothing. Errors: K514, and
        the first of a call, if it wasn't raised before."""
        self._close(meet=True)

    def abort(self) -> None:
        """Ends every call in progress, on all ranks; all further calls fail. Any thread may call
        it, at any time."""
        self._give_up(Failure.GAVE_UP, self.rank)

    def stats(self) -> list[CallStats]:
        """A row for each range of sizes of which this rank has started calls, without their times;
        none after closing. A call in a graph counts once."""
        core, rows = self._core, []
        if core is None or os.getpid() != self._process:
            return []
        for (kind, in_place, root), ranges in self._table.rows.items():
            tallies = core.calls.tallies(kind_number(kind), in_place, root)
            for (sizes, ready), (calls, size_bytes) in zip(ranges, tallies, strict=True):
                if calls:
                    own = sizes.begin_bytes, sizes.end_bytes, calls, size_bytes
                    origin = "user" if ready.origin == "registered" else "default"
                    protocol = ready.plan.protocol.value
                    plan = kind, ready.plan.name, origin, protocol, in_place
                    rows.append(CallStats(self.name, self.rank, *plan, *own))
        return rows

    def error(self) -> SleyError | None:
        """The error of the first call that has failed; None as long as none has. Doesn't wait."""
        core = self._core
        if core is not None and not self._failure:
            with suppress(SleyError), self._noting():
                core.links.check()
        self._is_told = bool(self._failure)
        return SleyError(list(self._failure)) if self._failure else None

    def check(self) -> None:
        """Raises the error of the first call that has failed."""
        error = self.error()
        if error is not None:
            raise error

    def synchronize(self) -> None:
        """Waits until this rank's calls are done, on whatever streams. Errors: as of `check`."""
        core = self._open_core()
        with self._noting():
            core.links.wait()

    def split(self, color: int | None, key: int = 0) -> DeviceCommunicator | None:
        """Divides the ranks: a communicator of those that give the same `color`, a number from 0
        on, by their `key` and then their rank; None for ranks whose color is None. All ranks call
        it. The new one has the same device, settings and kernels, and lives on its own. Errors: as
        when one is made."""
        with self._lock, self._noting():
            core = self._open_core()
            with core.links.ranks.telling():
                if color is not None:
                    whole(color, "color", 0)
                whole(key, "key", -_MOST_KEY)
            own = json.dumps([color, key]).encode()
            # An abort ends it, other than an exchange of the rendezvous.
            said = core.links.ranks.gather({self.rank: own})
            self._splits += 1  # only now: a refusal leaves all ranks with the same number
            name = f"{self.name}/{self._splits}.{color}"
        if color is None:
            return None
        given = enumerate(map(json.loads, said))
        members = sorted((key, rank) for rank, (other, key) in given if other == color)
        return DeviceCommunicator(
            self._store,
            [rank for _, rank in members].index(self.rank),
            len(members),
            self.device,
            name=name,
            settings=self.settings,
            kernels=self.kernels,
            types=[each.name for each in self._opening.types],
            ops=self._opening.ops,
            topology=self._topology,
            environ=self._environ,
        )

    def empty(self, dtype: str, elements: int) -> Any:
        """A new array on this rank's device, which the other ranks can read in place: with the
        direct protocol they do so without a copy, at any place in it. All ranks call it, with the
        same arguments. It lasts until the communicator is closed. Errors: K507, R504, R514."""
        with self._lock, self._noting():
            links = self._open_core().links
            links.settle()
            return links.memory.empty(dtype, elements)[self.rank]

    def register(self, array: Any) -> Registration:
        """Lets the other ranks read the caller's memory in place: calls then send any part of it
        without a copy, with the direct protocol. All ranks call it, each with an array of any size,
        and it waits until no call is under way; in a capture of calls it is refused.

        Peers map the whole allocation behind an array, once for all registrations in it, until the
        last of these ends, by `deregister` or `close`: only then may it be freed. Messages from
        memory that can't be mapped go through slots as before, and the registration says so: that
        of a pool (cudaMallocAsync), an array in several pieces of an expandable segment of
        PyTorch's, and on threads what other processes have. Errors: K504, K507, K514, K518, K519,
        R504.
        """
        with self._lock, self._noting():
            number, readers = self._open_core().links.register({self.rank: array})
        return Registration(number, tuple(readers[self.rank]))

    def deregister(self, registration: Registration) -> None:
        """Ends a registration. All ranks call it, for the same one. Calls that were captured stay
        right: they send the memory through slots. Errors: K514, K518; R503 for different ones."""
        number = registration.number if isinstance(registration, Registration) else 0
        with self._lock, self._noting():
            self._open_core().links.deregister(number)

    def all_reduce(
        self,
        data: Any,
        out: Any = None,
        op: ReduceOp | str = ReduceOp.SUM,
        *,
        dtype: str | None = None,
        factor: Any = None,
        stream: Any = None,
    ) -> None:
        """Replaces `data`, or fills `out`, with the reduction of all ranks' data. factor: with SUM,
        what this rank's data is multiplied by, as for `Executor.__call__`."""
        out = data if out is None else out
        self._call("all_reduce", data, out, op, 0, dtype, stream, factor)

    def all_gather(
        self, data: Any, out: Any, *, dtype: str | None = None, stream: Any = None
    ) -> None:
        """Puts all ranks' data into `out`, by rank; `data` may be the rank's part of `out`."""
        self._call("all_gather", data, out, ReduceOp.SUM, 0, dtype, stream)

    def reduce_scatter(
        self,
        data: Any,
        out: Any,
        op: ReduceOp | str = ReduceOp.SUM,
        *,
        dtype: str | None = None,
        factor: Any = None,
        stream: Any = None,
    ) -> None:
        """Puts the rank's part of the reduction of all ranks' data into `out`, which may be that
        part of `data`. factor: as in `all_reduce`."""
        self._call("reduce_scatter", data, out, op, 0, dtype, stream, factor)

    def all_to_all(
        self, data: Any, out: Any, *, dtype: str | None = None, stream: Any = None
    ) -> None:
        """Sends part r of `data` to rank r, and puts what rank r sends into part r of `out`, which
        may be `data`."""
        self._call("all_to_all", data, out, ReduceOp.SUM, 0, dtype, stream)

    def broadcast(
        self, data: Any, root: int = 0, *, dtype: str | None = None, stream: Any = None
    ) -> None:
        """Replaces `data` with the root's."""
        self._call("broadcast", data, data, ReduceOp.SUM, root, dtype, stream)

    def reduce(
        self,
        data: Any,
        op: ReduceOp | str = ReduceOp.SUM,
        root: int = 0,
        *,
        dtype: str | None = None,
        factor: Any = None,
        stream: Any = None,
    ) -> None:
        """Replaces the root's `data` with the reduction of all ranks' data; that of other ranks may
        be overwritten. factor: as in `all_reduce`."""
        self._call("reduce", data, data, op, root, dtype, stream, factor)

    def gather(
        self, data: Any, out: Any, root: int = 0, *, dtype: str | None = None, stream: Any = None
    ) -> None:
        """Puts all ranks' data into the root's `out`, by rank; other ranks' `out` is ignored."""
        out = root_array("gather", out) if self.rank == check_root(root, self.ranks) else None
        self._call("gather", data, out, ReduceOp.SUM, root, dtype, stream)

    def scatter(
        self, data: Any, out: Any, root: int = 0, *, dtype: str | None = None, stream: Any = None
    ) -> None:
        """Puts part r of the root's `data` into rank r's `out`; other ranks' `data` is ignored."""
        data = root_array("scatter", data) if self.rank == check_root(root, self.ranks) else None
        self._call("scatter", data, out, ReduceOp.SUM, root, dtype, stream)

    def barrier(self, *, stream: Any = None) -> None:
        """Ends when all ranks have called it; on a stream, after what each has put there before."""
        core = self._open_core()
        element = next(iter(self._opening.types), DATA_TYPES["int32"])
        word = core.word.address, element.size_bytes
        call = Call(BARRIER, *word, *word, 1, element)
        self._start(core, call, stream)

    def _call(
        self,
        kind: str,
        data: Any,
        out: Any,
        op: ReduceOp | str,
        root: int,
        dtype: str | None,
        stream: Any,
        factor: Any = None,
    ) -> None:
        is_usual = stream is not None and dtype is None and factor is None
        if is_usual and isinstance(op, ReduceOp) and type(root) is int and 0 <= root < self.ranks:
            own, address = ready_kind(kind), self.device.stream_address(stream)
            keeps = self.device.platform == "cpu"
            with self._lock:
                calls = self._open_core().calls
                outcome = calls.start_usual(own, data, out, op, root, address, keeps)
            if outcome == native.StartOutcome.STARTED:
                return
        # What follows says why a call can't be started, and starts those that need a closer look.
        core = self._open_core()
        with self._noting():
            check_order(kind, out, op)
            root = check_root(root, self.ranks)
            if dtype is not None:
                data_type(dtype)
            source = None if data is None else self.device.view(data, what=f"data of {kind}")
            target = source
            if out is not data:
                target = None if out is None else self.device.view(out, what=f"out of {kind}")
            if target is not None:
                check_writable(kind, target.writable)
            given = [
                None if view is None else (view.dtype, view.elements) for view in (source, target)
            ]
            element, count = _shape(kind, self.ranks, self.rank == root, *given, dtype)
            if not count:
                return  # as on all ranks
            item = element.size_bytes
            spans = [(v.address, v.elements * item) if v else (0, 0) for v in (source, target)]
            if any(start % item for start, _ in spans):
                expected = f"arrays for {kind} that are aligned to their elements"
                raise N627.error(expected=expected, found=f"elements of {item} bytes that aren't")
            call = Call(kind, *spans[0], *spans[1], count, element, reduction(op), root)
            self._start(core, call, stream, factor, (data, out))

    def _start(
        self,
        core: DeviceCore,
        call: Call,
        stream: Any,
        factor: Any = None,
        owners: tuple[object, ...] = (),
    ) -> None:
        """Starts a call, and waits for its end if it has no stream."""
        device, links = self.device, core.links
        in_place = is_in_place(call, self.rank)
        # Without plans in place the others are right there, too.
        in_place &= (call.kind, True, call.root) in self._table.rows
        if factor is not None and self.ranks == 1:  # in place the plan of one rank does nothing
            call, in_place = replace(call, kind="all_reduce"), False
        item = call.dtype.size_bytes
        size_bytes = size_of(call.kind, self.ranks, call.count, item)
        which = kind_number(call.kind), in_place, call.root
        factors: dict[str, Any] = {}
        if factor is not None:
            plan = links.plans[core.calls.plan_of(*which, size_bytes)]
            factors = check_factor(plan, {self.rank: device}, factor, call.dtype, call.op)
        if stream is None:  # the arrays were made on the default stream
            device.synchronize(device.default_stream())
        address = device.stream_address(core.stream if stream is None else stream)
        program = call.dtype.number, int(call.op)
        memory = memory_of(call, in_place)
        keeps = (*owners, factor) if device.platform == "cpu" else None
        with self._lock:
            self._open_core()
            while True:
                outcome = core.calls.start(
                    *which,
                    *program,
                    size_bytes,
                    item,
                    call.count,
                    *memory,
                    address,
                    keeps=keeps,
                    **factors,
                )
                if outcome in (native.StartOutcome.STARTED, native.StartOutcome.GIVEN_UP):
                    break
                number = core.calls.plan_of(*which, size_bytes)
                with self._noting():
                    self._provide(core, outcome, number, call, stream, scales=bool(factors))
        if outcome == native.StartOutcome.GIVEN_UP:
            self.check()
        if stream is None:
            device.synchronize(core.stream)
            self.check()

    def _provide(
        self, core: DeviceCore, outcome: int, number: int, call: Call, stream: Any, *, scales: bool
    ) -> None:
        """Gets what a call lacks. All ranks come here in the same call: where they are threads of a
        process, the driver may wait for the kernels of all of them when it loads or allocates."""
        links, element = core.links, call.dtype
        check_capture(self.device, [stream], call.op, element)
        links.settle()
        if outcome == native.StartOutcome.LACKS_SCRATCH:
            most = max(links.tables[number].scratch_bytes(element.size_bytes, call.count))
            links.memory.reserve([most] * self.ranks)
        else:
            with links.ranks.telling():
                core.load(number, element, call.op, scales=scales)
            links.ranks.meet()  # a kernel that starts earlier may wait for a rank that loads

    def _watched(self, links: LinkSet) -> None:
        """From now on a rank waits for others at its links, which end if a process does."""
        self._links = links
        with OPEN_LOCK:
            OPEN.add(self)
        _watch()
        # At exit, before what the devices do there: they wait for calls.
        atexit.unregister(_leave_all)
        atexit.register(_leave_all)

    def _open_core(self) -> DeviceCore:
        core = self._core
        if core is None or os.getpid() != self._process:
            raise closed(self.name, self.rank, is_inherited=core is not None)
        if self._failure:
            self._is_told = True
            raise failed_before(self._place, self._failure[0])
        return core

    @property
    def _place(self) -> Place:
        return Place(detail=f"{self.name}, rank {self.rank}")

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Keeps the error of the first call that has failed, which others raise, too. Errors
        get this rank as their place."""
        try:
            yield
        except SleyError as error:
            # R508: another thread was told before, or closes the communicator. K514: a meeting.
            links = self._links if error.code in (K508.code, K514.code, R508.code) else None
            if links is not None and error.code == K514.code:
                left = next(filter(links.native.has_left, range(self.ranks)), None)
                if left is None:
                    links = None
                else:
                    self._give_up(Failure.LEFT, left)
            # Of a plan's places the first is enough: the text names all blocks.
            found = tuple(
                d
                if d.places and str(self._place) in d.places[0].detail
                else replace(d, places=(self._place, *d.places[:1]))
                for d in (links and links.failed) or error.diagnostics
            )
            if links is not None:
                self._failure = self._failure or self._why(links) or found
                self._is_told = True
                raise SleyError(list(self._failure)) from None
            raise SleyError(found) from error.__cause__

    def _give_up(self, failure: Failure, culprit: int) -> None:
        links = self._links
        if links is not None and os.getpid() == self._process:
            links.native.give_up(failure << _RANK_BITS | culprit)
            self._failure = self._failure or self._why(links)

    def _why(self, links: LinkSet) -> tuple[Diagnostic, ...]:
        """The error of calls that a rank gave up; empty if none said so."""
        failure, culprit = divmod(links.native.why, 1 << _RANK_BITS)
        if not failure:
            return ()
        return caused(Failure(failure), self.rank, culprit, self._place).diagnostics

    def _close(self, *, meet: bool) -> None:
        """meet: whether to wait for the other ranks; otherwise ends calls that are under way."""
        with self._lock:
            # A call under way keeps nothing of the core's: this does until its end.
            (core, self._core), is_told = (self._core, None), self._is_told
            if core is None or os.getpid() != self._process:
                return
            links = core.links
            try:
                if not meet and not links.order.is_idle():
                    self._give_up(Failure.LEFT, self.rank)
                links.order.wait()
                with suppress(SleyError), self._noting():
                    links.check()
                failure = self._failure
                links.close(meet=meet)
            finally:
                self._links = None
        is_own = links.native.why and links.native.why % (1 << _RANK_BITS) == self.rank
        if meet and failure and not is_told and not is_own:
            raise SleyError(list(failure))


@lru_cache(4096)
def _shape(
    kind: str,
    ranks: int,
    at_root: bool,
    source: tuple[str, int] | None,
    target: tuple[str, int] | None,
    name: str | None,
) -> tuple[DataType, int]:
    """The type as which a call's kernels take the elements, and the number of those of a block.
    source, target: type and number of elements of the rank's arrays. Errors: N627, R504."""
    given = {"data": source, "out": target}
    types = {f"{word} of {kind}": own[0] for word, own in given.items() if own}
    elements = [own[1] if own else 0 for own in given.values()]
    if name is None and not CALLS[kind].reduces and len(set(types.values())) == 1:
        given_type = next(iter(types.values()))  # or NumPy's for the bits of some
        element = DATA_TYPES["int16" if given_type == "uint16" else given_type].moved
    else:
        found = arguments.type_of(types, name, N627)
        element = found if CALLS[kind].reduces else found.moved
    return element, count_of(kind, ranks, *elements, at_root=at_root)


def _end_calls(missed: set[Process]) -> set[Process]:
    """Ends the calls of ranks that wait for one that has left, or for a process that has ended;
    returns these processes. missed: those of the look before, since a call that needs nothing more
    of one may end."""
    of_ranks = [
        (comm, rank, one.process)
        for comm in opened(DeviceCommunicator)
        for rank, one in enumerate(comm._opening.rendezvous.descriptions)
    ]
    gone = {process for process in {of for _, _, of in of_ranks} if process.is_gone()}
    for comm, rank, process in of_ranks:
        links = comm._links
        if links is None or rank == comm.rank:
            continue
        lacks = links.native.lacks(rank)
        if lacks or (lacks is None and process in missed & gone):
            comm._give_up(Failure.LEFT if links.native.has_left(rank) else Failure.DIED, rank)
    return gone


@cache
def _watch() -> None:
    """Starts the thread that ends the calls of ranks that wait for a process that has ended."""

    def look() -> None:
        missed: set[Process] = set()
        while True:
            time.sleep(_LOOK_S)
            missed = _end_calls(missed)

    with suppress(RuntimeError):  # no further thread: the calls end by their time-out
        threading.Thread(target=look, name="sley-watch", daemon=True).start()


# A forked child hasn't the thread.
os.register_at_fork(after_in_child=_watch.cache_clear)


def _leave_all() -> None:
    for comm in opened(DeviceCommunicator):
        links = comm._links
        if links is not None and comm._process == os.getpid():
            if not links.order.is_idle():
                comm._give_up(Failure.LEFT, comm.rank)
            links.native.leave()
