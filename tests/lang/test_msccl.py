"""Scripts for msccl-tools run unchanged: their programs are proven and run right, with no more
thread blocks and operations than msccl-tools' scheduling gives them."""

from __future__ import annotations

import json
import re
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from types import ModuleType
from typing import Any

import pytest

import sley
from sley.formats import TARGETS, msccl_xml, program_source
from sley.ir.words import Buffer
from sley.lang import msccl
from sley.lang.interpreter import own_modules
from sley.lang.msccl import topologies
from support.machines.script_programs import count_wrong, plan_of

SCRIPTS = Path(__file__).with_name("msccl_scripts")


def load(arguments: str) -> tuple[msccl.ScriptProgram, ...]:
    script, *rest = arguments.split()
    return msccl.run(SCRIPTS / script, rest)


def only(arguments: str) -> msccl.ScriptProgram:
    (found,) = load(arguments)
    return found


@dataclass(frozen=True)
class Counts:
    """Upper limits of a plan: thread blocks, operations apart from nops, nops."""

    blocks: int
    operations: int
    nops: int = 0


# How msccl-tools schedules (MSCCLang 5): a receive and the send that forwards it, on one block and
# channel, are one operation. By hand, blocks are those that the script numbers. Automatically, the
# sends of a connection (source, destination, channel) have a block at the source, and its receives
# one at the destination; a forwarding block has both. An operation waits for one operation of
# another block by itself, and for each further one by a nop. Instances multiply everything.


def ring(size: int, channels: int) -> Counts:
    """Each chunk: a send, receives that forward all along the ring and back, and a last receive."""
    return Counts(size * channels, size * (2 * size - 1))


def allpairs(size: int) -> Counts:
    """Each rank: a block for each other one, and one for its reductions; to each other rank two
    sends and two receives, and a reduction."""
    return Counts(size * size, 5 * size * (size - 1))


def hierarchical(nodes: int, gpus: int) -> Counts:
    """Each rank: four blocks. A ring over n ranks moves n messages over n - 1 hops: n operations
    each, as the hops between are one operation. There are two rings a node, and two across."""
    rings = 2 * nodes * gpus * gpus + 2 * gpus * nodes * nodes
    return Counts(4 * nodes * gpus, rings)


def two_step(nodes: int, gpus: int) -> Counts:
    """Each rank exchanges chunks with its node's ranks: once for the node itself and once for each
    other node. A message waits for the chunks of all ranks of the node."""
    others, peers = nodes - 1, gpus - 1
    return Counts(
        nodes * gpus * 2 * (peers + others),
        nodes * gpus * (nodes * (1 + 2 * peers) + 2 * others),
        nodes * gpus * others * peers,
    )


def three_step(nodes: int, gpus: int, channels: int) -> Counts:
    """Within a node, chunks one by one; to a gateway, what each rank has for a node; between
    gateways, a message for each channel, which waits for all; from the gateway, chunks one by one.
    A rank sends to each other one of its node on channels 0 and 1."""
    local, pairs = 1 + 2 * (gpus - 1), nodes * (nodes - 1)
    chunks = nodes * gpus * channels + pairs * channels * gpus
    return Counts(
        nodes * gpus * 2 * 2 * (gpus - 1) + pairs * 2 * channels,
        (chunks + pairs) * local + pairs * 2 * channels,
        pairs * channels * (gpus - 1),
    )


def alltonext(nodes: int, gpus: int) -> Counts:
    """Within a node: a send and a receive. Between nodes, the first and the last GPU's chunks pass
    one GPU on their way, the others two. Every operation is of another pair of ranks."""
    between = 2 * 3 + (gpus - 2) * 4
    total = nodes * (gpus - 1) * 2 + (nodes - 1) * between
    return Counts(total, total)


def times(instances: int, counts: Counts) -> Counts:
    return Counts(*(instances * n for n in (counts.blocks, counts.operations, counts.nops)))


