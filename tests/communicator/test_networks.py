"""The choice of the network between hosts, and the errors if a rank lacks one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from enum import Enum
from typing import Any

import pytest

from sley.communicator import network as module
from sley.communicator.network import Network
from sley.errors import SleyError


class Present:
    """A wire that every host has."""

    def find(self) -> str:
        return "a wire"

    def open(self, fabric: Any, nics: Sequence[Any], own: int, timeout_s: float) -> Any:
        raise NotImplementedError


class Absent(Present):
    """A wire that this host lacks."""

    def find(self) -> str:
        raise OSError("no library")


class Meeting:
    """A rendezvous of two ranks, of which the other one has the networks `other`."""

    name, rank = "test", 0

    def __init__(self, *other: Network) -> None:
        self.other = " ".join(network.value for network in other).encode()

    def exchange(self, value: bytes) -> list[bytes]:
        return [value, self.other]


@pytest.fixture
def networks(monkeypatch: pytest.MonkeyPatch) -> dict[Network, Any]:
    wires: dict[Network, Any] = {Network.UCX: Present(), Network.TCP: Present()}
    monkeypatch.setattr(module, "NETWORKS", wires)
    return wires


def agree(asked: Network, *other: Network) -> Any:
    return module._agree(Meeting(*other), asked)  # type: ignore[arg-type]


def test_the_first_network_that_every_rank_has_is_used(networks: dict[Network, Any]) -> None:
    assert agree(Network.AUTO, Network.UCX, Network.TCP) is networks[Network.UCX]
    assert agree(Network.AUTO, Network.TCP) is networks[Network.TCP]
    assert agree(Network.TCP, Network.TCP) is networks[Network.TCP]


def test_a_network_that_a_rank_lacks_is_warned_of(
    networks: dict[Network, Any], caplog: pytest.LogCaptureFixture
) -> None:
    agree(Network.AUTO, Network.TCP)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "rank 1 has no UCX" in caplog.text
    networks[Network.UCX] = Absent()
    agree(Network.AUTO, Network.TCP)
    assert "no library" in caplog.text
    caplog.clear()
    agree(Network.TCP, Network.TCP)
    assert not caplog.records


def test_a_network_that_is_asked_for_and_lacking_is_an_error(
    networks: dict[Network, Any],
) -> None:
    with pytest.raises(SleyError, match=r"N629[\s\S]*rank 1 has no UCX"):
        agree(Network.UCX, Network.TCP)
    networks[Network.UCX] = Absent()
    with pytest.raises(SleyError, match=r"N629[\s\S]*no library"):
        agree(Network.UCX, Network.UCX, Network.TCP)


class Three(Enum):
    """The networks of a sley with one more."""

    AUTO = "auto"
    FAST = "fast"
    TCP = "tcp"


def test_another_network_needs_a_name_and_a_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    wires = {Three.FAST: Present(), Three.TCP: Present()}
    monkeypatch.setattr(module, "Network", Three)
    monkeypatch.setattr(module, "NETWORKS", wires)
    meeting = Meeting(Three.TCP, Three.FAST)  # type: ignore[arg-type]
    assert module._agree(meeting, Three.AUTO) is wires[Three.FAST]  # type: ignore[arg-type]
