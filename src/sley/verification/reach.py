"""Reach: which ranks' data can have come to which ranks, over all messages of a plan."""

from __future__ import annotations

from itertools import groupby

import numpy as np

from sley.errors import counted, span_texts
from sley.ir.connections import Messages
from sley.ir.plan import Plan
from sley.ir.tables import NONE, by_key

_MOST_NOTES = 4


def unheard(plan: Plan, messages: Messages, order: np.ndarray, wrong: int) -> list[str]:
    """Sentences about ranks to which nothing comes of ranks whose data they are promised, directly
    or by way of others: "ranks 3-5 never hear from ranks 0-2". At most four, and the number of the
    others; none where they are as many as the wrong chunks, which say the same.

    order: the instructions in an order in which they can run. wrong: the number of wrong chunks.
    """
    c, ranks = plan.collective, plan.collective.ranks
    wanted = [0] * ranks  # sets of ranks, as bits
    places = np.flatnonzero(c.expected != NONE)
    owner = np.searchsorted(c.output_offset, places, side="right") - 1
    values, of = np.unique(c.expected[places], return_inverse=True)
    source = np.searchsorted(c.input_offset, c.values.target, side="right") - 1
    sources = []
    for value in values.tolist():
        rows = source[c.values.offset[value] : c.values.offset[value + 1]]
        sources.append(sum(1 << rank for rank in np.unique(rows).tolist()))
    # Each pair once: a rank wants the same value in many places.
    for rank, value in set(zip(owner.tolist(), of.tolist(), strict=True)):
        wanted[rank] |= sources[value]
    heard = _heard(plan, messages, order)
    missing = [w & ~h for w, h in zip(wanted, heard, strict=True)]
    deaf = sorted((m, rank) for rank, m in enumerate(missing) if m)
    groups = [(m, [rank for _, rank in some]) for m, some in groupby(deaf, key=lambda one: one[0])]
    groups.sort(key=lambda one: one[1])
    found = [
        f"{spell_ranks(some)} never {'hears' if len(some) == 1 else 'hear'} from "
        + spell_ranks([rank for rank in range(ranks) if m >> rank & 1])
        for m, some in groups
    ]
    if len(found) >= wrong:
        return []
    more = len(found) - _MOST_NOTES
    return [*found[:_MOST_NOTES], *[f"{counted(more, 'more group')} of ranks"] * (more > 0)]


def _heard(plan: Plan, messages: Messages, order: np.ndarray) -> list[int]:
    """For each rank the set of ranks, as bits, that it has heard from at the end, if each message
    carries all that its sender has heard."""
    heard = [1 << rank for rank in range(plan.collective.ranks)]
    carried = [0] * len(messages.send)
    # Receives first: an instruction that does both sends on what it has just received.
    events = by_key(
        (row, (sends, message))
        for sends, rows in ((False, messages.receive), (True, messages.send))
        for message, row in enumerate(rows.tolist())
    )
    rank = plan.rank.tolist()
    # In the order of a run, every message is carried before it is heard.
    for row in order.tolist():
        for sends, message in events.get(row, ()):
            if sends:
                carried[message] = heard[rank[row]]
            else:
                heard[rank[row]] |= carried[message]
    return heard


def spell_ranks(ranks: list[int]) -> str:
    """Ranks in words: "rank 3", "ranks 0-2, 5". ranks: ascending."""
    texts = span_texts(ranks)
    shown = ", ".join(texts[:6]) + (f" and {len(texts) - 6} more" if len(texts) > 6 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"
