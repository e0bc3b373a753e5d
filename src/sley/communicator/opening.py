"""Opening: the engine's objects of a communicator, at its start and when its network changes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sley.communicator.failures import Failure, Failures
from sley.communicator.loading import Loader
from sley.communicator.memory import Memory, check_slots
from sley.communicator.messages import Messages
from sley.communicator.network import connect
from sley.communicator.ready import ReadyCalls, log_problems, who_tells
from sley.communicator.rendezvous.bootstrap import Rendezvous, bootstrap
from sley.communicator.rendezvous.hosts import Hosts
from sley.communicator.rendezvous.stores import MpiStore, Store
from sley.communicator.rendezvous.survey import Survey, survey
from sley.communicator.selection.plans import Plans
from sley.communicator.selection.ready_plans import Capacity
from sley.communicator.settings import Copies, Settings
from sley.communicator.stats import logger
from sley.communicator.tuner import Tuner
from sley.communicator.turns import Meeting, Standing, Why, may_go_on
from sley.engine import native
from sley.errors import SleyError, telling
from sley.errors.calls import N628
from sley.errors.communicator import N608
from sley.errors.runtime import R514

_SETTLE_S = 2.0
"""How long closing may wait until other hosts have received what was sent."""

_CONNECT_S, _MOST_TRIES = 5.0, 3
"""How long connecting may take when a communicator opens again, and how often its ranks try."""

_TELL_S = 0.2
"""How long a rank that was cut off tells the others that it leaves: some don't hear it."""


@dataclass(frozen=True)
class Core:
    """The engine's objects of an open communicator, and its plans. A call keeps them until it
    returns, even if another thread closes the communicator meanwhile. closing: closes them."""

    fabric: native.Fabric
    transport: native.NetworkTransport | None
    calls: native.Calls
    messages: Messages
    failures: Failures
    plans: Plans
    loader: Loader
    ready: ReadyCalls
    closing: contextlib.ExitStack

    @property
    def has_failed(self) -> bool:
        """Whether all calls fail, as this rank knows."""
        return self.fabric.failure[0] != Failure.NONE

    @property
    def reason(self) -> Why | None:
        """Why the ranks meet again, after a failure that the network may have caused; None after
        another one, and without one."""
        if self.transport is None:
            return None
        kind = self.fabric.failure[0]
        if kind == Failure.CUT:
            return Why.CUT
        return Why.STALLED if kind in (Failure.STALLED, Failure.STILL) else None

    def leave(self) -> None:
        """Closes it; closing twice does nothing."""
        self.ready.close()
        if self.transport is not None and self.has_failed:
            self.transport.close(_TELL_S)
        self.closing.close()


