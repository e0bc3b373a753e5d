"""Random scripts for msccl-tools, against a plain interpreter of references: a promise that the
interpreter doesn't keep is refused, and every accepted plan leaves what the interpreter leaves."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.ir.words import Op
from sley.lang import msccl
from support.generators.examples import examples
from support.processes.rank_threads import execute

SCRATCH = ('"x"', '"y"', "(1, 2)")
INPUT, OUTPUT = "Buffer.input", "Buffer.output"

Place = tuple[int, str, int]
Value = Counter[tuple[int, int]]


@dataclass
class Interpreter:
    """Memory by sequential execution: what a place holds is a multiset of input chunks."""

    ranks: int
    chunks: int
    in_place: bool
    held: dict[Place, Value] = field(default_factory=dict)
    ends: dict[tuple[int, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for rank in range(self.ranks):
            for index in range(self.chunks):
                self.held[rank, INPUT, index] = Counter({(rank, index): 1})

    def place(self, rank: int, buffer: str, index: int) -> Place:
        return rank, INPUT if self.in_place and buffer == OUTPUT else buffer, index

    def get(self, rank: int, buffer: str, index: int) -> Value | None:
        return self.held.get(self.place(rank, buffer, index))

    def set(self, rank: int, buffer: str, index: int, value: Value) -> None:
        self.held[self.place(rank, buffer, index)] = value
        end = self.ends.get((rank, buffer), 0)
        self.ends[rank, buffer] = max(end, index + 1)


@dataclass(frozen=True)
class Reference:
    """A reference of the script: its variable, and the place that it stands for."""

    name: str
    rank: int
    buffer: str
    index: int
    size: int

    def holds(self, memory: Interpreter) -> bool:
        return None not in self._found(memory)

    def values(self, memory: Interpreter) -> list[Value]:
        """What the places hold, all of which hold data."""
        return [value for value in self._found(memory) if value is not None]

    def _found(self, memory: Interpreter) -> list[Value | None]:
        return [memory.get(self.rank, self.buffer, self.index + k) for k in range(self.size)]


@dataclass
class Script:
    """A random script: its lines, and the memory that they leave."""

    memory: Interpreter
    lines: list[str] = field(default_factory=list)
    references: list[Reference] = field(default_factory=list)

    def refer(self, expression: str, rank: int, buffer: str, index: int, size: int) -> None:
        name = f"r{len(self.references)}"
        self.lines.append(f"{name} = {expression}")
        self.references.append(Reference(name, rank, buffer, index, size))


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    memory = Interpreter(draw(st.integers(2, 4)), draw(st.integers(1, 4)), draw(st.booleans()))
    script = Script(memory)
    for _ in range(draw(st.integers(1, 14))):
        step = draw(
            st.sampled_from([_chunk, _copy, _copy, _copy, _reduce, _reduce, _split, _group])
        )
        step(draw, script)
    return script


def _chunk(draw: st.DrawFn, script: Script) -> None:
    memory = script.memory
    rank, buffer, index = draw(st.sampled_from(sorted(memory.held)))
    size = 1
    while draw(st.booleans()) and memory.get(rank, buffer, index + size) is not None:
        size += 1
    name = draw(st.sampled_from([INPUT, OUTPUT])) if memory.in_place else INPUT
    shown = name if buffer == INPUT else buffer
    script.refer(f"chunk({rank}, {shown}, {index}, {size})", rank, shown, index, size)


def _pick(draw: st.DrawFn, script: Script) -> Reference | None:
    """A reference whose places all hold data."""
    if not script.references:
        _chunk(draw, script)
    found = draw(st.sampled_from(script.references[-5:]))
    return found if found.holds(script.memory) else None


def _directives(draw: st.DrawFn) -> str:
    channel = draw(st.sampled_from(["", "", ", ch=0", ", ch=1"]))
    blocks = draw(st.sampled_from(["", "", ", sendtb=2, recvtb=1"]))
    return channel + blocks


def _overlaps(memory: Interpreter, one: Reference, place: Place) -> bool:
    same = memory.place(one.rank, one.buffer, 0)[:2] == memory.place(*place[:2], 0)[:2]
    return same and abs(one.index - place[2]) < one.size


def _copy(draw: st.DrawFn, script: Script) -> None:
    memory, source = script.memory, _pick(draw, script)
    if source is None:
        return
    dst = draw(st.integers(0, memory.ranks - 1))
    way = draw(st.sampled_from(["here", "append", "at", "at"]))
    if way == "here":
        buffer, index, words = source.buffer, source.index, ""
    elif way == "append":
        buffer = draw(st.sampled_from(SCRATCH))
        index, words = memory.ends.get((dst, buffer), 0), f", {buffer}"
    else:
        buffer = draw(st.sampled_from([INPUT, OUTPUT, *SCRATCH]))
        index = draw(st.integers(0, memory.chunks - 1))
        words = f", {buffer}, {index}"
    if buffer in (INPUT, OUTPUT) and index + source.size > memory.chunks:
        return
    values = source.values(memory)
    same_place = memory.place(source.rank, source.buffer, source.index) == memory.place(
        dst, buffer, index
    )
    if not same_place:
        if _overlaps(memory, source, (dst, buffer, index)):
            return
        for k, value in enumerate(values):
            memory.set(dst, buffer, index + k, value)
    call = f"{source.name}.copy({dst}{words}{_directives(draw)})"
    script.refer(call, dst, buffer, index, source.size)


def _reduce(draw: st.DrawFn, script: Script) -> None:
    memory, target, source = script.memory, _pick(draw, script), _pick(draw, script)
    if target is None or source is None or target.size != source.size:
        return
    if _overlaps(memory, source, (target.rank, target.buffer, target.index)):
        return
    pairs = list(zip(target.values(memory), source.values(memory), strict=True))
    if any((old + new).total() > 32 for old, new in pairs):
        return  # larger multiplicities test nothing new
    for k, (old, new) in enumerate(pairs):
        memory.set(target.rank, target.buffer, target.index + k, old + new)
    call = f"{target.name}.reduce({source.name}{_directives(draw)})"
    script.refer(call, target.rank, target.buffer, target.index, target.size)


def _split(draw: st.DrawFn, script: Script) -> None:
    source = _pick(draw, script)
    if source is None:
        return
    parts = draw(st.sampled_from([n for n in (1, 2, 3, 4) if source.size % n == 0]))
    chosen, size = draw(st.integers(0, parts - 1)), source.size // parts
    call = f"{source.name}.split({parts})[{chosen}]"
    script.refer(call, source.rank, source.buffer, source.index + chosen * size, size)


def _group(draw: st.DrawFn, script: Script) -> None:
    one = _pick(draw, script)
    others = [r for r in script.references if one and (r.rank, r.buffer) == (one.rank, one.buffer)]
    if one is None:
        return
    other = draw(st.sampled_from(others))
    first = min(one.index, other.index)
    size = max(one.index + one.size, other.index + other.size) - first
    script.refer(f"{one.name}.group({other.name})", one.rank, one.buffer, first, size)


def text_of(script: Script, collective: str, options: str) -> str:
    m = script.memory
    body = "\n".join(f"    {line}" for line in script.lines)
    return f"""
