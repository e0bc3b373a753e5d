"""sley doctor: says which file of a directory a runtime runs, and why not the others; and how sley
reaches a program's calls of NCCL."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import click

from sley.algorithms import build
from sley.cli.annotations import annotation_lines, check_one_form, output_format_option
from sley.cli.options import (
    OWN,
    POSITIVE,
    RuntimeName,
    SizeType,
    Whole,
    flag,
    json_option,
    place_option,
)
from sley.cli.output import (
    USAGE,
    WRONG,
    Command,
    echo,
    print_json,
    print_note,
    print_rows,
    report_error,
)
from sley.communicator.selection.ready_plans import Capacity
from sley.communicator.selection.user_plans import read_folder
from sley.compiler import compile
from sley.compiler.deployment import DeployedCall, decide, examine, nccl_programs, runtimes
from sley.compiler.deployment.decisions import OPERATIONS, TYPES, CallDecision
from sley.compiler.deployment.examination import Examination
from sley.compiler.deployment.folders import check_path
from sley.compiler.deployment.registration import SCRIPT
from sley.engine.kernels import Engine, Kernels, Platform, Variant
from sley.engine.kernels.prebuilt import CODE, code_of, prebuilt
from sley.engine.types import data_type
from sley.errors import Diagnostic, SleyError, counted, recognition
from sley.ir.collectives import SIZED
from sley.ir.words import ReduceOp
from sley.report.tables import table_lines

_HEAD = ("file", "collective", "ranks", "place", "sizes", "in multiples of")
_LEFT = (0, 1, 3, 4)


@click.command("doctor", cls=Command)
@click.argument("where", metavar="DIR|FILE", type=click.Path(path_type=Path), required=False)
@click.option(
    "--target",
    type=RuntimeName((OWN, *runtimes.names()), any_version=True),
    help="The runtime; sley: its communicators, and what this machine has for GPUs. [all, with "
    "one line each; the installed mscclpp's version, or the last one that reads plans]",
)
@click.option(
    "--collective", type=click.Choice(list(SIZED)), help="Explain calls of this collective."
)
@click.option(
    "--size", "sizes", type=SizeType(), multiple=True, help="Size of the calls. Repeatable."
)
@click.option("--dtype", type=click.Choice(list(TYPES)), default="float32", help="Element type.")
@click.option("--op", type=click.Choice(OPERATIONS), default="sum", help="Reduction.")
@click.option("--ranks", type=POSITIVE, help="Number of ranks of the communicator.")
@click.option("--gpus", type=POSITIVE, help="Number of ranks on a node. [all]")
@click.option("--root", type=Whole(0), help="Root of a rooted collective.")
@place_option("Place of the calls. [both]")
@output_format_option
@json_option
def doctor_command(
    where: Path | None,
    target: str | None,
    in_place: bool | None,
    output_format: str | None,
    as_json: bool,
    **call: Any,
) -> None:
    """Show which files of DIR a runtime reads, which file runs for each call, and why.

    With --collective, --size and --ranks, explain this call. Exit code 1 means that DIR or a file
    has a problem for the runtime, without --target for each of them; that a call runs incorrectly;
    that no call can have this size; or with --target sley, where DIR may be left out, that no plan
    is for these ranks. For a program, a script or a library, show how sley exec reaches its calls
    of NCCL; exit code 1 means not at all.
    """
    check_one_form(output_format, as_json)
    if output_format and (target in (None, OWN) or call["collective"]):
        raise click.UsageError("--output-format is for DIR with the --target of a runtime")
    if target == OWN:
        for word in ("collective", "sizes"):
            if call[word]:
                raise click.UsageError(f"{flag(word.removesuffix('s'))} is for other targets")
        _print_own(where, call["ranks"], as_json=as_json)
        return
    if where is None:
        raise click.UsageError("Missing argument 'DIR|FILE'.")
    program = None if target or where.name == SCRIPT else nccl_programs.program_of(where)
    if program is not None:
        _print_program(where, program, as_json=as_json)
        return
    _check_kind(where)
    if target is None:
        for word in ("collective", "sizes"):
            if call[word]:
                raise click.UsageError(f"{flag(word.removesuffix('s'))} needs --target")
        _print_overview(where, as_json=as_json)
        return
    runtime = runtimes.runtime_named(target)
    calls, impossible = _calls(in_place, **call)
    if impossible and not calls:
        raise SleyError(impossible)
    examined = examine(where, runtime)
    decisions = [decide(examined, one) for one in calls]
    right = all(one.is_right for one in decisions) and not examined.has_folder_problem
    right = right if decisions else not examined.problems
    ok = right and not impossible
    if output_format:
        for line in annotation_lines(output_format, examined.problems):
            echo(line)
    elif as_json:
        answers = {"calls": [one.to_json() for one in decisions]}
        refused = {"diagnostics": [one.to_json() for one in impossible]} if impossible else {}
        print_json({"ok": ok, **examined.to_json(), **answers, **refused})
    elif decisions:
        echo("\n\n".join("\n".join(_decision_lines(one)) for one in decisions))
        chosen = {name for one in decisions for name in one.chosen}
        further = [*_condition_lines(examined, chosen), *_folder_lines(examined, decisions)]
        further += [] if call["gpus"] else _node_lines(examined, decisions)
        echo("".join(f"{line}\n" for line in further), nl=False)
    else:
        echo("\n".join(_lines(examined)))
    if impossible and not as_json:
        report_error(SleyError(impossible), as_json=False)
    if not ok:
        sys.exit(WRONG if where.exists() else USAGE)


def _print_own(where: Path | None, ranks: int | None, *, as_json: bool) -> None:
    """Prints a line for each plan that communicators read in a folder, if there is one, and for
    what this machine has for GPUs. Errors: click's usage error."""
    rows, problems, ok = list[tuple[str, str]](), list[Diagnostic](), True
    if where is not None:
        if ranks is None:
            raise click.UsageError(f"DIR with --target {OWN} needs --ranks")
        folder = read_folder(where, Capacity(ranks))
        rows += [("plan", str(one)) for one in folder.plans]
        rows += [("not", one) for one in folder.others]
        problems += folder.problems
        for place in sorted((where / CODE).glob("*")):
            try:
                rows.append((f"{CODE}/{place.name}", counted(len(code_of(place)), "kernel")))
            except SleyError as error:
                problems += error.diagnostics
        ok = bool(folder.plans) and not problems
    rows += _machine_rows()
    if as_json:
        diagnostics = [one.to_json() for one in problems]
        print_json({"ok": ok, "found": rows, "diagnostics": diagnostics})
    else:
        print_rows(rows)
        echo("".join(f"\nproblem: {one}\n" for one in problems), nl=False)
    if not ok:
        sys.exit(1)


