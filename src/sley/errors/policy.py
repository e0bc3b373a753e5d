"""Rules of policies: errors in files of the tuner, and in their use (D90x, D94x)."""

from sley.errors import Rule

D901 = Rule(
    "D901 bad-policy, formerly D902",
    what="A file is not a policy, its contents are invalid, or an older sley wrote it.",
    why="A policy is a table of plans in TOML (F528) with a machine, as `sley tune train` writes "
    "it: text only, so that a file from elsewhere can't run code. Its ranges of sizes are "
    "ascending and don't overlap, and its rows name algorithms and options.",
    example="SLEY_TUNER=agent.pkl",
    instead="Check the path, write the file again with `sley tune train`, or correct the entry.",
)
D903 = Rule(
    "D903 policy-for-another-machine",
    what="A policy was trained for other ranks, or for another machine.",
    why="The fastest plan depends on the number of ranks, on which of them share a host, and on "
    "the machine. A policy, which names both, applies only where it was trained.",
    example="SLEY_TUNER=ndv4.toml torchrun --nproc-per-node 4 train.py",
    instead="Train a policy here: `sley tune train --live --ranks N`. Without one, the "
    "communicator uses its own rules.",
)
D904 = Rule(
    "D904 policy-without-plan",
    what="A policy chooses an algorithm that doesn't exist here or can't be compiled.",
    why="A policy chooses among the library's algorithms of its version, compiled and proven.",
    example='{"algorithm": "star-allreduce", ...}',
    instead="Train again with this version. Until then the default is used.",
)
D905 = Rule(
    "D905 policy-not-expressible",
    what="A policy can't be written for a runtime.",
    why="NCCL's tuner chooses only among NCCL's own algorithms, so a policy that chooses none of "
    "them has no meaning for NCCL. A communicator has no AllToNext. A plan file has its runtime's "
    "limits. A policy that keeps the default everywhere contains nothing to write.",
    example="sley tune export all-pairs.toml --target nccl -o tuner.csv",
    instead="For NCCL, train AllReduce, AllGather or ReduceScatter with its algorithms only (`sley "
    "tune --actions nccl`). Or write the plans (`-o FOLDER`, with `--target msccl` or `executor`).",
)
D906 = Rule(
    "D906 plug-in-not-compiled",
    what="A tuner plug-in for NCCL can't be compiled on this machine.",
    why="NCCL loads the plug-in as a shared library. A C compiler makes it from the C text alone.",
    example="CC=missing-cc sley tune export policy.toml --target nccl -o tuner.so",
    instead="Install a C compiler (Debian: `apt install gcc`), or name one in the variable CC. Or "
    "write the text (`-o tuner.c`), and compile it elsewhere with the command at its top.",
)
