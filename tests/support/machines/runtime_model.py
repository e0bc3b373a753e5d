"""A model of the runtimes of MSCCL XML: their lexer and parser, and kernels with flags and FIFOs.

Written from the rules of the runtimes alone, one character, one step and one message at a time, so
that it shares nothing with what it tests. `faults_of` says why a file that was accepted is bad.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

MOST_ATTRIBUTES, MOST_CHARACTERS, MOST_CHILDREN, NODES = 16, 255, 1024, 4096
MERGED = 16
MIB, KIB = 1 << 20, 1 << 10

KINDS = {
    # type: (receives, sends, reads the source, writes the destination)
    "s": (False, True, True, False),
    "r": (True, False, False, True),
    "cpy": (False, False, True, True),
    "re": (False, False, True, True),
    "rcs": (True, True, False, True),
    "rrs": (True, True, True, False),
    "rrc": (True, False, True, True),
    "rrcs": (True, True, True, True),
}
COMPARED = {  # whether the parser compares the source's, and the destination's, offset
    "s": (True, False), "r": (False, True), "cpy": (True, True), "re": (True, True),
    "rcs": (False, True), "rrs": (True, False), "rrc": (False, False), "rrcs": (True, True),
}  # fmt: skip
SLOTS = {"Simple": 2, "LL": 8, "LL128": 8}


@dataclass(frozen=True)
class Runtime:
    """One of the runtimes."""

    name: str
    steps: int
    blocks: int
    channels: int
    count: int
    plain: bool
    is_msccl: bool
    collectives: dict[str, str]
    slot_bytes: dict[str, int]


_NAMES = {n: n for n in ("allreduce", "allgather", "reduce", "broadcast", "alltoall")}
_EXECUTOR = {**_NAMES, "reducescatter": "reducescatter", "gather": "gather", "scatter": "scatter"}
_BYTES = {"Simple": 2 * MIB, "LL": 32 * KIB, "LL128": 576_000}
_RCCL_BYTES = {"Simple": 2 * MIB, "LL": 16 * KIB, "LL128": 230_400}
RUNTIMES = {
    r.name: r
    for r in (
        Runtime("executor", 64, 1024, 32, 71, False, False, _EXECUTOR, _BYTES),
        Runtime("rccl", 64, 64, 128, 71, True, False, _EXECUTOR, _RCCL_BYTES),
        Runtime(
            "msccl", 256, 216, 32, 72, False, True,
            {**_NAMES, "reduce_scatter": "reducescatter"}, _BYTES,
        ),
    )
}  # fmt: skip


class BadFileError(Exception):
    """The runtime refuses the file, hangs, or computes something wrong."""


def _need(holds: bool, what: str) -> None:
    if not holds:
        raise BadFileError(what)


# Lexer


@dataclass
class Node:
    """An element with its attributes and children."""

    name: str
    attributes: dict[str, str]
    children: list[Node] = field(default_factory=list)

    def text(self, name: str) -> str:
        _need(name in self.attributes, f"<{self.name}> has no {name}")
        return self.attributes[name]

    def number(self, name: str) -> int:
        return c_integer(self.text(name))


def c_integer(text: str) -> int:
    """What strtol makes of a text with base 0."""
    text = text.lstrip(" \t\n\r\f\v")
    sign = -1 if text[:1] == "-" else 1
    text = text[1:] if text[:1] in "+-" and text else text
    base, digits = 10, "0123456789"
    if text[:2] in ("0x", "0X"):
        base, digits, text = 16, "0123456789abcdefABCDEF", text[2:]
    elif text[:1] == "0":
        base, digits = 8, "01234567"
    end = 0
    while end < len(text) and text[end] in digits:
        end += 1
    return sign * int(text[:end] or "0", base)


class _Lexer:
    """Reads characters; there is no way back."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def char(self) -> str:
        _need(self.at < len(self.text), "the file ends")
        self.at += 1
        return self.text[self.at - 1]

    def word(self) -> tuple[str, str, str | None]:
        """A name, the character after it, and the value after a "="."""
        name = ""
        while True:
            c = self.char()
            if c == "=":
                return name, *self._value()
            if c in " >/\n\r":
                return name, c, None
            name += c
            _need(len(name) < MOST_CHARACTERS, "a long name")

    def _value(self) -> tuple[str, str]:
        _need(self.char() == '"', "a value without a double quote")
        value = ""
        while (c := self.char()) != '"':
            value += c
        _need(len(value.encode()) <= MOST_CHARACTERS, "a long value")
        return self.char(), value

    def node(self) -> tuple[str, Node] | None:
        """The next tag, as its kind ("open", "single", "close") and content; None at the end."""
        while self.at < len(self.text) and self.text[self.at] in " \n\r":
            self.at += 1
        if self.at == len(self.text):
            return None
        _need(self.char() == "<", "no tag where one must begin")
        name, last, value = self.word()
        _need(value is None, "a value after an element's name")
        if name[:3] == "!--":
            seen = name[3:] + last
            while seen[-3:] != "-->":
                seen += self.char()
            return self.node()
        if not name and last == "/":
            name, last, value = self.word()
            _need(last == ">" and value is None, "a closing tag with more than a name")
            return "close", Node(name, {})
        node = Node(name, {})
        while last == " ":
            key, last, value = self.word()
            _need(bool(key) or last in "/>", "two spaces")
            if key:
                node.attributes.setdefault(key, value or "")
            _need(len(node.attributes) <= MOST_ATTRIBUTES, "many attributes")
        kind = "open"
        if last == "/":
            kind = "single"
            _, last, _ = self.word()
        _need(last == ">", "a tag that does not end")
        return kind, node


