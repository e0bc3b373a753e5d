"""
The CPU engine of sley: shared memory, connections, and the interpreter of a rank.
"""

from collections.abc import Callable, Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray

from sley.engine.program import RankProgram, Wiring


class ProgramFault(ValueError):
    pass

class SlotTooSmall(ValueError):
    pass

class Segment:
    """Memory of this process or shared with others."""

    @staticmethod
    def create(bytes: int, shared: bool) -> Segment:
        """Memory, all zeros; OSError where there is not so much."""

    @staticmethod
    def sparse(bytes: int) -> Segment:
        """Addresses to be shared; memory is behind what is reserved."""

    @staticmethod
    def attach(fd: int, bytes: int, writable: bool = True) -> Segment:
        """
        The segment that another process shares by a descriptor, which stays the caller's.
        """

    def reserve(self, offset: int, bytes: int) -> None:
        """
        Puts memory behind a range of a sparse segment; OSError where there is none.
        """

    def release(self, offset: int, bytes: int) -> None:
        """Gives the memory behind a range of a sparse segment back."""

    def announce(self) -> None:
        """Lets other processes find this one's memory: the segment is a rank's."""

    @property
    def size(self) -> int:
        """In bytes."""

    @property
    def fd(self) -> int:
        """The descriptor to share it by; -1 where it isn't shared."""

    @property
    def array(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
        """The memory as a NumPy array, which keeps the segment alive."""

class FabricShape:
    """What the memory of a job's ranks looks like."""

    @staticmethod
    def create(fifos: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], slots: int, slot_bytes: int, envelopes: int) -> FabricShape:
        """
        fifos: the connections that each rank may send on. ValueError for a shape without room, MemoryError for one beyond all bounds.
        """

    def bytes_of(self, rank: int) -> int:
        """Of a rank's memory."""

    @property
    def fifo_bytes(self) -> int:
        """Of a connection."""

    @property
    def bytes(self) -> int:
        """Of all ranks' memory, side by side in one segment."""

class Fabric:
    """The memory and connections of all ranks, as one sees them."""

    @staticmethod
    def side_by_side(shape: FabricShape, segment: Segment, rank: int) -> Fabric:
        """All ranks' memory lies in one segment."""

    @staticmethod
    def join(shape: FabricShape, memory: Sequence[Segment | None], heaps: Sequence[Segment | None], rank: int) -> Fabric:
        """Every rank of this host has a segment; None for those of others."""

    @property
    def ranks(self) -> int:
        """How many."""

    @property
    def beats(self) -> int:
        """In how many rounds any rank has moved something."""

    @property
    def failed(self) -> bool:
        """Whether any rank has."""

    def fail(self, rank: int) -> None:
        """Record that `rank` died; every rank that waits then gives up."""

    @property
    def failure(self) -> tuple[int, int]:
        """
        (kind, rank) of the first failure: `sley.communicator.failures.Failure`.
        """

    def call_of(self, rank: int) -> tuple[int, int, int]:
        """What a rank is at: (number of the call, what, count)."""

    def reads_others(self) -> bool:
        """Whether this rank can read the memory of the others' processes."""

    @property
    def is_attached(self) -> bool:
        """Whether all ranks can: they have agreed."""

    @is_attached.setter
    def is_attached(self, arg: bool, /) -> None: ...

    def go_only(self, way: int) -> None:
        """Calls that can go a way (by its number) all do."""

    def close(self) -> None:
        """Tells the others that this rank has left."""

    def abort(self) -> None:
        """Ends every call, on all ranks."""

    def watch(self, descriptors: Sequence[tuple[int, int]]) -> None:
        """
        Pairs (descriptor, rank): one that becomes readable when the rank's process ends.
        """

    def settle(self, timeout_s: float) -> bool:
        """
        Waits until what was sent has left this host; False if it didn't within the time.
        """

class Tally:
    """Calls that an engine has ended well."""

    @property
    def calls(self) -> int:
        """How many."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of each, added up."""

    @property
    def seconds(self) -> float:
        """How long they took, added up."""

    @property
    def ways(self) -> list[int]:
        """How many went each way."""

class Engine:
    """One rank's program of a plan, ready to be called."""

    @staticmethod
    def create(fabric: Fabric, wiring: Wiring, program: RankProgram) -> Engine:
        """ProgramFault for a program that must not run."""

    def run(self, count: int, dtype: int, op: int, input: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], output: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], iterations: int, timeout_s: float) -> tuple[int, float, int, int, list[tuple[int, int, int, int]]]:
        """
        Runs it so many times back to back, after a barrier with all other ranks. count: elements of a block. dtype, op: numbers of a DataType and a ReduceOp. in place: input is the rank's data, output is empty. ValueError for memory of a wrong size, SlotTooSmall, MemoryError.
        """

    @property
    def tally(self) -> Tally:
        """Of its calls so far."""

