"""The runtime's protocols as SPIN models, of which all orders of steps are examined, and traces of
the C++ that these models accept.

A trace has each access of the C++ to the words that ranks share. A model accepts it if its own
steps make these accesses in this order, so that it refuses what a mutant of the C++ does.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import sley
from sley.engine.kernels import Engine, Kernels, Platform, Variant
from sley.errors.disk_cache import cached
from support.devices.native_programs import NATIVE, SOURCES, TESTS, link

FABRIC = NATIVE / "fabric"
RUN_S = 300

FORMS = {
    "shared": "-DSLOTS=3 -DLINES=1 -DENVELOPES=3 -DLIMIT=2 -DROOM=2",
    "small": "-DSLOTS=2 -DLINES=2 -DENVELOPES=4 -DLIMIT=2 -DROOM=1",
    "pulled": "-DPULLED -DSLOTS=2 -DLINES=1 -DENVELOPES=2 -DLIMIT=2 -DROOM=2",
    "agreement": "-DRANKS=3 -DLOOKS",
    "SIMPLE": "-DLEAST=HELD",
    "DIRECT": "-DLEAST=HELD",
    "LL": "-DLEAST=HELD",
}
"""The forms of traces, as in tests/native/protocol_test.cpp, or the protocol of a kernel; and the
options of their model."""


@dataclass(frozen=True)
class Found:
    """What SPIN has found: the states that it has stored, and its errors."""

    states: int
    errors: int


@cache
def tools() -> tuple[str, str]:
    """SPIN and a C compiler, which compiles what SPIN writes; skips the test without them."""
    spin, compiler = shutil.which("spin"), shutil.which("cc") or shutil.which("gcc")
    if spin is None or compiler is None:
        pytest.skip("SPIN or a C compiler isn't installed")
    return spin, compiler


def built(text: str, options: str) -> Path:
    """The program that examines the text of a model."""
    spin, compiler = tools()
    trace = (FABRIC / "trace.pml").read_text()
    flags = ["-O1", "-w", "-DSAFETY", "-DNOFAIR", "-DVECTORSZ=2048"]

    def build(path: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "trace.pml").write_text(trace)
            Path(folder, "model.pml").write_text(text)
            call = {"cwd": folder, "capture_output": True, "text": True}
            done = subprocess.run([spin, "-a", *options.split(), "model.pml"], **call)
            assert done.returncode == 0, done.stdout
            subprocess.run([compiler, *flags, "pan.c", "-o", path], check=True, **call)

    program = cached([spin, compiler, *flags, options, trace, text], ".pan", build)
    program.chmod(0o700)
    return program


def examine(text: str, options: str) -> Found:
    """Goes through all orders of a model's steps."""
    with tempfile.TemporaryDirectory() as folder:  # of the error's trail
        command = [built(text, options), "-m100000", "-w22"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=RUN_S)
    assert "Search not completed" not in done.stdout or "errors: 1" in done.stdout, done.stdout
    states = re.search(r"(\d+) states, stored", done.stdout)
    errors = re.search(r"errors: (\d+)", done.stdout)
    assert states is not None
    assert errors is not None
    return Found(int(states[1]), int(errors[1]))


def accepted(text: str, options: str, events: str) -> int:
    """How many of a trace's events some order of the model's steps takes, from the first one on."""
    command = [built(text, options + " -DTRACED"), "-E", "-w16"]
    done = subprocess.run(command, input=events, capture_output=True, text=True, timeout=RUN_S)
    assert "max search depth too small" not in done.stdout
    return int(done.stderr.split()[-1]) if done.stderr else 0


def model_of(options: str) -> str:
    """The model that has such options."""
    if "LEAST" in options:
        return (NATIVE / "devices" / "kernels.pml").read_text()
    name = "agreement" if "RANKS" in options else "connection"
    return (FABRIC / f"{name}.pml").read_text()


SHARED = "-DRECEIVERS=2 -DCALLS=3 -DSLOTS=2 -DLINES=1 -DENVELOPES=2 -DLIMIT=1 -DROOM=1"
SMALL = "-DRECEIVERS=1 -DCALLS=6 -DSLOTS=2 -DLINES=2 -DENVELOPES=4 -DLIMIT=4 -DROOM=2"
PARKS = "-DRECEIVERS=1 -DPARKS -DCALLS=3 -DSLOTS=2 -DLINES=1 -DENVELOPES=2 -DLIMIT=2 -DROOM=2"
LATE = PARKS + " -DBUFFERED -DLIMITED"
ABORTS = PARKS.replace("CALLS=3", "CALLS=2") + " -DABORTS"
PULLED = ABORTS + " -DPULLED"