from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import fully_connected

class Anything(Collective):
    def init_buffers(self):
        found = []
        for rank in range(self.num_ranks):
            chunks = [Chunk(rank, i) for i in range(self.chunk_factor)]
            outputs = chunks if self.inplace else [None] * self.chunk_factor
            found.append({{Buffer.input: chunks, Buffer.output: outputs}})
        return found
    def check(self, prog):
        return True

collective = {collective}({m.ranks}, {m.chunks}, {m.in_place})
with MSCCLProgram("random", fully_connected({m.ranks}), collective, {options}):
{body}
    pass
"""


def load(text: str) -> msccl.ScriptProgram:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "script.py")
        path.write_text(text)
        (found,) = msccl.run(path)
    return found


@given(
    scripts(),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from(["Simple", "LL", "LL128"]),
    st.booleans(),
)
@examples(11, deadline=None)
def test_an_accepted_plan_leaves_what_the_interpreter_leaves(
    script: Script, instances: int, interleaved: bool, protocol: str, fusion: bool
) -> None:
    memory = script.memory
    options = f"{instances}, {protocol!r}, interleaved_replication={interleaved}"
    text = text_of(script, "Anything", f"{options}, instr_fusion={fusion}")
    everywhere = [(r, i) for r in range(memory.ranks) for i in range(memory.chunks)]
    if all(memory.get(rank, OUTPUT, index) is None for rank, index in everywhere):
        with pytest.raises(sley.SleyError, match="L130"):
            load(text)
        return
    found = load(text)
    plan = sley.compile(found.program, fusion=found.fusion)
    sections = 1 if interleaved else instances
    size, length = memory.chunks * sections, 6
    inputs = np.random.default_rng(0).integers(-9, 9, (memory.ranks, size, length))
    outputs = execute(plan, [data.ravel() for data in inputs])
    for rank in range(memory.ranks):
        output = outputs[rank].reshape(size, length)
        for section in range(sections):
            first = section * memory.chunks
            for index in range(memory.chunks):
                value = memory.get(rank, OUTPUT, index)
                if value is not None:
                    wanted = sum(n * inputs[r, first + i] for (r, i), n in value.items())
                    assert (output[first + index] == wanted).all()
    if not fusion:
        assert not np.isin(plan.instructions.op, FUSED).any()


FUSED = [Op.RECV_COPY_SEND, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND]


@given(scripts(), st.sampled_from(["AllReduce", "AllToAll"]), st.data())
@examples(11, deadline=None)
def test_a_script_is_proven_only_if_the_interpreter_agrees(
    script: Script, kind: str, data: st.DataObject
) -> None:
    memory = script.memory
    if kind == "AllToAll":
        if memory.chunks % memory.ranks:
            kind = "AllReduce"
        else:
            kind = "(lambda n, c, p: AllToAll(n, c // n, p))"
    if data.draw(st.booleans()):
        _finish(script, kind)
    found = load(text_of(script, kind, "1"))
    try:
        sley.compile(found.program)
        accepted = True
    except sley.SleyError as error:
        assert error.code in ("V205", "V206")
        accepted = False
    assert accepted == all(
        memory.get(rank, OUTPUT, index) == value
        for (rank, index), value in _promise(memory, kind).items()
    )


def _promise(memory: Interpreter, kind: str) -> dict[tuple[int, int], Value]:
    everyone, found = range(memory.ranks), {}
    for rank in everyone:
        for index in range(memory.chunks):
            if kind == "AllReduce":
                found[rank, index] = Counter({(r, index): 1 for r in everyone})
            else:
                width = memory.chunks // memory.ranks
                part, within = divmod(index, width)
                found[rank, index] = Counter({(part, rank * width + within): 1})
    return found


def _finish(script: Script, kind: str) -> None:
    """Lines that complete an AllReduce of what the script has not changed, if it can be."""
    memory = script.memory
    if kind != "AllReduce":
        return
    for index in range(memory.chunks):
        own = [memory.get(rank, INPUT, index) for rank in range(memory.ranks)]
        if own != [Counter({(rank, index): 1}) for rank in range(memory.ranks)]:
            continue
        script.lines.append(f"c = chunk(0, Buffer.input, {index})")
        for rank in range(1, memory.ranks):
            script.lines.append(f"c.reduce(chunk({rank}, Buffer.input, {index}))")
        total = sum(own[1:], own[0])
        memory.set(0, INPUT, index, total)
        for rank in range(memory.ranks):
            script.lines.append(f"c.copy({rank}, Buffer.output, {index})")
            memory.set(rank, OUTPUT, index, total)