def _machine_rows() -> Iterator[tuple[str, str]]:
    """What this machine has for communicators on GPUs, and why not more."""
    from sley.engine.devices.cuda import CudaDevice, compiler, driver  # most commands need none

    def ask(question: Callable[..., object], *arguments: object) -> str:
        try:
            return str(question(*arguments))
        except SleyError as error:
            return lacking(error)

    def lacking(error: SleyError) -> str:
        return f"{_short(error.diagnostics[0])}. {error.diagnostics[0].remedy}"

    gpus: list[CudaDevice] = []

    def describe(number: int) -> str:
        gpus.append(gpu := CudaDevice(number))
        kernels = "no prebuilt kernels"
        if gpu.has_prebuilt:  # of this version, if they have the interpreter's text
            plan = compile(build("ring-allreduce", ranks=2))
            variant = Variant(Platform.CUDA, data_type("float32").number, ReduceOp.SUM)
            text = Kernels.of(plan).source(Engine.INTERPRETED, variant)
            kernels = "prebuilt kernels" + (" of another version" if prebuilt(text) is None else "")
        return f"{gpu.name}, compute capability {driver.version_text(gpu.capability)}, {kernels}"

    def reach(one: CudaDevice, other: CudaDevice) -> str:
        one.reach(other)
        return ""

    yield "NVRTC", ask(lambda: driver.version_text(compiler.version()))
    try:
        numbers = range(CudaDevice.count())
        yield "driver", f"for CUDA {driver.version_text(driver.driver_version())}"
    except SleyError as error:
        yield "driver", lacking(error)
        return
    for number in numbers:
        yield f"cuda:{number}", ask(describe, number)
    if len(gpus) > 1:
        pairs = permutations(gpus, 2)
        apart = [
            f"{one.ordinal} to {other.ordinal}" for one, other in pairs if ask(reach, one, other)
        ]
        yield "peer access", f"not from {', '.join(apart)}" if apart else "between all GPUs"


