"""Examples of the commands, for their help: what each does, and its line. Later ones may read the
files that earlier ones write; tests run them in this order."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "sley": (
        ("prove and run an AllReduce on 4 processes", "run ring-allreduce --ranks 4 -b 1K -e 1M"),
        ("predict its time on 8 GPUs", "simulate ring-allreduce --topology ndv4 -b 64M"),
        ("find the fastest options", "choose ring-allreduce --topology ndv4"),
        ("write it for a runtime", "compile ring-allreduce --ranks 8 -o ring.xml"),
    ),
    "sley compile": (
        ("a file with all of the plan", "compile ring-allreduce --topology ndv4 -o ring.plan"),
        ("MSCCL XML", "compile ring-allreduce --ranks 8 --instances 2 -o ring.xml"),
    ),
    "sley verify": (
        ("an algorithm of the library", "verify ring-allreduce --ranks 8"),
        ("a file, as a runtime reads it", "verify ring.xml --target executor"),
    ),
    "sley import": (
        (
            "ForestColl's trees, as an AllReduce",
            "import trees.xml --collective allreduce -o trees.py",
        ),
    ),
    "sley synthesize": (
        ("trees", "synthesize allgather --topology mi250x -o mi250x.py"),
        ("routes", "synthesize alltoall --topology torus:3x3"),
    ),
    "sley groups": (
        (
            "tensor and data parallelism on 16 GPUs",
            "groups tp:allreduce:64M dp:allgather:64M --grid tp=8,dp=2 --topology ndv4:2",
        ),
    ),
    "sley replan": (
        (
            "without a network card of the second node",
            "replan ring-allreduce --topology ndv4:2 --without nic3@1",
        ),
    ),
    "sley lift": (("a Python program", "lift ring.xml -o lifted.py"),),
    "sley draw": (
        ("its transfers", "draw ring-allreduce --ranks 4 -o ring.svg"),
        ("its thread blocks", "draw ring-allreduce --ranks 4 --of blocks -o blocks.svg"),
    ),
    "sley list": (("all", "list"), ("some", "list alltoall")),
    "sley run": (
        ("on 4 processes", "run ring-allreduce --ranks 4 -b 1K -e 1M"),
        ("kernels, on threads", "run ring-allreduce --ranks 2 --device threads"),
    ),
    "sley exec": (("a program that calls NCCL", "exec --ranks 2 -- python train.py"),),
    "sley package": (("for RCCL", "package plans --table plans.toml --target rccl"),),
    "sley doctor": (
        ("a folder", "doctor plans --target rccl"),
        (
            "one of its calls",
            "doctor plans --target rccl --collective allreduce --size 1M --ranks 8",
        ),
    ),
    "sley simulate": (
        ("one size in full", "simulate ring-allreduce --topology ndv4 -b 64M --html report.html"),
        ("several sizes", "simulate ring.plan -b 1K -e 1G -f 8"),
    ),
    "sley bound": (("for 16 GPUs", "bound allreduce --topology ndv4:2 -b 1M -e 1G -f 8"),),
    "sley compare": (
        (
            "two algorithms with options of their own, beside NCCL",
            'compare "ring-allreduce --instances 24" "hm-allreduce --schedule hpds" nccl-allreduce'
            " --topology ndv4:2",
        ),
    ),
    "sley choose": (
        ("one program", "choose ring-allreduce --topology ndv4 -b 1M -e 64M -f 8"),
        (
            "all of the library, for 30 seconds",
            "choose allreduce --topology ndv4 --limit 30 -o chosen",
        ),
    ),
    "sley tune train": (
        (
            "in the simulator",
            "tune train allreduce --topology 1x4 -b 16K -e 1M -f 8 --actions nccl -o policy.toml",
        ),
    ),
    "sley tune sweep": (
        ("all choices", "tune sweep allreduce --topology 1x4 -b 16K -e 1M -f 8 --actions nccl"),
    ),
    "sley tune show": (("its decisions", "tune show policy.toml"),),
    "sley tune export": (
        ("for NCCL's tuner", "tune export policy.toml --target nccl -o tuner.csv"),
    ),
    "sley calibrate": (
        ("this machine", "calibrate --ranks 2 -n 1 -o here.toml"),
        (
            "GPUs, from a table of nccl-tests",
            "calibrate --from all_reduce.txt --topology ndv4 -o fitted.toml",
        ),
    ),
    "sley topology list": (("all", "topology list"),),
    "sley topology show": (("two nodes", "topology show ndv4 --nodes 2"),),
    "sley topology import": (
        (
            "what NCCL wrote of a machine",
            "topology import dump.xml --like ndv4 -o machine.toml",
        ),
    ),
    "sley explain": (("a code", "explain V206"),),
    "sley completion": (("of bash", "completion bash"),),
}
"""By the words of a command; each line without its first word, sley."""
