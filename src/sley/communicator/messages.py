"""Messages from one rank to another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sley.communicator.calls import DONE, Done, Explain, Work
from sley.communicator.failures import FirstError, Message, call_error
from sley.communicator.memory import stride
from sley.communicator.settings import Settings
from sley.engine.native import native
from sley.errors import SleyError

ANY = -1
"""Any source."""

ALL_TO_ALL_TAG = -1
"""The tag of messages that are parts of an AllToAll; those of users aren't negative."""


class MessageWork(Work):
    """A message under way. The thread that waits for it moves it on."""

    __slots__ = ("_messages",)

    def __init__(self, messages: Any, ticket: Any, explain: Explain, kept: tuple[Any, ...]) -> None:
        super().__init__(ticket, explain, kept)
        self._messages = messages

    def _await_briefly(self, timeout_s: float) -> bool:
        return bool(self._messages.wait(self._ticket, timeout_s))


class Messages:
    """Point-to-point messages of a communicator, by address.

    Messages between two ranks with one tag arrive in the order of sending; a receive takes the
    first one from its source with its tag, and must be of its size. Messages with different ranks
    don't wait for one another.
    """

    def __init__(
        self,
        fabric: Any,
        rank: int,
        name: str,
        settings: Settings,
        first: FirstError | None = None,
    ) -> None:
        """first: the memory of the communicator's first error, if other calls share it."""
        self._fabric, self._rank, self._name = fabric, rank, name
        self._first = FirstError() if first is None else first
        self.timeout_s = settings.timeout_s
        self._native = native().PointToPoint(fabric, stride(settings), settings.channels)

    def send(
        self, address: int, size_bytes: int, dst: int, tag: int, is_async: bool, kept: Any = ()
    ) -> Work:
        """Sends memory. Errors: N62x."""
        explain = self._explained(_sent, size_bytes, dst, tag)
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
        explain = self._explained(_received, size_bytes, src, tag)
        if is_async:
            ticket = self._native.recv(address, size_bytes, src, tag, self.timeout_s)
            return MessageWork(self._native, ticket, explain, kept)
        report, source = self._native.recv_now(address, size_bytes, src, tag, self.timeout_s)
        _raise(explain(report))
        return Done(source)

    def close(self) -> None:
        """Ends what is under way."""
        self._native.close()

    def _explained(
        self, told: Callable[[int, int, int], Message], size_bytes: int, other: int, tag: int
    ) -> Explain:
        timeout_s = self.timeout_s

        def explain(report: Any) -> SleyError | None:
            if report is None:
                return None
            message = told(size_bytes, other, tag)
            return call_error(
                self._fabric,
                self._rank,
                self._name,
                message.what,
                None,
                report,
                timeout_s,
                message=message,
                first=self._first,
            )

        return explain


def _sent(size_bytes: int, dst: int, tag: int) -> Message:
    if tag == ALL_TO_ALL_TAG:
        part = f"all_to_all's part for rank {dst}, {size_bytes} bytes"
        return Message(part, part)
    return Message(
        f"send of {size_bytes} bytes to rank {dst}, tag {tag}",
        f"a receive of {size_bytes} bytes on rank {dst}, tag {tag}",
    )


def _received(size_bytes: int, src: int, tag: int) -> Message:
    origin = "any rank" if src == ANY else f"rank {src}"
    if tag == ALL_TO_ALL_TAG:
        part = f"all_to_all's part from {origin}, {size_bytes} bytes"
        return Message(part, part)
    return Message(
        f"recv of {size_bytes} bytes from {origin}, tag {tag}",
        f"a message of {size_bytes} bytes from {origin}, tag {tag}",
    )


def _raise(error: SleyError | None) -> None:
    if error is not None:
        raise error