def run_threads(engines: Sequence[Engine], count: int, dtype: int, op: int, inputs: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]], outputs: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]], timeout_s: float) -> list[tuple[int, float, int, int, list[tuple[int, int, int, int]]]]:
    """
    Runs the engines of all ranks, each in a thread; OSError where there are too few.
    """

def check_program(wiring: Wiring, program: RankProgram) -> None:
    """ProgramFault for a program that must not run."""

def die_with_parent() -> None:
    """
    From now on the kernel ends this process when its parent ends (on Linux).
    """

class Ticket:
    """The end of a call, on which somebody waits."""

    def is_done(self) -> bool:
        """Whether the call has ended, well or not."""

    def wait(self, timeout_s: float) -> bool:
        """Whether the call ended within the time; below 0 without an end."""

    def on_done(self, then: Callable[[], None]) -> None:
        """
        Calls `then` at the end, in the thread that ends the call; at once where it has.
        """

    def keep(self, object: object) -> None:
        """Keeps what the call is about alive to its end."""

    @property
    def rank(self) -> int:
        """After the end of a receive: the rank that it was from."""

    @property
    def outcome(self) -> tuple[int, float, int, int, list[tuple[int, int, int, int]]] | None:
        """
        After the end: the report of a call that went wrong; None of one that went well.
        """

class Calls:
    """The collective calls of a communicator, in order."""

    def __init__(self, fabric: Fabric) -> None: ...

    def is_own_thread(self) -> bool:
        """
        Whether this is the thread that runs submitted calls, which must not wait for one.
        """

    def run(self, engine: Engine, count: int, dtype: int, op: int, input: int, input_bytes: int, output: int, output_bytes: int, what: int, unplanned: int, timeout_s: float, iterations: int) -> tuple[int, float, int, int, list[tuple[int, int, int, int]]] | None:
        """
        Runs a call so many times back to back, on memory by address; the report of what went wrong, None where all went well. what: the call's record. unplanned: that of ranks that do it without the plan (`skip`); nothing is done then. 0: none does.
        """

    def submit(self, engine: Engine, count: int, dtype: int, op: int, input: int, input_bytes: int, output: int, output_bytes: int, what: int, unplanned: int, timeout_s: float) -> Ticket:
        """Has the thread run a call; the memory must stay."""

    def skip(self, what: int) -> None:
        """Counts a call that this rank does without a plan."""

    def close(self) -> None:
        """Ends what is under way."""

class PointToPoint:
    """Messages from one rank to another, with tags."""

    def __init__(self, fabric: Fabric, stride: int, offset: int) -> None:
        """They travel to rank dst on FIFO dst * stride + offset of the sender."""

    def send_now(self, address: int, size_bytes: int, dst: int, tag: int, timeout_s: float) -> tuple[int, float, int, int, list[tuple[int, int, int, int]]] | None:
        """Sends memory; the report of what went wrong, None where all went well."""

    def recv_now(self, address: int, size_bytes: int, src: int, tag: int, timeout_s: float) -> tuple[tuple[int, float, int, int, list[tuple[int, int, int, int]]] | None, int]:
        """
        Receives into memory; (report as of send_now, source). src: -1 for any.
        """

    def send(self, address: int, size_bytes: int, dst: int, tag: int, timeout_s: float) -> Ticket:
        """Begins to send; the memory must stay."""

    def recv(self, address: int, size_bytes: int, src: int, tag: int, timeout_s: float) -> Ticket:
        """Begins to receive; the memory must stay."""

    def wait(self, ticket: Ticket, timeout_s: float) -> bool:
        """Like `ticket.wait`, but moves the messages meanwhile."""

    def close(self) -> None:
        """Ends what is under way."""

class Transport:
    pass

class NetworkTransport(Transport):
    @property
    def address(self) -> bytes:
        """What the other ranks need to find this one."""

    def connect(self, addresses: Sequence[bytes], secret: bytes, deadline_s: float) -> None:
        """
        Connect to all ranks of other hosts; OSError, which names a rank, where one does not come within the time.
        """

    def loss_of(self, rank: int) -> int:
        """
        How the connection to a remote rank was lost, as a Failure; 0: it was not.
        """

    def close(self, wait_s: float) -> None:
        """Tell the others that this rank leaves, for at most this long, and end."""

def tcp_transport(fabric: Fabric, nics: Sequence[str], nic: int, timeout_s: float) -> NetworkTransport:
    """
    Let `fabric` reach other hosts over TCP. nics: IP addresses of this host, of which this rank uses number `nic`.
    """

def ucx_transport(fabric: Fabric, nics: Sequence[str], nic: int, timeout_s: float, library: str) -> NetworkTransport:
    """
    Let `fabric` reach other hosts over UCX. nics: names of this host's, of which this rank uses number `nic`. library: path of libucp.so.0; OSError where it cannot be used.
    """

def ucx_version(library: str) -> str:
    """The version of a libucp.so.0; OSError where it cannot be used."""
