"""sley verify: proves that a plan is right, or a file as a runtime reads it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from sley import formats
from sley.cli.annotations import (
    SARIF,
    annotation_lines,
    check_one_form,
    output_format_option,
)
from sley.cli.options import (
    FILE,
    PlanCommand,
    RuntimeName,
    Selection,
    SizeType,
    common_options,
    flag,
    program_options,
)
from sley.cli.output import (
    Phases,
    attributes,
    echo,
    print_written,
    report_notes,
    report_refusal,
)
from sley.cli.sources import (
    file_settings,
    on_topology,
    plan_and_file,
    refuse_foreign,
    source_of,
    topology_of,
)
from sley.compiler import Options
from sley.errors import Diagnostic, SleyError
from sley.formats import keywords
from sley.formats.files import check, verify_file
from sley.ir.plan import Plan
from sley.verification import Proof, verify
from sley.verification.certificate import certificate as certificate_of


@click.command("verify", cls=PlanCommand)
@program_options
@click.argument("further", metavar="[WHAT]...", nargs=-1)
@click.option(
    "--slots",
    type=click.INT,
    help="Prove it for so many messages that a connection holds. [the protocol's number]",
)
@click.option(
    "--target",
    type=RuntimeName(formats.TARGETS),
    help="Prove a file as this runtime reads it, or a plan within its limits.",
)
@click.option(
    "--max-bytes",
    type=SizeType(),
    help="For an XML file with --target: only calls up to this size.",
)
@click.option(
    "--slot-bytes", type=SizeType(), help="For an XML file with --target: size of a slot."
)
@click.option("--order", is_flag=True, help="Show in which order it adds up.")
@click.option("--certificate", type=FILE, help="Write what sley-check needs to prove it anew.")
@output_format_option
@common_options
def verify_command(
    selection: Selection,
    further: tuple[str, ...],
    certificate: Path | None,
    output_format: str | None,
    phases: Phases,
    **values: Any,
) -> None:
    """Prove that WHAT is correct: values, races, hangs, connections; of several, each.

    A program is compiled with the compiler's defaults; sley compile -o NAME.plan writes a plan
    with others.
    """
    check_one_form(output_format, phases.quiet)
    if further and (certificate or phases.quiet or output_format == SARIF):
        raise click.UsageError("--certificate, --json and SARIF are for one WHAT")
    code = 0
    for what in (selection.what, *further):
        if further and output_format is None:
            echo(f"# {what}")
        try:
            one = replace(selection, what=what)
            _verify(one, certificate, output_format, phases, **values)
        except SleyError as error:
            code = max(code, report_refusal(error, output_format, as_json=phases.quiet))
        except click.UsageError as error:
            if not further:
                raise
            click.echo(f"Error: {what}: {error.format_message()}", err=True)
            code = error.exit_code
    sys.exit(code)


def _verify(
    selection: Selection,
    certificate: Path | None,
    output_format: str | None,
    phases: Phases,
    *,
    slots: int | None,
    target: str | None,
    max_bytes: int | None,
    slot_bytes: int | None,
    order: bool,
) -> None:
    """Proves one WHAT. Errors: those of the proof, click's usage error."""
    notes: tuple[Diagnostic, ...] = ()
    recipe: Mapping[str, str] = {}
    sizes = {"max_bytes": max_bytes, "slot_bytes": slot_bytes}
    selection = replace(selection, options=Options(slots=slots))
    form = formats.form_of(selection.what) if source_of(selection).is_of_runtime else None
    if form is not None and target is None and form.one_sided:
        target = str(form.targets[0])
    given = [word for word, value in sizes.items() if value is not None]
    if given and (form is None or target is None):
        raise click.UsageError(f"{flag(given[0])} is for an XML file with --target")
    if certificate is not None and form is not None and target is None:
        raise click.UsageError("--certificate of a runtime's file needs --target")
    if certificate is not None and certificate.suffix.lower() in (".plan", ".xml", ".py"):
        raise click.UsageError(f"{certificate} would be a certificate: name it otherwise")
    if form is None:
        proof, recipe = _prove_plan(selection, target, phases)
        proofs: tuple[Proof, ...] = (proof,)
        end = "" if target is None else f"within the limits of {target}"
    else:
        refuse_foreign(form, keywords(form.executions), {"slots": slots, **sizes})
        proofs, notes = _prove_file(selection, target, sizes, phases)
        names = ", ".join(form.target_names)
        end = f"This is what the file means; --target proves what a runtime makes of it: {names}."
        if target is not None:
            target = str(formats.target_named(target))
            end = f"as {target} executes the file"
    if certificate is not None:
        with phases("certificate"):
            formats.write_file(certificate, certificate_of(proofs))
    if phases.quiet:
        phases.print_json(
            target=target,
            proofs=[_row(proof, order) for proof in proofs],
            notes=[note.to_json() for note in notes],
            recipe=dict(recipe),
        )
        return
    if output_format is not None:
        every = [*notes, *(remark for proof in proofs for remark in proof.remarks)]
        for line in annotation_lines(output_format, (), every):
            echo(line)
    if output_format == SARIF:
        return
    report_notes(notes)
    for proof in proofs:
        report_notes(proof.remarks)
        echo(str(proof))
        echo(proof.holds)
        if order:
            with phases("order"):
                echo(str(proof.order))
    if recipe:
        echo(f"made from: {' '.join(filter(None, recipe.values()))}")
    if end:
        echo(end)
    print_written(certificate)
    phases.report()


def _prove_file(
    selection: Selection, target: str | None, sizes: dict[str, int | None], phases: Phases
) -> tuple[tuple[Proof, ...], tuple[Diagnostic, ...]]:
    """The proofs of a file as the target reads it, or of what it means, and the remarks on it."""
    settings = file_settings(selection)
    with phases("verification"):
        found = verify_file(selection.what, target, **settings, **sizes)
    topology = topology_of(selection.topology)
    for proof in found.proofs:
        if isinstance(proof.plan, Plan):
            on_topology(topology, proof.plan)  # which must link the ranks
    return found.proofs, found.notes


def _prove_plan(
    selection: Selection, target: str | None, phases: Phases
) -> tuple[Proof, Mapping[str, str]]:
    """The proof of the plan, within the target's limits, and what its file says that it was made
    from. The plan is made for the protocol's slots, and proven for the given ones."""
    form = None if target is None else formats.FORMATS[formats.TARGETS[target].suffix]
    unset = replace(selection, options=Options())
    plan, file = plan_and_file(unset, phases, verify=False, form=form)
    with phases("verification"):
        proof = verify(plan, selection.options.slots)
    if target is not None:
        with phases("limits"):
            check(plan, target)
    return proof, {} if file is None else file.recipe


def _row(proof: Proof, order: bool) -> dict[str, object]:
    """A proof as plain values, for --json."""
    return {
        "plan": proof.plan.name,
        "collective": proof.plan.collective.name,
        "ranks": proof.plan.collective.ranks,
        **attributes(proof, "slots", "per_chunk", "steps"),
        "conditions": [condition.to_json() for condition in proof.conditions],
        "remarks": [remark.to_json() for remark in proof.remarks],
        **({"order": proof.order.to_json()} if order else {}),
    }
