"""Checks: refuse a raw plan that a version of MSCCL++ would not load, or would execute wrongly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from sley.errors import Place, Rule, counted
from sley.errors.formats import F422, F444
from sley.errors.mscclpp import F475, F476, F479, F482, F483, F486, F488, F493, F496
from sley.formats.format import Problems
from sley.formats.mscclpp import words
from sley.formats.mscclpp.raw import Located, RawGroup, RawOperation, RawPlan, RawRange, place_of
from sley.formats.mscclpp.targets import LOCAL_MEMORIES, PlanTarget, refuse_absent
from sley.formats.mscclpp.words import Move, Operand, Where
from sley.ir.words import Buffer


def check(raw: RawPlan, target: PlanTarget) -> None:
    """Refuses a plan that a target can't execute as it is written, apart from rules that need its
    collective. Errors: F422 to F496."""
    problems = Problems()
    _check_header(raw, target, problems)
    _check_groups(raw, problems)
    _check_scratch(raw, problems)
    for rank in range(len(raw.gpus)):
        check_gpu(raw, rank, target, problems)
        problems.raise_full()
    # Operations refer to entries of these tables.
    problems.raise_any()
    for one in raw.operations:
        _Operation(one, target, problems).check()
        problems.raise_full()
    _check_barriers(raw, problems)
    problems.raise_any()


def _check_header(raw: RawPlan, target: PlanTarget, problems: Problems) -> None:
    unit = target.vector_bytes
    if raw.alignment % unit:
        expected = f"buffer_alignment to be a multiple of {unit}"
        problems.add(F476, raw.whole, expected, str(raw.alignment))
    if raw.threads > target.threads:
        expected = f"num_threads_per_block to be at most {target.threads}"
        problems.add(F422, raw.whole, expected, str(raw.threads))
    if raw.max_bytes < raw.min_bytes:
        expected = "min_message_size to be at most max_message_size"
        found = f"{raw.min_bytes} and {raw.max_bytes}"
        problems.add(F422, raw.whole, expected, found)
    if not raw.gpus:
        problems.add(F422, raw.whole, "at least 1 GPU", "none")


def _check_groups(raw: RawPlan, problems: Problems) -> None:
    """The members of a switch group all have it. Any two ranks have their common groups in one
    order, in which the executor connects them."""
    ranks = range(len(raw.gpus))
    common: dict[tuple[int, int], list[RawGroup]] = defaultdict(list)
    for rank, gpu in enumerate(raw.gpus):
        for group in gpu.groups:
            members = set(group.ranks)
            if rank not in members or not members <= set(ranks) or len(members) < len(group.ranks):
                expected = "different ranks of the plan, and this one among them"
                at, found = place_of(raw.file, rank), _describe(group)
                problems.add(F483, at, expected, found)
                problems.raise_full()
                continue
            # In the order of the file, which is the one in which the executor connects them.
            for member in members - {rank}:
                common[rank, member].append(group)
    for (rank, member), groups in common.items():
        if groups != common.get((member, rank), []):
            expected = f"its groups with rank {member} as on that rank, in one order"
            at, found = place_of(raw.file, rank), _describe(groups[0])
            problems.add(F483, at, expected, found)
            problems.raise_full()


def _check_scratch(raw: RawPlan, problems: Problems) -> None:
    """The executor computes places in the scratch of another rank from the size of the own one."""
    remedy = "Give all ranks the largest number of scratch_chunks."
    sizes = [gpu.scratch_chunks for gpu in raw.gpus]
    for rank, gpu in enumerate(raw.gpus):
        at, found = place_of(raw.file, rank), f"scratch_chunks: {sizes[rank]}"
        buffers = {one.buffer for one in gpu.remote} | {one.buffer for one in gpu.groups}
        far = Buffer.SCRATCH in buffers
        if far and raw.doubles and not raw.reuses and len(set(sizes)) > 1:
            expected = "as many scratch_chunks on all ranks, with use_double_scratch_buffer"
            problems.add(F493, at, expected, found, remedy)
        elif far and raw.reuses and not sizes[rank]:
            expected = "scratch_chunks on a rank that accesses other scratch, with reuse_resources"
            problems.add(F493, at, expected, found, remedy)
        for entry in gpu.remote:
            exists = entry.buffer == Buffer.SCRATCH and entry.rank < len(raw.gpus)
            if exists and not sizes[entry.rank] and not raw.reuses:
                found = f"none on rank {entry.rank}"
                problems.add(F493, at, "scratch on the rank of a remote buffer", found, remedy)
    problems.raise_full()


_SHOWN_RANKS = 8
_SHOWN_CHARS = 40


def _describe(group: RawGroup) -> str:
    ranks = ", ".join(map(str, group.ranks[:_SHOWN_RANKS]))
    more = ", ..." if len(group.ranks) > _SHOWN_RANKS else ""
    return f"a switch group of the ranks {ranks}{more}"


def check_gpu(raw: RawPlan, rank: int, target: PlanTarget, problems: Problems) -> None:
    """Adds the problems of a GPU with other entries or more than the executor's tables have."""
    at, ranks, gpu = place_of(raw.file, rank), len(raw.gpus), raw.gpus[rank]
    for name in ("input_chunks", "output_chunks"):
        if getattr(gpu, name) < 1:
            problems.add(F475, at, f"{name} to be at least 1", "0")
    _check_length(problems, at, "port channels", gpu.peers[words.PORT], target.port_channels)
    most = target.port_memories - LOCAL_MEMORIES
    if gpu.port_buffers > most:
        expected = f"at most {most} remote buffers with access by port channels"
        problems.add(F482, at, expected, str(gpu.port_buffers))
    expected = f"another one of the file's {counted(ranks, 'GPU')}, of ranks 0 to {ranks - 1}"
    for word in (words.MEMORY, words.PORT):
        for channel, peer in enumerate(gpu.peers[word]):
            if peer >= ranks or peer == rank:
                place = raw.at_channel(rank, word, channel)
                problems.add(F483, place, expected, f"a channel to rank {peer}")
                break  # the others of the list are mostly wrong in the same way
    for remote in gpu.remote:
        if remote.rank >= ranks or remote.rank == rank:
            problems.add(F483, at, expected, f"a remote buffer of rank {remote.rank}")
            break
    for number in range(len(gpu.blocks)):
        _check_block(raw, rank, number, target, problems)


