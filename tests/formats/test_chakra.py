"""Plans as Chakra traces: ASTRA-sim's rules hold, and the traces order what the plans order."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.cli import main
from sley.errors import SleyError
from sley.formats import chakra
from sley.ir.plan import Plan
from sley.ir.words import LoopOrder, Op
from support.generators.examples import examples
from support.generators.random_programs import SCHEDULES, random_programs
from support.inputs.algorithm_cases import (
    SIZED,
    cases,
    in_turn,
    label,
    of_each_collective,
    one_of_each,
    program,
)
from support.machines.chakra_traces import COMPUTE, RECEIVE, SEND, Node, execute, read, read_files

SIZE = 3 << 20

WAYS: list[dict[str, Any]] = [
    {},
    {"protocol": "ll", "instances": 2},
    {"schedule": "hpds", "allocate": "state", "tile_bytes": 40_000},
    {"fusion": False, "tile_bytes": "64K"},
    {"per_chunk": True},
]

KINDS = {
    Op.NOP: [COMPUTE],
    Op.SEND: [SEND],
    Op.RECV: [RECEIVE],
    Op.COPY: [COMPUTE],
    Op.REDUCE: [COMPUTE],
    Op.RECV_REDUCE_COPY: [RECEIVE, COMPUTE],
    Op.RECV_COPY_SEND: [RECEIVE, SEND],
    Op.RECV_REDUCE_SEND: [RECEIVE, COMPUTE, SEND],
    Op.RECV_REDUCE_COPY_SEND: [RECEIVE, COMPUTE, SEND],
    Op.COPY_SEND: [COMPUTE, SEND],
}


def check(plan: Plan, size: int, tile_bytes: int | str | None = None) -> None:
    """Compares the traces of a plan with the plan."""
    files = [read(content) for content in chakra.write(plan, size=size, tile_bytes=tile_bytes)]
    assert {head["size_bytes"] for head, _ in files} == {str(size)}
    traces = [nodes for _, nodes in files]
    assert len(traces) == plan.collective.ranks
    assert execute(traces) == traffic(plan, size)
    tiles = 1
    if tile_bytes is not None:
        limit = 1 << 16 if tile_bytes == "64K" else int(tile_bytes)
        tiles = math.ceil(chunk_bytes(plan, size) / limit)
        largest = int(plan.instructions.count.max(initial=1)) * limit
        messages = [node for trace in traces for node in trace if node.type != COMPUTE]
        assert all(0 < node["comm_size"] <= largest for node in messages)
    for rank, trace in enumerate(traces):
        check_order(plan, rank, trace, tiles)


def chunk_bytes(plan: Plan, size: int) -> int:
    return math.ceil(Fraction(size, plan.collective.blocks * plan.collective.chunks))


def traffic(plan: Plan, size: int) -> Counter[tuple[int, int]]:
    """The bytes that a plan sends from rank to rank."""
    found: Counter[tuple[int, int]] = Counter()
    for row in plan.sends.tolist():
        pair = (int(plan.rank[row]), int(plan.instructions.send_peer[row]))
        found[pair] += chunk_bytes(plan, size) * int(plan.instructions.count[row])
    return found


def check_order(plan: Plan, rank: int, trace: list[Node], tiles: int) -> None:
    """Every instruction has its nodes, and they depend on what it comes after."""
    t = plan.instructions
    nodes: dict[tuple[int, int], list[Node]] = {}
    blocks = [b for b, of in enumerate(plan.block_rank.tolist()) if of == rank]
    for node in trace:
        if node.name == "compute idle":
            assert all(plan.block_offset[b] == plan.block_offset[b + 1] for b in blocks)
            return
        words = node.name.split()
        place = dict(zip(words[1::2], map(int, words[2::2]), strict=True))
        row = int(plan.block_offset[blocks[place["block"]]]) + place["step"]
        nodes.setdefault((row, place.get("tile", 0)), []).append(node)
    rows = [row for row in range(len(t)) if plan.rank[row] == rank]
    assert set(nodes) == {(row, tile) for row in rows for tile in range(tiles)}
    for (row, tile), own in nodes.items():
        assert [node.type for node in own] == KINDS[Op(t.op[row])]
        assert all(own[k].id in own[k + 1].parents for k in range(len(own) - 1))
        for node in own:
            if node.type == SEND:
                assert node["comm_dst"] == t.send_peer[row]
                assert "comm_src" not in node.attributes, "ASTRA-sim would not translate it"
            if node.type == RECEIVE:
                assert node["comm_src"] == t.recv_peer[row]
        before = {(int(other), tile) for other in plan.waits[row]}
        begin, end = (plan.block_offset[plan.block[row] + k] for k in (0, 1))
        if plan.loop_order is LoopOrder.TILE:
            before.add((row - 1, tile) if row > begin else (int(end) - 1, tile - 1))
        elif tile:
            before.add((row, tile - 1))
        elif row > begin:
            before.add((row - 1, tiles - 1))
        expected = {nodes[key][-1].id for key in before if key[1] >= 0}
        assert set(own[0].parents) == expected


def check_case(name: str, parameters: dict[str, Any], way: dict[str, Any]) -> None:
    options = dict(way)
    tile_bytes = options.pop("tile_bytes", None)
    check(sley.compile(program(name, parameters), **options), SIZE, tile_bytes)


@pytest.mark.parametrize(
    ("name", "parameters", "way"), of_each_collective(one_of_each(WAYS, SIZED)), ids=label
)
def test_traces_of_an_algorithm_break_a_rule_or_lose_an_order(name, parameters, way):
    check_case(name, parameters, way)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "parameters", "way"), in_turn(WAYS, cases(SIZED)), ids=label)
def test_traces_of_an_algorithm_of_each_size_break_a_rule(name, parameters, way):
    check_case(name, parameters, way)


@examples(11, deadline=None)
@given(
    random_programs(),
    st.sampled_from(SCHEDULES),
    st.integers(1, 5000),
    st.none() | st.integers(1, 900),
)
def test_traces_of_random_programs_break_a_rule_or_lose_an_order(random, schedule, size, tile):
    if tile is not None:
        tile = max(tile, size // 20)
    check(sley.compile(random.program, schedule=schedule), size, tile)


def ring(ranks: int = 4) -> Plan:
    return sley.compile(sley.algorithms.build("ring-allreduce", ranks=ranks))


def test_a_file_of_each_rank_is_written_beside_others(tmp_path):
    path = tmp_path / "all.reduce.et"
    sley.save(ring(), path, size="1M")
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"all.reduce.{r}.et" for r in range(4)]
    assert sum(execute(read_files(path, 4)).values()) == 2 * 3 * 2**20


def test_the_share_of_a_large_size_is_rounded_down():
    check(ring(3), 1 << 60)


def test_the_head_does_not_say_where_a_trace_is_from():
    head, _ = read(chakra.write(ring(), size=1024)[0])
    assert head["collective"] == "allreduce"
    assert head["algorithm"] == "ring-allreduce"
    assert head["made_by"].startswith("sley ")


def test_ranks_without_work_have_no_node():
    @sley.program(sley.Custom("one", 3, 1, 1, lambda r, i: [(0, 0)] if r == 1 else None))
    def one(p):
        p.chunk(0, "in", 0).copy(1, "out", 0)

    plan = sley.compile(one)
    check(plan, 8)
    assert len(read(chakra.write(plan, size=8)[2])[1]) == 1


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({}, "C310"),
        ({"size": 0}, "S702"),
        ({"size": "much"}, "S702"),
        ({"size": 1024, "tile_bytes": -1}, "S702"),
        ({"size": "1G", "tile_bytes": 64}, "S705"),
        ({"size": 1024, "name": "ring"}, "C309"),
        ({"size": 1024, "target": "executor"}, "C309"),
    ],
)
def test_what_has_no_trace_is_refused_and_changes_no_file(settings, code, tmp_path):
    old = tmp_path / "a.0.et"
    old.write_bytes(b"old")
    with pytest.raises(SleyError) as caught:
        sley.save(ring(), tmp_path / "a.et", **settings)
    assert caught.value.code == code
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"old"]


def test_no_file_is_changed_if_one_cannot_be_written(tmp_path):
    (tmp_path / "a.0.et").write_bytes(b"old")
    (tmp_path / "a.3.et").mkdir()
    with pytest.raises(SleyError, match=r"a\.3\.et: F461"):
        sley.save(ring(), tmp_path / "a.et", size=1024)
    assert (tmp_path / "a.0.et").read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 2


def run(*words: str) -> Any:
    return CliRunner().invoke(main, ["compile", *words])


def test_the_command_line_writes_traces_for_a_size(tmp_path):
    path = tmp_path / "allreduce.et"
    words = ["ring-allreduce", "--ranks", "4", "-o", str(path)]
    done = run(*words, "--size", "1M", "--tile-bytes", "64K")
    assert done.exit_code == 0, done.output
    assert f"{tmp_path / 'allreduce'}.RANK.et for ASTRA-sim" in done.output
    sizes = {n["comm_size"] for n in read_files(path, 4)[0] if n.type == SEND}
    assert sizes == {1 << 16}
    assert "C310" in run(*words).output
    words[2] = "2"
    few = ("--schedule", "auto", "--topology", "1x2", "--instances", "1", "--channels", "1")
    chosen = run(*words, "--size", "1M", *few)
    assert chosen.exit_code == 0, chosen.output


def test_as_many_nodes_as_the_limit_are_refused(monkeypatch):
    plan = ring()
    nodes = sum(len(read(content)[1]) for content in chakra.write(plan, size=64))
    monkeypatch.setattr(chakra, "MAX_NODES", nodes)
    chakra.write(plan, size=64)
    monkeypatch.setattr(chakra, "MAX_NODES", nodes - 1)
    with pytest.raises(SleyError, match="S705"):
        chakra.write(plan, size=64)
