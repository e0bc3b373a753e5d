"""What a program sees of sley's library with NCCL's interface where there is no NCCL, over the
stand-in for NVIDIA's driver.

    LD_PRELOAD=.../sley/nccl/libnccl.so.2 SLEY_NCCL_LIBRARY=NONE python nccl_alone.py NCCL

Nothing is at NONE, which it makes a link to NCCL in the end.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading
from collections import Counter
from pathlib import Path

from nccl_cases import (
    INVALID_ARGUMENT,
    INVALID_USAGE,
    SUCCESS,
    SUM,
    SYSTEM_ERROR,
    Multimem,
    Pointer,
    Team,
    UniqueId,
    functions,
    last_error,
    library,
)

CUDA_ERROR, FLOAT, HOST_SCALAR, COUNT = 1, 7, 1, 4
OUT_OF_MEMORY = 2
"""The driver's."""

INITIALIZED = {
    "info": struct.pack("QIIf4x", 24, 0x74685283, 23102, 5),
    "properties": struct.pack("QII40x", 56, 0xCAFEBEEF, 22907),
}
VALUES = {"ranks": 1, "ids": 1, "devices": 1, "size": 4096, "count": COUNT, "type": FLOAT} | {
    "residence": HOST_SCALAR
}
NULL = {"config", "ordinals", "stream", "window"}
REFUSED = {"CommGrow", "CommShrink", "DevCommCreate"}
"""sley can't grow a communicator; no rank stays of one that is shrunk to nothing."""

driver = ctypes.CDLL("libcuda.so.1")
driver.fake_used.restype = ctypes.c_longlong
driver.fake_journal.restype = ctypes.c_char_p
driver.fake_set.argtypes = (ctypes.c_char_p, ctypes.c_longlong)
driver.fake_set(b"devices", 2)
driver.fake_set(b"memory_bytes", 1 << 30)


def drive(name: str, *arguments: object) -> None:
    entry = Pointer()
    driver.cuGetProcAddress_v2(name.encode(), ctypes.byref(entry), 12010, ctypes.c_uint64(0), None)
    assert ctypes.CFUNCTYPE(ctypes.c_int)(entry.value or 0)(*arguments) == 0, name


