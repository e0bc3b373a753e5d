"""A policy for a tuner: what the simulator finds fastest on a cluster, for NCCL and for sley.

`sley tune train` learns a policy by measuring. This one is made from `sley.choose`, which only
simulates: for each range of sizes, an algorithm and its options. Written as a file, it steers
sley's communicators (SLEY_TUNER=policy.toml); exported, it steers NCCL, which takes those decisions
that it has words for.

    python examples/tuner_policy.py

prints:

    65536 bytes: two-level-allreduce, LL
    33554432 bytes: multi-ring-allreduce, Simple
    allreduce,524288,2097151,ring,ll,16,2,8
    allreduce,6291456,67108864,ring,simple,16,2,8
    5 remarks on what NCCL can't do
"""

import tempfile
from pathlib import Path

import sley
from sley.tuning import policy
from sley.tuning.policy import Machine, PlanRow, Policy, Recipe, exports

TOPOLOGY = "2x4"

if __name__ == "__main__":
    choices = sley.choose(
        [
            sley.algorithms.multi_ring_allreduce(2, 4, in_place=True),
            sley.algorithms.two_level_allreduce(2, 4, in_place=True),
        ],
        ["16K", "64M"],
        TOPOLOGY,
        protocol=["LL", "Simple"],
        schedule="msccl",
        allocate="connection",
        channels=1,
        instances=4,
    )
    rows = tuple(
        PlanRow(Recipe(one.algorithm, options=one.options.given()), one.sizes, "allreduce")
        for one in choices.ranges
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "policy.toml")
        policy.write(Policy(rows, machine=Machine("simulator", TOPOLOGY, "", 2, 4)), path)
        learned = policy.read(path)
    for size in (64 << 10, 32 << 20):
        row = learned.find("allreduce", size)
        assert row is not None  # the policy's rows cover all sizes
        print(f"{size} bytes: {row.recipe.name}, {row.recipe.options['protocol']}")
    nccl = exports.nccl_csv(learned)
    print(*[line for line in nccl.text.splitlines() if line.endswith(",2,8")], sep="\n")
    print(f"{len(nccl.remarks)} remarks on what NCCL can't do")
