"""Flow: the independent loops, whose iterations pass no values to one another or out of the loop.

An independent loop may run all its iterations at once. Since a loop may have no iterations, it is
never certain that it assigns a name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sley.lang.rescclang.syntax import Act, Assign, Block, For, Statement, SyntaxTree


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
    return analysis.loops


class _Analysis:
    """Two passes over the blocks. Linear in the size of the text times its depth."""

    def __init__(self, loops: int) -> None:
        self.loops = [LoopFlow(False, frozenset(), frozenset())] * loops

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
                names = frozenset(inner_exposed), frozenset(inner_assigned)
                self.loops[statement.number] = LoopFlow(False, *names)
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
                loop = self.loops[statement.number]
                exposed, assigned = loop.exposed, loop.assigned
                if exposed.isdisjoint(assigned) and live.isdisjoint(assigned):
                    self.loops[statement.number] = replace(loop, independent=True)
                # A loop without iterations assigns nothing, so names that were live stay live. To
                # copy `live` for each loop would take square time.
                restored = [name for name in assigned if name in live]
                live |= exposed
                self.mark(statement.body, live)
                live.discard(statement.name)
                live.update(restored)
            live |= _reads(statement)


def _reads(statement: Statement) -> set[str]:
    nodes = (node for expression in statement.expressions for node in expression.nodes)
    return {node.word for node in nodes if node.act is Act.NAME}
