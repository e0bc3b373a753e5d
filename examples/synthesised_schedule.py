"""A synthesiser's schedule: checked, turned into a program, proven and simulated.

ForestColl writes an AllGather as trees: each GPU sends its data down its own trees. In the
opposite direction the trees are a ReduceScatter, and both together are an AllReduce. This file is
for four GPUs in a row, where a ring would have no way back: each tree goes from its GPU to both
ends of the row.

    python examples/synthesised_schedule.py

prints:

    proven: trees is a correct allreduce on 4 ranks; no race; no hang with 2 slots or more
    Simulation(trees on mesh:4: 1K, 33.3 us, 0.03 GB/s, 25.2% of the bound)
    Simulation(trees on mesh:4: 64M, 7900.5 us, 8.49 GB/s, 42.5% of the bound)
"""

import tempfile
from pathlib import Path

import sley

GPUS = 4


def forest():
    """The file of the trees: from each root outwards along the row."""
    lines = ['<Algo nchunkspernode="1">']
    for root in range(GPUS):
        up = [(gpu, gpu + 1) for gpu in range(root, GPUS - 1)]
        down = [(gpu, gpu - 1) for gpu in range(root, 0, -1)]
        height = max(len(up), len(down))
        lines.append(f"""<tree root="{gpu(root)}" index="0" nchunks="1" height="{height}">""")
        for src, dst in up + down:
            path = f"{gpu(src)},{gpu(dst)}"
            lines.append(f"""<send src="{gpu(src)}" dst="{gpu(dst)}" path="{path}"/>""")
        lines.append("</tree>")
    return "\n".join([*lines, "</Algo>"])


def gpu(number):
    return f"(0, 'GPU', {number})"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trees.xml")
        path.write_text(forest())
        program = sley.load(path, collective="allreduce", in_place=True)
    assert isinstance(program, sley.Program)  # a plan in MSCCL XML would be a sley.Plan
    plan = sley.compile(program, topology="mesh:4")
    print(sley.verify(plan))
    for simulation in sley.simulate(plan, ["1K", "64M"]):
        print(simulation)
