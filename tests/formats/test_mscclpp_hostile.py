"""Wrong and malicious execution plans: a coded diagnostic at its place, never a crash."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.errors import SleyError
from sley.errors.catalog import all_rules
from sley.errors.mscclpp import F478
from sley.formats import mscclpp
from sley.formats.format import MOST_OF_A_KIND
from sley.formats.mscclpp import document, reader
from sley.formats.mscclpp.targets import MSCCLPP
from sley.ir.collectives import Standard
from support.generators.examples import examples
from support.inputs import mscclpp_right as right
from support.inputs.mscclpp_plans import GONE, PORT, Made, edited, text_of
from support.inputs.mscclpp_right import RIGHT, begin, end
from support.mutants.mscclpp_mutants import mutated, text_of_rearranged

OPS = "gpus.0.threadblocks.0.ops"
RRES = f"{OPS}.3"


def refused(text: str, **options: Any) -> SleyError:
    with pytest.raises(SleyError) as caught:
        mscclpp.read(text, file="bad.json", **options)
    return caught.value


def codes(text: str) -> set[str]:
    """The codes of the findings of reading and proving a file."""
    try:
        for way in mscclpp.executions(text, MSCCLPP).executions:
            sley.verify(way.plan)
    except SleyError as error:
        return {found.code for found in error.diagnostics}
    return set()


MISTAKES: list[tuple[str, str, Any]] = [
    ("F472", "name", GONE),
    ("F472", "gpus", GONE),
    ("F472", "inplace", GONE),
    ("F472", "gpus.1.channels", GONE),
    ("F472", "gpus.1.scratch_chunks", GONE),
    ("F472", "gpus.0.threadblocks.0.channels.0.channel_ids", GONE),
    ("F472", f"{OPS}.0.channel_ids", GONE),
    ("F472", f"{RRES}.src_buff", GONE),
    ("F472", f"{RRES}.src_buff.0.index", GONE),
    ("F472", "name", 3),
    ("F472", "gpus", {}),
    ("F472", "gpus.1", []),
    ("F472", "inplace", 1),
    ("F472", "protocol", "LL128"),
    ("F472", "protocol", ["LL"]),
    ("F472", "gpus.0.input_chunks", 2.0),
    ("F472", "gpus.0.input_chunks", True),
    ("F472", "gpus.0.input_chunks", "2"),
    ("F472", "gpus.0.input_chunks", None),
    ("F472", "gpus.0.channels.0.channel_type", "proxy"),
    ("F472", "gpus.0.channels.0.connected_to", [[]]),
    ("F472", "gpus.0.remote_buffers.0.type", "x"),
    ("F472", "gpus.0.remote_buffers.0.access_channel_types", [{}]),
    ("F472", "gpus.0.threadblocks.0.ops", "none"),
    ("F472", f"{OPS}.0", "rlxsignal"),
    ("F472", f"{OPS}.0.channel_type", "proxy"),
    ("F472", f"{RRES}.src_buff.0", {"index": 0, "size": 1}),
    ("F472", f"{RRES}.src_buff.0", {"type": "i", "buffer_id": 0, "index": 0, "size": 1}),
    ("F472", f"{RRES}.tbg_info", []),
    ("F422", "gpus.0.input_chunks", -1),
    ("F422", "gpus.0.input_chunks", 1 << 31),
    ("F422", "num_threads_per_block", 2048),
    ("F422", "num_threads_per_block", 0),
    ("F422", "buffer_alignment", 0),
    ("F422", "min_message_size", 1 << 31),
    ("F422", "max_message_size", 1 << 64),
    ("F422", "gpus", []),
    ("F422", f"{OPS}.0.channel_ids", [-1]),
    ("F422", f"{RRES}.tbg_info", {"tb_id": 2, "tbg_size": 2}),
    ("F422", f"{RRES}.tbg_info", {"tb_id": 0, "tbg_size": 0}),
    ("F412", "gpus.1.id", 0),
    ("F412", "gpus.0.threadblocks.0.id", 1),
    ("F475", "gpus.1.input_chunks", 0),
    ("F475", "gpus.1.output_chunks", 0),
    ("F475", f"{RRES}.src_buff.1.size", 0),
    ("F476", "buffer_alignment", 8),
    ("F476", "buffer_alignment", 40),
    ("F411", "gpus.1.input_chunks", 4),
    ("F411", "gpus.0.output_chunks", 1),
    ("F411", "collective", "allgather"),
    ("F478", f"{RRES}.name", "glre"),
    ("F478", f"{RRES}.name", ""),
    ("F479", f"{RRES}.name", "rre"),
    ("F479", f"{RRES}.name", "copy"),
    ("F479", f"{RRES}.name", "put"),
    ("F479", f"{RRES}.channel_type", GONE),
    ("F479", f"{RRES}.channel_type", "port"),
    ("F479", f"{RRES}.src_buff", []),
    ("F479", f"{OPS}.0.channel_type", "switch"),
    ("F479", f"{OPS}.0.barrier_id", 1),
    ("F479", f"{RRES}.semaphore_ids", [0]),
    ("F479", f"{OPS}.2.iter_context", {"unit_size": 16, "num_chunks": 1}),
    ("F444", f"{OPS}", [{"name": "nop"}] * 65),
    ("F482", "gpus.0.threadblocks.0.channels.0.channel_ids", [0] * 17),
    ("F482", "gpus.0.threadblocks.0.remote_buffer_refs.0.remote_buffer_ids", [0] * 17),
    ("F482", "gpus.0.channels", [{"channel_type": "port", "connected_to": [1] * 1025}]),
    ("F482", "gpus.0.remote_buffers",
     [{"rank": 1, "type": "i", "access_channel_types": ["memory", "port"]}] * 510),
    ("F482", f"{OPS}.0.channel_ids", [0] * 9),
    ("F482", f"{RRES}.src_buff", [{"type": "i", "index": 0, "size": 1}] * 11),
    ("F482", f"{OPS}.2", {"name": "barrier", "barrier_id": 16, "num_threadblocks": 1}),
    ("F482", f"{OPS}.2", {"name": "sem_release", "semaphore_ids": [0] * 17}),
    ("F483", "gpus.0.channels.0.connected_to", [0]),
    ("F483", "gpus.0.channels.0.connected_to", [2]),
    ("F483", "gpus.0.remote_buffers.0.rank", 2),
    ("F483", "gpus.0.remote_buffers.0.rank", 0),
    ("F483", f"{OPS}.0.channel_ids", [1]),
    ("F483", "gpus.0.threadblocks.0.channels.0.channel_ids", [1]),
    ("F483", "gpus.0.threadblocks.0.channels.0.channel_ids", []),
    ("F483", "gpus.0.threadblocks.0.remote_buffer_refs.0.remote_buffer_ids", [1]),
    ("F483", "gpus.0.remote_buffers.0.access_channel_types", ["port"]),
    ("F483", f"{RRES}.src_buff.1.buffer_id", 1),
    ("F483", f"{OPS}.2", {"name": "sem_release", "semaphore_ids": [0]}),
    ("F420", f"{RRES}.src_buff.0.index", 2),
    ("F420", f"{RRES}.dst_buff.1.index", 2),
    ("F420", f"{RRES}.dst_buff.0", {"type": "s", "index": 0, "size": 1}),
    ("F486", f"{RRES}.src_buff.1.size", 2),
    ("F488", f"{RRES}.reduce_op", "max"),
    ("F496", f"{OPS}.2", {"name": "barrier", "barrier_id": 0, "num_threadblocks": 2}),
    ("F496", f"{OPS}.2", {"name": "barrier", "barrier_id": 0, "num_threadblocks": 0}),
    ("F409", "collective", "allredcue"),
    ("F409", "collective", "\u20ac" * 100),
    ("F409", "collective", "custom"),
    ("F409", "collective", "sendrecv"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "path", "value"), MISTAKES)
def test_a_mistake_is_named(code: str, path: str, value: Any) -> None:
    document = edited(right.allreduce_by_rres().to_json(), path, value)
    found = refused(text_of(document)).diagnostics
    assert code == found[0].code
    assert all([found[0].expected, found[0].found, found[0].remedy])
    assert found[0].places[0].file == "bad.json"


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("sinal", "Did you mean signal or rlxsignal?"), ("xyz", F478.instead)],
)
def test_a_misspelt_operation_gets_an_unrelated_remedy(name: str, remedy: str) -> None:
    document = edited(right.allreduce_by_rres().to_json(), f"{OPS}.0.name", name)
    assert refused(text_of(document)).diagnostics[0].remedy == remedy


def test_a_mistake_is_at_the_line_of_its_operation() -> None:
    document = edited(right.allreduce_by_rres().to_json(), f"{RRES}.src_buff.1.size", 2)
    text = text_of(document)
    place = refused(text).diagnostics[0].places[0]
    assert '"name": "rres"' in text.splitlines()[place.line - 1]
    assert place.detail == "rank 0 block 0 operation 3 (rres)"


@pytest.mark.parametrize("word", ["signal", "wait", "pws", "pwsf"])
def test_a_channel_without_another_end_is_not_at_its_line(word: str) -> None:
    made = Made("allgather", 3, (1, 3, 0))
    block = made.gpus[0].block()
    if word.startswith("pws"):
        block.move(word, [("i", 0, 1)], [(2, "o", 0, 1)], word=PORT)
    else:
        block.on(word, 2, word=PORT)
    channel, operation = refused(made.text).diagnostics[0].places
    assert '"connected_to"' in made.text.splitlines()[channel.line - 1]
    assert channel.detail == "rank 0 port channel 0"
    assert operation.detail == f"rank 0 block 0 operation 0 ({word})"
    made.gpus[2].block().on("wait", 0, word=PORT)
    mscclpp.read(made.text)


def test_a_channel_to_no_rank_is_not_at_its_line() -> None:
    text = text_of(edited(_put().to_json(), "gpus.1.channels.0.connected_to", [1]))
    (found,) = refused(text).diagnostics
    assert found.code == "F483"
    assert '"connected_to"' in text.splitlines()[found.places[0].line - 1]


def _put(**header: Any) -> Made:
    """A put through the scratch of the other rank."""
    made = Made("allgather", 2, (1, 2, 2), **header)
    for rank, gpu in enumerate(made.gpus):
        peer = 1 - rank
        block = begin(gpu.block(), peer).move("copy", [("i", 0, 1)], [("o", rank, 1)])
        end(block.move("put", [("i", 0, 1)], [(peer, "s", 0, 1)]), peer).nop()
        end(block.move("copy", [("s", 0, 1)], [("o", peer, 1)]), peer)
    return made


def _one(name: str, src: list[Any], dst: list[Any], **more: Any) -> Made:
    """An operation on rank 0 of two ranks, with six chunks of scratch."""
    made = Made(
        more.pop("collective", "allreduce"),
        2,
        more.pop("chunks", (2, 2, 6)),
        inplace=more.pop("inplace", True),
        protocol=more.pop("protocol", "LL"),
        use_double_scratch_buffer=more.pop("double", False),
    )
    made.gpus[0].block().move(name, src, dst, **more)
    return made


def _in_pipeline(
    name: str, src: list[Any], dst: list[Any], *, chunks: int = 1, **more: Any
) -> Made:
    made = _one("copy", [("i", 0, 1)], [("o", 1, 1)])
    made.gpus[0].block().pipeline(more.pop("unit", 64), chunks).move(name, src, dst, **more).done()
    return made


def _group(ranks: list[int]) -> Callable[[], Any]:
    def make() -> Any:
        document = right.allreduce_by_switch().to_json()
        return edited(document, "gpus.0.channels.1.rank_groups.0.ranks", ranks)

    return make


def _other_channel() -> Any:
    """A port channel to rank 2 for a buffer of rank 1."""
    made = Made("alltoall", 3, (3, 3, 0))
    block = made.gpus[0].block()
    block.move("put", [("i", 1, 1), ("i", 2, 1)], [(1, "o", 0, 1), (2, "o", 0, 1)], word=PORT)
    return edited(made.to_json(), f"{OPS}.0.channel_ids", [1, 0])


def _get_on_port() -> Any:
    document = _one("get", [(1, "i", 0, 1)], [_S]).to_json()
    return edited(document, f"{OPS}.0.channel_type", PORT)


def _nested() -> Any:
    inner = {"name": "pipeline", "iter_context": {"unit_size": 16, "num_chunks": 1}, "ops": []}
    outer = {**inner, "ops": [inner]}
    return edited(right.allreduce_by_rres().to_json(), f"{OPS}.2", outer)


_I, _S = ("i", 0, 1), ("s", 0, 1)
TRAPS: list[tuple[str, str, Callable[[], Any]]] = [
    ("F479", "a put with fewer sources", lambda: _one("put", [_I], [(1, "s", 0, 1)] * 2)),
    ("F479", "a copy of two", lambda: _one("copy", [_I, ("i", 1, 1)], [_S])),
    ("F479", "rppkt of two", lambda: _one("rppkt", [_S, ("s", 1, 1)], [(1, "s", 0, 1)])),
    ("F479", "a get on a port", _get_on_port),
    ("F479", "a port to another rank", _other_channel),
    ("F483", "a group without the rank", _group([1])),
    ("F483", "a group of another rank", _group([0, 1, 2])),
    ("F483", "a group with a rank twice", _group([0, 1, 1])),
    ("F483", "a group in another order", _group([1, 0])),
    ("F420", "packets beyond the scratch", lambda: _one("cpkt", [_I], [("s", 6, 1)])),
    ("F420", "packets without LL", lambda: _one("cpkt", [_I], [("s", 3, 1)], protocol="Simple")),
    ("F420", "half of a packet",
     lambda: _one("cpkt", [_I], [("s", 1, 1)], chunks=(2, 2, 3), protocol="Simple")),
    ("F488", "pws on memory", lambda: _one("pws", [_I], [(1, "s", 0, 1)])),
    ("F488", "pwsf on memory", lambda: _one("pwsf", [_I], [(1, "s", 0, 1)])),
    ("F488", "ppkt on a port", lambda: _one("ppkt", [_I], [(1, "s", 0, 1)], word=PORT)),
    ("F488", "a get to another place", lambda: _one("get", [(1, "i", 1, 1)], [_S])),
    ("F488", "sources of two kinds",
     lambda: _one("put", [_I, _S], [(1, "s", 1, 1), (1, "s", 2, 1)])),
    ("F488", "sources of two kinds as packets",
     lambda: _one("ppkt", [_I, _S], [(1, "s", 1, 1), (1, "s", 2, 1)])),
    ("F488", "packets to an output", lambda: _one("ppkt", [_I], [(1, "o", 0, 1)])),
    ("F488", "packets in the input", lambda: _one("upkt", [_I], [_S])),
    ("F488", "packets of a copy", lambda: _one("cpkt", [_S], [_I])),
    ("F493", "a put into half of the scratch", lambda: _put(use_double_scratch_buffer=True)),
    ("F493", "a read of the first half",
     lambda: _one("rre", [_I, (1, "s", 0, 1)], [_I], double=True)),
    ("F493", "a push from the first half",
     lambda: _one("put", [_S], [(1, "o", 0, 1)], word=PORT, double=True)),
    ("F488", "packets of a switch in the output",
     lambda: _one("gstorepkt", [_S], [("all", "o", 0, 1)])),
    ("F493", "a switch on the first half",
     lambda: _one("gstore", [_I], [("all", "s", 0, 1)], double=True)),
    ("F493", "an input in place",
     lambda: _one("put", [_I], [(1, "i", 0, 1)], collective="allgather", chunks=(1, 2, 0))),
    ("F493", "an output in place",
     lambda: _one("put", [_I], [(1, "o", 0, 1)], collective="reducescatter", chunks=(2, 1, 0))),
    ("F486", "a short range", lambda: _in_pipeline("copy", [_I], [("i", 1, 1)], chunks=2)),
    ("F486", "a share", lambda: _in_pipeline("copy", [_I], [("i", 1, 1)], share=(0, 2))),
    ("F486", "packets", lambda: _in_pipeline("cpkt", [_I], [_S])),
    ("F486", "a pipeline in a pipeline", _nested),
    ("F422", "no unit", lambda: _in_pipeline("copy", [_I], [("i", 1, 1)], unit=0)),
    ("F422", "an odd unit", lambda: _in_pipeline("copy", [_I], [("i", 1, 1)], unit=100)),
]  # fmt: skip


def _text(made: Any) -> str:
    return made.text if isinstance(made, Made) else text_of(made)


@pytest.mark.parametrize(("code", "what", "make"), TRAPS, ids=[what for _, what, _ in TRAPS])
def test_a_trap_of_the_executor_is_refused(code: str, what: str, make: Callable[[], Any]) -> None:
    assert refused(_text(make())).code == code


LIMITS = [
    ("operations", 6, "allgather_by_put", "F444"),
    ("channels", 0, "allgather_by_put", "F482"),
    ("references", 0, "allgather_by_put", "F482"),
    ("channels_per_operation", 0, "allgather_by_put", "F482"),
    ("buffers_per_operation", 1, "allreduce_by_res", "F482"),
    ("semaphores_per_operation", 0, "allgather_with_semaphores", "F482"),
    ("barriers", 1, "allreduce_with_barriers", "F482"),
    ("port_channels", 0, "allgather_by_port", "F482"),
    ("port_memories", 3, "allgather_by_port", "F482"),
    ("threads", 1023, "allgather_by_put", "F422"),
    ("iterations", 0, "allreduce_in_pipeline", "F422"),
    ("vector_bytes", 32, "allgather_by_put", "F476"),
]


@pytest.mark.parametrize(("limit", "value", "plan", "code"), LIMITS)
def test_a_limit_of_the_target_is_ignored(limit: str, value: int, plan: str, code: str) -> None:
    smaller = replace(MSCCLPP, **{limit: value})
    with pytest.raises(SleyError, match=code):
        mscclpp.executions(RIGHT[plan]().text, smaller)


def test_the_shared_scratch_of_the_target_is_ignored() -> None:
    text = right.allreduce_by_respkt(reuse_resources=True).text
    smaller = replace(MSCCLPP, shared_scratch_bytes=1 << 20)
    usual, less = (
        {str(one) for one in mscclpp.executions(text, target).executions[0].conditions}
        for target in (MSCCLPP, smaller)
    )
    assert usual != less


def test_too_few_threads_for_the_channels_are_refused() -> None:
    made = right.alltoall_by_one_put()
    made.header["num_threads_per_block"] = 1
    assert refused(made.text).code == "F422"


def test_a_size_range_without_sizes_is_refused() -> None:
    made = right.allreduce_by_rres(min_message_size=2048, max_message_size=1024)
    assert refused(made.text).code == "F422"


def test_too_many_iterations_are_refused() -> None:
    made = Made("allreduce", 1, (70_000, 70_000, 0))
    copy_all = [("i", 0, 70_000)], [("o", 0, 70_000)]
    made.gpus[0].block().pipeline(16, 70_000).move("copy", *copy_all).done()
    assert refused(made.text).code == "F422"


def test_a_collective_of_other_ranks_is_refused() -> None:
    error = refused(right.allreduce_by_rres().text, collective=sley.AllReduce(3, 2))
    assert error.code == "F424"


def test_every_rule_of_reading_is_tested() -> None:
    elsewhere = {"F470", "F432", "F431", "F499"}
    tested = {code for code, *_ in MISTAKES} | {code for code, *_ in TRAPS} | elsewhere
    assert {code for code in all_rules() if "F470" <= code <= "F499"} <= tested


DAMAGES: list[tuple[str, str, Callable[[], Any]]] = []


def _damage(code: str, name: str, plan: str) -> Callable[[Callable[[Any], None]], None]:
    """Registers a change of a right plan's document, and the code of its refusal."""

    def register(change: Callable[[Any], None]) -> None:
        def make() -> Any:
            document = RIGHT[plan]().to_json()
            change(document)
            return document

        DAMAGES.append((code, name, make))

    return register


