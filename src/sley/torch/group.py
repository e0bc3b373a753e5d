"""Group: the process group "sley", a communicator for CPU tensors with other backends."""

from __future__ import annotations

import inspect
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from types import FunctionType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
from torch.distributed import distributed_c10d as c10d
from torch.distributed.constants import default_pg_timeout

from sley.communicator import Settings, TorchStore
from sley.communicator.endpoint import Endpoint
from sley.communicator.selection.plans import Plans
from sley.errors.calls import N627
from sley.errors.selection import N658
from sley.errors.torch import B903
from sley.ir.words import is_integer
from sley.torch import flight_recorder, nccl
from sley.torch.calls import CallRunner
from sley.torch.coalesced import Coalesced
from sley.torch.collectives import Collectives
from sley.torch.fallback import Fallback, serve_batches
from sley.torch.forms import COALESCED, FORMS
from sley.torch.memory import empty
from sley.torch.messages import Message, Messages
from sley.torch.monitored import MonitoredBarrier
from sley.torch.operators import add_group, remove_group
from sley.torch.ready import MESSAGES, ready_methods
from sley.torch.work import Finished, Outputs, Pending, Together

MAKE_GROUP = "_new_process_group_helper"
"""PyTorch's function that makes every group of `init_process_group` and `new_group`."""
_LEAVE_S = 2.0
"""How long ranks wait in `shutdown` for the end of the store that rank 0 serves."""


