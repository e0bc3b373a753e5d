"""Rules of tuning: errors in the input of a tuner (D92x, D93x)."""

from sley.errors.diagnostic import Rule

D931 = Rule(
    "D931",
    "no-choice-of-nccl",
    what="NCCL has no choice for a call.",
    why="A tuner compares its choices with NCCL's own. NCCL has AllReduce, AllGather, "
    "ReduceScatter, Broadcast and Reduce, and runs AllToAll, AllToNext, Gather and Scatter as "
    "grouped sends and receives, all of them between two ranks or more.",
    example='nccl.default("allsum", topology, "1M")',
    instead="Use one of these collectives, on a topology with at least two ranks.",
)
