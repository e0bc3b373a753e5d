"""Algorithms: the library of collective algorithms, written in the languages of `sley.lang`.

Each algorithm is a function that returns a `Program`; `build` calls one by its name in `CATALOG`.
Files: catalog (the algorithms by name), a file for each collective (allgather, allreduce,
reducescatter, alltoall, alltonext) or family (flat, rooted, multi_ring, hierarchical_mesh with its
texts/, two_level), rings (shared parts of rings), sizes (checks of parameters).
"""

from sley.algorithms.allgather import (
    all_pairs_allgather,
    recursive_doubling_allgather,
    ring_allgather,
    sccl_allgather_dgx1,
)
from sley.algorithms.allreduce import (
    all_pairs_allreduce,
    double_binary_tree_allreduce,
    hierarchical_allreduce,
    one_step_allreduce,
    recursive_halving_doubling_allreduce,
    ring_allreduce,
)
from sley.algorithms.alltoall import all_pairs_alltoall, three_step_alltoall, two_step_alltoall
from sley.algorithms.alltonext import alltonext, direct_alltonext
from sley.algorithms.catalog import CATALOG, Algorithm, build, find
from sley.algorithms.flat import (
    all_pairs_broadcast,
    all_pairs_reduce,
    flat_broadcast,
    flat_gather,
    flat_reduce,
    flat_scatter,
)
from sley.algorithms.hierarchical_mesh import (
    hm_allgather,
    hm_allreduce,
    hm_reducescatter,
    resccl_text,
)
from sley.algorithms.multi_ring import (
    multi_ring_allgather,
    multi_ring_allreduce,
    multi_ring_reducescatter,
)
from sley.algorithms.reducescatter import all_pairs_reducescatter, ring_reducescatter
from sley.algorithms.rings import ring_all_gather, ring_reduce_scatter
from sley.algorithms.rooted import binomial_broadcast, binomial_reduce
from sley.algorithms.two_level import (
    TwoLevel,
    two_level_allgather,
    two_level_allreduce,
    two_level_broadcast,
    two_level_one_step_allreduce,
    two_level_reduce,
    two_level_reducescatter,
)

__all__ = [
    "CATALOG",
    "Algorithm",
    "TwoLevel",
    "all_pairs_allgather",
    "all_pairs_allreduce",
    "all_pairs_alltoall",
    "all_pairs_broadcast",
    "all_pairs_reduce",
    "all_pairs_reducescatter",
    "alltonext",
    "binomial_broadcast",
    "binomial_reduce",
    "build",
    "direct_alltonext",
    "double_binary_tree_allreduce",
    "find",
    "flat_broadcast",
    "flat_gather",
    "flat_reduce",
    "flat_scatter",
    "hierarchical_allreduce",
    "hm_allgather",
    "hm_allreduce",
    "hm_reducescatter",
    "multi_ring_allgather",
    "multi_ring_allreduce",
    "multi_ring_reducescatter",
    "one_step_allreduce",
    "recursive_doubling_allgather",
    "recursive_halving_doubling_allreduce",
    "resccl_text",
    "ring_all_gather",
    "ring_allgather",
    "ring_allreduce",
    "ring_reduce_scatter",
    "ring_reducescatter",
    "sccl_allgather_dgx1",
    "three_step_alltoall",
    "two_level_allgather",
    "two_level_allreduce",
    "two_level_broadcast",
    "two_level_one_step_allreduce",
    "two_level_reduce",
    "two_level_reducescatter",
    "two_step_alltoall",
]
