"""What a program sees of sley's library with NCCL's interface, over the stand-in for NCCL.

    LD_PRELOAD=.../sley/nccl/libnccl.so.2 python nccl_cases.py CASE [STAND_IN]

`test_nccl_library.py` runs each case in a process of its own. It imports nothing but ctypes.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

SUCCESS, SYSTEM_ERROR, INVALID_ARGUMENT, INVALID_USAGE, IN_PROGRESS = 0, 2, 4, 5, 7
SUM, NO_COLOR = 0, -1
ROW = re.compile(
    r"^(PASSED|OWN|RUN|ALONE)\(([\w ]+\*?), (\w+), [\d.]+,\s+\((.*?)\),\s+\(.*?\)\)$", re.M | re.S
)

Pointer = ctypes.c_void_p


class UniqueId(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char * 128),)


class Team(ctypes.Structure):
    _fields_ = (("ranks", ctypes.c_int), ("rank", ctypes.c_int), ("stride", ctypes.c_int))


class Multimem(ctypes.Structure):
    _fields_ = (("base", Pointer),)


class Config(ctypes.Structure):
    """The first fields of ncclConfig, as a client of NCCL 2.14 has it."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
    )


def functions() -> list[tuple[str, str, str, list[tuple[str, str]]]]:
    """The rows of functions.def: macro, result, name, and the parameters' types and names."""
    text = (Path(__file__).parents[2] / "native" / "nccl" / "functions.def").read_text()
    rows = []
    for macro, result, name, parameters in ROW.findall(text):
        given = [one.strip().rpartition(" ") for one in parameters.split(",") if one.strip()]
        rows.append((macro, result, name, [(kind, parameter) for kind, _, parameter in given]))
    return rows


library = ctypes.CDLL("libnccl.so.2")
for name in ("GetErrorString", "GetLastError"):
    getattr(library, f"nccl{name}").restype = ctypes.c_char_p


def last_error() -> str:
    return str(library.ncclGetLastError(None).decode())


def stand_in() -> ctypes.CDLL:
    real = ctypes.CDLL(sys.argv[2])
    real.stand_in_journal.restype = ctypes.c_char_p
    return real


def journal() -> list[str]:
    return stand_in().stand_in_journal().decode().splitlines()


def made(rank: int = 0, ranks: int = 2, blocking: int = 1) -> Pointer:
    """A new communicator, which the stand-in calls comm and the rank."""
    comm, config = Pointer(), Config(24, 0xCAFEBEEF, 22809, blocking)
    result = library.ncclCommInitRankConfig(
        ctypes.byref(comm), ranks, UniqueId(b"i"), rank, ctypes.byref(config)
    )
    assert result == (SUCCESS if blocking else IN_PROGRESS)
    return comm


def every_function() -> None:
    """Each function arrives under both names, with its arguments in order."""
    library.ncclGetVersion(ctypes.byref(ctypes.c_int()))
    memory = ctypes.create_string_buffer(b"\1" * 4096)
    address = ctypes.addressof(memory)
    for _, result, name, parameters in functions():
        for prefix in ("nccl", "pnccl"):
            comm = made(rank=3)
            arguments: list[object] = []
            told = []
            journal()
            for at, (kind, _) in enumerate(parameters):
                number = 11 + at
                value: object
                if name == "GetLastError":
                    value, words = comm, "null"  # NCCL doesn't look at it
                elif kind == "Handle*":
                    value, words = comm, "comm3"
                elif kind == "Handle**":
                    value, words = Pointer(address), "out"
                elif kind == "RedOp":
                    value, words = SUM, "op0"
                elif kind == "UniqueId":
                    value, words = UniqueId(b"\x07"), "id70"
                elif kind == "Team":
                    value, words = Team(8, number, 1), f"8:{number}:1"
                elif kind == "MultimemHandle":
                    value, words = Multimem(number), hex(number)
                elif kind.endswith("*"):
                    # A place for each; what looks like a config has not NCCL's magic, so no name.
                    value, words = Pointer(address + 64 * number), str(address + 64 * number)
                elif kind == "size_t":
                    value, words = ctypes.c_size_t(2**40 + number), str(2**40 + number)
                else:
                    assert kind in ("int", "unsigned", "Result"), kind
                    value, words = number, str(number)
                if name == "CommInitAll" and kind == "int":
                    value, words = 2, "2"
                arguments.append(value)
                told.append(words)
            function = getattr(library, prefix + name)
            function.restype = {"Result": ctypes.c_int, "int": ctypes.c_int, "Team": Team}.get(
                result, ctypes.c_char_p if result == "const char*" else None
            )
            returned = function(*arguments)
            arrived = journal()[0]
            assert arrived == " ".join((name, *told)), arrived
            if result == "Result":
                assert returned == SUCCESS, (name, returned)


