"""The hierarchical AllReduce of MSCCLang's figure 3, and a misprint in it that sley finds.

Rings within the nodes reduce and scatter the data, rings across the nodes finish the reduction,
and rings within the nodes gather the result. In the figure, line 12 names the wrong ranks for the
rings across the nodes: those of the last node, i + n * G, instead of GPU g of every node.

    python examples/hierarchical_allreduce.py

prints:

    proven: hierarchical is a correct allreduce on 6 ranks; no race; no hang with 2 slots or more
    as printed: V206 wrong-result
      36 of 36 promised chunks are wrong
      ranks 0-2 never hear from ranks 3-5
      ranks 3-5 never hear from ranks 0-2
"""

import sley


def hierarchical(nodes, gpus, as_printed=False):
    """The figure's program; chunks are named as there. as_printed: with the misprint."""

    @sley.program(sley.AllReduce(nodes * gpus, chunks=nodes * gpus, in_place=True))
    def hierarchical(p: sley.ChunkProgram):
        within = [[gpu + node * gpus for gpu in range(gpus)] for node in range(nodes)]
        for ranks in within:
            reduce_scatter(p, ranks, 0, nodes)
        for gpu in range(gpus):
            across = [gpu + node * gpus for node in range(nodes)]
            if as_printed:
                across = [node + (nodes - 1) * gpus for node in range(nodes)]
            reduce_scatter(p, across, gpu * nodes, 1)
            all_gather(p, across, gpu * nodes, 1)
        for ranks in within:
            all_gather(p, ranks, 0, nodes)

    return hierarchical


def reduce_scatter(p, ranks, offset, count):
    for r in range(len(ranks)):
        index = offset + r * count
        c = p.chunk(ranks[(r + 1) % len(ranks)], "in", index, count)
        for step in range(1, len(ranks)):
            c = p.chunk(ranks[(step + r + 1) % len(ranks)], "in", index, count).reduce(c)


def all_gather(p, ranks, offset, count):
    for r in range(len(ranks)):
        index = offset + r * count
        c = p.chunk(ranks[r], "in", index, count)
        for step in range(1, len(ranks)):
            c = c.copy(ranks[(step + r) % len(ranks)], "in", index)


if __name__ == "__main__":
    print(sley.verify(sley.compile(hierarchical(2, 3))))
    try:
        sley.compile(hierarchical(2, 3, as_printed=True))
    except sley.SleyError as error:
        mistake = error.diagnostics[0]
        print(f"as printed: {error.code} {mistake.rule.name}")
        for note in mistake.notes[:3]:
            print(f"  {note}")
