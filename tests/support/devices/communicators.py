"""Communicators on devices, of ranks that are threads of this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sley.communicator import DeviceCommunicator, LocalStore
from sley.engine.devices import Device, Engine, Settings
from sley.errors import SleyError
from support.processes.process_ranks import together

TIMEOUT_S = 60.0
"""Of calls that end: on a busy machine, too."""


def opened(
    devices: Sequence[Device], *, store: Any = None, **options: Any
) -> list[DeviceCommunicator]:
    """The communicator of each rank, on its device."""
    store, made = store or LocalStore(), dict[int, DeviceCommunicator]()
    options = {"kernels": Settings(Engine.INTERPRETED, timeout_s=TIMEOUT_S)} | options

    def make(rank: int) -> None:
        made[rank] = DeviceCommunicator(store, rank, len(devices), devices[rank], **options)

    together([lambda rank=rank: make(rank) for rank in range(len(devices))])
    return [made[rank] for rank in range(len(devices))]


def on_all(comms: Sequence[DeviceCommunicator], call: Callable[[DeviceCommunicator], Any]) -> None:
    """Makes a call on all ranks, in threads; raises the first error."""
    together([lambda comm=comm: call(comm) for comm in comms])


def errors(
    comms: Sequence[DeviceCommunicator], call: Callable[[DeviceCommunicator], Any]
) -> list[SleyError | None]:
    """The error of each rank's call, in threads."""
    found: list[SleyError | None] = [None] * len(comms)

    def attempt(number: int) -> None:
        try:
            call(comms[number])
        except SleyError as error:
            found[number] = error

    together([lambda number=number: attempt(number) for number in range(len(comms))])
    return found


def codes(
    comms: Sequence[DeviceCommunicator], call: Callable[[DeviceCommunicator], Any]
) -> list[str]:
    """The code of the error of each rank's call, in threads; empty for none."""
    return [error.code if error else "" for error in errors(comms, call)]
