"""A plan of another tool, in MSCCL XML, proven, read as a program, and scheduled anew.

An XML file has the thread blocks and the waits that its compiler has chosen. `lift` finds the
program behind them; then sley's compiler schedules it like any program, here by ResCCL's HPDS on
thread blocks that several connections share.

    python examples/rescheduled_xml.py

prints:

    proven with 2 slots
    Program(hm-allreduce: allreduce(16 ranks, 16 chunks, in place), 480 transfers)
    as in the file: 19 blocks on a rank, 29.0 ms for 256 MB
    scheduled anew: 16 blocks on a rank, 13.1 ms for 256 MB
"""

import tempfile
from pathlib import Path

import sley


def write_xml(path):
    """Stands for the other tool."""
    sley.save(sley.compile(sley.algorithms.hm_allreduce(2, 8, in_place=True), per_chunk=True), path)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "hm.xml")
        write_xml(path)
        theirs = sley.load(path)
    assert isinstance(theirs, sley.Plan)
    print(f"proven with {sley.verify(theirs).slots} slots")
    program = sley.lift(theirs)
    print(program)
    ours = sley.compile(program, schedule="hpds", allocate="state", topology="resccl:2")
    for name, plan in (("as in the file", theirs), ("scheduled anew", ours)):
        time_us = sley.simulate(plan, "256M", "resccl:2").time_us
        print(f"{name}: {plan.blocks_per_rank} blocks on a rank, {time_us / 1e3:.1f} ms for 256 MB")