def _print_program(where: Path, program: Path, *, as_json: bool) -> None:
    reach, why = nccl_programs.reach_of(program)
    if program != where:
        why = f"{program} runs it, a script: {why}"
    ok = reach is not nccl_programs.Reach.NOT
    if as_json:
        print_json({"ok": ok, "reached": reach.value, "why": why})
    else:
        print_rows([("reached", reach.value), ("why", why)])
    if not ok:
        sys.exit(1)


def _check_kind(where: Path) -> None:
    """Refuses a file that is something else than a plan. A file that shows nothing may be a damaged
    plan, and the script that registers plans is read with their directory. Errors: F550."""
    kind = recognition.kind_of(where)
    known = (*recognition.RUNTIME_PLANS, *recognition.VAGUE, *recognition.ABSENT)
    if kind not in known and where.name != SCRIPT:
        raise recognition.refuse_kind(where, kind, "a runtime's plan, or a directory")


def _calls(
    in_place: bool | None,
    *,
    collective: str | None,
    sizes: Sequence[int],
    ranks: int | None,
    gpus: int | None,
    dtype: str,
    op: str,
    root: int | None,
) -> tuple[list[DeployedCall], list[Diagnostic]]:
    """The calls that the options ask for, and why others can't be made (F525). Errors: click's
    usage error."""
    if collective is None and not sizes:
        return [], []
    if collective is None or not sizes or ranks is None:
        raise click.UsageError("a call needs --collective, --size and --ranks")
    calls: list[DeployedCall] = []
    impossible: list[Diagnostic] = []
    for size in sizes:
        for place in (False, True) if in_place is None else (in_place,):
            try:
                calls.append(
                    DeployedCall(collective, size, ranks, gpus or ranks, place, dtype, op, root)
                )
            except SleyError as error:
                impossible += (one for one in error.diagnostics if one not in impossible)
    return calls, impossible


def _print_overview(where: Path, *, as_json: bool) -> None:
    """Prints a line for each runtime. Errors: F503."""
    check_path(where)
    if where.is_dir() and not any(where.iterdir()):
        print_note(f"{where} is an empty directory")
    if where.is_dir() and recognition.SLEY_PLAN in map(recognition.kind_of, where.iterdir()):
        print_note(
            f"{where} has plans of sley, which its communicators read: SLEY_PLAN_DIR={where}; "
            f"sley doctor {where} --target {OWN} --ranks N says for which calls"
        )
    found = [examine(where, one) for one in runtimes.RUNTIMES]
    ok = any(one.refusal is None and not one.problems for one in found)
    if as_json:
        print_json({"ok": ok, "runtimes": [one.to_json() for one in found]})
    else:
        rows = [("runtime", "version", "files", "problems", "")]
        for one in found:
            read = len(one.reading.candidates)
            counts = ("-", "-") if one.refusal else (str(read), str(len(one.problems)))
            why = one.refusal.found.partition(": ")[2] if one.refusal else one.reading.no_start
            rows.append((one.runtime.name, one.runtime.version, *counts, why))
        echo("\n".join(table_lines(rows, (0, 1, 4))))
    sys.exit(0 if ok else WRONG)


