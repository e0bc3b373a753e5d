"""Messages between two ranks of a group, and AllToAll, which is made of them where parts differ."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllToAllOptions

from sley.communicator.messages import ALL_TO_ALL_TAG
from sley.errors import SleyError
from sley.torch.arguments import for_every_rank, only, options, same_parts, split_rows, unfit
from sley.torch.calls import all_unpacked
from sley.torch.collectives import Collectives
from sley.torch.elements import moved
from sley.torch.memory import copied, span, to_read, to_write
from sley.torch.work import Together, collective_error


class Messages(Collectives):
    """Collectives, and messages between two ranks."""

    def send(self, tensors: Sequence[Tensor], dst: int, tag: int = 0) -> dist.Work:
        tensor = only("send", tensors)
        if moved(tensor) is None:
            return self._others.serving("send", tensor).send(tensors, dst, tag)
        _check_tag("send", tag)
        memory = to_read(tensors)
        try:
            part = self._endpoint.send_memory(
                memory.address, tensor.nbytes, dst, tag, is_async=True
            )
        except SleyError as error:
            raise collective_error(error) from error
        return self._pending([part], tensors, owners=memory)

    def recv(self, tensors: Sequence[Tensor], src: int, tag: int = 0) -> dist.Work:
        tensor = only("recv", tensors)
        if moved(tensor) is None:
            return self._others.serving("recv", tensor).recv(tensors, src, tag)
        return self._receive(tensor, src, tag)

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int = 0) -> dist.Work:
        tensor = only("recv", tensors)
        if moved(tensor) is None:
            return self._others.serving("recv", tensor).recv_anysource(tensors, tag)
        return self._receive(tensor, None, tag)

    def _receive(self, tensor: Tensor, src: int | None, tag: int) -> dist.Work:
        _check_tag("recv", tag)
        memory = to_write([tensor])
        try:
            part = self._endpoint.recv_memory(
                memory.address, tensor.nbytes, src, tag, is_async=True
            )
        except SleyError as error:
            raise collective_error(error) from error
        return self._pending(
            [part],
            [tensor],
            owners=memory,
            unpack=memory.unpack,
            source=lambda: part.source,
        )

    # Every rank gives each of the others a part of its own.

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> dist.Work:
        """Split sizes are rows (of the first dimension) for each rank; without any, the parts are
        equal."""
        opts = options(AllToAllOptions, opts, timeout)
        element = moved(input)
        if element is None:
            other = self._others.serving("all_to_all", input)
            splits = list(output_split_sizes), list(input_split_sizes)
            return other.alltoall_base(output, input, *splits, opts)
        if not output_split_sizes and not input_split_sizes:
            numel = input.numel() // self._ranks
            same_parts("all_to_all", input, numel, output, self._ranks)
            same_parts("all_to_all", output, numel, input, self._ranks)
            return self._between("all_to_all", opts, numel, [input], [output], element)
        # Sizes that are all equal here need not be so on the other ranks.
        outputs = split_rows("all_to_all", output, output_split_sizes, self._ranks)
        inputs = split_rows("all_to_all", input, input_split_sizes, self._ranks)
        return self._exchange(outputs, inputs, [output], opts)

    def alltoall(
        self,
        output_tensors: Sequence[Tensor],
        input_tensors: Sequence[Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> dist.Work:
        opts = options(AllToAllOptions, opts, timeout)
        for tensor in (*input_tensors, *output_tensors):
            if moved(tensor) is None:
                other = self._others.serving("all_to_all", tensor)
                return other.alltoall(output_tensors, input_tensors, opts)
        for tensors in (output_tensors, input_tensors):
            for_every_rank("all_to_all", tensors, self._ranks)
        return self._exchange(output_tensors, input_tensors, output_tensors, opts)

    def _exchange(
        self,
        outputs: Sequence[Tensor],
        inputs: Sequence[Tensor],
        results: Sequence[Tensor],
        opts: Any,
    ) -> dist.Work:
        """Sends `inputs[r]` to rank r and receives `outputs[r]` from it, empty ones too: a rank
        that expects another size then hears of it."""
        rank, others = self._rank, [r for r in range(self._ranks) if r != self._rank]
        own = inputs[rank].detach()
        if own.numel() != outputs[rank].numel():
            raise unfit(
                "all_to_all",
                f"{own.numel()} elements of rank {rank}'s input for itself in its output, too",
                f"{outputs[rank].numel()}",
            )
        targets = [to_write([tensor]) for tensor in outputs]
        sources = [to_read([tensor]) for tensor in inputs]
        if span(sources).overlaps(span(targets)):
            sources = [copied([tensor]) for tensor in inputs]
            own = own.clone()
        outputs[rank].detach().copy_(own.reshape(outputs[rank].shape))
        send, receive = self._endpoint.send_memory, self._endpoint.recv_memory
        tag = ALL_TO_ALL_TAG
        try:
            parts = [
                receive(targets[r].address, targets[r].size_bytes, r, tag, is_async=True)
                for r in others
            ]
            parts += [
                send(sources[r].address, sources[r].size_bytes, r, tag, is_async=True)
                for r in others
            ]
        except SleyError as error:
            raise collective_error(error) from error
        work = self._pending(
            parts,
            results,
            owners=(sources, targets),
            unpack=all_unpacked([targets[r] for r in others]),
            timeout_s=self._seconds(opts),
        )
        if not opts.asyncOp:
            work.wait()
        return work

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        """What waits for all that was started since `_start_coalescing`."""
        works, self._coalesced = self._coalesced or [], None
        return Together(works, [tensor for work in works for tensor in work.result()])

    alltoall_base = all_to_all_single


def _check_tag(name: str, tag: int) -> None:
    if not 0 <= tag < 2**63:
        raise unfit(name, "a tag from 0 to 2**63 - 1", f"tag {tag}")