def handles() -> None:
    comm, count = made(rank=5), ctypes.c_int()
    place = comm.value
    assert library.ncclCommCount(comm, ctypes.byref(count)) == SUCCESS
    assert count.value == 5
    journal()
    # NCCL's own call of ncclBroadcast has NCCL's handle, and goes back as it is.
    library.ncclBcast(None, ctypes.c_size_t(4), 7, 1, comm, None)
    assert journal() == ["Bcast 0 4 7 1 comm5 0", "Broadcast 0 0 4 7 1 comm5 0"]
    foreign = Pointer(ctypes.addressof(count))
    library.ncclCommFinalize(foreign)
    assert journal() == ["CommFinalize foreign"]
    assert library.ncclCommDestroy(comm) == SUCCESS
    for call in (library.ncclCommDestroy, library.ncclCommAbort, library.ncclCommFinalize):
        assert call(comm) == INVALID_ARGUMENT
        assert "N703: expected a communicator for nccl" in last_error()
    assert library.ncclCommAbort(None) == SUCCESS
    assert journal() == ["CommDestroy comm5", "CommAbort null"]
    assert made().value != place, "a handle that is still in use elsewhere isn't given out again"
    stand_in().stand_in_fail(b"CommDestroy", SYSTEM_ERROR)
    comm = made()
    assert library.ncclCommDestroy(comm) == SYSTEM_ERROR
    assert library.ncclCommAbort(comm) == SUCCESS, "what couldn't be destroyed can be aborted"
    stand_in().stand_in_fail(b"CommInitRank", SYSTEM_ERROR)
    failed = Pointer(1)
    assert library.ncclCommInitRank(ctypes.byref(failed), 2, UniqueId(), 0) == SYSTEM_ERROR
    assert failed.value is None


def all_ranks() -> None:
    comms = (Pointer * 3)()
    assert library.ncclCommInitAll(comms, 3, None) == SUCCESS
    counts = [ctypes.c_int() for _ in comms]
    for comm, count in zip(comms, counts, strict=True):
        assert library.ncclCommCount(Pointer(comm), ctypes.byref(count)) == SUCCESS
    assert [count.value for count in counts] == [0, 1, 2]
    stand_in().stand_in_fail(b"CommInitAll", SYSTEM_ERROR)
    assert library.ncclCommInitAll(comms, 3, None) == SYSTEM_ERROR
    assert [*comms] == [None] * 3


def reductions() -> None:
    one, other, op = made(), made(), ctypes.c_int()
    nothing, size = None, ctypes.c_size_t(1)

    def create(kind: int, comm: Pointer = one) -> int:
        assert library.ncclRedOpCreatePreMulSum(ctypes.byref(op), None, kind, 0, comm) == SUCCESS
        return op.value

    def reduce(op: int, comm: Pointer, dtype: int = 7) -> int:
        return library.ncclAllReduce(nothing, nothing, size, dtype, op, comm, None)

    first, second, _ = create(1), create(2), create(1, other)
    journal()
    assert reduce(second, one) == reduce(first, one) == reduce(SUM, one) == SUCCESS
    assert [line.split()[5] for line in journal()] == ["op1002", "op1001", "op0"]
    assert reduce(first, other) == INVALID_ARGUMENT
    assert (
        f"N703: expected a reduction for ncclAllReduce of the communicator, found number {first}"
        in last_error()
    )
    os.environ["SLEY_SAME_BITS"] = "Yes"
    assert reduce(SUM, one) == INVALID_USAGE, "NCCL's order is another one"
    assert "N658: expected sums in one order for ncclAllReduce, found a call for NC" in last_error()
    assert reduce(SUM, one, 2) == SUCCESS, "int32 has the same bits in all orders"
    os.environ["SLEY_SAME_BITS"] = "0"
    assert reduce(SUM, one) == SUCCESS
    journal()
    assert library.ncclRedOpDestroy(first, one) == SUCCESS
    assert journal() == ["RedOpDestroy op1001 comm0"]
    assert reduce(first, one) == library.ncclRedOpDestroy(first, one) == INVALID_ARGUMENT
    assert create(3) == first, "PyTorch makes one for each call: numbers are used again"
    for kind in range(32765):
        create(kind)
    result = library.ncclRedOpCreatePreMulSum(ctypes.byref(op), None, 0, 0, one)
    assert (result, op.value) == (SYSTEM_ERROR, SUM)
    assert journal()[-1] == "RedOpDestroy op1000 comm0"
    assert "32,767 reductions" in last_error()


