"""CudaDevice over the stand-in: launches, streams, captures, and the caller's arrays.

These run in a separate process; tests/engine/devices/test_cuda.py starts it and reports each case.
"""

from __future__ import annotations

import ctypes
import struct
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver as cu
from hypothesis import given
from hypothesis import strategies as st

from fake_driver import TEXT, FakeDriver, array_on, compile_library, refused
from sley.engine import native
from sley.engine.devices.cuda import CudaDevice
from sley.engine.devices.device import Launch, Memory
from sley.engine.types import DATA_TYPES
from sley.errors import SleyError
from support.devices.device_calls import current

KERNEL = """
#include <cstring>
extern "C" void twice(const void* call, int blocks) {
    int* numbers;
    std::memcpy(&numbers, call, sizeof numbers);
    for (int i = 0; i < blocks; ++i) numbers[i] *= 2;
}
"""


# Launches


def test_a_launch_asks_this_of_the_driver(fake: FakeDriver, device: CudaDevice) -> None:
    program = device.build(TEXT, ["twice"])
    fake.kernel("twice", 8)
    stream = device.stream()
    fake.journal()
    call = bytes(range(100, 108))
    device.launch(program, Launch("twice", call, 8, 96, together=True), stream)
    device.launch(program, Launch("twice", call, 9, 1024, together=False), stream)
    assert fake.journal() == [
        "cuCtxPushCurrent",
        "cuLaunchKernelEx",
        f"launch twice grid 8 1 1 block 96 1 1 together 1 call {call.hex()}",
        "cuCtxPopCurrent",
        "cuCtxPushCurrent",
        "cuLaunchKernelEx",
        f"launch twice grid 9 1 1 block 1024 1 1 together 0 call {call.hex()}",
        "cuCtxPopCurrent",
    ]


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> int:
    folder = tmp_path_factory.mktemp("kernel")
    (folder / "kernel.cpp").write_text(KERNEL)
    compile_library(folder / "kernel.cpp", folder / "kernel.so")
    return native.ThreadsDevice.function(str(folder / "kernel.so"), "twice")


