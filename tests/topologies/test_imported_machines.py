"""Tests of the machines that other tools' files leave open: trees of clouds, hosts that NVLink
joins, several cards of a GPU, the rates of a generation, and `like`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import sley
from sley import topologies
from sley.compiler.passes.links import used_links
from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.tables import NONE
from sley.ir.topology import Topology
from sley.model.nccl.graphs import MachineView
from support.inputs.topology_texts import (
    CLOUD,
    FILES,
    HOSTS,
    HWLOC_2,
    HWLOC_3,
    MATRIX,
    NVSWITCH,
    card,
    cpu,
    gpu,
    hwloc,
    matrix,
    pci,
    switch,
    system,
)


def read(
    folder: Path, text: str, nodes: int | None = None, like: str | None = None, name: str = "x.xml"
) -> topologies.LoadedTopology:
    path = folder / name
    path.write_text(text)
    return topologies.read(path, nodes=nodes, like=like)


def rates(topology: Topology, kind: LinkKind) -> set[tuple[float, float]]:
    """The rates of the links of a kind, nominal and reached."""
    t = topology.links
    used = t.kind == kind
    pairs = zip(t.nominal_GBps[used].tolist(), t.GBps[used].tolist(), strict=True)
    return {(round(a, 2), round(b, 2)) for a, b in pairs}


def said(found: topologies.LoadedTopology) -> str:
    """The remarks, a line each."""
    assert {note.code for note in found.notes} == {"F434"}
    return "\n".join(note.found for note in found.notes)


CLOUDS = {
    "azure-ndv2": (8, 1, (31.5, 24.0), [0] * 8),
    "azure-ndv4": (8, 8, (31.5, 24.0), [2, 3, 0, 1, 6, 7, 4, 5]),
    "aws-p4d": (8, 4, (12.5, 12.0), [0, 0, 1, 1, 2, 2, 3, 3]),
    "oci-flattened": (8, 8, (31.5, 24.0), [0, 1, 2, 3, 4, 5, 6, 7]),
    "azure-ncv4": (4, 1, (12.5, 12.0), [0] * 4),
}


@pytest.mark.parametrize("name", CLOUDS)
def test_the_files_of_clouds_give_their_gpus_and_cards(name: str, data_dir: Path) -> None:
    gpus, cards, rate, nearest = CLOUDS[name]
    found = topologies.read(data_dir / "users-3" / f"{name}-topo.xml", nodes=2)
    assert found.machine is not None
    assert (found.machine.node.gpus, len(found.machine.node.cards)) == (gpus, cards)
    assert rates(found.topology, LinkKind.NETWORK) == {rate}
    assert found.topology.nic[:gpus].tolist() == nearest
    assert "no NVLink between GPUs" in said(found)
    assert "like=" in said(found)


def test_the_gpus_of_a_pcie_tree_are_numbered_by_their_bus_ids(tmp_path: Path) -> None:
    topology = read(tmp_path, CLOUD, nodes=2).topology
    # In the order of the file: buses 3, 1, 2, 4, each with the card beside it.
    assert topology.nic[:4].tolist() == [1, 2, 0, 3]


def test_like_supplies_what_the_tree_of_a_cloud_leaves_open(data_dir: Path) -> None:
    file, known = data_dir / "users-3" / "azure-ndv4-topo.xml", topologies.ndv4(2)
    found = topologies.read(file, nodes=2, like="ndv4")
    for kind in (LinkKind.NVLINK, LinkKind.NETWORK):
        assert rates(found.topology, kind) == rates(known, kind)
    assert found.topology.model == known.model
    assert "NVLink as in ndv4" in said(found)
    assert "like=" not in said(found)
    assert topologies.find(f"{file},like=ndv4:2") == found.topology


def test_the_mesh_of_like_is_that_of_its_gpus(data_dir: Path) -> None:
    file, known = data_dir / "users-3" / "azure-ndv2-topo.xml", topologies.ndv2(2)
    topology = topologies.load(file, nodes=2, like="ndv2")
    fast = topology.links.kind == LinkKind.NVLINK
    slow = known.links.kind == LinkKind.NVLINK
    for column in ("src", "dst", "GBps"):
        found, expected = getattr(topology.links, column)[fast], getattr(known.links, column)[slow]
        assert sorted(found.tolist()) == sorted(expected.tolist())
    assert rates(topology, LinkKind.NETWORK) == rates(known, LinkKind.NETWORK)


def test_a_card_is_no_faster_than_its_slot_and_its_kind_whatever_like_has(
    data_dir: Path, tmp_path: Path
) -> None:
    file = data_dir / "users-3" / "aws-p4d-topo.xml"
    assert rates(topologies.load(file, nodes=2, like="ndv4"), LinkKind.NETWORK) == {(12.5, 12)}
    slow = CLOUD.replace("16 GT/s", "8 GT/s")
    assert rates(read(tmp_path, slow, nodes=2, like="ndv4").topology, LinkKind.NETWORK) == {
        (15.76, 12)
    }


def test_like_with_another_number_of_gpus_adds_no_nvlink(tmp_path: Path) -> None:
    found = read(tmp_path, CLOUD, like="ndv5")
    assert rates(found.topology, LinkKind.NVLINK) == set()
    assert "ndv5 has 8 GPUs" in said(found)
    assert found.topology.model == topologies.ndv5().model


def test_a_wrong_like_is_refused(tmp_path: Path) -> None:
    with pytest.raises(sley.SleyError, match="Did you mean ndv4") as caught:
        read(tmp_path, CLOUD, like="ndv44")
    assert caught.value.code == "T604"
    with pytest.raises(sley.SleyError, match="Name the machine alone, ndv4"):
        read(tmp_path, CLOUD, like="ndv4:2")
    with pytest.raises(sley.SleyError, match="T604"):
        read(tmp_path, CLOUD, like=["ndv4"])  # type: ignore[arg-type]
    with pytest.raises(sley.SleyError) as caught:
        read(tmp_path, 'name = "x"\ngpus = 1\n', like="ndv4", name="x.toml")
    assert caught.value.code == "C308"


def test_links_of_a_gpu_to_itself_are_left_out_with_a_remark(data_dir: Path) -> None:
    found = topologies.read(data_dir / "users-3" / "azure-ncv4-topo.xml")
    assert rates(found.topology, LinkKind.NVLINK) == set()
    assert "no links of GPUs to themselves" in said(found)
    assert "PCIe 3.0 for link_speed=''" in said(found)


def test_a_file_without_gpus_says_how_to_get_one_with_them(tmp_path: Path) -> None:
    with pytest.raises(sley.SleyError, match="NCCL_TOPO_DUMP_FILE") as caught:
        read(tmp_path, system(cpu(card("c", 100_000))))
    assert caught.value.code == "T607"


def test_a_tree_without_classes_says_why_it_shows_no_gpus(tmp_path: Path) -> None:
    bare = cpu(*(f'<pci busid="0000:00:1{i}.0"/>' for i in range(9)))
    with pytest.raises(sley.SleyError, match="9 <pci> whose class NCCL looks up") as caught:
        read(tmp_path, system(bare))
    assert caught.value.code == "T607"


def test_a_file_with_gpus_but_no_nvlink_says_so(tmp_path: Path) -> None:
    whole = system(cpu(*(gpu(f"a{i}", i, "", 'sm="90"') for i in range(8))))
    assert "no NVLink between GPUs: the file has none" in said(read(tmp_path, whole))
    completed = read(tmp_path, whole, like="p5").topology
    assert rates(completed, LinkKind.NVLINK) == {(450, 370)}
    without = read(tmp_path, whole.replace('sm="90"', 'sm="86"'))  # A10s have no NVLink
    assert "NVLink" not in said(without)


def test_a_gpu_with_two_ports_next_to_it_uses_both(data_dir: Path) -> None:
    found = topologies.read(data_dir / "users-3" / "oci-h100-16cards.xml", nodes=2)
    assert found.machine is not None
    assert len(found.machine.node.cards) == 16
    assert found.topology.nic.tolist() == list(range(16))
    assert rates(found.topology, LinkKind.NETWORK) == {(45, 43.2)}
    slots = found.topology.links.GBps[found.topology.links.dst == found.topology._card[0]]
    assert slots.tolist() == pytest.approx(
        [48, 43.2]
    )  # the slot's rate once for both ports, and the network's
    assert "several cards next to a GPU are one" in said(found)


CARDS = {
    "four for one GPU": (1, [100_000] * 4, [0], (50, 48)),
    "two for each of two": (2, [100_000] * 4, [0, 1], (25, 24)),
    "three for two": (2, [100_000] * 3, [0, 0], (37.5, 36)),
    "one for each": (2, [100_000] * 2, [0, 1], (12.5, 12)),
    "one for two": (2, [100_000], [0, 0], (12.5, 12)),
    "a slow one beside it": (1, [25_000, 200_000], [0], (25, 24)),
}


@pytest.mark.parametrize("case", CARDS)
def test_all_nearest_cards_of_the_highest_rate_carry_data(case: str, tmp_path: Path) -> None:
    gpus, speeds, nearest, rate = CARDS[case]
    inside = [gpu(f"a{i}", i, NVSWITCH) for i in range(gpus)]
    cards = [card(f"c{i}", speed) for i, speed in enumerate(speeds)]
    topology = read(tmp_path, system(cpu(switch("s", *inside, *cards))), nodes=2).topology
    assert topology.nic[:gpus].tolist() == nearest
    assert rates(topology, LinkKind.NETWORK) == {rate}


def test_a_dump_of_a_p5_equals_the_cards_of_its_machine(tmp_path: Path) -> None:
    parts = [
        switch(
            f"s{g}",
            gpu(f"a{g}", g, NVSWITCH, 'sm="90"'),
            *(card(f"c{g}{i}", 100_000) for i in range(4)),
        )
        for g in range(8)
    ]
    topology, known = read(tmp_path, system(cpu(*parts)), nodes=2).topology, topologies.p5(2)
    assert topology.nic.tolist() == known.nic.tolist() == list(range(16))
    found, expected = (next(iter(rates(t, LinkKind.NETWORK))) for t in (topology, known))
    assert found == (50, 48)
    assert expected == (50, 48.5)


def test_ports_that_nccl_does_not_send_over_are_no_cards(tmp_path: Path) -> None:
    fast = '<net name="a" speed="800000"/><net dev="0" net="0" speed="800000"/>'
    nets = f'{fast}<net dev="1" speed="-1"/>'
    text = system(cpu(gpu("a", 0), pci("c", "0x02", f"<nic>{nets}</nic>")))
    found = read(tmp_path, text, nodes=2)
    assert rates(found.topology, LinkKind.NETWORK) == {(1.25, 1.2)}
    assert "10 Gb/s for a card without a speed" in said(found)


@pytest.mark.parametrize(
    ("words", "machine"),
    [
        ('sm="60"', "dgx1"),
        ('sm="70"', "dgx1"),
        ('sm="80"', "dgx-a100"),
        ('sm="90"', "dgx-h100"),
        ('sm="100"', "dgx-b200"),
        ('sm="103"', "dgx-b200"),
        ('sm="94" gcn="gfx942"', "mi300x"),
        ('sm="90" gcn="910"', "mi250x"),
    ],
)
def test_gpus_compute_at_the_rates_of_their_generation(
    words: str, machine: str, tmp_path: Path
) -> None:
    one = cpu(gpu("a", 0, NVSWITCH, words), gpu("b", 1, NVSWITCH, words), words='arch="arm64"')
    found = read(tmp_path, system(one))
    known = topologies.find_machine(machine).model
    for name in ("architecture", "nvlink_block_GBps", "memory_GBps", "nvlink_latency_us"):
        assert getattr(found.topology.model, name) == getattr(known, name)
    assert f"the rates of {machine}" in said(found)
    other = read(tmp_path, system(one), like="ndv2")
    assert other.topology.model == topologies.ndv2().model


@pytest.mark.parametrize(
    ("vendor", "device", "machine"),
    [
        ("0x10de", "0x1db8", "dgx1"),
        ("0x10de", "0x20b0", "dgx-a100"),
        ("0x10de", "0x2330", "dgx-h100"),
        ("0x10de", "0x2335", "dgx-h100"),
        ("0x10de", "0x2901", "dgx-b200"),
        ("0x10de", "0x31c2", "dgx-b200"),
        ("0x1002", "0x740c", "mi250x"),
        ("0x1002", "0x74a1", "mi300x"),
        ("0x10de", "0xnone", "an A100"),
    ],
)
def test_the_number_of_the_device_tells_the_generation(
    vendor: str, device: str, machine: str, tmp_path: Path
) -> None:
    found = read(tmp_path, system(cpu(pci("a", "0x0302", vendor=vendor, device=device))))
    assert machine in said(found)


def test_a_matrix_with_18_links_computes_like_an_h100(tmp_path: Path) -> None:
    found = read(tmp_path, MATRIX, name="topo.txt", nodes=2)
    assert found.topology.model == topologies.dgx_h100().model
    assert rates(found.topology, LinkKind.NETWORK) == {(63, 48)}
    blackwell = read(tmp_path, MATRIX, name="topo.txt", nodes=2, like="dgx-b200").topology
    assert blackwell.model == topologies.dgx_b200().model
    assert rates(blackwell, LinkKind.NETWORK) == {(63, 48)}


def test_the_overhead_of_the_network_is_that_of_the_processors(tmp_path: Path) -> None:
    for words, post_us in (('vendor="GenuineIntel"', 1), ('vendor="AuthenticAMD"', 2)):
        found = read(tmp_path, system(cpu(gpu("a", 0), words=words)))
        assert found.topology.model.post_us == post_us


@pytest.mark.parametrize(
    ("words", "rate"),
    [
        ('arch="x86_64" vendor="AuthenticAMD"', 16),
        ('arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85"', 10),
        ('arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"', 22),
        ('arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="-1"', 6),
        ('arch="arm64"', 6),
        ('arch="ppc64"', 32),
    ],
)
def test_processors_are_joined_at_nccls_rates(words: str, rate: float, tmp_path: Path) -> None:
    text = system(cpu(gpu("a", 0), words=words), cpu(gpu("b", 1), words=words))
    assert (rate, rate) in rates(read(tmp_path, text).topology, LinkKind.PCIE)


def test_nvlink_to_processors_joins_their_gpus(tmp_path: Path) -> None:
    link = '<nvlink target="x" count="2" tclass="0x068001"/>'
    one = cpu(gpu("a", 0, link, 'sm="70"'), gpu("b", 1, link, 'sm="70"'), words='arch="ppc64"')
    topology = read(tmp_path, system(one)).topology
    path = topology.paths([0], [1]).target
    assert topology.links.GBps[path].tolist() == [40, 40]
    assert not (topology.vertices.kind == VertexKind.SWITCH).any()


def test_hosts_that_nvlink_joins_are_nodes_of_their_own(data_dir: Path) -> None:
    topology = topologies.load(data_dir / "users-3" / "gb300-2hosts.xml")
    assert topology.node.tolist() == [0] * 4 + [1] * 4
    assert rates(topology, LinkKind.NVLINK) == {(900, 721.8)}
    node, t = topology.vertices.node, topology.links
    pcie = t.kind == LinkKind.PCIE
    assert (node[t.src[pcie]] == node[t.dst[pcie]]).all()
    assert node[topology.vertices.kind == VertexKind.SWITCH].tolist() == [NONE]
    path = topology.paths([0], [4]).target
    assert t.kind[path].tolist() == [LinkKind.NVLINK] * 2
    assert topology.nic.tolist() == list(range(8))


def test_the_network_is_only_between_nodes_that_nvlink_does_not_join(tmp_path: Path) -> None:
    topology = read(tmp_path, HOSTS, nodes=2).topology
    assert topology.node.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    src, dst = np.array([0, 0, 0]), np.array([1, 2, 4])
    assert topology.crosses_network(src, dst).tolist() == [False, False, True]
    assert not topologies.ndv4().crosses_network(src, dst).any()
    assert LinkKind.NETWORK in topology.links.kind[topology.paths([0], [4]).target]
    program = sley.algorithms.ring_allgather(8)
    crosses = used_links(program, topology).crosses
    t = program.transfers
    assert (crosses == (t.src // 4 != t.dst // 4)).all()
    view = MachineView.of(topology)
    assert (view.nodes, view.gpus, view.cards) == (2, 4, 4)
    assert MachineView.of(read(tmp_path, HOSTS).topology).nodes == 1


def test_bus_ids_are_those_of_their_host(tmp_path: Path) -> None:
    link = '<nvlink target="{}" count="1" tclass="0x030200"/>'
    hosts = [
        cpu(
            gpu("a", 2 * h, link.format("b")),
            gpu("b", 2 * h + 1, link.format("a")),
            card("c", 200_000),
            words=f'host_hash="{h}"',
        )
        for h in range(2)
    ]
    topology = read(tmp_path, system(*hosts)).topology
    fast = topology.links.kind == LinkKind.NVLINK
    ends = zip(topology.links.src[fast].tolist(), topology.links.dst[fast].tolist(), strict=True)
    assert set(ends) == {(0, 1), (1, 0), (2, 3), (3, 2)}
    assert topology.crosses_network(np.array([0]), np.array([2])).all()


def test_a_matrix_of_topo_mp_says_that_it_leaves_nvlink_out(data_dir: Path, tmp_path: Path) -> None:
    found = topologies.read(data_dir / "users-3" / "nvidia-smi-topo-mp.txt")
    assert "topo -mp leaves it out, topo -m shows it" in said(found)
    legend = "\nLegend:\n\n  NV#  = Connection traversing a bonded set of # NVLinks\n"
    own = read(tmp_path, MATRIX.replace("NV18", "SYS") + legend, name="topo.txt")
    assert "topo -mp" not in said(own)


def test_many_processors_are_refused_in_little_time(tmp_path: Path) -> None:
    with pytest.raises(sley.SleyError) as caught:
        read(tmp_path, system(*[cpu(gpu("a", 0)) for _ in range(3_000)]))
    assert caught.value.code == "T607"


@pytest.mark.parametrize("text", [HWLOC_2, HWLOC_3])
def test_hwlocs_xml_gives_its_machine(text: str, tmp_path: Path) -> None:
    found = read(tmp_path, text, nodes=2)
    topology = found.topology
    assert (topology.ranks, topology.nodes) == (4, 2)
    assert rates(topology, LinkKind.NVLINK) == {(300, 240)}
    assert rates(topology, LinkKind.PCIE) == {(31.51, 24.01), (16, 16)}
    assert rates(topology, LinkKind.NETWORK) == {(25, 24)}  # ConnectX-6
    switches = (topology.vertices.kind == VertexKind.SWITCH).sum()
    assert switches == (2 if "NVSwitch" in text else 0)
    assert topology.nic.tolist() == [0, 0, 1, 1]  # the other card's port is down
    assert topology.model == replace(topologies.dgx_a100().model, post_us=1.0)  # Intel's
    assert "active port" in said(found)
    all_up = read(tmp_path, text.replace("Port1State", "Port1LID")).machine
    assert all_up is not None
    assert len(all_up.node.cards) == 2  # those with verbs, without the Ethernet cards


def test_hwlocs_file_without_matrices_says_that_nvlink_is_unknown(tmp_path: Path) -> None:
    found = read(tmp_path, hwloc("2.0", "", "0302 [10de:2330]"))
    assert "if it was built with NVML" in said(found)
    assert "the rates of dgx-h100" in said(found)


@pytest.mark.parametrize(
    ("values", "rate"), [("100000", (64, 48)), ("128000", (128, 96)), ("64000", (64, 48))]
)
def test_hwlocs_xgmi_is_in_links_of_the_generation(
    values: str, rate: tuple[float, float], tmp_path: Path
) -> None:
    xgmi = matrix("XGMIBandwidth", "OSDev:41 OSDev:42", f"0 {values} {values} 0")
    topology = read(tmp_path, hwloc("3.0", xgmi, "1200 [1002:74a1]")).topology
    assert rates(topology, LinkKind.NVLINK) == {rate}
    assert topology.model.memory_GBps == 5300


BAD_HWLOC = {
    "version 1": ("T605", HWLOC_2.replace(' version="2.0"', "")),
    "no GPU": ("T607", HWLOC_2.replace("0302", "0104").replace("nvml", "sda")),
    "matrix": ("T607", HWLOC_2.replace("300000", "fast", 1)),
    "cells": ("T607", HWLOC_2.replace("300000", "1 300000", 1)),
    "entities": ("T605", HWLOC_2.replace('"hwloc2.dtd"', '"hwloc2.dtd" [<!ENTITY a "b">]')),
}


@pytest.mark.parametrize("case", BAD_HWLOC)
def test_bad_files_of_hwloc_are_refused(case: str, tmp_path: Path) -> None:
    code, text = BAD_HWLOC[case]
    with pytest.raises(sley.SleyError) as caught:
        read(tmp_path, text)
    assert caught.value.code == code, caught.value
    assert "x.xml" in str(caught.value)


@pytest.mark.parametrize("name", FILES)
def test_every_sample_is_read(name: str, tmp_path: Path) -> None:
    assert read(tmp_path, FILES[name], nodes=2, name=name).topology.nodes >= 2


@pytest.mark.parametrize(
    ("nodes", "name", "options", "size"),
    [
        (1, "one-step-allreduce", {"protocol": "LL"}, "1M"),
        (1, "ring-allreduce", {"instances": 4}, "64M"),
        (2, "ring-allreduce", {}, "256K"),
    ],
)
def test_an_imported_h100_takes_the_time_of_a_dgx_h100(
    nodes: int, name: str, options: dict[str, object], size: str, data_dir: Path
) -> None:
    own = topologies.load(data_dir / "users-3" / "oci-h100-16cards.xml", nodes=nodes)
    program = sley.algorithms.build(name, ranks=8 * nodes)
    found, known = (
        sley.simulate(sley.compile(program, topology=topology, **options), size).time_us  # type: ignore[arg-type]
        for topology in (own, topologies.dgx_h100(nodes))
    )
    assert found == pytest.approx(known, rel=0.03)