def groups() -> None:
    parent, child, none = made(), Pointer(), Pointer(1)
    out, no = ctypes.byref(child), ctypes.byref(none)
    library.ncclGroupStart()
    library.ncclGroupStart()
    assert library.ncclCommSplit(parent, 0, 7, out, None) == SUCCESS
    assert library.ncclCommSplit(parent, NO_COLOR, 0, no, None) == SUCCESS
    library.ncclGroupEnd()
    assert library.ncclCommFinalize(child) == SUCCESS  # there is none yet
    assert library.ncclGroupEnd() == SUCCESS
    assert library.ncclCommFinalize(child) == SUCCESS
    assert journal()[-4:] == ["GroupEnd", "CommFinalize null", "GroupEnd", "CommFinalize comm107"]
    assert none.value is None
    library.ncclGroupStart()
    library.ncclCommSplit(parent, 0, 8, out, None)
    stand_in().stand_in_fail(b"GroupEnd", SYSTEM_ERROR)
    assert child.value is not None
    assert library.ncclGroupEnd() == SYSTEM_ERROR
    assert child.value is None, "of a group that fails no communicator is there"
    stand_in().stand_in_fail(b"GroupEnd", SUCCESS)
    assert library.ncclGroupEnd() == INVALID_USAGE
    assert library.ncclCommSplit(parent, 0, 9, out, None) == SUCCESS
    assert library.ncclCommSplit(None, 0, 9, out, None) == INVALID_ARGUMENT
    assert child.value is None


def in_progress() -> None:
    parent, child, state = made(blocking=0), Pointer(), ctypes.c_int(IN_PROGRESS)
    assert library.ncclCommSplit(parent, 0, 7, ctypes.byref(child), None) == SUCCESS
    assert child.value is not None, "it is known before it is made"
    while state.value == IN_PROGRESS:  # the stand-in's thread ends
        assert library.ncclCommGetAsyncError(parent, ctypes.byref(state)) == SUCCESS
    journal()
    library.ncclCommFinalize(child)
    assert journal() == ["CommFinalize comm107"]
    stand_in().stand_in_fail(b"CommAbort", IN_PROGRESS)
    assert library.ncclCommAbort(child) == IN_PROGRESS
    assert library.ncclCommGetAsyncError(child, ctypes.byref(state)) == SUCCESS


def errors() -> None:
    assert library.ncclGetErrorString(INVALID_USAGE) == b"the stand-in's name"
    comm = made()
    library.ncclCommDestroy(comm)
    assert library.ncclCommFinalize(comm) == INVALID_ARGUMENT
    own = last_error()
    assert own.startswith("N703: ")
    library.ncclGroupStart()
    assert last_error() == own, "a success changes nothing"
    stand_in().stand_in_fail(b"Signal", SYSTEM_ERROR)
    assert library.ncclSignal(0, 0, 0, 0, made(), None) == SYSTEM_ERROR
    assert last_error() == "the stand-in's error", "the last one counts"


