"""The event loop, compared with a plain simulator on random plans, clusters and cost models."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given

from support.generators.examples import examples
from support.generators.random_cases import Call, calls
from support.machines.naive_simulator import columns, naive

RELATIVE = 1e-6


def close(found: object, expected: object, scale: float) -> None:
    """Both are the same to a millionth of `scale` (the event loop takes what lies within a
    tenth of a picosecond for one moment)."""
    np.testing.assert_allclose(found, expected, rtol=RELATIVE, atol=RELATIVE * scale + 1e-5)


@examples(11, suppress_health_check=list(HealthCheck))
@given(calls())
def test_both_simulators_agree(call: Call) -> None:
    found = call.simulated()
    plain = naive(
        call.plan, call.topology, call.size_bytes, interpreter=call.interpreter, slots=call.slots
    )
    assert plain.stuck == []
    close(found.time_us, plain.time_us, plain.time_us)
    for name, values in columns(plain).items():
        close(getattr(found.blocks, name), values, plain.time_us)
    assert found.tiles == plain.tiles
    moved = [plain.moved[link] for link in range(len(call.topology.links))]
    close(found.links.moved_bytes, moved, max(moved))
    e = found.executions
    assert e is not None
    assert len(e) == len(plain.execution)
    keys = zip(e.instruction.tolist(), e.tile.tolist(), strict=True)
    rows = np.array([plain.execution[key] for key in keys]).reshape(-1, 3)
    close(np.column_stack([e.turn_us, e.start_us, e.end_us]), rows, plain.time_us)
