"""Flow: the independent loops, whose iterations pass no values to one another or out of the loop.

An independent loop may run all its iterations at once. Since a loop may have no iterations, it is
never certain that it assigns a name.
"""

from __future__ import annotations

from dataclasses import dataclass

from sley.lang.rescclang.syntax import Act, Assign, Block, Expression, For, SyntaxTree, Transfer


@dataclass(frozen=True, slots=True)
class LoopFlow:
    """The variables of a loop.

    independent: whether no name that an iteration assigns is read in another one or after the loop.
    exposed: names that an iteration may read before it assigns them, without the loop's variable.
    assigned: names that an iteration may assign, with the loop's variable.
    """

    independent: bool
    exposed: frozenset[str]
    assigned: frozenset[str]


def flow(algorithm: SyntaxTree) -> list[LoopFlow]:
    """The flow of each loop, by its number."""
    analysis = _Analysis(algorithm.loops)
    analysis.summary(algorithm.body)
    analysis.mark(algorithm.body, set())
    return [
        LoopFlow(independent, exposed, assigned)
        for independent, (exposed, assigned) in zip(
            analysis.independent, analysis.names, strict=True
        )
    ]


class _Analysis:
    """Two passes over the blocks. Linear in the size of the text times its depth."""

    def __init__(self, loops: int) -> None:
        none: frozenset[str] = frozenset()
        self.names = [(none, none)] * loops
        self.independent = [False] * loops

    def summary(self, block: Block) -> tuple[set[str], set[str]]:
        """The names that a block may read before it assigns them, and those it may assign."""
        exposed: set[str] = set()
        assigned: set[str] = set()
        certain: set[str] = set()
        for statement in block.statements:
            exposed |= _reads(statement) - certain
            if isinstance(statement, Assign):
                certain.add(statement.name)
                assigned.add(statement.name)
            elif isinstance(statement, For):
                inner_exposed, inner_assigned = self.summary(statement.body)
                inner_exposed.discard(statement.name)
                inner_assigned.add(statement.name)
                self.names[statement.number] = frozenset(inner_exposed), frozenset(inner_assigned)
                exposed |= inner_exposed - certain
                assigned |= inner_assigned
        return exposed, assigned

    def mark(self, block: Block, live: set[str]) -> None:
        """Marks the independent loops of a block. live: the names that may be read after the block
        before they are assigned; it becomes those before the block."""
        for statement in reversed(block.statements):
            if isinstance(statement, Assign):
                live.discard(statement.name)
            elif isinstance(statement, For):
                exposed, assigned = self.names[statement.number]
                self.independent[statement.number] = exposed.isdisjoint(
                    assigned
                ) and live.isdisjoint(assigned)
                # A loop without iterations assigns nothing, so names that were live stay live. To
                # copy `live` for each loop would take square time.
                restored = [name for name in assigned if name in live]
                live |= exposed
                self.mark(statement.body, live)
                live.discard(statement.name)
                live.update(restored)
            live |= _reads(statement)


def _reads(statement: Assign | Transfer | For) -> set[str]:
    expressions: tuple[Expression, ...]
    match statement:
        case Assign():
            expressions = (statement.value,)
        case Transfer():
            expressions = (statement.src, statement.dst, statement.step, statement.chunk)
        case For():
            expressions = (statement.start, statement.stop, statement.step)
    return {node.word for e in expressions for node in e.nodes if node.act is Act.NAME}
