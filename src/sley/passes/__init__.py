"""Passes: pure functions from one stage to the next, in the order of the compiler.

parallelize: Program -> Program; dependencies: Program -> ChunkDag; fuse and channels:
ChunkDag -> InstructionDag; order: InstructionDag -> Order; blocks and waits: Order -> Plan.
"""
