"""Passes: pure functions from one stage to the next, in the order of the compiler.

parallelize: Program -> Program; dependencies: Program -> ChunkDag; fuse and channels:
ChunkDag -> InstructionDag; order: InstructionDag -> Order; blocks: Order -> thread blocks; emit and
waits: all of these -> Plan. links only looks: at a program's transfers and a topology.
"""