def _check_length(
    problems: Problems, at: Place, what: str, entries: Sequence[object], limit: int
) -> None:
    if len(entries) > limit:
        problems.add(F482, at, f"at most {limit} {what}", str(len(entries)))


def _check_block(
    raw: RawPlan, rank: int, number: int, target: PlanTarget, problems: Problems
) -> None:
    gpu, block = raw.gpus[rank], raw.gpus[rank].blocks[number]
    at = block.made_at or place_of(raw.file, rank, number)
    operations = sum(1 + len(one.inner) for one in block.operations)
    if operations > target.operations:
        expected = f"at most {target.operations} operations"
        problems.add(F444, at, expected, str(operations))
    for word in words.CHANNEL_TYPES:
        channels, buffers = block.channels[word], block.buffers[word]
        has = len(gpu.groups) if word == words.SWITCH else len(gpu.peers[word])
        _check_length(problems, at, f"{word} channels", channels, target.channels)
        for channel in channels:
            if channel >= has:
                expected = f"one of the GPU's {has} {word} channels"
                problems.add(F483, at, expected, f"channel {channel}")
                break
        what = f"references to remote buffers for {word} channels"
        _check_length(problems, at, what, buffers, target.references)
        for buffer in buffers:
            known = buffer < len(gpu.remote) and word in gpu.remote[buffer].types
            if not known:
                expected = f"a remote buffer of the GPU with access by {word} channels"
                problems.add(F483, at, expected, f"buffer {buffer}")
                break


def _check_barriers(raw: RawPlan, problems: Problems) -> None:
    """Each barrier is for exactly the blocks that use it."""
    users: dict[tuple[int, int], set[int]] = defaultdict(set)
    uses = [one for one in raw.operations if one.op.name == words.BARRIER]
    for one in uses:
        users[one.rank, one.op.barrier].add(one.number)  # all users, before any is compared
    for one in uses:
        blocks = len(users[one.rank, one.op.barrier])
        if one.op.barrier_blocks != blocks:
            expected = f"num_threadblocks to be {blocks}, the blocks that use this barrier"
            problems.add(F496, one.at, expected, str(one.op.barrier_blocks))
            problems.raise_full()


