"""Tests of topologies that tools print: NCCL's log, rocm-smi --showtopo and amd-smi topology."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sley
from sley import topologies
from sley.errors import SleyError, recognition
from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.topology import Topology
from sley.topologies.nccl_log import capability
from support.inputs.printed_topologies import (
    amd_smi,
    amd_smi_json,
    buses,
    mutated,
    nccl_log,
    old_xgmi,
    one_link,
    rocm_smi,
    xgmi,
)


def loaded(folder: Path, text: str, nodes: int | None = None) -> topologies.LoadedTopology:
    path = folder / "printed.txt"
    path.write_text(text)
    return topologies.read(path, nodes=nodes)


def links(topology: Topology, kind: LinkKind) -> dict[tuple[int, int], tuple[float, float]]:
    """The links of a kind, by their ends, with their nominal and reached rates."""
    t = topology.links
    return {
        (int(t.src[i]), int(t.dst[i])): (float(t.nominal_GBps[i]), float(t.GBps[i]))
        for i in range(len(t))
        if t.kind[i] == kind
    }


def switched(_: int) -> list[str]:
    return ["NVL[370.8] - NVS/0-0"]


XML_SWITCH = '<nvlink target="ffffff" count="18" tclass="0x068000"/>'


def nccl_xml(gpus: int) -> str:
    """The XML of `nccl_log`'s node with an NVSwitch."""
    slot = 'link_speed="32.0 GT/s PCIe" link_width="16"'
    cpus = ["", ""]
    for gpu in range(gpus):
        cpus[2 * gpu // gpus] += (
            f'<pci busid="s{gpu}" class="0x060400" {slot}>'
            f'<pci busid="g{gpu}" class="0x030200" {slot}>'
            f'<gpu dev="{gpu}" sm="90" rank="{gpu}">{XML_SWITCH}</gpu></pci>'
            f'<pci busid="n{gpu}" class="0x020700" {slot}><nic>'
            f'<net name="m{gpu}" dev="{gpu}" speed="400000" port="1"/></nic></pci></pci>'
        )
    inner = "".join(f'<cpu numaid="{i}" arch="x86_64">{cpu}</cpu>' for i, cpu in enumerate(cpus))
    return f'<system version="1">{inner}</system>'


def test_a_log_has_the_links_of_the_xml_that_nccl_dumps(tmp_path: Path) -> None:
    (tmp_path / "topo.xml").write_text(nccl_xml(8))
    expected = topologies.read(tmp_path / "topo.xml", nodes=2).topology
    found = loaded(tmp_path, nccl_log(switched), nodes=2).topology
    assert found.vertices.kind.tolist() == expected.vertices.kind.tolist()
    for kind in LinkKind:
        ours, theirs = links(found, kind), links(expected, kind)
        assert len(ours) == len(theirs)
        rates = [sorted(one.values()) for one in (ours, theirs)]
        if kind != LinkKind.PCIE:  # the log shows the rate between processors, the XML doesn't
            assert rates[0] == [pytest.approx(rate, rel=1e-3) for rate in rates[1]]
    assert (10.0, 10.0) in links(found, LinkKind.PCIE).values()
    h100 = topologies.find("dgx-h100").model
    assert replace(found.model, post_us=h100.post_us) == h100


def test_an_old_log_and_one_of_devices_have_the_same_machine(tmp_path: Path) -> None:
    texts = [
        nccl_log(lambda _: ["NVL[370.8] - NVS/0"], names="{}").replace("maxBw", "maxWidth"),
        nccl_log(switched, devices=True),
        "\n".join(f"2026-01-01 10:11:12 {line}" for line in nccl_log(switched).split("\n")),
        nccl_log(switched).replace("\n", "\r\n"),
    ]
    expected = loaded(tmp_path, nccl_log(switched), nodes=2).topology
    for text in texts:
        found = loaded(tmp_path, text, nodes=2).topology
        for kind in LinkKind:
            assert links(found, kind) == links(expected, kind)


def test_hosts_that_nvlink_joins_are_nodes(tmp_path: Path) -> None:
    lines = nccl_log(lambda gpu: [f"NVL[721.8] - NVS/{gpu // 2}-0"], gpus=4).split("\n")
    second = next(i for i, line in enumerate(lines) if "CPU/0-1 (" in line)
    text = "\n".join([*lines[:second], *(line.replace("/0-", "/1-") for line in lines[second:])])
    text = text.replace("NVS/1-0", "NVS/0-0")
    text = "\n".join(line for line in text.split("\n") if "SYS" not in line)
    found = loaded(tmp_path, text).topology
    assert (found.ranks, found.nodes) == (4, 2)
    rates = {(round(a, 3), b) for a, b in links(found, LinkKind.NVLINK).values()}
    assert rates == {(900.0, 721.8)}


def test_the_cards_of_a_nic_share_its_slot(tmp_path: Path) -> None:
    line = re.search(r"node1:77:93.* NET/0-0 .*\n", nccl_log(switched, gpus=2))
    assert line is not None
    text = nccl_log(switched, gpus=2).replace(line[0], line[0] + line[0].replace("/0-0 ", "/0-9 "))
    machine = loaded(tmp_path, text, nodes=2).machine
    assert machine is not None
    slots = [link.rate[:2] for link in machine.node.links if link.src in machine.node.cards]
    assert slots == [(31.5, 24.0), (31.5, 24.0), (63.0, 48.0)]


