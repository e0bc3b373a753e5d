"""NCCL's choice: the algorithm, protocol and channels that NCCL chooses by itself for a call.

NCCL estimates the time of ring and tree with each protocol as latency + bytes / bandwidth, and
chooses the least. Calls without an algorithm of NCCL's are grouped sends and receives, which have
no estimate.

Source: NCCL 2.30.7, src/graph/tuning.cc (constants, formulas), src/enqueue.cc (channels for a size,
sends and receives), src/include/comm.h (thresholds). NCCL 2.31 has the same constants in
src/tuning/.

Broadcast and Reduce use LL128 where the estimates prefer Simple: they count the piece of a step
that Simple keeps at each hop for nothing, and published times from 16 MB to 1 GB are 6 to 29 % from
LL128's, and 16 to 177 % from Simple's.

NVLS and NVLSTree need a topology whose switches reduce and multicast.

Left out: algorithms that reduce in the network's switches (CollNet, and with it NVLS on several
nodes), and PAT, which NCCL uses only with one GPU in each node. Settings have NCCL's defaults;
cards are as near to their GPUs as LL128 requires.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf
from types import MappingProxyType

from sley.errors import did_you_mean
from sley.errors.tuning import D931
from sley.ir.cost_model import ByProtocol
from sley.ir.sizes import checked_size
from sley.ir.topology import Topology
from sley.ir.words import Protocol
from sley.model.nccl.graphs import MAX_NVLS_HEADS, Graph, MachineView, NcclGeneration

PROTOCOLS = (Protocol.LL, Protocol.LL128, Protocol.SIMPLE)
"""NCCL's protocols in its order: the first of equally fast ones is chosen."""


BLOCK_RATES = ("nvlink_block_GBps", "pcie_block_GBps", "network_block_GBps", "local_block_GBps")
"""The cost model's rates of one thread block."""


class NcclAlgorithm(StrEnum):
    """How NCCL runs a collective: one of its algorithms in its order, or sends and receives."""

    TREE = "tree"
    RING = "ring"
    NVLS = "nvls"
    NVLS_TREE = "nvls_tree"
    P2P = "p2p"


@dataclass(frozen=True)
class CollectiveChoice:
    """NCCL's choice for a call.

    algorithm, protocol: NCCL's.
    channels: number of NCCL's channels (P2P: of one message).
    predicted_us: NCCL's own estimate; None for sends and receives, which NCCL doesn't estimate.
    program: name of the algorithm in sley's catalog that moves the data in the same way. On several
        nodes with several cards, rings are those of a `multi-ring-` algorithm unless NCCL uses one
        channel.
    instances: number of instances of this program, built with its default arguments, `rings` and
        `orders`, that have as many channels as NCCL: `multi-ring-` algorithms have a channel for
        each GPU of a node, ring or order, `multi-tree-allreduce` two. A channel of NVLS is an
        instance, which has all heads; of NVLSTree half of one, which has both trees. At least 1,
        which may be more channels than NCCL uses.
    tile: the data that a rank forwards at once, as a share of `CostModel.tile_bytes`, which is
        NCCL's for rings. Trees forward less: a power of two.
    rings: the number of rings of a `multi-ring-` algorithm; None for those that it has by default.
    orders: the rings or chains of the program along the links of a machine without switches; empty
        for those that the program has by default.
    heads: the number of GPUs of a node that are heads of NVLS; None if all are.
    block_shares: the shares of a thread block's rate that the program's blocks have: those that
        reduce, and those that only copy. A block of NCCL's trees does both at the same time, each
        with some of its threads, and the program has a block for each.
    streams: whether the next block sees each turn of the threads of a message of LL or LL128.
    """

    algorithm: NcclAlgorithm
    protocol: Protocol
    channels: int
    predicted_us: float | None
    program: str
    instances: int
    tile: float = 1.0
    rings: int | None = None
    orders: tuple[tuple[int, ...], ...] = ()
    heads: int | None = None
    block_shares: tuple[float, float] = (1.0, 1.0)
    streams: bool = False


