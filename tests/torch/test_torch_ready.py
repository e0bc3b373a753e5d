"""Ready calls: what the engine runs without Python gives what the group's methods give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor

from sley.torch import CollectiveError
from support.processes.rank_pool import RankPool
from support.processes.rank_values import everybody, own, reduced, same

pytestmark = pytest.mark.skipif(
    not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"),
    reason="this PyTorch doesn't lend its tensors to C++",
)

TYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.uint8,
    torch.int64,
    torch.float8_e4m3fn,
]
MOVED = [*TYPES, torch.bool, torch.uint32]
SHAPES = [(1,), (3, 5), (257,)]


def number() -> int:
    """The ready calls of the group so far."""
    group: Any = dist.group.WORLD
    return int(group._ready.number)


def forget() -> None:
    """Makes the group forget its plans, so that the next of equal calls is the first."""
    group: Any = dist.group.WORLD
    group.plans.on_registration()


@contextmanager
def running(calls: int) -> Iterator[None]:
    """Checks that the block makes so many ready calls."""
    before = number()
    yield
    assert number() - before == calls, f"{number() - before} ready calls, not {calls}"


def name() -> str:
    group: Any = dist.group.WORLD
    return str(group.group_name)


def check_updates(dtype: torch.dtype, use_operators: bool) -> None:
    forget()
    ops = [dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX]
    if dtype.is_floating_point:
        ops.append(dist.ReduceOp.AVG)
    else:
        ops.append(dist.ReduceOp.BXOR)
    rank = dist.get_rank()
    for seed, shape in enumerate(SHAPES):
        root = seed % dist.get_world_size()
        for op in ops:
            expected = reduced(everybody(shape, dtype, seed), op)
            word = op.name.lower()
            for attempt in range(2):
                with running(2 * attempt):
                    tensor = own(shape, dtype, seed)
                    if use_operators:
                        torch.ops.sley.all_reduce_(tensor, word, name())
                    else:
                        dist.all_reduce(tensor, op)
                    same(tensor, expected)
                    tensor = own(shape, dtype, seed)
                    if use_operators:
                        torch.ops.sley.reduce_(tensor, root, word, name())
                    else:
                        dist.reduce(tensor, root, op)
                    same(tensor, expected if rank == root else own(shape, dtype, seed))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("use_operators", [False, True], ids=["method", "operator"])
def test_a_ready_reduction_differs_from_the_first(
    four_ranks: RankPool, dtype: torch.dtype, use_operators: bool
) -> None:
    four_ranks.run(check_updates, dtype, use_operators)


def check_moves(dtype: torch.dtype, use_operators: bool) -> None:
    forget()
    ranks, rank, sley = dist.get_world_size(), dist.get_rank(), torch.ops.sley
    for seed, shape in enumerate(SHAPES):
        sent = everybody(shape, dtype, seed)
        root = seed % ranks
        for attempt in range(2):
            with running(4 * attempt):
                tensor = own(shape, dtype, seed)
                if use_operators:
                    sley.broadcast_(tensor, root, name())
                else:
                    dist.broadcast(tensor, root)
                same(tensor, sent[root])

                row = torch.empty((ranks * shape[0], *shape[1:]), dtype=dtype)
                if use_operators:
                    sley.all_gather_into(row, own(shape, dtype, seed), name())
                else:
                    dist.all_gather_into_tensor(row, own(shape, dtype, seed))
                same(row, torch.cat(sent))

                row = torch.zeros_like(row)
                part = row[rank * shape[0] : (rank + 1) * shape[0]]
                part.copy_(own(shape, dtype, seed))
                if use_operators:
                    sley.all_gather_into(row, part, name())
                else:
                    dist.all_gather_into_tensor(row, part)
                same(row, torch.cat(sent))

                whole, other = torch.cat([sent[rank]] * ranks), torch.empty_like(row)
                if use_operators:
                    sley.all_to_all_into(other, whole, name())
                else:
                    dist.all_to_all_single(other, whole)
                same(other, torch.cat(sent))


@pytest.mark.parametrize("dtype", MOVED, ids=str)
@pytest.mark.parametrize("use_operators", [False, True], ids=["method", "operator"])
def test_a_ready_move_differs_from_the_first(
    four_ranks: RankPool, dtype: torch.dtype, use_operators: bool
) -> None:
    four_ranks.run(check_moves, dtype, use_operators)


def check_bools() -> None:
    tensor = torch.tensor([True, False, dist.get_rank() == 0])
    for use_operators in (False, True, False, True):
        found = tensor.clone()
        if use_operators:
            torch.ops.sley.all_reduce_(found, "sum", name())
        else:
            dist.all_reduce(found)
        same(found, torch.tensor([True, False, True]))


def test_a_sum_of_bools_is_no_or(four_ranks: RankPool) -> None:
    four_ranks.run(check_bools)


def check_reduce_scatter() -> None:
    forget()
    ranks, rank = dist.get_world_size(), dist.get_rank()
    whole = torch.arange(ranks * 3, dtype=torch.float32)
    expected = whole.view(ranks, 3)[rank] * ranks
    for attempt in range(2):
        with running(1 + attempt):  # the method's first call makes the operator's ready
            part = torch.empty(3)
            dist.reduce_scatter_tensor(part, whole)
            same(part, expected)
            part = torch.empty(3)
            torch.ops.sley.reduce_scatter_into(part, whole, "sum", name())
            same(part, expected)
        copy = whole.clone()
        part = copy[rank * 3 : rank * 3 + 3]
        with running(1 if attempt else 0):
            dist.reduce_scatter_tensor(part, copy)
        same(part, expected)


def test_a_ready_reduce_scatter_is_wrong(four_ranks: RankPool) -> None:
    four_ranks.run(check_reduce_scatter)


def parts_of(rows: Tensor, arrangement: str) -> list[Tensor]:
    """The rows as tensors of their own, adjacent in memory, in another order, or apart."""
    order = list(range(len(rows)))
    if arrangement == "reversed":
        order.reverse()
    wide = torch.zeros(len(rows), *rows.shape[1:], dtype=rows.dtype)
    if arrangement == "apart":
        wide = torch.zeros(2 * len(rows), *rows.shape[1:], dtype=rows.dtype)[::2]
    parts = [wide[index] for index in order]
    for part, row in zip(parts, rows, strict=True):
        part.copy_(row)
    return parts


def check_lists(dtype: torch.dtype, arrangement: str) -> None:
    forget()
    ranks, rank = dist.get_world_size(), dist.get_rank()
    for seed, shape in enumerate(SHAPES):
        sent, root = everybody((ranks, *shape), dtype, seed), (seed + 1) % ranks
        mine = sent[rank]
        column = torch.stack([rows[rank] for rows in sent])
        for attempt in range(2):
            part = torch.empty(shape, dtype=dtype)
            with running(4 * attempt):
                taken = parts_of(torch.zeros_like(mine), arrangement)
                dist.gather(mine[0], taken if rank == root else None, root)
                if rank == root:
                    same(torch.stack(taken), torch.stack([rows[0] for rows in sent]))
                given = parts_of(mine, arrangement)
                dist.scatter(part, given if rank == root else None, root)
                same(part, sent[root][rank])
                taken = parts_of(torch.zeros_like(mine), arrangement)
                dist.all_gather(taken, mine[1])
                same(torch.stack(taken), torch.stack([rows[1] for rows in sent]))
                taken = parts_of(torch.zeros_like(mine), arrangement)
                dist.all_to_all(taken, given)
                same(torch.stack(taken), column)
            if dtype not in TYPES:
                continue
            with running(attempt):
                dist.reduce_scatter(part, given, dist.ReduceOp.MAX)
                same(part, column.amax(0))


@pytest.mark.parametrize("arrangement", ["adjacent", "reversed", "apart"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.bool], ids=str)
def test_a_ready_list_differs_from_the_first(
    four_ranks: RankPool, dtype: torch.dtype, arrangement: str
) -> None:
    four_ranks.run(check_lists, dtype, arrangement)


def check_unusual_lists() -> None:
    """After ready calls of the same elements: other sizes on some ranks, overlaps, wrong lists."""
    forget()
    ranks, rank = dist.get_world_size(), dist.get_rank()
    own, whole = torch.full((2,), float(rank)), torch.zeros(ranks, 2)
    outputs = list(whole)
    for _ in range(2):
        dist.all_gather(outputs, own)
        dist.all_to_all(outputs, [own] * ranks)
        dist.gather(own, outputs if rank == 0 else None)
    expected = torch.arange(float(ranks)).repeat_interleave(2).view(ranks, 2)
    with running(0):
        whole[rank] = rank
        dist.all_gather(outputs, outputs[rank])
        same(whole, expected)
    whole.fill_(rank)
    with running(0):
        dist.all_to_all(outputs, outputs)
        same(whole, expected)
    with running(0 if rank == 0 else 1):
        part = outputs[0] if rank == 0 else own
        dist.gather(part, outputs if rank == 0 else None)
    if rank == 0:
        same(whole, expected)
    sizes = [2 + (rank == other == 1) for other in range(ranks)]
    with running(0 if rank == 1 else 1):  # its own part is larger
        taken = [torch.zeros(size) for size in sizes]
        dist.all_to_all(taken, [torch.full((size,), float(rank)) for size in sizes])
    same(torch.cat(taken), torch.arange(float(ranks)).repeat_interleave(torch.tensor(sizes)))
    for outputs in ([torch.zeros(2)] * (ranks - 1), [torch.zeros(2).bool()] * ranks):
        with pytest.raises((CollectiveError, ValueError)):
            dist.group.WORLD.allgather([outputs], [own])


def test_lists_that_no_ready_call_takes_are_taken(four_ranks: RankPool) -> None:
    four_ranks.run(check_unusual_lists)


def check_barriers() -> None:
    forget()
    dist.barrier()
    with running(2):
        dist.barrier()
        dist.barrier()
    with running(0):
        work: Any = dist.barrier(async_op=True)
        assert work.wait()
        dist.barrier(timeout=timedelta(seconds=20))


def test_a_barrier_is_not_ready(four_ranks: RankPool) -> None:
    four_ranks.run(check_barriers)


def check_views() -> None:
    """Tensors whose memory isn't their elements in order."""
    forget()
    ranks = dist.get_world_size()
    dist.all_reduce(torch.ones(6))
    with running(1):
        parameter = torch.nn.Parameter(torch.ones(6))
        dist.all_reduce(parameter)
    same(parameter.detach(), torch.full((6,), float(ranks)))

    def negated() -> Tensor:
        view = torch._neg_view(torch.full((6,), 2.0))
        assert view.is_neg()
        assert view.is_contiguous()
        return view

    columns = torch.ones(2, 3, 2)[:, :, 0]
    with running(0):
        view = negated()
        dist.all_reduce(view)
        same(view.resolve_neg(), torch.full((6,), -2.0 * ranks))
        dist.all_reduce(columns)
        same(columns.contiguous(), torch.full((2, 3), float(ranks)))
        torch.ops.sley.all_reduce_(columns, "sum", name())
        same(columns.contiguous(), torch.full((2, 3), float(ranks**2)))
    shifted = torch.frombuffer(bytearray(4 * 6 + 1), dtype=torch.float32, offset=1)
    with running(0):  # no address of a float32
        shifted.fill_(1)
        dist.all_reduce(shifted)
        torch.ops.sley.all_reduce_(shifted, "sum", name())
        same(shifted, torch.full((6,), float(ranks**2)))
    view = negated()
    torch.ops.sley.all_reduce_(view, "sum", name())
    same(view.resolve_neg(), torch.full((6,), -2.0 * ranks))
    conjugated = torch.full((3,), 1 + 2j).conj()
    torch.ops.sley.all_reduce_(conjugated, "sum", name())
    same(conjugated.resolve_conj(), torch.full((3,), ranks * (1 - 2j)))
    gathered = torch.empty(3 * ranks, dtype=torch.complex64).conj()
    torch.ops.sley.all_gather_into(gathered, conjugated, name())
    same(gathered.resolve_conj(), torch.full((3 * ranks,), ranks * (1 - 2j)))
    overlapping = torch.arange(ranks * 2.0)
    with running(0):  # a part that isn't the rank's own
        at = (dist.get_rank() + 1) % ranks * 2
        dist.all_gather_into_tensor(overlapping, overlapping[at : at + 2])