class ProcessGroupSley(dist.ProcessGroup):
    """The ranks of one communicator; `init_process_group("sley")` and `new_group` make it.

    It replaces PyTorch's own group object, so calls of `torch.distributed` on CPU tensors reach it
    directly. Other backends run what the communicator doesn't support.

    store: the ranks find one another over it. timeout: of every call. settings: of the
    communicator.
    """

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        ranks: int,
        *,
        name: str,
        timeout: timedelta,
        settings: Settings | None = None,
    ) -> None:
        settings = replace(
            settings or Settings.from_environment(), timeout_s=timeout.total_seconds()
        )
        endpoint = Endpoint(TorchStore(store), rank, ranks, name=f"group {name}", settings=settings)
        super().__init__(rank, ranks)
        self._endpoint = endpoint
        recorder = flight_recorder.recorder()
        self._runner = CallRunner(endpoint, None if recorder is None else recorder.add(self))
        self._ready = endpoint.ready
        self._fallback = Fallback(self)
        self._take_methods()
        self._store = store
        self._monitored = MonitoredBarrier(store, rank, ranks)
        self.timeout = timeout
        self._settings = settings
        self._name = name
        self._description = ""
        self._splits: Counter[str] = Counter()

    def _take_methods(self) -> None:
        """Makes methods of its members the group's own, so that calls reach them directly. Some
        have several names, for different releases of PyTorch."""
        c = Collectives(self._runner, self._fallback)
        m = Messages(self._runner, self._fallback)
        ready = ready_methods(c, m, self._runner)
        methods = {form: ready.get(form.methods[0]) or c.method(form) for form in FORMS}
        several = Coalesced(self._runner, methods, self._fallback)
        coalesced = {form: partial(several.call, form) for form in COALESCED}
        for form, method in (methods | coalesced).items():
            for name in form.methods:
                setattr(self, name, method)
        for name, *_ in MESSAGES:
            setattr(self, name, ready.get(name) or getattr(m, name))

    def _start_coalescing(self, device: torch.device) -> None:
        if device.type == "cpu":
            self._runner.start_coalescing()
        else:
            self._fallback.on(device)._start_coalescing(device)

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        if device.type == "cpu":
            return self._runner.end_coalescing()
        return self._fallback.on(device)._end_coalescing(device)

    # Properties that PyTorch reads, also from C++, by these names.

    def rank(self) -> int:
        return self._endpoint.rank

    def size(self) -> int:
        return self._endpoint.ranks

    def getBackendName(self) -> str:  # noqa: N802
        return "sley"

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        remove_group(self._name, self._ready)
        self._name = name
        add_group(name, self._runner)

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._description

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        self._description = description

    def get_group_store(self) -> dist.Store:
        return self._store

    @property
    def plans(self) -> Plans:
        """Chooses the plan for a call; user plans are registered with it."""
        return self._endpoint.plans

    def _set_sequence_number_for_group(self) -> None:
        """Does nothing: every group counts its collectives from 0."""

    def _get_sequence_number_for_group(self) -> int:
        return self._runner.sequence_number + self._ready.number

    # The group is its own backend for CPU tensors.

    supports_coalescing = False
    supports_splitting = False
    supports_shrinking = False
    supports_time_estimate = False

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(name) for name in self._fallback.names()]

    def _get_backend(self, device: torch.device) -> Any:
        return (
            self._fallback.on(device)._get_backend(device) if self._fallback.has(device) else self
        )

    get_backend = _get_backend

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        return device.type == "cpu"

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A tensor of `size` elements in memory that peers read in place (`sley.torch.empty`)."""
        return empty(size, dtype=dtype)

    @staticmethod
    def create_device(*args: Any, **kwargs: Any) -> Any:
        """gloo's device, as `dist.ProcessGroupGloo.create_device` makes it, for programs whose gloo
        groups sley replaces: sley itself uses none."""
        return dist.ProcessGroupGloo.create_device(*args, **kwargs)

    @staticmethod
    def create_default_device(*args: Any, **kwargs: Any) -> Any:
        """As `create_device`."""
        return dist.ProcessGroupGloo.create_default_device(*args, **kwargs)

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """A barrier whose error (B907) names the ranks that are late: the first, or all."""
        self._monitored.wait(timeout or self.timeout, wait_all_ranks)

    # Splitting and ending.

    def split_group(
        self,
        new_ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Sequence[torch.device] | None = None,
    ) -> ProcessGroupSley | None:
        """A new group of the ranks `new_ranks` of this one; None on other ranks.

        opts: settings of the new group, by default this one's; or options of the other devices'
        backend. If there is one, all ranks of this group must call the method. Errors: N627.
        """
        wrong = [rank for rank in new_ranks if not (is_integer(rank) and 0 <= rank < self.size())]
        if wrong or len(set(new_ranks)) < len(new_ranks):
            raise N627.error(
                expected=f"different ranks from 0 to {self.size() - 1} for a split",
                found=f"{list(new_ranks)}",
                remedy="Give ranks within the group that is split, each once.",
            )
        name = group_name or self._name_of_split(new_ranks)
        is_settings = isinstance(opts, Settings)
        options, timeout = None if is_settings else opts, timeout or self.timeout
        rest = self._fallback.split(new_ranks, timeout, options, name)
        if self._endpoint.rank not in new_ranks:
            return None
        group = ProcessGroupSley(
            dist.PrefixStore(f"{name}/", self._store),
            new_ranks.index(self._endpoint.rank),
            len(new_ranks),
            name=name,
            timeout=timeout,
            settings=opts if is_settings else self._settings,
        )
        group._description = group_desc or f"{self._description}:split"
        group._fallback.split_from(self._fallback, new_ranks, rest)
        return group

    def _name_of_split(self, ranks: Sequence[int]) -> str:
        """A name that no group had before: the groups of the same ranks are counted."""
        name = f"{self._name}:split:{'-'.join(map(str, ranks))}"
        self._splits[name] += 1
        return f"{name}:{self._splits[name]}"

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the timeout of all later calls."""
        self.timeout = timeout
        self._endpoint.set_timeout(timeout.total_seconds())
        self._fallback.set_timeout(timeout)

    def replan(self) -> None:
        """As `Communicator.replan`."""
        self._endpoint.replan()

    def shutdown(self) -> None:
        """Leaves the group; `destroy_process_group` calls it.

        If rank 0 serves the store of the default group, its server ends with the group on that
        rank, and the others wait for this, for a short time: otherwise a rank that makes the group
        again at once may find the server that is about to end.
        """
        remove_group(self._name, self._ready)
        self._fallback.close()
        waits = self._is_store_of_rank_0()
        self._drop_store()
        if waits:
            self._endpoint.wait_until_left(0, _LEAVE_S)
        self._endpoint.close()

    def _is_store_of_rank_0(self) -> bool:
        """Whether rank 0 serves the store, and this is another rank."""
        store = self._store
        while isinstance(store, dist.PrefixStore):
            store = store.underlying_store
        return (
            self is dist.GroupMember.WORLD
            and self._endpoint.rank != 0
            and isinstance(store, dist.TCPStore)
            and c10d._default_pg_init_method is not None  # otherwise the store is the program's
            and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"  # torchrun serves it
        )

    def _drop_store(self) -> None:
        """Drops the store, here and where PyTorch keeps it for this group."""
        self._store = dist.HashStore()
        self._monitored = MonitoredBarrier(self._store, self._endpoint.rank, self._endpoint.ranks)
        known = c10d._world.pg_map
        if self in known:
            known[self] = known[self][0], self._store

    def abort(self) -> None:
        """Ends the group at once; calls in progress fail, on the other ranks too."""
        self._endpoint.abort()
        self._fallback.close(abort=True)


