"""ForestColl's trees (XML): out-trees from every GPU, whose edges are paths through switches.

The trees of a GPU divide its `nchunkspernode` chunks: a tree of n chunks brings n of them to all
other GPUs. Reversed, it reduces them. Source: ForestColl (section 5) and its code,
pipeline_allgather.py; SetsuY's fork, whose trees of an adjacency table number its nodes.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, NoReturn
from xml.parsers import expat

from sley.errors import Place, Rule, counted
from sley.errors.formats import F403
from sley.errors.recognition import FORESTCOLL
from sley.errors.schedules import F551, F554, F557
from sley.ir.collectives import AllGather, AllReduce, ReduceScatter
from sley.ir.program import Program
from sley.ir.tables import by_key
from sley.ir.words import Buffer
from sley.lang.schedules.building import (
    Cells,
    ImportedSchedule,
    ProgramBuilder,
    check_size,
    source_text,
)

COLLECTIVES = ("allgather", "reducescatter", "allreduce")
MAX_NODES = 4096
MAX_CHUNKS = 4096
MAX_SENDS = 1 << 20
_MAX_PATH_CHARS = 10_000

_NODE = re.compile(
    r"\((?P<host>-?[0-9]{1,9}), ?'(?P<kind>[\w.-]{1,40})', ?(?P<place>-?[0-9]{1,9})\)"
    r"|(?P<number>[0-9]{1,9})"
)
_ANY = re.sub(r"\?P<\w+>", "?:", _NODE.pattern)
# Possessive (*+): a text that is none of these is refused in linear time.
_NODES = re.compile(rf"(?:{_ANY})(?:, ?(?:{_ANY}))*+")


class ForestNode(NamedTuple):
    """A node of ForestColl's graph.

    host: its server, -1 for a switch between servers. kind: "GPU", or the switch's; "" for a node
    of an adjacency table, which only has a number. number: among those of its host and kind.
    """

    host: int
    kind: str
    number: int

    def __repr__(self) -> str:
        return repr(tuple(self)) if self.kind else str(self.number)


@dataclass(frozen=True)
class Send:
    """An edge of a tree. path: the nodes from `src` to `dst`."""

    src: ForestNode
    dst: ForestNode
    path: tuple[ForestNode, ...]
    line: int


@dataclass(frozen=True)
class Tree:
    """A tree. index: its number among those of its root. chunks: how many it carries. height: the
    most edges from the root to a GPU, as the file says. sends: its edges."""

    root: ForestNode
    index: int
    chunks: int
    height: int
    line: int
    sends: tuple[Send, ...]

    def depths(self, file: str, gpus: frozenset[ForestNode]) -> dict[ForestNode, int]:
        """The edges from the root to each GPU. Errors: F554 for sends that aren't a spanning
        out-tree."""
        below = by_key((send.src, send) for send in self.sends)
        depths, level = {self.root: 0}, [self.root]
        # Ends: `below.pop` takes the sends of each node, so every send is followed once.
        while level:
            following = []
            for send in (send for node in level for send in below.pop(node, [])):
                if send.dst in depths:
                    found = f"two paths to {send.dst!r}"
                    self._refuse(file, found, send.line)
                depths[send.dst] = depths[send.src] + 1
                following.append(send.dst)
            level = following
        if below:
            send = next(iter(below.values()))[0]
            self._refuse(file, f"a send from {send.src!r}, which the tree doesn't reach", send.line)
        if missing := sorted(gpus - depths.keys()):
            self._refuse(file, f"no path to {missing[0]!r}", self.line)
        return depths

    def _refuse(self, file: str, found: str, line: int) -> NoReturn:
        expected = f"one path from {self.root!r} to every other GPU"
        raise F554.error(
            at=Place(file, line),
            expected=expected,
            found=found,
            remedy="Write the file again with ForestColl, or correct the named tree.",
        )


@dataclass(frozen=True)
class ImportedForest(ImportedSchedule):
    """The trees of a file. chunks: those of each GPU's data, nchunkspernode."""

    file: str
    chunks: int
    trees: tuple[Tree, ...]

    name = "ForestColl"
    kind = FORESTCOLL
    collective = COLLECTIVES[0]
    collectives = COLLECTIVES
    serves = f"one of {', '.join(COLLECTIVES)}, which trees serve"

    @cached_property
    def gpus(self) -> tuple[ForestNode, ...]:
        """The GPUs, which are the roots, in order: gpus[r] becomes rank r."""
        return tuple(sorted({tree.root for tree in self.trees}))

    @cached_property
    def loads(self) -> dict[tuple[ForestNode, ForestNode], int]:
        """The chunks that each physical link carries in an AllGather, or its reverse in a
        ReduceScatter."""
        loads: Counter[tuple[ForestNode, ForestNode]] = Counter()
        for tree in self.trees:
            for send in tree.sends:
                for link in pairwise(send.path):
                    loads[link] += tree.chunks
        return dict(loads)

    def bandwidth(self, rates: dict[tuple[ForestNode, ForestNode], float]) -> float:
        """The rate of an AllGather in GB/s: all ranks' data over the time of the busiest link.
        rates: those of the links, in GB/s."""
        busiest = max(load / rates[link] for link, load in self.loads.items())
        return len(self.gpus) * self.chunks / busiest

    def facts(self) -> list[tuple[str, str]]:
        """What the file is and claims, for people."""
        heights = [tree.height for tree in self.trees]
        others = {node for link in self.loads for node in link} - {*self.gpus}
        kinds = sorted({node.kind or str(node) for node in others})
        through = f"; switches and cards: {', '.join(kinds)}" if kinds else ""
        return [
            ("collective", "allgather; reversed a reducescatter, both an allreduce"),
            ("sends", f"{counted(len(self.gpus), 'GPU')}, {len(self.trees)} trees{through}"),
            ("data", f"{counted(self.chunks, 'chunk')} of each rank"),
            ("heights", f"{min(heights)} to {max(heights)}, as the file says"),
        ]

    def check(self) -> list[tuple[str, str]]:
        """What following the trees shows, for people. Errors: those of `replay`."""
        self.replay()
        link, load = max(self.loads.items(), key=lambda entry: entry[1])
        shown = " to ".join(map(str, link))
        return [
            ("replayed", "each tree reaches every GPU once, at the height that the file says"),
            ("busiest link", f"{shown}: {counted(load, 'chunk')}"),
        ]

    def replay(self) -> list[dict[ForestNode, int]]:
        """The depth of each GPU in each tree. Errors: F557 for heights or numbers of chunks that
        differ from the file's, F554."""
        gpus = frozenset(self.gpus)
        chunks: Counter[ForestNode] = Counter()
        depths = []
        for tree in self.trees:
            found = tree.depths(self.file, gpus)
            if max(found.values()) != tree.height:
                raise F557.error(
                    at=Place(self.file, tree.line),
                    expected=f"height {tree.height}, as the tree says",
                    found=f"a path of {max(found.values())} sends",
                )
            chunks[tree.root] += tree.chunks
            depths.append(found)
        for root, number in chunks.items():
            if number != self.chunks:
                raise F557.error(
                    at=Place(self.file),
                    expected=f"{counted(self.chunks, 'chunk')} of each root (nchunkspernode)",
                    found=f"{number} in the trees of {root!r}",
                )
        return depths

    def _program(self, collective: str, in_place: bool, allow: tuple[str, ...]) -> Program:
        """An AllGather down the trees, a ReduceScatter up the trees, or an AllReduce, up and then
        down. Trees advance together, level by level."""
        ranks = len(self.gpus)
        build = {"allgather": AllGather, "reducescatter": ReduceScatter, "allreduce": AllReduce}
        depths = self.replay()
        check_size(self.file, ranks * ranks * self.chunks)
        chunks = self.chunks * (ranks if collective == "allreduce" else 1)
        builder = ProgramBuilder(self.file, build[collective](ranks, chunks, in_place))
        rows = self._ordered_sends(depths)
        if collective == "allgather":
            if not in_place:
                builder.copy_own(self.chunks, target=self.chunks)
            self._down(builder, rows, in_place)
        elif collective == "reducescatter":
            self._up(builder, rows[::-1], in_place=in_place, whole_output=False)
        else:
            self._up(builder, rows[::-1], in_place=in_place, whole_output=True)
            self._down(builder, rows, in_place=True)
        return builder.program()

    def _ordered_sends(
        self, depths: list[dict[ForestNode, int]]
    ) -> list[tuple[int, int, Tree, Send]]:
        """The sends of all trees from the roots down: (first chunk of the root's, depth of the
        source, tree, send)."""
        first: Counter[ForestNode] = Counter()
        rows = []
        for tree, depth in zip(self.trees, depths, strict=True):
            start = self._rank[tree.root] * self.chunks + first[tree.root]
            first[tree.root] += tree.chunks
            rows += [(start, depth[send.src], tree, send) for send in tree.sends]
        return sorted(rows, key=lambda row: row[1])

    @cached_property
    def _rank(self) -> dict[ForestNode, int]:
        return {node: rank for rank, node in enumerate(self.gpus)}

    def _down(
        self, builder: ProgramBuilder, rows: list[tuple[int, int, Tree, Send]], in_place: bool
    ) -> None:
        for start, _, tree, send in rows:
            src, dst = self._rank[send.src], self._rank[send.dst]
            source = Cells(src, Buffer.OUTPUT, start, tree.chunks)
            if send.src == tree.root and not in_place:
                source = Cells(src, Buffer.INPUT, start - src * self.chunks, tree.chunks)
            builder.copy(source, Cells(dst, Buffer.OUTPUT, start, tree.chunks), send.line)

    def _up(
        self,
        builder: ProgramBuilder,
        rows: list[tuple[int, int, Tree, Send]],
        *,
        in_place: bool,
        whole_output: bool,
    ) -> None:
        """Reduces up the trees. In place, sums replace the data; out of place, they begin as copies
        of it. whole_output: whether a rank's output has the chunks of all roots, so that it is the
        place of the sums."""
        buffer = Buffer.OUTPUT if whole_output and in_place else Buffer.INPUT
        sums: dict[tuple[int, int], Cells] = {}
        # From the leaves up: what a node has summed is complete before it is sent on.
        for start, _, tree, send in rows:
            ends = []
            for node in (send.dst, send.src):
                rank = self._rank[node]
                own = Cells(rank, buffer, start, tree.chunks)
                if node == send.src and not in_place and (rank, start) not in sums:
                    sums[rank, start] = (
                        Cells(rank, Buffer.OUTPUT, start, tree.chunks)
                        if whole_output
                        else self._sum(builder, tree, node, start)
                    )
                    builder.copy(own, sums[rank, start], send.line)
                ends.append(sums.get((rank, start), own))
            source, target = ends
            builder.reduce(source, target, send.line)

    def _sum(self, builder: ProgramBuilder, tree: Tree, node: ForestNode, start: int) -> Cells:
        """The place of a sum if only the root's output has it."""
        rank = self._rank[node]
        if node == tree.root:
            return Cells(rank, Buffer.OUTPUT, start - rank * self.chunks, tree.chunks)
        return builder.new_scratch(rank, tree.chunks)