CASES: dict[str, Counts] = {
    "ring.py 2 1": ring(2, 1),
    "ring.py 5 2": ring(5, 2),
    "ring.py 4 4 --instances 2": times(2, ring(4, 4)),
    "ring.py 4 2 --instances 4 --batched": times(4, ring(4, 2)),
    "allpairs.py 4 1": allpairs(4),
    "allpairs.py 3 2": times(2, allpairs(3)),
    "allpairs.py 4 4": times(4, allpairs(4)),
    "allpairs.py 4 2 --interleaved": times(2, allpairs(4)),
    "hierarchical.py 2 2": hierarchical(2, 2),
    "hierarchical.py 3 4": hierarchical(3, 4),
    "hierarchical.py 2 3 --instances 2 --batched": times(2, hierarchical(2, 3)),
    "alltoall_two_step.py 2 3": two_step(2, 3),
    "alltoall_two_step.py 3 2": two_step(3, 2),
    "alltoall_two_step.py 3 2 4": times(4, two_step(3, 2)),
    "alltoall_three_step.py 3 2": three_step(3, 2, 1),
    "alltoall_three_step.py 3 2 --channels 2": three_step(3, 2, 2),
    "alltonext.py 2 4": alltonext(2, 4),
    "alltonext.py 2 4 --instances 4": times(4, alltonext(2, 4)),
    "alltonext.py 3 3 --instances 2 --batched": times(2, alltonext(3, 3)),
}


@pytest.mark.parametrize("arguments", CASES)
def test_a_script_is_proven_and_runs_with_the_expected_blocks_and_operations(
    arguments: str,
) -> None:
    plan = plan_of(only(arguments))
    assert count_wrong(plan) == 0
    # The file, because a plan has waits, which only the file writes as nops.
    steps = re.findall(r'<step .*type="(.*?)"', msccl_xml.write(plan, target=TARGETS["msccl"]))
    expected, nops = CASES[arguments], steps.count("nop")
    found = Counts(len(plan.block_rank), len(steps) - nops, nops)
    assert found.blocks <= expected.blocks
    assert found.operations <= expected.operations
    assert found.nops <= expected.nops


@pytest.mark.parametrize("instances", [1, 2, 4])
@pytest.mark.parametrize("words", ["", "batched", "in-place", "in-place batched"])
def test_a_collective_of_the_script_promises_what_the_script_accepts(
    instances: int, words: str
) -> None:
    found = only(f"teams.py 4 {instances} {words}")
    plan = plan_of(found)
    c = found.program.collective
    sections = instances if "batched" in words else 1
    assert (c.name, c.in_place) == ("teams", "in-place" in words)
    assert c.output_chunks.tolist() == [2 * sections] * 4
    values = [found.program.collective.values.target[k : k + 2].tolist() for k in (0, 2)]
    # Rank 0 gets the sums of ranks 2 and 3, whose chunks follow those of ranks 0 and 1.
    assert values == [[4 * sections + k, 6 * sections + k] for k in (0, 1)]
    assert count_wrong(plan) == 0


def test_programs_in_place_use_places_of_the_smaller_buffer() -> None:
    gather, scatter = load("gathers.py")
    assert [f.program.collective.name for f in (gather, scatter)] == ["allgather", "reducescatter"]
    assert all(f.program.collective.in_place for f in (gather, scatter))
    assert scatter.program.protocol is sley.Protocol.LL
    for found in (gather, scatter):
        assert count_wrong(plan_of(found)) == 0


def test_options_of_a_program_reach_the_compiler() -> None:
    plain, unfused = only("allpairs.py 4 1"), only("allpairs.py 4 1 --fused 0")
    assert (plain.fusion, unfused.fusion) == (None, False)
    assert plain.program.protocol is sley.Protocol.LL
    row = next(row for row in plain.program.transfers if (row.src, row.dst) == (2, 3))
    assert (row.send_block, row.recv_block) == (3, 2)
    row = only("ring.py 4 2").program.transfers[0]
    assert (row.channel, row.send_block, row.recv_block) == (0, 0, 0)
    # Blocks are only for the policy that takes them from the script.
    assert not run("chunk(0, Buffer.input, 0).copy(1, 'x', 0, sendtb=3)").transfers.by_hand.any()


