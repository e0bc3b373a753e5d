"""
The CPU engine of sley: shared memory, connections, and the interpreter of a rank.
"""

from collections.abc import Callable, Mapping, Sequence
import enum
from typing import Annotated, Any, Final, overload

import numpy
from numpy.typing import NDArray
from typing_extensions import CapsuleType

import sley.engine.program


class ProgramFault(ValueError):
    pass

class SlotTooSmall(ValueError):
    pass

class Segment:
    """Memory of this process or shared with others."""

    @staticmethod
    def create(bytes: int) -> Segment:
        """Shared memory, all zeros; OSError if there is too little."""

    @staticmethod
    def attach(fd: int, bytes: int) -> Segment:
        """
        The segment that another process shares by a descriptor, which stays the caller's.
        """

    @property
    def size(self) -> int:
        """In bytes."""

    @property
    def fd(self) -> int:
        """The descriptor to share it by; -1 if it isn't shared."""

    @property
    def array(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
        """The memory as a NumPy array, which keeps the segment alive."""

class Descriptor:
    """A duplicate of a descriptor, closed with its last user."""

    def __init__(self, fd: int) -> None: ...

class Heap:
    """
    Memory of a process that the others of its host read in place. It grows by parts, which each process maps when it first uses them.
    """

    @overload
    def __init__(self) -> None:
        """This process' own; OSError."""

    @overload
    def __init__(self, fd: int) -> None:
        """Another process', by its descriptor, which stays the caller's."""

    def grow(self, bytes: int) -> int:
        """
        Adds a part, without memory, and returns its offset; OSError if there are no addresses left.
        """

    def address(self, offset: int, bytes: int) -> int:
        """The address of a range of one part; 0 if it can't be mapped."""

    def reserve(self, offset: int, bytes: int) -> None:
        """Allocates memory for a range; OSError if there is none."""

    def release(self, offset: int, bytes: int) -> None:
        """Frees the memory of a range."""

    @property
    def fd(self) -> int:
        """The descriptor to share it by."""

class FabricShape:
    """The layout of the memory of ranks."""

    @staticmethod
    def create(fifos: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], slots: int, slot_bytes: int, envelopes: int) -> FabricShape:
        """
        fifos: the number of connections that each rank may send on. ValueError for a shape without room, MemoryError for one whose bytes overflow.
        """

    def bytes_of(self, ranks: Sequence[int]) -> int:
        """The bytes of some ranks' memory, side by side in one segment."""

class Fabric:
    """The memory and connections of all ranks, as one rank sees them."""

    @staticmethod
    def join(shape: FabricShape, fd: int, heaps: Sequence[Heap | None], rank: int) -> Fabric:
        """
        A fabric with the memory of this host's ranks in one file, which stays the caller's. heaps: of every rank of this host, None for ranks of others.
        """

    def announce(self) -> None:
        """Lets other processes find this one's memory."""

    @property
    def ranks(self) -> int:
        """The number of ranks."""

    @property
    def failure(self) -> tuple[int, int]:
        """
        (kind, rank) of the first failure: `sley.communicator.failures.Failure`.
        """

    def call_of(self, rank: int) -> tuple[int, int, int]:
        """A rank's current call: (number, what, count)."""

    def has_left(self, rank: int) -> bool:
        """Whether a rank has left, or its process has ended."""

    def reads_others(self) -> bool:
        """Whether this rank can read the memory of the other ranks' processes."""

    @property
    def is_attached(self) -> bool:
        """Whether all ranks can: they have agreed."""

    @is_attached.setter
    def is_attached(self, arg: bool, /) -> None: ...

    def use_only(self, way: int) -> None:
        """Lets all calls use one way (by its number), if they have it."""

    def close(self) -> None:
        """Tells the others that this rank has left."""

    def abort(self) -> None:
        """Ends every call, on all ranks."""

    def watch(self, descriptors: Sequence[tuple[Descriptor, int]]) -> None:
        """
        Pairs (descriptor, rank): each becomes readable when the rank's process ends.
        """

    def settle(self, timeout_s: float) -> bool:
        """
        Waits until all sent messages have left this host; False after the time.
        """

