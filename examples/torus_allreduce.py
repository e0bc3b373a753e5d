"""An AllReduce on a 2-D torus, whose links are all busy at the same time.

A quarter of the data is reduced along the rows and then along the columns, another one along the
columns first, and two more in the opposite directions. Then the sums go back the same ways. Every
message goes to a neighbour.

    python examples/torus_allreduce.py
    sley verify examples/torus_allreduce.py:torus --arg rows=2 --arg columns=3 --topology torus:2x3

The first command prints:

    proven: torus is a correct allreduce on 16 ranks; no race; no hang with 8 slots or more
    Simulation(torus on torus:4x4: 1M, 56.3 us, 18.62 GB/s, 43.6% of the bound)
    Simulation(torus on torus:4x4: 256M, 7470.2 us, 35.93 GB/s, 84.2% of the bound)
"""

import sley


def torus(rows=4, columns=4):
    """AllReduce on rows x columns ranks; rank = row * columns + column."""
    ranks = rows * columns
    across = [list(range(row * columns, (row + 1) * columns)) for row in range(rows)]
    down = [list(range(column, ranks, columns)) for column in range(columns)]
    back, up = ([line[::-1] for line in lines] for lines in (across, down))
    quarters = [(across, down), (down, across), (back, up), (up, back)]

    @sley.program(sley.AllReduce(ranks, chunks=4 * ranks, in_place=True), name="torus")
    def program(p: sley.ChunkProgram):
        for quarter, (first, second) in enumerate(quarters):
            line_of = {rank: line for line in second for rank in line}

            def homes(ranks, quarter=quarter):
                """The chunks of this quarter whose sums are completed on these ranks."""
                return [quarter * rows * columns + rank for rank in ranks]

            for line in first:
                reduce_scatter(p, line, [homes(line_of[rank]) for rank in line])
            for line in second:
                reduce_scatter(p, line, [homes([rank]) for rank in line])
                all_gather(p, line, [homes([rank]) for rank in line])
            for line in first:
                all_gather(p, line, [homes(line_of[rank]) for rank in line])

    return program


def reduce_scatter(p, ring, parts):
    """Reduces the chunks parts[k] around the ring; the sums end on ring[k]."""
    for k, chunks in enumerate(parts):
        total = p.chunk(ring[(k + 1) % len(ring)], "in", chunks)
        for step in range(2, len(ring) + 1):
            total = p.chunk(ring[(k + step) % len(ring)], "in", chunks).reduce(total)


def all_gather(p, ring, parts):
    """Copies the chunks parts[k] from ring[k] around the ring."""
    for k, chunks in enumerate(parts):
        part = p.chunk(ring[k], "in", chunks)
        for step in range(1, len(ring)):
            part = part.copy(ring[(k + step) % len(ring)], "in", chunks)


if __name__ == "__main__":
    plan = sley.compile(torus(), topology="torus:4x4", protocol="LL128")
    print(sley.verify(plan))
    for simulation in sley.simulate(plan, ["1M", "256M"]):
        print(simulation)