def test_a_written_program_is_the_same_program() -> None:
    for arguments in ("allpairs.py 3 2", "teams.py 4 2 batched", "hierarchical.py 2 2"):
        found = only(arguments).program
        names: dict[str, Any] = {}
        exec(program_source.write(found), names)
        again = names["algorithm"]
        assert again.collective == found.collective
        for name in ("kind", "src", "src_buffer", "src_index", "dst", "dst_index", "lane"):
            one, other = getattr(again.transfers, name), getattr(found.transfers, name)
            assert one.tolist() == other.tolist(), name


HEAD = """
from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

class Anything(Collective):
    def init_buffers(self):
        ranks = range(self.num_ranks)
        chunks = [[Chunk(r, i, r + 1, i) for i in range(4)] for r in ranks]
        return [{Buffer.input: own, Buffer.output: own} for own in chunks]
    def check(self, prog):
        return True

with MSCCLProgram("p", fully_connected(3), Anything(3, 4, False), 1):
"""


def load_text(text: str) -> tuple[msccl.ScriptProgram, ...]:
    """The programs of a script."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "script.py")
        path.write_text(text)
        return msccl.run(path)


def run(body: str, head: str = HEAD) -> sley.Program:
    """The program with the lines `body`."""
    (found,) = load_text(head + indent(body, "    "))
    return found.program


def places(program: sley.Program) -> list[str]:
    return [
        f"{t.src} {Buffer(t.src_buffer).chunks(t.src_index, t.count)} "
        f"{t.dst} {Buffer(t.dst_buffer).chunks(t.dst_index, t.count)}"
        for t in program.transfers
    ]


def test_scratch_buffers_have_any_names_and_lie_one_after_another() -> None:
    program = run("""
c = chunk(0, Buffer.input, 0, 2)
c.copy(1, "first", 3)
c.copy(1, ("second", 2))
d = c.copy(1, "first")
c.copy(1, Buffer.scratch)
d.copy(2, "first")
assert (d.index, d.size, d.rank, d.buffer) == (5, 2, 1, "first")
""")
    assert places(program) == [
        "0 in[0:2] 1 scratch[3:5]",
        "0 in[0:2] 1 scratch[7:9]",
        "0 in[0:2] 1 scratch[5:7]",
        "0 in[0:2] 1 scratch[9:11]",
        "1 scratch[5:7] 2 scratch[0:2]",
    ]
    assert program.scratch_chunks.tolist() == [0, 11, 2]


def test_references_stand_for_places() -> None:
    program = run("""