class Tally:
    """An engine's successful calls."""

    @property
    def calls(self) -> int:
        """Their number."""

    @property
    def block_bytes(self) -> int:
        """The sum of the bytes of one block of each."""

    @property
    def seconds(self) -> float:
        """The sum of their times."""

    @property
    def ways(self) -> list[int]:
        """Their number by way."""

class Parts:
    """The parts of a rank's input and output in a call of varying counts."""

    @staticmethod
    def create(input: Sequence[tuple[int, int]], output: Sequence[tuple[int, int]]) -> Parts:
        """The address and the elements of each part. The memory must stay."""

class Engine:
    """One rank's program of a plan, ready to be called."""

    @staticmethod
    def create(fabric: Fabric, wiring: sley.engine.program.Wiring, program: sley.engine.program.RankProgram) -> Engine:
        """ProgramFault for an invalid program."""

    @property
    def tally(self) -> Tally:
        """The calls so far."""

def check_program(wiring: sley.engine.program.Wiring, program: sley.engine.program.RankProgram) -> None:
    """ProgramFault for an invalid program."""

def die_with_parent() -> None:
    """Lets the kernel end this process when its parent ends (on Linux)."""

class Ticket:
    """The end of a call that runs in another thread."""

    def is_done(self) -> bool:
        """Whether the call has ended, successfully or not."""

    def wait(self, timeout_s: float) -> bool:
        """Waits; returns whether the call has ended."""

    def on_done(self, then: Callable[[], None]) -> None:
        """
        Calls `then` at the end, in the thread that ends the call; at once if it has ended.
        """

    def keep(self, object: object) -> None:
        """Keeps an object alive until the end."""

    @property
    def rank(self) -> int:
        """After the end of a receive: the message's source."""

    @property
    def outcome(self) -> tuple[int, float, int, int, list[tuple[int, int, int, int]], bool] | None:
        """
        After the end: the report of a call that failed, or that ran with varying counts instead; None of any other.
        """

class Choice:
    """
    Engines that run equal calls in turns, which all ranks change at the same call.
    """

    @staticmethod
    def create(options: Sequence[tuple[Engine, int]], sum: Engine, what: int, turns: Sequence[tuple[int, int]], decide: Callable[[Sequence[float]], Sequence[tuple[int, int]]]) -> Choice:
        """
        options: engines, each with the record of its calls. sum, what: the engine of an AllReduce in place that adds up the times, and its record. turns: the first ones, each an option's number and its calls. decide: makes the next turns from the sums over all ranks of the mean seconds of a call, by turn. ValueError for impossible turns.
        """

    @property
    def current(self) -> int:
        """The number of the option that runs the next call, or that failed."""

    most_turns: Final[int] = ...
    """How many turns there may be at once."""

class Call:
    """A rank's call, on memory by address, which must stay."""

    @staticmethod
    def create(count: int, dtype: int, op: int, input: int, input_bytes: int, output: int, output_bytes: int) -> Call:
        """
        count: elements of a block. dtype, op: numbers of a DataType and a ReduceOp.
        """

    @staticmethod
    def in_blocks(count: int, dtype: int, op: int, blocks: Parts) -> Call:
        """A call of equal counts whose buffers' blocks may be apart."""

    @staticmethod
    def varying(parts: Parts, dtype: int) -> Call:
        """A call of varying counts."""

class Runner:
    """What runs equal calls."""

    @overload
    @staticmethod
    def create(engine: Engine, what: int, varying: Runner | None) -> Runner:
        """
        what: the calls' record. varying: what runs them if another rank makes them with varying counts; None if none may.
        """

    @overload
    @staticmethod
    def create(choice: Choice, what: int, varying: Runner | None) -> Runner:
        """On a choice's engines, with their records."""

