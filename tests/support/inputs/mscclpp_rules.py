"""The rules that MSCCL++'s loader and executor leave to whoever writes an execution plan.

Written from the public description of the format and its traps, apart from sley's own reader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

LOCAL, REMOTE, SWITCH = "type", "buffer_id", "switch_channel_id"
MOVES = {
    # name: the kinds of the first sources, of further ones, and the same of destinations
    "put": ((), LOCAL, (), REMOTE),
    "pws": ((), LOCAL, (), REMOTE),
    "copy": ((LOCAL,), None, (LOCAL,), None),
    "re": ((LOCAL,), LOCAL, (LOCAL,), None),
    "res": ((LOCAL,), LOCAL, (LOCAL,), REMOTE),
    "ppkt": ((), LOCAL, (), REMOTE),
    "rppkt": ((LOCAL,), None, (), REMOTE),
    "upkt": ((LOCAL,), None, (LOCAL,), None),
    "repkt": ((LOCAL,), LOCAL, (LOCAL,), None),
    "respkt": ((LOCAL,), LOCAL, (LOCAL,), REMOTE),
    "gstore": ((LOCAL,), None, (SWITCH,), None),
    "glres": ((SWITCH,), None, (SWITCH,), None),
}
SIGNALS = ("signal", "wait", "rlxsignal", "rlxwait")
OPERATIONS = {*MOVES, *SIGNALS, "nop", "barrier", "sem_acquire", "sem_release"}
"""The operations that sley writes."""

TOP = {
    "name": str,
    "collective": str,
    "protocol": str,
    "inplace": bool,
    "reuse_resources": bool,
    "gpus": list,
    "num_threads_per_block": int,
    "use_double_scratch_buffer": bool,
    "buffer_alignment": int,
    "min_message_size": int,
    "max_message_size": int,
}


def broken_rules(plan: dict[str, Any]) -> list[str]:
    """What a plan does against the rules; empty if nothing."""
    return [text for check in CHECKS for text in check(plan)]


def _blocks(plan: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for gpu in plan["gpus"]:
        for block in gpu["threadblocks"]:
            yield gpu, block


def _operations(
    plan: dict[str, Any],
) -> Iterator[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]:
    for gpu, block in _blocks(plan):
        for op in block["ops"]:
            yield gpu, block, op


def _where(gpu: dict[str, Any], block: dict[str, Any], op: dict[str, Any]) -> str:
    return f"gpu {gpu['id']} block {block['id']} {op}"


def _header(plan: dict[str, Any]) -> Iterator[str]:
    if {word: type(plan.get(word)) for word in TOP} != TOP or set(plan) != set(TOP):
        yield f"header {[(word, type(value)) for word, value in plan.items()]}"
    if plan["protocol"] not in ("Simple", "LL"):
        yield f"protocol {plan['protocol']}"
    if plan["buffer_alignment"] % 16 or plan["num_threads_per_block"] > 1024:
        yield "alignment or threads"
    if not 0 <= plan["min_message_size"] <= plan["max_message_size"] < 1 << 64:
        yield "sizes"


def _ids(plan: dict[str, Any]) -> Iterator[str]:
    for position, gpu in enumerate(plan["gpus"]):
        if gpu["id"] != position:
            yield f"gpu {gpu['id']} at {position}"
        if not gpu["threadblocks"]:
            yield f"gpu {position}: a kernel without blocks"
        if not gpu["input_chunks"] or not gpu["output_chunks"]:
            yield f"gpu {position}: the loader divides by 0"
        for number, block in enumerate(gpu["threadblocks"]):
            if block["id"] != number:
                yield f"gpu {position}: block {block['id']} at {number}"


def _tables(plan: dict[str, Any]) -> Iterator[str]:
    for gpu, block in _blocks(plan):
        at = f"gpu {gpu['id']} block {block['id']}"
        if len(block["ops"]) > 64:
            yield f"{at}: {len(block['ops'])} operations"
        for entry in block["channels"]:
            number = sum(
                len(of.get("connected_to", of.get("rank_groups")))
                for of in gpu["channels"]
                if of["channel_type"] == entry["channel_type"]
            )
            ids = entry["channel_ids"]
            if len(ids) > 16 or len(set(ids)) < len(ids) or not set(ids) <= set(range(number)):
                yield f"{at}: channels {ids} of {number}"
        for entry in block["remote_buffer_refs"]:
            ids = entry["remote_buffer_ids"]
            allowed = {
                k
                for k, of in enumerate(gpu["remote_buffers"])
                if entry["access_channel_type"] in of["access_channel_types"]
            }
            if len(ids) > 16 or not set(ids) <= allowed:
                yield f"{at}: remote buffers {ids}"
    for gpu in plan["gpus"]:
        # The bit fields of a port's trigger; three memories are the GPU's own.
        ports = sum(
            len(of["connected_to"]) for of in gpu["channels"] if of["channel_type"] == "port"
        )
        memories = 3 + sum("port" in of["access_channel_types"] for of in gpu["remote_buffers"])
        if ports > 1 << 10 or memories > 1 << 9:
            yield f"gpu {gpu['id']}: {ports} port channels, {memories} memories of ports"
        for entry in gpu["remote_buffers"]:
            if entry["rank"] == gpu["id"] or not 0 <= entry["rank"] < len(plan["gpus"]):
                yield f"gpu {gpu['id']}: {entry}"


def _operands(plan: dict[str, Any]) -> Iterator[str]:
    room = 2 if plan["protocol"] == "LL" else 1
    for gpu, block, op in _operations(plan):
        at = _where(gpu, block, op)
        if op["name"] not in OPERATIONS:
            yield f"{at}: not an operation"
            continue
        if op.get("reduce_op", "sum") != "sum":
            yield f"{at}: the executor sums"
        if op["name"] not in MOVES:
            continue
        sources, destinations = op["src_buff"], op["dst_buff"]
        first, further, firsts, others = MOVES[op["name"]]
        for items, begin, rest in ((sources, first, further), (destinations, firsts, others)):
            kinds = [next(k for k in (LOCAL, REMOTE, SWITCH) if k in item) for item in items]
            if kinds[: len(begin)] != list(begin) or set(kinds[len(begin) :]) - {rest}:
                yield f"{at}: operands {kinds}"
            if not items or len(items) > 10 or sum(kind == REMOTE for kind in kinds) > 8:
                yield f"{at}: {len(items)} operands"
        if len({item["size"] for item in sources + destinations}) != 1 and op["name"] not in (
            "put",
            "pws",
            "ppkt",
        ):
            yield f"{at}: sizes differ"
        if op["name"] in ("put", "pws", "ppkt"):
            if [item["size"] for item in sources] != [item["size"] for item in destinations]:
                yield f"{at}: pairs"
            memory = op["channel_type"] == "memory"
            if memory and len({item["type"] for item in sources}) > 1:
                yield f"{at}: the type of the first source counts for all"
        if op["name"] == "pws" and op["channel_type"] != "port":
            yield f"{at}: never signals"
        if op["name"].endswith("pkt") and op.get("channel_type") == "port":
            yield f"{at}: packets by port"
        sizes = {
            "i": gpu["input_chunks"],
            "o": gpu["output_chunks"],
            "s": gpu["scratch_chunks"] * room,
        }
        for item in sources + destinations:
            yield from _inside(plan, gpu, block, op, item, sizes)


def _inside(plan, gpu, block, op, item, sizes) -> Iterator[str]:
    at = _where(gpu, block, op)
    if item["size"] < 1 or item["index"] < 0:
        yield f"{at}: an empty range"
    word = item.get("type")
    if SWITCH in item:
        word, ranks = _switches(gpu)[_channels(block, "switch")[item[SWITCH]]]
        if gpu["id"] not in ranks:
            yield f"{at}: a switch channel of others"
        names = {"i": "input_chunks", "o": "output_chunks", "s": "scratch_chunks"}
        sizes = {word: min(plan["gpus"][rank][names[word]] for rank in ranks)}
    elif word is None:
        refs = _refs(block, op["channel_type"])
        entry = gpu["remote_buffers"][refs[item["buffer_id"]]]
        other = plan["gpus"][entry["rank"]]
        word = entry["type"]
        scratch = other["scratch_chunks"] * (2 if plan["protocol"] == "LL" else 1)
        sizes = {"i": other["input_chunks"], "o": other["output_chunks"], "s": scratch}
    end = item["index"] + item["size"]
    if _is_packet(op, item):
        if word != "s":
            yield f"{at}: packets outside of the scratch"
        end *= 2
    elif "buffer_id" in item and word == "s" and plan["use_double_scratch_buffer"]:
        yield f"{at}: the other half of the scratch"
    if end > sizes[word]:
        yield f"{at}: past the end of {word}"


def _is_packet(op: dict[str, Any], item: dict[str, Any]) -> bool:
    name = op["name"]
    if not name.endswith("pkt"):
        return False
    if name in ("repkt", "respkt"):
        return item is not op["src_buff"][0] and item is not op["dst_buff"][0]
    if name == "rppkt":
        return True
    side = "dst_buff" if name == "ppkt" else "src_buff"
    return any(item is other for other in op[side])


def _switches(gpu: dict[str, Any]) -> list[tuple[str, tuple[int, ...]]]:
    """The buffer and the ranks of each switch channel of a GPU."""
    return [
        (of["buffer_type"], tuple(group["ranks"]))
        for of in gpu["channels"]
        if of["channel_type"] == "switch"
        for group in of["rank_groups"]
    ]


def _switch_channels(plan: dict[str, Any]) -> Iterator[str]:
    """The ranks of a switch channel make it together, in one order; it has the size of the lowest
    rank's buffer."""
    own = [_switches(gpu) for gpu in plan["gpus"]]
    for gpu in plan["gpus"]:
        rank = gpu["id"]
        for word, ranks in own[rank]:
            if word == "s" and gpu["scratch_chunks"] > plan["gpus"][min(ranks)]["scratch_chunks"]:
                yield f"gpu {rank}: more scratch than the switch channel of {ranks}"
            for other in ranks:
                both = [
                    [of for of in own[end] if {rank, other} <= {*of[1]}] for end in (rank, other)
                ]
                if both[0] != both[1]:
                    yield f"gpu {rank}: other switch channels than gpu {other}"


