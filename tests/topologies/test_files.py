"""Tests of topologies in TOML: reading, writing, and refused files."""

from __future__ import annotations

import copy
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley import topologies
from sley.ir.cost_model import ByProtocol, CostModel
from sley.ir.fabric import LinkKind, TopologyLinks, VertexKind, Vertices
from sley.ir.topology import Topology
from sley.model.bounds.groups import levels_of
from sley.topologies.graph import graph_from, graph_text
from sley.topologies.machine import complete, machine_from, machine_tables
from support.generators.examples import examples

RATE = "nominal_GBps = 25.0\nGBps = 20.0\n"
HEAD = 'name = "x"\ngpus = 4\n'
SWITCH = f"[nvlink]\n{RATE}"
TREE = "[pcie]\nvertices = ['cpu']\n"


def loaded(folder: Path, text: str, nodes: int | None = None) -> Topology:
    path = folder / "x.toml"
    path.write_text(text)
    return topologies.load(path, nodes=nodes)


MACHINES = [f"{name}:2" for name in topologies.machine_names()]


@pytest.mark.parametrize("name", [*MACHINES, "ndv5-nvls", "mesh:3x2", "2x8:4"])
def test_saved_topologies_are_read_back_equal(name: str, tmp_path: Path) -> None:
    topology = topologies.find(name)
    path = tmp_path / "saved.toml"
    topologies.save(topology, path)
    assert topologies.load(path) == topology
    first = path.read_bytes()
    topologies.save(topologies.load(path), path)
    assert path.read_bytes() == first


RATES = st.floats(1e-6, 1e9)


@st.composite
def random_topologies(draw: st.DrawFn) -> Topology:
    gpus = draw(st.integers(1, 4))
    others = draw(st.lists(st.sampled_from(list(VertexKind)[1:]), max_size=3))
    n = gpus + len(others)
    ring = [(i, (i + 1) % n) for i in range(n)] if n > 1 else []
    chords = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=6))
    ends = [(a, b) for a, b in [*ring, *chords] if a != b]
    size = len(ends)

    def drawn(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=size, max_size=size))

    return Topology(
        draw(st.text(st.characters(exclude_categories=["Cs"]))),
        Vertices(
            [VertexKind.GPU] * gpus + others,
            [0] * gpus + [-1 if k == VertexKind.NETWORK else 0 for k in others],
        ),
        TopologyLinks(
            [a for a, _ in ends],
            [b for _, b in ends],
            drawn(st.sampled_from(list(LinkKind))),
            drawn(RATES),
            drawn(RATES),
            drawn(st.just(-1.0) | st.floats(0, 1e9)),
        ),
        CostModel(
            contention=draw(st.floats(0, 1e6)),
            launch_us=ByProtocol(*(draw(st.floats(0, 1e9)) for _ in range(3))),
        ),
        draw(st.booleans()),
    )


@examples(14)
@given(random_topologies())
def test_any_topology_survives_its_text(topology: Topology) -> None:
    assert graph_from("x", tomllib.loads(graph_text(topology))) == topology


def test_a_name_that_is_not_unicode_is_saved_as_it_is_shown(tmp_path: Path) -> None:
    topologies.save(Topology.from_links("\udc80", 1, []), tmp_path / "x.toml")
    assert topologies.load(tmp_path / "x.toml").name == r"\udc80"


def test_like_takes_missing_tables_and_parameters_from_the_other_machine(tmp_path: Path) -> None:
    text = 'name = "mine"\nlike = "resccl"\n[model]\ncontention = 0.5\n'
    mine, resccl = loaded(tmp_path, text, nodes=4), topologies.resccl(4)
    assert (mine.vertices, mine.links) == (resccl.vertices, resccl.links)
    assert mine.model.contention == 0.5
    assert mine.model.network_block_GBps == 6.25
    assert mine.name == "mine:4"