class Calls:
    """The collective calls of a communicator, in order."""

    def __init__(self, fabric: Fabric) -> None: ...

    def is_own_thread(self) -> bool:
        """
        Whether this is the thread that runs submitted calls, which must not wait for one.
        """

    def run(self, runner: Runner, call: Call, timeout_s: float, iterations: int, meet: bool = False) -> tuple[int, float, int, int, list[tuple[int, int, int, int]], bool] | None:
        """
        Runs a call `iterations` times back to back; returns what `Ticket.outcome` does. meet: after a barrier with all other ranks, from which its time is taken.
        """

    def submit(self, runner: Runner, call: Call, timeout_s: float) -> Ticket:
        """Runs a call in the thread."""

    def run_up_to(self, last: Ticket) -> None:
        """
        Runs submitted calls up to this one in the caller's thread, as far as the other has not begun them.
        """

    def close(self) -> None:
        """Ends all pending calls."""

class PointToPoint:
    """Messages from one rank to another, with tags."""

    def __init__(self, fabric: Fabric, stride: int, offset: int) -> None:
        """Messages to rank dst use FIFO dst * stride + offset of the sender."""

    def send_now(self, address: int, size_bytes: int, dst: int, tag: int, timeout_s: float, type: int) -> tuple[int, float, int, int, list[tuple[int, int, int, int]], bool] | None:
        """
        Sends memory; returns the report of a failure, or None. type: the caller's number of the elements' type; 0: any.
        """

    def recv_now(self, address: int, size_bytes: int, src: int, tag: int, timeout_s: float, type: int) -> tuple[tuple[int, float, int, int, list[tuple[int, int, int, int]], bool] | None, int]:
        """
        Receives into memory; returns (report as of send_now, source). src: -1 for any.
        """

    def exchange(self, source: int, source_bytes: int, target: int, target_bytes: int, peer: int, sends_first: bool, iterations: int, timeout_s: float) -> tuple[float, tuple[int, float, int, int, list[tuple[int, int, int, int]], bool] | None, bool]:
        """
        Sends to a rank and receives from it, again and again; returns (seconds of all, report of a failure or None, whether it is that of a send).
        """

    def send(self, address: int, size_bytes: int, dst: int, tag: int, timeout_s: float, type: int) -> Ticket:
        """Begins to send; the memory must stay."""

    def recv(self, address: int, size_bytes: int, src: int, tag: int, timeout_s: float, type: int) -> Ticket:
        """Begins to receive; the memory must stay."""

    def wait(self, ticket: Ticket, timeout_s: float) -> bool:
        """Like `ticket.wait`, but makes progress meanwhile."""

    def finish(self, ticket: Ticket) -> bool:
        """
        Waits for the end, and meanwhile for signals; whether the message has been moved.
        """

    def test(self, ticket: Ticket) -> bool:
        """Like `ticket.is_done`, but makes progress once."""

    def close(self) -> None:
        """Ends all pending messages."""

class Transport:
    pass

class NetworkTransport(Transport):
    @property
    def address(self) -> bytes:
        """The address by which other ranks find this one."""

    def connect(self, addresses: Sequence[bytes], secret: bytes, deadline_s: float) -> None:
        """
        Connects to all ranks of other hosts; OSError, which names ranks that don't connect in time.
        """

    def close(self, wait_s: float) -> None:
        """
        Tells the other ranks, for at most `wait_s`, that this one leaves; then ends.
        """

def tcp_transport(fabric: Fabric, nics: Sequence[str], nic: int, timeout_s: float) -> NetworkTransport:
    """
    Lets `fabric` reach other hosts over TCP. nics: IP addresses of this host; this rank uses number `nic`.
    """

def ucx_transport(fabric: Fabric, nics: Sequence[str], nic: int, timeout_s: float, library: str) -> NetworkTransport:
    """
    Lets `fabric` reach other hosts over UCX. nics: names of this host's NICs; this rank uses number `nic`. library: path of libucp.so.0; OSError if it cannot be used.
    """

def ucx_version(library: str) -> str:
    """The version of a libucp.so.0; OSError if it cannot be used."""

class Resource:
    """What a device made; freed with this object."""

    @property
    def address(self) -> int: ...

    def array(self, address: int, size_bytes: int) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
        """Bytes of memory of the host, which keep this object."""

def start_cuda() -> None:
    """
    Loads and starts NVIDIA's driver. K501 if it is missing or doesn't start, K510 if it has no device.
    """

