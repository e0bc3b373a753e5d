"""Algorithms: the library of collective algorithms, written in the languages of `sley.lang`.

Each algorithm is a function that returns a `Program`; `build` calls one by its name in `CATALOG`.
Files: catalog (the algorithms by name), algorithm (an entry of it, and checks of parameters), a
file for each collective (allgather, allreduce, reducescatter, alltoall) or family (rooted,
multi_ring, nvls, hierarchical_mesh with its texts/, two_level, forests, routes), rings and
butterflies (shared parts).
"""

from typing import TYPE_CHECKING

from sley.algorithms.algorithm import Algorithm as Algorithm
from sley.algorithms.catalog import CATALOG as CATALOG
from sley.algorithms.catalog import build as build
from sley.algorithms.catalog import find as find
from sley.algorithms.catalog import for_collective as for_collective
from sley.algorithms.hierarchical_mesh import resccl_text as resccl_text
from sley.algorithms.rings import ring_all_gather as ring_all_gather
from sley.algorithms.rings import ring_reduce_scatter as ring_reduce_scatter
from sley.algorithms.two_level import TwoLevel as TwoLevel

if TYPE_CHECKING:  # what the catalog has, with the types
    from sley.algorithms.allgather import *
    from sley.algorithms.allreduce import *
    from sley.algorithms.alltoall import *
    from sley.algorithms.forests import *
    from sley.algorithms.hierarchical_mesh import *
    from sley.algorithms.multi_ring import *
    from sley.algorithms.nvls import *
    from sley.algorithms.reducescatter import *
    from sley.algorithms.rooted import *
    from sley.algorithms.routes import *
    from sley.algorithms.two_level import *
else:
    globals().update({one.function.__name__: one.function for one in CATALOG.values()})