def test_a_view_is_read_as_plain_memory(four_ranks: RankPool) -> None:
    four_ranks.run(check_views)


def check_unfit() -> None:
    """After ready calls of the same elements."""
    forget()
    ranks = dist.get_world_size()
    input, output = torch.ones(4, dtype=torch.uint8), torch.ones(4 * ranks, dtype=torch.uint8)
    for _ in range(3):
        dist.all_gather_into_tensor(output, input)
        dist.broadcast(input, 0)
    with pytest.raises(CollectiveError, match="B902"):
        dist.all_gather_into_tensor(output.view(torch.bool), input)
    with pytest.raises(RuntimeError, match="B902"):
        torch.ops.sley.all_gather_into(output.view(torch.bool), input, name())
    with pytest.raises(RuntimeError, match="N650"):
        torch.ops.sley.broadcast_(input, 2**32, name())
    freed = torch.ones(8)
    freed.untyped_storage().resize_(0)
    with pytest.raises(CollectiveError, match="Tensor, without memory"):
        dist.all_reduce(freed)
    with pytest.raises(CollectiveError, match="AsyncCollectiveTensor, without memory"):
        dist.all_reduce(funcol.all_reduce(torch.ones(8), "sum", dist.group.WORLD))


def test_tensors_that_no_call_takes_are_taken_by_a_ready_one(four_ranks: RankPool) -> None:
    four_ranks.run(check_unfit)