class Device:
    """
    A GPU, or threads of this process. Addresses are those of memory, streams and kernels. What devices fail to do are SleyErrors, or OSErrors of threads.
    """

    def allocate(self, size_bytes: int) -> Resource: ...

    def allocate_host(self, size_bytes: int) -> Resource: ...

    def allocate_shared(self, size_bytes: int) -> Resource:
        """Memory that other processes attach."""

    def export_memory(self, memory: Resource) -> int:
        """A file descriptor of it, which the caller closes."""

    def attach(self, descriptor: int, size_bytes: int) -> Resource:
        """Another process's memory, by a descriptor, which stays the caller's."""

    @property
    def identity(self) -> bytes: ...

    def carries_lines(self, identity: bytes) -> bool: ...

    def write(self, to: int, data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]) -> None: ...

    def read(self, data: Annotated[NDArray[numpy.uint8], dict(shape=(None,))], source: int) -> None: ...

    def lends(self, address: int, other: Device) -> bool: ...

    def stream(self) -> Resource: ...

    def launch(self, launch: tuple[int, str, bytes, int, int, bool, object], stream: int) -> None: ...

    def synchronize(self, stream: int | None) -> None: ...

class ThreadsDevice(Device):
    """Threads of this process."""

    def __init__(self) -> None: ...

    @staticmethod
    def function(path: str, name: str) -> int:
        """The address of a function of a shared object, which stays loaded."""

class CudaDevice(Device):
    """A GPU of this process, in its primary context."""

    def __init__(self, ordinal: int) -> None: ...

    @staticmethod
    def count() -> int: ...

    @staticmethod
    def queues() -> int:
        """
        Onto how many the driver maps a device's streams, as the environment says when first asked.
        """

    @staticmethod
    def multiprocessors_of(ordinal: int) -> int:
        """Without a context, as is_line_carried."""

    @staticmethod
    def is_line_carried(origin: int, to: int) -> bool:
        """
        Whether a line of LL128 arrives as a whole, between two of the devices.
        """

    @staticmethod
    def driver_version() -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def multiprocessors(self) -> int: ...

    @property
    def capability(self) -> tuple[int, int]: ...

    @property
    def device(self) -> int: ...

    @property
    def context(self) -> int: ...

    def reach(self, other: Device) -> None: ...

    def has_multicast(self) -> bool: ...

    @staticmethod
    def window(devices: Sequence[CudaDevice], size_bytes: int) -> tuple[list[int], int, Resource]:
        """
        The addresses of the devices' parts, of all of them behind the switch, and what keeps them.
        """

    def load(self, code: bytes) -> int: ...

    def function(self, module: int, name: str) -> int: ...

    def blocks_at_once(self, function: int, threads: int) -> int: ...

    def is_captured(self, stream: int) -> bool: ...

class CallOrder:
    """Serialises calls on devices."""

    def __init__(self, abort: Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]) -> None: ...

    def wait(self) -> None:
        """
        Waits until all calls are done, on whatever streams; others may start meanwhile. Where a call was captured, waits for all work of the devices, since nothing tells that a graph runs.
        """

    def is_idle(self) -> bool:
        """Whether no call is under way; False if calls were captured."""

RANKS: int = 128

HIDDEN: int = 18446744073709551615

STAMP_ROWS: int = 1024

OFFSET_BITS: int = 44

PLAN_BITS: int = 16

def structure(name: str) -> Any:
    """
    A structure of `kernels/primitives/layout.hpp`, as NumPy describes types.
    """

class PlanTables:
    """A plan as kernels read it, for any devices."""

    def __init__(self, tables: Mapping[str, bytes], numbers: Mapping[str, int]) -> None: ...

    def to_bytes(self) -> bytes:
        """The tables as a file, for a runtime of the same version."""

    @staticmethod
    def from_bytes(bytes: bytes) -> PlanTables:
        """F425 for bytes that `to_bytes` of this version didn't write."""

    def cut(self, item_bytes: int, count: int) -> dict[str, int]:
        """How a call of `count` elements a block is cut into tiles. R503, R506."""

    def threads(self, item_bytes: int, count: int) -> int:
        """The threads of a block in such a call."""

    def scratch_bytes(self, item_bytes: int, count: int) -> list[int]:
        """The bytes that a call needs of each rank's scratch."""

