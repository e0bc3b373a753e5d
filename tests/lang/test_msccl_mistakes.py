"""Mistakes in scripts for msccl-tools: each is a coded diagnostic that names the script's line."""

from __future__ import annotations

from pathlib import Path

import pytest

import sley
from sley.lang import chunks, msccl

HEAD = """from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

class Own(Collective):
    def init_buffers(self):
        return [{Buffer.input: [Chunk(r, 0)], Buffer.output: [None]} for r in range(2)]

    def check(self, prog):
        if prog.buffers[1][Buffer.output][0] != Chunk(0, 0):
            print("rank 1 lacks the chunk")
            return False
        return True

program = functools.partial(
    MSCCLProgram, "p", collective=AllReduce(4, 4, True), topo=fully_connected(4), instances=1
)
OWN = {"collective": Own(2, 1, False), "topo": fully_connected(2)}
I, O = Buffer.input, Buffer.output
"""

MISTAKES = {
    "a rank beyond the last": ("L101", "with program():\n    chunk(4, I, 0)  # here"),
    "a negative rank": ("L101", "with program():\n    chunk(0, I, 0).copy(-1, I, 0)  # here"),
    "a rank that is no integer": ("L112", "with program():\n    chunk('0', I, 0)  # here"),
    "a size of zero": ("L102", "with program():\n    chunk(0, I, 0, 0)  # here"),
    "a topology of too many ranks": ("L102", "fully_connected(20000)  # here"),
    "no instances": ("L102", "program(instances=0)  # here"),
    "no ranks": (
        "L102",
        "program(collective=AllReduce(0, 1, True), topo=fully_connected(0))  # here",
    ),
    "an index beyond the end": ("L103", "with program():\n    chunk(0, I, 3, size=2)  # here"),
    "a copy beyond the end": ("L103", "with program():\n    chunk(0, I, 0).copy(1, I, 4)  # here"),
    "an output without an index": (
        "L103",
        "with program():\n    chunk(0, I, 0).copy(1, O)  # here",
    ),
    "a buffer that nothing was copied to": (
        "L104",
        "with program():\n    chunk(0, I, 0).copy(1, 'there')\n    chunk(0, 'there', 0)  # here",
    ),
    "an index without a buffer": (
        "L104",
        "with program():\n    chunk(0, I, 0).copy(1, index=2)  # here",
    ),
    "a place without data": (
        "L105",
        "with program(collective=AllReduce(4, 4, False)):\n    chunk(0, O, 0)  # here",
    ),
    "a gap without data": (
        "L105",
        "with program():\n"
        "    c = chunk(0, I, 0)\n"
        "    both = c.copy(1, 'x', 0).group(c.copy(1, 'x', 2))\n"
        "    both.copy(2, 'x', 0)  # here",
    ),
    "a destination of a place without data": (
        "L105",
        "with program():\n    chunk(0, I, 0).copy(1, 'x', 1).get_dst_rank(-1)  # here",
    ),
    "references of different sizes": (
        "L107",
        "with program():\n    chunk(0, I, 0, 2).reduce(chunk(1, I, 0))  # here",
    ),
    "ranges that overlap": (
        "L108",
        "with program():\n    chunk(0, I, 0, 2).copy(0, I, 1)  # here",
    ),
    "a reduction of nothing": ("L110", "with program():\n    chunk(0, I, 0).reduce(None)  # here"),
    "a channel below -1": (
        "L102",
        "with program():\n    chunk(0, I, 0).copy(1, I, 0, ch=-2)  # here",
    ),
    "an unknown protocol": ("L112", "program(protocol='LL64')  # here"),
    "a collective that is none": ("L112", "MSCCLProgram('p', fully_connected(2), 2, 1)  # here"),
    "an uneven split": ("L126", "with program():\n    chunk(0, I, 0, 4).split(3)  # here"),
    "a group across ranks": (
        "L126",
        "with program():\n    chunk(0, I, 0).group(chunk(1, I, 0))  # here",
    ),
    "the destination of a sum": (
        "L127",
        "with program():\n    chunk(0, I, 0).reduce(chunk(1, I, 0)).get_dst_rank()  # here",
    ),
    "a copy without a link": (
        "C301",
        "with program(topo=line(4)):\n    chunk(0, I, 0).copy(2, I, 0)  # here",
    ),
    "a reduction without a link": (
        "C301",
        "with program(topo=line(4)):\n    chunk(0, I, 0).reduce(chunk(2, I, 0))  # here",
    ),
    "a chunk of no program": ("L129", "chunk(0, Buffer.input, 0)  # here"),
    "a program inside a program": (
        "L129",
        "with program():\n    with program():  # here\n        1",
    ),
    "a check that refuses": (
        "L130",
        "with program(**OWN):  # here\n    chunk(0, I, 0).copy(1, 'x')",
    ),
    "a check that says nothing": (
        "L130",
        "class Silent(Own):\n    def check(self, prog): pass\n"
        "with program(collective=Silent(2, 1, False), topo=fully_connected(2)):  # here\n"
        "    chunk(0, I, 0).copy(1, O, 0)",
    ),
    "outputs that only init_buffers fills": (
        "L130",
        "class Full(Own):\n    def init_buffers(self):\n"
        "        return [{I: [Chunk(r, 0)], O: [Chunk(0, 0), None]} for r in range(2)]\n"
        "with program(collective=Full(2, 1, False), topo=fully_connected(2)):  # here\n"
        "    chunk(0, I, 0).copy(1, O, 1)",
    ),
    "outputs that a check fills": (
        "L130",
        "class Fills(Own):\n    def check(self, prog):\n"
        "        prog.buffers[0][O][0] = Chunk(1, 0)\n        return True\n"
        "with program(collective=Fills(2, 1, False), topo=fully_connected(2)):  # here\n"
        "    chunk(0, I, 0).copy(0, O, 0)",
    ),
    "outputs without data": (
        "L130",
        "class Any(Own):\n    def check(self, prog): return True\n"
        "with program(collective=Any(2, 1, False), topo=fully_connected(2)):  # here\n"
        "    chunk(0, I, 0).copy(1, 'x')",
    ),
    "a refusing check without a line": (
        "L130",
        "class Partial(Own):\n    check = staticmethod(functools.partial(lambda prog: False))\n"
        "with program(collective=Partial(2, 1, False), topo=fully_connected(2)):  # here\n"
        "    chunk(0, I, 0).copy(1, O, 0)",
    ),
    "a copy after the program": (
        "L129",
        "with program(collective=AllReduce(4, 1, True)) as p:\n    c = chunk(0, I, 0)\n"
        "c.copy(1)  # here",
    ),
    "a reduction in another program": (
        "L129",
        "with program(**OWN):\n    c = chunk(0, I, 0).copy(1, O, 0)\n"
        "with program(**OWN):\n    c.reduce(c)  # here",
    ),
    "a check that exits": (
        "L115",
        "class Exits(Own):\n    def check(self, prog): exit(0)\n"
        "with program(collective=Exits(2, 1, False), topo=fully_connected(2)):\n"
        "    chunk(0, I, 0).copy(1, O, 0)",
    ),
    "a program that is begun again and given up": (
        "L115",
        "p = program(**OWN)\nwith p:\n    chunk(0, I, 0).copy(1, O, 0)\n"
        "try:\n    with p: 1 / 0\nexcept ZeroDivisionError: pass",
    ),
    "places with gaps": (
        "L132",
        "class Gaps(Own):\n    def init_buffers(self):\n"
        "        return [{I: [Chunk(r, i) for i in range(3)]} for r in range(2)]\n"
        "    def get_buffer_index(self, rank, buffer, index):\n"
        "        return I, (index if buffer is I else index * 2)\n"
        "program(collective=Gaps(2, 1, True), topo=fully_connected(2))  # here",
    ),
    "places that are moved in their own buffer": (
        "L132",
        "class Moved(Own):\n"
        "    def get_buffer_index(self, rank, buffer, index): return buffer, index + 1\n"
        "program(collective=Moved(2, 1, False), topo=fully_connected(2))  # here",
    ),
    "a place without an index": (
        "L132",
        "class Nowhere(Own):\n"
        "    def get_buffer_index(self, rank, buffer, index): return I, 0.5\n"
        "program(collective=Nowhere(2, 1, False), topo=fully_connected(2))  # here",
    ),
    "a script that gives up": ("L114", "exit(3)  # here"),
    "wrong arguments": (
        "L114",
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('n')\n"
        "parser.parse_args()  # here",
    ),
    "no buffers": ("L132", "program(collective=Collective(4, 1, False))  # here"),
    "buffers without an input": (
        "L132",
        "class Bad(Own):\n    def init_buffers(self): return [{}, {}]\n"
        "program(collective=Bad(2, 1, False), topo=fully_connected(2))  # here",
    ),
    "as many ranks as no topology": ("L132", "program(topo=line(3))  # here"),
    "batched parts of an AllGather": (
        "L133",
        "c = AllGather(4, 1, True)\n"
        "with program(collective=c, instances=2, interleaved_replication=False): pass  # here",
    ),
    "an operation of MSCCL++": ("L134", "with program():\n    chunk(0, I, 0).put(1, I, 0)  # here"),
    "a program of MSCCL++": ("L134", "MSCCLPPProgram('p', None, None, 1)  # here"),
    "no program": ("L115", ""),
    "an exception": ("L114", "with program():\n    [][1]  # here"),
    "an exception in a check": (
        "L114",
        "class Wrong(Own):\n    def check(self, prog): return prog.buffer  # here\n"
        "with program(collective=Wrong(2, 1, False), topo=fully_connected(2)): pass",
    ),
    "an operation of older versions": (
        "L114",
        "with program():\n    chunk(0, I, 0).send(1, I, 0)  # here",
    ),
    "a module that sley does not stand in for": (
        "L114",
        "import msccl.language.simulator  # here",
    ),
    "no Python": ("L114", "with program()  # here"),
    "the name of another collective": (
        "L118",
        "OWN['collective'].name = 'allreduce'\n"
        "with program(**OWN):  # here\n    chunk(0, I, 0).copy(1, O, 0)",
    ),
    "a wrong result": (
        "V206",
        "with program(collective=AllReduce(4, 1, True)):  # here\n"
        "    for r in range(1, 4):\n        chunk(0, I, 0).reduce(chunk(r, I, 0))",
    ),
    "a stale reference": (
        "V206",
        "with program(collective=AllReduce(2, 1, True), topo=fully_connected(2)):\n"
        "    old = chunk(1, I, 0)\n    chunk(0, I, 0).copy(1, I, 0)\n"
        "    chunk(0, I, 0).reduce(old).copy(1)  # here",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_has_a_code_and_the_scripts_line(name: str, tmp_path: Path) -> None:
    code, body = MISTAKES[name]
    path = tmp_path / "script.py"
    path.write_text(HEAD + body)
    with pytest.raises(sley.SleyError) as caught:
        for script in msccl.run(path):
            sley.compile(script.program)
    found = caught.value.diagnostics[0]
    assert found.code == code, found
    assert found.places[0].file == str(path)
    lines = [n for n, line in enumerate((HEAD + body).splitlines(), 1) if "# here" in line]
    assert found.places[0].line in (lines or [0]), found
    for place in found.places:
        assert "sley" not in Path(place.file).parts[:-1] or place.file == str(path)


def test_the_scratch_buffers_of_a_script_have_one_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "MAX_SCRATCH_CELLS", 4 * 100)
    path = tmp_path / "script.py"
    line = "    chunk(0, I, 0).copy({}, '{}', {})\n"
    head = HEAD + "with program():\n    " + "chunk(0, I, 0).copy(1, I, 0)\n"
    fits = line.format(1, "x", 59) + line.format(2, "y", 39)
    path.write_text(head + fits + line.format(3, "x", 40))
    with pytest.raises(sley.SleyError, match="V206"):  # nothing about its buffers
        sley.compile(msccl.run(path)[0].program)
    for body, expected in (
        (line.format(1, "x", 60_000_000), "a scratch index from 0 to 99"),
        (line.format(1, "x", 59) + line.format(2, "y", 40), "a scratch index from 0 to 39"),
        (fits + line.format(2, "z", 0), "at most 400 chunks in all scratch buffers of all ranks"),
    ):
        path.write_text(head + body)
        with pytest.raises(sley.SleyError, match="L103") as caught:
            msccl.run(path)
        assert caught.value.diagnostics[0].expected == expected


def test_a_refusing_check_is_quoted(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(HEAD + "with program(**OWN): pass")
    with pytest.raises(sley.SleyError, match="rank 1 lacks the chunk") as caught:
        msccl.run(path)
    (found,) = caught.value.diagnostics
    assert found.places[1].line == HEAD.splitlines().index("    def check(self, prog):") + 1


def test_a_file_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(sley.SleyError, match="F404"):
        msccl.run(tmp_path / "none.py")
