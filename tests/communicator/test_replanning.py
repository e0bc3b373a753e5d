"""Communicators of several hosts that go on after an interface has failed, and replan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sley.communicator import Communicator, LocalStore, MpiStore, Network, Settings, opening
from sley.communicator.rendezvous.hosts import Hosts
from sley.communicator.rendezvous.nics import Nic
from sley.communicator.rendezvous.survey import Survey
from sley.communicator.selection.kinds import Request
from sley.communicator.selection.ready_plans import Capacity
from sley.communicator.selection.replanned import REPLANNED, faster_trees, rows_of, topology_of
from sley.errors import SleyError
from sley.errors.calls import N628
from support.processes import networks, rank_processes
from support.processes.threads_group import Ranks

TIMEOUT_S = 6.0
TWO_BY_TWO = Hosts.of(["a", "a", "b", "b"])
LO = Nic("lo", ("127.0.0.1",))


def settings(**given: Any) -> Settings:
    return Settings(
        **{"timeout_s": TIMEOUT_S, "use_cache": False, "replan": True, "network": Network.TCP}
        | given
    )


def hosts_of_two() -> Ranks:
    """Two hosts of two ranks each, which reach one another over the loopback interface."""
    environs = [{"SLEY_HOST_ID": str(rank // 2), "SLEY_NICS": "lo"} for rank in range(4)]
    return Ranks(4, settings(), environs)


def found(*sent: list[float]) -> Survey:
    """A survey in which hosts send and receive over their interfaces at these rates in GB/s."""
    rates = np.array(sent)
    return Survey(((LO,) * len(sent),) * rates.shape[1], rates, rates)


def sums(comm: Communicator, **more: Any) -> None:
    """Makes calls of all kinds that trees serve, in both places, and checks them."""
    size = 24_000 * comm.ranks
    data = np.arange(size, dtype=np.float64) + comm.rank
    total = comm.ranks * np.arange(size, dtype=np.float64) + sum(range(comm.ranks))
    part = slice(comm.rank * size // comm.ranks, (comm.rank + 1) * size // comm.ranks)
    out = np.zeros(size)
    comm.all_reduce(data, out, **more).wait()
    np.testing.assert_array_equal(out, total)
    again = data.copy()
    comm.all_reduce(again, **more).wait()
    np.testing.assert_array_equal(again, total)
    comm.all_gather(total[part].copy(), again, **more).wait()
    np.testing.assert_array_equal(again, total)
    mine = np.zeros(size // comm.ranks)
    comm.reduce_scatter(data, mine, **more).wait()
    np.testing.assert_array_equal(mine, total[part])


def test_ranks_replan_on_the_network_as_it_is() -> None:
    with hosts_of_two() as ranks:
        ranks.each(sums)
        ranks.each(lambda comm: comm.replan())
        ranks.each(lambda comm: sums(comm, async_op=True))
        rows = ranks.comms[0].stats()
        assert sum(row.calls for row in rows if row.kind == "all_reduce") == 4
        assert len({row[3:9] for row in rows if row.kind == "all_gather"}) == 1


def test_trees_run_where_an_interface_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Survey(((LO, LO), (LO, LO)), *[np.array([[1.0, 0.5], [1.0, 1.0]])] * 2)
    monkeypatch.setattr(opening, "survey", lambda rendezvous, known: slow)
    with hosts_of_two() as ranks:
        ranks.each(lambda comm: comm.replan())
        plans = ranks.comms[0].plans
        for kind in REPLANNED:
            request = Request(kind, ranks.comms[0].hosts, 64 << 20)
            first, *others = plans.considered(request)
            assert "forest-" in first
            assert "trees for the measured rates" in first
            assert any("one rate" in line for line in others)
        ranks.each(sums)
        assert any("forest" in row.plan for row in ranks.comms[0].stats())
        monkeypatch.setattr(opening, "survey", lambda rendezvous, known: found([1.0], [1.0]))
        ranks.each(lambda comm: comm.replan())
        assert "forest-" not in plans.considered(request)[0]


@pytest.mark.parametrize("in_place", [False, True])
def test_trees_are_taken_only_where_rates_or_shares_differ(in_place: bool) -> None:
    capacity = Capacity(4, 8, 32)
    even = Survey(((LO, LO), (LO, LO)), *[np.array([[1.0, 0.9], [1.0, 0.85]])] * 2)
    assert not faster_trees(TWO_BY_TWO, even, capacity)
    uneven = Survey(((LO, LO), (LO, LO)), *[np.array([[1.0, 0.45], [1.0, 1.0]])] * 2)
    assert topology_of(TWO_BY_TWO, uneven).nodes == 2
    made = faster_trees(TWO_BY_TWO, uneven, capacity)
    rows = rows_of(made, TWO_BY_TWO)
    assert set(rows) == set(REPLANNED)
    # One interface at half of its rate: three quarters of the bandwidth are left, not half.
    assert made["all_reduce"]["gain"] == pytest.approx(1.5, rel=0.02)
    assert not faster_trees(TWO_BY_TWO, uneven, Capacity(4, 8, 1))
    three = Survey(((LO,) * 2,) * 3, np.ones((2, 3)), np.ones((2, 3)))
    shared = Hosts.of(["a"] * 4 + ["b"] * 4)
    assert faster_trees(shared, three, Capacity(8, 8, 32))["all_reduce"]["gain"] > 1.4


def test_calls_in_one_order_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Survey(((LO, LO), (LO, LO)), *[np.array([[1.0, 0.5], [1.0, 1.0]])] * 2)
    monkeypatch.setattr(opening, "survey", lambda rendezvous, known: slow)
    environs = [{"SLEY_HOST_ID": str(rank // 2), "SLEY_NICS": "lo"} for rank in range(4)]
    with Ranks(4, settings(same_bits=True), environs) as ranks:
        ranks.each(lambda comm: comm.replan())
        ranks.each(sums)
        assert not any("forest" in row.plan for row in ranks.comms[0].stats())


def test_a_stall_that_the_network_did_not_cause_ends_the_communicator() -> None:
    with hosts_of_two() as ranks:
        data = np.ones(1000, np.float32)
        ranks.each(lambda comm: comm.endpoint.set_timeout(0.8))
        errors = ranks.errors(lambda comm: comm.rank != 1 and comm.all_reduce(data, data * 0))
        for rank in (0, 2, 3):
            assert isinstance(errors[rank], SleyError)
            assert errors[rank].code in ("N621", "N608"), errors[rank]  # type: ignore[union-attr]
        with pytest.raises(SleyError, match="N630"):
            ranks.comms[0].all_reduce(data)


def test_ranks_that_can_t_connect_meet_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where another interface fails while they meet."""
    connect, refused = opening.connect, list[int]()

    def failing(fabric: Any, rendezvous: Any, *arguments: Any, **more: Any) -> Any:
        transport = connect(fabric, rendezvous, *arguments, **more)
        if rendezvous.rank == 2 and len(refused) < 2:
            refused.append(rendezvous.rank)
            transport.close(0)
            raise N628.error(expected="a connection", found="none")
        return transport

    with hosts_of_two() as ranks:
        monkeypatch.setattr(opening, "connect", failing)
        ranks.each(lambda comm: comm.replan())
        ranks.each(sums)
        assert refused == [2, 2]
        refused[:] = []
        monkeypatch.setattr(opening, "_MOST_TRIES", 2)
        errors = ranks.errors(lambda comm: comm.replan())
        assert all(isinstance(error, SleyError) for error in errors)
        assert "N628" in str(errors[2])
        assert "N608" in str(errors[0])