def use(device: int) -> None:
    context = Pointer()
    drive("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    drive("cuCtxPushCurrent", context)


def made() -> Pointer:
    comm = Pointer()
    assert library.ncclCommInitRank(ctypes.byref(comm), 1, new_id(), 0) == SUCCESS, last_error()
    return comm


def new_id() -> UniqueId:
    unique = UniqueId()
    assert library.ncclGetUniqueId(ctypes.byref(unique)) == SUCCESS, last_error()
    return unique


def allocated(size: int) -> Pointer:
    memory = Pointer()
    result = library.ncclMemAlloc(ctypes.byref(memory), ctypes.c_size_t(size))
    assert result == SUCCESS, last_error()
    return memory


def summed(comm: Pointer, memory: Pointer, value: float) -> list[float]:
    """What comes of COUNT elements in place, all of one value."""
    numbers = (ctypes.c_float * COUNT).from_address(memory.value or 0)
    numbers[:] = [value] * COUNT
    size = ctypes.c_size_t(COUNT)
    result = library.ncclAllReduce(memory, memory, size, FLOAT, SUM, comm, None)
    assert result == SUCCESS, last_error()
    drive("cuStreamSynchronize", None)
    return [*numbers]


def every_function() -> None:
    """The table says which functions sley has without NCCL: their calls succeed; others' don't."""
    comm, device, given, op = made(), allocated(4096), Pointer(), ctypes.c_int(SUM)
    for macro, result, name, parameters in functions():
        arguments: list[object] = []
        kept = []
        if name in ("GroupSimulateEnd", "Send"):
            assert library.ncclGroupStart() == SUCCESS
        for kind, parameter in parameters:
            room = ctypes.create_string_buffer(INITIALIZED.get(parameter, b""), 256)
            kept.append(room)
            value: object = Pointer(ctypes.addressof(room))
            if kind == "Handle*":
                value = comm
            elif kind == "UniqueId":
                value = new_id()
            elif parameter == "first":
                ctypes.memmove(room, ctypes.byref(new_id()), 128)
            elif kind == "RedOp":
                value = op if name == "RedOpDestroy" else SUM
            elif kind == "RedOp*":
                value = ctypes.byref(op)
            elif (name, parameter) in (("MemAlloc", "pointer"), ("MemFree", "pointer")):
                value = ctypes.byref(given) if name == "MemAlloc" else given
            elif parameter in ("send", "receive", "buffer"):
                value = Pointer((device.value or 0) + 2048 * (parameter == "receive"))
            elif kind == "Team":
                value = Team()
            elif kind == "MultimemHandle":
                value = Multimem()
            elif not kind.endswith("*"):
                of = ctypes.c_size_t if kind == "size_t" else ctypes.c_int
                value = of(VALUES.get(parameter, 0))
            elif parameter in NULL and not kind.endswith("**"):
                value = None
            arguments.append(value)
        function = getattr(library, f"nccl{name}")
        types = {"Result": ctypes.c_int, "int": ctypes.c_int, "Team": Team}
        function.restype = types.get(result, ctypes.c_char_p if "*" in result else None)
        returned = function(*arguments)
        if name == "Recv":  # of a message to itself
            assert library.ncclGroupEnd() == SUCCESS, last_error()
        if macro == "PASSED" or name in REFUSED:
            assert last_error().startswith("N701: expected NVIDIA's NCCL"), (name, last_error())
            assert f"nccl{name}" in last_error()
            code = INVALID_USAGE if "Handle*" in dict(parameters) else SYSTEM_ERROR
            if result == "Team":
                returned = returned.ranks, returned.rank, returned.stride
            refused = {"Result": code, "int": -1, "Team": (0, 0, 0)}
            assert result == "void" or returned == refused[result], (name, returned)
        elif result == "Result":
            assert returned == SUCCESS, (name, returned, last_error())
        else:
            assert isinstance(returned, bytes), name
        if name in ("CommFinalize", "CommDestroy", "CommAbort", "CommRevoke"):
            comm = made()


def answers() -> None:
    assert last_error() == ""
    comm, number, handle = made(), ctypes.c_int(), Pointer()
    for name, expected in (("GetVersion", 22803), ("CommCount", 1), ("CommUserRank", 0)):
        arguments = (comm, ctypes.byref(number))[name == "GetVersion" :]
        assert getattr(library, f"nccl{name}")(*arguments) == SUCCESS
        assert number.value == expected
    size, out = ctypes.c_size_t(4096), ctypes.byref(handle)
    assert library.ncclCommRegister(comm, Pointer(4096), size, out) == SUCCESS
    assert handle.value
    assert library.ncclCommDeregister(comm, handle) == SUCCESS
    assert library.ncclCommWindowRegister(comm, Pointer(4096), size, out, 1) == SUCCESS
    assert handle.value is None
    assert library.ncclCommWindowDeregister(comm, handle) == SUCCESS
    assert library.ncclCommWindowRegister(comm, None, size, out, 1) == INVALID_ARGUMENT
    assert library.ncclCommWindowDeregister(comm, Pointer(1)) == INVALID_USAGE
    properties = ctypes.create_string_buffer(INITIALIZED["properties"] + b"\1" * 8, 64)
    assert library.ncclCommQueryProperties(comm, properties) == SUCCESS
    known = struct.pack("QIIiiii24x", 56, 0xCAFEBEEF, 22907, 0, 1, 0, -1)
    assert properties.raw == known + b"\1" * 8, "as long as the client's version has it"
    assert library.ncclCommQueryProperties(comm, bytes(56)) == INVALID_USAGE
    for end in ("Destroy", "Abort", "Finalize"):
        assert getattr(library, f"ncclComm{end}")(None) == SUCCESS
    assert library.ncclCommRevoke(None, 0) == SUCCESS
    assert library.ncclCommDestroy(comm) == SUCCESS
    assert library.ncclCommRegister(comm, Pointer(4096), size, out) == INVALID_ARGUMENT
    assert last_error().startswith("N703: expected a communicator for ncclCommRegister")


def memory() -> None:
    comm = made()
    before = driver.fake_used(0)
    one, none, size = allocated(1 << 20), Pointer(1), ctypes.c_size_t(1 << 40)
    assert driver.fake_used(0) >= before + (1 << 20)
    assert summed(comm, one, 3) == [3] * COUNT, "sley's calls take it"
    assert library.ncclMemFree(one) == SUCCESS
    assert driver.fake_used(0) == before
    assert library.ncclMemFree(one) == INVALID_ARGUMENT
    assert last_error().startswith(
        "N705: expected memory of ncclMemAlloc for ncclMemFree, found 0x"
    )
    assert allocated(0).value is None
    assert library.ncclMemFree(None) == SUCCESS
    assert library.ncclMemAlloc(ctypes.byref(none), size) == CUDA_ERROR
    assert none.value is None
    assert last_error().startswith("K507: ")


def estimates() -> None:
    comm, at = made(), allocated(4096)
    data = (ctypes.c_float * COUNT).from_address((at.value or 0) + 1024)
    info = ctypes.create_string_buffer(INITIALIZED["info"])
    simulate = library.ncclGroupSimulateEnd

    def call() -> None:
        assert library.ncclGroupStart() == SUCCESS
        out, size = Pointer(ctypes.addressof(data)), ctypes.c_size_t(COUNT)
        assert library.ncclAllReduce(at, out, size, FLOAT, SUM, comm, None) == SUCCESS
        # Started, it would be refused: nothing receives it.
        assert library.ncclSend(at, size, FLOAT, 0, comm, None) == SUCCESS

    assert summed(comm, at, 2) == [2] * COUNT
    call()
    assert simulate(info) == SUCCESS
    assert struct.unpack_from("f", info, 16) == (-1,), "NCCL's word for no estimate"
    call()
    assert simulate(bytes(24)) == INVALID_ARGUMENT
    call()
    assert simulate(None) == SUCCESS
    assert summed(comm, at, 2) == [2] * COUNT
    assert [*data] == [0] * COUNT, "nothing is launched"
    assert simulate(info) == library.ncclGroupEnd() == INVALID_USAGE


def a_failed_launch_ends_all_ranks() -> None:
    """At once, not after the time for which ranks wait for late ones."""
    comms, state = (Pointer * 2)(), ctypes.c_int(SUCCESS)
    assert library.ncclCommInitAll(comms, 2, None) == SUCCESS, last_error()
    memory = []
    for rank in range(2):  # before the calls: to allocate waits for kernels
        use(rank)
        memory.append(allocated(4096))
    expected = {1: SUCCESS, 0: CUDA_ERROR}
    for rank, result in expected.items():
        use(rank)
        at, size = memory[rank], ctypes.c_size_t(COUNT)
        driver.fake_fail(b"cuLaunchKernelEx", OUT_OF_MEMORY if result else 0)
        comm = Pointer(comms[rank])
        assert library.ncclAllReduce(at, at, size, FLOAT, SUM, comm, None) == result
    driver.fake_fail(b"cuLaunchKernelEx", 0)
    assert last_error().startswith("K507: expected cuLaunchKernelEx to succeed")
    while state.value == SUCCESS:
        assert library.ncclCommGetAsyncError(Pointer(comms[1]), ctypes.byref(state)) == SUCCESS
    assert "N608: " in last_error()
    assert "rank 0 gave up" in last_error()
    for comm in comms:
        assert library.ncclCommDestroy(Pointer(comm)) == SUCCESS


def reduced(comm: object, at: Pointer, stream: Pointer | None) -> None:
    """A sum of COUNT elements in place."""
    size = ctypes.c_size_t(COUNT)
    result = library.ncclAllReduce(at, at, size, FLOAT, SUM, Pointer(comm), stream)
    assert result == SUCCESS, last_error()


def exchanged(comm: object, peer: int, at: Pointer, stream: Pointer, other: Pointer) -> None:
    """COUNT elements that are sent, and COUNT that are received behind them, on another stream."""
    size, behind = ctypes.c_size_t(COUNT), Pointer((at.value or 0) + 4 * COUNT)
    assert library.ncclGroupStart() == SUCCESS
    for function, data, on in ((library.ncclSend, at, stream), (library.ncclRecv, behind, other)):
        assert function(data, size, FLOAT, peer, Pointer(comm), on) == SUCCESS, last_error()
    assert library.ncclGroupEnd() == SUCCESS, last_error()


def follow(stream: Pointer, other: Pointer) -> None:
    """Lets a stream wait for what is on another one, within a capture."""
    event = Pointer()
    drive("cuEventCreate", ctypes.byref(event), 0)
    drive("cuEventRecord", event, other)
    drive("cuStreamWaitEvent", stream, event, 0)


def graphs() -> None:
    """Graphs that run after the end of their communicators. What calls ask the driver."""
    comms, streams, ready = (Pointer * 2)(), [Pointer(), Pointer()], [Pointer(), Pointer()]
    assert library.ncclCommInitAll(comms, 2, None) == SUCCESS, last_error()
    memory = []
    for rank, stream in enumerate(streams):
        use(rank)
        drive("cuStreamCreate", ctypes.byref(stream), 1)
        memory.append(allocated(4096))
    every = [*enumerate(zip(comms, memory, streams, strict=True))]

    def asked(number: int) -> Counter[str]:
        made = driver.fake_journal().decode().split("\n")
        counts = Counter(one for one in made if one.startswith("cu") and "ProcAddress" not in one)
        assert all(count % number == 0 for count in counts.values()), counts
        return Counter({name: count // number for name, count in counts.items()})

    def synchronize() -> None:
        for rank, stream in enumerate(streams):
            use(rank)
            drive("cuStreamSynchronize", stream)

    # First a stream isn't known, and calls ask whether earlier ones are over, until what ended
    # before is freed. Ends: after `synchronize` they are, and the next call frees it all.
    is_settled = False
    while not is_settled:
        synchronize()
        asked(1)
        for _, one in every:
            reduced(*one)
        for rank, (comm, at, stream) in every:
            exchanged(comm, 1 - rank, at, stream, stream)
        is_settled = not asked(1)["cuEventQuery"]
    synchronize()
    asked(1)
    for _, one in every:
        reduced(*one)
    alone = asked(2)
    for rank, (comm, at, stream) in every:
        exchanged(comm, 1 - rank, at, stream, stream)
    messages = asked(2)
    synchronize()
    for rank, (comm, at, stream) in every:
        use(rank)
        asked(1)
        drive("cuStreamBeginCapture", stream, 0)
        reduced(comm, at, stream)
        captured = asked(1)
        branch, graph, where = Pointer(), Pointer(), at.value or 0
        drive("cuStreamCreate", ctypes.byref(branch), 1)
        follow(branch, stream)
        exchanged(comm, 1 - rank, at, stream, branch)
        # On the branch what was received is there.
        to, size = Pointer(where + 8 * COUNT), ctypes.c_size_t(4 * COUNT)
        drive("cuMemcpyDtoDAsync", to, Pointer(where + 4 * COUNT), size, branch)
        follow(stream, branch)
        drive("cuStreamEndCapture", stream, ctypes.byref(graph))
        flags = ctypes.c_ulonglong(0)
        drive("cuGraphInstantiateWithFlags", ctypes.byref(ready[rank]), graph, flags)
    asked(1)
    assert library.ncclGroupStart() == SUCCESS
    for _, one in every:
        reduced(*one)
    assert library.ncclGroupEnd() == SUCCESS
    grouped = asked(2)
    synchronize()
    names = ("PointerGetAttributes", "StreamGetCaptureInfo", "LaunchKernelEx")
    least = Counter({f"cu{one}": 1 for one in (*names, "EventRecordWithFlags")})
    least += Counter({"cuCtxPushCurrent": 2, "cuCtxPopCurrent": 2})
    assert alone == least + Counter(["cuStreamGetId"])
    more = ("cuPointerGetAttributes", "cuCtxPushCurrent", "cuCtxPopCurrent")
    assert messages == alone + Counter(more), "of a second buffer"
    # A call waits for what graphs may run.
    assert grouped == least + Counter(["cuStreamGetId", "cuStreamWaitEvent"])
    captured -= Counter(["cuStreamBeginCapture"])
    # An event more, for other streams of the capture.
    assert captured == least + Counter(["cuStreamWaitEvent", "cuEventRecordWithFlags"])
    for comm in comms:
        assert library.ncclCommDestroy(Pointer(comm)) == SUCCESS
    data = [(ctypes.c_float * (3 * COUNT)).from_address(at.value or 0) for at in memory]
    for part in data:
        part[:] = [1] * COUNT + [0] * (2 * COUNT)
    for _ in range(3):
        for rank, graph in enumerate(ready):
            use(rank)
            drive("cuGraphLaunch", graph, streams[rank])
    synchronize()
    assert [[*part] for part in data] == [[8] * (3 * COUNT)] * 2


def calls_look_for_no_nccl() -> None:
    comm, number, at = made(), ctypes.c_int(), allocated(4096)
    nccl = Path(sys.argv[1])
    Path(os.environ["SLEY_NCCL_LIBRARY"]).symlink_to(nccl)
    assert summed(comm, at, 1) == [1] * COUNT
    assert library.ncclCommCount(comm, ctypes.byref(number)) == SUCCESS
    if "SLEY_NCCL" in os.environ:  # nor does any other
        assert library.ncclGroupStart() == library.ncclGroupEnd() == SUCCESS
        assert library.ncclGetErrorString(SUCCESS) == b"no error"
    assert str(nccl.resolve()) not in Path("/proc/self/maps").read_text()


def families() -> None:
    """Communicators of several ids, splits and shrunk ones."""
    ids = (UniqueId * 2)(new_id(), new_id())
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        use(rank)
        every, half, rest = (Pointer() for _ in range(3))
        at = allocated(4096)

        def check(result: int, comm: Pointer, expected: float) -> None:
            assert result == SUCCESS, last_error()
            assert summed(comm, at, rank + 1) == [expected] * COUNT

        check(
            library.ncclCommInitRankScalable(ctypes.byref(every), 2, rank, 2, ids, None), every, 3
        )
        check(library.ncclCommSplit(every, 0, -rank, ctypes.byref(half), None), half, 3)
        number = ctypes.c_int()
        assert library.ncclCommUserRank(half, ctypes.byref(number)) == SUCCESS
        assert number.value == 1 - rank
        if rank == 0:
            out = (ctypes.c_int * 1)(1)
            result = library.ncclCommShrink(every, out, 1, ctypes.byref(rest), None, 0)
            check(result, rest, 1)
            assert library.ncclCommDestroy(rest) == SUCCESS
        assert library.ncclCommFinalize(every) == SUCCESS
        for comm in (half, every):
            assert library.ncclCommDestroy(comm) == SUCCESS

    def guarded(rank: int) -> None:
        try:
            run(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


if __name__ == "__main__":
    answers()
    every_function()
    use(0)  # as until here, where no context was current
    memory()
    estimates()
    families()
    a_failed_launch_ends_all_ranks()
    graphs()
    calls_look_for_no_nccl()  # from then on there is one
