"""Flow: which loops carry no value from one iteration to the next, and none out.

Such a loop may run all its iterations at once. A loop may run no time, so that what it assigns is
never certain after it.
"""

from __future__ import annotations

from dataclasses import dataclass

from sley.lang.rescclang.syntax import Act, Algorithm, Assign, Block, Expression, For, Transfer


@dataclass(frozen=True, slots=True)
class LoopFlow:
    """What a loop does with variables.

    independent: its iterations neither read what others assign, nor is read after the loop what it
        assigns.
    exposed: names that an iteration may read as they were before it, without the loop's variable.
    assigned: names that an iteration may assign, with the loop's variable.
    """

    independent: bool
    exposed: frozenset[str]
    assigned: frozenset[str]


def flow(algorithm: Algorithm) -> list[LoopFlow]:
    """One entry a loop, by its number."""
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
    """Two passes over the blocks; time grows with the size of the text times its depth."""

    def __init__(self, loops: int) -> None:
        none: frozenset[str] = frozenset()
        self.names = [(none, none)] * loops
        self.independent = [False] * loops

    def summary(self, block: Block) -> tuple[set[str], set[str]]:
        """Names that a block reads before it certainly assigns them, and those it may assign."""
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
        """Marks the independent loops of a block, and turns `live`, the names that may be read
        after it before they are assigned, into those before it."""
        for statement in reversed(block.statements):
            if isinstance(statement, Assign):
                live.discard(statement.name)
            elif isinstance(statement, For):
                exposed, assigned = self.names[statement.number]
                self.independent[statement.number] = exposed.isdisjoint(
                    assigned
                ) and live.isdisjoint(assigned)
                # The body's changes to `live` are undone where a loop that runs no time has none:
                # a copy for each loop would take square time.
                kept = [name for name in assigned if name in live]
                live |= exposed
                self.mark(statement.body, live)
                live.discard(statement.name)
                live.update(kept)
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