def _ops(document: Any, gpu: int = 0, block: int = 0) -> list[Any]:
    return document["gpus"][gpu]["threadblocks"][block]["ops"]


def _position(document: Any, name: str, number: int = 0) -> int:
    return [k for k, op in enumerate(_ops(document)) if op["name"] == name][number]


@_damage("V212", "a put without its signal", "allgather_by_put")
def _no_signal(document: Any) -> None:
    for gpu in (0, 1):
        ops = _ops(document, gpu)
        ops[:] = [op for op in ops if op["name"] != "signal"]


@_damage("V203", "waits before their signals", "allgather_by_put")
def _wait_first(document: Any) -> None:
    for gpu in (0, 1):
        ops = _ops(document, gpu)
        ops[-2:] = reversed(ops[-2:])


@_damage("V215", "no nop between put and signal", "allgather_by_put")
def _no_nop(document: Any) -> None:
    for gpu in (0, 1):
        del _ops(document, gpu)[_position(document, "signal") - 1]


@_damage("V215", "no exchange at the begin", "allgather_by_put")
def _no_begin(document: Any) -> None:
    for gpu in (0, 1):
        del _ops(document, gpu)[:3]


@_damage("V211", "a relaxed signal after data", "allgather_by_put")
def _relaxed(document: Any) -> None:
    for gpu in (0, 1):
        for op in _ops(document, gpu)[-2:]:
            op["name"] = f"rlx{op['name']}"


