"""Programs: MSCCLProgram, and references to chunks.

A reference stands for a place of a rank, as in msccl-tools: it has what the place holds when it is
used, even if that was written later.
"""

from __future__ import annotations

import io
from collections.abc import Hashable
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from sley.errors import Place, did_you_mean, shortened
from sley.errors.compiler import C301
from sley.errors.language import L101, L102, L104, L110, L112, L126, L127, L129, L130, L132, L134
from sley.ir.collective import Collective as SleyCollective
from sley.ir.tables import NONE
from sley.ir.words import MAX_NUMBER, TransferKind, chunk_range, is_integer
from sley.ir.words import Buffer as SleyBuffer
from sley.lang.chunks import Cells, ChunkProgram
from sley.lang.msccl.buffers import Buffer, BufferSlice, ThreadblockPolicy
from sley.lang.msccl.chunks import Chunk
from sley.lang.msccl.collectives import Buffers, Collective
from sley.lang.msccl.promises import batched, declare, interleaved, is_standard, lacks, promised
from sley.lang.msccl.session import ScriptProgram, current_session
from sley.lang.msccl.topologies import Topology
from sley.lang.recorder import caller_place, placed, refuse

DATA: dict[Hashable, SleyBuffer] = {
    Buffer.input: SleyBuffer.INPUT,
    Buffer.output: SleyBuffer.OUTPUT,
}
"""The buffers of the collective."""


class Tracer(ChunkProgram):
    """A program under construction. A buffer's name is a `Buffer` or any other value; those that
    are not of the collective are scratch buffers, numbered as they are named first."""

    def __init__(self, collective: SleyCollective) -> None:
        super().__init__(collective)
        self._numbers = {name: int(number) for name, number in DATA.items()}
        self._names: list[Hashable] = [*DATA, *([None] * (SleyBuffer.SCRATCH - len(DATA)))]

    def number(self, buffer: Hashable) -> int:
        if buffer not in self._numbers:
            self._numbers[buffer] = len(self._names)
            self._names.append(buffer)
        return self._numbers[buffer]

    def word(self, buffer: int) -> str:
        return super().word(buffer) if buffer < SleyBuffer.SCRATCH else repr(self._names[buffer])

    def memory(self, rank: int, buffer: Hashable, index: int, count: int) -> tuple[int, Cells]:
        """The memory of a place within the bounds, which may be unwritten: equal for places of one
        memory. Errors: L101 to L103, L112."""
        ref = self._range(rank, buffer, index, count, None)
        # Input and output are one memory, each scratch buffer is one of its own.
        cells = self._memory.cells(ref.rank, ref.buffer, ref.index, ref.count)
        return max(ref.buffer, SleyBuffer.OUTPUT), cells


_PROTOCOLS = ("Simple", "LL", "LL128")