def _refs(block: dict[str, Any], word: str) -> list[int]:
    return [
        k
        for entry in block["remote_buffer_refs"]
        if entry["access_channel_type"] == word
        for k in entry["remote_buffer_ids"]
    ]


def _channels(block: dict[str, Any], word: str) -> list[int]:
    return [
        k
        for entry in block["channels"]
        if entry["channel_type"] == word
        for k in entry["channel_ids"]
    ]


def _threads(plan: dict[str, Any]) -> Iterator[str]:
    """Operations of single threads: their channels, semaphores and barriers."""
    members: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for gpu, block, op in _operations(plan):
        at, name = _where(gpu, block, op), op["name"]
        if name in (*SIGNALS, "pws"):
            ids, known = op["channel_ids"], _channels(block, op["channel_type"])
            if len(ids) > 8 or len(set(ids)) < len(ids) or not set(ids) <= set(range(len(known))):
                yield f"{at}: channels"
            if name == "pws" and len(ids) != len(op["dst_buff"]):
                yield f"{at}: a channel for each pair"
        if name.startswith("sem_"):
            ids = op["semaphore_ids"]
            if (
                len(ids) > 16
                or len(set(ids)) < len(ids)
                or not set(ids) <= set(range(len(gpu["semaphores"])))
            ):
                yield f"{at}: semaphores"
        if name == "barrier":
            key = (gpu["id"], op["barrier_id"])
            members.setdefault(key, set()).add((block["id"], op["num_threadblocks"]))
    for (rank, barrier), of in members.items():
        if barrier > 15 or {number for _, number in of} != {len(of)}:
            yield f"gpu {rank}: barrier {barrier} of {of}"


