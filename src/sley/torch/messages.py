"""Messages: messages between two ranks of a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from sley.communicator import Work
from sley.communicator import messages as communicator
from sley.communicator.endpoint import Endpoint
from sley.engine import native
from sley.errors import SleyError
from sley.torch.arguments import single, unfit
from sley.torch.calls import CallRunner
from sley.torch.elements import Element, element_of
from sley.torch.fallback import Fallback
from sley.torch.memory import Memory, hold, to_read, to_write
from sley.torch.work import UNSET, Outputs, Pending, collective_error


class Message(Outputs):
    """A message that the engine has begun to move without Python.

    Waiting for its end, which is the usual thing, is short. All else is left to a `Pending`.
    """

    def __init__(
        self,
        messages: communicator.Messages,
        ticket: native.Ticket,
        tensors: Sequence[Tensor],
        is_send: bool,
        size_bytes: int,
        other: int,
        tag: int,
    ) -> None:
        super().__init__()
        self._messages, self._ticket, self.outputs = messages, ticket, tensors
        self._is_send = is_send
        self._request = size_bytes, other, tag
        self._pending: Pending | None = None

    def wait(self, timeout: timedelta = UNSET) -> bool:
        """As `Pending.wait`."""
        if timeout is UNSET and self._messages.native.finish(self._ticket):
            return True
        return self._whole().wait(timeout)

    def is_completed(self) -> bool:
        return self._messages.native.test(self._ticket)

    def is_success(self) -> bool:
        return self._whole().is_success()

    def exception(self) -> Exception | None:
        return self._whole().exception()

    def source_rank(self) -> int:
        """See `Outputs.source_rank`."""
        is_receive = not self._is_send and self._ticket.is_done()
        return self._ticket.rank if is_receive else -1

    def get_future(self) -> Future[list[Tensor]]:
        return self._whole().get_future()

    def _whole(self) -> Pending:
        """The same as a `Pending`, made once."""
        if self._pending is None:
            part = self._messages.work(self._ticket, self._is_send, *self._request)
            self._pending = Pending([part], self.outputs, source=self.source_rank)
        return self._pending


class Messages:
    """Messages between two ranks of a group, on its endpoint; on another backend (`fallback`) if
    the endpoint doesn't support their tensors."""

    def __init__(self, runner: CallRunner, fallback: Fallback) -> None:
        self._runner, self._fallback = runner, fallback

    def send(self, tensors: Sequence[Tensor], dst: int, tag: int = 0) -> dist.Work:
        tensor = single("send", tensors)
        element = element_of(tensor)
        if element is None:
            return self._fallback.find("send", tensor).send(tensors, dst, tag)
        memory = to_read(tensors)
        part = _start(self._runner.endpoint, "send", memory, dst, tag, element)
        return self._runner.pending([part], tensors, owners=hold([memory]))

    def recv(self, tensors: Sequence[Tensor], src: int, tag: int = 0) -> dist.Work:
        return self._receive("recv", tensors, src, tag)

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int = 0) -> dist.Work:
        return self._receive("recv_anysource", tensors, None, tag)

    def _receive(
        self, method: str, tensors: Sequence[Tensor], src: int | None, tag: int
    ) -> dist.Work:
        tensor = single("recv", tensors)
        element = element_of(tensor)
        if element is None:
            peer = [] if src is None else [src]
            return getattr(self._fallback.find("recv", tensor), method)(tensors, *peer, tag)
        memory = to_write([tensor])
        part = _start(self._runner.endpoint, "recv", memory, src, tag, element)
        return self._runner.pending(
            [part],
            [tensor],
            owners=hold([memory]),
            unpack=memory.unpack,
            source=lambda: part.source,
        )


def _start(
    endpoint: Endpoint, name: str, memory: Memory, peer: int | None, tag: int, element: Element
) -> Work:
    if not 0 <= tag < 2**63:
        raise unfit(name, "a tag from 0 to 2**63 - 1", f"tag {tag}")
    try:
        start: Callable[..., Work] = getattr(endpoint.messages, name)
        return start(*memory.place, peer, tag, element=element.number, async_op=True)
    except SleyError as error:
        raise collective_error(error) from None
