"""Other forms of collectives: coalesced, of objects, functional, with plain values for options."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    ReduceScatterOptions,
)

from sley.torch import CollectiveError
from sley.torch.forms import COALESCED, FORMS, Form
from support.processes.rank_pool import RankPool
from support.processes.rank_values import everybody, own, same


def check_coalesced(sizes: list[int]) -> None:
    ranks, rank = dist.get_world_size(), dist.get_rank()
    for async_op in (False, True):
        tensors = [torch.full((size,), rank + 1.0) for size in sizes]
        with dist.distributed_c10d._coalescing_manager(async_ops=async_op) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        if async_op:
            manager.wait()
        for tensor in tensors:
            same(tensor, torch.full(tensor.shape, ranks * (ranks + 1) / 2))

        inputs = [torch.full((size,), rank) for size in sizes]
        outputs = [torch.empty(ranks * size, dtype=torch.int64) for size in sizes]
        with dist.distributed_c10d._coalescing_manager(async_ops=async_op) as manager:
            for output, tensor in zip(outputs, inputs, strict=True):
                dist.all_gather_into_tensor(output, tensor)
        if async_op:
            manager.wait()
        for output, size in zip(outputs, sizes, strict=True):
            same(output, torch.arange(ranks).repeat_interleave(size))

        inputs = [torch.arange(ranks).repeat_interleave(size) for size in sizes]
        outputs = [torch.empty(size, dtype=torch.int64) for size in sizes]
        with dist.distributed_c10d._coalescing_manager(async_ops=async_op) as manager:
            for output, tensor in zip(outputs, inputs, strict=True):
                dist.reduce_scatter_tensor(output, tensor)
        if async_op:
            manager.wait()
        for output, size in zip(outputs, sizes, strict=True):
            same(output, torch.full((size,), ranks * rank))

    for async_op in (False, True):
        lists = [[torch.empty(size) for size in sizes] for _ in range(ranks)]
        tensors = [torch.full((size,), float(rank)) for size in sizes]
        future = dist.all_gather_coalesced(lists, tensors, async_op=async_op)
        if async_op:
            future.wait()
        for other, tensors in enumerate(lists):
            for tensor in tensors:
                same(tensor, torch.full(tensor.shape, float(other)))
        tensors = [torch.ones(size) for size in sizes]
        future = dist.all_reduce_coalesced(tensors, async_op=async_op)
        if async_op:
            future.wait()
        for tensor in tensors:
            same(tensor, torch.full(tensor.shape, float(ranks)))
        twice = [tensors[0].fill_(1)] * 2  # the sum of what was there before the call
        future = dist.all_reduce_coalesced(twice, async_op=async_op)
        if async_op:
            future.wait()
        same(twice[0], torch.full(twice[0].shape, float(ranks)))


@pytest.mark.parametrize("sizes", [[3, 0, 8], [5, 0, 40_000]], ids=["packed", "one by one"])
def test_coalesced_collectives_are_right(four_ranks: RankPool, sizes: list[int]) -> None:
    four_ranks.run(check_coalesced, sizes)


def all_asynchronous() -> tuple[Any, Any, Any]:
    """Options of asynchronous calls."""
    kinds = (AllreduceCoalescedOptions, AllgatherOptions, ReduceScatterOptions)
    reduced, gathered, scattered = (kind() for kind in kinds)
    for options in (reduced, gathered, scattered):
        options.asyncOp = True
    return reduced, gathered, scattered


def check_shapes_of_coalesced() -> None:
    """Tensors of several dimensions, and not contiguous."""
    ranks, group = dist.get_world_size(), dist.group.WORLD
    reduced, gathered, scattered = all_asynchronous()
    shapes = [(3, 2), (ranks, 5), ()]
    tensors = [own(shape, torch.float32, seed).T for seed, shape in enumerate(shapes)]
    totals = [sum(everybody(s, torch.float32, seed)).T for seed, s in enumerate(shapes)]
    outputs = [torch.empty(ranks, *tensor.shape) for tensor in tensors]
    outputs[1] = torch.empty(ranks, ranks, 5).transpose(1, 2)
    group.all_gather_single_coalesced(outputs, tensors, gathered).wait()
    for seed, shape in enumerate(shapes):
        given = everybody(shape, torch.float32, seed)
        same(outputs[seed], torch.stack([tensor.T for tensor in given]))
    parts = [torch.empty_like(tensor) for tensor in tensors]
    group.reduce_scatter_single_coalesced(parts, outputs, scattered).wait()
    for part, output in zip(parts, outputs, strict=True):
        same(part, ranks * output[dist.get_rank()])
    group.allreduce_coalesced(tensors, reduced).wait()
    for tensor, total in zip(tensors, totals, strict=True):
        same(tensor, total)


def test_coalesced_tensors_may_have_any_shape(four_ranks: RankPool) -> None:
    four_ranks.run(check_shapes_of_coalesced)


def check_number_of_calls() -> None:
    group = dist.group.WORLD
    small, large = torch.ones(100), torch.ones(100_000)
    for tensors, calls in (
        ([small, small.clone()], 1),
        ([small, large], 2),
        ([small, small.double()], 2),
        ([small], 1),
    ):
        before = group._get_sequence_number_for_group()
        options = all_asynchronous()[0]
        group.allreduce_coalesced(tensors, options).wait()
        assert group._get_sequence_number_for_group() - before == calls
        options.asyncOp = False
        group.allreduce_coalesced(tensors, options).wait()
        assert group._get_sequence_number_for_group() - before == calls + len(tensors)


def test_small_tensors_of_one_type_are_reduced_in_one_asynchronous_call(
    four_ranks: RankPool,
) -> None:
    four_ranks.run(check_number_of_calls)


def check_unfit_coalesced() -> None:
    """Refused before anything is sent, so the group stays usable."""
    ranks, group = dist.get_world_size(), dist.group.WORLD
    reduced, gathered, scattered = all_asynchronous()
    two, whole = [torch.ones(3), torch.ones(4)], [torch.ones(3 * ranks), torch.ones(3 * ranks)]
    for call in (
        lambda: group.all_gather_single_coalesced(whole, two, gathered),
        lambda: group.reduce_scatter_single_coalesced(two, whole, scattered),
        lambda: group.allgather_coalesced([two] * (ranks - 1), two, gathered),
        lambda: group.allgather_coalesced([two[::-1]] * ranks, two, gathered),
        lambda: group.allreduce_coalesced([torch.ones(1).expand(4), torch.ones(4)], reduced),
    ):
        with pytest.raises(CollectiveError, match="B902"):
            call()
    dist.all_reduce(two[0])
    assert (two[0] == ranks).all()


def test_coalesced_tensors_that_do_not_fit_are_refused(four_ranks: RankPool) -> None:
    four_ranks.run(check_unfit_coalesced)


def check_objects() -> None:
    ranks, rank = dist.get_world_size(), dist.get_rank()
    mine = {"rank": rank, "text": "x" * 100 * rank}
    everything = [{"rank": r, "text": "x" * 100 * r} for r in range(ranks)]
    found: list[object] = [None] * ranks
    dist.all_gather_object(found, mine)
    assert found == everything
    found = [None] * ranks
    dist.gather_object(mine, found if rank == 2 else None, 2)
    assert found == (everything if rank == 2 else [None] * ranks)
    given = everything[:2] if rank == 1 else [None, None]
    dist.broadcast_object_list(given, 1)
    assert given == everything[:2]
    taken: list[object] = [None]
    dist.scatter_object_list(taken, everything if rank == 3 else None, 3)
    assert taken == [mine]


def test_object_collectives_are_right(four_ranks: RankPool) -> None:
    four_ranks.run(check_objects)


def check_functional() -> None:
    ranks, rank = dist.get_world_size(), dist.get_rank()
    world = dist.group.WORLD
    tensor = torch.full((ranks, 2), rank + 1.0)
    total = ranks * (ranks + 1) / 2
    same(functional.all_reduce(tensor, "sum", world).wait(), torch.full((ranks, 2), total))
    gathered = functional.all_gather_tensor(tensor, 0, world).wait()
    same(gathered, torch.arange(1.0, ranks + 1).repeat_interleave(ranks)[:, None].repeat(1, 2))
    part = functional.reduce_scatter_tensor(tensor, "avg", 0, world).wait()
    same(part, torch.full((1, 2), total / ranks))
    exchanged = functional.all_to_all_single(tensor, None, None, world).wait()
    same(exchanged, torch.arange(1.0, ranks + 1)[:, None].repeat(1, 2))
    same(functional.broadcast(tensor, 1, world).wait(), torch.full((ranks, 2), 2.0))
    one, two = functional.all_reduce_coalesced([tensor, 2 * tensor], "max", world)
    same(one.wait() + two.wait(), torch.full((ranks, 2), 3.0 * ranks))


def test_functional_collectives_are_right(four_ranks: RankPool) -> None:
    four_ranks.run(check_functional)


def check_options_as_values() -> None:
    """The forms of a group's own methods that take plain values."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    group = dist.group.WORLD
    tensor = torch.full((3,), rank + 1.0)
    group.allreduce(tensor, dist.ReduceOp.MAX).wait()
    same(tensor, torch.full((3,), float(ranks)))
    group.allreduce([tensor]).wait()
    same(tensor, torch.full((3,), float(ranks * ranks)))
    tensor = torch.full((3,), float(rank))
    group.broadcast(tensor, 2).wait()
    same(tensor, torch.full((3,), 2.0))
    group.reduce(tensor, 1, dist.ReduceOp.SUM).wait()
    same(tensor, torch.full((3,), 2.0 * ranks if rank == 1 else 2.0))
    outputs = [torch.empty(1) for _ in range(ranks)]
    group.allgather(outputs, torch.tensor([float(rank)])).wait()
    same(torch.cat(outputs), torch.arange(float(ranks)))
    output = torch.empty(1)
    group.reduce_scatter(output, outputs, dist.ReduceOp.SUM).wait()
    same(output, torch.tensor([float(ranks * rank)]))
    group.gather(outputs if rank == 0 else [], output, 0).wait()
    group.scatter(output, outputs if rank == 0 else [], 0).wait()
    same(output, torch.tensor([float(ranks * rank)]))
    group.barrier().wait()
    assert group._get_sequence_number_for_group() > 0


