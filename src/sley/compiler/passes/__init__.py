"""Passes: pure functions from one stage to the next, in the order of the compiler.

parallelize: Program -> Program. copies and cuts: Program -> Forwarded. (sley.ir.dependencies:
Forwarded -> ChunkDag.) fuse and channels: ChunkDag -> InstructionDag. order (by depth), pipelines
(whole transfers): InstructionDag -> Order. blocks: Order -> thread blocks; allocate, with timeline
and merging: fewer of them. emit, waits and scratch: all of these -> Plan. links: which links of a
topology a program uses, for several passes. lift goes back: Plan -> Program. loops: loops that
NumPy can't express, in plain Python or compiled by Numba.
"""