def test_boards_cards_and_racks_become_vertices_and_links(tmp_path: Path) -> None:
    text = (
        HEAD + SWITCH + "boards = 2\n[nvlink.between_boards]\nnominal_GBps = 7\nGBps = 6\n"
        "latency_us = 2\n"
        f"[cards]\ncount = 2\ngpus = [[0, 3], [1, 2]]\n{RATE}"
        "[racks]\nnodes = 1\nnominal_GBps = 9\nGBps = 8\n"
    )
    topology = loaded(tmp_path, text, nodes=2)
    assert topology.nic.tolist() == [0, 1, 1, 0, 2, 3, 3, 2]
    between = topology.links.nominal_GBps == 7
    assert topology.links.latency_us[between].tolist() == [2.0] * 4
    assert (topology.links.latency_us[~between] == -1).all()
    assert (topology.links.nominal_GBps == 9).sum() == 4


RAILS = 'name = "mine"\nlike = "resccl"\n[rails]\noversubscription = 2\n'


def test_cards_of_one_number_share_a_rail_and_others_the_spine(tmp_path: Path) -> None:
    topology = loaded(tmp_path, RAILS, nodes=4)
    labels = [
        [topology.link_label(link) for link in topology.paths([0], [to])[0].tolist()]
        for to in (8, 10)
    ]
    assert labels[0] == [
        "GPU 0 -> NIC 0",
        "NIC 0 -> network 0",
        "network 0 -> NIC 4",
        "NIC 4 -> GPU 8",
    ]
    assert labels[1][1:4] == [
        "NIC 0 -> network 0",
        "network 0 -> network 4",
        "network 4 -> network 1",
    ]
    links = topology.links
    spine = [i for i in range(len(links)) if topology.link_label(i).count("network") == 2]
    # Four cards of 25 / 24 on each of four rails, and half of that to the spine and back.
    assert links.GBps[spine].tolist() == [48.0] * 8
    assert links.nominal_GBps[spine].tolist() == [50.0] * 8
    assert [level.word for level in levels_of(topology)][-1] == "rail"


def test_rails_slow_down_only_what_crosses_them(tmp_path: Path) -> None:
    rails, flat = loaded(tmp_path, RAILS, nodes=4), topologies.resccl(4)
    for name, crosses in (("multi-ring-allreduce", False), ("all-pairs-alltoall", True)):
        program = sley.algorithms.build(name, nodes=4, gpus=8)
        plan = sley.compile(program, instances=2)
        own, other = (sley.simulate(plan, "64M", cluster).time_us for cluster in (rails, flat))
        assert (own > 1.2 * other) == crosses, name


def test_the_model_reads_parameters_by_protocol(tmp_path: Path) -> None:
    model = loaded(tmp_path, HEAD + SWITCH + "[model.launch_us]\nLL=1\nLL128=2\nSimple=3\n").model
    assert model.launch_us == ByProtocol(1, 2, 3)
    assert model.nvlink_latency_us == CostModel().nvlink_latency_us


