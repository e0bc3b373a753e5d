"""NCCL's own estimate of its ring AllReduce, by which it chooses the protocol.

NCCL 2.30's tuner: time = latency + bytes / bandwidth, with latency = base + (steps - inter)
max(intra, overhead) + inter * net; of steps = 2 (N - 1) hops, inter = 2 (n - 1) are between n
nodes. For links with the bus bandwidth b, the bandwidth is min(llMax, b / 2) with LL, min(0.92 b,
channels * perChannel) with LL128, and b with Simple.
"""

from __future__ import annotations

from dataclasses import dataclass

from sley import Protocol

BASE_US = {Protocol.LL: 6.6, Protocol.LL128: 14.0, Protocol.SIMPLE: 8.4}
NVLINK_HOP_US = {Protocol.LL: 0.6, Protocol.LL128: 1.9, Protocol.SIMPLE: 3.4}
NETWORK_HOP_US = {Protocol.LL: 2.7, Protocol.LL128: 4.0, Protocol.SIMPLE: 14.0}
OVERHEAD_FACTOR = {Protocol.LL: 1, Protocol.LL128: 1, Protocol.SIMPLE: 3}
LL128_OF_BANDWIDTH = 0.92
LL_OF_BANDWIDTH = 0.5


@dataclass(frozen=True)
class Generation:
    """The tuner's parameters for a generation of GPUs.

    nvlink_GBps: total rate of a GPU's NVLinks.
    ll_most_GBps: the largest rate of LL.
    ll128_channel_GBps: rate of LL128 in each channel.
    overhead_us: overhead of a message to the network with the processors of these machines (NCCL: 2
        with AMD's, 1 with others).
    """

    nvlink_GBps: float  # noqa: N815 - a unit
    ll_most_GBps: float  # noqa: N815
    ll128_channel_GBps: float  # noqa: N815
    overhead_us: float


A100 = Generation(12 * 20.0, 87.7, 20.0, 2.0)
H100 = Generation(18 * 20.6, 141.0, 36.7, 1.0)


def ring_allreduce_us(
    generation: Generation,
    protocol: Protocol,
    size_bytes: int,
    *,
    nodes: int,
    gpus: int,
    cards_GBps: float,  # noqa: N803 - a unit
    channels: int,
) -> float:
    """The tuner's time of a ring AllReduce. cards_GBps: total rate of a node's cards."""
    ranks = nodes * gpus
    steps, inter = 2 * (ranks - 1), 2 * (nodes - 1)
    links = generation.nvlink_GBps if nodes == 1 else min(generation.nvlink_GBps, cards_GBps)
    bus = {
        Protocol.LL: min(generation.ll_most_GBps, LL_OF_BANDWIDTH * links),
        Protocol.LL128: min(LL128_OF_BANDWIDTH * links, channels * generation.ll128_channel_GBps),
        Protocol.SIMPLE: links,
    }[protocol]
    overhead = 0.0 if nodes == 1 else generation.overhead_us * OVERHEAD_FACTOR[protocol]
    latency = (
        BASE_US[protocol]
        + (steps - inter) * max(NVLINK_HOP_US[protocol], overhead)
        + inter * NETWORK_HOP_US[protocol]
    )
    return latency + size_bytes * steps / ranks / (bus * 1e3)
