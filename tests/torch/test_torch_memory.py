"""Memory of tensors: rows of elements, with copies only where they are needed."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

import sley.torch
from sley.ir.words import ReduceOp
from sley.torch.elements import element_of, reduction_of
from sley.torch.memory import NOWHERE, Memory, copy_of, to_read, to_update, to_write


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """A view of some memory: contiguous, with gaps, transposed, or of the middle."""
    shape = draw(st.lists(st.integers(0, 4), max_size=3).map(tuple))
    base = torch.randint(-99, 99, (*shape, 2), dtype=torch.int32)
    view = draw(st.sampled_from(["contiguous", "gaps", "transposed", "part"]))
    if view == "contiguous":
        return base[..., 0].contiguous()
    if view == "gaps":
        return base[..., 1]
    if view == "transposed":
        return base.permute(*reversed(range(base.dim())))
    return base.flatten()[base.numel() // 3 :]


def in_order(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([part.flatten() for part in parts])


@given(st.lists(tensors(), min_size=1, max_size=4))
def test_rows_to_read_hold_the_elements_in_order(parts: list[torch.Tensor]) -> None:
    expected = in_order(parts).numpy().tobytes()
    for memory in (to_read(parts), copy_of(parts)):
        assert memory.size_bytes == len(expected)
        assert ctypes.string_at(memory.address, memory.size_bytes) == expected
        assert memory.unpack is None


@given(st.lists(tensors(), min_size=1, max_size=4))
def test_what_is_written_to_a_row_comes_to_the_tensors(parts: list[torch.Tensor]) -> None:
    memory = to_write(parts)
    new = torch.arange(memory.size_bytes // 4, dtype=torch.int32)
    ctypes.memmove(memory.address, new.data_ptr(), memory.size_bytes)
    if memory.unpack is not None:
        memory.unpack()
    assert torch.equal(in_order(parts), new)


@given(tensors())
def test_a_row_to_update_is_read_and_written(tensor: torch.Tensor) -> None:
    before = tensor.flatten().clone()
    memory = to_update(tensor)
    old = ctypes.string_at(memory.address, memory.size_bytes)
    assert old == before.numpy().tobytes()
    new = before + 1
    ctypes.memmove(memory.address, new.data_ptr(), memory.size_bytes)
    if memory.unpack is not None:
        memory.unpack()
    assert torch.equal(tensor.flatten(), new)


def test_memory_that_serves_as_it_is_is_not_copied() -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    for memory in (to_read([whole]), to_write([whole]), to_update(whole), to_read(list(whole))):
        assert memory.address == whole.data_ptr()
        assert memory.size_bytes == whole.nbytes
        assert memory.unpack is None
    for others in ([whole[1], whole[0]], [whole[0], whole[2]], [whole[:, 0]]):
        assert to_read(others).address != others[0].data_ptr()


def test_tensors_that_want_gradients_are_written() -> None:
    weight = torch.ones(3, 2, requires_grad=True)
    memory = to_update(weight.T)
    ctypes.memset(memory.address, 0, memory.size_bytes)
    assert memory.unpack is not None
    memory.unpack()
    assert not weight.any()
    assert weight.grad_fn is None


def test_overlaps_are_bytes_in_common() -> None:
    one, next_to_it, across = Memory(100, 10, None), Memory(110, 5, None), Memory(109, 2, None)
    assert not one.overlaps(next_to_it)
    assert one.overlaps(across)
    assert across.overlaps(one)
    assert not NOWHERE.overlaps(one)
    assert not one.overlaps(NOWHERE)


def test_every_type_moves() -> None:
    for dtype in {value for value in vars(torch).values() if isinstance(value, torch.dtype)}:
        if dtype.itemsize <= 16 and not str(dtype).startswith(("torch.q", "torch.bits")):
            element = element_of(torch.empty(0, dtype=dtype))
            assert element is not None, dtype
            assert element.parts * element.dtype.size_bytes == dtype.itemsize


def test_tensors_without_plain_memory_do_not_move() -> None:
    assert element_of(torch.empty(2, device="meta")) is None
    assert element_of(torch.sparse_coo_tensor([[0]], [1.0], (2,))) is None
    assert element_of(torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.qint8)) is None


def test_reductions_have_the_engines_type_and_operation() -> None:
    element, op = reduction_of(torch.ones(1), dist.ReduceOp.AVG) or (None, None)
    assert element is not None
    assert (element.dtype.name, element.parts, op) == ("float32", 1, ReduceOp.AVG)
    pair = torch.ones(1, dtype=torch.complex128)
    element, op = reduction_of(pair, dist.ReduceOp.SUM) or (None, None)
    assert element is not None
    assert (element.dtype.name, element.parts, op) == ("float64", 2, ReduceOp.SUM)
    assert reduction_of(torch.ones(1, dtype=torch.complex64), dist.ReduceOp.PRODUCT) is None
    assert reduction_of(torch.ones(1, dtype=torch.bool), dist.ReduceOp.AVG) is None
    assert reduction_of(torch.ones(1), dist.ReduceOp.BXOR) is None
    assert reduction_of(torch.ones(1), dist._make_nccl_premul_sum(2.0)) is None
    assert reduction_of(torch.ones(1, dtype=torch.uint16), dist.ReduceOp.MAX) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
def test_empty_is_memory_of_the_heap(dtype: torch.dtype) -> None:
    tensor = sley.torch.empty(3, 5, dtype=dtype)
    assert tensor.shape == (3, 5)
    assert tensor.dtype == dtype
    assert tensor.is_contiguous()
    assert not tensor.any()
    assert is_shared(tensor.data_ptr())


def is_shared(address: int) -> bool:
    """Whether memory is part of a file that other processes can map."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(word, 16) for word in line.split()[0].split("-"))
        if start <= address < end:
            return "memfd:sley" in line
    return False


def test_empty_takes_what_torch_empty_takes() -> None:
    assert sley.torch.empty((2, 3)).shape == (2, 3)
    assert sley.torch.empty(torch.Size([4])).shape == (4,)
    assert sley.torch.empty().shape == ()
    assert sley.torch.empty(0, 3).shape == (0, 3)
    assert sley.torch.empty(2).dtype == torch.get_default_dtype()


def test_memory_of_the_heap_is_given_back() -> None:
    first = sley.torch.empty(1000)
    address, view = first.data_ptr(), first[10:20]
    del first
    gc.collect()
    second = sley.torch.empty(1000)
    assert second.data_ptr() != address  # the view still holds it
    del view
    gc.collect()
    assert sley.torch.empty(1000).data_ptr() == address