class _Operation:
    """The checks of one operation."""

    def __init__(self, one: Located, target: PlanTarget, problems: Problems) -> None:
        self.raw, self.rank, self.op, self.pipeline = one.raw, one.rank, one.op, one.pipeline
        self.one, self.gpu, self.block = one, one.gpu, one.block
        self.target, self.problems = target, problems

    def check(self) -> None:
        op = self.op
        if self.target.lacks(op.name):
            refuse_absent(self.problems, self.one.at, op.name, self.target)
            return
        if op.reduce_op not in ("", "sum"):
            remedy = "Use sum, or a runtime with this reduction."
            self._problem(F488, "sum", f"reduce_op: {op.reduce_op[:_SHOWN_CHARS]!a}", remedy)
        if op.name not in words.MOVES and (op.sources or op.destinations):
            found = "operands that the executor looks up"
            self._problem(F479, "no src_buff and no dst_buff", found)
        if op.name not in (*words.MOVES, *words.SIGNALS, *words.WAITS):
            most = self.target.channels_per_operation
            self._check_length("channel_ids", op.channel_ids, most)
        if op.name in words.MOVES:
            self._check_move(words.MOVES[op.name])
        elif op.name in words.SIGNALS or op.name in words.WAITS:
            before = len(self.problems)
            self._check_channel_type((words.MEMORY, words.PORT))
            self._check_channels()
            if len(self.problems) == before:
                self._check_ends()
        elif op.name in (words.ACQUIRE, words.RELEASE):
            self._check_semaphores()
        elif op.name == words.PIPELINE:
            self._check_unit()
        elif op.name == words.BARRIER and op.barrier >= self.target.barriers:
            expected = f"a barrier_id below {self.target.barriers}"
            self._problem(F482, expected, str(op.barrier))

    def _problem(self, rule: Rule, expected: str, found: str, remedy: str = "") -> None:
        self.problems.add(rule, self.one.at, expected, found, remedy)

    def _check_length(self, what: str, entries: Sequence[object], limit: int) -> None:
        if len(entries) > limit:
            _check_length(self.problems, self.one.at, what, entries, limit)

    def _check_channel_type(self, allowed: tuple[str, ...]) -> bool:
        if self.op.channel_type in allowed:
            return True
        expected = f"channel_type to be {' or '.join(allowed)}"
        self._problem(F479, expected, self.op.channel_type)
        return False

    def _check_channels(self) -> None:
        """The channels of an operation that uses them, each in its own thread."""
        op, word = self.op, self.op.channel_type
        limit = self.target.channels_per_operation
        self._check_length("channels in an operation", op.channel_ids, limit)
        has = len(self.block.channels.get(word, ()))
        for channel in op.channel_ids:
            if channel >= has:
                expected = f"one of the block's {has} {word} channels"
                self._problem(F483, expected, f"channel {channel}")
                break
        self._check_threads(len(op.channel_ids))

    def _check_ends(self) -> None:
        """The channels on which the operation signals or waits, which exist, have another end: the
        peer has as many channels to this GPU."""
        word = self.op.channel_type
        peers = self.gpu.peers[word]
        for k in self.op.channel_ids:
            channel = self.block.channels[word][k]
            peer = peers[channel]
            # The k-th channel to a peer is connected with the peer's k-th channel to this rank.
            number = peers[: channel + 1].count(peer)
            has = self.raw.gpus[peer].peers[word].count(self.rank)
            if has < number:
                at = (self.raw.at_channel(self.rank, word, channel), self.one.at)
                expected = f"at least {counted(number, f'{word} channel')} of rank {peer} back"
                self.problems.add(F483, at, expected, str(has) if has else "none")

    def _check_threads(self, used: int) -> None:
        if used > self.raw.threads:
            expected = f"num_threads_per_block to be at least {used}, a thread for each entry"
            self._problem(F422, expected, str(self.raw.threads))

    def _check_semaphores(self) -> None:
        ids, has = self.op.semaphores, len(self.gpu.semaphores)
        limit = self.target.semaphores_per_operation
        self._check_length("semaphores in an operation", ids, limit)
        if any(one >= has for one in ids):
            self._problem(F483, f"one of the GPU's {has} semaphores", f"semaphore {max(ids)}")
        self._check_threads(len(ids))

    def _check_unit(self) -> None:
        unit = self.target.vector_bytes
        if self.op.unit_bytes < 1 or self.op.unit_bytes % unit:
            expected = f"unit_size to be a multiple of {unit}, and not 0"
            self._problem(F422, expected, str(self.op.unit_bytes))

    def _check_move(self, move: Move) -> None:
        op = self.op
        if (
            op.name in (words.PUT_SIGNAL, words.PUT_SIGNAL_FLUSH)
            and op.channel_type == words.MEMORY
        ):
            remedy = "Write a put, a nop and a signal."
            self._problem(F488, "a port channel", f"{op.name} on a memory channel", remedy)
            return
        if op.channel_type == words.PORT and op.name == words.PUT_PACKETS:
            remedy = "Write packets with cpkt and push them with rppkt."
            self._problem(F488, f"a {op.name} on a memory channel", "a port channel", remedy)
            return
        if move.channels and not self._check_channel_type(move.channels):
            return
        if not self._check_operands(move):
            return
        if op.channel_type == words.PORT and move.channels:
            self._check_port()
        self._check_sizes(move)
        self._check_buffers(move)
        if self.pipeline is not None:
            self._check_in_pipeline(move, self.pipeline)

    def _check_operands(self, move: Move) -> bool:
        """Number and kinds of the operands, and whether they exist."""
        op, before = self.op, len(self.problems)
        sides = (("src_buff", op.sources, move.sources), ("dst_buff", op.destinations,
                 move.destinations))  # fmt: skip
        for key, ranges, expected in sides:
            limit = self.target.buffers_per_operation
            self._check_length(f"ranges in {key}", ranges, limit)
            fits = len(ranges) >= len(expected.first) and all(
                (kind := expected.at(number)) is not None and kind.where is one.where
                for number, one in enumerate(ranges)
            )
            if not fits:
                found = ", ".join(one.where.value for one in ranges) or "none"
                self._problem(F479, f"{key} of {op.name} to be {expected}", found)
            elif any(not self._exists(one) for one in ranges):
                what = f"a {op.channel_type} channel"
                self._problem(F483, f"entries of the block's lists for {what} in {key}", "others")
        if move.paired and len(op.sources) != len(op.destinations):
            found = f"{len(op.sources)} and {len(op.destinations)}"
            self._problem(F479, "as many sources as destinations", found)
        return len(self.problems) == before

    def _exists(self, one: RawRange) -> bool:
        if one.where is Where.LOCAL:
            return True
        if one.where is Where.SWITCH:
            return one.number < len(self.block.channels[words.SWITCH])
        return one.number < len(self.block.buffers.get(self.op.channel_type, ()))

    def _check_port(self) -> None:
        """A thread for each destination, whose channel leads to the destination's GPU."""
        op, before = self.op, len(self.problems)
        self._check_channels()
        if len(op.channel_ids) != len(op.destinations):
            found = f"{len(op.channel_ids)} channels for {len(op.destinations)} destinations"
            self._problem(F479, "a channel for each destination", found)
        if len(self.problems) > before:
            return
        if op.name in (words.PUT_SIGNAL, words.PUT_SIGNAL_FLUSH):
            self._check_ends()
        for channel, one in zip(op.channel_ids, op.destinations, strict=True):
            peer = self.gpu.peers[words.PORT][self.block.channels[words.PORT][channel]]
            rank = self.gpu.remote[self.block.buffers[words.PORT][one.number]].rank
            if peer != rank:
                expected = "the channel of a destination to lead to its GPU"
                self._problem(F479, expected, f"a channel to rank {peer}, a buffer of {rank}")

    def _check_sizes(self, move: Move) -> None:
        op = self.op
        ranges = op.sources + op.destinations
        if any(one.size < 1 for one in ranges):
            self._problem(F475, "ranges of at least 1 chunk", "size: 0")
        pairs = zip(op.sources, op.destinations, strict=True) if move.paired else (ranges,)
        for group in pairs:
            sizes = {one.size for one in group}
            if len(sizes) > 1:
                expected = "ranges with one size in a move"
                found = f"sizes {', '.join(map(str, sorted(sizes)))}"
                self._problem(F486, expected, found)
        if op.name == words.GET:
            for source, destination in zip(op.sources, op.destinations, strict=True):
                if source.index != destination.index:
                    found = f"{source.index} and {destination.index}"
                    remedy = "Use the same index on both sides, or let the other rank put."
                    self._problem(F488, "the same index on both sides of a get", found, remedy)

    def _check_buffers(self, move: Move) -> None:
        """The types of buffers that the operation can use."""
        op = self.op
        on_memory = op.channel_type == words.MEMORY
        one_buffer = move.sources.further is Operand.LOCAL and move.paired and on_memory
        if one_buffer and len({one.number for one in op.sources}) > 1:
            remedy = "Write one operation for each buffer."
            self._problem(F488, "sources in one buffer", "several", remedy)
        for access in self.one.accesses:
            kind, buffer = access.kind, access.buffer
            if kind.packet and buffer != Buffer.SCRATCH:
                found = f"packets in the {buffer.name.lower()}"
                remedy = "Send packets to the scratch, and unpack them there."
                self._problem(F488, "packets in the scratch", found, remedy)
            pushed = kind is Operand.LOCAL and op.channel_type == words.PORT and bool(move.channels)
            first_half = pushed or kind in (Operand.REMOTE, Operand.SWITCH)
            if self.raw.doubles and buffer == Buffer.SCRATCH and first_half:
                expected = "packets, or use_double_scratch_buffer to be false"
                found = f"{kind.value} in the scratch"
                remedy = "Set use_double_scratch_buffer to false, or use packets."
                self._problem(F493, expected, found, remedy)

    def _check_in_pipeline(self, move: Move, pipeline: RawOperation) -> None:
        op = self.op
        if any(operand.packet for operand in (*move.sources, *move.destinations)):
            self._problem(F486, "no packets in a pipeline", op.name, words.INNER_RANGES)
        chunks = pipeline.chunks * op.shares
        for one in op.sources + op.destinations:
            if one.size != chunks:
                expected = f"size {chunks}, num_chunks of the pipeline for each of its blocks"
                self._problem(F486, expected, f"size {one.size}", words.INNER_RANGES)
                break
