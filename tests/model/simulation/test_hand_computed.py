"""Small simulations, calculated by hand: times in us from the call, which takes 10 to launch.

A block moves 10,000 bytes a us, so a chunk of 80,000 bytes takes 8 us. LL announces 2 us later what
Simple announces after a fence of 4 us; the network takes 8 us.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import sley
from sley.ir.cost_model import ByProtocol, CostModel
from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.plan import Plan
from sley.ir.topology import Builder, Topology
from sley.ir.words import LoopOrder, Op, Protocol
from sley.model.simulation import Cause
from support.inputs.small_plans import IN, OUT, SCRATCH, Hand, ring_allreduce

CHUNK = 80_000


def each(number: float) -> ByProtocol:
    return ByProtocol(number, number, number)


ROUND = CostModel(
    launch_us=each(10),
    network_call_us=0,
    nvlink_latency_us=ByProtocol(2, 2, 4),
    network_latency_us=each(8),
    nvlink_block_GBps=10,
    pcie_block_GBps=10,
    network_block_GBps=10,
    local_block_GBps=10,
    memory_GBps=1e6,
    wire_efficiency=each(1),
    tile_bytes=each(1e6),
    slices=each(1),
    least_slice_bytes=1,
    wait_us=1,
    fence_share=ByProtocol(0, 0, 1),
    interpreter_loss=0,
)


def star(ranks: int, model: CostModel, *rates: float) -> Topology:
    """GPUs around a switch, each with a rate of its own into it and out of it."""
    builder = Builder("star", np.zeros(ranks, np.int32))
    switch = builder.add(VertexKind.SWITCH, [0])
    rate = np.broadcast_to(np.array(rates or [1000.0]), ranks)
    builder.both(np.arange(ranks), switch, LinkKind.NVLINK, rate, rate)
    return builder.topology(model)


def simulated(
    plan: Plan, chunks: float, topology: Topology, protocol: Protocol = Protocol.LL, **others: Any
) -> sley.Simulation:
    """A call of so many chunks in all."""
    plan = replace(plan, protocol=protocol)
    return sley.simulate(plan, int(chunks * CHUNK), topology, executions=True, **others)


def spans(simulation: sley.Simulation) -> dict[tuple[int, int], tuple[float, float]]:
    """When each instruction moved each tile."""
    assert simulation.executions is not None
    return {
        (e.instruction, e.tile): (pytest.approx(e.start_us), pytest.approx(e.end_us))
        for e in simulation.executions
    }


def message(count: int = 1) -> Plan:
    """One message from rank 0 to rank 1."""
    hand = Hand()
    hand.add(0, 0, Op.SEND, (IN, 0), count=count, to=1)
    hand.add(1, 0, Op.RECV, dst=(OUT, 0), count=count, of=0)
    return hand.plan(sley.AllReduce(2, chunks=count))


def test_each_part_of_a_message_waits_for_its_fence() -> None:
    model = replace(ROUND, slices=each(2))
    found = simulated(message(), 1, star(2, model), Protocol.SIMPLE)
    # Parts of 4 us: moved 10-14 and 18-22, seen 4 us later; received 18-22 and 26-30.
    assert spans(found) == {(0, 0): (10, 26), (1, 0): (18, 30)}
    assert found.time_us == pytest.approx(30)
    assert found.blocks[0].moving_us == pytest.approx(8)
    assert found.blocks[0].overhead_us == pytest.approx(8)
    assert found.blocks[1].message_us == pytest.approx(8 + 4)
    assert found.algbw_GBps == pytest.approx(80 / 30)
    assert found.idle(to_exit=True).tolist() == pytest.approx([0, 1 - 8 / 20])
    assert found.idle(to_exit=False).tolist() == pytest.approx([1 - 16 / 20, 1 - 8 / 20])
    assert found.utilisation.tolist() == pytest.approx([0.004, 0, 0, 0.004])  # 80,000 in 20 us


def test_a_block_that_reduces_nothing_has_its_share_of_the_rate() -> None:
    hand = Hand()
    hand.add(0, 0, Op.SEND, (IN, 0), to=1)
    hand.add(1, 0, Op.RECV_REDUCE_COPY, (IN, 0), (OUT, 0), of=0)
    plan = hand.plan(sley.AllReduce(2))
    found = simulated(plan, 1, star(2, replace(ROUND, copy_share=0.5)))
    assert spans(found) == {(0, 0): (10, 26), (1, 0): (28, 36)}


def test_a_receiver_reads_a_message_of_direct_in_its_sender() -> None:
    """The result of a recv_reduce_send is in no buffer: its message is in a slot."""
    hand = Hand()
    hand.add(0, 0, Op.SEND, (IN, 0), to=1)
    hand.add(1, 0, Op.RECV_REDUCE_SEND, (IN, 0), to=2, of=0)
    hand.add(2, 0, Op.RECV_REDUCE_COPY, (IN, 0), (OUT, 0), of=1)
    plan = hand.plan(sley.AllReduce(3))
    found = simulated(plan, 1, star(3, ROUND), Protocol.DIRECT)
    # Announced after a fence, at once; read 14-22; the other one after a fence, too, at 26.
    assert spans(found) == {(0, 0): (10, 14), (1, 0): (14, 26), (2, 0): (26, 34)}
    assert found.links.moved_bytes.sum() == 2 * 2 * CHUNK
    slow = simulated(plan, 1, star(3, ROUND, 5, 1e3, 1e3), Protocol.DIRECT)
    assert spans(slow)[1, 0] == (14, 34), "the reader's move crosses the links"
    # The message in the memory of 0, the operand in that of 1, the slot in that of 2.
    tight = replace(ROUND, memory_GBps=5, local_block_GBps=1e3, nvlink_block_GBps=1e3)
    assert spans(simulated(plan, 1, star(3, tight), Protocol.DIRECT))[1, 0] == (14, 34)
    shared = replace(star(3, tight), shared_memory=True)
    assert spans(simulated(plan, 1, shared, Protocol.DIRECT))[1, 0] == (14, 66)


def test_the_sender_spends_its_share_of_the_latency() -> None:
    model = replace(ROUND, slices=each(2), fence_share=each(0.25))
    found = simulated(message(), 1, star(2, model), Protocol.SIMPLE)
    # Moved 10-14 and 15-19, each with 1 us more; seen 3 us after that, at 18 and 23.
    assert spans(found) == {(0, 0): (10, 20), (1, 0): (18, 27)}


def test_flags_in_the_data_take_half_of_ll() -> None:
    model = replace(ROUND, wire_efficiency=ByProtocol(0.5, 1, 1))
    found = simulated(message(), 1, star(2, model))
    assert spans(found) == {(0, 0): (10, 26), (1, 0): (28, 44)}
    assert found.links.moved_bytes.tolist() == [160_000, 0, 0, 160_000]
    own = simulated(message(), 1, star(2, model), Protocol.LL128)
    assert spans(own) == {(0, 0): (10, 18), (1, 0): (20, 28)}


def test_a_part_costs_as_much_as_its_overhead() -> None:
    model = replace(ROUND, slices=each(2), part_overhead_bytes=10_000)
    found = simulated(message(), 1, star(2, model))
    # Two parts of 40,000 + 10,000 bytes: moved 10-15 and 15-20, received 17-22 and 22-27.
    assert spans(found) == {(0, 0): (10, 20), (1, 0): (17, 27)}


def test_links_with_latencies_of_their_own_add_them_up() -> None:
    builder = Builder("pair", [0, 0])
    switch = builder.add(VertexKind.SWITCH, [0])
    builder.both([0, 1], switch, LinkKind.NVLINK, 1e3, 1e3, [0.5, 2.5])
    found = simulated(message(), 1, builder.topology(ROUND))
    assert spans(found) == {(0, 0): (10, 18), (1, 0): (21, 29)}


def test_two_messages_share_the_card_that_both_cross() -> None:
    hand = Hand()
    for rank in (0, 1):
        hand.add(rank, 0, Op.SEND, (IN, 0), to=rank + 2)
        hand.add(rank + 2, 0, Op.RECV, dst=(OUT, 0), of=rank)
    plan = hand.plan(sley.AllReduce(4))
    topology = Topology.cluster(2, 2, 1, nic_GBps=(20, 10), model=ROUND)
    # First hop 10-18; both on the wire at 5 GB/s, 18-34; seen at 42.
    found = simulated(plan, 1, topology, Protocol.SIMPLE)
    assert spans(found) == {(i, 0): (10, 18) if i < 2 else (42, 50) for i in range(4)}
    card = [i for i in range(len(topology.links)) if found.links.moved_bytes[i] == 2 * CHUNK]
    assert [topology.link_label(i) for i in card] == [
        "NIC 0 -> network 0",
        "network 0 -> NIC 1",
    ]
    # Parts: first hops 10-14 and 14-18; on the wire 14-22 and 22-30; seen at 30 and 38.
    topology = replace(topology, model=replace(ROUND, slices=each(2)))
    found = simulated(plan, 1, topology, Protocol.SIMPLE)
    assert spans(found) == {(i, 0): (10, 18) if i < 2 else (30, 42) for i in range(4)}


def messages(number: int) -> Plan:
    """Messages from rank 0 to rank 1, one after another."""
    hand = Hand()
    for k in range(number):
        hand.add(0, 0, Op.SEND, (IN, k), to=1)
        hand.add(1, 0, Op.RECV, dst=(OUT, k), of=0)
    return hand.plan(sley.AllReduce(2, chunks=number))


def test_each_end_of_the_network_has_slots_of_its_own() -> None:
    topology = Topology.cluster(2, 1, nic_GBps=(20, 10), model=ROUND)
    # First hop 10-18, wire 22-30, seen at 34, received 34-42. The sender knows at 38 that its slot
    # is free, and its proxy at 50 that the receiver's is: 38-46, 50-58, 62-70.
    found = simulated(messages(2), 2, topology)
    assert spans(found) == {(0, 0): (10, 18), (2, 0): (34, 42), (1, 0): (38, 46), (3, 0): (62, 70)}
    assert found.blocks[0].slot_us == pytest.approx(38 - 18)
    # With two slots the second one follows part after part.
    found = simulated(messages(2), 2, topology, slots=2)
    assert spans(found) == {(0, 0): (10, 18), (1, 0): (18, 26), (2, 0): (34, 42), (3, 0): (42, 50)}


def test_a_part_crosses_the_network_when_the_receiver_has_room() -> None:
    model = replace(ROUND, local_block_GBps=2.5)
    found = simulated(messages(3), 3, Topology.cluster(2, 1, nic_GBps=(20, 10), model=model))
    # Received in 32 us each. The second part is ready at 50, and on the wire 74-82, when the proxy
    # knows that the first has been received; the sender knows at 90.
    sent, received = ([spans(found)[i, 0] for i in span] for span in (range(3), range(3, 6)))
    assert sent == [(10, 18), (38, 46), (90, 98)]
    assert received == [(34, 66), (86, 118), (138, 170)]
    e = found.executions
    assert e is not None
    third = int(np.flatnonzero(e.instruction == 2)[0])
    assert (e.cause[third], e.instruction[e.after[third]]) == (Cause.SLOT, 3)


def test_a_flag_says_that_room_is_free_whatever_the_protocol() -> None:
    # Moved 10-18, seen after the fence at 22, received 22-30; freed 2 us later, as a flag of LL.
    found = simulated(messages(2), 2, star(2, ROUND), Protocol.SIMPLE)
    assert [spans(found)[i, 0] for i in range(2)] == [(10, 22), (32, 44)]


def test_room_of_a_forwarded_part_is_free_before_the_fence() -> None:
    hand = Hand()
    for _ in range(2):
        hand.add(0, 0, Op.SEND, (IN, 0), to=1)
        hand.add(1, 0, Op.RECV_COPY_SEND, (IN, 0), (OUT, 0), to=2, of=0)
        hand.add(2, 0, Op.RECV, dst=(OUT, 0), of=1)
    found = simulated(hand.plan(sley.AllReduce(3)), 1, star(3, ROUND), Protocol.SIMPLE)
    # Forwarded 22-30, fenced until 34; rank 0 knows at 32.
    assert [spans(found)[i, 0] for i in range(4)] == [(10, 22), (32, 44), (22, 34), (44, 56)]


FAST = replace(ROUND, network_block_GBps=40, local_block_GBps=40, post_us=6, proxy_us=6)
"""A chunk takes 2 us in each move; a hop's 8 us are 6 of posts and 2 after the wire."""