def tree_of(text: str) -> Node:
    """The <algo> of a file."""
    lexer = _Lexer(text)
    root = Node("", {})
    path = [root]
    while (found := lexer.node()) is not None:
        kind, node = found
        if kind == "close":
            _need(len(path) > 1 and path[-1].name == node.name, "another closing tag")
            path.pop()
            continue
        path[-1].children.append(node)
        if kind == "open":
            path.append(node)
    _need(len(path) == 1, "an element that does not end")
    algos = [node for node in root.children if node.name == "algo"]
    _need(bool(algos), "no <algo>")
    return algos[0]


# Parser


@dataclass
class Transmission:
    """What a kernel executes: an operation, its waits, and the sources of merged reductions."""

    kind: str
    source: tuple[str, int]
    target: tuple[str, int]
    count: int
    waits: list[tuple[int, int]]
    announces: bool
    sources: list[int]


@dataclass
class Block:
    """The transmissions of a block, and its peers."""

    send: int
    recv: int
    channel: int
    steps: list[Transmission]


@dataclass
class Algorithm:
    """A file, as all ranks have parsed it."""

    runtime: Runtime
    collective: str
    protocol: str
    chunks: int
    ranks: int
    least: int
    most: int | None
    places: list[bool]
    scratch: list[int]
    blocks: list[list[Block]]


def parse(text: str, runtime: Runtime) -> Algorithm:
    """The algorithm of a file. BadFileError if the runtime refuses it, or never chooses it."""
    algo = tree_of(text)
    ranks, channels = algo.number("ngpus"), algo.number("nchannels")
    word = algo.text("coll")
    _need(word in runtime.collectives, "an unknown collective")
    _need(algo.text("proto") in SLOTS, "an unknown protocol")
    gpus: dict[int, Node] = {}
    listed = [node for node in algo.children if node.name == "gpu"]
    for node in listed:
        gpus.setdefault(node.number("id"), node)
    _need(sorted(gpus) == list(range(ranks)) and len(listed) == ranks, "other GPUs than ranks")
    least, most = _sizes(algo, runtime)
    result = Algorithm(
        runtime, runtime.collectives[word], algo.text("proto"), algo.number("nchunksperloop"),
        ranks, least, most, _places(algo, runtime), [], [],
    )  # fmt: skip
    _need(0 < channels <= runtime.channels, "channels that do not exist")
    parts = ranks if result.collective in ("allgather", "reducescatter", "alltoall") else 1
    _need(result.chunks > 0 and result.chunks % parts == 0, "chunks that ranks do not share")
    if runtime.is_msccl:
        algo.text("name")
    _need(len(listed) <= MOST_CHILDREN, "many GPUs")
    for rank in range(ranks):
        gpu = gpus[rank]
        result.scratch.append(gpu.number("s_chunks"))
        _need(result.scratch[-1] >= 0, "negative scratch")
        if runtime.is_msccl:
            _compare(gpu, result)
        result.blocks.append(_blocks(gpu, rank, ranks, channels, runtime))
    _connect(result)
    return result