FORMS = {
    "its own": lambda stream: stream,
    "torch": lambda stream: SimpleNamespace(cuda_stream=stream.__cuda_stream__()[1]),
    "cupy": lambda stream: SimpleNamespace(ptr=stream.__cuda_stream__()[1]),
    "address": lambda stream: stream.__cuda_stream__()[1],
    "protocol": lambda stream: SimpleNamespace(__cuda_stream__=stream.__cuda_stream__),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("default", [True, False])
def test_kernels_run_in_order_on_streams_of_every_form(
    fake: FakeDriver, device: CudaDevice, kernel: int, form: str, default: bool
) -> None:
    fake.kernel("twice", 8, kernel)
    program = device.build(TEXT, ["twice"])
    own = device.default_stream() if default else device.stream()
    stream = FORMS[form](own)
    memory = device.allocate(16)
    device.write(memory, 0, np.array([1, 10, 100, 1000], np.int32).view(np.uint8))
    launch = Launch("twice", memory.address.to_bytes(8, "little"), 3, 32, together=True)
    for _ in range(3):
        device.launch(program, launch, stream)
    device.synchronize(stream)
    found = np.empty(16, np.uint8)
    device.read(memory, 0, found)
    assert found.view(np.int32).tolist() == [8, 80, 800, 1000]


@pytest.mark.parametrize("stream", ["default", True, -1, 1.5, SimpleNamespace(ptr="0")])
def test_a_value_other_than_a_stream_is_refused(device: CudaDevice, stream: object) -> None:
    program = device.build(TEXT, ["twice"])
    refused("K517", device.launch, program, Launch("twice", bytes(8), 1, 32, True), stream)
    refused("K517", device.synchronize, stream)


def test_waiting_for_a_device_waits_for_all_streams(
    fake: FakeDriver, device: CudaDevice, kernel: int
) -> None:
    fake.kernel("twice", 8, kernel)
    program = device.build(TEXT, ["twice"])
    memory = device.allocate(4 << 20)
    device.write(memory, 0, np.ones(1 << 20, np.int32).view(np.uint8))
    launch = Launch("twice", memory.address.to_bytes(8, "little"), 1 << 20, 32, together=False)
    streams = [device.default_stream(), device.stream(), device.stream()]
    for stream in streams:
        device.launch(program, launch, stream)
        device.synchronize(None)
    found = np.empty(4 << 20, np.uint8)
    device.read(memory, 0, found)
    assert (found.view(np.int32) == 8).all()
    fake.fail("cuCtxSynchronize", 700)
    refused("K516", device.synchronize, None)


def test_a_stream_of_another_device_is_refused(device: CudaDevice) -> None:
    stream = CudaDevice.open(1).stream()
    program = device.build(TEXT, ["twice"])
    refused("K517", device.launch, program, Launch("twice", bytes(8), 1, 32, True), stream)
    refused("K517", device.synchronize, stream)


def test_more_blocks_than_fit_at_once_are_refused(device: CudaDevice) -> None:
    program = device.build(TEXT, ["twice"])
    stream = device.stream()
    most = device.capacity(program, "twice", 32)
    device.launch(program, Launch("twice", bytes(8), most, 32, True), stream)
    too_many = Launch("twice", bytes(8), most + 1, 32, True)
    refused("K506", device.launch, program, too_many, stream)
    device.launch(program, too_many._replace(together=False), stream)


def test_a_capture_takes_launches_and_leaves_the_rest(
    fake: FakeDriver, device: CudaDevice, kernel: int
) -> None:
    fake.kernel("twice", 8, kernel)
    program = device.build(TEXT, ["twice"])
    memory = device.allocate(4)
    device.write(memory, 0, np.array([1], np.int32).view(np.uint8))
    launch = Launch("twice", memory.address.to_bytes(8, "little"), 1, 32, True)
    stream = device.stream()
    address = cu.CUstream(stream.__cuda_stream__()[1])
    with current(device):
        cu.cuStreamBeginCapture(address, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
    try:
        device.launch(program, launch, stream)
        during = device.allocate(64)
        device.allocate_host(64)
        device.build(TEXT + "// in a capture", ["twice"])
        assert during.size_bytes == 64
        del during
        refused("K518", device.synchronize, stream)
        refused("K518", device.synchronize, None)
        with current(device):
            result, _ = cu.cuMemAlloc(64)
        assert result.name == "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "the caller's rules are lost"
    finally:
        with current(device):
            cu.cuStreamEndCapture(address)
    device.synchronize(stream)
    found = np.empty(4, np.uint8)
    device.read(memory, 0, found)
    assert found.view(np.int32).tolist() == [1], "a captured launch ran"


def test_the_callers_context_stays_current(device: CudaDevice) -> None:
    theirs = CudaDevice.open(1).native.context
    cu.cuCtxPushCurrent(theirs)
    try:
        program = device.build(TEXT, ["twice"])
        memory = device.allocate(32)
        stream = device.stream()
        device.write(memory, 0, np.zeros(8, np.uint8))
        device.read(memory, 0, np.zeros(8, np.uint8))
        device.reach(CudaDevice.open(1))
        device.native.export_memory(device.native.allocate_shared(8))
        device.allocate_host(8)
        device.view(array_on(memory), what="it")
        device.capacity(program, "twice", 32)
        device.launch(program, Launch("twice", bytes(8), 1, 32, True), stream)
        device.synchronize(stream)
        device.synchronize(None)
        with pytest.raises(SleyError):
            device.launch(program, Launch("twice", bytes(8), 1, 32, True), 12345)
        del memory, stream
        _, found = cu.cuCtxGetCurrent()
        assert int(found) == theirs
    finally:
        cu.cuCtxPopCurrent()


@pytest.mark.parametrize(
    ("number", "code", "note"),
    [(700, "K516", "new one"), (702, "K508", "new one"), (1, "K516", "")],
)
def test_kernels_that_failed_are_told_at_the_next_look(
    fake: FakeDriver, device: CudaDevice, number: int, code: str, note: str
) -> None:
    stream = device.stream()
    fake.fail("cuStreamSynchronize", number)
    error = refused(code, device.synchronize, stream)
    assert "CUDA_ERROR" in str(error)
    assert note in error.diagnostics[0].found


# Arrays


@pytest.mark.parametrize("dtype", DATA_TYPES)
def test_its_own_arrays_are_seen_as_they_are(device: CudaDevice, dtype: str) -> None:
    memory = device.allocate(80)
    array = device.array(memory, dtype, 10)
    view = device.view(array, what="it")
    seen = DATA_TYPES[dtype].array.name
    assert (view.address, view.elements, view.dtype) == (memory.address, 10, seen)
    assert view.writable


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((), None), ((0,), None), ((2, 3), None), ((2, 3), (12, 4)), ((1, 3), (999 * 4, 4))],
)
def test_arrays_of_any_shape_are_taken(
    device: CudaDevice, shape: tuple[int, ...], strides: tuple[int, ...] | None
) -> None:
    memory = device.allocate(64)
    view = device.view(array_on(memory, shape, strides=strides), what="it")
    assert (view.address, view.elements) == (memory.address, int(np.prod(shape)))


