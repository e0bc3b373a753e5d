"""Strangers at the local sockets and failures of the system cause errors, never hangs."""

from __future__ import annotations

import contextlib
import hmac
import os
import resource
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sley.communicator.rendezvous import local
from sley.communicator.rendezvous.stores import LocalStore
from support.processes.meeting import (
    SHORT_S,
    TIMEOUT_S,
    codes,
    descriptors,
    meet,
    nothing_stays_open,  # noqa: F401  # for every test here
    segment,
    wait_until,
)


@pytest.fixture
def connecting(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Lets a test do something once the leader listens and before a member connects."""

    def set_up(first: Callable[[], None]) -> None:
        follow = local._follow

        def after(*arguments: Any) -> None:
            first()
            follow(*arguments)

        monkeypatch.setattr(local, "_follow", after)

    return set_up


def _listeners() -> list[str]:
    """Names of sley's listening sockets on this host."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    names = [line.split()[-1] for line in lines if "@sley-" in line]
    return [name.replace("@", "\0", 1) for name in names]


def _stranger(said: bytes | None, fds: list[int]) -> list[socket.socket]:
    """Connects to all of sley's listeners, and says something, or nothing."""
    connections = []
    for name in _listeners():
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.setblocking(False)
        try:
            sock.connect(name)
            if said is not None:
                socket.send_fds(sock, [said], fds)
        except OSError:
            sock.close()  # not a socket of a leader, or not any more
        else:
            connections.append(sock)
    return connections


def _is_sent_away(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    ("said", "fds"),
    [
        (None, 0),
        (b"hello", 0),
        (b"x" * 100_000, 0),
        (local._HEADER.pack(1, bytes(32)), 1),
        (local._HEADER.pack(2, hmac.digest(bytes(32), b"2 to 0", "sha256")), 1),
        (local._HEADER.pack(1, bytes(32)), 200),
        (local._HEADER.pack(-1, bytes(32)), 0),
    ],
)
def test_strangers_are_not_let_in(
    said: bytes | None, fds: int, connecting: Callable[[Callable[[], None]], None]
) -> None:
    strangers: list[socket.socket] = []
    with segment("mine") as mine, segment("theirs") as theirs:
        connecting(lambda: strangers.extend(_stranger(said, [theirs] * fds)))
        outcomes = meet(LocalStore(), 3, segments=lambda: [mine])
        assert codes(outcomes) == [""] * 3
    assert strangers
    assert {texts[0] for on in outcomes for texts in on.texts.values()} == {b"mine"}
    for stranger in strangers:
        stranger.settimeout(TIMEOUT_S)
        with stranger, contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""  # it was sent away, or at last left alone


def test_many_silent_strangers_do_not_use_up_the_descriptors(
    connecting: Callable[[Callable[[], None]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_MOST_UNPROVEN", 4)
    strangers: list[socket.socket] = []

    def many() -> None:
        for _ in range(20):
            strangers.extend(_stranger(None, []))
        wait_until(lambda: sum(map(_is_sent_away, strangers)) >= len(strangers) - 4)

    connecting(many)
    outcomes = meet(LocalStore(), 2)
    assert codes(outcomes) == [""] * 2
    assert len(strangers) >= 20
    for sock in strangers:
        sock.close()


def test_a_leader_that_cannot_prove_itself_gets_nothing_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proof = local.Host.proof

    def forged(host: local.Host, src: int, dst: int) -> bytes:
        is_leader = src == 0 and host.rank == 0
        return bytes(32) if is_leader else proof(host, src, dst)

    monkeypatch.setattr(local.Host, "proof", forged)
    outcomes = meet(LocalStore(), 2)
    assert codes(outcomes)[1] == "N620"


@pytest.mark.parametrize("accepted", [True, False])
def test_processes_of_another_user_are_not_let_in(
    accepted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a leader has accepted has the listener's name, the other ends have none.
    def uid(sock: socket.socket) -> int:
        return os.geteuid() + (bool(sock.getsockname()) == accepted)

    monkeypatch.setattr(local, "_uid", uid)
    assert all(codes(meet(LocalStore(), 2, timeout_s=SHORT_S)))


def test_a_limit_of_descriptors_is_an_error_and_not_a_hang() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with segment("mine") as mine:
        # The ranks are threads of this process and share its limit, which is too low for one.
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(descriptors()) + 30, hard))
        try:
            outcomes = meet(LocalStore(), 8, segments=lambda: [mine] * 8)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert all(codes(outcomes))
    assert "N610" in "".join(map(str, outcomes))