def _sizes(algo: Node, runtime: Runtime) -> tuple[int, int | None]:
    """The sizes of calls, both included; None without a greatest."""
    if runtime.is_msccl:
        least = algo.number("minBytes") if "minBytes" in algo.attributes else 0
        most = algo.number("maxBytes") if "maxBytes" in algo.attributes else 1 << 27
        _need(0 <= least <= most, "no sizes")
        _need(max(least, 1) < most, "an empty range of sizes")
        return least, most - 1
    least, most = algo.number("minBytes"), algo.number("maxBytes")
    _need(most == 0 or max(least, 1) <= most, "an empty range of sizes")
    return least, most or None


def _places(algo: Node, runtime: Runtime) -> list[bool]:
    inside = algo.number("inplace") != 0
    outside = not inside if runtime.is_msccl else algo.number("outofplace") != 0
    places = [place for place, on in ((True, inside), (False, outside)) if on]
    _need(bool(places), "no place")
    return places


def _compare(gpu: Node, result: Algorithm) -> None:
    """msccl's comparison of the declared sizes."""
    for name, part in (("i_chunks", "allgather"), ("o_chunks", "reducescatter")):
        size, factor = gpu.number(name), result.ranks if result.collective == part else 1
        _need(size <= 0 or size * factor == result.chunks, "sizes that contradict one another")


def _blocks(gpu: Node, rank: int, ranks: int, channels: int, runtime: Runtime) -> list[Block]:
    size = {b: gpu.number(f"{b}_chunks") for b in "ios"}
    nodes = [node for node in gpu.children if node.name == "tb"]
    found: dict[int, Block] = {}
    total = 1 + ranks + len(nodes) + sum(len(node.children) for node in nodes)
    _need(total < NODES or runtime.is_msccl, "many nodes")
    for node in nodes:
        number, send, recv = (node.number(name) for name in ("id", "send", "recv"))
        channel = node.number("chan")
        _need(0 <= number < runtime.blocks and number not in found, "a block's number")
        _need(all(-1 <= peer < ranks and peer != rank for peer in (send, recv)), "a peer")
        if (send, recv) != (-1, -1):
            _need(0 <= channel < channels, "a channel")
        found[number] = Block(send, recv, channel, _steps(node, send, recv, size, runtime))
    _need(bool(found), "no block")
    _need(sorted(found) == list(range(len(found))), "a hole in the blocks' numbers")
    return [found[number] for number in range(len(found))]