def default(collective: str, topology: Topology, size_bytes: int | str) -> CollectiveChoice:
    """NCCL's choice for a collective, by its name in sley ("allreduce"), on a topology.

    size_bytes: of the call, as nccl-tests counts it: bytes, or a text such as "64M".
    Errors: D931 for collectives that NCCL doesn't run, or less than two ranks; S702 for the size.
    """
    view, size = _view(collective, topology), checked_size(size_bytes)
    if collective in _MESSAGES:
        return _sends(collective, view, size)
    us = {(a, p): _estimate_us(collective, view, size, a, p) for a in _LATENCIES for p in PROTOCOLS}
    if collective in _ROOTED and us[NcclAlgorithm.RING, Protocol.LL128] < inf:
        del us[NcclAlgorithm.RING, Protocol.SIMPLE]
    algorithm, protocol = min(us, key=us.__getitem__)
    return _choice(collective, view, size, algorithm, protocol)


def forced(
    collective: str,
    topology: Topology,
    size_bytes: int | str,
    algorithm: NcclAlgorithm,
    protocol: Protocol,
) -> CollectiveChoice | None:
    """What NCCL uses with this algorithm, ring or tree, and protocol (NCCL_ALGO and NCCL_PROTO).

    None for what NCCL doesn't use: trees for other collectives than AllReduce, LL128 without
    NVLink or on MI300X, rings for grouped sends and receives. Errors: as `default`.
    """
    view, size = _view(collective, topology), checked_size(size_bytes)
    if _estimate_us(collective, view, size, algorithm, protocol) == inf:
        return None
    return _choice(collective, view, size, algorithm, protocol)


def tiled(topology: Topology, tile: float) -> Topology:
    """The cluster with tiles of another size. tile: as a share of its own."""
    if tile == 1:
        return topology
    model = topology.model
    return replace(topology, model=replace(model, tile_bytes=model.tile_bytes * tile))


def as_run(
    topology: Topology, tile: float, block_shares: tuple[float, float], *, streams: bool
) -> Topology:
    """The cluster as NCCL runs a choice on it, with its `tile`, `block_shares` and `streams`."""
    cut, (reducing, copying) = tiled(topology, tile), block_shares
    model = cut.model
    rates = {name: getattr(model, name) * reducing for name in BLOCK_RATES}
    share = model.copy_share * copying / reducing
    model = replace(model, copy_share=share, **rates)
    if streams:
        simple, least = model.slices.simple, model.least_slice_bytes
        model = replace(
            model,
            slices=ByProtocol(_MOST_TURNS, _MOST_TURNS, simple),
            least_slice_bytes=ByProtocol(least.ll * copying, least.ll128 * copying, least.simple),
        )
    return replace(cut, model=model)


@dataclass(frozen=True)
class _Latencies:
    """An algorithm's latencies in us: of a call, and of a hop over each kind of link."""

    base: ByProtocol
    nvlink: ByProtocol
    pcie: ByProtocol
    network: ByProtocol


_LATENCIES: Mapping[NcclAlgorithm, _Latencies] = MappingProxyType(
    {
        NcclAlgorithm.TREE: _Latencies(
            ByProtocol(6.8, 14.0, 8.4),
            ByProtocol(0.6, 1.25, 4.0),
            ByProtocol(1.0, 1.9, 4.0),
            ByProtocol(5.0, 8.5, 14.0),
        ),
        NcclAlgorithm.RING: _Latencies(
            ByProtocol(6.6, 14.0, 8.4),
            ByProtocol(0.6, 1.9, 3.4),
            ByProtocol(1.0, 2.5, 5.7),
            ByProtocol(2.7, 4.0, 14.0),
        ),
        NcclAlgorithm.NVLS: _Latencies(*[ByProtocol.same(us) for us in (0.0, 25.0, inf, 18.0)]),
        NcclAlgorithm.NVLS_TREE: _Latencies(
            *[ByProtocol.same(us) for us in (0.0, 25.0, inf, 20.9)]
        ),
    }
)

