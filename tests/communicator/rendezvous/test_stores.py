"""Stores keep the first message; its reader may wait for it, and deletes it."""

from __future__ import annotations

import os
import queue
import socket
import stat
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sley.communicator.rendezvous.stores import FolderStore, LocalStore, MpiStore, Store, TorchStore
from sley.errors import SleyError
from support.processes.meeting import TIMEOUT_S, codes, descriptors, meet, on_threads


def _torch() -> Any:
    return pytest.importorskip("torch.distributed")


def _tcp() -> Any:
    return _torch().TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


STORES: dict[str, Callable[[Path], Store]] = {
    "local": lambda _: LocalStore(),
    "folder": lambda path: FolderStore(path / "folder"),
    "tcp": lambda _: TorchStore(_tcp()),
    "hash": lambda _: TorchStore(_torch().HashStore()),
    "file": lambda path: TorchStore(_torch().FileStore(str(path / "file"), 1)),
    "prefix": lambda _: TorchStore(_torch().PrefixStore("a/b", _tcp())),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return STORES[request.param](tmp_path)


def test_the_first_message_stays(store: Store) -> None:
    assert isinstance(store, Store)
    first, second = bytes(range(256)), b"second"
    assert not store.has("topic", 1, 0)
    assert store.put("topic", 1, 0, first) == first
    assert store.put("topic", 1, 0, second) == first
    assert store.has("topic", 1, 0)
    assert store.get("topic", 1, 0, 0.0) == first
    store.delete("topic", 1, 0)
    assert store.get("topic", 1, 0, 0.0) is None
    store.delete("topic", 1, 0)
    assert store.put("topic", 1, 0, second) == second


def test_messages_differ_by_topic_source_and_destination(store: Store) -> None:
    names = [("a", 1, 0), ("a", 0, 1), ("a/1", 0, 1), ("b" * 300 + "/..\n", 11, 0), ("a", 11, 0)]
    for number, name in enumerate(names):
        store.put(*name, b"number %d" % number)
    for number, name in enumerate(names):
        assert store.get(*name, 0.0) == b"number %d" % number


def test_a_reader_waits(store: Store) -> None:
    assert store.get("topic", 1, 0, 0.05) is None
    Timer(0.1, lambda: store.put("topic", 1, 0, b"late")).start()
    assert store.get("topic", 1, 0, TIMEOUT_S) == b"late"


def test_one_of_many_writers_wins(store: Store) -> None:
    values = [b"writer %d" % number for number in range(8)]
    kept = on_threads([lambda v=v: store.put("topic", 1, 0, v) for v in values])
    assert len(set(kept)) == 1
    assert kept[0] in values
    assert store.get("topic", 1, 0, 0.0) == kept[0]


_operations = st.lists(
    st.tuples(st.sampled_from(["put", "get", "delete"]), st.integers(0, 2), st.binary(min_size=2)),
    max_size=20,
)


@given(_operations)
def test_stores_act_like_a_dictionary(operations: list[tuple[str, int, bytes]]) -> None:
    known: dict[int, bytes] = {}
    with tempfile.TemporaryDirectory() as folder:
        stores = [LocalStore(), FolderStore(folder)]
        for operation, rank, value in operations:
            for store in stores:
                if operation == "put":
                    assert store.put("topic", rank, 0, value) == known.get(rank, value)
                elif operation == "get":
                    assert store.get("topic", rank, 0, 0.0) == known.get(rank)
                else:
                    store.delete("topic", rank, 0)
            if operation == "put":
                known.setdefault(rank, value)
            elif operation == "delete":
                known.pop(rank, None)
        assert len(list(Path(folder).iterdir())) == len(stores[0]) == len(known)


def test_ranks_meet_over_every_store(store: Store) -> None:
    before = descriptors()
    outcomes = meet(store, 3, hosts=[0, 0, 1])
    assert codes(outcomes) == [""] * 3
    assert descriptors() == before


def test_a_folder_is_empty_after_the_ranks_have_met(tmp_path: Path) -> None:
    for _ in range(2):
        assert codes(meet(FolderStore(tmp_path), 3)) == [""] * 3
        assert list(tmp_path.iterdir()) == []


def test_messages_in_a_folder_are_for_this_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        FolderStore(tmp_path).put("topic", 0, 1, b"a secret")
    finally:
        os.umask(before)
    (file,) = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_torch_store_has_no_keys_after_the_ranks_have_met() -> None:
    torch_store = _torch().HashStore()
    assert codes(meet(TorchStore(torch_store), 3)) == [""] * 3
    assert torch_store.num_keys() == 0


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SleyError) as caught:
        FolderStore(tmp_path / "file" / "folder")
    assert caught.value.code == "N605"