AGREEMENT = "-DRANKS=2 -DCALLS=3 -DLOOKS"
WAYS = "-DRANKS=3 -DCALLS=2"
KERNELS = "-DLEAST=HELD -DCALLS=3"
FLAGS = "-DLEAST=FLAGGED -DCALLS=7"
DIFFERENT = "-DLEAST=HELD -DCALLS=2 -DDIFFERENT"


def more_calls(options: str, calls: int) -> str:
    return re.sub(r"CALLS=\d", f"CALLS={calls}", options)


@pytest.mark.parametrize(
    ("options", "least"),
    [
        (SHARED, 500_000),
        (more_calls(PULLED, 1), 100_000),
        (more_calls(AGREEMENT, 2), 10_000),
        (KERNELS, 100_000),
        *(
            pytest.param(more_calls(options, calls), 200_000, marks=pytest.mark.slow)
            for options, calls in (
                (SHARED, 4),
                (SMALL, 12),
                (PARKS + " -DUNQUIET", 5),
                (LATE, 4),
                (ABORTS, 2),
                (PULLED, 2),
                (AGREEMENT, 3),
                (WAYS, 2),
                (KERNELS, 4),
                (FLAGS, 7),
                (DIFFERENT, 3),
            )
        ),
    ],
)
def test_a_protocol_has_no_error_in_any_order_of_steps(options: str, least: int) -> None:
    found = examine(model_of(options), options)
    assert found.errors == 0
    assert found.states >= least


_CHECKS = "sent[c] < known(c) + "

LATE_PART = "if :: plan == UNDIVIDED -> fill(1) :: else fi\n"

MODEL_MUTANTS: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    # Faults of others.
    "the data come after the flag (vllm#57059)": (
        SHARED,
        (
            ("content[place] = call;\n    TAKEN", "TAKEN"),
            ("    ring(0, c + 1)\n", "    content[WHERE(c, call)] = call;\n    ring(0, c + 1)\n"),
        ),
    ),
    "a flag is set again before its reader has seen it (vllm#8410)": (
        SMALL.replace("ENVELOPES=4", "ENVELOPES=1"),
        ((f"{_CHECKS}ENVELOPES && ", ""),),
    ),
    "two operations share their state (sglang#13397)": (
        SHARED,
        (("connections[c].sequence", "connections[0].sequence"),),
    ),
    # Faults of this protocol.
    "a slot is used again too early": (
        SMALL,
        (("number <= known(c) &&", "number <= known(c) + 1 &&"),),
    ),
    "a slot is used again while another connection has it": (
        SHARED,
        ((" && !IS_KEPT(c, s, known))", ")"),),
    ),
    "a small message overwrites the one before it": (
        SMALL,
        (("-> 0 : USE(c, s).end)", "-> 0 : 0)"),),
    ),
    "a message is published without a ring": (PARKS, (("    ring(0, c + 1)\n", "    skip\n"),)),
    "a message is released without a ring": (PARKS, (("ring(rank, 0);", "skip;"),)),
    "a ring isn't counted": (PARKS, (("rung[to] = true;", "skip;"),)),
    "a rank sleeps without a last look": (PARKS, (("!CAN_MOVE(FRESH)", "!CAN_MOVE(KNOWN)"),)),
    "a sleep has no limit where a message may be seen late": (PARKS + " -DBUFFERED", ()),
    "a rank sleeps without a look for a failure": (
        ABORTS,
        (("waits[rank].checked && waits", "waits"),),
    ),
    "a failure rings nobody": (
        ABORTS,
        (("    for (other : 0 .. RANKS - 1) { ring(me, other) }\n", ""),),
    ),
    "a call ends before its messages are read": (
        PULLED,
        (("(known(0) >= call && known(1) >= call)", "true"),),
    ),
    "a call's data are not doubted after a failure": (
        PULLED,
        (("        if\n        :: check(rank)", "        if\n        :: true"),),
    ),
    "a rank that gives up tells no others": (PULLED, (("aborted:\n    fail(0);", "aborted:"),)),
    "a record changes without a mark": (
        AGREEMENT,
        (("    atomic { IS(me, NUMBER, me, 0) -> number[me] = 0; TAKEN };\n", ""),),
    ),
    "a record is looked at once": (AGREEMENT, (("number[rank] == seen_number ->", "true ->"),)),
    "a changed record keeps its number": (
        WAYS + " -DLOOKS",
        (("((kind) == VARYING -> 1 : 0)", "0"),),
    ),
    "a rank doesn't wait for the records of all": (
        AGREEMENT,
        (("seen_number >= call &&", "true &&"), ("seen_number < call", "false")),
    ),
    "ways have one buffer": (AGREEMENT, (("turn = 1 - turn;", "skip;"),)),
    "the ways of a call change while others read them": (
        AGREEMENT,
        (("            :: ways[turn * WORDS + word] = 1", "            :: ways[1 - turn] = 1"),),
    ),
    "a call ends before all have begun it": (AGREEMENT, (("begun[other] >= call", "true"),)),
    "only one part of a message comes before its flag (vllm#50941)": (
        KERNELS,
        (
            ("fill(0); fill(1)", "fill(0)"),
            ("published = ticks + message; TAKEN }", "published = ticks + message };" + LATE_PART),
        ),
    ),
    "a kernel's wait doesn't see that others gave up": (
        DIFFERENT,
        (("    :: abort -> goto failed\n", ""),),
    ),
    "a call takes slots of the calls before it": (KERNELS, (("ticks : last);", "ticks : 0);"),)),
    "a call ends before lent memory is read": (
        KERNELS,
        (("LENDS(plan) -> await(consumed >= ticks + MESSAGES(plan))", "LENDS(plan)"),),
    ),
    "lent memory is overwritten before it is read": (
        KERNELS,
        (("await(consumed >= ticks + message - 1);  /* `hold` */", ""),),
    ),
    "a message is read after its slot is free": (
        KERNELS,
        (("read(slots[message", "release(ticks + message);\nread(slots[message"),),
    ),
    "a number comes again with old flags in the slots": (
        FLAGS,
        (("((one) / EPOCH == (other) / EPOCH)", "true"),),
    ),
    "slots get messages before they are refreshed": (
        FLAGS,
        (("needed = (is_old -> ticks : last);", "needed = last;"),),
    ),
    "memory is borrowed for another call": (
        DIFFERENT,
        (("lent_ticks != ticks || lent_plan != plan ->", "false ->"),),
    ),
}