def fast(model: CostModel, ranks: int) -> Topology:
    """Two nodes with a card of 40 GB/s for each rank."""
    return Topology.cluster(2, ranks, nic_GBps=(80, 40), model=model)


def test_posts_limit_the_rate_of_a_connection() -> None:
    # Moved 10-12 and 12-14, posted 12-18 and 18-24, on the wire 18-20 and 24-26.
    found = simulated(messages(2), 2, fast(FAST, 1), slots=2)
    assert spans(found) == {(0, 0): (10, 12), (1, 0): (12, 14), (2, 0): (22, 24), (3, 0): (28, 30)}
    # A part has its share of a message's posts: half messages, 3 us each.
    parts = replace(FAST, slices=each(2), network_latency_us=each(6))
    found = simulated(message(), 1, fast(parts, 1))
    # Moved 10-11 and 11-12, posted after both at 12-15 and 15-18, as flags announce them, on the
    # wire 15-16 and 18-19, 3 us more.
    assert spans(found) == {(0, 0): (10, 12), (1, 0): (19, 23)}


def test_only_a_call_that_crosses_the_network_wakes_proxies() -> None:
    model = replace(ROUND, network_call_us=20)
    apart, beside = (Topology.cluster(2 // gpus, gpus, model=model) for gpus in (1, 2))
    assert simulated(message(), 1, apart).launch_us == 30
    assert simulated(message(), 1, beside).launch_us == 10


def test_a_ranks_connections_share_its_proxy() -> None:
    # Both posted 12-24 and on the wire 24-28; with a proxy each, 12-18 and 18-20.
    found = simulated(two_blocks(1, 1), 1, fast(FAST, 1))
    assert spans(found)[2, 0] == spans(found)[3, 0] == (30, 32)
    hand = Hand()
    for rank in (0, 1):
        hand.add(rank, 0, Op.SEND, (IN, 0), to=rank + 2)
        hand.add(rank + 2, 0, Op.RECV, dst=(OUT, 0), of=rank)
    found = simulated(hand.plan(sley.AllReduce(4)), 1, fast(FAST, 2))
    assert spans(found)[2, 0] == spans(found)[3, 0] == (22, 24)
    # If it is busy during half of the posts, it can serve both connections at once.
    found = simulated(two_blocks(1, 1), 1, fast(replace(FAST, proxy_us=3), 1))
    assert spans(found)[2, 0] == spans(found)[3, 0] == (24, 26)
    # A message takes at least the time of the proxy.
    found = simulated(two_blocks(1, 1), 1, fast(replace(FAST, post_us=0), 1))
    assert spans(found)[2, 0] == spans(found)[3, 0] == (30, 32)


def two_blocks(*destinations: int, chunks: tuple[int, ...] = (), ranks: int = 2) -> Plan:
    """Rank 0 sends to each destination from a block of its own."""
    hand = Hand()
    counts = chunks or (1,) * len(destinations)
    for block, (dst, count) in enumerate(zip(destinations, counts, strict=True)):
        hand.add(0, block, Op.SEND, (IN, 0), count=count, to=dst, channel=block)
        hand.add(dst, block, Op.RECV, dst=(OUT, 0), count=count, of=0, channel=block)
    return hand.plan(sley.AllReduce(ranks, chunks=max(counts)))


def test_two_blocks_share_the_rate_of_a_link() -> None:
    topology = star(2, replace(ROUND, local_block_GBps=100), 16)
    # Both at 8 GB/s until one is done after 10 us; what is left of the other, 80,000, at 10 GB/s.
    found = simulated(two_blocks(1, 1, chunks=(1, 2)), 2, topology)
    moved = spans(found)
    assert moved[0, 0] == (10, 20)
    assert moved[1, 0] == (10, 28)


def test_other_flows_get_the_rate_that_one_flow_cannot_use() -> None:
    # Into rank 1 go 2 GB/s, out of rank 0 come 12: the others get 5 each.
    topology = star(4, ROUND, 12, 2, 100, 100)
    moved = spans(simulated(two_blocks(1, 2, 3, ranks=4), 1, topology))
    assert moved[0, 0] == (10, 50)
    assert moved[1, 0] == moved[2, 0] == (10, 26)
    # With blocks of 3 GB/s nothing is short but the way into rank 1.
    topology = star(4, replace(ROUND, nvlink_block_GBps=3), 12, 2, 100, 100)
    moved = spans(simulated(two_blocks(1, 2, 3, ranks=4), 1, topology))
    assert moved[0, 0] == (10, 50)
    assert moved[1, 0] == moved[2, 0] == (10, pytest.approx(10 + 80 / 3))


@pytest.mark.parametrize(("local_GBps", "sent", "copied"), [(4, 15, 50), (20, 20, 26 + 2 / 3)])
def test_memory_is_shared_by_what_each_reads_and_writes(
    local_GBps: float,  # noqa: N803 - a unit
    sent: float,
    copied: float,
) -> None:
    """A copy of two chunks beside a send of one, over 24 GB/s of memory."""
    hand = Hand()
    hand.add(0, 0, Op.COPY, (IN, 0), (OUT, 0), count=2)
    hand.add(0, 1, Op.SEND, (IN, 0), to=1)
    hand.add(1, 0, Op.RECV, dst=(OUT, 0), of=0)
    plan = hand.plan(sley.AllReduce(2, chunks=2))
    # A copy at its 4 GB/s takes 8 of the 24 and leaves 16: 5 us. One that could do 20 shares:
    # 24 over three, 8 GB/s each, 10 us; what is left of it goes on at 12.
    model = replace(ROUND, memory_GBps=24, local_block_GBps=local_GBps, nvlink_block_GBps=20)
    moved = spans(simulated(plan, 2, star(2, model)))
    assert moved[1, 0] == (10, sent)
    assert moved[0, 0] == (10, copied)


OPERATIONS = {
    Op.COPY: (2, 0, 0),
    Op.REDUCE: (3, 0, 0),
    Op.RECV: (2, 0, 0),
    Op.RECV_REDUCE_COPY: (3, 0, 0),
    Op.SEND: (1, 1, 2),
    Op.RECV_COPY_SEND: (2, 1, 3),
    Op.RECV_REDUCE_SEND: (2, 1, 3),
    Op.RECV_REDUCE_COPY_SEND: (3, 1, 4),
    Op.COPY_SEND: (2, 1, 3),
}
"""How often each reads and writes its own memory, the peer's, and its own where that is in
another node: then it writes into a FIFO there."""


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("where", ["node", "network", "shared"])
def test_every_operation_takes_memory_as_often_as_it_reads_and_writes(op: Op, where: str) -> None:
    """Memory of 6 GB/s is all that limits rank 1, which does the operation."""
    hand = Hand()
    if "RECV" in op.name:
        hand.add(0, 0, Op.SEND, (IN, 0), to=1)
    to, of = (2 if "SEND" in op.name else -1), (0 if "RECV" in op.name else -1)
    hand.add(1, 0, op, (IN, 0), (OUT, 0), to=to, of=of)
    if "SEND" not in op.name:
        hand.add(1, 0, Op.SEND, (IN, 0), to=2)
    hand.add(2, 0, Op.RECV, dst=(OUT, 0), of=1)
    plan = hand.plan(sley.AllReduce(3))
    rates = {"nvlink_block_GBps": 1e3, "network_block_GBps": 1e3, "local_block_GBps": 1e3}
    model = replace(ROUND, memory_GBps=6, **rates)
    topology = star(3, model)
    if where == "network":
        topology = Topology.cluster(3, 1, nic_GBps=(1e3, 1e3), model=model)
    if where == "shared":
        topology = replace(topology, shared_memory=True)
    own, peers, remote = OPERATIONS[op]
    times = {"node": max(own, peers), "network": remote or own, "shared": own + peers}[where]
    row = int(np.flatnonzero(plan.rank == 1)[0])
    begin, end = spans(simulated(plan, 1, topology))[row, 0]
    assert end.expected - begin.expected == pytest.approx(CHUNK * times / 6000)


def test_a_sender_waits_for_slots() -> None:
    topology = star(2, replace(ROUND, local_block_GBps=5))
    # Seen at 20, received 20-36, given back at 38; and so again.
    one = simulated(messages(3), 3, topology)
    assert one.time_us == pytest.approx(92)
    sent = [spans(one)[i, 0] for i in range(3)]
    assert sent == [(10, 18), (38, 46), (66, 74)]
    assert one.blocks[0].slot_us == pytest.approx(20 + 20)
    assert one.blocks[1].message_us == pytest.approx(10 + 12 + 12)
    # The third one waits until the first has been received, 20-36.
    two = simulated(messages(3), 3, topology, slots=2)
    sent = [spans(two)[i, 0] for i in range(3)]
    assert sent == [(10, 18), (18, 26), (38, 46)]
    assert two.time_us == pytest.approx(20 + 3 * 16)
    assert two.blocks[0].slot_us == pytest.approx(12)
    three = simulated(messages(3), 3, topology, slots=3)
    assert three.blocks[0].slot_us == 0


def test_parts_take_their_share_of_a_slot() -> None:
    model = replace(ROUND, local_block_GBps=5, slices=each(2))
    # Parts of 4 us, received in 8. The one slot has room for the parts of the first message; a
    # part is given back at 24 and 32, and its room filled again 24-28 and 32-36.
    found = simulated(messages(2), 2, star(2, model))
    assert spans(found) == {(0, 0): (10, 18), (2, 0): (16, 32), (1, 0): (26, 38), (3, 0): (32, 48)}


def test_a_message_in_one_part_needs_a_whole_slot() -> None:
    hand = Hand()
    for count in (2, 1):
        hand.add(0, 0, Op.SEND, (IN, 0), count=count, to=1)
        hand.add(1, 0, Op.RECV, dst=(OUT, 0), count=count, of=0)
    plan = hand.plan(sley.AllReduce(2, chunks=2))
    model = replace(ROUND, local_block_GBps=5, slices=each(2), least_slice_bytes=CHUNK)
    # Two parts, received 20-36 and 36-52 and given back at 38 and 54: half a slot is not enough.
    moved = spans(simulated(plan, 2, star(2, model)))
    assert moved[0, 0] == (10, 26)
    assert moved[1, 0] == (54, 62)


def test_chunks_take_a_slot_each_where_messages_are_cut() -> None:
    topology = star(2, replace(ROUND, local_block_GBps=5))
    # As three messages through one slot; whole, the message takes 24 us and then 48.
    cut = replace(message(3), per_chunk=True)
    assert simulated(cut, 3, topology).time_us == pytest.approx(92)
    assert simulated(message(3), 3, topology).time_us == pytest.approx(10 + 24 + 2 + 48)


def test_waits_cost_even_when_they_are_over() -> None:
    hand = Hand()
    hand.add(0, 0, Op.COPY, (IN, 0), (OUT, 0))
    hand.add(0, 1, Op.SEND, (IN, 0), to=1, waits=((0, 0),))
    hand.add(0, 1, Op.SEND, (IN, 0), to=1, waits=((0, 0),))
    hand.add(1, 0, Op.RECV, dst=(OUT, 0), of=0)
    hand.add(1, 0, Op.RECV, dst=(OUT, 0), of=0)
    found = simulated(hand.plan(sley.AllReduce(2), slots=2), 1, star(2, ROUND))
    moved = spans(found)
    assert moved[0, 0] == (10, 18)
    assert moved[1, 0] == (19, 27)
    assert moved[2, 0] == (28, 36)
    assert found.blocks[1].waiting_us == pytest.approx(8)
    assert found.blocks[1].overhead_us == pytest.approx(2)


def test_a_wait_is_for_the_same_tile() -> None:
    hand = Hand()
    hand.add(0, 0, Op.COPY, (IN, 0), (SCRATCH, 0))
    hand.add(0, 1, Op.COPY, (SCRATCH, 0), (OUT, 0), waits=((0, 0),))
    hand.add(0, 1, Op.SEND, (OUT, 0), to=1)
    hand.add(1, 0, Op.RECV, dst=(OUT, 0), of=0)
    plan = hand.plan(sley.AllReduce(2), scratch=1, slots=2)
    model = replace(ROUND, tile_bytes=each(CHUNK / 2), nvlink_block_GBps=1e3)
    # Tiles of 4 us: the second block begins when the first tile is there; sending it on takes
    # 0.04 us.
    moved = spans(simulated(plan, 1, star(2, model)))
    assert [moved[0, tile] for tile in range(2)] == [(10, 14), (14, 18)]
    assert [moved[1, tile] for tile in range(2)] == [(15, 19), (20.04, 24.04)]


@pytest.mark.parametrize(
    ("order", "sends", "ends"),
    [(LoopOrder.TILE, (0, 26), (44, 52)), (LoopOrder.INSTRUCTION, (0, 18), (36, 52))],
)
def test_the_loop_order_decides_which_tile_is_sent_when(
    order: LoopOrder, sends: tuple[float, float], ends: tuple[float, float]
) -> None:
    hand = Hand()
    for rank in (1, 2):
        hand.add(0, 0, Op.SEND, (IN, 0), to=rank)
        hand.add(rank, 0, Op.RECV, dst=(OUT, 0), of=0)
    plan = hand.plan(sley.AllReduce(3), loop_order=order, slots=2)
    model = replace(ROUND, tile_bytes=each(CHUNK))
    # Two tiles of 8 us for each of two ranks: the second for rank 1 goes third or second.
    found = simulated(plan, 2, star(3, model))
    assert found.tiles == 2
    assert spans(found)[0, 1] == (sends[1], sends[1] + 8)
    assert found.blocks.end_us.tolist() == pytest.approx([42, *ends])


def test_the_last_tile_has_what_is_left() -> None:
    model = replace(ROUND, tile_bytes=each(CHUNK))
    found = simulated(message(), 2.5, star(2, model), slots=8)
    assert found.tiles == 3
    assert found.tile_bytes == CHUNK
    sent = [spans(found)[0, tile] for tile in range(3)]
    assert sent == [(10, 18), (18, 26), (26, 30)]
    assert found.links.moved_bytes.tolist() == pytest.approx([2.5 * CHUNK, 0, 0, 2.5 * CHUNK])
    # A message of two chunks has tiles of half a chunk each.
    pairs = simulated(message(2), 2, star(2, model))
    assert (pairs.tiles, pairs.tile_bytes) == (2, CHUNK / 2)
    cut = simulated(replace(message(2), per_chunk=True), 2, star(2, model))
    assert (cut.tiles, cut.tile_bytes) == (1, CHUNK)


def test_an_interpreter_is_slower() -> None:
    topology = star(2, replace(ROUND, interpreter_loss=0.2, decode_us=0.5))
    assert spans(simulated(message(), 1, topology)) == {(0, 0): (10, 18), (1, 0): (20, 28)}
    found = simulated(message(), 1, topology, interpreter=True)
    # 8 GB/s: 10 us; the receiver decodes while it waits.
    assert spans(found) == {(0, 0): (10.5, 20.5), (1, 0): (22.5, 32.5)}
    assert found.blocks.overhead_us.tolist() == pytest.approx([0.5, 0.5])


def to_and_from(*peers: int) -> Plan:
    """Rank 0 sends its data to some ranks, and sums theirs."""
    hand = Hand()
    for peer in peers:
        hand.add(0, 0, Op.SEND, (IN, 0), to=peer)
        hand.add(peer, 0, Op.SEND, (IN, 0), to=0)
        hand.add(peer, 0, Op.RECV, dst=(OUT, 0), of=0)
    for peer in peers:
        own = OUT if peer != peers[0] else IN
        hand.add(0, 0, Op.RECV_REDUCE_COPY, (own, 0), (OUT, 0), of=peer)
    return hand.plan(sley.AllReduce(3, chunks=1))


def test_a_run_is_one_execution_of_the_words_that_it_moves() -> None:
    """Its operands in registers aren't loaded, and what the next instruction overwrites isn't
    stored. The peers' own two instructions are no run: a send of own data precedes a receive."""
    apart = spans(simulated(to_and_from(1, 2), 1, star(3, ROUND)))
    assert [apart[row, 0] for row in range(4)] == [(10, 18), (18, 26), (26, 34), (34, 42)]
    topology = star(3, replace(ROUND, runs=1, decode_us=0.5))
    found = spans(simulated(to_and_from(1, 2), 1, topology, interpreter=True))
    # Two loads and four stores of a send's four, then two thirds of each sum.
    assert found[0, 0] == (10.5, 10.5 + 8 + 4)
    assert found[2, 0] == (23, 23 + 8 * 2 / 3 + 8 * 2 / 3)
    assert found[4, 0] == (10.5, 18.5)
    assert found[5, 0] == (24.5, 32.5)
    slow = star(3, replace(ROUND, runs=1, memory_GBps=5))
    start, end = spans(simulated(to_and_from(1, 2), 1, slow))[2, 0]
    assert end == pytest.approx(start.expected + 3 * 16 + 16)  # three loads and a store


def test_each_block_of_a_gpu_delays_a_call() -> None:
    hand = Hand()
    for block in range(3):
        hand.add(0, block, Op.COPY, (IN, 0), (OUT, 0))
    hand.add(1, 0, Op.COPY, (IN, 0), (OUT, 0))
    plan = hand.plan(sley.AllReduce(2, chunks=1))
    topology = star(2, replace(ROUND, block_us=0.5))
    assert simulated(plan, 1, topology).launch_us == pytest.approx(10 + 3 * 0.5)
    shared = replace(topology, shared_memory=True)
    assert simulated(plan, 1, shared).launch_us == pytest.approx(10 + 4 * 0.5)


def test_contention_takes_capacity_away() -> None:
    topology = star(2, replace(ROUND, contention=0.25, local_block_GBps=100), 10)
    # Two blocks of 10 GB/s on 10: z = 2, 10 / 1.25 = 8, 4 GB/s each for 20 us; then one alone.
    moved = spans(simulated(two_blocks(1, 1, chunks=(1, 2)), 2, topology))
    assert moved[0, 0] == (10, 30)
    assert moved[1, 0] == (10, 38)


def test_contention_on_the_wire_counts_the_blocks_behind_it() -> None:
    hand = Hand()
    hand.add(0, 0, Op.SEND, (IN, 0), to=1)
    hand.add(1, 0, Op.RECV, dst=(OUT, 0), of=0)
    model = replace(ROUND, contention=0.25, network_block_GBps=40)
    topology = Topology.cluster(2, 1, nic_GBps=(20, 20), model=model)
    # First hop 2 us; z = 2: 20 / 1.25 = 16 GB/s, 5 us; seen 8 us later.
    found = simulated(hand.plan(sley.AllReduce(2)), 1, topology)
    assert spans(found) == {(0, 0): (10, 12), (1, 0): (25, 33)}


def test_a_fused_ring_takes_the_time_computed_by_hand() -> None:
    plan = ring_allreduce(3, fused=True)
    # Four hops of 8 + 2 us, and the last receive.
    found = simulated(plan, 3, star(3, ROUND))
    assert found.time_us == pytest.approx(10 + 4 * 10 + 8)
    assert found.links.moved_bytes.tolist() == [4 * CHUNK] * 6
    assert len(found.critical) == 5
    # Simple: a part is moved in 4 us, with its fence in 8; four sends of 16 us without a gap,
    # and the receive of both parts.
    parts = replace(ROUND, slices=each(2))
    found = simulated(plan, 3, star(3, parts), Protocol.SIMPLE)
    assert found.time_us == pytest.approx(10 + 4 * 16 + 8)
    assert found.busbw_GBps == pytest.approx(240 / 82 * 4 / 3)


def test_the_critical_path_ends_where_an_execution_waited_for_its_own_part() -> None:
    hand = Hand()
    for chunk in (0, 2):
        hand.add(0, 0, Op.SEND, (IN, chunk), count=2, to=1)
        hand.add(1, 0, Op.RECV, dst=(OUT, chunk), count=2, of=0)
    plan = replace(hand.plan(sley.AllReduce(2, chunks=4)), per_chunk=True)
    network = replace(sley.topologies.cluster(2, 1), model=ROUND)
    way = simulated(plan, 4, network).critical
    # Each message's second part waits until its first one has left the only slot.
    assert way.instruction.tolist() == [0, 0, 1, 1, 3]
    assert way.cause.tolist() == [Cause.LAUNCH, *[Cause.SLOT] * 3, Cause.MESSAGE]