def _steps(
    node: Node, send: int, recv: int, size: dict[str, int], runtime: Runtime
) -> list[Transmission]:
    """The transmissions of a block: nops go, their waits move on, reductions merge."""
    done: list[Transmission] = []
    pending: list[tuple[int, int]] = []
    run: tuple[str, int, str] | None = None
    reductions = 0
    for step in node.children:
        s, count, flag = step.number("s"), step.number("cnt"), step.number("hasdep")
        kind, depid, deps = step.text("type"), step.number("depid"), step.number("deps")
        source = (step.text("srcbuf"), step.number("srcoff"))
        target = (step.text("dstbuf"), step.number("dstoff"))
        _need(0 <= s < runtime.steps, "a step's number")
        _need(kind in KINDS or kind == "nop", "an operation")
        _need(source[0] in size and target[0] in size, "a buffer")
        if depid >= 0:
            _need(depid <= 127 and deps <= 32767, "a wait that does not fit")
            pending.append((depid, deps))
        if kind == "nop":
            continue
        receives, sends, _, _ = KINDS[kind]
        _need(0 <= count <= runtime.count, "a count")
        _need(not sends or send >= 0, "no peer to send to")
        _need(not receives or recv >= 0, "no peer to receive from")
        for compared, (buffer, offset) in zip(COMPARED[kind], (source, target), strict=True):
            _need(not compared or -1 <= offset < size[buffer], "an offset")
        _need(flag in (0, 1), "hasdep")
        here = (target[0], target[1], source[0])
        if kind == "re" and run == here and depid == -1:
            last = done[-1]
            last.count, last.announces = count, flag == 1
            last.sources.append(source[1])
        else:
            _need(not pending or depid >= 0, "a chain of nops without a wait at its end")
            first = [source[1]] if kind == "re" else []
            done.append(Transmission(kind, source, target, count, pending, flag == 1, first))
            pending = []
        if kind == "re":
            reductions += 1
            run = None if flag or reductions == MERGED else here
            _need(len(done[-1].sources) <= MERGED, "many merged reductions")
        else:
            run = None
        _need(not runtime.plain or kind in ("s", "r", "cpy", "re"), "a fused operation")
    return done


def _connect(algorithm: Algorithm) -> None:
    """Two blocks on one end, or an end that its peer does not have."""
    ends: dict[str, list[tuple[int, int, int]]] = {"send": [], "recv": []}
    for rank, blocks in enumerate(algorithm.blocks):
        for block in blocks:
            if block.send >= 0:
                ends["send"].append((rank, block.send, block.channel))
            if block.recv >= 0:
                ends["recv"].append((block.recv, rank, block.channel))
    for keys in ends.values():
        _need(len(keys) == len(set(keys)), "two blocks on one end of a connection")
    _need(set(ends["send"]) == set(ends["recv"]), "a connection with one end")


# Kernels


class _Memory:
    """The memory of all ranks for one call, in cells of a chunk's tile; it begins with garbage."""

    def __init__(self, algorithm: Algorithm, in_place: bool, tiles: int, rng: random.Random):
        self.algorithm, self.rng = algorithm, rng
        sizes = [_sizes_of(algorithm, rank) for rank in range(algorithm.ranks)]
        self.base: list[dict[str, int]] = []
        self.size: list[dict[str, int]] = []
        self.cells: list[list[int]] = []
        for rank, (inputs, outputs) in enumerate(sizes):
            scratch = algorithm.scratch[rank]
            own = {"i": 0, "o": 0 if in_place else inputs}
            if in_place and algorithm.collective in ("allgather", "gather"):
                own["i"] = rank * inputs if outputs else 0
            if in_place and algorithm.collective in ("reducescatter", "scatter"):
                own["o"] = rank * outputs if inputs else 0
            own["s"] = max(own["i"] + inputs, own["o"] + outputs)
            self.base.append(own)
            self.size.append({"i": inputs, "o": outputs, "s": scratch})
            cells = (own["s"] + scratch) * tiles
            self.cells.append([rng.getrandbits(62) for _ in range(cells)])
        self.tiles = tiles
        self.in_place = in_place
        self.inputs = {
            (rank, k, tile): rng.getrandbits(62)
            for rank, (count, _) in enumerate(sizes)
            for k in range(count)
            for tile in range(tiles)
        }
        for (rank, k, tile), value in self.inputs.items():
            self.cells[rank][self.cell(rank, ("i", k), tile)] = value

    def cell(self, rank: int, place: tuple[str, int], tile: int) -> int:
        buffer, k = place
        base = self.base[rank][buffer]
        # In place, one name may reach the other buffer's part of the memory.
        data = self.base[rank]["s"] if self.in_place and buffer != "s" else None
        end = self.size[rank][buffer] if data is None else data - base
        _need((-base if data is not None else 0) <= k < end, "memory outside of the buffers")
        return (base + k) * self.tiles + tile