@dataclass(eq=False, repr=False)
class MSCCLProgram:
    """A program, whose operations are those inside its ``with``.

    name: its name in plans. topo: the links that copies and reduces may use. collective: the chunks
    before the program, and the check of those after it. instances: number of parallel parts.
    protocol: "Simple", "LL" or "LL128". threadblock_policy: whether sendtb and recvtb of the
    operations count. interleaved_replication: whether a part has a piece of every chunk, or a
    section of every buffer. instr_fusion: whether a receive and a send may become one instruction.
    check_xml and dependence_nop have no effect: sley proves every plan, and has no redundant waits.

    Attributes: the parameters; num_ranks, the number of ranks; and buffers, for each rank the
    chunks that its buffers hold now, by the buffers' names.

    Errors: L102, L112, L132.
    """

    name: str
    topo: Topology
    collective: Collective
    instances: int
    protocol: str = "Simple"
    threadblock_policy: ThreadblockPolicy = ThreadblockPolicy.auto
    interleaved_replication: bool = True
    instr_fusion: bool = True
    check_xml: bool = True
    dependence_nop: bool = False

    def __post_init__(self) -> None:
        self._place = caller_place()
        self._check_arguments()
        self.num_ranks = self.topo.num_nodes()
        with placed(self._place):
            self.buffers = self._first_buffers()
            self._inputs = [list(own[Buffer.input]) for own in self.buffers]
            self._tracer = Tracer(declare(self.collective, self.buffers))

    def _check_arguments(self) -> None:
        if not isinstance(self.collective, Collective) or not hasattr(self.topo, "num_nodes"):
            expected = (
                "a topology and a collective, as in MSCCLProgram(name, topology, collective, 1)"
            )
            refuse(L112, expected, f"{self.topo!r} and {self.collective!r}")
        if not is_integer(self.instances) or not 1 <= self.instances <= MAX_NUMBER:
            refuse(L102, f"instances from 1 to {MAX_NUMBER}", repr(self.instances))
        if self.protocol not in _PROTOCOLS:
            refuse(L112, f"a protocol of {', '.join(_PROTOCOLS)}", repr(self.protocol))
        ranks = self.topo.num_nodes()
        if self.collective.num_ranks != ranks:
            found = f"{self.collective.num_ranks} ranks of the collective, {ranks} of the topology"
            refuse(L132, "as many ranks of the collective as of the topology", found)

    def _first_buffers(self) -> Buffers:
        """The buffers before the program. Errors: L132."""
        buffers = self.collective.init_buffers()
        kind = type(self.collective).__name__
        if not isinstance(buffers, list) or len(buffers) != self.num_ranks:
            found = f"{type(buffers).__name__} from {kind}.init_buffers()"
            refuse(L132, f"a list of the buffers of {self.num_ranks} ranks", found)
        for rank, own in enumerate(buffers):
            if not isinstance(own, dict) or not isinstance(own.get(Buffer.input), list):
                expected = "a dict with a list of chunks for Buffer.input on each rank"
                refuse(L132, expected, f"{own!r} for rank {rank} from {kind}.init_buffers()")
        return buffers

    def __enter__(self) -> MSCCLProgram:
        session = current_session()
        if session.current is not None:
            refuse(L129, "one program at a time", "a program inside another one's with")
        session.current = self
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        session = current_session()
        session.current = None
        session.programs.pop(self, None)
        if kind is None:
            session.programs[self] = self._record()

    def check(self) -> bool:
        """Whether the collective's check accepts what the program has left so far."""
        return bool(self.collective.check(self))

    def _record(self) -> ScriptProgram:
        """The program of the operations. Errors: L118, L130, L133."""
        program = self._tracer.finish(str(self.name), self.protocol, self._place)
        if not is_standard(self.collective):
            self._require_check()
            with placed(self._place):
                promise = promised(program, self.collective.chunk_factor)
            self._require_promise(promise)
            program = replace(program, collective=promise)
        if self.instances > 1:
            replicate = interleaved if self.interleaved_replication else batched
            program = replicate(program, int(self.instances))
        return ScriptProgram(program, None if self.instr_fusion else False)

    def _require_check(self) -> None:
        """Refuses a program that the script's own check refuses. Errors: L130."""
        said = io.StringIO()
        with redirect_stdout(said):
            verdict = self.collective.check(self)
        if not verdict:
            raise L130.error(
                at=self._places_of_check(),
                expected=f"True from {type(self.collective).__name__}.check()",
                found=repr(verdict),
                notes=shortened(said.getvalue().splitlines()),
            )

    def _places_of_check(self) -> list[Place]:
        """The program's line, and that of the script's own check if it is a function."""
        code = getattr(self.collective.check, "__code__", None)
        own = [] if code is None else [Place(code.co_filename, code.co_firstlineno)]
        return [self._place, *own]

    def _require_promise(self, promise: SleyCollective) -> None:
        """Refuses a promise of nothing, and one that lacks chunks which the check has seen in the
        outputs. Errors: L130."""
        if (promise.expected == NONE).all():
            raise L130.error(
                at=self._places_of_check(),
                expected="operations that bring chunks to outputs",
                found="outputs without any data, which the check accepts",
                remedy="Write the outputs, or check those that the program writes.",
            )
        lacking = lacks(promise, self.collective, self._inputs, self.buffers)
        if lacking:
            raise L130.error(
                at=self._places_of_check(),
                expected="outputs in which the check sees what the operations bring there",
                found=lacking[0],
                notes=shortened(lacking[1:]),
                remedy="Let init_buffers give None for outputs without data, and one list, or "
                "get_buffer_index, for an output in the input's memory.",
            )

    def get_ref(self, rank: int, buffer: Hashable, index: int, size: int) -> Ref:
        """The reference to `size` chunks at (rank, buffer, index ...). Errors: L101, L104, L112."""
        rank = self.check_rank(rank)
        if buffer not in DATA and buffer not in self.buffers[rank]:
            known = [name for name in self.buffers[rank] if name not in DATA]
            refuse(
                L104,
                "Buffer.input, Buffer.output, or a scratch buffer that something was copied to",
                f"{buffer!r} on rank {rank}",
                did_you_mean(str(buffer), map(str, known)),
            )
        buffer, index = self.collective.get_buffer_index(rank, buffer, index)
        return Ref(rank, buffer, index, size, self)

    def check_rank(self, rank: int) -> int:
        """A rank of the program. Errors: L101, L112."""
        if not is_integer(rank):
            refuse(L112, "an integer for a rank", repr(rank))
        if not 0 <= rank < self.num_ranks:
            refuse(L101, f"a rank from 0 to {self.num_ranks - 1}", str(rank))
        return int(rank)

    def transfer(
        self, kind: TransferKind, source: Ref, target: Ref, *, sendtb: int, recvtb: int, ch: int
    ) -> None:
        """Copies `source` to `target`, or reduces it into `target`. sendtb, recvtb, ch: the
        thread blocks at both ends and the channel that it asks for; -1 for none. Errors: L129
        outside of the program's ``with``."""
        if current_session().current is not self:
            refuse(L129, "operations inside of the program's with", "one outside of it")
        if source.rank != target.rank and not self.topo.link(source.rank, target.rank):
            refuse(
                C301,
                f"a link from rank {source.rank} to rank {target.rank}",
                f"none in {getattr(self.topo, 'name', self.topo)}",
                remedy="Forward the data through linked ranks, or pass another topology.",
            )
        words = {"channel": ch}
        if self.threadblock_policy is ThreadblockPolicy.manual:
            words |= {"send_block": sendtb, "recv_block": recvtb}
        requested = {word: None if number == -1 else number for word, number in words.items()}
        read = self._tracer.chunk(*source.place)
        if kind is TransferKind.REDUCE:
            self._tracer.chunk(*target.place).reduce(read, **requested)
        else:
            read.copy(target.rank, target.buffer, target.index, **requested)
        from_, to = (self.buffers[ref.rank][ref.buffer] for ref in (source, target))
        for k in range(source.size):
            chunk = from_[source.index + k]
            if kind is TransferKind.REDUCE:
                chunk = to[target.index + k].reduce(target.rank, chunk)
            to[target.index + k] = chunk

    def is_same_place(self, one: Ref, other: Ref) -> bool:
        """Whether two references name the same memory. Errors: L103, L112."""
        return self._tracer.memory(*one.place) == self._tracer.memory(*other.place)

    def read(self, ref: Ref) -> None:
        """Refuses a reference to chunks that don't exist or hold no data. Errors: L103, L105."""
        self._tracer.chunk(*ref.place)

    def lines(self) -> list[str]:
        """The transfers so far, in words."""
        return [
            f"rank {row.src} {SleyBuffer(row.src_buffer).chunks(row.src_index, row.count)} "
            f"{'reduced into' if row.kind == TransferKind.REDUCE else 'copied to'} "
            f"rank {row.dst} {SleyBuffer(row.dst_buffer).chunks(row.dst_index, row.count)}"
            for row in self._tracer.finish(str(self.name), self.protocol, self._place).transfers
        ]