REFUSED = {
    "not toml": ("T605", "x.toml:2:", "\ngpus = = 3\n"),
    "long key": ("T605", "x.toml", "a." * 16000 + "a = 1\n"),
    "no name": ("T607", "name", "gpus = 2\n" + SWITCH),
    "gpus": ("T607", "gpus", 'name = "x"\ngpus = "eight"\n'),
    "digits": ("T607", "gpus", f'name = "x"\ngpus = 0x{"f" * 4000}\n'),
    "no gpus": ("T607", "gpus", 'name = "x"\ngpus = 0\n'),
    "flag": ("T607", "in_network", HEAD + 'in_network = "yes"\n' + SWITCH),
    "unknown key": ("T607", "nvlink.GBs", HEAD + SWITCH + "GBs = 3\n"),
    "unknown table": ("T607", "nvlinks", HEAD + SWITCH + "[nvlinks]\n"),
    "no rate": ("T607", "nvlink.GBps", HEAD + "[nvlink]\nnominal_GBps = 1\n"),
    "zero": ("T602", "nvlink.GBps", HEAD + "[nvlink]\nnominal_GBps = 1\nGBps = 0\n"),
    "negative": ("T602", "nvlink.nominal_GBps", HEAD + "[nvlink]\nnominal_GBps = -1\nGBps = 1\n"),
    "infinite": ("T602", "nvlink.nominal_GBps", HEAD + "[nvlink]\nnominal_GBps = inf\nGBps = 1\n"),
    "text": ("T607", "nvlink.GBps", HEAD + '[nvlink]\nnominal_GBps = 1\nGBps = "1"\n'),
    "above nominal": ("T602", "nvlink.GBps", HEAD + "[nvlink]\nnominal_GBps = 1\nGBps = 2\n"),
    "latency": ("T602", "nvlink.latency_us", HEAD + SWITCH + "latency_us = -1\n"),
    "table": ("T607", "nvlink", HEAD + "nvlink = 3\n"),
    "no such gpu": ("T608", "nvlink.links[1]", HEAD + SWITCH + "links = [[0, 1], [0, 4]]\n"),
    "itself": ("T608", "nvlink.links[0]", HEAD + SWITCH + "links = [[1, 1]]\n"),
    "twice": ("T608", "nvlink.links[1]", HEAD + SWITCH + "links = [[0, 1], [1, 0]]\n"),
    "no link": ("T607", "nvlink.links[0]", HEAD + SWITCH + "links = [[0, 1, 0]]\n"),
    "no pair": ("T607", "nvlink.links[0]", HEAD + SWITCH + "links = [5]\n"),
    "unlinked": ("T603", "x.toml", HEAD + SWITCH + "links = [[0, 1], [2, 3]]\n"),
    "nothing": ("T603", "x.toml", HEAD),
    "boards": ("T607", "nvlink.boards", HEAD + SWITCH + "boards = 3\n"),
    "between": ("T607", "nvlink.between_boards", HEAD + SWITCH + "boards = 2\n"),
    "one board": ("T607", "nvlink.between", HEAD + SWITCH + "[nvlink.between_boards]\n" + RATE),
    "boards beside links": ("T607", "nvlink.boards", HEAD + SWITCH + "links='all'\nboards = 2\n"),
    "cards": ("T607", "cards.count", HEAD + SWITCH + "[cards]\ncount = 3\n" + RATE),
    "lists": ("T607", "cards.gpus", HEAD + SWITCH + "[cards]\ngpus = [[0]]\n" + RATE),
    "list": ("T607", "cards.gpus[0]", HEAD + SWITCH + "[cards]\ncount=1\ngpus = [[]]\n" + RATE),
    "cardless": ("T608", "cards.gpus", HEAD + SWITCH + "[cards]\ncount=1\ngpus=[[1]]\n" + RATE),
    "far": ("T608", "cards.gpus[0]", HEAD + SWITCH + "[cards]\ncount=1\ngpus=[[9]]\n" + RATE),
    "vertex": (
        "T608",
        "pcie.links[0].to",
        HEAD + TREE + "[[pcie.links]]\nfrom='gpu 0'\nto='cpus'\n" + RATE,
    ),
    "same vertex": ("T608", "pcie.vertices[1]", HEAD + "[pcie]\nvertices = ['a', 'a']\nlinks=[]\n"),
    "gpu vertex": ("T608", "pcie.vertices[0]", HEAD + "[pcie]\nvertices = ['gpu 1']\nlinks=[]\n"),
    "loop": (
        "T608",
        "pcie.links[0].from",
        HEAD + TREE + "[[pcie.links]]\nfrom='cpu'\nto='cpu'\n" + RATE,
    ),
    "hung": (
        "T608",
        "cards.count",
        HEAD
        + TREE
        + "[[pcie.links]]\nfrom=['gpu 0','nic 0']\nto='cpu'\n"
        + RATE
        + "[cards]\n"
        + RATE,
    ),
    "vertex of digits": (
        "T608",
        "pcie.links[0].from",
        HEAD + TREE + f"[[pcie.links]]\nfrom=0x{'f' * 4000}\nto='cpu'\n" + RATE,
    ),
    "racks": ("T607", "racks.nodes", HEAD + SWITCH + "[racks]\n" + RATE),
    "two networks": (
        "T608",
        "rails",
        HEAD + SWITCH + f"[racks]\nnodes = 1\n{RATE}[rails]\noversubscription = 2\n",
    ),
    "oversubscription": (
        "T602",
        "rails.oversubscription",
        HEAD + SWITCH + "[rails]\noversubscription = 0.5\n",
    ),
    "model key": ("T607", "model.wait", HEAD + SWITCH + "[model]\nwait = 1\n"),
    "model value": ("T602", "model", HEAD + SWITCH + "[model]\nwait_us = -1\n"),
    "model kind": ("T607", "model.wait_us", HEAD + SWITCH + "[model]\nwait_us = []\n"),
    "protocols": ("T607", "model.launch_us.LL128", HEAD + SWITCH + "[model.launch_us]\nLL = 1\n"),
    "like": ("T604", "like", 'name = "x"\nlike = "ndv44"\n'),
    "source": ("T607", "nvlink.source", HEAD + SWITCH + "source = 3\n"),
}

