"""What is C++ in torchcomms: the base class of backends, reductions, the wrapper for c10d."""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch.distributed as dist

RedOpType = Enum("RedOpType", "SUM PRODUCT MIN MAX BAND BOR BXOR PREMUL_SUM AVG")


class ReduceOp:
    SUM: ReduceOp
    MAX: ReduceOp
    AVG: ReduceOp
    BOR: ReduceOp

    def __init__(self, type: RedOpType, factor: Any = None) -> None:
        self.type, self.factor = type, factor

    @classmethod
    def PREMUL_SUM(cls, factor: Any) -> ReduceOp:  # noqa: N802
        return cls(RedOpType.PREMUL_SUM, factor)


for _type in RedOpType:
    if _type is not RedOpType.PREMUL_SUM:
        setattr(ReduceOp, _type.name, ReduceOp(_type))


class TorchCommBackend:
    """Its methods are those of the backend; the real class fails in those that it doesn't have."""


class _BackendWrapper(dist.ProcessGroup):
    """A communicator as a group of torch.distributed, whose AllReduce is all that it has."""

    def __init__(self, comm: Any) -> None:
        super().__init__(comm.get_rank(), comm.get_size())
        self._comm = comm

    def allreduce(self, tensors: Any, opts: Any) -> None:
        op = getattr(ReduceOp, opts.reduceOp.op.name)
        self._comm.all_reduce(tensors[0], op, opts.asyncOp).wait()

    def getBackendName(self) -> str:  # noqa: N802
        return self._comm.get_backend()