def test_the_number_of_a_device_tells_the_gpu(tmp_path: Path) -> None:
    text = nccl_log(lambda _: [], gpus=2, devices=True)
    told = [
        note.found for note in loaded(tmp_path, text.replace("(10de)", "(10de233010de1626)")).notes
    ]
    assert any("H100" in one for one in told)
    told = [note.found for note in loaded(tmp_path, text).notes]
    assert any("doesn't say which" in one for one in told)


def test_gpus_are_numbered_by_rank(tmp_path: Path) -> None:
    text = nccl_log(lambda gpu: [f"NVL[20.0] - GPU/0-{2 - gpu}0000"], gpus=2, cards=False)
    text = text.replace("GPU/0-10000 (0)", "GPU/0-10000 (9)").replace("(1)\n", "(8)\n")
    found = loaded(tmp_path, text)
    assert links(found.topology, LinkKind.NVLINK) == dict.fromkeys([(0, 1), (1, 0)], (25.0, 20.0))
    assert any("single node" in note.found for note in found.notes)
    table = found.topology
    first = [int(v) for v in range(table.ranks, len(table.vertices.kind))]
    assert table.vertices.kind[first[0]] == VertexKind.PCIE


def test_links_to_processors_are_in_the_tree(tmp_path: Path) -> None:
    """NVLink C2C of a Grace processor is faster than its PCIe."""
    text = nccl_log(lambda gpu: [f"C2C[360.0] - CPU/0-{gpu}"], gpus=2, cards=False)
    found = loaded(tmp_path, text).topology
    assert max(links(found, LinkKind.PCIE).values()) == (360.0, 360.0)
    assert not links(found, LinkKind.NVLINK)


CAPABILITIES = {370.8: 90, 240.0: 80, 264.0: 80, 252.0: 80, 120.0: 70, 132.0: 70, 360.0: 90}
CAPABILITIES |= {721.8: 100, 72.0: 60, 7.7: 80}


@pytest.mark.parametrize("total", CAPABILITIES)
def test_the_rate_of_nvlinks_tells_the_gpu(total: float) -> None:
    assert capability(total) == CAPABILITIES[total]


BAD_LOGS = {
    "no GPU": ("T608", "x:1:2 [0] NCCL INFO === System : maxBw 1.0 totalBw 2.0 ===\n"),
    "without spaces": ("T608", nccl_log(switched).replace("  ", "")),
    "cut off": ("T608", nccl_log(switched)[:1500]),
    "no rate": ("T607", nccl_log(lambda _: ["NVL[0.0] - NVS/0-0"])),
    "no speed": ("T607", nccl_log(switched).replace("1/50.000000", "1/0.000000")),
    "parts of a GPU": (
        "T607",
        nccl_log(lambda gpu: [f"LOC[5000.0] - GPU/0-{gpu + 1}0001"], devices=True),
    ),
}


@pytest.mark.parametrize("case", BAD_LOGS)
def test_a_bad_log_is_refused(case: str, tmp_path: Path) -> None:
    code, text = BAD_LOGS[case]
    with pytest.raises(SleyError) as caught:
        loaded(tmp_path, text)
    assert caught.value.code == code
    assert "printed.txt:" in str(caught.value)


def test_a_node_of_mi300s_is_a_mesh(tmp_path: Path) -> None:
    found = loaded(tmp_path, rocm_smi(8, old_xgmi, numa=[0, 0, 0, 0, 1, 1, 1, 1])).topology
    assert found.model == topologies.find("mi300x").model
    assert set(links(found, LinkKind.NVLINK).values()) == {(64.0, 48.0)}
    assert len(links(found, LinkKind.NVLINK)) == 8 * 7
    assert found.vertices.kind.tolist().count(VertexKind.PCIE) == 2
    ring = sley.compile(sley.algorithms.build("ring-allreduce", ranks=8), topology=found)
    assert sley.simulate(ring, "1M").time_us > 0


def test_pairs_of_a_larger_weight_have_no_link(tmp_path: Path) -> None:
    """A ring of four: the opposite GPU is two links away, although the tool shows one hop."""
    text = rocm_smi(4, old_xgmi, weight=lambda a, b: 15 * min((a - b) % 4, (b - a) % 4))
    found = loaded(tmp_path, text).topology
    assert set(links(found, LinkKind.NVLINK)) == {
        pair for a in range(4) for pair in ((a, (a + 1) % 4), ((a + 1) % 4, a))
    }


def test_gpus_without_xgmi_hang_at_their_processors(tmp_path: Path) -> None:
    def pcie(a: int, b: int) -> str:
        return "0" if a == b else "PCIE"

    by_numa = loaded(tmp_path, rocm_smi(4, pcie, numa=[7, 1, 7, 1])).topology
    text = rocm_smi(4, pcie, numa=[7, 1, 7, 1])
    by_hops = loaded(tmp_path, text.partition("GPU[0]")[0]).topology
    tree = {(0, 4), (2, 4), (1, 5), (3, 5), (4, 5)}
    for found in (by_numa, by_hops):
        pairs = links(found, LinkKind.PCIE)
        assert {(min(pair), max(pair)) for pair in pairs} == tree