def check_options() -> None:
    """Asynchronous calls, and those with a timeout of their own, aren't ready."""
    forget()
    from torch._C._distributed_c10d import AllreduceOptions

    group: Any = dist.group.WORLD
    tensor = torch.ones(9)
    dist.all_reduce(tensor)
    with running(0):
        work: Any = dist.all_reduce(tensor, async_op=True)
        work.wait()
        options = AllreduceOptions()
        options.asyncOp, options.timeout = False, timedelta(seconds=5)
        group.allreduce([tensor], options).wait()
        group.allreduce([tensor]).wait()
    assert tensor[0] == dist.get_world_size() ** 4
    before = group._get_sequence_number_for_group()
    dist.all_reduce(tensor)
    assert group._get_sequence_number_for_group() == before + 1


def test_an_option_of_a_ready_call_is_ignored(four_ranks: RankPool) -> None:
    four_ranks.run(check_options)


def check_registration() -> list[str]:
    """A plan that is registered between equal calls runs the later ones."""
    import sley

    group: Any = dist.new_group(backend="sley")
    dist.all_reduce(torch.ones(64), group=group)
    dist.all_reduce(torch.ones(64), group=group)
    plan = sley.algorithms.ring_allreduce(dist.get_world_size(), in_place=True)
    group.plans.register(plan)
    dist.all_reduce(torch.ones(64), group=group)
    dist.all_reduce(torch.ones(64), group=group)
    rows = [f"{row.origin} {row.calls}" for row in group._endpoint.stats()]
    group.shutdown()
    with pytest.raises(CollectiveError, match="N623"):
        group.allreduce([torch.ones(64)])
    return sorted(rows)


