"""Two offers for a cluster, compared before one is bought.

The offers differ in the number of network cards of a node. For an AllReduce of 16 MB, sley finds
the fastest plan on each cluster, and the bound: the rate that no plan can exceed there. The prices
are invented.

    python examples/cluster_before_buying.py

prints:

    4 cards in a node: 250,000 euros
      multi-ring-allreduce, Simple: 46.8 of at most 96.0 GB/s
      5,346 euros for each GB/s
    2 cards in a node: 235,000 euros
      two-level-allreduce, Simple: 30.2 of at most 48.0 GB/s
      7,785 euros for each GB/s
"""

import sley
from sley.model.bounds import bound

OFFERS = {"4 cards in a node": ("2x4", 250_000), "2 cards in a node": ("2x4:2", 235_000)}
SIZE = "16M"

if __name__ == "__main__":
    for name, (topology, price) in OFFERS.items():
        programs = [
            sley.algorithms.multi_ring_allreduce(2, 4, in_place=True),
            sley.algorithms.two_level_allreduce(2, 4, in_place=True),
        ]
        choices = sley.choose(
            programs,
            SIZE,
            topology,
            protocol=["LL128", "Simple"],
            schedule="msccl",
            allocate="connection",
            channels=1,
            instances=[1, 4],
        )
        plan = choices.plan_for(SIZE)
        rate = sley.simulate(plan, SIZE).algbw_GBps
        limit = bound(plan.collective, topology, SIZE).algbw_GBps
        print(f"{name}: {price:,} euros")
        print(f"  {plan.name}, {plan.protocol.value}: {rate:.1f} of at most {limit:.1f} GB/s")
        print(f"  {price / rate:,.0f} euros for each GB/s")
