"""Plans made ready to run between the ranks of a communicator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sley.communicator.memory import stride
from sley.communicator.settings import Settings
from sley.communicator.tiles import tile_bytes
from sley.direct import pulls
from sley.engine.limits import SLOT_BYTES
from sley.engine.program import Loaded, Pullable, load
from sley.ir.plan import Plan
from sley.ir.words import Protocol
from sley.rendezvous.hosts import Hosts
from sley.selection.plans import Chosen


@dataclass(frozen=True)
class Prepared:
    """A plan on this rank: as the engine loads it, and the engine (`native.Engine`)."""

    chosen: Chosen
    loaded: Loaded
    engine: Any


def prepare(chosen: Chosen, fabric: Any, rank: int, hosts: Hosts, settings: Settings) -> Prepared:
    """The rank's part of a plan, on connections of the communicator. Errors: R507, R510."""
    plan = chosen.plan
    loaded = load(plan, None, SLOT_BYTES, _pullable(plan))
    wiring = loaded.wiring
    index = (wiring.dst * stride(settings) + wiring.channel).astype(np.int32)
    tile = tile_bytes(loaded, hosts, settings)
    loaded = replace(loaded, wiring=replace(wiring, index=index, slot_bytes=tile))
    return Prepared(chosen, loaded, loaded.programs[rank].engine(fabric, loaded.wiring))


def _pullable(plan: Plan) -> Pullable | None:
    if plan.protocol is not Protocol.DIRECT:
        return None
    found = pulls(plan)
    return Pullable(found.pulled, found.holds)
