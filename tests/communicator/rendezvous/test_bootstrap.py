"""Ranks meet on one or several hosts; every failure is an error on all live ranks."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import sley
from sley.communicator import Settings
from sley.communicator.rendezvous import hosts as hosts_module
from sley.communicator.rendezvous.bootstrap import bootstrap
from sley.communicator.rendezvous.hosts import Description, Hosts
from sley.communicator.rendezvous.nics import Interface, Nic
from sley.communicator.rendezvous.stores import LocalStore
from sley.errors import SleyError
from sley.errors.runtime import R507
from sley.ir.orders import BALANCED
from support.processes.meeting import (
    PATIENCE_S,
    SHORT_S,
    TIMEOUT_S,
    Ranks,
    arrive,
    codes,
    little_grace,  # noqa: F401
    meet,
    nothing_stays_open,  # noqa: F401  # for every test here
    on_threads,
    segment,
)


@pytest.mark.parametrize(
    "hosts", [[0], [0, 0], [0, 1], [0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 0, 1, 2], [0] * 12]
)
def test_ranks_of_a_host_get_the_descriptors_of_one_another(hosts: list[int]) -> None:
    store = LocalStore()

    def call(rank: int) -> Any:
        with segment(f"segment {rank}") as one, segment(f"heap {rank}") as two:
            environ = {"SLEY_HOST_ID": f"{hosts[rank]}"}
            return arrive(
                store,
                rank,
                len(hosts),
                name="group",
                timeout_s=TIMEOUT_S,
                segments=lambda: [one, two],
                environ=environ,
            )

    outcomes = on_threads([lambda r=r: call(r) for r in range(len(hosts))])
    assert codes(outcomes) == [""] * len(hosts)
    assert len(store) == 0
    for rank, on in enumerate(outcomes):
        mates = [other for other, host in enumerate(hosts) if host == hosts[rank]]
        assert on.hosts == outcomes[0].hosts
        assert list(on.hosts.of_host(rank)) == mates
        assert [one.rank for one in on.descriptions] == list(range(len(hosts)))
        assert (on.secret, on.job) == (outcomes[0].secret, outcomes[0].job)
        assert on.texts == {
            other: [b"segment %d" % other, b"heap %d" % other] for other in mates if other != rank
        }
    assert len(outcomes[0].secret) == 32
    assert outcomes[0].secret.hex() not in outcomes[0].job


def test_ranks_of_different_users_on_a_host_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks of the communicator, at once; users of different hosts may differ."""
    number = iter(range(1234, 2000))
    monkeypatch.setattr(hosts_module.os, "geteuid", lambda: next(number))
    assert codes(meet(LocalStore(), 2, hosts=[0, 1])) == [""] * 2
    outcomes = meet(LocalStore(), 3, hosts=[0, 1, 1])
    assert codes(outcomes) == ["N613"] * 3
    assert all("as user" in str(one) and "user 12" in str(one) for one in outcomes)
    assert str(outcomes[0]) == str(outcomes[1]) == str(outcomes[2])


def test_ranks_without_descriptors_meet_too() -> None:
    outcomes = meet(LocalStore(), 3)
    assert [on.texts for on in outcomes] == [{1: [], 2: []}, {0: [], 2: []}, {0: [], 1: []}]


def test_values_are_exchanged_again_and_again() -> None:
    store = LocalStore()
    outcomes = meet(store, 3, hosts=[0, 0, 1])
    for number in range(3):
        values = [b"%d of %d" % (rank, number) * rank for rank in range(3)]
        said = on_threads(
            [lambda o=o, v=v: o.exchange(v) for o, v in zip(outcomes, values, strict=True)]
        )
        assert said == [values] * 3
    assert len(store) == 0


def test_a_refusal_in_place_of_an_exchange_reaches_the_others() -> None:
    outcomes = meet(LocalStore(), 3)
    why = R507.error(expected="5 GB", found="4 GB")
    said = on_threads(
        [
            lambda: outcomes[0].exchange(b""),
            lambda: outcomes[1].refuse(why),
            lambda: outcomes[2].exchange(b""),
        ]
    )
    assert codes(said) == ["N608", "", "N608"]


@pytest.mark.usefixtures("little_grace")
def test_an_exchange_names_the_rank_that_does_not_come() -> None:
    outcomes = meet(LocalStore(), 3, timeout_s=2 * SHORT_S)
    said = on_threads([lambda o=o: o.exchange(b"") for o in outcomes[:2]])
    assert codes(said) == ["N601"] * 2
    assert "rank 2" in str(said[0])
    assert "give the communicator one name" in str(said[0])