@dataclass
class Ref:
    """A reference to `size` chunks at (rank, buffer, index ...)."""

    rank: int
    buffer: Any
    index: int
    size: int
    prog: MSCCLProgram = field(repr=False)

    @property
    def place(self) -> tuple[int, Any, int, int]:
        return self.rank, self.buffer, self.index, self.size

    def copy(
        self,
        dst: int,
        buffer: Hashable = None,
        index: int = -1,
        sendtb: int = -1,
        recvtb: int = -1,
        ch: int = -1,
    ) -> Ref:
        """Copies the chunks to (dst, buffer, index ...), and returns the reference to the copy.

        Without buffer and index, the place is the same as here; without an index, the end of a
        scratch buffer.
        """
        prog, size = self.prog, self.size
        dst = prog.check_rank(dst)
        if buffer is None:
            if index != -1:
                refuse(L104, "a buffer for the index", f"index={index} without a buffer")
            buffer, index = self.buffer, self.index
        if buffer not in DATA:
            scratch = prog.buffers[dst].setdefault(buffer, BufferSlice(Buffer.scratch, buffer))
            index = len(scratch) if index == -1 else index
        # As in msccl-tools, the source's rank says where an input or output in place begins.
        buffer, index = prog.collective.get_buffer_index(self.rank, buffer, index)
        target = Ref(dst, buffer, index, size, prog)
        if not prog.is_same_place(self, target):
            prog.transfer(TransferKind.COPY, self, target, sendtb=sendtb, recvtb=recvtb, ch=ch)
        return target

    def reduce(self, other_chunkref: Ref, sendtb: int = -1, recvtb: int = -1, ch: int = -1) -> Ref:
        """Reduces another reference's chunks into these, and returns this reference."""
        if not isinstance(other_chunkref, Ref) or other_chunkref.prog is not self.prog:
            refuse(L110, "a reference of this program", repr(other_chunkref))
        kind, asked = TransferKind.REDUCE, {"sendtb": sendtb, "recvtb": recvtb, "ch": ch}
        self.prog.transfer(kind, other_chunkref, self, **asked)
        return self

    def split(self, num: int) -> list[Ref]:
        """References to `num` equal parts of the chunks, in order."""
        if not is_integer(num) or num < 1 or self.size % num:
            refuse(L126, f"a number of parts that divides {self.size} chunks", repr(num))
        size = self.size // num
        starts = range(self.index, self.index + self.size, size)
        return [self.prog.get_ref(self.rank, self.buffer, start, size) for start in starts]

    def group(self, other: Ref) -> Ref:
        """The reference to the chunks from the first to the last one of both."""
        if not isinstance(other, Ref) or (other.rank, other.buffer) != (self.rank, self.buffer):
            refuse(L126, f"another reference to {self.buffer!r} of rank {self.rank}", repr(other))
        first = min(self.index, other.index)
        end = max(self.index + self.size, other.index + other.size)
        return Ref(self.rank, self.buffer, first, end - first, self.prog)

    def get_origin_index(self, index: int = 0) -> int:
        """The input index at which the chunk began."""
        return self._chunk(index).origin_index

    def get_origin_rank(self, index: int = 0) -> int:
        """The rank on which the chunk began."""
        return self._chunk(index).origin_rank

    def get_dst_index(self, index: int = 0) -> int:
        """The output index where the chunk shall end."""
        return self._chunk(index).dst_index

    def get_dst_rank(self, index: int = 0) -> int:
        """The rank where the chunk shall end; -1 for several."""
        return self._chunk(index).dst_rank

    def print_chunk_info(self, index: int = 0) -> None:
        """Prints a chunk."""
        print(self._content(index))

    def _content(self, index: int) -> Any:
        """What the place holds `index` chunks behind the first. Errors: L103, L105."""
        self.prog.read(Ref(self.rank, self.buffer, self.index + index, 1, self.prog))
        return self.prog.buffers[self.rank][self.buffer][self.index + index]

    def _chunk(self, index: int) -> Chunk:
        """This content, which must be one input chunk. Errors: L103, L105, L127."""
        found = self._content(index)
        if not isinstance(found, Chunk):
            refuse(
                L127,
                f"an input chunk at {self.buffer!r}{chunk_range(self.index + index, 1)}",
                repr(found),
            )
        return found

    def _one_sided(self, *arguments: object, **keywords: object) -> NoReturn:
        """Refuses an operation of MSCCL++."""
        refuse(L134, "copy and reduce", "an operation of MSCCL++: put, get, signal or wait")

    put = get = signal = wait = _one_sided