a, b = chunk(0, Buffer.input, 0, 4).split(2)
assert (a.index, b.index, b.size) == (0, 2, 2)
whole = b.group(a)
assert (whole.index, whole.size) == (0, 4)
old = chunk(1, Buffer.input, 0)
assert old.reduce(chunk(0, Buffer.input, 0)) is old
old.reduce(chunk(2, Buffer.input, 0))
assert chunk(0, Buffer.input, 1).get_dst_rank() == 1
assert b.get_origin_index(1) == 3 and b.get_dst_index() == 2 and b.get_origin_rank() == 0
same = a.copy(2)
assert (same.rank, same.buffer, same.index, same.size) == (2, Buffer.input, 0, 2)
assert a.copy(0) == a
""")
    assert places(program) == ["0 in[0] 1 in[0]", "2 in[0] 1 in[0]", "0 in[0:2] 2 in[0:2]"]


def test_print_prints_and_xml_and_json_do_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    body = """
chunk(1, Buffer.input, 0).reduce(chunk(0, Buffer.input, 0))
chunk(1, Buffer.input, 0).copy(0)
Print()
XML()
Json()
"""
    run(body, HEAD.replace("3", "2").replace("Anything(2, 4, False)", "AllReduce(2, 1, True)"))
    assert capsys.readouterr().out.splitlines() == [
        "rank 0 in[0] reduced into rank 1 in[0]",
        "rank 1 in[0] copied to rank 0 in[0]",
    ]


def test_the_topologies_have_their_links() -> None:
    def links(topology: topologies.Topology) -> set[tuple[int, int]]:
        return {(s, d) for s in topology.nodes() for d in topology.destinations(s)}

    assert links(topologies.line(3)) == {(0, 1), (1, 0), (1, 2), (2, 1)}
    assert links(topologies.ring(4)) == {(a, (a + k) % 4) for a in range(4) for k in (1, 3)}
    assert links(topologies.star(3)) == {(0, 1), (1, 0), (0, 2), (2, 0)}
    assert links(topologies.hub_and_spoke(3)) == links(topologies.fully_connected(3))
    two = topologies.distributed_fully_connected(topologies.line(3), 2, 1)
    assert links(two) >= {(0, 5), (4, 1)}
    assert (0, 2) not in links(two)
    node = topologies.distributed_node_local(topologies.line(2), 2, [(1, 2)], 1)
    assert links(node) == {(0, 1), (1, 0), (2, 3), (3, 2), (2, 1)}
    # Every GPU of a DGX-1 has six NVLinks.
    assert [sum(row) for row in topologies.dgx1().links] == [6] * 8
    assert sum(topologies.dgx_a100().links[0]) == 84
    smi = "\tGPU0\tGPU1\tmlx5_0\nGPU0\t X \tNV2\tPIX\nGPU1\tNV2\t X \tSYS\n\nLegend:\n"
    assert topologies.nvlink_only(smi).links == [[0, 2], [2, 0]]


def test_an_installed_msccl_is_neither_used_nor_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {name: ModuleType(name) for name in ("msccl", "msccl.language", "msccl.own")}
    for name, module in installed.items():
        monkeypatch.setitem(sys.modules, name, module)
    run("chunk(0, Buffer.input, 0).copy(1, Buffer.output, 0)")
    with pytest.raises(sley.SleyError, match="L114"):
        load_text("import msccl.own\n")
    for name, module in installed.items():
        assert sys.modules[name] is module
    assert "msccl.topologies" not in sys.modules


def test_a_run_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["sley", "msccl"])
    before = list(sys.path), sys.argv, sys.modules["__main__"], Path.cwd()
    load("teams.py 4 1")
    assert sys.argv == ["sley", "msccl"]
    with pytest.raises(sley.SleyError):
        load_text(
            "import os, sys, msccl\nsys.path.append('x')\nsys.argv = []\nos.chdir('/')\n1 / 0"
        )
    assert (list(sys.path), sys.argv, sys.modules["__main__"], Path.cwd()) == before
    left = [n for n in sys.modules if n.startswith("msccl") or n == "teams_collective"]
    assert left == []


def test_a_script_may_set_the_interpreter_to_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("argv", "path", "stdin", "stdout", "stderr", "modules")
    before = {name: getattr(sys, name) for name in names}
    folders, limit, filters = list(sys.path), sys.getrecursionlimit(), list(warnings.filters)
    monkeypatch.setitem(sys.modules, "there_before", ModuleType("there_before"))
    there, loaded = sys.modules["there_before"], set(sys.modules)
    body = """
import sys, types, warnings
chunk(0, Buffer.input, 0).copy(1, Buffer.output, 0)
warnings.simplefilter("ignore")
sys.setrecursionlimit(limit + 1000)
sys.path, sys.stdin, sys.stdout, sys.stderr = 5, None, 7, 8
sys.modules["there_before"] = None
for value in (None, 5, types.ModuleType("odd")):
    sys.modules[f"odd_{type(value).__name__}"] = value