def mutated(text: str, edits: Iterable[tuple[str, str]]) -> str:
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


@pytest.mark.slow
@pytest.mark.parametrize("name", MODEL_MUTANTS)
def test_a_mutant_of_the_model_has_an_error(name: str) -> None:
    options, edits = MODEL_MUTANTS[name]
    assert examine(mutated(model_of(options), edits), options).errors == 1


# ---- Traces of the C++

FREE = (NATIVE / "engine" / "reduce.cpp", FABRIC / "copy.cpp", NATIVE / "engine" / "ready.cpp")
"""Sources without words that ranks share: they are compiled once for all mutants."""

WATCHED = tuple(path for part in ("FABRIC", "ENGINE") for path in SOURCES[part] if path not in FREE)


def tracer(*changed: Path) -> Path:
    """The program that writes traces. changed: sources and headers in place of those of their
    names."""
    names = {path.name: path for path in changed}
    sources = [names.get(path.name, path) for path in WATCHED]
    folders = sorted({f"-I{path.parents[1]}" for path in changed})
    return link(["protocol"], [TESTS / "watched.hpp", *sources], *folders, over=FREE)


@dataclass(frozen=True)
class Trace:
    events: str
    exit_status: int

    @property
    def length(self) -> int:
        return len(self.events.split())


def trace_of(program: Path, form: str, seed: int) -> Trace:
    """A run whose steps have the order of a seed. On connections, in odd ones somebody gives up."""
    is_kernel = form in KERNEL_FORMS
    abort = 0 if form == "agreement" or seed % 2 == 0 else seed * (3 if is_kernel else 11)
    test = ["kernels"] if is_kernel else ["protocol", form]
    command = [program, *test, str(seed), str(abort)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S)
    return Trace(done.stdout, done.returncode)


def is_accepted(form: str, trace: Trace) -> bool:
    options = f"{FORMS[form]} -DCALLS=5"
    if form not in ("agreement", *KERNEL_FORMS):
        options += " -DRECEIVERS=2 -DPARKS -DUNQUIET -DLIMITED -DABORTS"
    return accepted(model_of(options), options, trace.events) == trace.length