def _counters(plan: dict[str, Any]) -> Iterator[str]:
    """As many signals as waits on each channel and semaphore, each by one block."""
    pairs: dict[tuple[int, int, str], list[tuple[int, int]]] = {}
    for gpu in plan["gpus"]:
        number = Counter[str]()
        for entry in gpu["channels"]:
            for peer in entry.get("connected_to", ()):
                word = entry["channel_type"]
                pairs.setdefault((gpu["id"], peer, word), []).append((gpu["id"], number[word]))
                number[word] += 1
    given, taken = Counter[Any](), Counter[Any]()
    for gpu, block, op in _operations(plan):
        rank = gpu["id"]
        if op["name"].startswith("sem_"):
            side = given if op["name"] == "sem_release" else taken
            side.update((rank, "semaphore", k) for k in op["semaphore_ids"])
        if op["name"] not in (*SIGNALS, "pws"):
            continue
        word, known = op["channel_type"], _channels(block, op["channel_type"])
        for k in op["channel_ids"]:
            peer, end = _end(pairs, rank, word, known[k])
            if op["name"].endswith("wait"):
                taken[rank, word, known[k]] += 1
            elif end is None:
                yield f"{_where(gpu, block, op)}: nobody is at the other end"
            else:
                given[peer, word, end] += 1
    if given != taken:
        yield f"signals {given - taken} too many, waits {taken - given} too many"


def _end(pairs, rank: int, word: str, channel: int) -> tuple[int, int | None]:
    for (own, peer, of), mine in pairs.items():
        if own == rank and of == word and (rank, channel) in mine:
            others = pairs.get((peer, rank, word), [])
            k = mine.index((rank, channel))
            return peer, others[k][1] if k < len(others) else None
    raise KeyError(channel)


def _offsets(plan: dict[str, Any]) -> Iterator[str]:
    """All offsets of the largest call fit into 32 bits."""
    gpu = max(plan["gpus"], key=lambda gpu: gpu["scratch_chunks"])
    own = "output_chunks" if plan["collective"] == "allgather" else "input_chunks"
    unit = -(-plan["max_message_size"] // plan["gpus"][0][own])
    copies = (2 if plan["protocol"] == "LL" else 1) * (1 + plan["use_double_scratch_buffer"])
    chunks = max(gpu["input_chunks"], gpu["output_chunks"], gpu["scratch_chunks"] * copies)
    if unit * chunks >= 1 << 32:
        yield f"{unit * chunks} bytes"


CHECKS = (_header, _ids, _tables, _operands, _threads, _counters, _offsets, _switch_channels)
