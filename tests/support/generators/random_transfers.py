"""Random valid programs in the transfer language, and the results of their steps in sequence.

`random_transfers` draws arbitrary transfers in place; a custom collective promises their result.
Out of place only the standard collectives have a meaning, so `random_trees` draws algorithms for
these: for each chunk a tree up, a tree down, and further transfers that don't change the result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

import sley
from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.plan import Plan
from sley.ir.program import Program
from sley.ir.topology import Builder
from sley.lang import ChunkProgram
from support.generators.random_programs import SMALL_SLOT
from support.processes.rank_threads import Limits, execute

Cell = tuple[int, int]
"""A rank and a chunk of its data buffer."""

STANDARD = (sley.AllReduce, sley.AllGather, sley.ReduceScatter, sley.Broadcast, sley.Reduce)


@dataclass(frozen=True)
class Move:
    """One ``p.transfer`` of scalars."""

    src: int
    dst: int
    step: int
    chunk: int
    type: str
    channel: int | None = None
    instances: int = 1

    @property
    def reads(self) -> Cell:
        return (self.src, self.chunk)

    @property
    def writes(self) -> Cell:
        return (self.dst, self.chunk)

    def conflicts(self, other: Move) -> bool:
        """Whether one of the two moves writes a place that the other accesses."""
        return self.writes in (other.reads, other.writes) or other.writes == self.reads


@dataclass(frozen=True)
class RandomTransfers:
    """A random program. moves: in any order. topology: None for any."""

    moves: tuple[Move, ...]
    collective: sley.Collective
    program: Program
    topology: sley.Topology | None


def say(p: ChunkProgram, moves: Sequence[Move]) -> None:
    """Traces the moves one after the other; adjacent moves of one kind become one line, as
    arrays."""
    start = 0
    while start < len(moves):
        first = moves[start]
        kind = (first.type, first.channel, first.instances)
        end = start + 1
        while end < len(moves) and end - start < 3:
            m = moves[end]
            if (m.type, m.channel, m.instances) != kind:
                break
            end += 1
        src, dst, step, chunk = np.array(
            [(m.src, m.dst, m.step, m.chunk) for m in moves[start:end]]
        ).T
        with p.parallelize(first.instances):
            if end - start == 1:
                p.transfer(
                    first.src, first.dst, first.step, first.chunk, first.type, channel=first.channel
                )
            else:
                p.transfer(src, dst, step, chunk, first.type, channel=first.channel)
        start = end


def in_lines(moves: Sequence[Move]) -> Callable[[ChunkProgram], None]:
    """The moves as a function with each on a separate line: move k on line k + 1 of the file
    "moves.py"."""
    text = "\n".join(
        f"p.transfer({m.src}, {m.dst}, {m.step}, {m.chunk}, {m.type!r})" for m in moves
    )
    code = compile(text, "moves.py", "exec")
    return lambda p: exec(code, {"p": p})


def run_steps(
    collective: sley.Collective, moves: Sequence[Move], inputs: Sequence[np.ndarray], elements: int
) -> list[np.ndarray]:
    """The outputs of all ranks, by executing the steps in sequence on int64 arrays.

    A step reads everything before it writes. inputs: the input buffer of each rank.
    """
    data: dict[Cell, np.ndarray] = {}
    for rank, values in enumerate(inputs):
        for index, chunk in enumerate(values.reshape(-1, elements) if elements else []):
            data[rank, index + input_base(collective, rank)] = chunk
    nothing = np.zeros(elements, np.int64)
    if not elements:
        return [np.zeros(0, np.int64) for _ in inputs]
    for step in sorted({m.step for m in moves}):
        now = [m for m in moves if m.step == step]
        read = [data[m.reads] for m in now]
        for m, value in zip(now, read, strict=True):
            data[m.writes] = value if m.type == "recv" else data[m.writes] + value
    return [
        np.concatenate(
            [
                data.get((rank, index + output_base(collective, rank)), nothing)
                for index in range(int(collective.output_chunks[rank]))
            ]
        )
        if collective.output_chunks[rank]
        else np.zeros(0, np.int64)
        for rank in range(collective.ranks)
    ]


def input_base(c: sley.Collective, rank: int) -> int:
    """The place of the input in the data buffer (ResCCL's numbering)."""
    return rank * c.chunks if c.name == "allgather" else 0


def output_base(c: sley.Collective, rank: int) -> int:
    """The place of the output in the data buffer."""
    return rank * c.chunks if c.name == "reducescatter" else 0


def run(random: RandomTransfers, plan: Plan, tiles: int, slack: int = 0) -> None:
    """Runs the plan on random numbers, in `tiles` micro-batches, and compares with the steps.

    slack: the number of elements by which a chunk doesn't fill its last tile.
    """
    c = random.collective
    parts = plan.collective.chunks // c.chunks
    longest = int(plan.instructions.count.max(initial=1))
    elements = max(parts * tiles * (SMALL_SLOT // 8 // longest) - slack, 0)
    numbers = np.random.default_rng(elements)
    inputs = [numbers.integers(-99, 99, int(n) * elements) for n in c.input_chunks]
    promised = run_steps(c, random.moves, inputs, elements)
    outputs = execute(
        plan,
        [_given(c, rank, values, elements) for rank, values in enumerate(inputs)],
        Limits(slot_bytes=SMALL_SLOT, timeout_s=20.0),
        count=elements * c.chunks,
    )
    for rank in range(c.ranks):
        expected = c.expected[c.output_offset[rank] : c.output_offset[rank + 1]]
        said = np.repeat(expected != -1, elements)
        assert promised[rank][said].tolist() == outputs[rank][said].tolist()


def _given(c: sley.Collective, rank: int, values: np.ndarray, elements: int) -> np.ndarray:
    """The caller's arrays: the input, in place within the rank's data."""
    if not c.in_place:
        return values
    data = np.full(int(c.data_chunks[rank]) * elements, 12345)
    start = input_base(c, rank) * elements
    data[start : start + len(values)] = values
    return data


@st.composite
def clusters(draw: st.DrawFn, ranks: int) -> sley.Topology | None:
    """Fully linked topologies of at least `ranks` ranks, with nodes and shared cards; or None."""
    kind = draw(st.sampled_from(["none", "cluster", "cluster", "any"]))
    if kind == "none":
        return None
    if kind == "cluster":
        gpus = draw(st.integers(1, ranks))
        nics = draw(st.sampled_from([n for n in range(1, gpus + 1) if gpus % n == 0]))
        return sley.topologies.cluster(-(-ranks // gpus), gpus, nics)
    return _placed("any", ~np.eye(ranks, dtype=bool), *_places(draw, ranks))


def _places(draw: st.DrawFn, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """A topology with a node for each rank, and one of that node's two cards."""
    node = np.array(draw(st.lists(st.integers(0, 2), min_size=ranks, max_size=ranks)))
    card = np.array(draw(st.lists(st.integers(0, 1), min_size=ranks, max_size=ranks)))
    return node, node * 2 + card


def _placed(name: str, linked: np.ndarray, node: np.ndarray, card: np.ndarray) -> sley.Topology:
    """A topology of ranks in nodes, with cards, and direct links between any ranks: NVLink within
    a node, of the network between nodes."""
    builder = Builder(name, node)
    cards, first = np.unique(card, return_index=True)
    nics = builder.add(VertexKind.NIC, node[first])
    builder.both(np.arange(len(node)), nics[np.searchsorted(cards, card)], LinkKind.PCIE, 25, 24)
    src, dst = np.nonzero(linked)
    kind = np.where(node[src] == node[dst], LinkKind.NVLINK, LinkKind.NETWORK)
    for one in (LinkKind.NVLINK, LinkKind.NETWORK):
        builder.link(src[kind == one], dst[kind == one], one, 25, 20)
    return builder.topology()


@st.composite
def random_transfers(
    draw: st.DrawFn, *, max_transfers: int = 40, directives: bool = True
) -> RandomTransfers:
    """Programs of 2-6 ranks and up to `max_transfers` transfers, in place, with several in a step,
    gaps between the steps, and lines in any order. The collective promises the result of the
    steps."""
    ranks = draw(st.integers(2, 6))
    chunks = draw(st.integers(1, 5))
    sizes = st.lists(st.integers(1, chunks), min_size=ranks, max_size=ranks)
    equal = draw(st.booleans())
    inputs = [chunks] * ranks if equal else draw(sizes)
    outputs = [chunks] * ranks if equal else draw(sizes)
    held = {(r, i): Counter({(r, i): 1}) for r in range(ranks) for i in range(inputs[r])}
    room = [max(pair) for pair in zip(inputs, outputs, strict=True)]
    moves: list[Move] = []
    for _ in range(draw(st.sampled_from([1, 2, 4, 8, 16, max_transfers]))):
        move = _move(draw, held, room, moves, directives)
        if move is not None:
            old = held.get(move.writes, Counter())
            held[move.writes] = held[move.reads] + (old if move.type == "rrc" else Counter())
            moves.append(move)

    def expected(rank: int, index: int) -> list[Cell] | None:
        value = held.get((rank, index))
        return None if value is None else list(value.elements())

    collective = sley.Custom("random", ranks, inputs, outputs, expected, in_place=True)
    return _said(draw, collective, _with_steps(draw, moves), draw(clusters(ranks)))


def _move(
    draw: st.DrawFn,
    held: dict[Cell, Counter[Cell]],
    room: list[int],
    earlier: list[Move],
    directives: bool,
) -> Move | None:
    """A possible transfer, or None. Half of them forward a result of an earlier one."""
    if earlier and draw(st.booleans()):
        src, chunk = draw(st.sampled_from(earlier[-6:])).writes
    else:
        src, chunk = draw(st.sampled_from(sorted(held)))
    others = [r for r in range(len(room)) if r != src and chunk < room[r]]
    if not others:
        return None
    dst = draw(st.sampled_from(others))
    kind = draw(st.sampled_from(["recv", "rrc"]))
    if (dst, chunk) not in held or held[src, chunk].total() + held[dst, chunk].total() > 64:
        kind = "recv"
    channel = draw(st.sampled_from([None, None, None, 0, 1])) if directives else None
    instances = draw(st.sampled_from([1, 1, 1, 1, 2, 3])) if directives else 1
    return Move(src, dst, 0, chunk, kind, channel, instances)


def _with_steps(draw: st.DrawFn, moves: list[Move]) -> list[Move]:
    """The moves in this order, with steps of the same meaning."""
    most = draw(st.sampled_from([0, 2]))
    done: list[Move] = []
    for m in moves:
        after = max((d.step for d in done if d.conflicts(m)), default=-1)
        step = after + 1 + draw(st.integers(0, most))
        done.append(Move(m.src, m.dst, step, m.chunk, m.type, m.channel, m.instances))
    return done


def _said(
    draw: st.DrawFn,
    collective: sley.Collective,
    moves: list[Move],
    topology: sley.Topology | None,
) -> RandomTransfers:
    said = draw(st.permutations(moves)) if draw(st.booleans()) else moves
    program = sley.trace(collective, lambda p: say(p, said), name="random")
    return RandomTransfers(tuple(said), collective, program, topology)


@st.composite
def random_trees(draw: st.DrawFn) -> RandomTransfers:
    """Correct algorithms for the standard collectives, in and out of place, over random links: each
    chunk moves up a random tree, down a random tree, or both, and sometimes to places that are
    overwritten later or not promised."""
    ranks = draw(st.integers(2, 6))
    build = draw(st.sampled_from(STANDARD))
    in_place = draw(st.booleans())
    rooted = build in (sley.Broadcast, sley.Reduce)
    scattered = build in (sley.AllGather, sley.ReduceScatter)
    chunks = draw(st.integers(1, (2 if ranks <= 4 else 1) if scattered else 3))
    root = draw(st.integers(0, ranks - 1))
    collective = (
        build(ranks, chunks, root, in_place) if rooted else build(ranks, chunks, in_place=in_place)
    )
    linked = _links(draw, ranks)
    moves: list[Move] = []
    for chunk in range(chunks * ranks if scattered else chunks):
        anywhere = st.integers(0, ranks - 1)
        top = chunk // chunks if scattered else root if rooted else draw(anywhere)
        up = build in (sley.AllReduce, sley.ReduceScatter, sley.Reduce)
        down = build in (sley.AllReduce, sley.AllGather, sley.Broadcast)
        moves += _with_steps(draw, _tree_moves(draw, linked, chunk, top, up=up, down=down))
    topology = _placed("random links", linked, *_places(draw, ranks))
    return _said(draw, collective, moves, topology)


def _links(draw: st.DrawFn, ranks: int) -> np.ndarray:
    """Ranks in a tree with links in both directions, and some links in one direction."""
    linked = np.zeros((ranks, ranks), bool)
    for rank in range(1, ranks):
        other = draw(st.integers(0, rank - 1))
        linked[rank, other] = linked[other, rank] = True
    more = st.tuples(st.integers(0, ranks - 1), st.integers(0, ranks - 1))
    for a, b in draw(st.lists(more, max_size=10)):
        linked[a, b] |= a != b
    return linked


def _tree(draw: st.DrawFn, linked: np.ndarray, top: int) -> list[tuple[int, int]]:
    """The links of a random tree from `top`, each after its parent's."""
    inside, edges = [top], []
    while len(inside) < len(linked):
        possible = [
            (a, int(b)) for a in inside for b in np.flatnonzero(linked[a]) if b not in inside
        ]
        edges.append(draw(st.sampled_from(possible)))
        inside.append(edges[-1][1])
    return edges


def _tree_moves(
    draw: st.DrawFn, linked: np.ndarray, chunk: int, top: int, *, up: bool, down: bool
) -> list[Move]:
    """The moves of one chunk, in a meaningful order, with step 0.

    A rank's copy is *free* from its last use until the result arrives: after its move up the tree,
    or from the start without such a move. Until then, noise may overwrite it.
    """
    holders = set(range(len(linked))) if up else {top}
    final, free = set() if up else {top}, set() if up else set(range(len(linked))) - {top}
    moves: list[Move] = []

    def noise() -> None:
        into = [
            (int(a), b, kind)
            for b in sorted(free)
            for a in np.flatnonzero(linked[:, b])
            if int(a) in holders
            for kind in (("recv", "rrc") if b in holders else ("recv",))
        ]
        into += [(a, b, "recv") for a in final for b in final if linked[a, b]]
        if into and draw(st.sampled_from([False, False, True])):
            src, dst, kind = draw(st.sampled_from(into))
            moves.append(Move(src, dst, 0, chunk, kind))
            holders.add(dst)

    if up:
        for parent, child in reversed(_tree(draw, linked.T, top)):
            moves.append(Move(child, parent, 0, chunk, "rrc"))
            free.add(child)
            noise()
        final.add(top)
    if down:
        for parent, child in _tree(draw, linked, top):
            noise()
            moves.append(Move(parent, child, 0, chunk, "recv"))
            free.discard(child)
            final.add(child)
            holders.add(child)
    noise()
    return moves
