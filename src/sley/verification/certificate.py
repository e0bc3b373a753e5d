"""Certificates: witnesses of a proof that a program without sley can check (src/sley_check.py).

A certificate is compressed JSON, with an execution for each proof of a file. It has no facts: who
checks it reads the file, and knows what its instructions and its runtime do.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from sley.errors.verifier import V223
from sley.ir.connections import Messages
from sley.ir.happens_before import HappensBefore, hazards
from sley.ir.plan import Plan
from sley.ir.tables import NONE
from sley.ir.words import SENDS, LoopOrder, Protocol
from sley.verification.direct import pulls
from sley.verification.hangs import Run, run_abstractly
from sley.verification.verifier import Proof


def certificate(proofs: Iterable[Proof]) -> bytes:
    """The certificate of a file's proofs; the same bytes for the same proofs. Errors: V223."""
    content = {"version": 1, "executions": [_execution(proof) for proof in proofs]}
    text = json.dumps(content, separators=(",", ":")).encode()
    return gzip.compress(text, mtime=0)


def _execution(proof: Proof) -> dict[str, Any]:
    """The witnesses of one proof; see `sley_check` for what they are."""
    plan = proof.plan
    if not isinstance(plan, Plan) or proof.slots is None:
        raise V223.error(at=plan.sources.whole, expected="a plan of messages", found="one-sided")
    if plan.protocol is Protocol.DIRECT and len(plan.groups):
        found = "groups with Direct, which engines without a switch replace"
        raise V223.error(at=plan.sources.whole, expected="peers that are ranks", found=found)
    # Only sley's engines run Direct, and there a message takes one slot.
    per_chunk = proof.per_chunk and plan.protocol is not Protocol.DIRECT
    plan = replace(plan, slots=proof.slots, per_chunk=per_chunk)
    messages = Messages.of(plan)
    witnesses: dict[str, Any] = {"in_place": plan.collective.in_place}
    holds = None
    if plan.protocol is Protocol.DIRECT:
        direct = pulls(plan)
        holds = direct.holds
        staged = SENDS[plan.instructions.op] & ~direct.pulled
        witnesses["staged"] = np.flatnonzero(staged).tolist()
    run = run_abstractly(plan, messages, plan.slots, per_chunk=plan.per_chunk, holds=holds)
    if plan.loop_order is LoopOrder.INSTRUCTION:
        witnesses["meetings"] = run.meetings.tolist()
    witnesses["events"] = run.events.tolist()
    witnesses["hops"], witnesses["paths"] = _order(plan, messages, run)
    return witnesses


def _order(
    plan: Plan, messages: Messages, run: Run
) -> tuple[list[tuple[int, int]], list[tuple[int, int, int]]]:
    """Hops, as (instruction, next hop), and paths, as (first, second, first hop), for conflicting
    accesses that neither a block nor one wait orders."""
    order = HappensBefore(plan, messages, run.level)
    pairs = hazards(plan, run.level, unordered=True)
    hops: dict[tuple[int, int], int] = {}
    paths: dict[tuple[int, int, bool], int] = {}
    for first, second, aligned in zip(
        pairs.first.tolist(), pairs.second.tolist(), pairs.aligned.tolist(), strict=True
    ):
        if (first, second, aligned) in paths:
            continue
        after = NONE
        # From the end on, so that paths share what they end with.
        rows = order.path(first, second, whole=not aligned)
        for row in reversed(rows):
            after = hops.setdefault((row, after), len(hops))
        paths[first, second, aligned] = after
    return [*hops], [(first, second, hop) for (first, second, _), hop in paths.items()]