GRAPH = 'name = "x"\nvertices = [["gpu", 0], ["gpu", 0]]\n'
GRAPHS = {
    "kind": ("T607", "vertices[0]", 'name = "x"\nvertices = [["tpu", 0]]\nlinks = []\n'),
    "kind of kind": ("T607", "vertices[0]", 'name = "x"\nvertices = [[[], 0]]\nlinks = []\n'),
    "node": ("T607", "vertices[0]", 'name = "x"\nvertices = [["gpu", -1]]\nlinks = []\n'),
    "gap": ("T601", "vertices", 'name = "x"\nvertices = [["gpu", 0], ["gpu", 5]]\nlinks = []\n'),
    "no vertices": ("T601", "", 'name = "x"\nvertices = []\nlinks = []\n'),
    "no links": ("T607", "links", GRAPH),
    "unlinked": ("T603", "", GRAPH + "links = []\n"),
    "outside": ("T608", "links[0]", GRAPH + 'links = [[0, 2, "nvlink", 1, 1]]\n'),
    "zero": ("T602", "links[0]", GRAPH + 'links = [[0, 1, "nvlink", 1, 0]]\n'),
    "nan": ("T602", "links[0]", GRAPH + 'links = [[0, 1, "nvlink", nan, 1]]\n'),
    "digits": ("T607", "links[0]", GRAPH + f'links = [[0, 1, "nvlink", {10**400}, 1]]\n'),
    "latency": ("T602", "links[0]", GRAPH + 'links = [[0, 1, "nvlink", 1, 1, -2]]\n'),
    "link kind": ("T607", "links[0]", GRAPH + 'links = [[0, 1, "nv", 1, 1]]\n'),
    "short": ("T607", "links[0]", GRAPH + 'links = [[0, 1, "nvlink"]]\n'),
    "key": ("T607", "gpus", GRAPH + "gpus = 3\nlinks = []\n"),
}


def test_all_wrong_keys_are_reported_at_once_each_with_its_own_remedy(tmp_path: Path) -> None:
    text = "gpus = 2\n[nvlink]\nnominal_GBs = 300\n[card]\ncount = 1\n[racks]\nnodes = 1\n" + RATE
    with pytest.raises(sley.SleyError) as caught:
        loaded(tmp_path, text)
    assert [(d.code, d.places[0].detail, d.remedy) for d in caught.value.diagnostics] == [
        ("T607", "card", "Did you mean cards?"),
        ("T607", "name", "Add the key name."),
        ("T607", "nvlink.nominal_GBs", "Did you mean nominal_GBps?"),
        ("T607", "nvlink.GBps", "Add the key GBps."),
    ]


