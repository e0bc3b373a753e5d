"""All ranks get all values, or the same failure, which names its cause; nothing leaks."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sley.communicator.rendezvous import gather
from sley.communicator.rendezvous.gather import Deadline, Member, all_gather, refuse
from sley.communicator.rendezvous.hosts import Process
from sley.communicator.rendezvous.stores import FolderStore, LocalStore, Store
from sley.errors import Place, SleyError
from sley.errors.runtime import R507, R514
from support.generators.examples import examples
from support.processes.meeting import (
    SHORT_S,
    TIMEOUT_S,
    codes,
    little_grace,  # noqa: F401
    on_threads,
    wait_until,
)

HERE = Process.here({})


def member(store: Store, rank: int, ranks: int, process: Process = HERE) -> Member:
    return Member(store, rank, ranks, process, "the group")


def gathered(store: Store, who: list[int], ranks: int, timeout_s: float = TIMEOUT_S) -> list[Any]:
    return on_threads(
        [
            lambda r=r: all_gather(
                member(store, r, ranks), "topic", b"%d" % r, Deadline.after(timeout_s)
            )
            for r in who
        ]
    )


@examples(10)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=6))
def test_everybody_gets_what_all_say(values: list[bytes]) -> None:
    store = LocalStore()
    calls = [
        lambda r=r, v=v: all_gather(
            member(store, r, len(values)), "topic", v, Deadline.after(TIMEOUT_S)
        )
        for r, v in enumerate(values)
    ]
    for _ in range(2):  # a topic may come again
        assert on_threads(calls) == [values] * len(values)
        assert len(store) == 0


def test_rank_0_goes_on_when_all_have_their_answers() -> None:
    store = LocalStore()

    def first() -> int:
        all_gather(member(store, 0, 4), "topic", b"", Deadline.after(TIMEOUT_S))
        return len(store)  # which may end with it

    others = [
        lambda r=r: all_gather(member(store, r, 4), "topic", b"", Deadline.after(TIMEOUT_S))
        for r in (1, 2, 3)
    ]
    assert on_threads([first, *others])[0] == 0


@pytest.mark.usefixtures("little_grace")
@pytest.mark.parametrize(
    "absent",
    [[2], [0, 3], *(pytest.param(some, marks=pytest.mark.slow) for some in ([0], [1, 3]))],
)
def test_everybody_names_the_ranks_that_are_missing(absent: list[int]) -> None:
    store = LocalStore()
    who = [rank for rank in range(4) if rank not in absent]
    outcomes = gathered(store, who, 4, SHORT_S)
    assert codes(outcomes) == ["N601"] * len(who)
    word = "rank" if len(absent) == 1 else "ranks"
    for outcome in outcomes:
        found = outcome.diagnostics[0].found
        assert found == f"no sign of {word} {', '.join(map(str, absent))} in time"
    assert len(store) == 0


class BrokenStore(LocalStore):
    """Raises after the write with a number, counted from 1."""

    def __init__(self, write: int, error: BaseException) -> None:
        super().__init__()
        self.write, self.error = write, error

    def _put(self, key: str, value: bytes) -> bytes:
        present = super()._put(key, value)
        self.write -= 1
        if self.write == 0:
            raise self.error
        return present


@pytest.mark.usefixtures("little_grace")
def test_of_a_rank_0_that_dies_between_its_answers_no_other_rank_is_accused() -> None:
    store = LocalStore()
    dead = dataclasses.replace(HERE, started=HERE.started - 1)
    claim = {"protocol": 1, "token": "x", "ranks": 3, "process": dataclasses.asdict(dead)}
    store.put("topic", 0, 0, json.dumps({**claim, "failure": None}).encode() + b"\0")
    (outcome,) = gathered(store, [2], 3, SHORT_S)  # rank 1 has its answer: no message is left
    assert outcome.diagnostics[0].found == "no sign of rank 0 in time"


@pytest.mark.usefixtures("little_grace")
def test_of_a_rank_0_that_takes_a_message_and_leaves_no_other_rank_is_accused() -> None:
    store = LocalStore()

    def leave() -> None:
        wait_until(lambda: store.has("topic", 2, 0))
        store.delete("topic", 2, 0)

    outcome, _ = on_threads(
        [
            lambda: all_gather(member(store, 2, 3), "topic", b"2", Deadline.after(SHORT_S)),
            leave,
        ]
    )
    assert outcome.diagnostics[0].found == "no sign of rank 0 in time"


@pytest.mark.parametrize("answer", [1, 2])
def test_an_interrupted_rank_0_still_answers_all_ranks(answer: int) -> None:
    ranks = 4
    store = BrokenStore(ranks + answer, KeyboardInterrupt())  # each rank has written a message

    def interrupted() -> None:
        with pytest.raises(KeyboardInterrupt):
            all_gather(member(store, 0, ranks), "topic", b"0", Deadline.after(TIMEOUT_S))

    others = [
        lambda r=r: all_gather(
            member(store, r, ranks), "topic", b"%d" % r, Deadline.after(TIMEOUT_S)
        )
        for r in range(1, ranks)
    ]
    values = on_threads([interrupted, *others])[1:]
    assert values == [[b"0", b"1", b"2", b"3"]] * (ranks - 1)
    assert len(store) == 0


@pytest.mark.parametrize("rank", [0, 1])
def test_an_exception_directly_after_a_write_leaves_no_message(rank: int) -> None:
    store = BrokenStore(1, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        all_gather(member(store, rank, 2), "topic", b"", Deadline.after(TIMEOUT_S))
    assert len(store) == 0


@pytest.mark.usefixtures("little_grace")
def test_the_store_is_named_if_ranks_are_missing(tmp_path: Path) -> None:
    for outcome in gathered(FolderStore(tmp_path), [0, 1], 3, SHORT_S):
        assert outcome.diagnostics[0].notes == (f"the ranks meet in FolderStore('{tmp_path}')",)


@pytest.mark.usefixtures("little_grace")
def test_many_missing_ranks_are_counted() -> None:
    (outcome,) = gathered(LocalStore(), [0], 100, SHORT_S)
    assert outcome.diagnostics[0].found.endswith("15, 16 and 83 more in time")


def test_a_second_process_of_a_rank_is_told_so_and_the_others_go_on() -> None:
    store, other = LocalStore(), dataclasses.replace(HERE, host_name="elsewhere")
    first = on_threads  # the rank's own process comes first, and waits

    def second() -> Any:
        wait_until(lambda: store.has("topic", 1, 0))
        with pytest.raises(SleyError) as caught:
            all_gather(member(store, 1, 2), "topic", b"1", Deadline.after(TIMEOUT_S))
        return caught.value, all_gather(
            member(store, 0, 2), "topic", b"0", Deadline.after(TIMEOUT_S)
        )

    values, (error, rest) = first(
        [
            lambda: all_gather(
                member(store, 1, 2, other), "topic", b"1", Deadline.after(TIMEOUT_S)
            ),
            second,
        ]
    )
    assert values == rest == [b"0", b"1"]
    assert error.code == "N603"
    assert "elsewhere has that rank" in str(error)
    assert len(store) == 0


@pytest.mark.parametrize("rank", [0, 1])
def test_the_messages_of_a_killed_process_are_replaced(rank: int) -> None:
    store = LocalStore()
    dead = dataclasses.replace(HERE, started=HERE.started - 1)
    assert dead.is_gone()
    stale = {"protocol": 1, "token": "x", "ranks": 2, "process": dataclasses.asdict(dead)}
    store.put("topic", rank, 0, json.dumps({**stale, "failure": None}).encode() + b"\0stale")
    assert gathered(store, [0, 1], 2) == [[b"0", b"1"]] * 2
    assert len(store) == 0


@pytest.mark.usefixtures("little_grace")
@pytest.mark.parametrize(("said_by_0", "said_by_others"), [(2, 3), (3, 2)])
def test_different_numbers_of_ranks_are_refused_at_once(
    said_by_0: int, said_by_others: int
) -> None:
    store = LocalStore()
    ranks = [said_by_0] + [said_by_others] * (said_by_others - 1)
    start = time.monotonic()
    outcomes = on_threads(
        [
            lambda r=r, n=n: all_gather(
                member(store, r, n), "topic", b"", Deadline.after(TIMEOUT_S)
            )
            for r, n in enumerate(ranks)
        ]
    )
    assert codes(outcomes) == ["N603"] * len(ranks)
    assert f"{said_by_others} ranks on rank" in str(outcomes[-1])
    assert time.monotonic() - start < TIMEOUT_S
    assert len(store) == 0


@pytest.mark.usefixtures("little_grace")
@pytest.mark.parametrize("refusing", [0, 1, 2])
def test_one_refusal_ends_it_for_all(refusing: int) -> None:
    store = LocalStore()
    why = R507.error(at=Place("train.py", 7), expected="5 GB", found="4 GB", notes=["swap is off"])
    start = time.monotonic()

    def call(rank: int) -> Any:
        if rank == refusing:
            return refuse(member(store, rank, 4), "topic", why)
        return all_gather(member(store, rank, 4), "topic", b"", Deadline.after(TIMEOUT_S))

    outcomes = on_threads([lambda r=r: call(r) for r in range(3)])  # and rank 3 never comes
    assert codes(outcomes) == ["" if rank == refusing else "N608" for rank in range(3)]
    text = str(outcomes[(refusing + 1) % 3])
    for words in (
        f"rank {refusing}",
        "the group",
        "R507 no-memory",
        "5 GB",
        "4 GB",
        "swap",
        "train.py:7",
    ):
        assert words in text
    assert time.monotonic() - start < TIMEOUT_S
    assert len(store) == 0


def test_a_rank_that_comes_after_a_failure_gets_its_error() -> None:
    store, why = LocalStore(), R507.error(expected="5 GB", found="4 GB")

    def late() -> Any:
        wait_until(lambda: not store.has("topic", 1, 0))  # rank 1 has its answer
        return all_gather(member(store, 2, 3), "topic", b"", Deadline.after(TIMEOUT_S))

    store.put("topic", 1, 0, b"")
    outcomes = on_threads(
        [
            lambda: refuse(member(store, 0, 3), "topic", why),
            late,
            lambda: store.delete("topic", 1, 0),
        ]
    )
    assert codes(outcomes) == ["", "N608", ""]


@pytest.mark.usefixtures("little_grace")
def test_refusing_where_nobody_listens_ends_soon() -> None:
    store = LocalStore()
    start = time.monotonic()
    refuse(member(store, 1, 2), "topic", R507.error(expected="", found=""))
    assert time.monotonic() - start < gather.GRACE_S + TIMEOUT_S / 2
    assert len(store) == 0


@pytest.mark.usefixtures("little_grace")
@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"\xff\xfe", "N605"),
        (b'{"a": 1}\0', "N605"),
        (b'{"protocol": 9}', "N604"),
        (b"[" * 100_000, "N605"),
        ({"token": ...}, "N605"),
        ({"ranks": None}, "N605"),
        ({"ranks": 10**30}, "N603"),
        ({"process": {}}, "N605"),
        ({"process": dataclasses.asdict(HERE) | {"pid": 10**30}}, "N605"),
        ({"process": dataclasses.asdict(HERE) | {"started": float("inf")}}, "N605"),
        ({"failure": {"code": "N601"}}, "N605"),
    ],
)
def test_foreign_messages_are_refused_on_all_ranks(message: Any, code: str) -> None:
    """Of something else, and of sley with other fields."""
    store = LocalStore()
    if isinstance(message, dict):
        claim = {"protocol": 1, "token": "x", "ranks": 3, "process": dataclasses.asdict(HERE)}
        claim = {word: value for word, value in (claim | message).items() if value is not ...}
        message = json.dumps(claim).encode() + b"\0"
    store.put("topic", 1, 0, message)
    outcomes = gathered(store, [0, 2], 3)
    assert codes(outcomes) == [code] * 2


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf"), "5", None])
def test_a_timeout_is_a_time(timeout_s: Any) -> None:
    with pytest.raises(SleyError) as caught:
        Deadline.after(timeout_s)
    assert caught.value.code == R514.code
