"""Passes: pure functions from one stage to the next, in the order of the compiler.

parallelize: Program -> Program. dependencies: Program -> ChunkDag. fuse and channels:
ChunkDag -> InstructionDag. order (by depth), pipelines (whole transfers): InstructionDag -> Order.
blocks: Order -> thread blocks; allocate, with timeline and merging: fewer of them. emit and waits:
all of these -> Plan. links only looks: at a program's transfers and a topology. lift goes back:
Plan -> Program. loops is how passes say what NumPy can't.
"""