def _lines(examined: Examination) -> Iterator[str]:
    """The examination as text."""
    runtime, reading = examined.runtime, examined.reading
    if examined.refusal is not None:
        yield str(examined.refusal)
        return
    effect = f": {reading.no_start}" if reading.no_start else ""
    read = counted(len(reading.candidates), "file")
    yield f"{runtime} reads {read} in {reading.folder}{effect}"
    if runtime.basis:
        yield runtime.basis
    rows = [_HEAD]
    for one in reading.candidates:
        nodes = f" ({one.grid.node} a node)" if one.grid.node else ""
        rows.append(
            (
                one.name,
                one.collective,
                f"{one.grid.ranks}{nodes}",
                str(one.places),
                str(one.sizes),
                f"{one.multiple} {runtime.unit}",
            )
        )
    if len(rows) > 1:
        yield from ("", *table_lines(rows, _LEFT), "", runtime.indivisible)
    if not reading.stops:
        yield from _span_lines(examined)
    for heading, found in (("problem", examined.problems), ("note", examined.remarks)):
        for one_found in found:
            yield from ("", f"{heading}: {one_found}")
    yield from _condition_lines(examined, [one.name for one in reading.candidates])
    variables = examined.environment
    if variables and reading.candidates and not examined.problems:
        yield from ("", "read with:", *(f"  {word}={text}" for word, text in variables.items()))


def _span_lines(examined: Examination) -> Iterator[str]:
    """What runs for which sizes."""
    for kind, spans in examined.spans.items():
        yield from ("", f"{kind}:")
        between = " or " if not examined.runtime.in_order else ", otherwise "
        rows = [
            (
                "",
                str(one.sizes),
                between.join(file.name for file in one.files) or "none of the files",
            )
            for one in spans
        ]
        yield from table_lines(rows, (0, 1, 2))


def _condition_lines(examined: Examination, files: Collection[str]) -> Iterator[str]:
    """The conditions of the proofs of files, each with its files."""
    lines = []
    for condition, names in examined.conditions.items():
        of = [name for name in names if name in files]
        words = "all files" if len(of) == len(files) > 1 else ", ".join(of)
        lines += [f"  {words}: {condition}"] if of else []
    if lines:
        yield from ("", "note: proven for these conditions, which the runtime doesn't check:")
        yield from lines


def _decision_lines(decision: CallDecision) -> Iterator[str]:
    """What happens for a call."""
    yield f"{decision.call}"
    yield f"  {_outcome_text(decision)}"
    for fault in (*decision.faults, *decision.remarks):
        yield f"  {_short(fault)}"
    for name, reason in decision.why_not.items():
        if reason in decision.faults:
            continue
        yield f"  not {name}: {_short(reason, place=False)}"


def _outcome_text(decision: CallDecision) -> str:
    """What happens, with the files: "runs: a.xml". If this differs between them, the gravest is
    first: "ends the process: b.json; or runs: a.json"."""
    files = {decision.outcome: list(decision.chosen)}
    if decision.effects:
        files[decision.outcome] = []
        for name, effect in decision.effects.items():
            files.setdefault(effect, []).append(name)
    names = {outcome: f": {' or '.join(of)}" if of else "" for outcome, of in files.items()}
    return "; or ".join(f"{outcome.value}{of}" for outcome, of in names.items())


def _folder_lines(examined: Examination, decisions: Sequence[CallDecision]) -> Iterator[str]:
    """What is wrong with the directory, unless a decision says it."""
    said = [one for each in decisions for one in (*each.faults, *each.remarks)]
    said += [one for each in decisions for one in each.why_not.values()]
    for one in examined.of_folder:
        if one not in said:
            yield from ("", f"{'problem' if one in examined.problems else 'note'}: {one}")


def _node_lines(examined: Examination, decisions: Sequence[CallDecision]) -> Iterator[str]:
    """The remark that --gpus has its default, if files are for other ranks of a node."""
    grids = [one.grid for one in examined.reading.candidates]
    ranks = decisions[0].call.ranks
    if nodes := {one.node for one in grids if one.ranks == ranks and not one.has(ranks, ranks)}:
        others = " and ".join(f"--gpus {node}" for node in sorted(nodes))
        left_out = f"files for {others} are left out"
        yield from ("", f"note: without --gpus, all {ranks} ranks share a node; {left_out}")


def _short(found: Diagnostic, *, place: bool = True) -> str:
    """A diagnostic on one line."""
    where = f"{found.places[0]}: " if place and found.places and str(found.places[0]) else ""
    return f"{where}{found.rule.title}: expected {found.expected}, found {found.found}"
