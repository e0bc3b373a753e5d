"""MPI as a store: messages of a communicator of mpi4py."""

from __future__ import annotations

import time
from typing import Any

from sley.errors.communicator import N605
from sley.rendezvous.stores import FIRST_PAUSE_S, LONGEST_PAUSE_S


class MpiStore:
    """A Store over an mpi4py communicator, of which it makes a duplicate: all ranks make their
    MpiStore together. A store serves one communicator of sley at a time; after a start that failed
    make a new one, since messages of the old one may still be under way.

    comm: an intracommunicator; its ranks are those of sley's communicator. mpi4py itself is not
        imported here.
    """

    def __init__(self, comm: Any) -> None:
        if not callable(getattr(comm, "improbe", None)):
            raise N605.error(expected="a communicator of mpi4py", found=f"{type(comm).__name__}")
        self._comm = comm.Dup()
        self._rank: int = comm.Get_rank()
        self._ranks: int = comm.Get_size()
        self._sent: list[Any] = []

    def put(self, topic: str, src: int, dst: int, value: bytes) -> bytes:
        if dst == self._rank:
            return value
        self._sent.append(self._call(self._comm.isend, (topic, value), dest=dst))
        return value

    def get(self, topic: str, src: int, dst: int, timeout_s: float) -> bytes | None:
        if src == self._rank:
            return None
        end, pause_s = time.monotonic() + timeout_s, FIRST_PAUSE_S
        while (value := self._newest(topic, src)) is None:
            left_s = end - time.monotonic()
            if left_s <= 0:
                return None
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return value

    def delete(self, topic: str, src: int, dst: int) -> None:
        """Nothing: who reads a message of MPI takes it."""

    def has(self, topic: str, src: int, dst: int) -> bool:
        """For messages of this rank, whether any is still under way, which asking moves on."""
        if src != self._rank:
            return True
        # mpi4py's requests hold the messages' memory, so they are kept until then.
        self._sent = [request for request in self._sent if not self._call(request.Test)]
        return bool(self._sent)

    def _newest(self, topic: str, src: int) -> bytes | None:
        """The last of the messages that are there; earlier ones are of starts that failed."""
        value: bytes | None = None
        while (message := self._call(self._comm.improbe, source=src)) is not None:
            about, content = self._call(message.recv)
            value = content if about == topic else value
        return value

    def _call(self, function: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except RuntimeError as error:  # mpi4py's Exception is one
            raise N605.error(
                expected=f"MPI to pass messages among its {self._ranks} ranks", found=str(error)
            ) from error
