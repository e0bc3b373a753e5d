"""Messages between two ranks of a group, and AllToAll, which is made of them where parts differ."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllToAllOptions

from sley.communicator.messages import ALL_TO_ALL_TAG
from sley.errors import SleyError
from sley.torch.arguments import for_every_rank, options, same_parts, single, split_rows, unfit
from sley.torch.calls import CallRunner, timeout_of, unpack_all
from sley.torch.elements import element_of
from sley.torch.fallback import Fallback
from sley.torch.memory import copy_of, span, to_read, to_write
from sley.torch.work import collective_error


class Messages:
    """Messages between two ranks of a group: on its endpoint, or where that lacks them on another
    backend (`fallback`)."""

    def __init__(self, runner: CallRunner, fallback: Fallback) -> None:
        self._runner, self._fallback = runner, fallback
        self._rank, self._ranks = runner.rank, runner.ranks

    def send(self, tensors: Sequence[Tensor], dst: int, tag: int = 0) -> dist.Work:
        tensor = single("send", tensors)
        if element_of(tensor) is None:
            return self._fallback.serving("send", tensor).send(tensors, dst, tag)
        _check_tag("send", tag)
        memory = to_read(tensors)
        try:
            part = self._runner.endpoint.send_memory(
                memory.address, tensor.nbytes, dst, tag, is_async=True
            )
        except SleyError as error:
            raise collective_error(error) from error
        return self._runner.pending([part], tensors, owners=memory)

    def recv(self, tensors: Sequence[Tensor], src: int, tag: int = 0) -> dist.Work:
        tensor = single("recv", tensors)
        if element_of(tensor) is None:
            return self._fallback.serving("recv", tensor).recv(tensors, src, tag)
        return self._receive(tensor, src, tag)

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int = 0) -> dist.Work:
        tensor = single("recv", tensors)
        if element_of(tensor) is None:
            return self._fallback.serving("recv", tensor).recv_anysource(tensors, tag)
        return self._receive(tensor, None, tag)

    def _receive(self, tensor: Tensor, src: int | None, tag: int) -> dist.Work:
        _check_tag("recv", tag)
        memory = to_write([tensor])
        try:
            part = self._runner.endpoint.recv_memory(
                memory.address, tensor.nbytes, src, tag, is_async=True
            )
        except SleyError as error:
            raise collective_error(error) from error
        return self._runner.pending(
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
        element = element_of(input)
        if element is None:
            other = self._fallback.serving("all_to_all", input)
            splits = list(output_split_sizes), list(input_split_sizes)
            return other.alltoall_base(output, input, *splits, opts)
        if not output_split_sizes and not input_split_sizes:
            numel = input.numel() // self._ranks
            same_parts("all_to_all", input, numel, output, self._ranks)
            same_parts("all_to_all", output, numel, input, self._ranks)
            return self._runner.run("all_to_all", opts, numel, [input], [output], element)
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
            if element_of(tensor) is None:
                other = self._fallback.serving("all_to_all", tensor)
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
            sources = [copy_of([tensor]) for tensor in inputs]
            own = own.clone()
        outputs[rank].detach().copy_(own.reshape(outputs[rank].shape))
        endpoint = self._runner.endpoint
        send, receive = endpoint.send_memory, endpoint.recv_memory
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
        work = self._runner.pending(
            parts,
            results,
            owners=(sources, targets),
            unpack=unpack_all([targets[r] for r in others]),
            timeout_s=timeout_of(opts),
        )
        if not opts.asyncOp:
            work.wait()
        return work


def _check_tag(name: str, tag: int) -> None:
    if not 0 <= tag < 2**63:
        raise unfit(name, "a tag from 0 to 2**63 - 1", f"tag {tag}")
