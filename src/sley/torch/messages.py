"""Messages: messages between two ranks of a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch.distributed as dist
from torch import Tensor

from sley.communicator import Work
from sley.errors import SleyError
from sley.torch.arguments import single, unfit
from sley.torch.calls import CallRunner
from sley.torch.elements import element_of
from sley.torch.fallback import Fallback
from sley.torch.memory import Memory, to_read, to_write
from sley.torch.work import collective_error


class Messages:
    """Messages between two ranks of a group, on its endpoint; on another backend (`fallback`) if
    the endpoint doesn't support their tensors."""

    def __init__(self, runner: CallRunner, fallback: Fallback) -> None:
        self._runner, self._fallback = runner, fallback
        self._rank, self._ranks = runner.rank, runner.ranks

    def send(self, tensors: Sequence[Tensor], dst: int, tag: int = 0) -> dist.Work:
        tensor = single("send", tensors)
        if element_of(tensor) is None:
            return self._fallback.find("send", tensor).send(tensors, dst, tag)
        memory = to_read(tensors)
        part = _start(self._runner.endpoint.send_memory, "send", memory, dst, tag)
        return self._runner.pending([part], tensors, owners=memory)

    def recv(self, tensors: Sequence[Tensor], src: int, tag: int = 0) -> dist.Work:
        tensor = single("recv", tensors)
        if element_of(tensor) is None:
            return self._fallback.find("recv", tensor).recv(tensors, src, tag)
        return self._receive(tensor, src, tag)

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int = 0) -> dist.Work:
        tensor = single("recv", tensors)
        if element_of(tensor) is None:
            return self._fallback.find("recv", tensor).recv_anysource(tensors, tag)
        return self._receive(tensor, None, tag)

    def _receive(self, tensor: Tensor, src: int | None, tag: int) -> dist.Work:
        memory = to_write([tensor])
        part = _start(self._runner.endpoint.recv_memory, "recv", memory, src, tag)
        return self._runner.pending(
            [part],
            [tensor],
            owners=memory,
            unpack=memory.unpack,
            source=lambda: part.source,
        )


def _start(
    start: Callable[..., Work], name: str, memory: Memory, peer: int | None, tag: int
) -> Work:
    if not 0 <= tag < 2**63:
        raise unfit(name, "a tag from 0 to 2**63 - 1", f"tag {tag}")
    try:
        return start(*memory.place, peer, tag, async_op=True)
    except SleyError as error:
        raise collective_error(error) from None
