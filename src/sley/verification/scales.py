"""Scales: where a plan reads each rank's input first, and the proof that a call which multiplies
there by the rank's factor multiplies each input once (docs/decisions/0034)."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sley.errors import Diagnostic, SleyError
from sley.errors.verifier import V222
from sley.ir.connections import Messages
from sley.ir.faults import LIMIT
from sley.ir.groups import in_pieces
from sley.ir.plan import Plan
from sley.ir.tables import NONE, BoolArray, IntArray, LongArray, Value, spans
from sley.ir.words import READS_SOURCE, WRITES_DESTINATION, Op
from sley.verification.hangs import run_of
from sley.verification.result import SymbolicRun
from sley.verification.values import LANES, Values

_NEVER = np.iinfo(np.int32).max


@dataclass(frozen=True, eq=False, repr=False)
class Scales(Value):
    """The reads that multiply by the factor of the instruction's rank.

    source: bool (instructions,), of the source. destination: bool (instructions,), of the
        destination, which only `reduce` reads.
    """

    source: BoolArray
    destination: BoolArray

    @classmethod
    def of(cls, plan: Plan) -> Scales:
        """The first reads of the inputs in a verified plan. V222 if an instruction first reads some
        of its chunks, and of others what was written before, or if a promised chunk is an input to
        which nothing is written; V203 if the plan hangs."""
        t, c, layout = plan.instructions, plan.collective, plan.layout
        level = run_of(plan, Messages.of(plan)).level
        written = np.full(layout.cells, _NEVER)  # the level of the first write
        owner, cell = _cells(plan, WRITES_DESTINATION[t.op], plan.destination_cells)
        np.minimum.at(written, cell, level[owner])
        held = np.zeros(layout.cells, bool)
        held[c.input_cells(layout)[c.initial]] = True
        # Conflicting accesses have different levels, and an instruction reads before it writes.
        faults: list[Diagnostic] = []
        marks = []
        for reads, cells_of in (
            (READS_SOURCE[t.op], plan.source_cells),
            (t.op == Op.REDUCE, plan.destination_cells),
        ):
            owner, cell = _cells(plan, reads, cells_of)
            is_first = held[cell] & (level[owner] <= written[cell])
            firsts = np.bincount(owner[is_first], minlength=len(t))
            marks.append(firsts > 0)
            faults += _mixed(plan, firsts)
        outputs = c.output_cells(layout)[c.expected != NONE]
        left = outputs[held[outputs] & (written[outputs] == _NEVER)]
        faults += [
            V222.diagnostic(
                at=plan.sources.whole,
                expected="an instruction that writes each promised chunk",
                found=f"none that writes {layout.name(cell)}",
            )
            for cell in left[:LIMIT].tolist()
        ]
        if faults:
            raise SleyError(faults)
        return cls(*marks)


def prove_scales(plan: Plan) -> None:
    """Proves that a call of a verified plan can multiply each input once. V222 if it can't."""
    alone, _ = in_pieces(plan)  # an instruction with a group reads its source as its pieces do
    faults = check_scales(alone, run_of(alone, Messages.of(alone)).level, Scales.of(alone))
    if faults:
        raise SleyError(faults)


def check_scales(plan: Plan, level: IntArray, scales: Scales) -> list[Diagnostic]:
    """V222 for output chunks that don't hold what the collective promises of the inputs, each
    multiplied once by the factor of its own rank.

    level: of an abstract run of a verified plan. Runs the plan on fingerprints (`Values`), on which
    every rank multiplies by a random odd number of its own: what is multiplied twice, on another
    rank or not at all differs from what is promised as other fingerprints do.
    """
    c = plan.collective
    random = np.frombuffer(secrets.token_bytes(8 * LANES * c.ranks), np.uint64)
    factors = random.reshape(-1, LANES) | np.uint64(1)
    replay = SymbolicRun.start(plan, Messages.of(plan))
    replay.scaling = factors, scales.source, scales.destination
    replay.run(level)
    owner = np.repeat(np.arange(c.ranks), c.input_chunks)
    wanted = Values(replay.inputs.weight * factors[owner], replay.inputs.number).promised(c)
    got = replay.memory[c.output_cells(plan.layout)]
    places = np.flatnonzero(c.expected != NONE)
    wrong = places[got[places].differ(wanted[c.expected[places]])]
    return [
        V222.diagnostic(
            at=plan.sources.whole,
            expected="every input in each result multiplied once, by the factor of its rank",
            found=f"another value in {plan.layout.name(int(cell))}",
        )
        for cell in c.output_cells(plan.layout)[wrong[:LIMIT]]
    ]


def _cells(
    plan: Plan, uses: BoolArray, cells_of: Callable[[LongArray], LongArray]
) -> tuple[LongArray, LongArray]:
    """The instructions of some, each as often as it has chunks, and the cells of these."""
    rows = np.flatnonzero(uses)
    owner, cell = spans(cells_of(rows), plan.instructions.count[rows])
    return rows[owner], cell


def _mixed(plan: Plan, firsts: LongArray) -> list[Diagnostic]:
    """V222 for instructions that first read some of their chunks only."""
    count = plan.instructions.count
    return [
        V222.diagnostic(
            at=plan.place(row),
            expected="an operand that is all of it the rank's input, or all written before",
            found=f"{firsts[row]} of {count[row]} chunks of the input",
        )
        for row in np.flatnonzero((firsts > 0) & (firsts < count))[:LIMIT].tolist()
    ]