def test_a_name_can_be_used_again_and_jobs_have_names_of_their_own() -> None:
    store, jobs, secrets = LocalStore(), set(), set()
    for _ in range(3):
        outcomes = meet(store, 3)
        jobs |= {on.job for on in outcomes}
        secrets |= {on.secret for on in outcomes}
    assert len(jobs) == len(secrets) == 3


@pytest.mark.usefixtures("little_grace")
def test_a_start_that_failed_can_be_made_again() -> None:
    store = LocalStore()
    assert codes(meet(store, 3, who=[0, 1], timeout_s=SHORT_S)) == ["N601"] * 2
    outcomes = meet(store, 3)
    assert codes(outcomes) == [""] * 3


def test_groups_on_one_store_do_not_meet() -> None:
    store = LocalStore()
    groups = {"one": 2, "two": 3, "one/two": 2}
    met = on_threads([lambda n=n, r=r: meet(store, r, name=n) for n, r in groups.items()])
    assert [codes(outcomes) for outcomes in met] == [[""] * ranks for ranks in groups.values()]
    assert len({on.job for outcomes in met for on in outcomes}) == 3


def test_jobs_of_one_name_on_one_host_do_not_meet() -> None:
    with segment("first") as first, segment("second") as second:
        met = on_threads(
            [lambda f=f: meet(LocalStore(), 4, segments=lambda: [f]) for f in (first, second)]
        )
    for outcomes, text in zip(met, [b"first", b"second"], strict=True):
        assert codes(outcomes) == [""] * 4
        assert {texts[0] for on in outcomes for texts in on.texts.values()} == {text}


def test_ranks_are_bound_to_the_interfaces_of_their_host_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nics = [Nic(f"eth{number}", (f"10.0.{number}.1",)) for number in range(3)]
    found = [Interface(nic, False) for nic in nics]
    monkeypatch.setattr(hosts_module, "interfaces", lambda: found)
    outcomes = meet(LocalStore(), 6, hosts=[0, 1, 1, 1, 0, 0], environ={"SLEY_NICS": "^eth1"})
    bound = ["eth0", "eth0", "eth2", "eth0", "eth2", "eth0"]
    assert [on.nic.name for on in outcomes] == bound


