"""Random options of the compiler: all arguments of `compile`, in valid combinations."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

import sley
from sley.ir.words import Allocation, LoopOrder, Schedule


@st.composite
def random_options(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of `sley.compile` besides the program and the topology."""
    schedules = [s for s in Schedule if s is not Schedule.AUTO]
    schedule = draw(st.sampled_from(schedules))
    whole = schedule is not Schedule.MSCCL
    orders = LoopOrder if whole else [LoopOrder.TILE]
    return {
        "protocol": draw(st.sampled_from(sley.Protocol)),
        "schedule": schedule,
        "allocate": draw(st.sampled_from(Allocation)),
        "loop_order": draw(st.sampled_from(orders)),
        "max_blocks": draw(st.sampled_from([None, None, 1, 2, 3])),
        "slots": draw(st.sampled_from([1, 2, 8])),
        "channels": draw(st.integers(1, 3)),
        "instances": draw(st.sampled_from([1, 2, 3])),
        "fusion": None if whole else draw(st.booleans()),
        "per_chunk": draw(st.booleans()),
    }
