"""sley msccl: runs a script for msccl-tools, proves its programs, and writes one with -o."""

from __future__ import annotations

import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path

import click

from sley.cli.options import FILE, SizeType, TargetName, common_options, output_option
from sley.cli.output import Command, Phases, echo, print_json, report_notes
from sley.cli.sources import refuse_foreign
from sley.compiler.scripts import ScriptPlans
from sley.errors import Place, counted, recognition
from sley.errors.compiler import C309
from sley.errors.language import L115
from sley.formats import TARGETS, Format, by_suffix, check_folder, files, program_source, write_file
from sley.formats.format import target_among
from sley.lang import msccl
from sley.lang.msccl import ScriptProgram
from sley.verification import Proof, verify

_PROGRAM = ".py"
_SUFFIXES = ", ".join(f"{suffix} for {form.name}" for suffix, form in files.FORMATS.items())

# A script may import msccl in a module of its own. What is no Python, the run says.
_RUNNABLE = (recognition.MSCCL_TOOLS, recognition.PYTHON, *recognition.VAGUE, recognition.MISSING)


@click.command(
    "msccl",
    cls=Command,
    # What follows the script belongs to the script.
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("script", type=FILE)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
@output_option(f"Write the plan here: {_SUFFIXES}; or the program as {_PROGRAM}.")
@click.option(
    "--target",
    type=TargetName(list(TARGETS)),
    help="The runtime to write plans for; its limits are checked. [XML: msccl]",
)
@click.option("--size", type=SizeType(), help="ASTRA-sim: the size of a call.")
@common_options
def msccl_command(
    script: Path,
    arguments: tuple[str, ...],
    output: Path | None,
    target: str | None,
    size: int | None,
    as_json: bool,
    verbose: bool,
) -> None:
    """Run SCRIPT, a script for msccl-tools, and prove its programs.

    SCRIPT gets ARGS, and needs no msccl-tools. It prints to standard output, where XML() prints the
    proven plan. For each program, sley prints a line about its proof to standard error.
    """
    kind = recognition.kind_of(script)
    if kind not in _RUNNABLE:
        raise recognition.refuse_kind(script, kind, "a script for msccl-tools")
    phases = Phases(verbose, quiet=True)
    plans, form = ScriptPlans(script, target), _form(output, target, size)
    if output is not None:
        check_folder(output)
    # Such a run may show no more than the script's own --help.
    only_prints = output is None and not as_json
    # With --json, standard output is for the command's own output.
    with phases("script"), redirect_stdout(sys.stderr) if as_json else nullcontext():
        programs = msccl.run(script, arguments, plans.text, may_be_empty=only_prints)
    proofs = []
    for program in programs:
        with phases("compiling"):
            plan = plans.plan(program, form)
        with phases("verification"):
            proofs.append(verify(plan))
        report_notes(proofs[-1].remarks)
        if not as_json:
            echo(str(proofs[-1]), err=True)
    if output is not None:
        with phases("writing"):
            _write(plans, _only(programs, script), output, form, size)
    if as_json:
        where = output and str(output)
        rows = [_row(proof) for proof in proofs]
        print_json({"ok": True, "programs": rows, "output": where, "seconds": phases.seconds})
    phases.report()


def _form(output: Path | None, target: str | None, size: int | None) -> Format:
    """The format that programs are compiled for: that of -o, or of the target, or XML. Errors: F440
    for a target that doesn't read the file, F460 for an unknown suffix, and click's usage error for
    a target or a size of a file that has none."""
    table = {**files.FORMATS, _PROGRAM: None}
    form = None if output is None else by_suffix(output, table)
    if form is None and size is not None:
        raise click.UsageError("--size is for the traces that -o NAME.et writes")
    if form is None:
        return files.FORMATS[".xml" if target is None else TARGETS[target].suffix]
    known = [*form.settings, *(["target"] if form.targets else [])]
    refuse_foreign(form, known, {"target": target, "size": size})
    if target is not None:
        targets = {str(one): one for one in form.targets}
        target_among(targets, TARGETS[target], tuple(map(type, form.targets)))
    return form


def _only(programs: tuple[ScriptProgram, ...], script: Path) -> ScriptProgram:
    """The only program. Errors: L115 if there are several."""
    if len(programs) > 1:
        names = ", ".join(program.program.name for program in programs)
        raise L115.error(
            at=Place(str(script)),
            expected="one program for -o",
            found=f"{counted(len(programs), 'program')}: {names}",
            remedy="Give the arguments with which the script makes one program.",
        )
    return programs[0]


def _write(
    plans: ScriptPlans, program: ScriptProgram, output: Path, form: Format, size: int | None
) -> None:
    """Writes a program, or its plan. Errors: C309 for a program whose instr_fusion a Python file
    would lose, and those of `save`."""
    if output.suffix.lower() == _PROGRAM:
        if program.fusion is not None:
            raise C309.error(
                at=program.program.sources.whole,
                expected="a program without options of the compiler, which a Python file lacks",
                found="instr_fusion=False",
                remedy=f"Write the plan, as -o {output.stem}.xml; or leave instr_fusion out, and "
                f"compile {output} with --no-fusion.",
            )
        write_file(output, program_source.write(program.program))
    else:
        target = plans.target_of(form.suffix)
        own = {} if size is None else {"size": size}
        files.save(plans.plan(program, form), output, target=target, **own)


def _row(proof: Proof) -> dict[str, object]:
    """A proof as plain values, for --json."""
    c = proof.plan.collective
    return {
        "name": proof.plan.name,
        "collective": c.name,
        "ranks": c.ranks,
        "in_place": c.in_place,
        "slots": proof.slots,
        "per_chunk": proof.per_chunk,
        "proven": str(proof),
    }