def kernel(protocol: str) -> str:
    """The text of a kernel for threads, whose elements are words of 8 bytes."""

    @sley.program(sley.SendRecv(2, 2), protocol=sley.Protocol[protocol])
    def program(p: sley.lang.ChunkProgram) -> None:
        for chunk in range(2):
            p.chunk(0, "in", chunk).copy(1, "out", chunk)

    variant = Variant(Platform.CPU, dtype=10, reduce_op=sley.ReduceOp.SUM)
    return Kernels.of(sley.compile(program, fusion=False)).source(Engine.GENERATED, variant)


def kernel_tracer(text: str) -> Path:
    path = cached([text], ".hpp", lambda path: path.write_text(text) and None)
    return link(["kernels"], [TESTS / "watched.hpp", path], "-w")


KERNEL_FORMS = ("SIMPLE", "DIRECT", "LL")
SEEDS = range(1, 25)


@pytest.mark.parametrize(
    "form",
    [
        "pulled",
        "agreement",
        *KERNEL_FORMS,
        *(pytest.param(f, marks=pytest.mark.slow) for f in ("shared", "small")),
    ],
)
def test_the_model_accepts_what_the_engine_does(form: str) -> None:
    program = kernel_tracer(kernel(form)) if form in KERNEL_FORMS else tracer()
    for seed in SEEDS:
        trace = trace_of(program, form, seed)
        assert trace.exit_status == 0
        assert trace.length > 9
        assert is_accepted(form, trace), f"seed {seed}"


