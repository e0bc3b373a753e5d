"""Right MSCCL++ execution plans, each of which needs all of its operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.inputs.mscclpp_plans import PORT, Block, Made

LL = {"protocol": "LL", "use_double_scratch_buffer": True}


def begin(block: Block, *peers: int, join: bool = True) -> Block:
    """Shows that the peers have begun this call."""
    block.on("rlxsignal", *peers).on("rlxwait", *peers)
    return block.nop() if join else block


def end(block: Block, *peers: int, join: bool = True) -> Block:
    """Publishes what this block has written, and waits for what the peers have."""
    if join:
        block.nop()
    return block.on("signal", *peers).on("wait", *peers)


def allgather_by_put() -> Made:
    made = Made("allgather", 2, (1, 2, 0))
    for rank, gpu in enumerate(made.gpus):
        peer = 1 - rank
        block = begin(gpu.block(), peer).move("copy", [("i", 0, 1)], [("o", rank, 1)])
        end(block.move("put", [("i", 0, 1)], [(peer, "o", rank, 1)]), peer)
    return made


def alltoall_by_one_put() -> Made:
    """Puts of several pairs, and signals to several peers."""
    made = Made("alltoall", 3, (3, 3, 0))
    for rank, gpu in enumerate(made.gpus):
        peers = [peer for peer in range(3) if peer != rank]
        block = begin(gpu.block(), *peers).move("copy", [("i", rank, 1)], [("o", rank, 1)])
        sources = [("i", peer, 1) for peer in peers]
        end(block.move("put", sources, [(peer, "o", rank, 1) for peer in peers]), *peers)
    return made


def allgather_by_port(name: str = "put") -> Made:
    """put and signal, or pws, on port channels. The second exchange shows that the port has read
    the input."""
    made = Made("allgather", 2, (1, 2, 0))
    for rank, gpu in enumerate(made.gpus):
        peer = 1 - rank
        block = gpu.block().on("signal", peer, word=PORT).on("wait", peer, word=PORT)
        block.move("copy", [("i", 0, 1)], [("o", rank, 1)])
        block.move(name, [("i", 0, 1)], [(peer, "o", rank, 1)], word=PORT)
        if name == "put":
            block.on("signal", peer, word=PORT)
        block.on("wait", peer, word=PORT).on("signal", peer).on("wait", peer)
    return made


def allgather_by_flushed_put() -> Made:
    """pwsf on port channels: its flush shows that the port has read the input."""
    made = Made("allgather", 2, (1, 2, 0))
    for rank, gpu in enumerate(made.gpus):
        peer = 1 - rank
        block = gpu.block().on("signal", peer, word=PORT).on("wait", peer, word=PORT)
        block.move("copy", [("i", 0, 1)], [("o", rank, 1)])
        block.move("pwsf", [("i", 0, 1)], [(peer, "o", rank, 1)], word=PORT)
        block.on("wait", peer, word=PORT)
    return made


def allreduce_by_get() -> Made:
    made = Made("allreduce", 2, (2, 2, 2))
    for rank, gpu in enumerate(made.gpus):
        peer = 1 - rank
        block = begin(gpu.block(), peer).move("get", [(peer, "i", 0, 2)], [("s", 0, 2)]).nop()
        end(block.move("re", [("i", 0, 2), ("s", 0, 2)], [("o", 0, 2)]), peer, join=False)
    return made


def allreduce_by_res() -> Made:
    made = Made("allreduce", 2, (2, 2, 1))
    for rank, gpu in enumerate(made.gpus):
        peer = 1 - rank
        block = begin(gpu.block(), peer, join=False)
        end(block.move("put", [("i", peer, 1)], [(peer, "s", 0, 1)]), peer).nop()
        block.move("res", [("i", rank, 1), ("s", 0, 1)], [("o", rank, 1), (peer, "o", rank, 1)])
        end(block, peer)
    return made


def allreduce_by_rre() -> Made:
    made = Made("allreduce", 2, (2, 2, 0))
    for rank, gpu in enumerate(made.gpus):
        peer = 1 - rank
        block = begin(gpu.block(), peer)
        end(block.move("rre", [("i", 0, 2), (peer, "i", 0, 2)], [("o", 0, 2)]), peer)
    return made


def allreduce_by_rres(**header: Any) -> Made:
    made = Made("allreduce", 2, (2, 2, 0), inplace=True, **header)
    for rank, gpu in enumerate(made.gpus):
        peer = 1 - rank
        both = [("i", rank, 1), (peer, "i", rank, 1)]
        end(begin(gpu.block(), peer).move("rres", both, both), peer)
    return made


def allreduce_by_repkt() -> Made:
    made = Made("allreduce", 2, (2, 2, 2), **LL)
    for rank, gpu in enumerate(made.gpus):
        block = gpu.block().move("ppkt", [("i", 0, 2)], [(1 - rank, "s", 0, 2)])
        block.move("repkt", [("i", 0, 2), ("s", 0, 2)], [("o", 0, 2)])
    return made


def allreduce_by_respkt(**header: Any) -> Made:
    made = Made("allreduce", 2, (2, 2, 2), inplace=True, **LL, **header)
    for rank, gpu in enumerate(made.gpus):
        peer = 1 - rank
        block = gpu.block().move("ppkt", [("i", peer, 1)], [(peer, "s", 0, 1)])
        block.move("respkt", [("i", rank, 1), ("s", 0, 1)], [("i", rank, 1), (peer, "s", 1, 1)])
        block.move("upkt", [("s", 1, 1)], [("i", peer, 1)])
    return made


def allreduce_by_recspkt() -> Made:
    made = Made("allreduce", 2, (2, 2, 3), **LL)
    for rank, gpu in enumerate(made.gpus):
        peer = 1 - rank
        block = gpu.block().move("ppkt", [("i", peer, 1)], [(peer, "s", 0, 1)])
        results = [("o", rank, 1), ("s", 1, 1), (peer, "s", 2, 1)]
        block.move("recspkt", [("i", rank, 1), ("s", 0, 1)], results)
        block.move("upkt", [("s", 2, 1)], [("o", peer, 1)])
    return made


def allreduce_by_recpkt() -> Made:
    """The sum passes on as packets."""
    made = Made("allreduce", 2, (2, 2, 3), **LL)
    for rank, gpu in enumerate(made.gpus):
        peer = 1 - rank
        block = gpu.block().move("ppkt", [("i", peer, 1)], [(peer, "s", 0, 1)])
        block.move("recpkt", [("i", rank, 1), ("s", 0, 1)], [("o", rank, 1), ("s", 1, 1)])
        block.move("rppkt", [("s", 1, 1)], [(peer, "s", 2, 1)])
        block.move("upkt", [("s", 2, 1)], [("o", peer, 1)])
    return made


def allgather_by_pushed_packets() -> Made:
    made = Made("allgather", 2, (1, 2, 2), **LL)
    for rank, gpu in enumerate(made.gpus):
        peer = 1 - rank
        block = gpu.block().move("cpkt", [("i", 0, 1)], [("s", rank, 1)])
        block.move("rppkt", [("s", rank, 1)], [(peer, "s", rank, 1)], word=PORT)
        block.move("upkt", [("s", peer, 1)], [("o", peer, 1)])
        block.move("copy", [("i", 0, 1)], [("o", rank, 1)])
    return made


def allreduce_by_switch() -> Made:
    made = Made("allreduce", 2, (2, 2, 0), inplace=True)
    for rank, gpu in enumerate(made.gpus):
        peer, part = 1 - rank, ("all", "i", rank, 1)
        end(begin(gpu.block(), peer).move("glres", [part], [part], word="switch"), peer)
    return made


def allgather_by_switch() -> Made:
    made = Made("allgather", 2, (1, 2, 0))
    for rank, gpu in enumerate(made.gpus):
        peer, block = 1 - rank, begin(gpu.block(), 1 - rank)
        end(block.move("gstore", [("i", 0, 1)], [("all", "o", rank, 1)], word="switch"), peer)
    return made


def allgather_by_packets_through_the_switch() -> Made:
    """gstorepkt also writes the packets of its own rank, onto themselves."""
    made = Made("allgather", 2, (1, 2, 2), **LL)
    for rank, gpu in enumerate(made.gpus):
        block = gpu.block().move("cpkt", [("i", 0, 1)], [("s", rank, 1)])
        block.move("gstorepkt", [("s", rank, 1)], [("all", "s", rank, 1)], word="switch")
        for part in range(2):
            block.move("upkt", [("s", part, 1)], [("o", part, 1)])
    return made


def allreduce_with_barriers() -> Made:
    """One block signals for both."""
    made = Made("allreduce", 2, (4, 4, 0), inplace=True)
    for rank, gpu in enumerate(made.gpus):
        peer = 1 - rank
        first, second = gpu.block(), gpu.block()
        begin(first, peer, join=False).barrier(0, 2)
        second.barrier(0, 2)
        for number, block in enumerate((first, second)):
            both = [("i", 2 * rank + number, 1), (peer, "i", 2 * rank + number, 1)]
            block.move("rres", both, both).barrier(1, 2)
        end(first, peer, join=False)
    return made


def allgather_with_semaphores() -> Made:
    """The second block unpacks after the first block has received."""
    made = Made("allgather", 2, (1, 2, 1))
    for rank, gpu in enumerate(made.gpus):
        peer = 1 - rank
        gpu.semaphores = [0]
        first, second = gpu.block(), gpu.block()
        begin(first, peer).move("put", [("i", 0, 1)], [(peer, "s", 0, 1)])
        end(first, peer).semaphore("sem_release", 0)
        second.move("copy", [("i", 0, 1)], [("o", rank, 1)]).semaphore("sem_acquire", 0).nop()
        second.move("copy", [("s", 0, 1)], [("o", peer, 1)])
    return made


def copies_with_semaphores() -> Made:
    """48 semaphores on a GPU, one in an operation."""
    made = Made("allreduce", 1, (48, 48, 48))
    (gpu,) = made.gpus
    gpu.semaphores = [0] * 48
    for begin_of in (0, 16, 32):
        first, second = gpu.block(), gpu.block()
        for k in range(begin_of, begin_of + 16):
            first.move("copy", [("i", k, 1)], [("s", k, 1)]).nop().semaphore("sem_release", k)
            second.semaphore("sem_acquire", k).nop().move("copy", [("s", k, 1)], [("o", k, 1)])
    return made


def allreduce_in_pipeline(**header: Any) -> Made:
    """The reduction of a unit, then its signal."""
    made = Made("allreduce", 2, (2, 2, 0), inplace=True, **header)
    for rank, gpu in enumerate(made.gpus):
        peer = 1 - rank
        both = [("i", rank, 1), (peer, "i", rank, 1)]
        block = begin(gpu.block(), peer).pipeline(65536)
        end(block.move("rres", both, both), peer).done()
    return made


def allreduce_in_shares(shares: int = 3, size: int = 1) -> Made:
    """Blocks share the operations."""
    made = Made("allreduce", 2, (2 * size, 2 * size, 0), inplace=True)
    for rank, gpu in enumerate(made.gpus):
        peer = 1 - rank
        both = [("i", rank * size, size), (peer, "i", rank * size, size)]
        for share in range(shares):
            block = begin(gpu.block(), peer)
            end(block.move("rres", both, both, share=(share, shares)), peer)
    return made


RIGHT: dict[str, Callable[[], Made]] = {
    made.__name__: made
    for made in (
        allgather_by_put,
        alltoall_by_one_put,
        allgather_by_port,
        allgather_by_flushed_put,
        allreduce_by_get,
        allreduce_by_res,
        allreduce_by_rre,
        allreduce_by_rres,
        allreduce_by_repkt,
        allreduce_by_respkt,
        allreduce_by_recspkt,
        allreduce_by_recpkt,
        allgather_by_pushed_packets,
        allreduce_by_switch,
        allgather_by_switch,
        allgather_by_packets_through_the_switch,
        allreduce_with_barriers,
        allgather_with_semaphores,
        allreduce_in_pipeline,
        allreduce_in_shares,
    )
}
RIGHT["allgather_by_pws"] = lambda: allgather_by_port("pws")
RIGHT["allreduce_in_even_shares"] = lambda: allreduce_in_shares(2, 2)
RIGHT["allreduce_in_uneven_shares"] = lambda: allreduce_in_shares(3, 2)
"""Right plans, by name."""