@pytest.mark.parametrize("case", [*REFUSED, *(f"graph: {name}" for name in GRAPHS)])
def test_a_mistake_is_reported_with_its_file_and_key(case: str, tmp_path: Path) -> None:
    code, key, text = GRAPHS[case[7:]] if case.startswith("graph: ") else REFUSED[case]
    with pytest.raises(sley.SleyError) as caught:
        loaded(tmp_path, text)
    assert caught.value.code == code, caught.value
    place = str(caught.value.diagnostics[0].places[0])
    assert "x.toml" in place
    assert key in place


def test_a_misspelt_key_gets_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(sley.SleyError, match="Did you mean GBps"):
        loaded(tmp_path, HEAD + SWITCH + "GBs = 3\n")
    with pytest.raises(sley.SleyError, match="Did you mean ndv4"):
        loaded(tmp_path, 'name = "x"\nlike = "ndv44"\n')
    with pytest.raises(sley.SleyError, match=r"Did you mean gpus\?") as caught:
        loaded(tmp_path, HEAD.replace("gpus =", "gpus_per_node =") + SWITCH)
    assert len(caught.value.diagnostics) == 1, "gpus isn't missed, too"


def test_nodes_are_refused_for_graphs_and_beyond_the_limits(tmp_path: Path) -> None:
    with pytest.raises(sley.SleyError, match="C308"):
        loaded(tmp_path, graph_text(topologies.ndv4()), nodes=2)
    with pytest.raises(sley.SleyError, match="no network cards"):
        loaded(tmp_path, HEAD + SWITCH, nodes=2)
    with pytest.raises(sley.SleyError, match="C308"):
        loaded(tmp_path, HEAD + SWITCH + "[cards]\n" + RATE, nodes=10**6)
    assert loaded(tmp_path, HEAD + SWITCH).nodes == 1


def test_files_that_are_no_topology_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("nothing of the kind\n")
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe")
    for path, code in (("a.txt", "F550"), ("b.toml", "T605"), ("none.xml", "T605"), (".", "F550")):
        with pytest.raises(sley.SleyError) as caught:
            topologies.load(tmp_path / path)
        assert caught.value.code == code
    with pytest.raises(sley.SleyError, match=r"remedy:   Check the path"):
        topologies.load(tmp_path / "none.xml")
    with pytest.raises(sley.SleyError, match=r'T605(?s:.*)find\("ndv4:2"\) is its topology'):
        topologies.load("ndv4:2")


JUNK = st.sampled_from([None, -1, 0, 1.5, "x", [], {}, [[]], [1], True, 2**70, float("nan"), ["a"]])


@given(st.sampled_from(sorted(machine_tables())), st.data())
def test_any_change_to_a_machine_gives_a_topology_or_a_diagnostic(
    name: str, data: st.DataObject
) -> None:
    tables = copy.deepcopy(dict(complete(f"{name}.toml", machine_tables()[name])))
    at: Any = tables
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = data.draw(st.sampled_from(keys))
        below = at[key]
        if isinstance(below, dict | list) and below and data.draw(st.booleans()):
            at = below
            continue
        if data.draw(st.booleans()) or isinstance(at, list):
            at[key] = data.draw(JUNK)
        else:
            del at[key]
        break
    try:
        topology = machine_from("x.toml", tables).topology(2)
    except sley.SleyError as error:
        assert error.code[0] in "TC"
    else:
        assert np.isfinite(topology.links.GBps).all()


def test_keys_of_many_parts_are_refused_before_parsing(tmp_path: Path) -> None:
    with pytest.raises(sley.SleyError) as caught:
        loaded(tmp_path, "a." * 50_000 + "b = 1")
    assert caught.value.code == "T605"