def test_a_folder_that_disappears_is_an_error(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "folder")
    (tmp_path / "folder").rmdir()
    with pytest.raises(SleyError) as caught:
        store.put("topic", 1, 0, b"value")
    assert caught.value.code == "N605"


def test_a_server_that_is_gone_is_an_error() -> None:
    distributed = _torch()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    server = distributed.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    client = TorchStore(distributed.TCPStore("127.0.0.1", port, is_master=False))
    assert client.put("topic", 1, 0, b"value") == b"value"
    del server
    with pytest.raises(SleyError) as caught:
        client.get("topic", 0, 1, TIMEOUT_S)
    assert caught.value.code == "N605"
    assert "TCPStore" in str(caught.value)


@pytest.mark.parametrize("kind", [TorchStore, MpiStore])
def test_only_what_fits_is_wrapped(kind: Any) -> None:
    with pytest.raises(SleyError) as caught:
        kind({})
    assert caught.value.code == "N605"


class _Done:
    def Test(self) -> bool:  # noqa: N802  # MPI's own name
        return True


@dataclass
class _Message:
    value: Any

    def recv(self) -> Any:
        return self.value


@dataclass
class _Comm:
    """What MpiStore uses of a communicator of mpi4py, for threads."""

    rank: int
    boxes: list[list[queue.SimpleQueue[Any]]] = field(repr=False)

    def Dup(self) -> _Comm:  # noqa: N802
        return self

    def Get_rank(self) -> int:  # noqa: N802
        return self.rank

    def Get_size(self) -> int:  # noqa: N802
        return len(self.boxes)

    def isend(self, value: Any, dest: int) -> _Done:
        if dest >= len(self.boxes):
            raise RuntimeError("MPI_ERR_RANK: invalid rank")
        self.boxes[dest][self.rank].put(value)
        return _Done()

    def improbe(self, source: int) -> _Message | None:
        try:
            return _Message(self.boxes[self.rank][source].get_nowait())
        except queue.Empty:
            return None


def _comms(ranks: int) -> list[_Comm]:
    boxes = [[queue.SimpleQueue[Any]() for _ in range(ranks)] for _ in range(ranks)]
    return [_Comm(rank, boxes) for rank in range(ranks)]


def _meet_over(comms: list[_Comm]) -> list[Any]:
    stores = [MpiStore(comm) for comm in comms]
    return on_threads(
        [lambda r=r, s=s: meet(s, len(comms), who=[r])[0] for r, s in enumerate(stores)]
    )


def test_ranks_meet_over_messages_of_mpi() -> None:
    outcomes = _meet_over(_comms(3))
    assert codes(outcomes) == [""] * 3
    exchanged = on_threads([lambda o=o: o.exchange(b"%d" % o.rank) for o in outcomes])
    assert exchanged == [[b"0", b"1", b"2"]] * 3


def test_messages_of_a_start_that_failed_are_passed_over() -> None:
    here, there = (MpiStore(comm) for comm in _comms(2))
    for topic, value in [("start", b"old"), ("start", b"new"), ("other", b"?")]:
        there.put(topic, 1, 0, value)
    assert here.get("start", 1, 0, TIMEOUT_S) == b"new"
    assert here.get("start", 1, 0, 0.0) is None


def test_what_mpi_refuses_is_an_error_of_the_store() -> None:
    store = MpiStore(_comms(1)[0])
    with pytest.raises(SleyError) as caught:
        store.put("topic", 0, 5, b"value")
    assert caught.value.code == "N605"
    assert "invalid rank" in str(caught.value)
