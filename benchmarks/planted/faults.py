"""Faults: the faults to plant, each a change of one condition, edge, offset or memory order.

A fault is found by its text in any file; if code is rewritten, the fault gets the new text as a
further edit. No fault is an error of syntax, and each changes the result of some input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SOURCES = ("src", "native")
SUFFIXES = (".py", ".cpp", ".hpp")
COMPILED = (".cpp", ".hpp")


@dataclass(frozen=True)
class Edit:
    """A text that occurs once in the sources, and its replacement."""

    text: str
    replacement: str


_PUBLISHED = """\
        SLEY_ROLLED
        for (i32 m = 0; m < to.members; ++m) {
            publish(&state.senders[to.peer + m].published->value, over_calls(out));
        }
"""
"""How a kernel publishes a message."""


@dataclass(frozen=True)
class Fault:
    """A fault.

    name: the part, and the wrong behaviour.
    tests: the folders of `tests` to run first; missing ones are skipped.
    edits: ways to plant it; the first whose text is found is used.
    """

    name: str
    tests: tuple[str, ...]
    edits: tuple[Edit, ...]

    @property
    def part(self) -> str:
        return self.name.partition(":")[0]


def read_sources(root: Path) -> dict[Path, str]:
    """The text of each file below `root` in which faults are planted."""
    paths = (path for folder in SOURCES for path in sorted((root / folder).rglob("*")))
    return {path: path.read_text() for path in paths if path.suffix in SUFFIXES}


def find(fault: Fault, sources: Mapping[Path, str]) -> tuple[Path, Edit]:
    """The file and the edit that plants a fault. Raises LookupError if no text of the fault occurs
    exactly once in `sources`."""
    counts: list[str] = []
    for edit in fault.edits:
        found = {path: text.count(edit.text) for path, text in sources.items()}
        if sum(found.values()) == 1:
            return next(path for path, count in found.items() if count), edit
        counts.append(str(sum(found.values())))
    raise LookupError(f"{fault.name}: its text occurs {', '.join(counts)} times, not once")


def _fault(name: str, tests: str, *texts: str) -> Fault:
    """texts: old and new, alternating."""
    pairs: Sequence[tuple[str, str]] = list(zip(texts[::2], texts[1::2], strict=True))
    return Fault(name, tuple(tests.split()), tuple(Edit(*pair) for pair in pairs))


FAULTS: tuple[Fault, ...] = (
    # ---- Languages
    _fault(
        "lang: a range may end one chunk behind its buffer",
        "lang",
        "(index < 0) | (index + count > sizes[rank])",
        "(index < 0) | (index + count > sizes[rank] + 1)",
    ),
    _fault(
        "lang: one place may be written twice by one transfer",
        "lang",
        "if len(distinct(writes)) < writes.size:",
        "if len(distinct(writes)) < writes.size - 1:",
    ),
    _fault(
        "rescclang: a loop without iterations runs once",
        "lang",
        "count = np.maximum(0, -((start - stop) // step))",
        "count = np.maximum(1, -((start - stop) // step))",
    ),
    # ---- Passes
    _fault(
        "dependencies: the first write after a read does not wait for it",
        "ir compiler/passes compiler",
        "reused = np.flatnonzero(has_after & ~a.write)",
        "reused = np.flatnonzero(has_after & ~a.at_dst)[1:]",
    ),
    _fault(
        "dependencies: a write after a write does not wait for it",
        "ir compiler/passes compiler",
        "(a.last_write == rows - 1)",
        "(a.last_write == rows - 2)",
    ),
    _fault(
        "dependencies: a part of what was received counts as all of it",
        "ir compiler/passes compiler",
        " & (t.count[origin] == t.count)",
        "",
    ),
    _fault(
        "copies: a read is moved although its source is overwritten in between",
        "compiler/passes compiler",
        "if self._last_writer(place + k) > writer:",
        "if self._last_writer(place + k) > self._transfers:",
    ),
    _fault(
        "copies: a copy is left out although the result needs it",
        "compiler/passes compiler",
        "np.flatnonzero(program.collective.promised_cells(program.layout)).tolist()",
        "np.flatnonzero(program.collective.promised_cells(program.layout)).tolist()[1:]",
    ),
    _fault(
        "copies: an operand elsewhere is not ordered before the writes to it",
        "compiler/passes compiler",
        "apart = np.flatnonzero(reduces & (own != destination))",
        "apart = np.flatnonzero(reduces & (own != destination))[1:]",
    ),
    _fault(
        "fuse: a copy is sent with chunks that were overwritten in between",
        "compiler/passes compiler",
        "read = np.stack([source[rows], t.count[rows], t.lane[rows], chunks.version[rows]])",
        "read = np.stack([source[rows], t.count[rows], t.lane[rows]])",
    ),
    _fault(
        "order: a copy is sent before it may be written",
        "compiler/passes compiler",
        "return copy if self._is_free(copy) else NONE",
        "return copy",
        "return is_free(copy) ? copy : NONE;",
        "return copy;",
    ),
    _fault(
        "order: an instruction comes early although the slot of its message isn't free",
        "compiler/passes compiler",
        "waits = np.flatnonzero(connection[slots:] == connection[:-slots])",
        "waits = np.flatnonzero(connection[slots:] == connection[:-slots])[1:]",
    ),
    _fault(
        "fuse: parts of different lanes are fused",
        "compiler/passes compiler",
        "remote[earlier] & (t.lane[later] == t.lane[earlier])",
        "remote[earlier].copy()",
    ),
    _fault(
        "groups: an operand is that of the last reduction",
        "algorithms compiler",
        "return Operands(operands.buffer[first], operands.index[first])",
        "return operands",
    ),
    _fault(
        "groups: a receive takes the message of the last member alone",
        "compiler",
        "return self._rows(receive) if receive in self.reduces else (receive,)",
        "return (receive,)",
        "return in_.reduces[receive] ? rows(receive) : Rows{&receive, &receive + 1};",
        "return Rows{&receive, &receive + 1};",
    ),
    _fault(
        "groups: the ends of an instruction are in several blocks",
        "compiler algorithms",
        "parts = [np.stack([with_leader, shared])]",
        "parts = [np.stack([with_leader, shared])[:, :0]]",
    ),
    _fault(
        "groups: a receive takes one message",
        "verification",
        "for k in range(int(number.max(initial=0))):",
        "for k in range(min(int(number.max(initial=0)), 1)):",
    ),
    _fault(
        "groups: messages of pieces order as much as those of groups",
        "compiler",
        "return _with_waits(plan, found, parts)",
        "return found",
    ),
    _fault(
        "groups: the first piece of a reduction only receives",
        "compiler verification",
        "first = Op.RECV_REDUCE_COPY if REDUCES[op] else Op.RECV",
        "first = Op.RECV",
    ),
    _fault(
        "groups: a switch reads no chunk of the rank that reduces",
        "model/simulation",
        "sorted({*back.target.tolist(), int(away.target[0])})",
        "sorted({*back.target.tolist()})",
    ),
    _fault(
        "fuse: the send on the shortest path is fused",
        "compiler/passes compiler",
        "np.lexsort((-later, remaining, earlier))",
        "np.lexsort((-later, -remaining, earlier))",
    ),
    _fault(
        "channels: a send end is bound to two receive ends",
        "compiler/passes compiler",
        "self.receive_of.get(end, unit.receive) == unit.receive for end in unit.send",
        "end >= 0 for end in unit.send",
    ),
    _fault(
        "channels: the second part of a transfer has no channel of its own",
        "compiler/passes compiler",
        "distinct(key[remote & (t.lane > 0)])",
        "distinct(key[remote & (t.lane > 1)])",
    ),
    _fault(
        "order: one message more than slots is sent",
        "compiler/passes compiler",
        "least = max(self.slots, width) - width\n",
        "least = max(self.slots, width) + 1 - width\n",
        "const auto least = std::max(in_.slots, width) - width;",
        "const auto least = std::max(in_.slots, width) + 1 - width;",
    ),
    _fault(
        "order: a wide message frees only one slot",
        "compiler/passes compiler",
        "self.used[connection] -= self.width[receive]",
        "self.used[connection] -= 1",
        "fifo(row).used -= in_.width[receive];",
        "fifo(row).used -= 1;",
    ),
    _fault(
        "pipelines: the receiver's card may be in use",
        "compiler/passes compiler",
        "(a != NONE and used[a] == number) or (b != NONE and used[b] == number)",
        "a != NONE and used[a] == number",
    ),
    _fault(
        "pipelines: round robin begins with the last chunk again",
        "compiler/passes compiler",
        "start = (g + 1) % groups",
        "start = g % groups",
        "start = (g + 1) % number_of_groups",
        "start = g % number_of_groups",
    ),
    _fault(
        "blocks: a requested block may use two channels",
        "compiler/passes compiler",
        "pair = twice or _sharing(block_of_end[of], channel)",
        "pair = twice",
    ),
    _fault(
        "blocks: the busiest block gets a local operation",
        "compiler/passes compiler",
        "block = min(of_rank[r], key=latest.__getitem__)",
        "block = max(of_rank[r], key=latest.__getitem__)",
    ),
    _fault(
        "allocate: blocks are merged although the plan then takes longer",
        "compiler/passes compiler",
        "if shared.time_us <= unmerged.time_us * (1 + 1e-9):",
        "if shared.time_us <= unmerged.time_us * 2:",
    ),
    _fault(
        "merging: blocks that overlap in part are merged",
        "compiler/passes compiler",
        "if other != own and until[other] > start[k]:",
        "if other != own and until[other] > end[k]:",
    ),
    _fault(
        "emit: a sum that the output needs is not stored",
        "compiler/passes compiler",
        "(dag.chunks.readers[receive] == 1) & ~dag.chunks.kept[receive]",
        "dag.chunks.readers[receive] == 1",
    ),
    _fault(
        "waits: the first of a block's instructions is waited for, not the last",
        "compiler/passes compiler",
        "last[:-1] = (after[1:] != after[:-1]) | (place[1:] != place[:-1])",
        "last[1:] = (after[1:] != after[:-1]) | (place[1:] != place[:-1])",
    ),
    _fault(
        "waits: a path from the instruction itself is not found",
        "compiler/passes compiler",
        "if (edges[first].source >= goal)",
        "if (edges[first].source > goal)",
    ),
    _fault(
        "waits: messages imply waits though counts vary",
        "verification compiler/passes compiler",
        "    if not dag.chunks.program.collective.varies:\n        receives",
        "    if True:\n        receives",
    ),
    _fault(
        "parallelize: parts of a wide transfer overlap at its destination",
        "compiler/passes compiler",
        'columns["dst_index"].astype(np.int64) * factor + part * count',
        'columns["dst_index"].astype(np.int64) * factor + part',
    ),
    _fault(
        "links: a card sends and receives over one link",
        "compiler/passes compiler",
        "ranks * ranks + cards + receiver",
        "ranks * ranks + receiver",
    ),
    _fault(
        "lift: a promised chunk is overwritten by a sum that is sent on",
        "compiler/passes",
        "overwritten | (last & ~promised[accesses.cell])",
        "overwritten | last",
    ),
    _fault(
        "lift: only one of several chunks of scratch is counted",
        "compiler/passes",
        "np.maximum.at(used, rank[named], index[named] + t.count[named])",
        "np.maximum.at(used, rank[named], index[named] + 1)",
    ),
    # ---- Verifier
    _fault(
        "structure: operands may overlap by one chunk",
        "verification",
        "(np.abs(source - target) < t.count[both]) & ~same",
        "(np.abs(source - target) < t.count[both] - 1) & ~same",
        "(np.abs(source - target) < t.count[both]) & (source != target)",
        "(np.abs(source - target) < t.count[both] - 1) & (source != target)",
    ),
    _fault(
        "structure: an operand may end one chunk behind its buffer",
        "verification",
        "(end <= size[np.where(named, buffer, 0), plan.rank])",
        "(end <= size[np.where(named, buffer, 0), plan.rank] + 1)",
    ),
    _fault(
        "messages: more chunks may be sent than received",
        "verification",
        "for k in np.flatnonzero(counts[send] != counts[receive])[:LIMIT].tolist():",
        "for k in np.flatnonzero(counts[send] < counts[receive])[:LIMIT].tolist():",
        "for k in np.flatnonzero(count[send] != count[receive])[:LIMIT].tolist()",
        "for k in np.flatnonzero(count[send] < count[receive])[:LIMIT].tolist()",
    ),
    _fault(
        "messages: neighbouring blocks may share one end of a connection",
        "verification",
        "twice = np.flatnonzero((keys[1:] == keys[:-1]) & (blocks[1:] != blocks[:-1]))",
        "twice = np.flatnonzero((keys[1:] == keys[:-1]) & (blocks[1:] > blocks[:-1] + 1))",
        "others = np.flatnonzero(plan.block[rows] != first_block[on])",
        "others = np.flatnonzero(plan.block[rows] > first_block[on] + 1)",
    ),
    _fault(
        "hangs: connections are assumed to have one more slot",
        "verification",
        "    if slots < len(put):\n",
        "    slots += 1\n    if slots < len(put):\n",
    ),
    _fault(
        "hangs: a wait ends with the first chunk of a message",
        "verification",
        "(last[plan.waits.target], first[plan.waits.source])",
        "(first[plan.waits.target], first[plan.waits.source])",
    ),
    _fault(
        "races: the first read is not compared with the write after it",
        "verification",
        "np.flatnonzero(before != NONE), np.flatnonzero((after != NONE) & ~write)\n",
        "np.flatnonzero(before != NONE), np.flatnonzero((after != NONE) & ~write)[1:]\n",
        "[&](auto reader) { meet(reader, a.read, row, cell, place); });",
        "[&](auto reader) { if (reader) meet(reader, a.read, row, cell, place); });",
    ),
    _fault(
        "sums: orders of instructions are given to others",
        "verification",
        "return np.array(made, np.int64)[at.ravel()]",
        "return np.array(made, np.int64)[np.sort(at.ravel())]",
    ),
    _fault(
        "sums: orders whose first part has equally many trees are one",
        "verification",
        "self._number.setdefault((free, parts), new)",
        "self._number.setdefault((free, (len(self.within(parts[0])), parts[-1])), new)",
    ),
    _fault(
        "races: a wait for the instruction before is enough",
        "verification",
        "return found != latest_.end() && found->second >= first;",
        "return found != latest_.end() && found->second >= first - 1;",
    ),
    _fault(
        "races: messages order instructions though counts vary",
        "verification",
        "within_rank=varies or flagged):",
        "within_rank=flagged):",
    ),
    _fault(
        "races: a message that comes back orders all its chunks",
        "verification",
        "order.reaches(a, b, whole=not aligned[k], ",
        "order.reaches(a, b, ",
    ),
    _fault(
        "races: a sender has sent all its chunks before its receiver passes one on",
        "verification",
        "if self._rank[source] == self._rank[at]:  # by a wait",
        "if True:",
    ),
    _fault(
        "waits: a message that comes back implies the waits between all its chunks",
        "verification compiler/passes compiler",
        "in_.aligned[k] || !passed_on(goal, start)",
        "true",
    ),
    _fault(
        "flagged: a message of LL orders the other stores of its sender",
        "engine/kernels",
        "                missing.append((before, row))\n",
        "",
    ),
    _fault(
        "result: places of the output take chunks of other lengths",
        "verification",
        "    owner[c.output_cells(layout)] = c.values.target[c.values.offset[c.expected]]\n",
        "",
    ),
    _fault(
        "result: chunks without a length may be copied",
        "verification",
        "or _refuse_empty_reads(plan, order, replay.empty_reads)",
        "or []",
    ),
    _fault(
        "result: values with equally many inputs count as equal",
        "verification",
        "(self.number != other.number) | (self.weight != other.weight).any(axis=1)",
        "self.number != other.number",
    ),
    _fault(
        "one-sided: a relaxed signal publishes memory",
        "verification",
        "np.maximum(self.strong, other.base if relaxed else other.strong)",
        "np.maximum(self.strong, other.strong)",
    ),
    _fault(
        "one-sided: a packet publishes memory",
        "verification",
        "clock = clock.joined(shown, relaxed=True)",
        "clock = clock.joined(shown)",
    ),
    _fault(
        "one-sided: two calls are performed with two copies of the scratch",
        "verification",
        "plan, plan.scratch_copies + 1\n",
        "plan, 2\n",
    ),
    _fault(
        "one-sided: a wait for a part of unordered posts shows posts",
        "verification",
        "elif needed == posts and self._is_direct[counter]:",
        "elif self._is_direct[counter]:",
    ),
    _fault(
        "one-sided: a post of a port counts as performed in its call",
        "verification",
        "needed == posts and self._is_direct[counter]",
        "needed == posts",
    ),
    _fault(
        "one-sided: a block knows at once what one of its threads waited for",
        "verification",
        "block.own[thread] = observed\n",
        "block.own[thread] = block.clock = observed\n",
    ),
    _fault(
        "one-sided: a packet shows that all chunks of its move were read",
        "verification",
        "if not first <= place < first + number:",
        "if not first <= place < first + number + 1:",
    ),
    _fault(
        "one-sided: a packet shows its place's neighbours the begin of a call",
        "verification",
        "first <= place < last and clock.base[agent] > epoch",
        "first - 1 <= place < last and clock.base[agent] > epoch",
    ),
    _fault(
        "one-sided: a port copies packets that nothing has waited for",
        "verification",
        "for k in np.flatnonzero(~(arrived & known)).tolist():",
        "for k in np.flatnonzero(~arrived).tolist():",
    ),
    _fault(
        "one-sided: the second push of a port ends with the first",
        "verification",
        "self._port_epoch[port] += 1",
        "self._port_epoch[port] = 0",
    ),
    _fault(
        "one-sided: what relaxed signals showed is known at the next call",
        "verification",
        "Clock(self.strong, self.strong, loose)",
        "Clock(self.strong, loose, loose)",
    ),
    _fault(
        "one-sided: the initial value is not subtracted from the posts that a wait needs",
        "verification",
        "number + 1 - initial, before * posts",
        "number + 1, before * posts",
    ),
    # ---- Formats
    _fault(
        "reader: a range under its other name may be too long",
        "formats",
        "(moved + count[rows] <= size[other, rank[rows]])",
        "(moved + 1 <= size[other, rank[rows]])",
    ),
    _fault(
        "reader: the wait of a last nop goes to the next block",
        "formats",
        "has_follower = (follower != NONE) & (block[follower] == block)",
        "has_follower = follower != NONE",
    ),
    _fault(
        "writer: the greatest size is one byte less for some targets",
        "formats",
        "limit = most if target.max_is_inclusive else most + 1",
        "limit = most",
    ),
    _fault(
        "writer: runs of reductions are one too long",
        "formats",
        "((rows - run_start) % reduce_run == 0)",
        "((rows - run_start) % (reduce_run + 1) == 0)",
    ),
    _fault(
        "nops: a wait for a nop does not include the instruction before it",
        "formats",
        "return waits if row == plan.block_offset[plan.block[row]] else [*waits, row - 1]",
        "return waits",
    ),
    _fault(
        "unfuse: a wait for a split instruction is for its first piece only",
        "formats",
        "start[waits.target + 1] - 1",
        "start[waits.target]",
    ),
    _fault(
        "limits: an instruction may wait for itself",
        "formats",
        "(plan.block[target] == plan.block[source]) & (target >= source)",
        "(plan.block[target] == plan.block[source]) & (target > source)",
    ),
    _fault(
        "runtime: merged reductions count as one step",
        "formats",
        "steps = np.maximum(waits, 1) + size - 1",
        "steps = np.maximum(waits, 1)",
    ),
    _fault(
        "runtime: an announcement does not end a run of reductions",
        "formats",
        'joins[1:] &= raw.steps["hasdep"][rows[:-1]] == 0',
        'joins[1:] &= raw.steps["hasdep"][rows[:-1]] >= 0',
    ),
    _fault(
        "runtime: runs of reductions end one later",
        "formats",
        "reduces.astype(np.int64))[:-1] != reduce_run",
        "reduces.astype(np.int64))[:-1] != reduce_run + 1",
    ),
    _fault(
        "runtime: a wait needs an announcement after its step",
        "formats",
        "np.searchsorted(keys, named * scale + goal)",
        'np.searchsorted(keys, named * scale + goal, side="right")',
    ),
    _fault(
        "runtime: a wait may be for the step's own announcement",
        "formats",
        "(own & (announcers >= steps.owner))",
        "(own & (announcers > steps.owner))",
    ),
    _fault(
        "runtime: only one of a file's places is proven",
        "formats",
        "places = tuple(place for place in allowed if in_place in (None, place))",
        "places = tuple(place for place in allowed if in_place in (None, place))[:1]",
    ),
    _fault(
        "runtime: messages may be longer than a slot",
        "formats",
        "per_chunk = needed > slot_bytes",
        "per_chunk = needed > 2 * slot_bytes",
    ),
    _fault(
        "digest: plans with different waits have the same digest",
        "communicator communicator/selection formats",
        'if table in ("sources", "estimate") or column in _ORIGINS:',
        'if table in ("sources", "estimate", "waits") or column in _ORIGINS:',
    ),
    # ---- Simulator
    _fault(
        "simulator inputs: a connection is as fast as its fastest link",
        "model/simulation",
        "return np.maximum.reduceat(self.links.kind[paths.target], paths.offset[:-1])",
        "return np.minimum.reduceat(self.links.kind[paths.target], paths.offset[:-1])",
    ),
    _fault(
        "simulator inputs: a forwarded sum is also written to memory",
        "model/simulation",
        "Op.RECV_REDUCE_SEND: (2, 1),",
        "Op.RECV_REDUCE_SEND: (3, 1),",
    ),
    _fault(
        "simulator inputs: what a run keeps in registers is stored",
        "model/simulation",
        "saved = runs.first.astype(np.int8) + runs.second + runs.kept",
        "saved = runs.first.astype(np.int8) + runs.second",
    ),
    _fault(
        "event loop: a slot is free again without latency",
        "model/simulation native",
        "push(now_ + ends_.credit_us[take], direct ? Kind::free : Kind::clear, take);",
        "push(now_, direct ? Kind::free : Kind::clear, take);",
    ),
    _fault(
        "event loop: a part crosses the network before the receiver has room",
        "model/simulation native",
        "        if (c.clear < part.room) return;\n",
        "",
    ),
    _fault(
        "event loop: credits of the network take as long as two messages",
        "model/simulation native",
        "push(now_ + ends_.credit_us[connection], Kind::free, connection);",
        "push(now_ + 2 * ends_.latency_us[connection], Kind::free, connection);",
    ),
    _fault(
        "simulator inputs: each connection has a proxy of its own",
        "model/simulation",
        "np.full(len(senders), share)",
        "np.zeros(len(senders))",
    ),
    _fault(
        "sharing: no other flow gets the rate of a flow that ends",
        "model/simulation native",
        "        if (resource.bound) mark_resource(r);  // the others on it get more now\n",
        "",
    ),
    _fault(
        "sharing: contention begins below a link's capacity",
        "model/simulation native",
        "std::max(0.0, push / most - 1)",
        "std::max(0.0, push / most - 0.5)",
    ),
    # ---- Engine
    _fault(
        "fifo: a slot is freed without release",
        "native",
        "memory_.counters->consumed.store(++next_, kPublish)",
        "memory_.counters->consumed.store(++next_, std::memory_order_relaxed)",
    ),
    _fault(
        "fifo: a message is read without acquire",
        "native",
        "envelope().sequence.load(std::memory_order_acquire) == next_ + 1",
        "envelope().sequence.load(std::memory_order_relaxed) == next_ + 1",
    ),
    _fault(
        "fifo: a free slot is read without acquire",
        "native",
        "consumed_ = memory_.counters->consumed.load(std::memory_order_acquire)",
        "consumed_ = memory_.counters->consumed.load(std::memory_order_relaxed)",
    ),
    _fault(
        "fifo: one slot too many is reserved for other connections",
        "native engine communicator/jobs communicator",
        "if (kept + limit > uses_.size()) return false;",
        "if (kept + limit > uses_.size() + 1) return false;",
    ),
    _fault(
        "fifo: a slot that another connection points to is used again",
        "native engine communicator/jobs communicator",
        "(!use.taken || has_consumed(use.number)) && !is_kept(use)",
        "!use.taken || has_consumed(use.number)",
    ),
    _fault(
        "fifo: a small message overwrites the one before it",
        "native engine communicator/jobs communicator",
        "is_free(use) ? 0 : use.end",
        "0",
    ),
    _fault(
        "engine: a running instruction counts as finished",
        "native engine communicator/jobs communicator",
        "(at.tile == tile && at.instruction > wait.instruction)",
        "(at.tile == tile && at.instruction >= wait.instruction)",
    ),
    _fault(
        "engine: always the first message of a connection is held",
        "native engine communicator/jobs communicator",
        "tile * program_.messages[send] + in.turn",
        "tile * program_.messages[send]",
    ),
    _fault(
        "engine: varying chunks are sent again after one was replaced by a shorter one",
        "communicator",
        "if (varies_ && (tile == 0 || in.count > 1)) return nullptr;",
        "if (varies_ && tile == 0) return nullptr;",
    ),
    _fault(
        "engine: a rank that joins a varying call keeps the count of its own",
        "communicator",
        "call = varying_call(varying.equal_parts(call), call.type);",
        "call.parts = varying.equal_parts(call);",
    ),
    _fault(
        "control: different calls of varying counts are not noticed",
        "communicator",
        "if (call.varies() && !other.varies()) continue;",
        "if (call.varies()) continue;",
    ),
    _fault(
        "engine: a staged message is sent again after it was overwritten",
        "native engine communicator/jobs communicator",
        "if (staged.tile == tile) staged.tile = -1;",
        "if (staged.tile < tile) staged.tile = -1;",
    ),
    _fault(
        "program: an operand may end one chunk behind its buffer",
        "native engine communicator/jobs",
        "if (index < 0 || end > c_.sizes[buffer]) {",
        "if (index < 0 || end > c_.sizes[buffer] + 1) {",
    ),
    _fault(
        "program: a write to the last chunk of a message does not overwrite it",
        "native engine communicator/jobs communicator",
        "if (it->cell + it->count > in.dst_cell) {",
        "if (it->cell + it->count > in.dst_cell + 1) {",
    ),
    _fault(
        "reduce: a bfloat16 in the middle is rounded up",
        "native engine",
        "return w + 0x7FFFu + ((w >> 16) & 1u);",
        "return w + 0x8000u;",
    ),
    _fault(
        "matching: a receive from any rank overtakes an earlier receive",
        "native communicator",
        "return one->number < any->number ? one : any;",
        "return one->number > any->number ? one : any;",
    ),
    _fault(
        "control: a rank that ended the call and left counts as missing",
        "native communicator",
        "if (state(r).call_ended.load(std::memory_order_acquire) >= sequence) continue;",
        "if (state(r).call_ended.load(std::memory_order_acquire) > sequence) continue;",
    ),
    _fault(
        "pump: a message from another host is published without release",
        "native",
        "envelope.sequence.store(header.number + 1, kPublish)",
        "envelope.sequence.store(header.number + 1, std::memory_order_relaxed)",
    ),
    _fault(
        "pump: a message from another host may overwrite an unread one",
        "native",
        "if (header.number - load(memory.counters->consumed) >= window_) return nullptr;",
        "if (header.number - load(memory.counters->consumed) > window_) return nullptr;",
    ),
    # ---- Communicator
    _fault(
        "arrays: a call may have more elements than whole blocks",
        "communicator",
        "source == target and source % ranks == 0, source // ranks",
        "source == target, source // ranks",
        "if (part.elements or 0) != part.blocks * count:",
        "if (part.elements or 0) < part.blocks * count:",
    ),
    _fault(
        "arrays: neighbouring arrays count as overlapping",
        "communicator",
        "and call.output_bytes > 0 and start < end",
        "and call.output_bytes > 0 and start <= end",
    ),
    _fault(
        "failures: a rank that gave up blames another",
        "communicator",
        "(failure is Failure.STALLED and culprit == rank)",
        "(failure is Failure.STALLED and culprit != rank)",
    ),
    _fault(
        "rules: the limit for one step is too low",
        "communicator/selection communicator",
        "limits.one_step_bytes // (group.ranks - 1)",
        "limits.one_step_bytes // group.ranks",
    ),
    _fault(
        "rules: the last size of a row is the first of the next",
        "communicator/selection communicator",
        "begin = (end or 0) + 1",
        "begin = end or 0",
    ),
    _fault(
        "tiles: pieces are twice as large",
        "communicator",
        "1 << max(room, 1).bit_length() - 1",
        "1 << max(room, 1).bit_length()",
    ),
    _fault(
        "plan cache: plans with different options are the same",
        "communicator/selection communicator",
        "arguments, options, self.tile",
        "arguments, self.tile",
    ),
    # ---- Rendezvous
    _fault(
        "gather: ranks above the number of rank 0 get no answer",
        "communicator/rendezvous communicator",
        "waiting += range(self.member.ranks, min(believed, MOST_RANKS))",
        "waiting += range(self.member.ranks + 1, min(believed, MOST_RANKS))",
    ),
    _fault(
        "hosts: a process with the number of an ended one is taken for it",
        "communicator/rendezvous communicator",
        "bool(self.started) and int(stat[_STARTED]) != self.started",
        "False",
    ),
    _fault(
        "local: a connection without a valid proof becomes a member",
        "communicator/rendezvous communicator",
        "if is_awaited and message.proves(self.host.proof(src, self.host.rank)):",
        "if is_awaited:",
    ),
    # ---- Kernels
    _fault(
        "kernel: one message more than slots is sent",
        "engine/devices engine/kernels",
        "over_calls(out - slots) : end.first",
        "over_calls(out - slots) - 1 : end.first",
    ),
    _fault(
        "kernel: slots count as free where messages of earlier calls are in them",
        "engine/devices engine/kernels",
        "{peer, seen, is_old ? ticks : last}",
        "{peer, seen, is_old ? ticks : 0}",
    ),
    _fault(
        "kernel: flags of an epoch of long ago stay in slots",
        "engine/devices engine/kernels",
        "const bool is_old = kProtocol == kLL &&",
        "const bool is_old = false &&",
    ),
    _fault(
        "kernel: a counter is read without acquire",
        "engine/devices engine/kernels",
        "return atomic(counter).load(std::memory_order_acquire);",
        "return atomic(counter).load(std::memory_order_relaxed);",
    ),
    _fault(
        "kernel: a GPU's poll acquires nothing",
        "engine/devices engine/kernels",
        '"ld.acquire." SLEY_SCOPE ".global.u64',
        '"ld.relaxed." SLEY_SCOPE ".global.u64',
    ),
    _fault(
        "kernel: a message is published without a fence",
        "engine/devices engine/kernels",
        "        fence();\n        SLEY_ROLLED\n",
        "        SLEY_ROLLED\n",
    ),
    _fault(
        "messages: a tile is sent before its slot is free",
        "native",
        "ahead = sends ? kLaneSlots : 0",
        "ahead = sends ? kLaneSlots + 1 : 0",
    ),
    _fault(
        "messages: a tile is published without a fence",
        "native",
        "*turn.label = turn.written;\n    fence();",
        "*turn.label = turn.written;",
    ),
    _fault(
        "messages: a receive takes other bytes than were sent",
        "native",
        "if (there.bytes != message.bytes) {",
        "if (there.bytes > message.bytes) {",
    ),
    _fault(
        "messages: more than fit into a launch are cut in the caller's order",
        "native",
        "if (rows.size() <= kLaunch) return rows;",
        "if (!rows.empty()) return rows;",
    ),
    _fault(
        "kernel: what a CPU publishes is relaxed",
        "engine/devices engine/kernels",
        "const bool orders = is_fenced && !is_aliased;",
        "const bool orders = false;",
    ),
    _fault(
        "kernel: a message is published before its fence",
        "engine/devices engine/kernels",
        f"        fence();\n{_PUBLISHED}",
        f"{_PUBLISHED}        fence();\n",
    ),
    _fault(
        "kernel: a step is published without a fence",
        "engine/devices engine/kernels",
        "    fence();\n    publish_progress(step, slices, tile);\n",
        "    publish_progress(step, slices, tile);\n",
    ),
    _fault(
        "kernel: a GPU's fence is one of the block alone",
        "engine/devices engine/kernels",
        '"fence.acq_rel." SLEY_SCOPE ";"',
        '"fence.acq_rel.cta;"',
    ),
    _fault(
        "kernel: a block publishes before all of its threads are done",
        "engine/devices engine/kernels",
        "any_thread(!is_fine)) {\n            state.failed = true;\n            return;\n"
        "        }\n        publish_end",
        "!is_fine) {\n            state.failed = true;\n            return;\n"
        "        }\n        publish_end",
    ),
    _fault(
        "kernel: a message is taken for one that was seen",
        "engine/devices engine/kernels",
        "if (end.seen < needed) end.seen = reach(",
        "if (end.seen + 1 < needed) end.seen = reach(",
    ),
    _fault(
        "kernel: the last slices of a call count as many as the others",
        "engine/devices engine/kernels",
        "here = static_cast<u32>(slices.end) - first;",
        "here = static_cast<u32>(state.setup.slices);",
    ),
    _fault(
        "settings: slices share the plan's slots",
        "engine/devices",
        "return min(max(self._slots(plan) // max(plan.slots, 1), 1), _SLICES)",
        "return _SLICES",
    ),
    _fault(
        "kernel: the first element after the vectors is taken for one before them",
        "engine/devices engine/kernels",
        "const i64 before = number < head ? 0",
        "const i64 before = number <= head ? 0",
    ),
    _fault(
        "kernel: addresses that are all as far from a vector are loaded as if they were not",
        "engine/devices",
        "return difference % 16 != 0;",
        "return (difference | out) % 16 != 0;",
    ),
    _fault(
        "kernel: a batch of vectors ends behind its piece",
        "engine/devices engine/kernels",
        "while (rest > (kBatch - 1) * kWarp) {",
        "while (rest >= (kBatch - 1) * kWarp) {",
    ),
    _fault(
        "kernel: a reduction overwrites the operand that was loaded before the message came",
        "engine/devices engine/kernels",
        "value = reduced(own, message, divisor);",
        "value = reduced(message, message, divisor);",
    ),
    _fault(
        "kernel: half of a word of LL is enough",
        "engine/devices engine/kernels",
        "static_cast<u32>(p.first >> 32) == mark && static_cast<u32>(p.second >> 32) == mark",
        "static_cast<u32>(p.first >> 32) == mark",
    ),
    _fault(
        "kernel: pieces of LL128 with one word more than whole lines overlap",
        "engine/devices engine/kernels",
        "kProtocol == kLL128 ? (words + 14) / 15 * 128",
        "kProtocol == kLL128 ? (words + 13) / 15 * 128",
    ),
    _fault(
        "kernel: a chunk begins where it would if all chunks had the least elements",
        "engine/devices engine/kernels",
        "first = static_cast<i64>(block_of(chunk)) * c.count + border(within);",
        "first = static_cast<i64>(block_of(chunk)) * c.count + within * c.least;",
    ),
    _fault(
        "kernel: a chunk of scratch is as long as the block's first one",
        "engine/devices engine/kernels",
        "return length_of(static_cast<u32>(homes[chunk]));",
        "return length_of(0);",
    ),
    _fault(
        "kernel: the last elements of misplaced chunks are at their places, which are too short",
        "engine/devices engine/kernels",
        "if (kMisplaced && element >= length_of(within)) {",
        "if (false) {",
    ),
    _fault(
        "cut: places between which only messages move data have homes of their own",
        "ir",
        "taken = np.flatnonzero(messages.send_of != NONE)",
        "taken = np.flatnonzero(messages.send_of > len(plan.instructions))",
        "(places(messages.send, buffer, index), places(messages.receive, buffer, index)),",
        "(places(messages.send[:0], buffer, index), places(messages.send[:0], buffer, index)),",
    ),
    _fault(
        "kernel: a call ends before others have read its memory",
        "engine/devices engine/kernels",
        "any_thread(!drain());",
        "{}",
    ),
    _fault(
        "kernel: a NaN is lost in a minimum",
        "engine/devices engine/kernels",
        "return a < b || a != a ? a : b;",
        "return a < b ? a : b;",
    ),
    _fault(
        "kernel: a bfloat16 in the middle is rounded up",
        "engine/devices engine/kernels",
        "(w + 0x7FFFu + ((w >> 16) & 1u)) >> 16",
        "(w + 0x8000u) >> 16",
    ),
    _fault(
        "kernel: what a switch stores is not ordered with the counters",
        "engine/devices",
        "if (to.members > 1) fence_aliases();",
        "if (to.members < 1) fence_aliases();",
    ),
    _fault(
        "kernel: a message to a group is published to the first member",
        "engine/devices",
        _PUBLISHED,
        _PUBLISHED.replace("to.members", "1"),
    ),
    _fault(
        "kernel: of a partial vector all elements are written",
        "engine/devices",
        "const i32 whole = addresses % 16 == 0 ? p.length / kUnit : 0;",
        "const i32 whole = addresses % 16 == 0 ? vectors : 0;",
    ),
    _fault(
        "codegen: connections of several groups are a bundle",
        "engine/devices",
        " or (uses != uses[first]).any()",
        "",
    ),
    _fault(
        "codegen: a sum that is part of another is divided at once",
        "engine/kernels",
        "        final[is_operand] = 1\n",
        "",
    ),
    _fault(
        "codegen: a reduction of several chunks divides all of them if one is final",
        "engine/kernels",
        "np.where(least == most, most, 1)",
        "most",
    ),
    _fault(
        "codegen: blocks share code although they divide by different numbers",
        "engine/kernels",
        "        o.averages.by_instruction,\n",
        "",
    ),
    _fault(
        "codegen: blocks share code although only one of them is waited for",
        "engine/kernels engine/devices",
        "        o.stays,\n        o.posts,\n",
        "        o.stays,\n",
    ),
    # ---- Devices
    _fault(
        "order: a graph records no event",
        "engine/devices",
        "        record(k, streams[k], recorded);\n",
        "        if (!states_[k].is_captured) record(k, streams[k], recorded);\n",
    ),
    _fault(
        "tables: a tile of LL128 ends within a line",
        "engine/devices",
        "room / kLineBytes * kLineWords * kWordBytes / item_bytes",
        "room * kLineWords * kWordBytes / kLineBytes / item_bytes",
    ),
    _fault(
        "tables: a block finds another block's sender",
        "engine/devices",
        'rows["rank_sender"] = c.send_offset[plan.rank_block[plan.block_rank]]',
        'rows["rank_sender"] = c.send_offset[:-1]',
        'rows["rank_sender"] = o.sends.offset[plan.rank_block[plan.block_rank]]',
        'rows["rank_sender"] = o.sends.offset[:-1]',
    ),
    _fault(
        "barrier: a process that has failed doesn't say that it comes no more",
        "engine/devices",
        "    order_->wait();\n    leave();\n",
        "    order_->wait();\n",
    ),
    _fault(
        "barrier: a process closes while others make calls",
        "engine/devices",
        "wait([this] { return are_here(kLeft) || is_given_up(); })",
        "wait([] { return true; })",
    ),
    _fault(
        "device state: every launch uses the first rank's divisions",
        "engine/devices",
        "setup.divisions = setup_.divisions + group.first_division;",
        "setup.divisions = setup_.divisions;",
    ),
    _fault(
        "windows: the lanes of a window overlap",
        "engine/devices",
        "max(sizes[at], lane + room)",
        "max(sizes[at], lane + room // 2)",
    ),
    # ---- Bounds
    _fault(
        "bounds: parts send one message more than they must",
        "model/bounds",
        "Limit(2 * (parts - 1) * chunks, total, where)",
        "Limit((2 * parts - 1) * chunks, total, where)",
    ),
    _fault(
        "graphs: the first path to a vertex counts, not the shortest",
        "ir",
        "if (through < far[graph.target[e]]) {",
        "if (far[graph.target[e]] == std::numeric_limits<double>::infinity()) {",
    ),
    _fault(
        "graphs: a flow can't be taken back",
        "ir",
        "left_[e ^ 1] += most;",
        "left_[e ^ 1] += 0;",
    ),
    _fault(
        "graphs: an edge into a finished component joins it",
        "ir",
        "if (component[w] == none) low[v] = std::min(low[v], low[w]);",
        "low[v] = std::min(low[v], low[w]);",
    ),
    _fault(
        "bounds: chunks that all ranks but one need count as needed by all",
        "model/bounds",
        "if (times == ranks - 1).all():",
        "if (times >= ranks - 2).all():",
    ),
    # ---- Topologies
    _fault(
        "NCCL's topology: links listed for both GPUs are added twice",
        "topologies",
        "if a < b or (b, a) not in pairs:",
        "if True:",
    ),
    _fault(
        "TACCL's topology: GPUs are assigned to cards in turn",
        "topologies",
        "card = cards[gpu * count // node.gpus]",
        "card = cards[gpu % count]",
    ),
    # ---- PyTorch
    _fault(
        "torch: overlapping data is overwritten before it is sent",
        "torch",
        "if any(source.overlaps(target) for source in sources for target in targets):",
        "if sources[0].overlaps(targets[0]):",
    ),
    _fault(
        "torch: a timeout of a ready call is ignored",
        "torch",
        "        if (is_timed != 0) return {};\n",
        "",
    ),
    _fault(
        "torch: a negated view is read as it is in memory",
        "torch",
        "return tensor.data != nullptr && out.is_aligned() && !is_negated(object);",
        "return tensor.data != nullptr && out.is_aligned();",
    ),
    _fault(
        "torch: a registered plan doesn't run ready calls",
        "torch",
        "        self._found.clear()\n        self.native.clear()\n",
        "        self._found.clear()\n",
    ),
    _fault(
        "engine: chunks of parts that are apart are taken for adjacent ones",
        "communicator",
        "is_adjacent_ = cut_.tiles == 1 && blocks_ == nullptr && !has_runs_;",
        "is_adjacent_ = cut_.tiles == 1 && !has_runs_;",
    ),
    _fault(
        "engine: chunks of scratch have the length of the block's first one",
        "communicator/jobs compiler",
        "const auto at = static_cast<std::size_t>(home);",
        "const auto at = static_cast<std::size_t>(home * 0);",
    ),
    _fault(
        "engine: misplaced chunks of different lengths are taken for adjacent ones",
        "communicator/jobs compiler",
        "is_adjacent_ = cut_.tiles == 1 && blocks_ == nullptr && !has_runs_;",
        "is_adjacent_ = cut_.tiles == 1 && blocks_ == nullptr;",
    ),
    _fault(
        "engine: the last elements of misplaced chunks are at their places, which are too short",
        "communicator/jobs compiler",
        "if (has_runs_ && memory != kScratch && element >= length_of(memory, cell)) {",
        "if (false) {",
    ),
    _fault(
        "torch: sizes on only one side are ignored",
        "torch",
        "if len(output_rows) == len(input_rows) == 0:",
        "if not len(output_rows) or not len(input_rows):",
    ),
    _fault(
        "torch: complex numbers have a maximum",
        "torch",
        "if element is None and reduction in _OF_PAIRS:",
        "if element is None:",
    ),
    # ---- Command line
    _fault(
        "cli: the last size is left out",
        "cli",
        "    ) <= end:\n        if len(sizes) > _MAX_SIZES:",
        "    ) < end:\n        if len(sizes) > _MAX_SIZES:",
    ),
    _fault(
        "cli: wrong elements out of place are not counted",
        "cli",
        "for t in (r.out_of_place, r.in_place) if t)",
        "for t in (r.in_place,) if t)",
        "_count_wrong(m for row in rows for m in row.sides)",
        "_count_wrong(m for row in rows for m in row.sides[1:])",
    ),
)
