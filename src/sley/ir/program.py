"""Program: a collective and the transfers that carry it out, in the order of their meaning."""

from __future__ import annotations

from dataclasses import dataclass

from sley.ir.collective import Collective, Layout
from sley.ir.sources import Sources
from sley.ir.tables import ByteArray, IntArray, Table, Value
from sley.ir.topology import Topology
from sley.ir.words import Protocol


@dataclass(frozen=True, eq=False, repr=False)
class Transfers(Table):
    """One row a transfer: `count` chunks of (src, src_buffer, src_index ...) are copied to, or
    reduced into, (dst, dst_buffer, dst_index ...). src and dst are ranks; equal ranks make it a
    local operation.

    kind: TransferKind.
    src, dst: the ranks it goes from and to.
    src_buffer, dst_buffer: Buffer.
    src_index, dst_index: the first chunk in the buffer.
    count: how many neighbouring chunks.
    channel: the channel asked for, NONE leaves it to the compiler.
    instances: into how many parallel parts the compiler cuts it.
    lane: which part it is once it has been cut.
    send_block, recv_block: the thread block asked for at src and at dst, NONE leaves it to the
        compiler (a local operation uses send_block).
    step: ResCCL's logical step, NONE in a chunk program.
    source: row of the program's `sources`.
    """

    kind: ByteArray
    src: IntArray
    src_buffer: ByteArray
    src_index: IntArray
    dst: IntArray
    dst_buffer: ByteArray
    dst_index: IntArray
    count: IntArray
    channel: IntArray
    instances: IntArray
    lane: IntArray
    send_block: IntArray
    recv_block: IntArray
    step: IntArray
    source: IntArray


@dataclass(frozen=True, eq=False, repr=False)
class Program(Value):
    """What an algorithm says: executing the transfers one after the other is its meaning.

    name: the algorithm's name.
    collective: what it has to bring about.
    transfers: its steps, in the order of their meaning.
    scratch_chunks: int32 (ranks,), chunks of scratch on each rank.
    protocol: the protocol asked for, None leaves it to the compiler.
    topology: the cluster that it is written for, None for any.
    sources: the lines of text that the transfers came from.
    """

    name: str
    collective: Collective
    transfers: Transfers
    scratch_chunks: IntArray
    protocol: Protocol | None
    sources: Sources
    topology: Topology | None = None

    @property
    def layout(self) -> Layout:
        """Where every chunk lies."""
        return self.collective.layout(self.scratch_chunks)

    def __repr__(self) -> str:
        return f"Program({self.name}: {self.collective}, {len(self.transfers)} transfers)"