class LinkKey:
    """What decides the plans of a communicator on devices."""

    def __init__(self, ranks: int, has_lines: bool, is_one_device: bool, most_blocks: int, same_bits: bool = False) -> None: ...

    @property
    def ranks(self) -> int: ...

    @property
    def has_lines(self) -> bool: ...

    @property
    def is_one_device(self) -> bool: ...

    @property
    def most_blocks(self) -> int: ...

    @property
    def same_bits(self) -> bool: ...

    def file_name(self) -> str:
        """The name of the file with its tables."""

class LinkTables:
    """All that is derived ahead for a communicator on devices, as a file."""

    def __init__(self, key: LinkKey, version: str, threads: int, plans: Sequence[tuple[str, PlanTables]], mailboxes: Sequence[int], scratch: int, rows: Sequence[tuple[str, Kind, int, Sequence[int], Sequence[int]]], kernels: Sequence[tuple[int, int, int, bool, str]], messages: str) -> None:
        """
        plans: names and tables. mailboxes: the bytes of each rank's. scratch: the bytes that a rank needs. rows: for each kind of calls its name, itself, the root, and the plans by size, as of `DeviceCalls.set_table`. kernels: the plan, type, operation, whether inputs are multiplied, and the name of the file. messages: the name of the file with the kernel of sends and receives. F425 for parts that don't fit one another.
        """

    @property
    def digest(self) -> str: ...

    @property
    def scratch(self) -> int: ...

    @property
    def files(self) -> set[str]:
        """The names of the kernels' files."""

    def to_bytes(self) -> bytes:
        """A file for a runtime of the same version."""

    @staticmethod
    def from_bytes(bytes: bytes) -> LinkTables:
        """F425 for bytes that `to_bytes` of this version didn't write."""

class DevicePlan:
    """A plan on a device of this process."""

    @property
    def blocks(self) -> int:
        """The number of blocks that run at once."""

    def stuck(self) -> list[dict[str, int]]:
        """The reports of the blocks that have given up."""

class MemoryIndex:
    """What calls look up of the memory of this process's ranks."""

    def __init__(self, ranks: int, devices: Sequence[tuple[int, Device]]) -> None:
        """devices: of this process's ranks."""

    def add(self, address: int, size_bytes: int, shifts: Sequence[int]) -> int:
        """
        Registers memory that all ranks have mapped. shifts: for each rank, what to add to an address of it for its address there.
        """

    def add_scratch(self, rank: int, address: int, size_bytes: int, all_read: bool) -> None:
        """Those that all ranks read are larger than those before."""

    def number(self, rank: int, address: int, size_bytes: int) -> int:
        """
        By which peers read a rank's memory; 0: none does, 1: those of this process.
        """

class PlanCall:
    """A call of a plan, which can be started many times."""

    def __init__(self, order: CallOrder, memory: MemoryIndex, places: Sequence[tuple[DevicePlan, int, int, int, int]], threads: int, together: bool, keeps: object) -> None:
        """places: a plan on a device, and its kernels there."""

    def lay_out(self, item_bytes: int, count: int, buffers: Sequence[tuple[int, int, int, int, int]], factor: int = 0, factor_at: int = 0) -> bool:
        """
        buffers: of a rank, the address and the bytes of its input, and of its output. False if a rank has too little scratch. R503, R506.
        """

    def start(self, streams: Sequence[int], recorded: bool) -> bool:
        """
        Starts the call on a stream for each launch of each place. recorded: whether the next call has to wait for this one. False, without a launch, if a call was given up.
        """

class StartOutcome(enum.IntEnum):
    """What became of a call. STARTED: 0; otherwise nothing was started."""

    STARTED = 0

    GIVEN_UP = 1

    LACKS_PROGRAM = 2

    LACKS_SCRATCH = 3