class Opening:
    """Opens the communicator `name` of a rank, and opens it again where its network has changed.

    hosts, plans: after the first time; they stay the same. settings: of later times, too.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        ranks: int,
        name: str,
        settings: Settings,
        environ: Mapping[str, str] | None,
    ) -> None:
        if settings.replan and isinstance(store, MpiStore):
            raise R514.error(
                expected="with replan=True a store that lasts and that any thread may use",
                found=f"{store!r}",
                remedy="Give a FolderStore or a TorchStore.",
            )
        self._store: Store | None = store
        self._rank, self._ranks, self._name = rank, ranks, name
        self.settings, self._environ = settings, environ
        self._starts = 0

    def open(self) -> Core:
        """Opens it. Errors: N60x, N61x, N62x, R507, those of `_plans`."""
        tuner = Tuner(self.settings)
        with self._memory() as memory:
            files = {"files": "1"} if self.settings.plan_dir or self.settings.tuner else {}
            rendezvous = self._meet(memory, {**tuner.words, **files})
            self.hosts: Hosts = rendezvous.hosts
            check_slots(self.settings, self.hosts)
            with telling(rendezvous.refuse):
                self.plans = _plans(rendezvous, tuner, self.settings, self._name)
            if any("files" in one.offered for one in rendezvous.descriptions):
                self._tell_problems(rendezvous)
            core = self._core(rendezvous, memory, self.settings.patience_s)
            firsts = [rendezvous.descriptions[own[0]] for own in self.hosts.members]
            self._nics = tuple(tuple(nic.name for nic in first.nics) for first in firsts)
            self._used = self._nics
            if not self.settings.replan:
                rendezvous.drop_store()
                self._store = None
        return core

    def _tell_problems(self, rendezvous: Rendezvous) -> None:
        """Logs the problems of the plans, on the first of the ranks that have the same ones."""
        own = json.dumps([str(problem) for problem in self.plans.problems])
        who = who_tells([one.decode() for one in rendezvous.exchange(own.encode())], self._rank)
        if who:
            log_problems(self._name, who, self.plans.problems)

    def open_again(
        self, standing: Standing, leave: Callable[[], object], otherwise: SleyError
    ) -> tuple[Core, Meeting]:
        """Meets the other ranks, measures the network and opens the communicator on the interfaces
        that are left, with plans for their rates; the standings of all ranks. All ranks call it.

        leave: leaves what is open, when all ranks have come. Errors: `otherwise` on all ranks if
        they don't go on (`may_go_on`); N60x, N61x, N628, R507.
        """
        for tries in range(1, _MOST_TRIES + 1):
            made = self._try_again(standing, leave, otherwise, is_last=tries == _MOST_TRIES)
            if made is not None:
                break
        assert made is not None  # the last one raises its error
        return made

    def _try_again(
        self,
        standing: Standing,
        leave: Callable[[], object],
        otherwise: SleyError,
        *,
        is_last: bool,
    ) -> tuple[Core, Meeting] | None:
        """As `open_again`; None on all ranks if some can't connect, as where another interface has
        failed meanwhile. is_last: they end with N628 then."""
        with self._memory() as memory, contextlib.ExitStack() as opened:
            rendezvous = self._meet(memory, standing.words)
            standings = [Standing.of(one.offered) for one in rendezvous.descriptions]
            leave()
            rendezvous.renew(self.settings.patience_s)
            found = survey(rendezvous, self._nics)
            used = tuple(
                tuple(nics[host].name for nics in found.nics) for host in range(self.hosts.count)
            )
            if not may_go_on(standings, has_changed=used != self._used):
                raise otherwise
            host = self.hosts.host[self._rank]
            rendezvous.use([nics[host] for nics in found.nics])
            rendezvous.renew(self.settings.patience_s)
            self._replan(rendezvous, found)
            failed = b""
            try:
                core = self._core(rendezvous, memory, min(self.settings.patience_s / 2, _CONNECT_S))
                opened.callback(core.leave)
            except SleyError as error:
                if error.code not in (N608.code, N628.code) or is_last:
                    rendezvous.refuse(error)
                    raise
                failed = b"1"
            rendezvous.renew(self.settings.patience_s)
            # No rank makes calls, or leaves, before all have connected.
            if any(rendezvous.exchange(failed)):
                return None
            self._used = used
            opened.pop_all()
            return core, standings

    def drop_store(self) -> None:
        """Drops the store, which may end with this."""
        self._store = None

    def _memory(self) -> contextlib.closing[Memory]:
        return contextlib.closing(Memory(self._rank, self._ranks, self.settings))

    def _meet(self, memory: Memory, offered: Mapping[str, str]) -> Rendezvous:
        assert self._store is not None
        self._starts += 1
        again = f", start {self._starts}" if self._starts > 1 else ""
        return bootstrap(
            self._store,
            self._rank,
            self._ranks,
            name=self._name + again,
            timeout_s=self.settings.patience_s,
            segments=memory.make,
            attach=memory.attach,
            agreed=self.settings.agreement(),
            offered=offered,
            environ=self._environ,
        )

    def _replan(self, rendezvous: Rendezvous, found: Survey) -> None:
        """Gives the plans the rows for a network, which rank 0 finds."""
        from sley.communicator.selection.replanned import faster_trees, rows_of  # late: compiler

        made: dict[str, Any] = {}
        if self._rank == 0 and not self.settings.same_bits:
            s = self.settings
            with telling(rendezvous.refuse):
                capacity = Capacity(self._ranks, s.slots, s.channels)
                made = faster_trees(self.hosts, found, capacity)
        made = json.loads(rendezvous.exchange(json.dumps(made).encode())[0])
        rows = rows_of(made, self.hosts)
        self.plans.replan(rows)
        if self._rank == 0:
            for line in _lines(found, rows):
                logger.warning("%s: %s", self._name, line)

    def _core(self, rendezvous: Rendezvous, memory: Memory, within_s: float) -> Core:
        """within_s: how long connecting may take. Errors: N608, N61x, N628, N629, R507."""
        name, settings, plans, hosts = self._name, self.settings, self.plans, self.hosts
        with contextlib.ExitStack() as opened:
            fabric = memory.fabric(rendezvous)
            transport = connect(
                fabric,
                rendezvous,
                settings.network,
                settings.patience_s,
                within_s=within_s,
                replans=settings.replan,
            )
            if transport is not None:
                opened.callback(transport.close, _SETTLE_S)
            failures = Failures(fabric, self._rank, name)
            messages = Messages(fabric, settings, failures)
            opened.callback(messages.close)
            calls = native.Calls(fabric)
            opened.callback(calls.close)
            opened.callback(fabric.close)
            opened.callback(fabric.settle, _SETTLE_S)
            loader = Loader(fabric, self._rank, hosts, settings, plans, name)
            ready = ReadyCalls(
                plans,
                loader,
                calls,
                hosts,
                rank=self._rank,
                name=name,
                timeout_s=settings.patience_s,
                are_alone=not settings.replan,
                told=len(plans.problems),
            )
            if settings.copies is Copies.ATTACHED and not fabric.is_attached:
                why = "not all ranks let the others read their memory"
                logger.warning("%s: copies are CACHED: %s", name, why)
            closing = opened.pop_all()
        return Core(fabric, transport, calls, messages, failures, plans, loader, ready, closing)


def _lines(found: Survey, rows: Mapping[str, Sequence[Any]]) -> list[str]:
    """The network and the plans that it changes, in words."""
    lines = []
    for column, nics in enumerate(found.nics):
        rates = [
            f"{nic.name} of host {host} {found.sent_GBps[host, column]:.3g} GB/s out, "
            f"{found.received_GBps[host, column]:.3g} in"
            for host, nic in enumerate(nics)
        ]
        lines.append(f"between hosts over {'; '.join(rates)}")
    lines += [f"{kind}, {row}: {row.note}" for kind, of in rows.items() for row in of]
    return lines


def _plans(rendezvous: Rendezvous, tuner: Tuner, settings: Settings, name: str) -> Plans:
    """The plans of a communicator, with the policy on which all ranks have agreed. Errors: those of
    the files in a strict folder of plans."""
    hosts = rendezvous.hosts
    offered = [description.offered for description in rendezvous.descriptions]
    policy, problems = tuner.agree(offered, hosts)
    if policy is not None and rendezvous.rank == 0:
        logger.info("%s: the policy %s, for %s", name, settings.tuner, policy.machine)
    plans = Plans(
        hosts,
        slots=settings.slots,
        channels=settings.channels,
        plan_dir=settings.plan_dir,
        cache=settings.use_cache,
        policy=policy,
        problems=problems,
        same_bits=settings.same_bits,
    )
    if settings.plan_dir_strict and plans.folder_problems:
        raise SleyError(list(plans.folder_problems))
    return plans
