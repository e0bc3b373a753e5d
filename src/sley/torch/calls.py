"""What all collectives of a group share: running a call, now or in the background."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sley.communicator import Call
from sley.communicator.endpoint import Endpoint
from sley.errors import SleyError
from sley.torch.fallback import OtherBackends
from sley.torch.memory import Memory
from sley.torch.work import UNSET, Finished, Part, Pending, Together, collective_error


class Calls:
    """An endpoint's calls as work objects, and who else runs what it has no plan for."""

    def __init__(self, endpoint: Endpoint, others: OtherBackends) -> None:
        self._endpoint = endpoint
        self._others = others
        self._rank = endpoint.rank
        self._ranks = endpoint.ranks
        self._coalesced: list[Pending] | None = None
        self._sequence_number = 0
        self._token = torch.zeros(1, dtype=torch.int8)

    def _run(
        self, call: Call, opts: Any, outputs: Sequence[Tensor], *memories: Memory
    ) -> dist.Work:
        """Starts `call`, which works on `memories`; and ends it, unless it is asynchronous."""
        self._sequence_number += 1
        if call.count == 0:
            return _finished(outputs)
        timeout_s = self._seconds(opts)
        try:
            if not opts.asyncOp and timeout_s is None:
                self._endpoint.submit(call)
                for memory in memories:
                    if memory.unpack is not None:
                        memory.unpack()
                return _finished(outputs)
            part = self._endpoint.submit(call, is_async=True)
        except SleyError as error:
            raise collective_error(error) from error
        work = self._pending(
            [part], outputs, owners=memories, unpack=all_unpacked(memories), timeout_s=timeout_s
        )
        if not opts.asyncOp:
            work.wait()
        return work

    def _seconds(self, opts: Any) -> float | None:
        """The timeout of a call; None where it is the communicator's own."""
        timeout: timedelta = opts.timeout
        return timeout.total_seconds() if timeout > UNSET else None

    def _together(self, works: Sequence[dist.Work], outputs: Sequence[Tensor]) -> dist.Work:
        """One work object for several."""
        if all(isinstance(work, Finished) for work in works):
            return _finished(outputs)
        return Together(works, outputs)

    def _pending(self, parts: Sequence[Part], outputs: Sequence[Tensor], **more: Any) -> Pending:
        work = Pending(parts, outputs, **more)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work


def _finished(outputs: Sequence[Tensor]) -> Finished:
    work = Finished()
    work.outputs = outputs
    return work


def all_unpacked(memories: Sequence[Memory]) -> Callable[[], None] | None:
    """What copies everything that was received to where the caller wants it."""
    unpacks = [memory.unpack for memory in memories if memory.unpack is not None]
    if len(unpacks) < 2:
        return unpacks[0] if unpacks else None

    def unpack() -> None:
        for one in unpacks:
            one()

    return unpack