@_damage("V212", "a signal too many", "allgather_by_put")
def _unbalanced(document: Any) -> None:
    _ops(document).append(_ops(document)[-2])


@_damage("V206", "a put of the wrong chunks", "alltoall_by_one_put")
def _wrong_chunks(document: Any) -> None:
    _ops(document)[_position(document, "put")]["src_buff"].reverse()


@_damage("V214", "packets of two messages in one place", "allreduce_by_respkt")
def _aliased(document: Any) -> None:
    for gpu in (0, 1):
        ops = _ops(document, gpu)
        ops[1]["dst_buff"][1]["index"] = 0
        ops[2]["src_buff"][0]["index"] = 0


@_damage("V215", "one copy of the scratch for packets", "allreduce_by_repkt")
def _one_copy(document: Any) -> None:
    document["use_double_scratch_buffer"] = False


@_damage("V203", "packets that nobody writes", "allreduce_by_respkt")
def _no_packets(document: Any) -> None:
    del _ops(document)[0]


@_damage("V215", "a missing barrier", "allreduce_with_barriers")
def _no_barrier(document: Any) -> None:
    for gpu in (0, 1):
        for block in (0, 1):
            ops = _ops(document, gpu, block)
            ops[:] = [op for op in ops if op.get("barrier_id") != 1]