def test_a_registered_plan_does_not_run_ready_calls(four_ranks: RankPool) -> None:
    for rows in four_ranks.run(check_registration):
        assert rows == ["default 2", "user 2"]


def check_different_calls() -> str:
    group: Any = dist.new_group(backend="sley")
    for count in (2, 2, 3, 3):
        dist.all_reduce(torch.ones(count), group=group)
    try:
        dist.all_reduce(torch.ones(2 + dist.get_rank() % 2), group=group)
    except CollectiveError as error:
        return error.code
    return "no error"


def test_different_ready_calls_are_no_error(four_ranks: RankPool) -> None:
    assert set(four_ranks.run(check_different_calls)) <= {"N622", "N621"}


def check_profile() -> list[str]:
    forget()
    tensor, asynchronous = torch.ones(8), torch.ones(8)
    dist.all_reduce(tensor)
    with torch.profiler.profile() as profile, running(1):
        dist.all_reduce(tensor)
        work: Any = dist.all_reduce(asynchronous, async_op=True)
        work.wait()
        torch.ops.sley.all_reduce_(tensor, "sum", name())
    return sorted(event.name for event in profile.events() if "sley" in event.name)


def test_the_profiler_shows_no_collective(four_ranks: RankPool) -> None:
    words = "sley:all_reduce of 8 x float32, SUM, by one-step-allreduce"
    for names in four_ranks.run(check_profile):
        assert names == ["sley::all_reduce_", words, words]


def _returning(tensor: Tensor, group: str) -> Tensor:
    sley: Any = torch.ops.sley
    gathered = sley.all_gather(sley.all_reduce(tensor * 2, "sum", group), group)
    return sley.all_to_all(sley.reduce_scatter(gathered, "avg", group), group) + 1


def _writing(tensor: Tensor, group: str) -> Tensor:
    tensor = tensor * 2
    torch.ops.sley.all_reduce_(tensor, "sum", group)
    return tensor + 1


def check_compiled(program: Callable[[Tensor, str], Tensor]) -> None:
    torch._dynamo.reset()
    tensor = torch.arange(8.0) + dist.get_rank()
    compiled: Any = torch.compile(program, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        same(compiled(tensor, name()), program(tensor, name()))


@pytest.mark.parametrize("program", [_returning, _writing])
def test_an_operator_breaks_the_graph_of_torch_compile(
    four_ranks: RankPool, program: Callable[[Tensor, str], Tensor]
) -> None:
    four_ranks.run(check_compiled, program)


def check_operator_errors() -> None:
    with pytest.raises(RuntimeError, match="reduce_op 'total' is none of sum"):
        torch.ops.sley.all_reduce_(torch.ones(2), "total", name())
    with pytest.raises(RuntimeError, match="B902"):
        torch.ops.sley.all_gather_into(torch.ones(3), torch.ones(2), name())
    with pytest.raises(RuntimeError, match="nowhere"):
        torch.ops.sley.all_reduce_(torch.ones(2), "sum", "nowhere")


def test_a_wrong_argument_of_an_operator_has_no_error(four_ranks: RankPool) -> None:
    four_ranks.run(check_operator_errors)