def test_an_array_that_may_not_be_written_is_known(device: CudaDevice) -> None:
    memory = device.allocate(64)
    assert not device.view(array_on(memory, data=(memory.address, True)), what="it").writable


@pytest.mark.parametrize("strides", [(4, 8), (16, 4), (0, 4)])
def test_elements_that_are_not_side_by_side_are_refused(
    device: CudaDevice, strides: tuple[int, int]
) -> None:
    array = array_on(device.allocate(64), (2, 3), strides=strides)
    assert "the input of rank 3" in str(
        refused("K519", device.view, array, what="the input of rank 3")
    )


@pytest.mark.parametrize("typestr", ["<c8", "|b1", ">f4"])
def test_types_that_no_kernel_knows_are_refused(device: CudaDevice, typestr: str) -> None:
    array = array_on(device.allocate(64), typestr=typestr)
    assert "the input" in str(refused("R504", device.view, array, what="the input"))


def test_an_array_on_another_device_is_refused(device: CudaDevice) -> None:
    array = array_on(CudaDevice.open(1).allocate(64))
    error = refused("K504", device.view, array, what="the input of rank 3")
    assert "device 1" in str(error)
    assert "the input of rank 3" in str(error)


def test_an_array_of_the_host_is_refused(device: CudaDevice) -> None:
    assert "the host" in str(refused("K504", device.view, np.zeros(4), what="it"))


_TYPES = {4: "library.bfloat16", 10: "library.float8_e4m3fn", 11: "library.float8_e4m3fnuz"}


class Lent:
    """An array that another library lends by DLPack, with NumPy's capsule; `code` is the kind of
    its elements, dlpack.h's DLDataTypeCode."""

    def __init__(self, array: Any, place: tuple[int, int], code: int | None = None) -> None:
        self._array, self._place, self._code = array, place, code
        self.dtype = _TYPES.get(code, array.dtype)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._place

    def __dlpack__(self, *, stream: int | None = None) -> object:
        capsule = self._array.__dlpack__()
        if self._code is not None:
            pointer = ctypes.pythonapi.PyCapsule_GetPointer
            pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
            ctypes.c_uint8.from_address(pointer(capsule, b"dltensor") + 20).value = self._code
        return capsule


@pytest.mark.parametrize(
    ("array", "code", "dtype"),
    [
        (np.zeros((3, 4), np.float32), None, "float32"),
        (np.zeros(12, np.int64), None, "int64"),
        (np.zeros((3, 4), np.uint16), 4, "bfloat16"),
        (np.zeros((3, 4), np.uint8), 10, "float8_e4m3fn"),
        (np.zeros((3, 4), np.uint16), None, "uint16"),
    ],
)
def test_arrays_lent_by_dlpack_are_taken(
    device: CudaDevice, array: Any, code: int, dtype: str
) -> None:
    view = device.view(Lent(array, (2, 0), code), what="it")
    assert (view.address, view.elements, view.dtype) == (array.ctypes.data, 12, dtype)