@_damage("V203", "a barrier twice in one block", "allreduce_with_barriers")
def _barrier_twice(document: Any) -> None:
    ops = _ops(document, 0, 1)
    ops.insert(0, ops[0])


@_damage("V212", "a semaphore that nobody releases", "allgather_with_semaphores")
def _no_release(document: Any) -> None:
    del _ops(document)[-1]


@_damage("V204", "a semaphore that begins with 1", "allgather_with_semaphores")
def _early_semaphore(document: Any) -> None:
    document["gpus"][0]["semaphores"][0]["init_value"] = 1


@_damage("V204", "a source overwritten after a flush", "allgather_by_port")
def _flushed(document: Any) -> None:
    for gpu in (0, 1):
        ops = _ops(document, gpu)
        row = _position(document, "put")
        flush = {"name": "flush", "channel_type": PORT, "channel_ids": [0]}
        nop = {"name": "nop"}
        write = {
            "name": "copy",
            "src_buff": [{"type": "o", "index": gpu, "size": 1}],
            "dst_buff": [{"type": "i", "index": 0, "size": 1}],
        }
        ops[row + 2 : row + 2] = [nop, flush, nop, write]


@_damage("V215", "no answer after a push", "allgather_by_port")
def _no_answer(document: Any) -> None:
    for gpu in (0, 1):
        del _ops(document, gpu)[-2:]


