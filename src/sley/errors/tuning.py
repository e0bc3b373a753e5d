"""Rules of tuning: errors in the input of a tuner (D92x, D93x), and in workloads (D945, D946)."""

from sley.errors.diagnostic import Rule

D921 = Rule(
    "D921",
    "nothing-to-tune",
    what="There are no choices for a collective on a cluster.",
    why="A tuner chooses among the library's algorithms for a collective, on nodes with equally "
    "many GPUs.",
    example="sley tune sweep allsum --topology ndv4",
    instead="Give a collective for which `sley list` has algorithms, and a cluster of equal nodes.",
)
D922 = Rule(
    "D922",
    "bad-measurements",
    what="A file is neither a sweep nor a checkpoint, or it is of another cluster or training.",
    why="A sweep has the times of all choices for a collective on a cluster, as `sley tune sweep` "
    "writes them. A checkpoint has the measurements of one training: its agent, seed, sizes, "
    "noise and choices. Each is valid only for its own cluster or training.",
    example="sley tune train allreduce --topology ndv4 --seed 1 --checkpoints folder  # had 0",
    instead="Name another folder, or delete the file: the sweep or the training begins anew.",
)
D923 = Rule(
    "D923",
    "bad-training",
    what="A setting of a training is out of range.",
    why="Noise, samples, margins and seeds have limits beyond which a training means nothing.",
    example="sley tune train allreduce --topology ndv4 --samples 0",
    instead="Give a value in the range of the message.",
)
D924 = Rule(
    "D924",
    "bad-checkpoint",
    what="A file is not a checkpoint of the recurrent agent.",
    why="A checkpoint has the arrays of a network and of its optimizer, and its settings as JSON. "
    "Pickled objects and files of Stable-Baselines3 are never loaded, since they can run code.",
    example="Checkpoint.load('model.zip')",
    instead="Train again, or give the file that the training wrote.",
)
D925 = Rule(
    "D925",
    "other-checkpoint",
    what="A checkpoint belongs to another training.",
    why="A training continues only with the settings, actions and back ends that it began with, "
    "and a trained policy can choose only among arms that its training had.",
    example="train(sites_of_alltoall, steps, resume=checkpoint_of_allgather)",
    instead="Resume with the same settings and back ends, or train from the beginning.",
)
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
D932 = Rule(
    "D932",
    "no-plan-of-nccls-choice",
    what="The library has no plan for NCCL's choice that runs on a machine.",
    why="NCCL's times are simulated with plans of the library that move the data as NCCL does. On "
    "some machines without switches NCCL's rings need links that the topology lacks.",
    example="NCCL's trees on GPUs that are linked as a ring",
    instead="Compare with algorithms of the library, or use a topology with all links.",
)
D926 = Rule(
    "D926",
    "wrong-result-while-tuning",
    what="A plan gave a wrong result while a tuner measured it.",
    why="A tuner runs every plan once at each size on test data, and compares the result with the "
    "collective's promise, before it measures the time. All plans are proven, so either sley or "
    "the machine is at fault.",
    example="sley tune train allreduce --live --ranks 4",
    instead="Run the command again, and test the machine's memory. If it happens again, report it "
    "with the plan and the size of the message.",
)
D929 = Rule(
    "D929",
    "tuner-not-installed",
    what="The packages that a tuner needs are not installed.",
    why="Agents use scikit-learn, Gymnasium and stable-baselines3, which the rest of sley doesn't "
    "need. They are the extra `tune`.",
    example="pip install sley; sley tune train allreduce --topology ndv4",
    instead='Install the extra: pip install "sley[tune]".',
)
D945 = Rule(
    "D945",
    "bad-workload",
    what="A workload is invalid: its file, or one of its steps.",
    why="A workload is a list of computations, calls and waits in the order of a rank. Its file "
    "is TOML. sley refuses unknown entries, because ignoring them would hide mistakes.",
    example='[[step]]\ncompute_us = 20\ncollective = "allsum"\nsize = "64K"',
    instead="Correct the named step. The collectives are those of `sley list`, the groups cluster, "
    "node and rail; a step waits only for calls that overlap.",
)
D946 = Rule(
    "D946",
    "workload-without-times",
    what="A workload has calls whose times are not known on this cluster.",
    why="The time of a step is the sum of its computation and of the parts of its calls that "
    "nothing overlaps, so each call needs a time: arms for its collective on a cluster with the "
    "ranks of its group.",
    example='Runs.of([moe], {("allreduce", Group.CLUSTER): arms})  # moe has alltoall, too',
    instead="Give arms for each collective and group of the workload, for as many ranks.",
)