@pytest.mark.usefixtures("little_grace")
@pytest.mark.parametrize("missing", [0, 1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_rank_that_is_missing_is_named(missing: int) -> None:
    who = [rank for rank in range(3) if rank != missing]
    outcomes = meet(LocalStore(), 3, who=who, timeout_s=SHORT_S)
    assert codes(outcomes) == ["N601"] * 2
    for outcome in outcomes:
        assert outcome.diagnostics[0].found == f"no sign of rank {missing} in time"
        assert "communicator 'group'" in str(outcome)


@pytest.mark.usefixtures("little_grace")
def test_a_rank_that_two_have_is_an_error_and_the_missing_one_is_named() -> None:
    outcomes = meet(LocalStore(), 3, who=[0, 1, 1], timeout_s=SHORT_S)
    assert sorted(codes(outcomes)) == ["N601", "N601", "N603"]
    assert codes(outcomes)[0] == "N601"
    assert "rank 2" in str(outcomes[0])


def test_a_wrong_number_of_ranks_is_an_error_on_all() -> None:
    store = LocalStore()
    outcomes = on_threads(
        [
            lambda: meet(store, 2, who=[0])[0],
            lambda: meet(store, 3, who=[1])[0],
            lambda: meet(store, 3, who=[2])[0],
        ]
    )
    assert codes(outcomes) == ["N603"] * 3


def test_settings_that_differ_are_an_error_on_all() -> None:
    store = LocalStore()
    settings = [Settings(same_bits=order).agreement() for order in (True, True, BALANCED)]
    outcomes = on_threads(
        [
            lambda r=r, own=own: meet(store, 3, who=[r], agreed=own)[0]
            for r, own in enumerate(settings)
        ]
    )
    assert codes(outcomes) == ["N604"] * 3
    assert "same_bits True on all ranks" in str(outcomes[0])
    assert "same_bits balanced on rank 2" in str(outcomes[0])


def test_versions_that_differ_are_an_error() -> None:
    store, another = LocalStore(), {"sley": "another"}
    outcomes = on_threads(
        [
            lambda: meet(store, 2, who=[0])[0],
            lambda: meet(store, 2, who=[1], agreed=another)[0],
        ]
    )
    assert codes(outcomes) == ["N604"] * 2
    assert f"sley {sley.__version__} on all ranks" in str(outcomes[0])
    assert "sley another on rank 1" in str(outcomes[0])


def test_a_rank_without_an_interface_does_not_keep_the_others_waiting() -> None:
    store, start = LocalStore(), time.monotonic()
    outcomes = on_threads(
        [
            lambda: meet(store, 2, who=[0])[0],
            lambda: meet(store, 2, who=[1], environ={"SLEY_NICS": "nosuch0"})[0],
        ]
    )
    assert codes(outcomes) == ["N608", "N607"]
    assert "nosuch0" in str(outcomes[0])
    assert time.monotonic() - start < TIMEOUT_S


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"rank": 2}, "N603"),
        ({"rank": -1}, "N603"),
        ({"ranks": "2"}, "N603"),
        ({"name": ""}, "R514"),
        ({"timeout_s": 0}, "R514"),
        ({"store": {}}, "N605"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(changes: dict[str, Any], code: str) -> None:
    arguments: dict[str, Any] = {"store": LocalStore(), "rank": 0, "ranks": 2, "name": "group"}
    with pytest.raises(SleyError) as caught:
        bootstrap(**{**arguments, "timeout_s": SHORT_S, **changes})
    assert caught.value.code == code


@pytest.mark.usefixtures("little_grace")
@pytest.mark.parametrize("damage", [{"nics": []}, {"listener": "name"}, {"process": []}])
def test_descriptions_of_others_are_refused_on_all_ranks(
    damage: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Description.encode

    def encode(own: Description) -> bytes:
        said = right(own)
        return json.dumps(json.loads(said) | damage).encode() if own.rank == 1 else said

    monkeypatch.setattr(Description, "encode", encode)
    assert codes(meet(LocalStore(), 3)) == ["N605"] * 3


def test_processes_meet(tmp_path: Path) -> None:
    with Ranks(tmp_path, 3) as ranks:
        for rank in range(3):
            expected = {other: b"%d" % other for other in range(3) if other != rank}
            assert ranks.message(rank) == ("met", expected)
            assert ranks.message(rank) is None
    assert list(tmp_path.iterdir()) == []


def test_an_error_while_memory_is_attached_reaches_the_others() -> None:
    def fails(hosts: Hosts, fds: dict[int, tuple[int, ...]]) -> None:
        raise R507.error(expected="5 GB", found="4 GB")

    options: dict[str, Any] = {"name": "group", "timeout_s": TIMEOUT_S}
    store, attach = LocalStore(), [{}, {"attach": fails}, {}]
    said = on_threads(
        [lambda r=r, a=a: bootstrap(store, r, 3, **options, **a) for r, a in enumerate(attach)]
    )
    assert codes(said) == ["N608", "R507", "N608"]


@pytest.mark.parametrize(
    ("at", "dying"),
    [
        ("listen", 0),
        ("exchange_descriptors", 1),
        pytest.param("listen", 1, marks=pytest.mark.slow),
        pytest.param("exchange_descriptors", 0, marks=pytest.mark.slow),
    ],
)
def test_a_process_that_dies_on_the_way_is_an_error_on_the_others(
    tmp_path: Path, dying: int, at: str
) -> None:
    # One that dies before it says anything is noticed when time is up, others at once; but rank 0
    # alone can tell the rest, who must wait for it.
    is_noticed = at != "listen" and dying != 0
    timeout_s = PATIENCE_S if is_noticed else 2.0
    start = time.monotonic()
    with Ranks(tmp_path, 3, dying=(dying, at), timeout_s=timeout_s) as ranks:
        for rank in range(3):
            if rank == dying:
                continue
            word, code, text = ranks.message(rank)
            assert word == "error"
            assert code in ("N601", "N608", "N620")
            assert re.search(rf"ranks? [\d, ]*\b{dying}\b", text)
    if is_noticed:
        assert time.monotonic() - start < timeout_s
    left = [path.name for path in tmp_path.iterdir()]
    assert len(left) <= 1  # what the dead one said, if anything


class StuckStore(LocalStore):
    """Doesn't answer a method: its server is stopped, or its file system stuck."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.go = threading.Event()
        setattr(self, method, lambda *_: self.go.wait())


@pytest.mark.usefixtures("little_grace")
@pytest.mark.parametrize(
    "method",
    ["_find", *(pytest.param(name, marks=pytest.mark.slow) for name in ("_put", "_delete"))],
)
def test_a_store_that_does_not_answer_is_an_error_in_time(method: str) -> None:
    store = StuckStore(method)
    begun = time.monotonic()
    outcomes = meet(store, 2, timeout_s=SHORT_S)
    assert codes(outcomes) == ["N605", "N605"] or method == "_delete"
    assert set(codes(outcomes)) <= {"N601", "N605"}
    assert "an answer of StuckStore" in "".join(map(str, outcomes))
    assert time.monotonic() - begun < TIMEOUT_S / 2
    store.go.set()
