"""Long calls are extrapolated from calls of fewer tiles."""

import pytest

import sley
from sley import topologies
from sley.compiler import nccl_plan
from sley.model.nccl.runs import NcclRuns
from sley.model.simulation.simulator import LONG
from sley.report.limit import limit_of

CALLS = [
    ("allreduce", topologies.dgx_h100_nvls(2), "64M"),
    ("allreduce", topologies.dgx_h100_nvls(2), "256M"),
    pytest.param("allreduce", topologies.dgx_h100_nvls(2), "1G", marks=pytest.mark.slow),
    ("allgather", topologies.dgx_a100(2), "1G"),
    ("reducescatter", topologies.ndv4(1), "1G"),
    ("alltoall", topologies.ndv4(1), "1G"),
]


@pytest.mark.parametrize(("collective", "machines", "size"), CALLS)
def test_a_long_call_takes_as_long_as_all_of_its_tiles(collective, machines, size):
    size = sley.ir.sizes.checked_size(size)
    short, full = (
        NcclRuns(machines, nccl_plan, executions=e)(collective, size) for e in (False, True)
    )
    assert full.tiles == short.tiles
    assert short.time_us == pytest.approx(full.time_us, rel=0.01)
    assert short.links.moved_bytes == pytest.approx(full.links.moved_bytes)
    # Over very many tiles blocks come to wait for slots more and more, which no few tiles show.
    assert short.blocks.moving_us.sum() == pytest.approx(full.blocks.moving_us.sum(), rel=0.03)
    assert short.critical.end_us[-1] == pytest.approx(short.time_us)
    assert sum(limit_of(short).parts_us.values()) == pytest.approx(short.time_us)
    assert limit_of(short).factor is limit_of(full).factor
    assert (short.stretch > 1) == (full.tiles > LONG)
