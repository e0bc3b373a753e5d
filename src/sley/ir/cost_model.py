"""Cost model: the cost of moving bytes on a machine, apart from the capacities of its links."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from sley.errors.topology import T602
from sley.ir.fabric import LinkKind
from sley.ir.words import Protocol, is_real


@dataclass(frozen=True)
class ByProtocol:
    """A number for each protocol. DIRECT has Simple's, since it signals in the same way and sends
    the same bytes over the same links; it differs only in the copies at the ends.

    ll, ll128, simple: the numbers.
    """

    ll: float
    ll128: float
    simple: float

    @classmethod
    def same(cls, number: float) -> ByProtocol:
        """One number for all protocols."""
        return cls(number, number, number)

    def __getitem__(self, protocol: Protocol) -> float:
        carried = Protocol.SIMPLE if protocol is Protocol.DIRECT else protocol
        return float(getattr(self, carried.name.lower()))

    def __mul__(self, factor: float) -> ByProtocol:
        return ByProtocol(self.ll * factor, self.ll128 * factor, self.simple * factor)

    def __str__(self) -> str:
        return f"LL {self.ll:.9g}, LL128 {self.ll128:.9g}, Simple {self.simple:.9g}"


if TYPE_CHECKING:

    class ByProtocolOrNumber:
        """A ByProtocol in a field that also takes one number for all protocols."""

        def __get__(self, owner: object, kind: type | None = None) -> ByProtocol: ...
        def __set__(self, owner: object, value: ByProtocol | float) -> None: ...

else:
    ByProtocolOrNumber = ByProtocol


LEAST_GBPS = 1e-6
MOST_GBPS = 1e9
"""Bounds on rates: beyond them times are too extreme to compare."""


def _number(
    *default: float,
    least: float = 0.0,
    open_: bool = False,
    most: float = 1e12,
    whole: bool = False,
    origin: str,
) -> Any:
    """A number, or three of a ByProtocol: from `least` (above it, if open_), up to `most`.
    origin: where the default comes from, in few words."""
    limits = {"least": least, "open": open_, "most": most, "whole": whole, "origin": origin}
    value = default[0] if len(default) == 1 else ByProtocol(*default)
    return field(default=value, metadata=limits)


def _rate(default: float, origin: str) -> Any:
    return _number(default, least=LEAST_GBPS, most=MOST_GBPS, origin=origin)


def _within(value: object, limits: Mapping[str, Any]) -> bool:
    if not is_real(value):
        return False
    number = float(value)  # type: ignore[arg-type]
    low = limits["least"] < number if limits["open"] else limits["least"] <= number
    right = math.isfinite(number) and low and number <= limits["most"]
    return right and (number.is_integer() or not limits["whole"])


def _words(limits: Mapping[str, Any]) -> str:
    kind = "as a whole number " if limits["whole"] else ""
    low = "above" if limits["open"] else "from"
    most = f" up to {limits['most']:g}" if limits["most"] < 1e12 else ""
    return f"{kind}{low} {limits['least']:g}{most}"


@dataclass(frozen=True)
class CostModel:
    """The parameters of the simulator other than capacities of links; the defaults are those of
    A100s.

    architecture: of the GPUs, as NCCL and RCCL write it in a machine's XML: ten times NVIDIA's
        compute capability (90 for H100s), or the number in AMD's gfx name (942 for MI300X, 910 for
        MI250X). It decides NCCL's choices.
    multiprocessors: of a GPU (AMD: compute units). All thread blocks of a rank must be on its GPU
        at the same time, as they wait for one another: searches leave out plans with more, and
        commands note them; compile and verify don't refuse them.
    launch_us: time of a call before any data moves (NCCL 2.30's tuner, base latency of rings).
    launch_gpus: the number of a node's GPUs that one thread of the host launches, one after another
        (1: a process or a thread for each GPU; nccl-tests prints it as nGpus).
    host_launch_us: the time of that thread for each GPU, which delays the last one (NCCL on 2 to 8
        A100 of one thread: 4.2 to 5.0, github.com/NVIDIA/nccl-tests, issue 123; up to 6 for any
        kernel, SuperBench's example).
    network_call_us: what a call takes longer if it crosses the network, as its proxies wake up (a
        fit on published AllReduces and AllGathers below 1 MB on two nodes of A100, H100, H200 and
        MI355X: 22 to 28 fit alike).
    nvlink_latency_us, pcie_latency_us, network_latency_us: time from the end of a move until the
        receiver sees it, over NVLink or xGMI, PCIe and the network (NCCL 2.30's tuner, latency of a
        hop in rings). LL's is also the time until the other end of a hop sees that room is free,
        with every protocol: both are one word that is written and polled.
    post_share: the share of a network hop's latency that passes before the message is on the wire
        (assumption: half; each end has a flag over PCIe, a turn of its proxy, and for Simple a
        fence or a flush).
    post_us: the time of a post to the network, which delays the messages behind it on a connection
        (NCCL 2.30's tuner, network post overhead: 1 us; 2 with AMD's processors, which the machines
        say).
    posts: the number of posts of a message, one after another (NCCL 2.30's tuner: 3 for Simple,
        else 1).
    proxy_us: the time of a rank's proxy for each message, which delays those of other connections
        (NVIDIA's blog on NVSHMEM and GPUDirect Async, 2022: 1.7 million messages a second through a
        thread of the host, however many blocks send; a card's own limit is 215 million).
    switch_latency_us: the latency of a hop whose messages a switch combines or copies (NCCL 2.30's
        tuner gives NVLS 25 us: less the launch of Simple, for two hops).
    switch_efficiency: the rate of links of a switch that reduces or multicasts, as a share of their
        rate (NCCL 2.30's tuner, efficiency of NVLS: 0.85 on Hopper, 0.74 on Blackwell).
    nvlink_block_GBps, pcie_block_GBps, network_block_GBps: the maximum rate of one thread block to
        a peer over each of them (NCCL 2.30's tuner, a channel's bandwidth, the same on one node and
        on several; PCIe: assumption). H100s keep the network's default, though the tuner gives them
        36.7 on several nodes too: a published AllGather fits 20 better.
    local_block_GBps: the maximum rate of one thread block within its GPU, and of its receives
        (assumption: as over NVLink).
    copy_share: the share of a block's rates that it reaches in instructions that reduce nothing (1,
        except for NCCL's trees: their blocks have fewer threads that copy than threads that
        reduce).
    memory_GBps: the rate of a GPU's memory, or of the memory that a node shares, for reads and
        writes together.
    wire_efficiency: the share of data in the bytes that cross a link (LL: 4 bytes of 8 are flags;
        LL128: 8 of 128).
    tile_bytes: the most data of one tile (MSCCL: Simple four steps of 512 KiB, the others one
        step).
    slices: the number of equal parts of a tile's message, each forwarded as it arrives (NCCL: two
        for Simple. The flags of LL and LL128 announce each turn of a block's threads, and NCCL's
        trees are simulated so; rings of published tables take as long as with whole messages).
    least_slice_bytes: the least size of a part, which limits their number (NCCL: 1/32 of a step of
        Simple; a turn of 512 threads with 8 bytes each with LL, of 640 with 60 with LL128).
    part_overhead_bytes: the cost of a part besides its data, as additional bytes: the time of the
        thread that moves it (0 for GPUs, where a hop's latency includes it).
    wait_us: the cost of a wait for another block's instruction, even if that has already finished
        (assumption: 0.5).
    fence_share: the share of a hop's latency that the sending block spends after each part, because
        it waits until its writes are visible before it announces them (Simple: all of it, as NCCL's
        tuner adds it to the time of the data; LL and LL128 carry flags with the data); not over the
        network, where a proxy sends.
    runs: 1 if kernels execute neighbouring instructions as one where they can, word by word
        (sley's; docs/kernels.md); 0 if one after another (NCCL's and MSCCL's).
    block_us: the time by which each thread block of a GPU delays a call (0: no published value).
    decode_us: the time of an interpreter to read an instruction (0: no published value).
    interpreter_loss: the share of a block's rate that an interpreter costs (ResCCL, figure 3:
        17.1 % of the bandwidth on average).
    contention: gamma', which reduces the capacity of a link whose blocks could move more: capacity
        / (1 + contention * max(0, z - 1)), where z is the rate of these blocks over the capacity
        (the shape of ResCCL, equation 1 and figure 4; the paper prints no value, so it is 0 unless
        you fit one).

    A number instead of a ByProtocol is used for all three. Errors: T602 for values out of range.
    """

    architecture: float = _number(80, least=1, whole=True, most=9999, origin="A100")
    multiprocessors: float = _number(108, least=1, whole=True, most=1e6, origin="A100")
    launch_us: ByProtocolOrNumber = _number(6.6, 14.0, 8.4, origin="NCCL's tuner")
    launch_gpus: float = _number(1, least=1, whole=True, most=1024, origin="a process a GPU")
    host_launch_us: float = _number(4.2, origin="measured, nccl-tests")
    network_call_us: float = _number(24.0, origin="fit, published tables")
    nvlink_latency_us: ByProtocolOrNumber = _number(0.6, 1.9, 3.4, origin="NCCL's tuner")
    pcie_latency_us: ByProtocolOrNumber = _number(1.0, 2.5, 5.7, origin="NCCL's tuner")
    network_latency_us: ByProtocolOrNumber = _number(2.7, 4.0, 14.0, origin="NCCL's tuner")
    post_share: float = _number(0.5, most=1.0, origin="assumption")
    post_us: float = _number(1.0, origin="NCCL's tuner")
    posts: ByProtocolOrNumber = _number(1, 1, 3, origin="NCCL's tuner")
    proxy_us: float = _number(0.6, origin="measured, NVSHMEM")
    switch_latency_us: float = _number(8.3, origin="NCCL's tuner")
    switch_efficiency: float = _number(0.85, least=0.01, most=1.0, origin="NCCL's tuner")
    nvlink_block_GBps: float = _rate(20.0, origin="NCCL's tuner, A100")  # noqa: N815 - a unit
    pcie_block_GBps: float = _rate(20.0, origin="assumption")  # noqa: N815
    network_block_GBps: float = _rate(20.0, origin="NCCL's tuner, A100")  # noqa: N815
    local_block_GBps: float = _rate(20.0, origin="assumption")  # noqa: N815
    copy_share: float = _number(1.0, open_=True, most=1.0, origin="assumption")
    memory_GBps: float = _rate(1555.0, origin="data sheet, A100")  # noqa: N815
    wire_efficiency: ByProtocolOrNumber = _number(
        0.5, 120 / 128, 1.0, least=0.01, most=1.0, origin="protocol"
    )
    tile_bytes: ByProtocolOrNumber = _number(
        32 * 2**10, 576_000, 2 * 2**20, open_=True, least=1e-6, origin="MSCCL"
    )
    slices: ByProtocolOrNumber = _number(1, 1, 2, open_=True, whole=True, most=16, origin="NCCL")
    least_slice_bytes: ByProtocolOrNumber = _number(
        4096, 38400, 16 * 2**10, open_=True, least=1e-6, origin="NCCL"
    )
    part_overhead_bytes: float = _number(0.0, origin="assumption")
    wait_us: float = _number(0.5, origin="assumption")
    fence_share: ByProtocolOrNumber = _number(0.0, 0.0, 1.0, most=1.0, origin="assumption")
    runs: float = _number(0, whole=True, most=1, origin="NCCL's kernels")
    block_us: float = _number(0.0, origin="assumption")
    decode_us: float = _number(0.0, origin="assumption")
    interpreter_loss: float = _number(0.171, most=0.99, origin="ResCCL, figure 3")
    contention: float = _number(0.0, origin="assumption")

    def __post_init__(self) -> None:
        for f in fields(self):
            value, limits = getattr(self, f.name), f.metadata
            split = isinstance(f.default, ByProtocol)
            if split and is_real(value):  # one number for all
                value = ByProtocol.same(value)
                object.__setattr__(self, f.name, value)
            if split and not isinstance(value, ByProtocol):
                raise T602.error(
                    expected=f"{f.name} as sley.ByProtocol(ll, ll128, simple)", found=repr(value)
                )
            for one in (value.ll, value.ll128, value.simple) if split else (value,):
                if not _within(one, limits):
                    raise T602.error(expected=f"{f.name} {_words(limits)}", found=repr(value))

    @property
    def most_blocks(self) -> int:
        """The most thread blocks of a rank."""
        return int(self.multiprocessors)

    def startup_us(self, gpus: int) -> float:
        """The time from the launch on the first GPU of a node with `gpus` GPUs until that on the
        last one: the threads of a node work at once, each on its own GPUs."""
        return (min(self.launch_gpus, gpus) - 1) * self.host_launch_us

    def latency_us(self, kind: LinkKind) -> ByProtocol:
        """The latency of a hop whose slowest link is of this kind."""
        by_kind = (self.nvlink_latency_us, self.pcie_latency_us, self.network_latency_us)
        return by_kind[kind]

    def posts_us(self, protocol: Protocol) -> float:
        """The time of a message's posts to the network."""
        return max(self.post_us * self.posts[protocol], self.proxy_us)

    def block_GBps(self, kind: LinkKind) -> float:  # noqa: N802 - a unit
        """The maximum rate of one thread block over this hop."""
        return (self.nvlink_block_GBps, self.pcie_block_GBps, self.network_block_GBps)[kind]

    @staticmethod
    def origins() -> dict[str, str]:
        """Where the parameters' defaults come from, in few words, by name."""
        return {f.name: f.metadata["origin"] for f in fields(CostModel)}

    def items(self) -> dict[str, str]:
        """The parameters as text, by name."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {n: str(v) if isinstance(v, ByProtocol) else f"{v:.9g}" for n, v in values.items()}