class DeviceCalls:
    """
    The calls of a rank of a communicator on a device, for any threads. Kinds, types and operations are any numbers; `root` is 0 if there is none.
    """

    def __init__(self, order: CallOrder, memory: MemoryIndex, rank: int, together: bool) -> None: ...

    def add_plan(self, plan: DevicePlan) -> int:
        """Returns its number: 0, 1 and so on."""

    def set_table(self, kind: int, in_place: bool, root: int, ends: Sequence[int], plans: Sequence[int]) -> None:
        """
        The calls of a kind run plans[k] up to ends[k] bytes of the largest buffer of any rank, and larger ones the last plan.
        """

    def set_program(self, plan: int, dtype: int, op: int, scales: bool, run: int, divide: int) -> None:
        """The addresses of a plan's kernels; divide: 0 without one."""

    def plan_of(self, kind: int, in_place: bool, root: int, size_bytes: int) -> int:
        """The number of the plan that runs a call."""

    def tallies(self, kind: int, in_place: bool, root: int) -> list[tuple[int, int]]:
        """
        Of each range of sizes of a kind: the calls that were started, and their bytes.
        """

    def start(self, kind: int, in_place: bool, root: int, dtype: int, op: int, size_bytes: int, item_bytes: int, count: int, input: int, input_bytes: int, output: int, output_bytes: int, stream: int, factor: int | None = None, factor_at: int = 0, keeps: object | None = None) -> StartOutcome:
        """
        Starts a call; of 0 bytes without a launch. size_bytes: of the largest buffer of any rank. count: elements of a block. input, output: addresses, or 0. factor: the bits of a number, or the address of one, by which inputs are multiplied. keeps: what must live until the kernel has ended. R503, R506.
        """

    def start_usual(self, kind: Kind, data: object | None, out: object | None, op: int, root: int, stream: int, keeps: bool) -> StartOutcome | None:
        """
        Starts a call of arrays as callers usually give them; None, and nothing is started, if they need a closer look. keeps: whether they live until the kernel has ended. Otherwise as `start`.
        """

class View:
    """
    A caller's array on a device: the address of its first element, and the number of its elements.
    """

    @property
    def address(self) -> int: ...

    @property
    def elements(self) -> int: ...

    @property
    def writable(self) -> bool:
        """Whether kernels may write it."""

    @property
    def size_bytes(self) -> int: ...

    @property
    def dtype(self) -> str:
        """The name of the elements' type, the engine's or uint16."""

def view(array: object | None, device: Device, what: str) -> View:
    """
    A view of an array on a device. what: its name in messages. K504, K519, R504.
    """

