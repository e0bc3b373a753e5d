"""Plans made ready to run between the ranks of a communicator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sley.communicator.hosts import Hosts
from sley.communicator.memory import stride
from sley.communicator.plans import Chosen
from sley.communicator.settings import Settings
from sley.communicator.tiles import tile_bytes
from sley.direct import pulls
from sley.ir.plan import Plan
from sley.ir.tables import NONE
from sley.ir.words import REDUCES, Op, Protocol
from sley.runtime.program import Loaded, Pull, Pullable, load
from sley.runtime.settings import SLOT_BYTES


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
    found, op = pulls(plan), plan.instructions.op
    ways = np.where(found.pulled, Pull.MAPPED, Pull.NEVER)
    if not REDUCES[op].any():  # what was just reduced is in the cache, where staging it is cheap
        copied = found.source_of[(op == Op.RECV) & (found.source_of != NONE)]
        ways[copied] = np.where(found.pulled[copied], Pull.ANYWHERE, Pull.NEVER)
    return Pullable(ways, found.holds)