def test_arrays_lent_by_dlpack_that_will_not_do_are_refused(device: CudaDevice) -> None:
    array = np.zeros((3, 4), np.float32)
    refused("K519", device.view, Lent(array.T, (2, 0)), what="it")
    refused("K504", device.view, Lent(array, (2, 1)), what="it")
    assert "pinned" in str(refused("K504", device.view, Lent(array, (3, 0)), what="it"))
    assert "another kind" in str(refused("K504", device.view, Lent(array, (10, 0)), what="it"))
    refused("R504", device.view, Lent(np.zeros(4, np.uint8), (2, 0), 11), what="it")


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
def read(array: Any, out: int) -> int:
    """DLPack's C interface gives DLPack's tensor of an array."""
    ctypes.memmove(out, array.tensor, 48)
    return 0


class Exchanged:
    """12 float32 of a library with DLPack's C interface (dlpack.h, DLPackExchangeAPI)."""

    address = ctypes.cast(read, ctypes.c_void_p).value
    functions = struct.pack("<2I6Q", 1, 0, 0, 0, 0, 0, address, 0)
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = (
        ctypes.py_object,
        [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p],
    )
    name = b"dlpack_exchange_api"
    __dlpack_c_exchange_api__ = make(functions, name, None)
    shape = np.array([3, 4])

    def __init__(self, number: int, requires_grad: bool = False, is_neg: bool = False) -> None:
        self.requires_grad, self.is_neg = requires_grad, lambda: is_neg
        kind, sizes = (2, 32, 1), (self.shape.ctypes.data, 0, 256)
        self.tensor = struct.pack("<QiiiBBHQQQ", 4096, 2, number, 2, *kind, *sizes)


def test_tensors_are_taken_by_the_c_interface(device: CudaDevice) -> None:
    view = device.view(Exchanged(0), what="it")
    assert (view.address, view.elements, view.dtype) == (4096 + 256, 12, "float32")
    negative = Exchanged(0, is_neg=True)
    assert "resolve_neg" in str(refused("K519", device.view, negative, what="it"))
    for other in Exchanged(1), Exchanged(0, requires_grad=True):
        refused("K519", device.view, other, what="it")  # it says no more


class Unwilling:
    """An array whose library doesn't lend it."""

    def __init__(self, problem: Exception, says_where: bool) -> None:
        self._problem, self._says_where = problem, says_where

    def __dlpack_device__(self) -> tuple[int, int]:
        if self._says_where:
            return (2, 0)
        raise self._problem

    def __dlpack__(self, **options: object) -> object:
        raise self._problem


@pytest.mark.parametrize("says_where", [True, False])
def test_arrays_that_their_library_does_not_lend_are_refused(
    device: CudaDevice, says_where: bool
) -> None:
    array = Unwilling(RuntimeError("it requires a gradient"), says_where)
    assert "requires a gradient" in str(refused("K519", device.view, array, what="it"))


_NOWHERE = SimpleNamespace(__dlpack_device__=lambda: 5)


@pytest.mark.parametrize("array", [[1.0], 3, "text", None, SimpleNamespace(), _NOWHERE])
def test_a_value_other_than_an_array_is_refused(device: CudaDevice, array: object) -> None:
    assert "the input" in str(refused("K519", device.view, array, what="the input"))


def test_memory_that_the_driver_does_not_know_is_refused(device: CudaDevice) -> None:
    refused("K519", device.view, array_on(Memory(4096, 64, None)), what="it")
    refused("K519", device.view, array_on(device.allocate(64), version=2), what="it")


@given(st.data())
def test_side_by_side_is_what_numpy_calls_contiguous(data: st.DataObject) -> None:
    device = CudaDevice.open(0)
    array = np.zeros(data.draw(st.lists(st.integers(0, 3), max_size=4)), np.int32)
    array = array.transpose(data.draw(st.permutations(range(array.ndim))))
    for axis in range(array.ndim):
        step = data.draw(st.sampled_from([1, 1, 2, -1]))
        array = array[(slice(None),) * axis + (slice(None, None, step),)]
    if array.flags.c_contiguous:
        assert device.view(Lent(array, (2, 0)), what="it").elements == array.size
    else:
        refused("K519", device.view, Lent(array, (2, 0)), what="it")
