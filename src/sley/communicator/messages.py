"""Messages: point-to-point messages of a communicator."""

from __future__ import annotations

from sley.communicator.calls import DONE, Done, Explain, Work
from sley.communicator.failures import Failures, Message
from sley.communicator.memory import stride
from sley.communicator.settings import Settings
from sley.engine import native
from sley.engine.limits import whole
from sley.engine.outcomes import Report
from sley.errors import SleyError
from sley.errors.calls import N627

ANY = -1
"""Any source."""

Span = tuple[int, int]
"""Memory: its address, and its size in bytes."""


class MessageWork(Work):
    """A message in flight. The thread that waits for it makes it progress."""

    __slots__ = ("_messages",)

    def __init__(
        self,
        messages: native.PointToPoint,
        ticket: native.Ticket,
        explain: Explain,
        owners: tuple[object, ...],
    ) -> None:
        super().__init__(ticket, explain, owners)
        self._messages = messages

    def is_completed(self) -> bool:
        ticket = self._ticket
        return ticket is None or self._messages.test(ticket)

    def _await_briefly(self, ticket: native.Ticket, timeout_s: float) -> bool:
        return self._messages.wait(ticket, timeout_s)


class Messages:
    """Point-to-point messages of a communicator, by address.

    Messages between two ranks with one tag arrive in the order of sending. A receive takes the
    first one from its source with its tag, and must have its size and type. Messages with different
    ranks don't wait for one another.

    element: the number of the type of a message's elements. owners: of the memory of an
    asynchronous message, kept alive until it has ended. native: the same for the engine.
    """

    def __init__(self, fabric: native.Fabric, settings: Settings, failures: Failures) -> None:
        self._failures = failures
        self._ranks, self.timeout_s = fabric.ranks, settings.patience_s
        self.native = native.PointToPoint(fabric, stride(settings), settings.channels)

    def send(
        self,
        address: int,
        size_bytes: int,
        dst: int,
        tag: int = 0,
        *,
        element: int,
        async_op: bool = False,
        owners: tuple[object, ...] = (),
    ) -> Work:
        """Sends memory, which may be overwritten when the work is done. Errors: N62x."""
        whole(dst, "dst", 0, self._ranks - 1, N627)
        if async_op:
            ticket = self.native.send(address, size_bytes, dst, tag, self.timeout_s, element + 1)
            return self.work(ticket, True, size_bytes, dst, tag, owners)
        report = self.native.send_now(address, size_bytes, dst, tag, self.timeout_s, element + 1)
        self._check(report, True, size_bytes, dst, tag)
        return DONE

    def recv(
        self,
        address: int,
        size_bytes: int,
        src: int | None,
        tag: int = 0,
        *,
        element: int,
        async_op: bool = False,
        owners: tuple[object, ...] = (),
    ) -> Work:
        """Receives into memory, from a rank or from any (None): `Work.source` names the sender.
        Errors: N62x."""
        if src is None:
            src = ANY
        else:
            whole(src, "src", 0, self._ranks - 1, N627)
        if async_op:
            ticket = self.native.recv(address, size_bytes, src, tag, self.timeout_s, element + 1)
            return self.work(ticket, False, size_bytes, src, tag, owners)
        report, source = self.native.recv_now(
            address, size_bytes, src, tag, self.timeout_s, element + 1
        )
        self._check(report, False, size_bytes, src, tag)
        return Done(source)

    def time_us(
        self, source: Span, target: Span, peer: int, sends_first: bool, iterations: int
    ) -> float:
        """The mean time of `iterations` exchanges back to back, without Python between them: a
        message to a rank and one from it. sends_first: true on one of both ranks. Errors: N62x."""
        whole(peer, "peer", 0, self._ranks - 1, N627)
        number = whole(iterations, "iterations", 1)
        seconds, report, is_send = self.native.exchange(
            *source, *target, peer, sends_first, number, self.timeout_s
        )
        self._check(report, is_send, (source if is_send else target)[1], peer, 0)
        return seconds / number * 1e6

    def work(
        self,
        ticket: native.Ticket,
        is_send: bool,
        size_bytes: int,
        other: int,
        tag: int,
        owners: tuple[object, ...] = (),
    ) -> Work:
        """The work object of a message that has begun. other: the rank it is for, or comes from."""
        return MessageWork(
            self.native,
            ticket,
            lambda report: self._error(report, is_send, size_bytes, other, tag),
            owners,
        )

    def close(self) -> None:
        """Ends all messages in flight."""
        self.native.close()

    def _check(
        self, report: Report | None, is_send: bool, size_bytes: int, other: int, tag: int
    ) -> None:
        """Raises the error of a message that has ended, if it has one."""
        error = self._error(report, is_send, size_bytes, other, tag)
        if error is not None:
            raise error

    def _error(
        self, report: Report | None, is_send: bool, size_bytes: int, other: int, tag: int
    ) -> SleyError | None:
        if report is None:  # as of most messages, whose words nobody reads
            return None
        rank = "any rank" if other == ANY else f"rank {other}"
        own, theirs, way = ("send", "receive", "to") if is_send else ("recv", "message", "from")
        on = "on" if is_send else "from"
        message = Message(
            f"{own} of {size_bytes} bytes {way} {rank}, tag {tag}",
            f"a {theirs} of {size_bytes} bytes {on} {rank}, tag {tag}",
            size_bytes,
        )
        return self._failures.error(report, message.words, self.timeout_s, message=message)