def test_options_may_be_plain_values(four_ranks: RankPool) -> None:
    four_ranks.run(check_options_as_values)


FORM = {name: form for form in (*FORMS, *COALESCED) for name in form.methods}
TIME = timedelta(seconds=7)


@pytest.mark.parametrize(
    ("method", "given", "named", "fields"),
    [
        ("reduce", (1,), {}, {"rootRank": 1}),
        ("reduce", (1, dist.ReduceOp.MAX, TIME), {}, {"rootRank": 1, "timeout": TIME}),
        ("reduce", (None, None, TIME), {"root": 2}, None),
        ("reduce", (None, TIME), {"root": 2}, {"rootRank": 2, "timeout": TIME}),
        ("allgather", (TIME,), {}, {"timeout": TIME}),
        ("barrier", (TIME,), {}, {"timeout": TIME}),
        ("barrier", (), {"timeout": TIME}, {"timeout": TIME}),
        ("barrier", (), {"opts": None}, {}),
        ("broadcast", (), {"opts": None, "root": 3}, {"rootRank": 3}),
        ("broadcast", (), {"op": dist.ReduceOp.SUM}, None),
        ("allgather", (1,) * 2, {}, None),
        ("allreduce_coalesced", (), {"op": dist.ReduceOp.SUM}, {}),
    ],
)
def test_methods_take_the_words_of_their_options(
    method: str, given: tuple[Any, ...], named: dict[str, Any], fields: dict[str, Any] | None
) -> None:
    form: Form = FORM[method]
    arguments = [object() for _ in form.arguments]
    if fields is None:
        with pytest.raises(TypeError, match=f"^{form.methods[0]} takes"):
            form.bind((*arguments, *given), named)
        return
    tensors, options = form.bind((*arguments, *given), named)
    assert list(tensors) == arguments
    assert {name: getattr(options, name) for name in fields} == fields
    by_name = dict(zip(form.arguments, arguments, strict=True))
    assert list(form.bind((), {**by_name, "opts": options})[0]) == arguments
    assert form.bind(arguments, {"opts": options})[1] is options
    if arguments:
        with pytest.raises(TypeError, match="takes"):
            form.bind((), {"opts": options})


OF_EVERY_RELEASE = [form for form in (*FORMS, *COALESCED) if form.is_ready]


def test_the_table_has_each_name_once() -> None:
    methods = [name for form in (*FORMS, *COALESCED) for name in form.methods]
    assert len(set(methods)) == len(methods)
    assert all(hasattr(dist.ProcessGroup, form.methods[-1]) for form in OF_EVERY_RELEASE)
    names = [name for form in FORMS for name in form.comms]
    assert len(set(names)) == len(names)
