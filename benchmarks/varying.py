"""AllToAll with split sizes, as a mixture of experts makes it: over sley and over gloo.

    torchrun --nproc-per-node 4 benchmarks/varying.py [--bytes 16,1K,64K,1M] [--rounds 15]

Rank s sends a random number of elements to rank r, from 0 to twice the mean, other ones in every
call. In each round the backends take turns with the same calls. A time is that of a round on the
slowest rank, divided by the number of calls. Rank 0 prints the medians, the medians of the ratios,
and for comparison sley's AllToAll of equal parts of the mean size. All results are compared.
"""

from __future__ import annotations

import argparse
from functools import partial
from statistics import median

import numpy as np
import torch
import torch.distributed as dist
from common.ranks import print_table, ranks, slowest_s
from common.tables import ms_text, ratio_text

import sley.torch  # noqa: F401 - registers the backend
from sley.ir.sizes import checked_size

ITEM_BYTES = 4
LEAST_S = 0.05
"""A round takes at least about this long."""


class Exchange:
    """Calls with random split sizes of a mean of `count` elements, the same for all backends.

    splits: int64 (calls, ranks, ranks), what rank s sends to rank r.
    """

    def __init__(self, count: int, calls: int) -> None:
        ranks, self.rank = dist.get_world_size(), dist.get_rank()
        random = np.random.default_rng(count)
        self.splits = random.integers(0, 2 * count, (calls, ranks, ranks), endpoint=True)
        sent = self.splits[:, self.rank].sum(axis=1)
        taken = self.splits[:, :, self.rank].sum(axis=1)
        self.data = [torch.arange(n, dtype=torch.float32) + 1e6 * self.rank for n in sent.tolist()]
        self.out = [torch.empty(n) for n in taken.tolist()]
        self.equal = torch.zeros(ranks * count), torch.zeros(ranks * count)

    def vary(self, group: dist.ProcessGroup) -> None:
        """All calls once."""
        lists = self.splits[:, :, self.rank].tolist(), self.splits[:, self.rank].tolist()
        for out, data, taken, sent in zip(self.out, self.data, *lists, strict=True):
            dist.all_to_all_single(out, data, taken, sent, group=group)

    def repeat_equal(self, group: dist.ProcessGroup) -> None:
        """As many calls of equal parts of the mean size."""
        for _ in self.data:
            dist.all_to_all_single(*self.equal, group=group)


def calls_for(count: int, group: dist.ProcessGroup) -> int:
    """The number of calls whose round takes about LEAST_S over `group`."""
    few = Exchange(count, 4)
    few.vary(group)
    return min(max(4, int(4 * LEAST_S / slowest_s(partial(few.vary, group)))), 1000)


def row(size_bytes: int, rounds: int, groups: dict[str, dist.ProcessGroup]) -> tuple[object, ...]:
    count = max(size_bytes // ITEM_BYTES, 1)
    exchange = Exchange(count, calls_for(count, groups["gloo"]))
    wrong, results = 0, []
    for group in groups.values():
        exchange.vary(group)
        results.append([out.clone() for out in exchange.out])
    for own, other in zip(*results, strict=True):
        wrong += int((own != other).sum())
    ways = [
        partial(exchange.vary, groups["sley"]),
        partial(exchange.vary, groups["gloo"]),
        partial(exchange.repeat_equal, groups["sley"]),
    ]
    times: list[list[float]] = [[] for _ in ways]
    for turn in range(rounds):
        for way in range(len(ways)) if turn % 2 else reversed(range(len(ways))):
            times[way].append(1e3 * slowest_s(ways[way]) / len(exchange.data))
    sley_ms, gloo_ms, equal_ms = times
    ratio = median(g / s for s, g in zip(sley_ms, gloo_ms, strict=True))
    lengths = median(s / e for s, e in zip(sley_ms, equal_ms, strict=True))
    medians = [ms_text(median(one)) for one in times]
    sums = torch.tensor([wrong])
    dist.all_reduce(sums)
    return size_bytes, *medians, ratio_text(ratio), ratio_text(lengths), int(sums)


def main() -> None:
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    made.add_argument("--bytes", default="16,1K,64K,1M", help="mean sizes of a part")
    made.add_argument("--rounds", type=int, default=15)
    options = made.parse_args()
    head = ("part, bytes", "sley, ms", "gloo, ms", "sley, equal, ms")
    head = (*head, "gloo / sley", "varying / equal", "wrong")
    sizes = [checked_size(word) for word in options.bytes.split(",")]
    with ranks():
        groups = {name: dist.new_group(backend=name) for name in ("sley", "gloo")}
        print_table(head, [row(size, options.rounds, groups) for size in sizes])


if __name__ == "__main__":
    main()
