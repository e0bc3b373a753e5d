"""Calls on threads with kernels compiled for a sanitizer: a separate program, because the
sanitizer's library must be loaded first.

    python sanitized.py PROTOCOL:PLANS[:ENGINE],... FLAG...
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

import sley
from sley.algorithms import build
from sley.engine.devices import Engine, Executor, ThreadsDevice
from sley.engine.kernels import Kernels
from sley.ir.words import Op
from support.devices.device_calls import executor, wrong
from support.devices.linked_plans import EPOCH, linked, skip_to
from support.inputs.algorithm_cases import SIZED, sizes
from support.inputs.small_plans import IN, OUT, Hand

START = "== "
"""The start of the line before the sanitizer's messages about a case."""


def plans(name: str, protocol: str) -> Iterator[tuple[sley.Plan, tuple[Engine, ...]]]:
    """Plans, and the engines that run them. "tiles": tile by tile, one block a rank. "tasks":
    instruction by instruction, in blocks that wait for one another. "holds": blocks that wait until
    others have read a place. "runs": instructions that are executed as one. "switches": reductions
    and multicasts of a switch. "library": every algorithm, in the interpreter."""
    if name == "library":
        for algorithm in SIZED:
            size = sizes(algorithm)[min(2, len(sizes(algorithm)) - 1)]
            for in_place in (False, True):
                program = build(algorithm, **size, in_place=in_place)
                yield sley.compile(program, protocol=protocol), (Engine.INTERPRETED,)
                plan = sley.compile(program, schedule="hpds", allocate="state", protocol=protocol)
                yield plan, (Engine.INTERPRETED,)
        return
    if name == "tiles":
        ring = build("ring-allreduce", ranks=3, in_place=True)
        yield sley.compile(ring, protocol=protocol), tuple(Engine)
        return
    if name == "runs":
        program = build("all-pairs-allreduce", ranks=4, in_place=False)
        plan = sley.compile(program, protocol=protocol, allocate="instance")
        runs = Kernels.of(plan).operands.runs
        assert (runs.length > 1).sum() == 3 * 4
        assert runs.kept.any()
        yield plan, tuple(Engine)
        yield copied_onto_itself(protocol), tuple(Engine)
        return
    if name == "switches":
        program = build("nvls-allreduce", ranks=3, in_place=False)
        yield sley.compile(program, protocol=protocol), tuple(Engine)
        return
    if name == "tasks":
        program = build("hm-allreduce", nodes=2, gpus=2, in_place=True)
    else:
        program = build("all-pairs-alltoall", ranks=3, in_place=True)
    plan = sley.compile(program, schedule="hpds", allocate="state", protocol=protocol)
    held = Kernels.of(plan).operands.conditions.held
    assert (held if name == "holds" else ~held).any()
    yield plan, tuple(Engine)


def copied_onto_itself(protocol: str) -> sley.Plan:
    """An AllGather in place: a run copies a chunk onto itself, which another block reads."""
    hand = Hand()
    for rank in range(3):
        after, before = (rank + 1) % 3, (rank + 2) % 3
        hand.add(rank, 0, Op.SEND, (IN, 0), to=after)
        hand.add(rank, 0, Op.COPY, (IN, 0), (OUT, rank))
        hand.add(rank, 0, Op.RECV, dst=(OUT, before), of=before)
        hand.add(rank, 1, Op.SEND, (IN, 0), to=before)
        hand.add(rank, 1, Op.RECV, dst=(OUT, after), of=after)
    plan = hand.plan(sley.AllGather(3, in_place=True), slots=2)
    return replace(plan, protocol=sley.Protocol[protocol.upper()])


def check_links(protocol: str, device: ThreadsDevice) -> None:
    """Calls of several plans over the same links: with more and fewer blocks, with a rank without
    instructions, and in another epoch of flags."""
    ring = build("ring-allreduce", ranks=3, in_place=True)
    every = [sley.compile(ring, protocol=protocol, instances=k, slots=8 // k) for k in (1, 2)]

    @sley.program(sley.SendRecv(3, src=2, dst=0), protocol=protocol)
    def sent(p: sley.lang.ChunkProgram) -> None:
        p.chunk(2, "in", 0).copy(0, "out", 0)

    for launching in ("together", "by-rank"):
        ons = linked([*every, sley.compile(sent)], device, launching=launching)
        for ticks in (0, 4 * EPOCH - 20):
            skip_to(ons[0].links, ticks)
            for on in (*ons, *reversed(ons)):
                assert wrong(on, 333) == 0, (launching, ticks)


def check_odd(on: Executor) -> None:
    """Calls of an AllReduce with inputs, then outputs, at no multiple of 8 bytes."""
    ranks, count = on.plan.collective.ranks, 333
    for k in (0, 1):
        sent = [np.ones(count + k, np.int32)[k:] for _ in range(ranks)]
        results = [np.zeros(count + 1 - k, np.int32)[1 - k :] for _ in range(ranks)]
        on(sent, results)
        assert (np.array(results) == ranks).all()


def main(cases: str, *flags: str) -> None:
    os.environ.pop("LD_PRELOAD", None)  # the compiler needs no sanitizer
    device = ThreadsDevice(flags=flags)
    for case in cases.split(","):
        protocol, name, *only = case.split(":")
        sys.stderr.write(f"{START}{case}\n")
        sys.stderr.flush()
        if name == "links":
            check_links(protocol, device)
            continue
        for plan, engines in plans(name, protocol):
            for engine in [e for e in engines if not only or e.value in only]:
                on = executor(plan, [device] * plan.collective.ranks, engine=engine)
                assert on.way_of_groups("int32") in ("", "through the switch") or name == "library"
                found = [wrong(on, count) for count in (1001, 5, 333)]
                assert found == [0, 0, 0], (plan, engine, found)
                if name == "runs" and "allreduce" in plan.name:
                    check_odd(on)


if __name__ == "__main__":
    main(*sys.argv[1:])
