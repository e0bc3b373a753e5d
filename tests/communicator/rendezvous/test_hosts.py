"""Which ranks share a host, which processes live, and the network interfaces."""

from __future__ import annotations

import dataclasses
import itertools
import multiprocessing
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sley.communicator.rendezvous.hosts import Description, Hosts, Process
from sley.communicator.rendezvous.nics import Interface, Nic, choose_nics, interfaces
from sley.errors import SleyError


@given(st.lists(st.sampled_from("abcde"), min_size=1, max_size=12))
def test_hosts_divide_the_ranks(names: list[str]) -> None:
    hosts = Hosts.of(names)
    assert sorted(rank for ranks in hosts.members for rank in ranks) == list(range(len(names)))
    assert hosts.count == len(set(names)) == len(hosts.members)
    assert [ranks[0] for ranks in hosts.members] == sorted(ranks[0] for ranks in hosts.members)
    for rank, name in enumerate(names):
        mates = [other for other, theirs in enumerate(names) if theirs == name]
        assert list(hosts.of_host(rank)) == list(hosts.members[hosts.host[rank]]) == mates
        assert mates[hosts.local[rank]] == rank
    assert hosts.is_uniform == (len({names.count(name) for name in names}) == 1)
    changes = sum(a != b for a, b in itertools.pairwise(names))
    assert hosts.is_contiguous == (changes == hosts.count - 1)


def test_one_process_is_on_one_host() -> None:
    here = Process.here({})
    assert here == Process.here({})
    assert here.pid == os.getpid()
    assert here.host_name == socket.gethostname()


def test_a_host_id_divides_a_machine() -> None:
    one, two = Process.here({"SLEY_HOST_ID": "1"}), Process.here({"SLEY_HOST_ID": "2"})
    assert len({one.host, two.host, Process.here({}).host}) == 3
    assert one.machine == two.machine
    assert one.host.startswith(Process.here({}).host)  # the same id elsewhere is another host


def test_another_network_is_another_host() -> None:
    program = "from sley.communicator.rendezvous.hosts import Process; print(Process.here({}).host)"
    command = ["unshare", "--net", sys.executable, "-c", program]
    try:
        there = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("unshare is not installed")
    if there.returncode:
        pytest.skip("only root may make a network namespace")
    assert there.stdout.strip() != Process.here({}).host


def _described(pipe: multiprocessing.connection.Connection) -> None:
    pipe.send(Process.here({}))
    pipe.recv()


def test_a_process_that_ended_is_gone_before_and_after_it_is_waited_for() -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_described, args=(theirs,))
    child.start()
    process = ours.recv()
    assert not process.is_gone()
    assert process.host == Process.here({}).host
    os.kill(process.pid, 9)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert process.is_gone(), "a zombie counts as living"
    child.join()
    assert process.is_gone()


def test_a_number_that_was_used_again_is_another_process() -> None:
    here = Process.here({})
    assert not here.is_gone()
    assert dataclasses.replace(here, started=here.started - 1).is_gone()


@pytest.mark.parametrize("unknown", ["machine", "namespace"])
def test_processes_elsewhere_are_never_gone(unknown: str) -> None:
    here = Process.here({})
    assert not dataclasses.replace(here, started=1, **{unknown: "another"}).is_gone()


def test_a_description_comes_back_as_it_was() -> None:
    description = Description.here(3, "00ff", {"layout": "7"}, {})
    assert Description.decode(description.encode()) == description
    assert description.nics


def test_the_loopback_interface_is_found_with_its_address() -> None:
    found = {interface.nic.name: interface for interface in interfaces()}
    assert set(found) <= {path.name for path in Path("/sys/class/net").iterdir()}
    assert found["lo"].is_loopback
    assert found["lo"].nic.addresses[0] == "127.0.0.1"
    for interface in found.values():
        for address in interface.nic.addresses:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            with socket.socket(family, socket.SOCK_STREAM) as sock:
                sock.bind((address, 0))  # fails for an address that isn't this host's


def _found(*names: str) -> list[Interface]:
    return [Interface(Nic(name, ("10.0.0.1",)), name == "lo") for name in names]


@pytest.mark.parametrize(
    ("there", "wanted", "expected"),
    [
        ("lo eth0 eth1", "", "eth0 eth1"),
        ("lo eth0 docker0 virbr0 veth12 br-3f", "", "eth0"),
        ("lo docker0 veth12", "", "docker0 veth12"),
        ("lo", "", "lo"),
        ("lo eth0 eth1 ib0", "ib0, eth0", "ib0 eth0"),
        ("lo eth0 eth1 ib0", "eth*", "eth0 eth1"),
        ("lo eth0 eth1 ib0", "eth1,eth*", "eth1 eth0"),
        ("lo eth0 eth1 ib0", "^eth0,ib*", "eth1"),
        ("lo eth0 docker0", "^eth0", "docker0"),
        ("lo eth0", "^eth0", "lo"),
        ("lo eth0", "lo", "lo"),
        ("lo eth0 docker0", "docker0", "docker0"),
    ],
)
def test_interfaces_are_chosen_by_name(there: str, wanted: str, expected: str) -> None:
    nics = choose_nics(_found(*there.split()), wanted)
    assert [nic.name for nic in nics] == expected.split()


@pytest.mark.parametrize("wanted", ["ib0", "eth", "^*"])
def test_a_choice_that_leaves_none_is_refused(wanted: str) -> None:
    with pytest.raises(SleyError) as caught:
        choose_nics(_found("lo", "eth0"), wanted)
    assert caught.value.code == "N607"
    assert "lo, eth0" in str(caught.value)