sys.modules["odd_module"].__path__ = 6
sys.modules["odd_place"] = types.ModuleType("odd")
sys.modules["odd_place"].__file__ = 6
sys.modules[5] = 6
sys.modules = dict(sys.modules)
""".replace("limit +", f"{limit} +")
    assert len(run(body).transfers) == 1
    assert {name: getattr(sys, name) for name in names} == before
    assert (sys.path, sys.getrecursionlimit(), warnings.filters) == (folders, limit, filters)
    assert sys.modules["there_before"] is there
    left = {str(name) for name in set(sys.modules) - loaded}
    assert [name for name in left if name.startswith(("odd_N", "odd_i", "5"))] == []
    for name in ("odd_module", "odd_place"):
        sys.modules.pop(name, None)
    run("import sys\nsys.modules = 5")
    assert sys.modules is before["modules"]


def test_only_the_scripts_own_modules_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A script beside its environment.
    site = tmp_path / ".venv" / "lib" / "site-packages"
    files = (site / "installed_one.py", tmp_path / "own_one.py", tmp_path / "own_space" / "two.py")
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    names = ("installed_one", "own_one", "own_space", "own_space.two")
    body = "".join(f"    import {name}\n" for name in names)
    script = tmp_path / "script.py"
    script.write_text(HEAD + body + "    chunk(0, Buffer.input, 0).copy(1, Buffer.output, 0)\n")
    monkeypatch.syspath_prepend(site)
    msccl.run(script)
    assert [name for name in names if name in sys.modules] == ["installed_one"]
    del sys.modules["installed_one"]


def test_modules_of_sley_and_of_python_stay_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in (sley, json):
        loaded = ModuleType("loaded_by_the_script")
        loaded.__file__ = package.__file__
        folder = Path(str(package.__file__)).parents[2]
        with own_modules(folder / "script.py", {}):
            monkeypatch.setitem(sys.modules, loaded.__name__, loaded)
        assert sys.modules.pop(loaded.__name__, None) is loaded, package


def test_threads_of_a_script_belong_to_its_program() -> None:
    program = run("""
import threading
thread = threading.Thread(target=lambda: chunk(0, Buffer.input, 0).copy(1, Buffer.output, 0))
thread.start()
thread.join()
""")
    assert places(program) == ["0 in[0] 1 out[0]"]


def test_functions_after_the_script_are_refused(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import json\n" + HEAD + "    chunk(0, Buffer.input, 0).copy(1, Buffer.output, 0)\n"
        "    json.left = [chunk, XML, chunk(0, Buffer.input, 0).copy]\n"
    )
    msccl.run(script)
    left, printer, copy = vars(json).pop("left")
    for call in (lambda: left(0, "i", 0), printer, lambda: copy(1, "x")):
        with pytest.raises(sley.SleyError, match="L129"):
            call()


def test_modules_are_attributes_of_their_packages() -> None:
    names = ("topologies.generic.ring", "language.collectives.AllGather", "language.buffer.Buffer")
    for name in names:
        module = name.rpartition(".")[0]
        found = load_text(
            f"import msccl.{module}\nassert msccl.{name}\n"
            + HEAD
            + "    assert callable(chunk)\n    chunk(0, Buffer.input, 0).copy(1)\n"
        )
        assert len(found[0].program.transfers) == 1


def test_scratch_indices_may_be_numpy_integers() -> None:
    program = run("""
import numpy as np
c = chunk(0, Buffer.input, 0).copy(1, "x", np.int64(2))
c.copy(1, "x").copy(2)
""")
    assert places(program)[:2] == ["0 in[0] 1 scratch[2]", "1 scratch[2] 1 scratch[3]"]


def test_chunks_in_the_outputs_before_the_program_may_be_overwritten() -> None:
    head = HEAD.replace("Buffer.output: own}", "Buffer.output: [Chunk(9, 9), None]}")
    body = "for r in range(3):\n    chunk(r, Buffer.input, 2, 2).copy(r, Buffer.output, 0)"
    assert run(body, head).collective.expected.tolist() == list(range(6))


def test_inputs_may_hold_the_same_chunk() -> None:
    head = HEAD.replace("Chunk(r, i, r + 1, i)", "Chunk(0, i)")
    assert len(run("chunk(1, Buffer.input, 0).copy(2, Buffer.output, 1)", head).transfers) == 1