@_damage("V204", "a share twice", "allreduce_in_shares")
def _share_twice(document: Any) -> None:
    _ops(document, 0, 1)[3]["tbg_info"]["tb_id"] = 0


@pytest.mark.parametrize(("code", "name", "make"), DAMAGES, ids=[name for _, name, _ in DAMAGES])
def test_a_damaged_plan_is_refused_for_its_damage(
    code: str, name: str, make: Callable[[], Any]
) -> None:
    assert codes(text_of(make())) == {code}


NOT_JSON = [
    "{",
    "{}{}",
    "\n",
    "{'name': 1}",
    '{"name": NaN}',
    '{"name": Infinity}',
    '{"name": "a", "name": "b"}',
    '{"gpus": [{"id": 0, "id": 0}]}',
    f'{{"name": {"9" * 5000}}}',
    '{"name": "\\ud800"}',
    '{"name": "\ud800"}',
    '{"name": "tab\t"}',
    '{"a": ' * 100_000,
    '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "// a comment\n{}",
    "\ufeff{}",
    "[{}]",
    '"{"',
    "\n1",
    "\nnull",
]


@pytest.mark.parametrize("text", NOT_JSON, ids=range(len(NOT_JSON)))
def test_a_text_that_is_no_json_is_refused(text: str) -> None:
    assert [found.code for found in refused(text).diagnostics] == ["F470"]


