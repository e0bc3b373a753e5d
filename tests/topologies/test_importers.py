"""Tests of topologies from other tools: NCCL's XML, nvidia-smi topo -m, TACCL's JSON."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sley
from sley import topologies
from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.topology import Topology
from support.inputs.topology_texts import FILES


def loaded(
    folder: Path, name: str, text: str, nodes: int | None = None
) -> topologies.LoadedTopology:
    path = folder / name
    path.write_text(text)
    return topologies.read(path, nodes=nodes)


def rates(topology: Topology, kind: LinkKind) -> set[tuple[float, float]]:
    """The rates of the links of a kind, nominal and reached."""
    t = topology.links
    used = t.kind == kind
    pairs = zip(t.nominal_GBps[used].tolist(), t.GBps[used].tolist(), strict=True)
    return {(round(a, 3), round(b, 3)) for a, b in pairs}


def gpu(bus: str, rank: int, links: str, sm: int = 80) -> str:
    return (
        f'<pci busid="{bus}" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">'
        f'<gpu dev="{rank}" sm="{sm}" rank="{rank}" gdr="1">{links}</gpu></pci>'
    )


def nic(bus: str, dev: int, speed: int = 200000) -> str:
    return (
        f'<pci busid="{bus}" class="0x020700" link_speed="16.0 GT/s PCIe" link_width="16"><nic>'
        f'<net name="mlx5_{dev}" dev="{dev}" speed="{speed}" port="1" guid="0x{dev}" gdr="1"/>'
        "</nic></pci>"
    )


def switch(bus: str, *inside: str) -> str:
    return (
        f'<pci busid="{bus}" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">'
        f"{''.join(inside)}</pci>"
    )


def system(*cpus: str) -> str:
    inner = "".join(f'<cpu numaid="{i}" arch="x86_64">{c}</cpu>' for i, c in enumerate(cpus))
    return f'<system version="1">{inner}</system>'


NVSWITCH = '<nvlink target="ffffff" count="12" tclass="0x068000"/>'
A100 = system(
    switch("s0", gpu("a", 1, NVSWITCH), gpu("b", 0, NVSWITCH), nic("n0", 0)),
    switch("s1", gpu("c", 2, NVSWITCH), gpu("d", 3, NVSWITCH), nic("n1", 1)),
)
DIRECT = system(
    gpu("a", 0, '<nvlink target="b" count="2" tclass="0x030200"/>', sm=70)
    + gpu("b", 1, '<nvlink target="a" count="2" tclass="0x030200"/>', sm=70)
    + gpu("c", 2, "", sm=70)
    + nic("n0", 0, 100000)
)


def test_nccl_xml_with_a_switch_gives_its_machine(tmp_path: Path) -> None:
    found = loaded(tmp_path, "dump.xml", A100, nodes=2)
    topology = found.topology
    assert (topology.name, topology.ranks, topology.nodes) == ("dump:2", 8, 2)
    assert rates(topology, LinkKind.NVLINK) == {(300, 240)}
    assert rates(topology, LinkKind.NETWORK) == {(25, 24)}
    assert rates(topology, LinkKind.PCIE) == {(31.504, 24), (16, 16)}
    # The file gives the ranks: rank 0 is at bus b. Each switch's card is the nearest to its GPUs.
    assert topology.nic.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    kinds = np.bincount(topology.vertices.kind, minlength=5).tolist()
    assert kinds == [8, 2, 8, 4, 1]
    assert {n.code for n in found.notes} == {"F434"}
    assert any("20 reached" in n.found for n in found.notes)


def test_nccl_xml_with_direct_links_gives_its_machine(tmp_path: Path) -> None:
    topology = loaded(tmp_path, "dump.xml", DIRECT).topology
    assert rates(topology, LinkKind.NVLINK) == {(50, 40)}
    assert (topology.links.kind == LinkKind.NVLINK).sum() == 2  # though each end names it
    one = topology.paths([0, 0], [1, 2])
    kinds = topology.links.kind[one.target].tolist()
    assert kinds == [LinkKind.NVLINK, LinkKind.PCIE, LinkKind.PCIE]
    two = loaded(tmp_path, "dump.xml", DIRECT, nodes=2).topology
    assert rates(two, LinkKind.NETWORK) == {(12.5, 12)}


def test_nccl_xml_of_amd_gpus_has_the_rates_of_xgmi(tmp_path: Path) -> None:
    text = DIRECT.replace("nvlink", "xgmi").replace('sm="70"', 'sm="90" gcn="gfx942"')
    assert rates(loaded(tmp_path, "d.xml", text).topology, LinkKind.NVLINK) == {(128, 96)}


BAD_XML = {
    "DOCTYPE": ("T605", '<!DOCTYPE s [<!ENTITY a "b">]>' + A100),
    "malformed": ("T605", A100[:-3]),
    "empty": ("T605", ""),
    "other": ("T605", "<systems/>"),
    "plan": ("F550", "<algo/>"),
    "no GPU": ("T607", system(nic("n0", 0))),
    "speed": ("T607", A100.replace('speed="200000"', 'speed="fast"')),
    "count": ("T607", A100.replace('count="12"', 'count="0"')),
    "width": ("T607", A100.replace('link_width="16"', 'link_width="-4"')),
    "unlinked": ("T603", system(gpu("a", 0, "")).replace("cpu", "gpus") + ""),
    "deep": ("T605", "<system>" + "<pci>" * 99 + "</pci>" * 99 + "</system>"),
}


@pytest.mark.parametrize("case", BAD_XML)
def test_bad_xml_is_refused(case: str, tmp_path: Path) -> None:
    code, text = BAD_XML[case]
    if case == "unlinked":
        text = A100.replace("nvlink", "link").replace("<cpu", '<cpu host_hash="1"', 1)
        text = text.replace("<nic>", "<none>").replace("</nic>", "</none>")
    with pytest.raises(sley.SleyError) as caught:
        loaded(tmp_path, "x.xml", text)
    assert caught.value.code == code, caught.value
    assert "x.xml" in str(caught.value)


@pytest.mark.parametrize("encoding", ["foo", "gbk", "utf-16", "latin-1"])
def test_the_declared_encoding_of_xml_changes_nothing(encoding: str, tmp_path: Path) -> None:
    text = f'<?xml version="1.0" encoding="{encoding}"?>' + A100
    assert loaded(tmp_path, "a.xml", text).topology == loaded(tmp_path, "a.xml", A100).topology


def test_slots_without_a_speed_get_pcie_3_and_a_note(tmp_path: Path) -> None:
    text = A100.replace("16.0 GT/s PCIe", "Unknown").replace('link_width="16"', "")
    found = loaded(tmp_path, "x.xml", text)
    assert rates(found.topology, LinkKind.PCIE) >= {(15.76, 12)}
    assert any("PCIe 3.0" in n.found for n in found.notes)


def matrix(rows: list[str]) -> str:
    """A matrix as nvidia-smi prints it, with tabs, an underlined head and a legend."""
    names = [row.split()[0] for row in rows]
    head = "\t".join(["", *(f"\x1b[4m{n}" for n in names), "CPU Affinity", "NUMA Affinity\x1b[0m"])
    legend = (
        "\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n"
    )
    return "\n".join([head, *("\t".join(row.split()) for row in rows), legend])


def square(names: list[str], cell: object, tail: str = "") -> list[str]:
    return [
        " ".join([a, *("X" if a == b else cell(a, b) for b in names)]) + tail  # type: ignore
        for a in names
    ]


H100 = matrix(
    square(
        [f"GPU{i}" for i in range(8)] + [f"NIC{i}" for i in range(8)],
        lambda a, b: (
            "NV18"
            if a[0] == b[0] == "G"
            else "PIX"
            if a[3] == b[3]
            else "NODE"
            if int(a[3]) // 4 == int(b[3]) // 4
            else "SYS"
        ),
    )
)
DGX1 = matrix(
    [
        "GPU0 X NV1 NV1 NV2 NV2 SYS SYS SYS 0-19 0",
        "GPU1 NV1 X NV2 NV1 SYS NV2 SYS SYS 0-19 0",
        "GPU2 NV1 NV2 X NV2 SYS SYS NV1 SYS 0-19 0",
        "GPU3 NV2 NV1 NV2 X SYS SYS SYS NV1 0-19 0",
        "GPU4 NV2 SYS SYS SYS X NV1 NV1 NV2 20-39 1",
        "GPU5 SYS NV2 SYS SYS NV1 X NV2 NV1 20-39 1",
        "GPU6 SYS SYS NV1 SYS NV1 NV2 X NV2 20-39 1",
        "GPU7 SYS SYS SYS NV1 NV2 NV1 NV2 X 20-39 1",
    ]
)
PCIE = matrix(
    [
        "GPU0 X PIX PHB SYS 0-7 0",
        "GPU1 PIX X PHB SYS 0-7 0",
        "GPU2 PHB PHB X SYS 0-7 0",
        "NIC0 SYS SYS SYS X",
    ]
)


def test_nvidia_smi_with_a_switch_gives_its_machine(tmp_path: Path) -> None:
    found = loaded(tmp_path, "topo.txt", H100, nodes=2)
    topology = found.topology
    assert (topology.ranks, topology.nodes) == (16, 2)
    assert rates(topology, LinkKind.NVLINK) == {(450, 370.8)}
    assert topology.nic.tolist() == list(range(16))
    assert any("NVSwitch" in n.found for n in found.notes)
    # A switch for each GPU and its card, a processor for each four of them.
    assert (topology.vertices.kind == VertexKind.PCIE).sum() == 2 * (8 + 2)


def test_a_machine_with_switches_that_reduce_is_named(tmp_path: Path) -> None:
    told = [n.found for n in loaded(tmp_path, "topo.txt", H100).notes]
    (note,) = [one for one in told if "NVLS" in one]
    like = note.partition("like=")[2].partition(" ")[0]
    named = topologies.read(tmp_path / "topo.txt", like=like)
    assert named.topology.in_network
    for found in (named, loaded(tmp_path, "topo", DGX1)):
        assert not any("NVLS" in n.found for n in found.notes)


def test_nvidia_smi_of_a_dgx1_has_its_links(tmp_path: Path) -> None:
    topology = loaded(tmp_path, "topo", DGX1).topology
    known = topologies.dgx1()
    fast = topology.links.kind == LinkKind.NVLINK

    def table(t: Topology, used: np.ndarray) -> set[tuple[float, ...]]:
        columns = (t.links.src, t.links.dst, t.links.nominal_GBps, t.links.GBps)
        return set(zip(*(c[used].tolist() for c in columns), strict=True))

    assert table(topology, fast) == table(known, known.links.src >= 0)
    assert topology.linked[0, 5]  # over PCIe, which `dgx1` does not describe
    # The NUMA nodes show two processors with 4 GPUs each.
    assert (topology.vertices.kind == VertexKind.PCIE).sum() == 2


@pytest.mark.parametrize(
    ("links", "rate", "switches"), [(4, (100, 80), 0), (6, (150, 123.6), 0), (12, (300, 240), 1)]
)
def test_more_nvlinks_than_a_gpu_has_mean_a_switch(
    links: int, rate: tuple[float, float], switches: int, tmp_path: Path
) -> None:
    text = matrix(square([f"GPU{i}" for i in range(4)], lambda a, b: f"NV{links}"))
    topology = loaded(tmp_path, "topo.txt", text).topology
    assert rates(topology, LinkKind.NVLINK) == {rate}
    assert (topology.vertices.kind == VertexKind.SWITCH).sum() == switches


def test_nvidia_smi_without_nvlink_gives_a_pcie_tree(tmp_path: Path) -> None:
    topology = loaded(tmp_path, "topo.txt", PCIE).topology
    assert rates(topology, LinkKind.NVLINK) == set()
    hops = np.diff(topology.paths([0, 0], [1, 2]).offset).tolist()
    assert hops == [2, 3]
    two = loaded(tmp_path, "topo.txt", PCIE, nodes=2).topology
    assert rates(two, LinkKind.PCIE) == {(31.5, 24), (16, 16)}
    assert two.nic.tolist() == [0, 0, 0, 1, 1, 1]


BAD_MATRICES = {
    "row": ("T608", PCIE.replace("\nGPU2\t", "\nGPU9\t")),
    "cell": ("T607", PCIE.replace("PHB", "FAR")),
    "itself": ("T607", PCIE.replace("X\t", "PIX\t", 1)),
    "twice": ("T607", PCIE.replace("GPU1", "GPU0")),
}


@pytest.mark.parametrize("case", BAD_MATRICES)
def test_bad_matrices_are_refused(case: str, tmp_path: Path) -> None:
    code, text = BAD_MATRICES[case]
    with pytest.raises(sley.SleyError) as caught:
        loaded(tmp_path, "x.txt", text)
    assert caught.value.code == code, caught.value


TACCL = {
    "topo-dgx2-1MB": (16, 8, {131.07}, 9.986),
    "topo-dgx2-1KB": (16, 8, {102.4}, 9.99),
    "topo-ndv2-1MB": (8, 1, {45.59, 22.795}, 9.986),
    "topo-ndv2-32KB": (8, 1, {45.638, 22.787}, 9.99),
    "topo-ndv2-1KB": (8, 1, {45.714, 22.756}, 9.99),
}


@pytest.mark.parametrize("name", TACCL)
def test_taccl_profiles_give_the_same_machine_for_every_chunk_size(
    name: str, data_dir: Path
) -> None:
    gpus, nics, fast, remote = TACCL[name]
    path = data_dir / "taccl-topologies" / f"{name}.json"
    found = topologies.read(path, nodes=2)
    topology, t = found.topology, found.topology.links
    assert topology.ranks == 2 * gpus
    assert (topology.vertices.kind == VertexKind.NIC).sum() == 2 * nics
    found_rates = sorted(r for r, _ in rates(topology, LinkKind.NVLINK))
    assert found_rates == pytest.approx(sorted(fast), rel=1e-3)
    assert [r for r, _ in rates(topology, LinkKind.NETWORK)] == pytest.approx([remote], rel=1e-2)
    direct = gpus == 8
    inside = topology.paths([0], [1]).target
    assert t.latency_us[inside].sum() == pytest.approx(0.3)
    assert len(inside) == (1 if direct else 2)
    assert t.latency_us[topology.paths([0], [gpus]).target].sum() == pytest.approx(2.6)
    if direct:
        assert (topology.linked[:8, :8] == topologies.ndv2().linked).all()
    assert not found.notes


def custom(**changes: object) -> str:
    n = 3
    ring = [[int((src + 1) % n == dst) for src in range(n)] for dst in range(n)]
    tables = {"name": "ring", "gpus_per_node": n, "alpha": 1, "links": ring, "betas": ring}
    return json.dumps(tables | {"invbws": ring} | changes)


def test_neighbouring_gpus_of_a_taccl_profile_share_a_card(tmp_path: Path) -> None:
    n = 4
    ring = [[int((src + 1) % n == dst) for src in range(n)] for dst in range(n)]
    tables = {"gpus_per_node": n, "links": ring, "betas": ring, "invbws": ring}
    text = custom(**tables, nics_per_node=2, remote_alpha=1, remote_beta=1, remote_invbw=2)
    path = tmp_path / "c.json"
    path.write_text(text)
    topology = topologies.read(path, nodes=2).topology
    cards = topology.nic[:n].tolist()
    assert [card - cards[0] for card in cards] == [0, 0, 1, 1]


def test_columns_of_taccl_matrices_are_sources_and_rows_destinations(tmp_path: Path) -> None:
    found = loaded(tmp_path, "c.json", custom())
    links = found.topology.links
    assert sorted(zip(links.src.tolist(), links.dst.tolist(), strict=True)) == [
        (0, 1),
        (1, 2),
        (2, 0),
    ]
    assert links.GBps.tolist() == pytest.approx([2**20 / 1e3] * 3)
    assert any("chunks of 1 MB" in n.found for n in found.notes)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("T605", "{"),
        ("T605", "[1]"),
        ("T607", "{}"),
        ("T607", custom(alpha="x")),
        ("T607", custom(alpha=10**400)),
        ("T602", custom(alpha=-1)),
        ("T607", custom(links=[[1]])),
        ("T607", custom(links=[[0, "a", 1]] * 3)),
        ("T602", custom(betas=[[0] * 3] * 3)),
        ("T607", custom(betas=[[10**400] * 3] * 3)),
        ("T603", custom(links=[[0] * 3] * 3)),
        ("T607", custom(extra=1)),
        ("T607", custom(nics_per_node=2, remote_alpha=1, remote_beta=1)),
        ("T607", custom(nics_per_node=1)),
        ("T605", "[" * 100_000),
    ],
)
def test_bad_profiles_are_refused(code: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(sley.SleyError) as caught:
        loaded(tmp_path, "x.json", text)
    assert caught.value.code == code, caught.value


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(
        [("x.xml", A100), ("x.xml", DIRECT), ("x.txt", H100), ("x.json", custom())]
        + [(name, text) for name, text in FILES.items()]
    ),
    st.floats(0, 1),
    st.integers(0, 12),
    st.text(max_size=6),
)
def test_damaged_files_give_a_topology_or_a_diagnostic(
    tmp_path: Path, file: tuple[str, str], where: float, cut: int, put: str
) -> None:
    name, text = file
    at = int(where * len(text))
    path = tmp_path / name
    path.write_bytes((text[:at] + put + text[at + cut :]).encode("utf-8", "surrogatepass"))
    try:
        topologies.load(path)
    except sley.SleyError as error:
        assert error.code[0] in "TC"
        assert name in str(error)