class CallArrays:
    """The arrays of a call, or of none: those that the calls of a plan take."""

    def __init__(self, rows: Sequence[tuple[Device, str, int, bool]]) -> None:
        """
        rows: two of each rank, its input or data, and its output: of each the device, the name in messages, the number of the collective's blocks in it, and whether calls write it.
        """

    def given(self, arrays: Sequence[object]) -> CallArrays:
        """With the arrays of a call, or None. K504, K519, R504."""

    def kinds(self) -> list[tuple[str, tuple[int | None, int, str]]]:
        """
        The first array of each kind: its name, and elements (None: no array), blocks, type.
        """

    def check(self, dtype: str) -> None:
        """
        K519 for misaligned arrays, and read-only ones that the call writes; R503 for arrays that share memory with one that it writes.
        """

    def pieces(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """Of each rank, address and bytes of both; zeros for none."""

class Barrier:
    """
    How far each process of a communicator has come, in memory that the processes share.
    """

    def __init__(self, memory: Annotated[NDArray[numpy.uint8], dict(shape=(None,))], ranks: int, own: Sequence[int], patience_s: float) -> None:
        """
        memory: zeros, as many as `bytes`, whose first word is set when a call is given up. own: the ranks of this process. patience_s: the longest wait for another process.
        """

    @staticmethod
    def bytes(ranks: int) -> int: ...

class Processes:
    """
    The processes of a communicator's ranks. All call the same functions in the same order. Errors: those that other processes told; K514 if one has ended or the exchange is invalid, R503 for a rank in two processes.
    """

    def __init__(self, ranks: int, exchange: Callable[[bytes], Sequence[bytes]] | None) -> None:
        """
        exchange: an all-gather of bytes among the processes; None if all ranks are in this one.
        """

    @property
    def is_one(self) -> bool:
        """Whether all ranks are in this process."""

    def gather(self, own: Mapping[int, bytes]) -> list[bytes]:
        """Gathers bytes for each rank; own: of this process's ranks."""

    def meet(self) -> None:
        """Waits until all processes call this."""

    def tell(self, refusal: bytes) -> None:
        """Instead of an exchange: the others raise this refusal there."""

class MemoryExchange:
    """Memory for every rank, which the devices of all processes reach."""

    def __init__(self, processes: Processes, devices: dict[int, Device], has_lines: bool) -> None:
        """
        devices: of the ranks of this process. has_lines: whether kernels write lines of LL128.
        """

    def allocate(self, sizes_bytes: Sequence[int]) -> tuple[dict[int, Resource], list[list[int]]]:
        """
        Allocates so many bytes for each rank; all processes call this together. Returns the memory of this process's ranks, and for each rank the addresses of all ranks' memory on its device. R503 if the processes' sizes differ, K523 if lines don't arrive whole.
        """

    def allocate_host(self, size_bytes: int) -> Resource:
        """
        Zeroed memory of the host that the devices of all processes can access; all processes call this together.
        """

class Links:
    """
    What persists between the calls of a communicator, for this process: the ranks' mailboxes, and the plans on each device. Freed, its memory lasts until no call is under way.
    """

    def __init__(self, memory: MemoryExchange, index: MemoryIndex, barrier: Barrier, order: CallOrder, abort: int, mailboxes: Sequence[int], tables: Sequence[PlanTables], places: Sequence[tuple[Device, Sequence[Sequence[int]], Sequence[int]]], timeout_ns: int) -> None:
        """
        All processes call this together. abort: the address of the barrier's memory. mailboxes: the bytes of each rank's. places: each device, the ranks of its launches, and the bases of the segments behind the mailboxes'.
        """

    @property
    def mailboxes(self) -> dict[int, int]:
        """The addresses of this process's ranks' mailboxes."""

    @property
    def plans(self) -> list[list[DevicePlan]]:
        """Each plan on each device."""

    def keep(self, memory: object) -> None:
        """Keeps an object until the other memory is freed."""

    def register(self, arrays: Mapping[int, tuple[int, int]]) -> tuple[int, dict[int, list[int]]]:
        """
        Lets peers read the caller's memory in place: of each rank of this process, the address and the bytes of an array. All processes call this together, while no call is under way. Returns the registration's number, and the other ranks that read each rank's memory; to the rest its messages go through slots.
        """

    def deregister(self, number: int) -> None:
        """Likewise. R503 if processes name another one."""

    @property
    def is_closed(self) -> bool: ...

    def check_open(self) -> None:
        """R508 if they are closed."""

    def check(self) -> bool:
        """
        R508 if they are closed or a call has failed. False if one was given up: then the caller ends the calls, and says why one has failed.
        """

    def end(self) -> None:
        """
        Waits until all blocks have reported; this process comes to no further meeting.
        """

    def fail(self, why: str) -> None: ...

    def refuse(self) -> None:
        """Raises K508 for a call of which this process has no report."""

    def give_up(self, why: int) -> None:
        """
        Ends all calls that are under way, in all processes; any thread may call it. why: kept for all unless calls were given up before.
        """

    @property
    def why(self) -> int:
        """0 if nobody said why calls were given up."""

    def leave(self) -> None:
        """
        Comes to no further meeting: processes that wait for this one fail, but for those that close.
        """

    def has_left(self, rank: int) -> bool: ...

    def lacks(self, rank: int) -> bool | None:
        """
        Whether this process has started a call that a rank which has left doesn't make; None if the rank hasn't left, or if calls in graphs aren't counted.
        """

    def close(self, meet: bool) -> None:
        """
        Waits for calls, and, if it meets others, until all processes have left; then frees the memory. K514, after that, if one doesn't in time. A second call does nothing.
        """

class CallKey:
    """Equal for calls that run alike."""

    def __init__(self, kind: int, dtype: int, op: int, in_place: bool, root: int, count: int, element: int) -> None:
        """
        kind: any number. dtype, op: numbers of a DataType and a ReduceOp. count: elements of a block. element: the number of the caller's type.
        """

    @property
    def kind(self) -> int: ...

    @property
    def dtype(self) -> int: ...

    @property
    def op(self) -> int: ...

    @property
    def in_place(self) -> bool: ...

    @property
    def root(self) -> int: ...

    @property
    def count(self) -> int: ...

    @property
    def element(self) -> int: ...

class Kind:
    """A kind of calls that may be ready."""

    def __init__(self, number: int, reduces: bool, has_root: bool, input_parts: bool, output_parts: bool) -> None:
        """
        number: of `CallKey.kind`. input_parts, output_parts: whether this buffer has a part for each rank; of kinds without parts, the output is the input.
        """

class ReadyCalls:
    """
    What runs the calls that a rank has made before: equal ones need no Python.
    """

    @staticmethod
    def create(calls: Calls, timeout_s: float) -> ReadyCalls:
        """timeout_s: of the calls."""

    def put(self, key: CallKey, runner: Runner) -> None:
        """Makes a call ready."""

    def clear(self) -> None:
        """Forgets all."""

    def close(self) -> None:
        """Forgets all, and what is put later."""

    def set_timeout(self, seconds: float) -> None:
        """Sets that of later calls."""

    @property
    def number(self) -> int:
        """How many calls have run."""

class TensorCalls:
    """
    The ready calls of a rank on tensors. Its functions take what methods of a process group take, and return None after a synchronous call that was ready; all other calls go to `otherwise`.
    """

    @staticmethod
    def create(ready: ReadyCalls, exchange: CapsuleType, classes: tuple[type, ...], rank: int, ranks: int, moved: Sequence[tuple[int, int, int, int]], reduced: Sequence[tuple[int, int, int, int]], reductions: Sequence[int], profiler: dict[str, Any], no_timeout: object, fail: Callable[..., Any]) -> TensorCalls:
        """
        exchange: DLPack's C interface of the framework. classes: of its plain tensors. moved, reduced: DLPack's code and bits of types whose elements are moved or reduced, each with the engine's type and the number of `CallKey.element`. reductions: the engine's operation by the hash of the framework's; -1 for none. profiler: a namespace whose _is_profiler_enabled is true while calls are profiled. no_timeout: the largest value of a timeout that is none. fail: raises the error of a call, from its `CallKey` and its report. ValueError for an unknown version of `exchange`.
        """

    def function(self, kind: Kind, options_class: object, takes_lists: bool, otherwise: Callable[..., Any]) -> Callable[..., Any]:
        """The function for a kind of calls."""

    def barrier(self, kind: Kind, options_class: object, token: object, cpu: object, otherwise: Callable[..., Any]) -> Callable[..., Any]:
        """
        The function for barriers, which update `token` if their options name the device `cpu`.
        """

    def messages(self, messages: object, is_send: bool, from_any: bool, runner: object, finished: object, pending: Callable[..., Any], hold: Callable[..., Any], otherwise: Callable[..., Any]) -> Callable[..., Any]:
        """
        The function for messages to a rank, from one, or from any. runner: makes no call ready while its attribute `coalesced` isn't None. finished: the class of a message that has ended. pending: makes the work object of another one, from its ticket, its tensors, is_send, its bytes, the other rank and the tag. hold: an object that keeps a tensor's memory.
        """

def add_operators(path: str, types: Sequence[tuple[str, int, int, int, int]], reductions: Mapping[str, int], kinds: Sequence[tuple[str, Kind]]) -> None:
    """
    Adds the kernels of `torch.ops.sley`, once. path: of LibTorch's library. types: PyTorch's name, the engine's numbers of a type whose elements are moved and reduced (-1: none), its bytes, and its number in `CallKey.element`. reductions: the engine's numbers, by name. kinds: each operator's name, and what it calls. RuntimeError if LibTorch lacks a function.
    """

def add_group(name: str, ready: ReadyCalls, rank: int, ranks: int, explain: Callable[..., Any]) -> None:
    """
    Makes the ready calls of a group known to the operators. explain: the error of a call as text, from its `CallKey` and its report.
    """

def remove_group(name: str, ready: ReadyCalls) -> None:
    """Makes a group unknown again, if its ready calls are these."""

def set_operator_error(error: object) -> None:
    """
    The exception of the call that an operator has left to Python, in this thread.
    """