def read(source: str | os.PathLike[str], file: str | None = None) -> ImportedForest:
    """The trees in a file (a path), or of a text that begins with <.

    file: the file's name in messages. Errors: F404, F551, F403.
    """
    text, file = source_text(source, "<", file)
    return _ForestReader(file).forest(text)


class _ForestReader:
    """Reads one file with expat."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._path: list[str] = []
        self._chunks = 0
        self._trees: list[tuple[ForestNode, int, int, int, int]] = []
        self._edges: list[list[Send]] = []
        self._sends = 0
        self._nodes: dict[str, ForestNode] = {}
        self._parser = expat.ParserCreate("utf-8")  # whatever the file declares
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = lambda _: self._path.pop()
        self._parser.CharacterDataHandler = self._characters
        self._parser.StartDoctypeDeclHandler = self._doctype

    def forest(self, text: str) -> ImportedForest:
        try:
            self._parser.Parse(text.encode("utf-8", "surrogatepass"), True)
        except expat.ExpatError as problem:
            at = Place(self._file, problem.lineno, problem.offset + 1)
            found = expat.ErrorString(problem.code)
            raise F551.error(at=at, expected="well-formed XML", found=found) from problem
        if not self._trees:
            self._refuse("at least one <tree>", "none")
        if not self._sends:
            self._refuse("at least one <send>", "none")
        rows = zip(self._trees, self._edges, strict=True)
        trees = tuple(Tree(*row, tuple(sends)) for row, sends in rows)
        forest = ImportedForest(self._file, self._chunks, trees)
        self._check_ends(forest)
        return forest

    def _check_ends(self, forest: ImportedForest) -> None:
        """Refuses sends between nodes that aren't roots. Errors: F551."""
        gpus = {*forest.gpus}
        for tree in forest.trees:
            for send in tree.sends:
                if not {send.src, send.dst} <= gpus:
                    node = send.dst if send.src in gpus else send.src
                    raise F551.error(
                        at=Place(self._file, send.line),
                        expected="sends between GPUs, each the root of a tree",
                        found=f"{node!r}, which has no tree",
                    )

    def _refuse(self, expected: str, found: str, rule: Rule = F551) -> NoReturn:
        at = Place(self._file, self._parser.CurrentLineNumber)
        raise rule.error(at=at, expected=expected, found=found)

    # Called by expat

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        parent = self._path[-1] if self._path else ""
        self._path.append(name)
        if (parent, name) == ("", "Algo"):
            self._chunks = self._number(attributes, "nchunkspernode", MAX_CHUNKS, 1)
        elif (parent, name) == ("Algo", "tree"):
            self._tree(attributes)
        elif (parent, name) == ("tree", "send"):
            self._send(attributes)
        else:
            inside = f" in <{parent[:40]}>" if parent else ""
            self._refuse("<Algo> with <tree>s with <send>s", f"<{name[:40]}>{inside}")

    def _characters(self, text: str) -> None:
        if text.strip():
            self._refuse("no text between the elements", repr(text.strip()[:40]))

    def _doctype(self, *_: object) -> None:
        self._refuse("XML without a document type", "a DOCTYPE")

    def _tree(self, attributes: dict[str, str]) -> None:
        numbers = (
            self._number(attributes, "index", MAX_CHUNKS, 0),
            self._number(attributes, "nchunks", MAX_CHUNKS, 1),
            self._number(attributes, "height", MAX_NODES, 0),
        )
        root = self._node(self._attribute(attributes, "root"))
        self._trees.append((root, *numbers, self._parser.CurrentLineNumber))
        self._edges.append([])

    def _send(self, attributes: dict[str, str]) -> None:
        self._sends += 1
        if self._sends > MAX_SENDS:
            self._refuse(f"at most {MAX_SENDS} sends", "more", F403)
        src, dst = (self._node(self._attribute(attributes, word)) for word in ("src", "dst"))
        text = self._attribute(attributes, "path")
        if len(text) > _MAX_PATH_CHARS or not _NODES.fullmatch(text):
            self._refuse("a path (0, 'GPU', 0),(0, 'GPU', 1) or 0,1", repr(text[:100]))
        path = tuple(self._node(found[0]) for found in _NODE.finditer(text))
        if len(path) < 2 or (path[0], path[-1]) != (src, dst) or src == dst:
            self._refuse(f"a path from {src!r} to {dst!r}", repr(text[:100]))
        send = Send(src, dst, path, self._parser.CurrentLineNumber)
        self._edges[-1].append(send)

    def _attribute(self, attributes: dict[str, str], word: str) -> str:
        if word not in attributes:
            self._refuse(f"the attribute {word}", "none")
        return attributes[word]

    def _number(self, attributes: dict[str, str], word: str, most: int, least: int) -> int:
        text = self._attribute(attributes, word)
        number = int(text) if re.fullmatch(r"[0-9]{1,9}", text) else -1
        if number > most:
            self._refuse(f"{word} up to {most}", text, F403)
        if number < least:
            self._refuse(f"{word}: a whole number from {least}", repr(text[:40]))
        return number

    def _node(self, text: str) -> ForestNode:
        """A node, which Python has printed as a tuple or a number."""
        if text not in self._nodes:
            found = _NODE.fullmatch(text)
            if found is None:
                self._refuse("a node (0, 'GPU', 0) or 0", repr(text[:100]))
            if len(self._nodes) >= 4 * MAX_NODES:
                self._refuse(f"at most {4 * MAX_NODES} nodes", "more", F403)
            number = int(found["number"] or found["place"])
            self._nodes[text] = ForestNode(int(found["host"] or 0), found["kind"] or "", number)
        return self._nodes[text]
