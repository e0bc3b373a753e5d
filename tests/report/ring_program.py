"""A ring AllReduce whose lines the expected reports name."""

import sley


@sley.program(sley.AllReduce(ranks=4, chunks=4, in_place=True))
def ring(p):
    for index in range(4):
        c = p.chunk((index + 1) % 4, "in", index)
        for step in range(1, 4):
            c = p.chunk((index + 1 + step) % 4, "in", index).reduce(c)
        for step in range(1, 4):
            c = c.copy((index + step) % 4, "in", index)
