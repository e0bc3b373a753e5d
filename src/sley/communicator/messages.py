"""Messages from one rank to another."""

from __future__ import annotations

from typing import Any

from sley.communicator.failures import call_error
from sley.communicator.memory import stride
from sley.communicator.settings import Settings
from sley.communicator.work import DONE, Done, Explain, Work
from sley.errors import SleyError
from sley.runtime.native import native

ANY = -1
"""Any source."""

_FOR_EVER_S = 365 * 24 * 3600.0


class MessageWork(Work):
    """A message under way. The thread that waits for it moves it on."""

    __slots__ = ("_messages",)

    def __init__(self, messages: Any, ticket: Any, explain: Explain, kept: tuple[Any, ...]) -> None:
        super().__init__(ticket, explain, kept)
        self._messages = messages

    def _await(self, timeout_s: float | None) -> bool:
        return bool(
            self._messages.wait(self._ticket, _FOR_EVER_S if timeout_s is None else timeout_s)
        )


class Messages:
    """Point-to-point messages of a communicator, by address.

    Messages between two ranks with one tag arrive in the order of sending; a receive takes the
    first one from its source with its tag, and must be of its size. Messages with different ranks
    don't wait for one another.
    """

    def __init__(self, fabric: Any, rank: int, name: str, settings: Settings) -> None:
        self._fabric, self._rank, self._name = fabric, rank, name
        self.timeout_s = settings.timeout_s
        self._native = native().PointToPoint(fabric, stride(settings), settings.channels)

    def send(
        self, address: int, size_bytes: int, dst: int, tag: int, is_async: bool, kept: Any = ()
    ) -> Work:
        """Sends memory. Errors: N62x."""
        explain = self._explained(f"send of {size_bytes} bytes to rank {dst}, tag {tag}")
        if is_async:
            ticket = self._native.send(address, size_bytes, dst, tag, self.timeout_s)
            return MessageWork(self._native, ticket, explain, kept)
        report = self._native.send_now(address, size_bytes, dst, tag, self.timeout_s)
        _raise(explain(report))
        return DONE

    def recv(
        self, address: int, size_bytes: int, src: int, tag: int, is_async: bool, kept: Any = ()
    ) -> Work:
        """Receives into memory, from a rank or from `ANY`. Errors: N62x."""
        origin = "any rank" if src == ANY else f"rank {src}"
        explain = self._explained(f"recv of {size_bytes} bytes from {origin}, tag {tag}")
        if is_async:
            ticket = self._native.recv(address, size_bytes, src, tag, self.timeout_s)
            return MessageWork(self._native, ticket, explain, kept)
        report, source = self._native.recv_now(address, size_bytes, src, tag, self.timeout_s)
        _raise(explain(report))
        return Done(source)

    def close(self) -> None:
        """Ends what is under way."""
        self._native.close()

    def _explained(self, what: str) -> Explain:
        timeout_s = self.timeout_s

        def explain(report: Any) -> SleyError | None:
            return call_error(self._fabric, self._rank, self._name, what, None, report, timeout_s)

        return explain


def _raise(error: SleyError | None) -> None:
    if error is not None:
        raise error