def test_one_host_has_no_interfaces_to_replan() -> None:
    with Ranks(2, settings()) as ranks:
        ranks.each(lambda comm: comm.replan())
        ranks.each(sums)


def test_replanning_needs_the_setting_and_a_store_that_lasts() -> None:
    with Communicator(LocalStore(), 0, 1) as comm, pytest.raises(SleyError, match="SLEY_REPLAN"):
        comm.replan()
    store = MpiStore.__new__(MpiStore)
    with pytest.raises(SleyError, match="a store that lasts"):
        Communicator(store, 0, 1, settings=settings())


def living(comm: Communicator, folder: Path) -> list[str]:
    """Calls beside cuts that the test makes when files tell it: the codes of the calls that end
    with an error."""
    ended = []

    def meet(word: str) -> None:
        (folder / f"{word}-{comm.rank}").touch()
        rank_processes.wait_for_file(folder / word, 4 * TIMEOUT_S)

    sums(comm)
    meet("cut")
    sums(comm)  # the first one is repeated
    next_rank, came = (comm.rank + 1) % comm.ranks, np.zeros(8)
    work = comm.recv(came, async_op=True)
    comm.send(np.full(8, float(comm.rank)), next_rank)
    work.wait()
    assert (came == (comm.rank - 1) % comm.ranks).all()
    meet("mended")
    comm.replan()
    sums(comm)
    meet("cut again")
    for _ in range(2):
        data = np.ones(100_000)
        try:
            comm.all_reduce(data)
            assert (data == comm.ranks).all()
        except SleyError as error:
            ended.append(error.code)
    sums(comm, async_op=True)
    return ended


@pytest.mark.skipif(not networks.is_possible(), reason="needs network namespaces, so root")
@pytest.mark.parametrize(
    "network", [Network.TCP, pytest.param(Network.AUTO, marks=pytest.mark.slow)]
)
def test_calls_go_on_over_the_interface_that_is_left(network: Network, tmp_path: Path) -> None:
    with networks.cable(nics=2, ranks=4) as cables:
        started = rank_processes.start(
            4,
            living,
            tmp_path,
            settings=settings(network=network),
            environ=cables.environ,
            enter=cables.enter,
        )
        for word, change in (
            ("cut", lambda: cables.cut(1)),
            ("mended", lambda: cables.mend(1)),
            ("cut again", lambda: cables.lose(0)),
        ):
            for rank in range(4):
                rank_processes.wait_for_file(tmp_path / f"{word}-{rank}", 4 * TIMEOUT_S)
            change()
            (tmp_path / word).touch()
        ends = started.ends()
    for end in ends:
        assert end.value == ["N635"], end