@pytest.mark.parametrize(
    "text",
    [
        '{\n "name": ,}',
        '{\n "note": 1e999}',
        '{\n "name": -1e999}',
        '{\n "name": NaN, "note": "NaN"}',
        '{"a": "1e999 NaN \\"",\n "name": 1e999}',
        f'{{\n "name": {"9" * 400}}}',
        '{\n "not": "\\ud83d"}',
    ],
)
def test_a_mistake_in_json_has_its_place(text: str) -> None:
    place = refused(text).diagnostics[0].places[0]
    assert (place.line, place.column) == (2, 10)


@pytest.mark.parametrize(
    "escape", ["\\ud800", "\\uDBFFx", "\\udc00", "\\ude00\\ud83d", "\\\\\\ud800"]
)
@pytest.mark.parametrize("text", ['{"note": ["%s"]}', '{"note": {"%s": 1}}'])
def test_half_a_surrogate_pair_in_an_ignored_key_is_refused(text: str, escape: str) -> None:
    (found,) = refused(text % escape).diagnostics
    assert found.code == "F470"
    assert found.found.endswith("half of a surrogate pair")


@pytest.mark.parametrize("note", ["\\ud83d\\ude00", "\\\\ud800", "\\u00e9", "1e999 NaN"])
def test_right_strings_and_large_numbers_of_json_are_read(note: str) -> None:
    whole = right.allreduce_by_rres().text
    numbers = f"[1e308, {'9' * 300}, 1e-999]"
    mscclpp.read(whole.replace("{", f'{{"note": "{note}", "numbers": {numbers},', 1))