def mi250x(a: int, b: int) -> str:
    """The bandwidth matrix of four GPUs with 4, 2, 1 and no links to others."""
    words = {1: "50000-200000", 2: "50000-100000", 3: "0-0"}
    return "N/A" if a == b else words[a ^ b]


@pytest.mark.parametrize("write", [amd_smi, amd_smi_json])
def test_the_bandwidth_matrix_of_amd_smi_gives_the_links(write: object, tmp_path: Path) -> None:
    found = loaded(tmp_path, write(4, xgmi, mi250x)).topology  # type: ignore[operator]
    expected = {1: (200.0, 144.0), 2: (100.0, 72.0)}
    assert links(found, LinkKind.NVLINK) == {
        (a, b): expected[a ^ b] for a in range(4) for b in range(4) if a ^ b in expected
    }
    unknown = loaded(tmp_path, write(8, xgmi, lambda a, b: "0-0")).topology  # type: ignore[operator]
    assert set(links(unknown, LinkKind.NVLINK).values()) == {(64.0, 48.0)}
    file = tmp_path / "four.json"
    file.write_text(write(4, xgmi, lambda a, b: "0-0"))  # type: ignore[operator]
    for name, rate in (("mi250x", (50.0, 36.0)), ("mi300x", (64.0, 48.0))):
        like = topologies.load(file, like=name)
        assert set(links(like, LinkKind.NVLINK).values()) == {rate}
        assert like.model == topologies.find(name).model


def _other(old: str, new: str) -> str:
    text = amd_smi(3, xgmi, one_link)
    assert old in text
    head, _, tail = text.partition("LINK TYPE")
    return f"{head}LINK TYPE{tail.replace(old, new, 1)}"


BAD_MATRICES = {
    "no types": ("T608", amd_smi(3, xgmi, one_link).replace("LINK TYPE TABLE", "OTHER")),
    "unknown type": ("T607", _other("XGMI", "XXXX")),
    "one direction": ("T608", _other("XGMI", "PCIE")),
    "a link to itself": ("T607", _other("SELF", "XGMI")),
    "a missing row": ("T608", rocm_smi(3, old_xgmi).rpartition("GPU2")[0]),
    "a cut row": ("T608", _other("XGMI  ", "")),
    "the same name": ("T608", amd_smi(3, xgmi, one_link).replace(buses(3)[2], buses(3)[1])),
    "no names": ("T607", _other(" TABLE:\n", " TABLE:\nx ")),
    "JSON cut off": ("T605", amd_smi_json(3, xgmi, one_link)[:-40]),
    "JSON of other links": (
        "T607",
        amd_smi_json(3, xgmi, one_link).replace('"links"', '"links":[],"x"'),
    ),
    "JSON in another order": ("T607", amd_smi_json(2, xgmi, one_link).replace(buses(2)[1], "x", 1)),
}


@pytest.mark.parametrize("case", BAD_MATRICES)
def test_bad_matrices_are_refused(case: str, tmp_path: Path) -> None:
    code, text = BAD_MATRICES[case]
    with pytest.raises(SleyError) as caught:
        loaded(tmp_path, text)
    assert caught.value.code == code


def test_printed_topologies_are_recognised(tmp_path: Path) -> None:
    for kind, text in (
        (recognition.NCCL_LOG, "a line before\n" + nccl_log(switched)),
        (recognition.AMD_SMI, rocm_smi(2, old_xgmi)),
        (recognition.AMD_SMI, amd_smi(2, xgmi, one_link)),
        (recognition.AMD_SMI, amd_smi_json(2, xgmi, one_link)),
    ):
        for name in ("file", "file.json", "file.log"):
            (tmp_path / name).write_text(text)
            assert recognition.kind_of(tmp_path / name) == kind
            assert topologies.read(tmp_path / name).topology.ranks in (2, 8)


def test_a_log_is_found_behind_much_other_text(tmp_path: Path) -> None:
    assert loaded(tmp_path, "epoch\n" * 200_000 + nccl_log(switched)).topology.ranks == 8


def test_topologies_that_people_posted_are_read(data_dir: Path) -> None:
    log = topologies.load(data_dir / "users-3" / "nccl-info-topology-log.txt")
    assert (log.ranks, len(links(log, LinkKind.PCIE))) == (2, 8)
    matrix = topologies.load(data_dir / "users-3" / "rocm-smi-showtopo.txt")
    assert {(min(pair), max(pair)) for pair in links(matrix, LinkKind.NVLINK)} == {
        *combinations(range(4), 2)
    }


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.randoms(use_true_random=False))
def test_any_damage_is_read_or_refused(tmp_path: Path, rng: random.Random) -> None:
    try:
        assert loaded(tmp_path, mutated(rng)).topology.ranks > 0
    except SleyError as error:
        assert error.code[0] in "TCF"