def _sizes_of(algorithm: Algorithm, rank: int) -> tuple[int, int]:
    """The chunks of a rank's input and output, for root 0."""
    n, chunks = algorithm.ranks, algorithm.chunks
    match algorithm.collective:
        case "allgather":
            return chunks // n, chunks
        case "reducescatter":
            return chunks, chunks // n
        case "gather":
            return chunks, chunks * n if rank == 0 else 0
        case "scatter":
            return chunks * n if rank == 0 else 0, chunks
        case _:
            return chunks, chunks


def _promise(memory: _Memory, rank: int, k: int, tile: int) -> int | None:
    """The value of an output chunk at the end; None for any."""
    algorithm, get = memory.algorithm, memory.inputs
    n, chunks = algorithm.ranks, algorithm.chunks
    part = chunks // n
    match algorithm.collective:
        case "allreduce":
            return sum(get[r, k, tile] for r in range(n))
        case "reduce":
            return sum(get[r, k, tile] for r in range(n)) if rank == 0 else None
        case "broadcast":
            return get[0, k, tile]
        case "allgather":
            return get[k // part, k % part, tile]
        case "reducescatter":
            return sum(get[r, rank * part + k, tile] for r in range(n))
        case "alltoall":
            return get[k // part, rank * part + k % part, tile]
        case "gather":
            return get[k // chunks, k % chunks, tile] if rank == 0 else None
        case _:
            return get[0, rank * chunks + k, tile]


class _Kernel:
    """A block's kernel as a coroutine: it yields what it must wait for, as a function."""

    def __init__(self, call: _Call, rank: int, number: int):
        self.call, self.rank, self.number = call, rank, number
        self.block = call.memory.algorithm.blocks[rank][number]

    def run(self):
        call, rank, block = self.call, self.rank, self.block
        flags = call.flags[rank]
        for tile in range(call.memory.tiles):
            step = 0
            for t in block.steps:
                for named, goal in t.waits:
                    _need(named < len(flags), "a wait for a block that does not exist")
                    yield lambda named=named, goal=goal, tile=tile: flags[named] >= (tile, goal)
                step += max(len(t.waits), 1) - 1
                for first in range(0, t.count, call.together):
                    parts = range(first, min(first + call.together, t.count))
                    yield from self._execute(t, parts, tile)
                step += max(len(t.sources), 1) - 1
                if t.announces:
                    flags[self.number] = (tile, step)
                step += 1

    def _execute(self, t: Transmission, parts: range, tile: int):
        call, rank, block = self.call, self.rank, self.block
        receives, sends, reads, writes = KINDS[t.kind]
        memory = call.memory.cells[rank]
        message_in = call.fifo(block.recv, rank, block.channel) if receives else None
        message_out = call.fifo(rank, block.send, block.channel) if sends else None
        yield (
            lambda: (
                (message_in is None or bool(message_in))
                and (message_out is None or len(message_out) < call.slots)
            )
        )
        taken = message_in[0] if message_in is not None else None
        _need(taken is None or len(taken) == len(parts), "a message of another size")
        sources = [t.source] if t.kind != "re" else [(t.source[0], k) for k in t.sources]
        cells = [
            [call.memory.cell(rank, (b, k + part), tile) for part in parts] if reads else []
            for b, k in sources
        ]
        ends = (
            [call.memory.cell(rank, (t.target[0], t.target[1] + part), tile) for part in parts]
            if writes
            else []
        )
        for k, own in enumerate(cells):
            shared = set(own) & set(ends)
            _need(not shared or (own == ends and k == 0), "operands that overlap")
        sent: list[int | None] = [None] * len(parts)
        if message_out is not None:
            message_out.append(sent)
        if t.kind == "re":
            values = [
                memory[end] + sum(memory[own[k]] for own in cells) for k, end in enumerate(ends)
            ]
            for cell, value in zip(ends, values, strict=True):
                memory[cell] = value
            return
        for k in call.pieces(len(parts)):
            if taken is not None:
                yield lambda k=k: taken[k] is not None
            else:
                yield lambda: True
            sent[k] = (memory[cells[0][k]] if reads else 0) + (taken[k] if taken is not None else 0)
            if writes:
                memory[ends[k]] = sent[k]
        if message_in is not None:
            message_in.popleft()


class _Call:
    """One call on all ranks: its memory, FIFOs and flags."""

    def __init__(self, memory: _Memory, slots: int, together: int, rng: random.Random):
        self.memory, self.slots, self.together, self.rng = memory, slots, together, rng
        self.flags = [[(-1, -1)] * len(blocks) for blocks in memory.algorithm.blocks]
        self._fifos: dict[tuple[int, int, int], deque[list[int | None]]] = {}

    def fifo(self, source: int, target: int, channel: int) -> deque[list[int | None]]:
        return self._fifos.setdefault((source, target, channel), deque())

    def pieces(self, chunks: int) -> list[int]:
        """The order in which a kernel moves the chunks of a message: slice after slice with Simple;
        with flags each thread of the kernel moves the words that have come."""
        order = list(range(chunks))
        if self.memory.algorithm.protocol != "Simple":
            self.rng.shuffle(order)
        return order

    def run(self) -> None:
        """Runs all kernels: by random priorities, which change from time to time, or evenly."""
        kernels = [
            _Kernel(self, rank, number).run()
            for rank, blocks in enumerate(self.memory.algorithm.blocks)
            for number in range(len(blocks))
        ]
        rng = self.rng
        rng.shuffle(kernels)
        change = rng.choice([0.0, 0.02, 0.5])
        goals = [next(kernel, None) for kernel in kernels]
        while any(goal is not None for goal in goals):
            if rng.random() < change:
                order = list(range(len(kernels)))
                rng.shuffle(order)
                kernels, goals = [kernels[k] for k in order], [goals[k] for k in order]
            for k, goal in enumerate(goals):
                if goal is not None and goal():
                    goals[k] = next(kernels[k], None)
                    break
            else:
                raise BadFileError("a hang")
        _need(not any(self._fifos.values()), "messages that nobody takes")
        self._check()

    def _check(self) -> None:
        memory = self.memory
        for rank in range(memory.algorithm.ranks):
            for k in range(memory.size[rank]["o"]):
                for tile in range(memory.tiles):
                    wanted = _promise(memory, rank, k, tile)
                    found = memory.cells[rank][memory.cell(rank, ("o", k), tile)]
                    _need(wanted is None or wanted == found, "a wrong result")
        if not memory.in_place:
            for (rank, k, tile), value in memory.inputs.items():
                cell = memory.cell(rank, ("i", k), tile)
                _need(memory.cells[rank][cell] == value, "an input that changed")


def faults_of(text: str, target: str, rng: random.Random, runs: int = 4) -> str | None:
    """Why a file is bad for a runtime: it is refused or never chosen, or one of some calls, of each
    place and of several sizes, hangs or is wrong. None for a good one."""
    try:
        algorithm = parse(text, RUNTIMES[target])
        for place in algorithm.places:
            for run in range(runs):
                _run(algorithm, place, run, rng)
    except BadFileError as fault:
        return str(fault)
    return None


def _run(algorithm: Algorithm, place: bool, run: int, rng: random.Random) -> None:
    largest = algorithm.most or 1 << 34
    size = (largest, max(algorithm.least, 1), rng.randint(max(algorithm.least, 1), largest))[
        run % 3
    ]
    chunk = -(-size // algorithm.chunks)
    slot = algorithm.runtime.slot_bytes[algorithm.protocol]
    if (
        algorithm.protocol == "Simple"
        and algorithm.collective in ("reduce", "broadcast")
        and not algorithm.runtime.is_msccl
    ):
        slot //= 4
    together = max(1, slot // chunk)
    tiles = rng.randint(2, 4) if chunk > slot else 1
    memory = _Memory(algorithm, place, tiles, rng)
    _Call(memory, SLOTS[algorithm.protocol], together, rng).run()