ENGINE_MUTANTS: dict[str, tuple[str, str, str, str]] = {
    "a message isn't published": (
        "shared", "fabric/fifo.hpp", "envelope.sequence.store(++next_, kPublish);", "++next_;",
    ),
    "a message is published without release": (
        "shared", "fabric/fifo.hpp", "store(++next_, kPublish);\n        receiver_",
        "store(++next_, std::memory_order_relaxed);\n        receiver_",
    ),
    "a message is read without acquire": (
        "shared", "fabric/fifo.hpp", "sequence.load(std::memory_order_acquire)",
        "sequence.load(std::memory_order_relaxed)",
    ),
    "a slot is used again too early": (
        "shared", "fabric/fifo.hpp", "has_consumed(use.number)) &&",
        "has_consumed(use.number - 1)) &&",
    ),
    "a slot is used again while another connection has it": (
        "shared", "fabric/fifo.hpp", ")) && !is_kept(use)", "))",
    ),
    "too many slots are kept for another connection": (
        "shared", "fabric/fifo.hpp", "kept + limit > uses_.size()",
        "kept + limit > uses_.size() + 1",
    ),
    "one message too many is in flight": (
        "shared", "fabric/fifo.hpp",
        "turn_ < limit || has_consumed(turns_[(turn_ - limit) % turns_.size()])",
        "turn_ <= limit || has_consumed(turns_[(turn_ - limit - 1) % turns_.size()])",
    ),
    "a small message overwrites the one before it": (
        "small", "fabric/fifo.hpp", "is_free(use) ? 0 : use.end", "0",
    ),
    "a message is published without a ring": ("shared", "fabric/fifo.hpp", "receiver_.ring();", ""),
    "a message is released without a ring": ("shared", "fabric/fifo.hpp", "sender_.ring();", ""),
    "a ring isn't counted": (
        "shared", "fabric/bell.hpp", "rings_.fetch_add(1, std::memory_order_release);", "",
    ),
    "a sleeping rank isn't woken": (
        "shared", "fabric/bell.hpp", "FUTEX_WAKE, INT_MAX", "FUTEX_WAIT, ~0u",
    ),
    "a rank sleeps without a last look": (
        "shared", "fabric/bell.hpp", "bell_.sleep(rings_,", "bell_.sleep(bell_.rings(),",
    ),
    "a rank sleeps without being seen": ("shared", "fabric/bell.hpp", "bell_.enter();", ""),
    "a failure rings nobody": (
        "shared", "fabric/control.hpp",
        "state->bell.ring();\n    }\n\n    // Fails for a rank that is gone", "{}\n    }\n\n    //",
    ),
    "a message is released before it is read": (
        "shared", "engine/execution.cpp", "const auto message = from.fifo->message();",
        "const auto message = from.fifo->message();\n        from.fifo->release();",
    ),
    "a call ends before its messages are read": (
        "pulled", "engine/engine.cpp", "Phase::kDraining && execution_.is_read()",
        "Phase::kDraining",
    ),
    "a call's data are not doubted after a failure": (
        "pulled", "engine/calls.cpp", "has_pulled() && control.failed()", "has_pulled() && false",
    ),
    "a rank that gives up tells no others": (
        "pulled", "engine/calls.cpp", "if (outcome.status == Status::kAborted) {\n",
        "if (false) {\n",
    ),
    "a record changes without a mark": (
        "agreement", "fabric/control.hpp", "call_number.store(0, std::memory_order_release);", "",
    ),
    "a record is looked at once": (
        "agreement", "fabric/control.hpp",
        "if (s.call_number.load(std::memory_order_acquire) != number) return {};", "",
    ),
    "a changed record keeps its number": (
        "agreement", "fabric/control.hpp", "call.sequence << 1 | call.varies()",
        "call.sequence << 1",
    ),
    "a rank doesn't wait for the records of all": (
        "agreement", "engine/calls.cpp", "if (other.sequence >= record.sequence) break;", "break;",
    ),
    "ways have one buffer": ("agreement", "fabric/ways.hpp", "        ++turn_;\n", ""),
    "the ways of a call change while others read them": (
        "agreement", "fabric/ways.hpp", "auto* next = control_.state(0).ways[turn_ % 2];",
        "auto* next = control_.state(0).ways[1 - turn_ % 2];",
    ),
}  # fmt: skip
"""Faults of the C++: the form of the connections, the file, a text and its replacement."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINE_MUTANTS)
def test_the_model_refuses_what_a_mutant_of_the_engine_does(name: str, tmp_path: Path) -> None:
    form, file, old, new = ENGINE_MUTANTS[name]
    path = tmp_path / file
    path.parent.mkdir()
    path.write_text(mutated((NATIVE / file).read_text(), [(old, new)]))
    program = tracer(path)
    assert any(not is_accepted(form, trace_of(program, form, seed)) for seed in SEEDS)


KERNEL_MUTANTS = {
    "a message isn't published": (
        "SIMPLE", "publish(&state.senders[to.peer + m].published->value, over_calls(out));", ";",
    ),
    "a message is published without a fence": (
        "SIMPLE", "        fence();\n        SLEY_ROLLED\n        for (i32 m = 0; m < to.members",
        "        SLEY_ROLLED\n        for (i32 m = 0; m < to.members",
    ),
    "a message is read before it is published": (
        "SIMPLE", "published->value, over_calls(in),", "published->value, state.ticks,",
    ),
    "a message isn't released": (
        "SIMPLE", "publish_read(&state.receivers[from.peer + m].consumed->value, over_calls(in));",
        ";",
    ),
    "a message is released before it is read": (
        "SIMPLE", "            if constexpr (K::kReceives || K::kWrites || K::kSends) {",
        """if constexpr (K::kReceives) {
            publish_read(&state.receivers[from.peer].consumed->value, over_calls(taken)); }
            if constexpr (K::kReceives || K::kWrites || K::kSends) {""",
    ),
    "a slot is used again too early": ("SIMPLE", "out > slots ?", "out > slots + 1 ?"),
    "a call takes slots of the calls before it": (
        "SIMPLE", "is_old ? ticks : last}", "is_old ? ticks : 0}",
    ),
    "a call doesn't say what its last message was": (
        "SIMPLE", "own.last = last_of_call(state.senders[i]);", ";",
    ),
    "a call has numbers of two epochs": (
        "SIMPLE", "return is_one_epoch(before, after) ? before : after >>",
        "return true ? before : after >>",
    ),
    "a call ends before lent memory is read": (
        "DIRECT", "if constexpr (kProtocol == kDirect) any_thread(!drain());", "",
    ),
    "lent memory is overwritten before it is read": (
        "DIRECT", "{&peer.consumed->value, {peer.messages, message}",
        "{&peer.published->value, {peer.messages, message}",
    ),
    "a flag is without its epoch": (
        "LL", "const Flags flags{over_calls(in), over_calls(out),", "const Flags flags{in, out,",
    ),
    "a call takes old flags for its own": (
        "LL", "kProtocol == kLL && !is_one_epoch(flagged, ticks)", "false",
    ),
    "slots get messages before they are refreshed": ("LL", "is_old ? ticks : last}", "last}"),
    "a receiver forgets that its slots are refreshed": (
        "LL", "state.receivers[i].published->last_flagged = last_of_call(state.receivers[i]);", ";",
    ),
}  # fmt: skip
"""Faults of kernels: the protocol, a text and its replacement."""


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNEL_MUTANTS)
def test_the_model_refuses_what_a_mutant_of_a_kernel_does(name: str) -> None:
    form, old, new = KERNEL_MUTANTS[name]
    program = kernel_tracer(mutated(kernel(form), [(old, new)]))
    assert any(not is_accepted(form, trace_of(program, form, seed)) for seed in SEEDS)
