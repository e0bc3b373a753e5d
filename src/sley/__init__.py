"""sley compiles collective communication: write an algorithm, have it proven, simulate and run it.

    import sley

    @sley.program(sley.AllGather(4))
    def ring(p):
        for rank in range(4):
            chunk = p.chunk(rank, "in", 0).copy(rank, "out", rank)
            for step in range(1, 4):
                chunk = chunk.copy((rank + step) % 4, "out", rank)

    plan = ring.compile(topology="1x4")
    print(plan.verify())
    print(plan.simulate("64M"))
    for measured in plan.run(["64K", "1M"]):
        print(measured)
    plan.save("ring.xml")

Write programs: program, rescclang, or take those of `sley.algorithms`, by name with
    sley.load("ring-allreduce", ranks=8); for AllReduce, AllGather, ... or Custom.
Plans: compile, choose, verify, simulate, run, execute, load, save, verify_file, lift. Most are also
    methods of programs and plans; `show` and `draw` are texts and pictures of them.
Clusters: `sley.topologies`; every function takes names such as "ndv4:2" or "torus:4x4", too.
Calls between processes: Communicator, empty, stats; with PyTorch, the backend "sley".
Errors: SleyError, whose codes `sley explain CODE` explains.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sley.front_door import *


class _FrontDoor(ModuleType):
    """`sley`: it loads what it offers at the first use of a name. The workers of a job use none."""

    def __getattr__(self, name: str) -> Any:
        is_own = name.isidentifier() and not name.startswith("_")
        spec = find_spec(f"sley.{name}") if is_own else None
        if spec and spec.origin:  # a folder without modules, which an older version left, has none
            return importlib.import_module(f"sley.{name}")
        if is_own or name in ("__all__", "__version__"):
            door = importlib.import_module("sley.front_door")
            if name == "__all__" or name in door.__all__:
                for own in ("__all__", *door.__all__):
                    vars(self).setdefault(own, getattr(door, own))
                return getattr(door, name)
        raise AttributeError(f"module 'sley' has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *self.__all__})


sys.modules[__name__].__class__ = _FrontDoor