def test_a_number_of_any_size_is_refused_briefly() -> None:
    document = edited(right.allreduce_by_rres().to_json(), "gpus.0.input_chunks", 10**4000)
    assert len(str(refused(text_of(document)))) < 500


@pytest.mark.parametrize("path", ["no-such-file.json", "", "/", "a\0b"])
def test_a_path_that_cannot_be_opened_is_refused(path: str) -> None:
    assert refused(path).code == "F404"


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(b"\xff\xfe{}")
    assert refused(str(path)).code == "F470"
    path.write_bytes(b"\xef\xbb\xbf" + right.allreduce_by_rres().text.encode())
    mscclpp.read(path)


def test_too_much_text_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = right.allreduce_by_rres().text
    path = tmp_path / "plan.json"
    path.write_text(text)
    monkeypatch.setattr(document, "MAX_TEXT_BYTES", len(text) - 1)
    assert [refused(text).code, refused(str(path)).code] == ["F403", "F403"]
    monkeypatch.setattr(document, "MAX_TEXT_BYTES", len(text))
    mscclpp.read(text)
    monkeypatch.setattr(document, "MAX_CONTAINERS", 20)
    assert refused(text).code == "F403"


@pytest.mark.parametrize(
    ("collective", "chunks"),
    [
        ("allgather", (1 << 20, 1 << 21, 0)),
        ("allreduce", (1 << 30, 1 << 30, 0)),
        ("allreduce", (2, 2, 1 << 30)),
    ],
)
def test_too_many_chunks_are_made_before_they_are_refused(
    collective: str, chunks: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> NoReturn:
        raise AssertionError("made the buffers of a plan that is too large")

    monkeypatch.setattr(Standard, "build", never)
    monkeypatch.setattr(reader, "lower", never)
    assert refused(Made(collective, 2, chunks).text).code == "F403"


@pytest.mark.parametrize("shares", [4099, 2**31 - 1])
def test_too_many_parts_are_refused(shares: int) -> None:
    info = {"tb_id": 0, "tbg_size": shares}
    document = edited(right.allreduce_by_rres().to_json(), f"{RRES}.tbg_info", info)
    assert refused(text_of(document)).code == "F403"


def test_too_many_rows_are_refused() -> None:
    made = Made("allreduce", 1, (60_000, 60_000, 0))
    for _ in range(20):
        block = made.gpus[0].block().pipeline(16, 60_000)
        block.move("copy", [("i", 0, 60_000)], [("o", 0, 60_000)]).done()
    assert refused(made.text).code == "F403"


def test_many_of_a_kind_are_folded() -> None:
    made = Made("allreduce", 1, (1, 1, 0))
    for _ in range(50):
        made.gpus[0].block().move("copy", [("i", 1, 1)], [("o", 0, 1)])
    found = refused(made.text).diagnostics
    assert len(found) == MOST_OF_A_KIND
    assert "more like this" in found[-1].notes[0]


def judge(seed: int) -> str:
    """The verdict on a mutant: the first code of its refusal, or "proven"."""
    chance = random.Random(seed)
    text = text_of_rearranged(chance) if chance.randrange(3) == 0 else mutated(chance)
    read = False
    try:
        found = mscclpp.executions(text, MSCCLPP)
        read = True
        for way in found.executions:
            sley.verify(way.plan)
        verdict = "proven"
    except SleyError as error:
        verdict = error.code
        assert str(error).encode()
        # A plan that was read has whole tables: the reader's own checks come before.
        assert verdict.startswith("V") == read, str(error)
        assert "V201" not in {one.code for one in error.diagnostics}, str(error)
    return verdict


@given(seed=st.integers(0, 2**48))
@examples(14, deadline=None)
def test_a_mutant_is_refused_or_proven(seed: int) -> None:
    judge(seed)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("\n ", "an empty file"),
        ('{"name": "ring', "a string without its end"),
        ('{"name": "ring"', "the end of the file (Expecting ',' delimiter)"),
        ('{"name": }', "Expecting value"),
    ],
)
def test_a_text_that_breaks_off_is_said_in_words(text: str, found: str) -> None:
    assert refused(text).diagnostics[0].found == found


def test_a_rank_that_the_file_lacks_is_refused_with_the_number_of_gpus() -> None:
    document = edited(right.allgather_by_put().to_json(), "gpus.0.remote_buffers.0.rank", 7)
    expected = refused(text_of(document)).diagnostics[0].expected
    assert expected == "another one of the file's 2 GPUs, of ranks 0 to 1"


def test_signals_and_waits_are_counted_apart() -> None:
    document = right.allgather_by_put().to_json()
    for gpu in (0, 1):
        ops = _ops(document, gpu)
        ops[:] = [op for op in ops if op["name"] != "signal"]
    with pytest.raises(SleyError, match="found:    1 signal, 2 waits"):
        sley.verify(mscclpp.read(text_of(document)).plan)