def _skip_in_dynamo(*classes: type) -> None:
    """Makes torch.compile leave the methods of `classes`, and all that they call, to Python.

    Dynamo compiles every function that a compiled program calls; but in methods of a group it can't
    even read `self`, because it has a list of the members of ProcessGroup that may be read.
    `torch.compiler.disable` would import Dynamo, which takes seconds, and add a frame to every
    call. This sets the same marks, on the code itself.
    """
    skip = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    for cls in classes:
        for member in vars(cls).values():
            function = member.fget if isinstance(member, property) else member
            if isinstance(function, FunctionType):
                function._torchdynamo_disable = True  # type: ignore[attr-defined]
                set_code_exec_strategy(function.__code__, skip)


_skip_in_dynamo(
    ProcessGroupSley,
    Collectives,
    Coalesced,
    Messages,
    Message,
    CallRunner,
    Outputs,
    Finished,
    Pending,
    Together,
)


def register() -> None:
    """Registers the backend "sley", for CPU tensors; a second time changes nothing. Under `sley
    exec`, it serves CUDA tensors too.

    From 2.15 on, PyTorch calls this itself when a program uses the backend: it is the entry
    point "sley" of the group `torch.distributed.backends`.
    """
    if dist.is_available():
        dist.Backend.register_backend("sley", create, extended_api=True, devices=["cpu"])
        serve_batches(dist.P2POp)


def create(options: Any, given: Any) -> Any:
    """What serves the group that c10d's DistributedBackendOptions describe: a group of sley's; for
    CUDA tensors alone, one of PyTorch's own; or a backend for one that another backend also serves.

    given: the user's `pg_options`: Settings, or those of PyTorch's backend for NCCL. The settings'
        timeout, or that of the environment, applies if PyTorch's is its default.
    Errors: B903, B909, N658, and those of a new communicator.
    """
    settings = given if isinstance(given, Settings) else Settings.from_environment()
    timeout = options.timeout
    if settings.timeout_s is not None and timeout == default_pg_timeout:
        timeout = timedelta(seconds=settings.timeout_s)
    place = options.store, options.group_rank, options.group_size
    ranks, name = options.global_ranks_in_group, options.group_id
    backends, device = _asked()
    own = {kind for kind, backend in backends.items() if backend == "sley"}
    if unserved := own - {"cpu", "cuda"}:
        raise B903.error(expected="sley for cpu or cuda", found=f"for {', '.join(unserved)}")
    if "cuda" in own:
        nccl.check_in_place()
        variable = Settings.from_environment().same_bits
        if settings.same_bits and {settings.same_bits, variable} != {True}:
            raise N658.error(
                expected="SLEY_SAME_BITS=1 for CUDA tensors, which sley's library reads; it has "
                "no balanced tree",
                found=f"same_bits={settings.same_bits!r}, with {variable!r} in the environment",
                remedy="Set it before `sley exec`.",
            )
    if "cpu" not in own:
        more = {"ranks": ranks, "name": name, "timeout": timeout, "given": given}
        alone = len(backends) == 1
        return nccl.group(*place, device, **more) if alone else nccl.backend(*place, **more)
    group = ProcessGroupSley(*place, name=name, timeout=timeout, settings=settings)
    if "cuda" in own:
        group._fallback.serve_cuda(backends, ranks or range(options.group_size), given)
        group.bound_device_id = device
    return group


def _asked() -> tuple[dict[str, str], torch.device | None]:
    """The backend of each type of device of the group that PyTorch makes now, and the device to
    which it is bound. PyTorch tells a backend's function neither, but its caller knows. "sley"
    alone is for CUDA tensors too where sley's library is in place."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_name != MAKE_GROUP:
        frame = frame.f_back
    if frame is None:  # torchcomms
        return {"cpu": "sley"}, None
    asked = frame.f_locals
    backends = dict(asked["backend_config"].get_device_backend_map())
    if asked["backend"] == "sley" and nccl.is_in_place():
        backends["cuda"] = "sley"
    return backends, asked["device_id"]
