"""Opening: the engine's objects of a communicator, on a finished rendezvous."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from sley.communicator.failures import Failures
from sley.communicator.loading import Loader
from sley.communicator.memory import Memory, check_slots
from sley.communicator.messages import Messages
from sley.communicator.network import connect
from sley.communicator.ready import ReadyCalls
from sley.communicator.rendezvous.bootstrap import Rendezvous
from sley.communicator.selection.plans import Plans
from sley.communicator.settings import Copies, Settings
from sley.communicator.stats import logger
from sley.communicator.tuner import Tuner
from sley.engine import native
from sley.errors import SleyError, telling

_SETTLE_S = 2.0
"""How long closing may wait until other hosts have received what was sent."""


@dataclass(frozen=True)
class Core:
    """The engine's objects of an open communicator, and its plans. A call keeps them until it
    returns, even if another thread closes the communicator meanwhile."""

    fabric: native.Fabric
    calls: native.Calls
    messages: Messages
    failures: Failures
    plans: Plans
    loader: Loader
    ready: ReadyCalls


def open_core(
    rendezvous: Rendezvous,
    memory: Memory,
    tuner: Tuner,
    settings: Settings,
    name: str,
    opened: contextlib.ExitStack,
) -> Core:
    """The core of the communicator `name`. `opened` closes it. Errors: N61x, R507, those of
    `_plans`."""
    rank, hosts = rendezvous.rank, rendezvous.hosts
    check_slots(settings, hosts)
    with telling(rendezvous.refuse):
        plans = _plans(rendezvous, tuner, settings, name)
    fabric = memory.fabric(rendezvous)
    transport = connect(fabric, rendezvous, settings.network, settings.patience_s)
    if transport is not None:
        opened.callback(transport.close, _SETTLE_S)
    failures = Failures(fabric, rank, name)
    messages = Messages(fabric, settings, failures)
    opened.callback(messages.close)
    calls = native.Calls(fabric)
    opened.callback(calls.close)
    opened.callback(fabric.close)
    opened.callback(fabric.settle, _SETTLE_S)
    loader = Loader(fabric, rank, hosts, settings, plans, name)
    ready = ReadyCalls(
        plans, loader, calls, hosts, rank=rank, name=name, timeout_s=settings.patience_s
    )
    if settings.copies is Copies.ATTACHED and not fabric.is_attached:
        why = "not all ranks let the others read their memory"
        logger.warning("%s: copies are CACHED: %s", name, why)
    ready.log_problems()
    return Core(fabric, calls, messages, failures, plans, loader, ready)


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