def lacking() -> None:
    out = Pointer()
    assert library.ncclCommGrow(None, 2, None, 0, ctypes.byref(out), None) == INVALID_USAGE
    assert out.value is None
    assert last_error().startswith(
        "N702: expected ncclCommGrow, which NCCL has from 2.29.2 on, found NCCL 2.29.7 at "
    )


def nowhere() -> None:
    version, found = ctypes.c_int(-1), os.environ["SLEY_NCCL_LIBRARY"]
    assert last_error().startswith("N701: expected NVIDIA's NCCL, to which sley passes ncclGetLast")
    assert library.ncclGetVersion(ctypes.byref(version)) == SYSTEM_ERROR
    assert version.value == -1
    why = sys.argv[2]
    assert f"{found} (SLEY_NCCL_LIBRARY): {why}" in last_error(), last_error()
    assert last_error().startswith(
        "N701: expected NVIDIA's NCCL, to which sley passes ncclGetVersion"
    )
    assert library.ncclGetErrorString(SYSTEM_ERROR) == b"system error"
    comm = Pointer()
    assert library.ncclCommInitRank(ctypes.byref(comm), 1, UniqueId(), 0) == SYSTEM_ERROR
    assert comm.value is None


def threads() -> None:
    """Communicators come and go while other threads use theirs."""

    def work(rank: int) -> None:
        for _ in range(200):
            comm, count = made(rank), ctypes.c_int()
            assert library.ncclCommCount(comm, ctypes.byref(count)) == SUCCESS
            assert count.value == rank
            assert library.ncclCommDestroy(comm) == SUCCESS
            assert library.ncclCommDestroy(comm) == INVALID_ARGUMENT
            done[rank] += 1

    done = [0] * 8
    workers = [threading.Thread(target=work, args=(rank,)) for rank in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert done == [200] * 8


def forked() -> None:
    comm = made()
    child = os.fork()
    if child == 0:
        os._exit(library.ncclCommDestroy(comm))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == INVALID_ARGUMENT
    assert library.ncclCommDestroy(comm) == SUCCESS, "the child's end is the child's"


def forked_in_a_search() -> None:
    named, version = os.environ["SLEY_NCCL_LIBRARY"], ctypes.byref(ctypes.c_int())
    search = threading.Thread(target=library.ncclGetVersion, args=(version,))
    search.start()
    # At the latest it sleeps when it opens what nobody has opened to write.
    while "State:\tS" not in Path(f"/proc/self/task/{search.native_id}/status").read_text():
        pass
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        os.environ["SLEY_NCCL_LIBRARY"] = "/none"
        os._exit(library.ncclGetVersion(version))
    status = os.waitpid(child, 0)[1]
    Path(named).write_text("")
    search.join()
    assert os.waitstatus_to_exitcode(status) == SYSTEM_ERROR


def real_library() -> None:
    """As far as NVIDIA's library goes without a GPU."""
    version, first = ctypes.c_int(), UniqueId()
    assert library.ncclGetVersion(ctypes.byref(version)) == SUCCESS
    assert 22800 <= version.value < 30000
    assert b"usage" in library.ncclGetErrorString(INVALID_USAGE)
    assert library.ncclGetUniqueId(ctypes.byref(first)) == SUCCESS
    assert bytes(first)[40:44] == b"sley", "NCCL leaves room for sley's address"
    assert library.ncclGroupStart() == library.ncclGroupEnd() == SUCCESS
    assert library.ncclGroupEnd() == INVALID_USAGE
    assert "not in a group call" in last_error()
    assert library.ncclGroupStart() == SUCCESS
    size = ctypes.c_size_t(0)
    assert library.ncclAllReduce(None, None, size, 0, SUM, None, None) == INVALID_ARGUMENT
    assert library.ncclGroupEnd() == INVALID_ARGUMENT
    assert library.ncclCommAbort(None) == SUCCESS
    comm = Pointer(1)
    if library.ncclCommInitRank(ctypes.byref(comm), 1, first, 0) == SUCCESS:
        assert library.ncclCommDestroy(comm) == SUCCESS
    else:
        assert comm.value is None
        assert "Cuda failure" in last_error()


def main(arguments: Sequence[str]) -> None:
    globals()[arguments[0]]()


if __name__ == "__main__":
    main(sys.argv[1:])