# Rows: V100, A100, H100, B200. Columns: one node, two, more.
_LL_GBPS = ((39.0, 39.0, 20.4), (87.7, 22.5, 19.0), (141.0, 45.0, 35.0), (282.0, 90.0, 70.0))
_RING_LL128_GBPS = ((20.0,) * 3, (20.0,) * 3, (36.7,) * 3, (40.0,) * 3)
_TREE_LL128_GBPS = ((20.0,) * 3, (20.0,) * 3, (36.7, 36.7, 29.0), (55.6, 31.67, 20.0))
_TREE_GBPS = ((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (38.7, 41.4, 36.0), (70.0, 42.8, 24.0))
"""The most of LL in all (on several nodes in the row of V100s with Intel's processors, and of A100s
with AMD's), and of the others in each channel."""

_NVLS_SHARES = (0.0, 0.0, 0.85, 0.74)
_NVLS_TREE_GBPS = ((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (inf, 57.7, 45.5), (inf, 96.0, 80.0))
"""Of NVLS, by generation: the share of a head's rate that it reaches, and the most of a head of
NVLSTree."""

_LEAST_NVLS_GPUS = 3
_NVLS_CHUNKS = {
    NcclAlgorithm.NVLS: ((64, 2**16), (8, 2**15), (2, 2**14)),
    NcclAlgorithm.NVLS_TREE: ((4, 2**16), (1, 2**15)),
}
"""The chunks that NVLS forwards at once: those of its buffers, or smaller ones if a call has fewer
than so many chunks for each head and channel."""

_TREE_SHARES = MappingProxyType(
    {
        Protocol.LL: (10, 10, 10, 10, 9, 8, 7, 7, 7, 7, 6, 5, 4, 4, 5, 6, 7, 8, 9, 10, 10, 10, 10),
        Protocol.LL128: (10, 10, 10, 10, 10, 9, 8, 8, 8, 7, *[6] * 6, 8, *[9] * 4, 10, 10),
        Protocol.SIMPLE: (*[9] * 7, 8, 7, 6, 6, 5, 5, 5, 5, 6, 7, 8, 7, 7, 8, 9, 9),
    }
)
"""Tenths of a tree's bandwidth that it reaches with 64 bytes, 128 and so on; larger calls all."""

_LL_OF_RING, _LL128_OF_RING = 0.5, 0.92
_OF_TREE, _LL_OF_TREE = 0.92, 1 / 3.8
_LL128_OF_TREE_WITHIN, _LL128_OF_TREE_ACROSS = 7 / 9, 120 / 128
_OF_TREE_OF_SINGLE_GPUS = 0.85
_SIMPLE_OVERHEADS = 3
"""Times that Simple pays the network's overhead in each hop of a ring."""

_PLATEAU_BYTES = 64
_PLATEAU = (1.9, 1.4, 1.4, 1.4)
"""Factor of the latency of Simple's rings on several nodes, by generation, from this number of
bytes for each channel and rank."""

_THREADS = ByProtocol(512, 640, 512)
_THREAD_BYTES = ByProtocol(8, 8, 64)
"""Threads of a channel, and the least bytes of each (rings with LL: for each rank) for which NCCL
uses another channel."""

_TREE_THREADS = MappingProxyType(
    {
        Protocol.LL: (352 / 512, 160 / 512),
        Protocol.LL128: (448 / 640, 192 / 640),
        Protocol.SIMPLE: (352 / 512, 224 / 512),
    }
)
"""`block_shares` of trees: the threads of a channel's block that reduce and that broadcast,
over those that move data in a ring's block (src/device/all_reduce.h, runTreeSplit; with Simple the
block has 640 threads, 64 of which only post). That a block's rate grows with its threads is an
assumption. The rate of all threads is the model's, and not that of the tuner's row for trees, which
is for both ways of a channel of the search; a communicator makes two channels of it."""

_MOST_TURNS = 16
"""The most turns of a message that are simulated one by one."""

_TREE_LL128_BYTES, _TREE_SIMPLE_BYTES, _RING_SIMPLE_BYTES = 576_000, 2**19, 2**21
_ROOTED_BYTES = 2**19
_NVLS_BYTES, _MANY_NODES_BYTES = 2**17, 2**16
"""The most data that trees forward at once, and rings with Simple; of Broadcast and Reduce; NVLS,
and NVLSTree on four nodes or more."""

_MESSAGES = MappingProxyType(
    {
        "alltoall": "all-pairs-alltoall",
        "alltonext": "direct-alltonext",
        "gather": "flat-gather",
        "scatter": "flat-scatter",
    }
)
"""The collectives of grouped sends and receives, and their programs."""

_ROOTED = ("broadcast", "reduce")
_COLLECTIVES = ("allreduce", "allgather", "reducescatter", *_ROOTED, *_MESSAGES)

_P2P_LL_BYTES = 16384
_NVLINK_STEP_BYTES, _STEP_BYTES = 2**19, 2**17
"""The most bytes of a message in each channel with LL, and the bytes of a step of Simple's buffer:
over NVLink on one node, otherwise."""


def _view(collective: str, topology: Topology) -> MachineView:
    if collective not in _COLLECTIVES:
        raise D931.error(
            expected="one of " + ", ".join(_COLLECTIVES),
            found=repr(collective),
            remedy=did_you_mean(str(collective), _COLLECTIVES),
        )
    if topology.ranks < 2:
        raise D931.error(expected="two ranks or more", found=repr(topology))
    return MachineView.of(topology)


def _choice(
    collective: str, view: MachineView, size: int, algorithm: NcclAlgorithm, protocol: Protocol
) -> CollectiveChoice:
    us = _estimate_us(collective, view, size, algorithm, protocol)
    channels = _channels(view, algorithm, protocol, size)
    program, instances, rings, orders = _catalog(collective, view, algorithm, channels)
    tile, shares, heads = 1.0, (1.0, 1.0), None
    if collective in _ROOTED and protocol is Protocol.SIMPLE:
        tile = _ROOTED_BYTES / _RING_SIMPLE_BYTES
    if algorithm is NcclAlgorithm.TREE:
        tile, shares = _tree_tile(view, protocol, channels, size), _TREE_THREADS[protocol]
    elif algorithm in _NVLS_CHUNKS:
        tile = _nvls_tile(view, algorithm, size)
        heads = view.nvls.channels if view.nvls.channels < view.gpus else None
    return CollectiveChoice(
        algorithm,
        protocol,
        channels,
        us,
        program,
        instances,
        tile,
        rings,
        orders,
        heads,
        shares,
        algorithm is NcclAlgorithm.TREE or collective in _ROOTED,
    )


def _estimate_us(
    collective: str, view: MachineView, size: int, algorithm: NcclAlgorithm, protocol: Protocol
) -> float:
    if protocol is Protocol.LL128 and (view.rccl or not view.nvlink) and view.gpus > 1:
        return inf
    if algorithm is NcclAlgorithm.TREE and collective == "allreduce":
        return _tree_us(view, size, protocol)
    if algorithm is NcclAlgorithm.RING and collective not in _MESSAGES:
        return _ring_us(collective, view, size, protocol)
    if algorithm in _NVLS_CHUNKS and protocol is Protocol.SIMPLE:
        return _nvls_us(collective, view, size, algorithm)
    return inf


def _steps(collective: str, ranks: int) -> int:
    """The hops of a ring that each part of the data passes."""
    if collective in _ROOTED:
        return ranks
    return (2 if collective == "allreduce" else 1) * (ranks - 1)


def _ring_us(collective: str, view: MachineView, size: int, protocol: Protocol) -> float:
    rings, scale = view.rings, _scale(view)
    bus = rings.channels * _rate(view, rings)
    if protocol is Protocol.LL:
        bus = min(bus * _LL_OF_RING, _ll_GBps(view))
    elif protocol is Protocol.LL128:
        per_channel = _RING_LL128_GBPS[view.generation][scale]
        bus = min(bus * _LL128_OF_RING, rings.channels * per_channel)
    steps = _steps(collective, view.ranks)
    if collective in _ROOTED:
        latency = _rooted_latency_us(view, protocol, steps)
    else:
        latency = _ring_latency_us(view, protocol, steps, steps // (view.ranks - 1))
    plateau = view.nodes > 1 and collective == "allreduce" and protocol is Protocol.SIMPLE
    if plateau and size // (view.channels * view.ranks) >= _PLATEAU_BYTES:
        latency *= _PLATEAU[view.generation]
    return latency + size * steps / view.ranks / (bus * 1e3)


def _ring_latency_us(view: MachineView, protocol: Protocol, steps: int, rounds: int) -> float:
    """rounds: how often the data passes the ring."""
    row = _LATENCIES[NcclAlgorithm.RING]
    hop, network = _hop_us(view, NcclAlgorithm.RING, protocol), row.network[protocol]
    if view.nodes > 1:
        overhead = 2.0 if view.amd else 1.0
        hop = max(hop, overhead * (_SIMPLE_OVERHEADS if protocol is Protocol.SIMPLE else 1))
    if view.gpus == 1:  # nothing hides the latency of the network
        network = _LATENCIES[NcclAlgorithm.TREE].network[protocol]
    inter = rounds * (view.nodes - 1)
    return row.base[protocol] + (steps - inter) * hop + inter * network


def _rooted_latency_us(view: MachineView, protocol: Protocol, steps: int) -> float:
    """One hop if all rings visit the GPUs in one order, otherwise all hops."""
    row = _LATENCIES[NcclAlgorithm.RING]
    alike = view.nodes == 1 or view.cards == 1
    hop = row.network[protocol] if view.nodes > 1 else _hop_us(view, NcclAlgorithm.RING, protocol)
    return row.base[protocol] + (1 if alike else steps) * hop


def _tree_us(view: MachineView, size: int, protocol: Protocol) -> float:
    trees, scale = view.trees, _scale(view)
    bus = trees.channels * min(_rate(view, trees) * _OF_TREE, _TREE_GBPS[view.generation][scale])
    if protocol is Protocol.LL:
        bus = min(bus * _LL_OF_TREE, _ll_GBps(view))
    elif protocol is Protocol.LL128:
        share = _LL128_OF_TREE_WITHIN if view.nodes == 1 else _LL128_OF_TREE_ACROSS
        bus = min(bus * share, trees.channels * _TREE_LL128_GBPS[view.generation][scale])
    if view.gpus == 1:
        bus *= _OF_TREE_OF_SINGLE_GPUS
    bus *= _tree_share(size, protocol)
    row = _LATENCIES[NcclAlgorithm.TREE]
    depth = view.nodes.bit_length() - 1
    within = (view.gpus - 1) * _hop_us(view, NcclAlgorithm.TREE, protocol)
    latency = row.base[protocol] + 2 * (within + depth * row.network[protocol])
    return latency + 2 * size / (bus * 1e3)


def _tree_share(size: int, protocol: Protocol) -> float:
    """The share of a tree's bandwidth that a call reaches."""
    power = (size >> 6).bit_length() - 1
    shares = _TREE_SHARES[protocol]
    return shares[power] / 10 if 0 <= power < len(shares) else 1.0


def _nvls_us(collective: str, view: MachineView, size: int, algorithm: NcclAlgorithm) -> float:
    """The time of NVLS on one node, of NVLSTree on several; inf where NCCL has none of them."""
    tree, heads = algorithm is NcclAlgorithm.NVLS_TREE, view.nvls.channels
    collectives = ("allreduce",) if tree else ("allreduce", "allgather", "reducescatter")
    has_switches = view.switches and view.nvlink and view.gpus >= _LEAST_NVLS_GPUS
    if collective != "allreduce" and view.gpus > MAX_NVLS_HEADS:
        return inf
    if tree != (view.nodes > 1) or collective not in collectives or not has_switches or heads < 2:
        return inf
    rate = view.nvls.intra_GBps * _NVLS_SHARES[view.generation] * (heads - 1) / heads
    reduces_and_copies = collective == "allreduce"
    rate *= 2 if reduces_and_copies else (view.gpus - 1) / view.gpus
    rate = min(rate, view.nvls.inter_GBps * (2 if tree and view.nodes <= 2 else 1))
    if tree:
        rate = min(rate, _NVLS_TREE_GBPS[view.generation][_scale(view)])
        if view.generation is NcclGeneration.BLACKWELL:
            rate *= _tree_share(size, Protocol.SIMPLE)
    row, depth = _LATENCIES[algorithm], view.nodes.bit_length() - 1
    latency = row.nvlink.simple + 2 * depth * row.network.simple
    if not rate:
        return inf
    moved = size * _steps(collective, view.ranks) / view.ranks if reduces_and_copies else size
    return latency + moved / (rate * heads * 1e3)


def _nvls_tile(view: MachineView, algorithm: NcclAlgorithm, size: int) -> float:
    """`CollectiveChoice.tile` of NVLS."""
    tree = algorithm is NcclAlgorithm.NVLS_TREE
    chunk = _MANY_NODES_BYTES if tree and view.nodes >= 4 else _NVLS_BYTES
    at_once = view.nvls_channels * view.nvls.channels
    for chunks, least in _NVLS_CHUNKS[algorithm]:
        if size < chunks * at_once * chunk:
            chunk = min(chunk, least)
    return chunk / _RING_SIMPLE_BYTES


def _hop_us(view: MachineView, algorithm: NcclAlgorithm, protocol: Protocol) -> float:
    """The latency of a hop within a node."""
    row = _LATENCIES[algorithm]
    return (row.nvlink if view.nvlink else row.pcie)[protocol]


def _rate(view: MachineView, graph: Graph) -> float:
    """The rate of a channel: on two nodes that within a node."""
    return graph.intra_GBps if view.nodes <= 2 else graph.inter_GBps


def _scale(view: MachineView) -> int:
    """The column of a row of rates: one node, two, more."""
    return min(view.nodes, 3) - 1


def _ll_GBps(view: MachineView) -> float:  # noqa: N802 - a unit
    row = view.generation if view.nodes == 1 else int(view.amd)
    return _LL_GBPS[row][_scale(view)]


def _channels(view: MachineView, algorithm: NcclAlgorithm, protocol: Protocol, size: int) -> int:
    """The largest number of channels whose threads all have enough data; at least 1. NVLS has the
    same for all sizes."""
    if algorithm in _NVLS_CHUNKS:
        return view.nvls_channels
    least = int(_THREADS[protocol] * _THREAD_BYTES[protocol])
    if algorithm is NcclAlgorithm.RING and protocol is Protocol.LL:
        least *= view.ranks
    return max(min(view.channels, size // least), 1)


def _tree_tile(view: MachineView, protocol: Protocol, channels: int, size: int) -> float:
    """`tile` of a tree: halved until the data has enough pieces to fill the tree."""
    if protocol is Protocol.LL:
        return 1.0
    levels = view.nodes.bit_length() - 1
    if protocol is Protocol.LL128:
        longest = piece = _TREE_LL128_BYTES
        steps = (1 + levels + 0.1 * view.gpus) / view.gpus
        limits = [(64 * steps, 2**17), (16 * steps, 2**15)]
    else:
        longest, piece = _RING_SIMPLE_BYTES, _TREE_SIMPLE_BYTES
        depth = view.gpus - 1 + levels
        limits = [(8 * depth, 2**17), (4 * depth, 2**16), (depth, 2**15)]
    for pieces, least in limits:
        while size // (channels * piece) < pieces and piece > least:
            piece //= 2
    return piece / longest


def _catalog(
    collective: str, view: MachineView, algorithm: NcclAlgorithm, channels: int
) -> tuple[str, int, int | None, tuple[tuple[int, ...], ...]]:
    """`CollectiveChoice.program`, `instances`, `rings` and `orders`."""
    along = tuple(map(tuple, view.along_links.orders.tolist()))
    if algorithm is NcclAlgorithm.TREE:
        heads = len(along) or view.gpus
        return "multi-tree-allreduce", max(channels // (2 * heads), 1), None, along
    if algorithm is NcclAlgorithm.NVLS_TREE:
        return "nvls-tree-allreduce", channels // 2, None, ()
    if algorithm is NcclAlgorithm.NVLS:
        return f"nvls-{collective}", channels, None, ()
    if along:
        orders = along[:channels]
        return f"multi-ring-{collective}", channels // len(orders), None, orders
    if view.cards > 1 and view.rings.channels > 1 and channels > 1:
        if channels % view.gpus:
            return f"multi-ring-{collective}", 1, channels, ()
        return f"multi-ring-{collective}", channels // view.gpus, None, ()
    return f"ring-{collective}", channels, None, ()


def _sends(collective: str, view: MachineView, size: int) -> CollectiveChoice:
    """The choice for grouped sends and receives. Messages between nodes always use Simple, as NCCL
    has no buffers of LL for them."""
    total, most = view.p2p_channels
    message = size if collective == "alltonext" else -(-size // view.ranks)
    least = most
    while least * view.ranks > total and least > 1:
        least //= 2
    step = _NVLINK_STEP_BYTES if view.nodes == 1 and view.nvlink else _STEP_BYTES
    smallest, largest = (step // 8, step * 32) if view.nodes == 1 else (step // 2, step)
    channels = min(least, -(-message // smallest))
    while -(-message // channels) > largest and channels <= most // 2:
        channels *= 2
    low = view.nodes == 1 and message <= channels * _P2P_LL_BYTES
    protocol = Protocol.LL if low else Protocol.SIMPLE
    return CollectiveChoice(
        NcclAlgorithm.P2P, protocol, channels, None, _MESSAGES[collective], channels
    )
