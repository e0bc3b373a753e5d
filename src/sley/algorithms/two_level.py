"""Two levels: all pairs within each host, and all pairs across hosts.

A host's ranks share a memory; a network joins the hosts. Each host has *lanes*, ranks that share
its traffic to other hosts, so that the traffic uses all of the host's network cards. No algorithm
sends less data over the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from sley.algorithms.algorithm import MPICH, algorithm, check_root, check_sizes, stage_numbers
from sley.algorithms.reducescatter import slots_of, sum_terms
from sley.algorithms.rings import accumulator
from sley.errors import Place
from sley.errors.language import L112
from sley.ir.collectives import AllGather, AllReduce, Broadcast, Reduce, ReduceScatter
from sley.ir.orders import BALANCED, SameBits
from sley.ir.program import Program
from sley.ir.tables import NONE, LongArray, offsets_of
from sley.ir.words import is_integer
from sley.lang import ChunkProgram, trace


@algorithm("allreduce", "MSCCLang, figure 1, and 7.1.2")
def two_level_allreduce(
    nodes: int,
    gpus: int,
    *,
    stage_channels: Sequence[int] | None = None,
    same_bits: SameBits = False,
    in_place: bool = False,
) -> Program:
    """AllReduce by all pairs: reduces within hosts, then across hosts, and copies the sums back
    across and within hosts.

    Details: `TwoLevel.allreduce`. Source: MSCCLang, figure 1, with all pairs (7.1.2) instead of
    rings. Errors: L102, L121.
    """
    hosts = TwoLevel.grid(nodes, gpus)
    return hosts.allreduce(stage_channels=stage_channels, same_bits=same_bits, in_place=in_place)


@algorithm("allreduce", "MSCCLang, figure 1")
def two_level_one_step_allreduce(
    nodes: int, gpus: int, *, same_bits: SameBits = True, in_place: bool = False
) -> Program:
    """AllReduce in two steps for small data: every rank sums its host's data, then the hosts' sums.

    Details: `TwoLevel.one_step_allreduce`. Source: MSCCLang, figure 1, with one-step-allreduce
    instead of rings. Errors: L102, L121.
    """
    return TwoLevel.grid(nodes, gpus).one_step_allreduce(same_bits=same_bits, in_place=in_place)


@algorithm("allgather", "ResCCL, appendix A")
def two_level_allgather(
    nodes: int, gpus: int, *, stage_channels: Sequence[int] | None = None, in_place: bool = False
) -> Program:
    """AllGather in two steps: each rank sends its chunk to the ranks of its host and to one rank of
    each other host, which forwards it there.

    Details: `TwoLevel.allgather`. Source: ResCCL, appendix A, with all pairs instead of rings.
    Errors: L102, L121.
    """
    return TwoLevel.grid(nodes, gpus).allgather(stage_channels=stage_channels, in_place=in_place)


@algorithm("reducescatter", "ResCCL, appendix A")
def two_level_reducescatter(
    nodes: int, gpus: int, *, same_bits: SameBits = False, in_place: bool = False
) -> Program:
    """ReduceScatter in two steps: each host sums every rank's chunk, then that rank adds the hosts'
    sums.

    Details: `TwoLevel.reducescatter`. Source: ResCCL, appendix A, with all pairs instead of rings.
    Errors: L102, L121.
    """
    return TwoLevel.grid(nodes, gpus).reducescatter(same_bits=same_bits, in_place=in_place)


@algorithm("broadcast", f"{MPICH}, 4.3")
def two_level_broadcast(nodes: int, gpus: int, *, root: int = 0, in_place: bool = False) -> Program:
    """Broadcast that sends the data once over the network: the root's host scatters it over the
    other hosts, which gather it.

    Details: `TwoLevel.broadcast`. Source: van de Geijn's algorithm, across hosts. Errors: L101,
    L102, L121.
    """
    return TwoLevel.grid(nodes, gpus).broadcast(root=root, in_place=in_place)


@algorithm("reduce", f"{MPICH}, 4.4")
def two_level_reduce(
    nodes: int,
    gpus: int,
    *,
    root: int = 0,
    stage_channels: Sequence[int] | None = None,
    same_bits: SameBits = False,
    in_place: bool = False,
) -> Program:
    """Reduce in three steps: within hosts, then to the root's host, whose ranks send the root the
    sums.

    Details: `TwoLevel.reduce`. Source: Rabenseifner's algorithm within hosts. Errors: L101, L102,
    L121.
    """
    hosts = TwoLevel.grid(nodes, gpus)
    return hosts.reduce(
        root=root, stage_channels=stage_channels, same_bits=same_bits, in_place=in_place
    )


class TwoLevel:
    """The algorithms for hosts of any size, with their ranks in any order.

    hosts: the ranks of each host; every rank belongs to one host.
    lanes: number of ranks of each host that send to other hosts: the size of the smallest host.
    slots: chunks of scratch for a sum, within or across hosts, by a balanced tree.
    host, local: int64 (ranks,), each rank's host, and its place there.

    Errors: L112 for lists that don't contain every rank once, L121 for fewer than two ranks.
    """

    def __init__(self, hosts: Sequence[Sequence[int]]) -> None:
        flat = [rank for members in hosts for rank in members]
        sound = all(map(is_integer, flat)) and sorted(flat) == list(range(len(flat)))
        if not sound or not all(len(members) for members in hosts):
            raise L112.error(
                at=Place(detail="two-level"),
                expected="for each host a list of its ranks; every rank in one list",
                found=repr(hosts),
            )
        check_sizes("two-level", ranks=len(flat))
        self.hosts: tuple[LongArray, ...] = tuple(np.array(members) for members in hosts)
        self.number = len(self.hosts)
        self.rank: LongArray = np.arange(len(flat))
        self._members: LongArray = np.array(flat)
        self.size: LongArray = np.array([len(members) for members in self.hosts])
        self._first = offsets_of(self.size)
        self.lanes = int(self.size.min())
        self.slots = slots_of(max(int(self.size.max()), self.number))
        self.host, self.local = np.empty((2, len(flat)), np.int64)
        for host, members in enumerate(self.hosts):
            self.host[members], self.local[members] = host, np.arange(len(members))

    @classmethod
    def grid(cls, nodes: int, gpus: int) -> TwoLevel:
        """Hosts of equal size with consecutive ranks."""
        return cls(np.arange(nodes * gpus).reshape(nodes, gpus).tolist())

    def allreduce(
        self,
        *,
        stage_channels: Sequence[int] | None = None,
        same_bits: SameBits = False,
        in_place: bool = False,
    ) -> Program:
        """AllReduce. The data has a part for each lane, and each part has a chunk for each host.

        Within each host the rank of a lane sums the lane's part, in the order of the host's ranks
        starting with itself. Then the rank of that lane on host h sums chunk h of these sums, in
        the order of the hosts starting with h. So every chunk is summed once, and the sums take the
        same path back. Each of N hosts sends 2 (N - 1) / N of the data to the others.
        stage_channels: a channel for summing and one for sharing; with None the compiler chooses
        them. same_bits: whether all sums have one order, as in `one_step_allreduce`.
        """
        summing, sharing = stage_numbers("two-level-allreduce", stage_channels, 2)
        hosts, buffer = self.number, "in" if in_place else "out"
        host, lane, chunk = (a.ravel() for a in np.indices((hosts, self.lanes, hosts)))
        owner, index = self._lane(host, lane), lane * hosts + chunk
        own = host == chunk
        final, place = owner[own], index[own]

        def sum_up(p: ChunkProgram) -> None:
            if same_bits:
                add, slots = self._adding(same_bits)
                early, across = ("scratch", chunk * slots), self._across(lane[own])
                near = self._terms(host)
                add(p, owner, near, "in", index, (buffer, index), early, channel=summing)
                total, early = (buffer, place), ("scratch", chunk[own] * slots)
                add(p, final, across, buffer, place, total, early, channel=summing)
                return
            accumulator(p, owner, "in", buffer, index)
            for at, other in self._around(owner):
                sent = p.chunk(other, "in", index[at])
                p.chunk(owner[at], buffer, index[at]).reduce(sent, channel=summing)
            for hop in range(1, hosts):
                sent = p.chunk(self._lane(host[own] + hop, lane[own]), buffer, place)
                p.chunk(final, buffer, place).reduce(sent, channel=summing)

        def body(p: ChunkProgram) -> None:
            sum_up(p)
            for hop in range(1, hosts):
                there = self._lane(host[own] + hop, lane[own])
                p.chunk(final, buffer, place).copy(there, buffer, place, channel=sharing)
            for hop in range(hosts):
                part = lane[own] * hosts + (host[own] + hop) % hosts
                for near, other in self._around(final):
                    summed = p.chunk(final[near], buffer, part[near])
                    summed.copy(other, buffer, part[near], channel=sharing)

        collective = AllReduce(len(self.rank), self.lanes * hosts, in_place)
        return trace(collective, body, name="two-level-allreduce")

    def one_step_allreduce(self, *, same_bits: SameBits = True, in_place: bool = False) -> Program:
        """AllReduce of undivided data in two steps.

        Every rank sums its host's data in the order of the host's ranks. Then it receives a sum
        from one rank of each other host, and sums these in the order of the hosts. All ranks sum in
        the same order, so all results have the same bits. same_bits: with "balanced" by balanced
        trees of each host's ranks and of the hosts (`ir.orders`).
        """
        buffer = "in" if in_place else "out"
        first = np.array([members[0] for members in self.hosts])
        add, slots = self._adding(same_bits)

        def in_trees(p: ChunkProgram) -> None:
            none = np.zeros_like(self.rank)
            near, across = self._terms(self.host), self._across(self.local)
            held, early = ("scratch", none), ("scratch", none + slots)
            add(p, self.rank, near, "in", none, held, held)
            add(p, self.rank, across, "scratch", none, (buffer, none), early)

        def body(p: ChunkProgram) -> None:
            p.chunk(first[self.host], "in", 0).copy(self.rank, "scratch", 0)
            for place in range(1, int(self.size.max())):
                who = self.rank[self.size[self.host] > place]
                other = np.array([self.hosts[host][place] for host in self.host[who]])
                p.chunk(who, "scratch", 0).reduce(p.chunk(other, "in", 0))
            for host in range(self.number):
                summed = p.chunk(self._proxy(self.rank, host), "scratch", 0)
                if host == 0:
                    summed.copy(self.rank, buffer, 0)
                else:
                    p.chunk(self.rank, buffer, 0).reduce(summed)

        collective = AllReduce(len(self.rank), 1, in_place)
        traced = in_trees if same_bits == BALANCED else body
        return trace(collective, traced, name="two-level-one-step-allreduce")

    def allgather(
        self, *, stage_channels: Sequence[int] | None = None, in_place: bool = False
    ) -> Program:
        """AllGather. Each chunk crosses the network once to each other host.

        stage_channels: a channel for the first step and one for forwarding; with None the compiler
        chooses them.
        """
        sending, forwarding = stage_numbers("two-level-allgather", stage_channels, 2)
        rank = self.rank

        def body(p: ChunkProgram) -> None:
            if not in_place:
                p.chunk(rank, "in", 0).copy(rank, "out", rank)
            for hop in range(1, self.number):
                there = self._proxy(rank, self.host + hop)
                p.chunk(rank, "in", 0).copy(there, "out", rank, channel=sending)
            for near, other in self._around(rank):
                p.chunk(near, "in", 0).copy(other, "out", near, channel=sending)
            for hop in range(1, self.number):
                there = self._proxy(rank, self.host + hop)
                for near, other in self._around(there):
                    received = p.chunk(there[near], "out", rank[near])
                    received.copy(other, "out", rank[near], channel=forwarding)

        return trace(AllGather(len(rank), 1, in_place), body, name="two-level-allgather")

    def reducescatter(self, *, same_bits: SameBits = False, in_place: bool = False) -> Program:
        """ReduceScatter. Each chunk crosses the network once from each other host.

        On every other host one rank sums the chunk, in the order of the host's ranks starting with
        itself. The chunk's own rank sums its host's contributions in the same way, then adds the
        other hosts' sums, in the order of the hosts starting with its own. In place, partial sums
        overwrite the data.
        same_bits: as for `allreduce`.
        """
        rank, used = self.rank, np.zeros(len(self.rank), np.int64)
        add, slots = self._adding(same_bits)
        where = ("in", rank) if in_place else ("out", np.zeros_like(rank))

        def free(there: LongArray) -> LongArray:
            """The first free chunk of scratch of ranks `there` for each of chunks 0, 1, ..."""
            index = np.empty_like(rank)
            for chunk, who in enumerate(there.tolist()):
                index[chunk] = used[who]
                used[who] += slots
            return index

        def partial(p: ChunkProgram, there: LongArray) -> tuple[str, LongArray]:
            """Buffer and index in which ranks `there` sum chunks 0, 1, ..."""
            if in_place:
                return "in", rank
            index = free(there)
            p.chunk(there, "in", rank).copy(there, "scratch", index)
            return "scratch", index

        def ordered(p: ChunkProgram) -> None:
            proxy = self._across(self.local)
            index = np.array([free(there) for there in proxy.T]).T
            for host, there in enumerate(proxy.T):
                early = "scratch", index[:, host]
                result = where if in_place else early
                near = self._terms(self.host[there])
                add(p, there, near, "in", rank, result, early)
            source, part = ("in", rank) if in_place else ("scratch", index)
            add(p, rank, proxy, source, part, where, ("scratch", free(rank)))

        def body(p: ChunkProgram) -> None:
            sums = []
            for hop in range(1, self.number):
                there = self._proxy(rank, self.host + hop)
                buffer, index = partial(p, there)
                for near, other in self._around(there):
                    sent = p.chunk(other, "in", rank[near])
                    p.chunk(there[near], buffer, index[near]).reduce(sent)
                sums.append((there, buffer, index))
            buffer, index = where
            total = p.chunk(rank, "in", rank)
            if not in_place:
                total.copy(rank, "out", 0)
            for near, other in self._around(rank):
                p.chunk(near, buffer, index[near]).reduce(p.chunk(other, "in", near))
            for summed in sums:
                p.chunk(rank, buffer, index).reduce(p.chunk(*summed))

        collective = ReduceScatter(len(rank), 1, in_place)
        traced = ordered if same_bits else body
        return trace(collective, traced, name="two-level-reducescatter")

    def broadcast(self, *, root: int = 0, in_place: bool = False) -> Program:
        """Broadcast. The data has a part for each lane, and each part has a chunk for each host
        other than the root's.

        The root sends all data to its host. The rank of a lane there sends each other host one
        chunk of the lane's part; the hosts exchange these chunks and forward the part to their
        ranks. So the root's host sends the data once, and every other host sends less.
        """
        check_root("two-level-broadcast", root, len(self.rank))
        home, lanes, parts = int(self.host[root]), self.lanes, self.number - 1
        chunks = lanes * max(parts, 1)
        hop, lane, part = (a.ravel() for a in np.indices((parts, lanes, parts)))
        owner, index = self._lane(home + 1 + hop, lane), lane * parts + part
        own = hop == part

        def body(p: ChunkProgram) -> None:
            if not in_place:
                p.chunk(root, "in", 0, chunks).copy(root, "out", 0)
            for turn in range(1, int(self.size[home])):
                neighbour = self._lane(home, self.local[root] + turn)
                at = (turn * parts + np.arange(chunks)) % chunks
                p.chunk(np.full(chunks, root), "in", at).copy(np.full(chunks, neighbour), "out", at)
            if not parts:
                return
            first = self._lane(home, self.local[root] + lane[own])
            p.chunk(first, "out", index[own]).copy(owner[own], "out", index[own])
            for step in range(1, parts):
                there = self._lane(home + 1 + (hop[own] + step) % parts, lane[own])
                p.chunk(owner[own], "out", index[own]).copy(there, "out", index[own])
            for near, other in self._around(owner):
                p.chunk(owner[near], "out", index[near]).copy(other, "out", index[near])

        collective = Broadcast(len(self.rank), chunks, root, in_place)
        return trace(collective, body, name="two-level-broadcast")

    def reduce(
        self,
        *,
        root: int = 0,
        stage_channels: Sequence[int] | None = None,
        same_bits: SameBits = False,
        in_place: bool = False,
    ) -> Program:
        """Reduce. The data has a chunk for each lane.

        Within each host the rank of a lane sums the lane's chunk, in the order of the host's ranks
        starting with itself (on the root's host the root has lane 0). The rank on the root's host
        then adds the other hosts' sums, in the order of the hosts after its own, and sends the
        result to the root. In place, only the root's data change.
        stage_channels: a channel for summing and one for the results to the root.
        same_bits: as for `allreduce`.
        """
        check_root("two-level-reduce", root, len(self.rank))
        summing, collecting = stage_numbers("two-level-reduce", stage_channels, 2)
        home, result = int(self.host[root]), "in" if in_place else "out"
        lane = np.arange(self.lanes)
        owner = [
            self._lane(home + hop, lane + (self.local[root] if hop == 0 else 0))
            for hop in range(self.number)
        ]

        everyone, chunk = np.concatenate(owner), np.tile(lane, self.number)
        add, slots = self._adding(same_bits)
        summed = slots if home > 0 else 0

        def ordered(p: ChunkProgram) -> None:
            held, none = ("scratch", np.zeros_like(chunk)), np.zeros_like(lane)
            near = self._terms(self.host[everyone])
            add(p, everyone, near, "in", chunk, held, held, channel=summing)
            # The first host adds to its own sums, the others to the first one's.
            across = np.roll(owner, home, axis=0).T
            early, total = ("scratch", none + slots), ("scratch", none + summed)
            for at, where in ((lane[:1], (result, none)), (lane[1:], total)):
                if len(at):
                    ends = [(buffer, index[at]) for buffer, index in (where, early)]
                    add(p, owner[0][at], across[at], "scratch", none[at], *ends, channel=summing)
            collect(p, summed)

        def collect(p: ChunkProgram, at: int) -> None:
            if self.lanes > 1:
                done, to = p.chunk(owner[0][1:], "scratch", at), np.full_like(lane[1:], root)
                done.copy(to, result, lane[1:], channel=collecting)

        def body(p: ChunkProgram) -> None:
            accumulator(p, root, "in", result, 0)
            sums = [(everyone[:1], chunk[:1], result), (everyone[1:], chunk[1:], "scratch")]
            if len(everyone) > 1:
                p.chunk(everyone[1:], "in", chunk[1:]).copy(everyone[1:], "scratch", 0)
            for who, part, buffer in sums:
                for near, other in self._around(who):
                    sent = p.chunk(other, "in", part[near])
                    p.chunk(who[near], buffer, 0).reduce(sent, channel=summing)
            for there in owner[1:]:
                for at, buffer in ((lane[:1], result), (lane[1:], "scratch")):
                    if len(at):
                        sent = p.chunk(there[at], "scratch", 0)
                        p.chunk(owner[0][at], buffer, 0).reduce(sent, channel=summing)
            collect(p, 0)

        collective = Reduce(len(self.rank), self.lanes, root, in_place)
        traced = ordered if same_bits else body
        return trace(collective, traced, name="two-level-reduce")

    def _adding(self, same_bits: SameBits) -> tuple[Callable[..., None], int]:
        """What sums in one order, and the chunks of scratch for a sum."""
        slots = self.slots if same_bits == BALANCED else 1
        return partial(sum_terms, same_bits=same_bits), slots

    def _lane(self, host: LongArray | int, lane: LongArray | int) -> LongArray:
        """The rank of a lane on a host; both numbers are taken modulo their size."""
        at = np.asarray(host) % self.number
        rank: LongArray = self._members[self._first[at] + np.asarray(lane) % self.size[at]]
        return rank

    def _proxy(self, rank: LongArray, host: LongArray | int) -> LongArray:
        """The rank on a host that handles the data of `rank`: the one at the same place, modulo the
        host's size; on the rank's own host, the rank itself."""
        return self._lane(host, self.local[rank])

    def _across(self, local: LongArray) -> LongArray:
        """int64 (locals, hosts): of each host the rank at a place, modulo its size."""
        return np.stack([self._lane(host, local) for host in range(self.number)], axis=1)

    def _terms(self, host: LongArray) -> LongArray:
        """int64 (hosts, ranks): the ranks of each host in order; NONE behind the last."""
        table = np.full((self.number, int(self.size.max())), NONE)
        for number, members in enumerate(self.hosts):
            table[number, : len(members)] = members
        return table[host]

    def _around(self, rank: LongArray) -> Iterator[tuple[LongArray, LongArray]]:
        """The other ranks on the hosts of `rank`: in turn t, positions in `rank`, and for each the
        rank t places after it on its host, modulo the host's size."""
        host, local = self.host[rank], self.local[rank]
        for turn in range(1, int(self.size.max())):
            near = np.flatnonzero(self.size[host] > turn)
            if len(near):
                yield near, self._lane(host[near], local[near] + turn)
