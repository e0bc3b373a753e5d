"""Rules of tuning: errors in the input of a tuner (D92x, D93x)."""

from sley.errors import Rule

D921 = Rule(
    "D921 nothing-to-tune",
    what="There are no choices for a collective on a cluster.",
    why="A tuner chooses among the library's algorithms, on nodes with equally many GPUs.",
    example="sley tune sweep allsum --topology ndv4",
    instead="Give a collective for which `sley list` has algorithms, and a cluster of equal nodes.",
)
D922 = Rule(
    "D922 bad-measurements, formerly D924 D925",
    what="A file is neither a sweep nor a checkpoint, or it is of another cluster or training.",
    why="A sweep has the times of all choices for a collective on a cluster, as `sley tune sweep` "
    "writes them. A checkpoint has the measurements of one training: its agent, seed, sizes, noise "
    "and choices. Each is valid only for its own cluster or training.",
    example="sley tune train allreduce --topology ndv4 -b 4K --checkpoints folder  # had -b 1K",
    instead="Name another folder, or delete the file: the sweep or the training begins anew.",
)
D923 = Rule(
    "D923 bad-training",
    what="A setting of a training is out of range.",
    why="Noise, samples, margins and seeds have limits beyond which a training means nothing.",
    example="sley tune train allreduce --topology ndv4 --samples 0",
    instead="Give a value in the range of the message.",
)
D931 = Rule(
    "D931 no-choice-of-nccl, formerly D932",
    what="NCCL has no choice for a call, or the library has no plan for it that runs on a machine.",
    why="NCCL has AllReduce, AllGather, ReduceScatter, Broadcast and Reduce, and runs AllToAll, "
    "AllToNext, Gather and Scatter as grouped sends and receives, all of them between two ranks or "
    "more. Its times are simulated with plans of the library that move the data as NCCL does; on "
    "some machines without switches NCCL's rings need links that the topology lacks.",
    example='nccl.default("allsum", topology, "1M")',
    instead="Use one of these collectives, on a topology with at least two ranks and all links.",
)
D926 = Rule(
    "D926 wrong-result-while-tuning",
    what="A plan gave a wrong result while a tuner measured it.",
    why="A tuner runs every plan once at each size on test data, and checks the result, before it "
    "measures. All plans are proven, so either sley or the machine is at fault.",
    example="sley tune train allreduce --live --ranks 4",
    instead="Run the command again, and test the machine's memory. If it happens again, report it "
    "with the plan and the size of the message.",
)
