"""A prefix sum (MPI_Scan): a collective that reduces, with a promise of one's own.

Rank r gets the sum of the inputs of ranks 0 to r. The promise of a chunk is the list of the inputs
that it must contain, each of them once. The program doubles the distance at each step (Hillis and
Steele), so it takes log2(ranks) steps. A step takes the highest rank first, so that every rank
adds what its source had before the step. In the other order a sum would contain inputs twice: sley
refuses the program, and names them.

    python examples/prefix_sum.py

prints:

    proven: prefix-sum is a correct prefix-sum on 4 ranks; no race; no hang with 2 slots or more
    rank 0: [ 1 10]
    rank 1: [ 11 110]
    rank 2: [ 111 1110]
    rank 3: [ 1111 11110]
    upwards: rank 2 out[0] = in[0] of ranks 0-2
             too much: in[0] of rank 0
"""

import numpy as np

import sley


def scan(ranks=8, downwards=True):
    promise = sley.Custom(
        "prefix-sum", ranks, 1, 1, lambda rank, _: [(r, 0) for r in range(rank + 1)], in_place=True
    )

    @sley.program(promise)
    def prefix_sum(p: sley.ChunkProgram):
        distance = 1
        while distance < ranks:
            order = range(distance, ranks)
            for rank in reversed(order) if downwards else order:
                p.chunk(rank, "in", 0).reduce(p.chunk(rank - distance, "in", 0))
            distance *= 2

    return prefix_sum


if __name__ == "__main__":
    plan = sley.compile(scan(4))
    print(sley.verify(plan))
    for rank, result in enumerate(
        sley.execute(plan, [np.array([1, 10]) * 10**r for r in range(4)])
    ):
        print(f"rank {rank}: {result}")
    try:
        sley.compile(scan(4, downwards=False))
    except sley.SleyError as error:
        print("upwards:", error.diagnostics[0].expected)
        print("        ", error.diagnostics[0].found)
