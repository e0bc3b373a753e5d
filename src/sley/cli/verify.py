"""sley verify: proves that a plan is right."""

from __future__ import annotations

from dataclasses import replace

import click

from sley import formats
from sley.cli.options import Selection, common_options, plan_options
from sley.cli.output import Command, Phases, print_json, report_notes
from sley.cli.sources import plan_of
from sley.compiler import Options
from sley.verify import verify


@click.command("verify", cls=Command)
@plan_options
@click.option(
    "--target", type=click.Choice(list(formats.TARGETS)), help="Check this runtime's limits too."
)
@common_options
def verify_command(selection: Selection, target: str | None, as_json: bool, verbose: bool) -> None:
    """Prove that WHAT is right: values, races, hangs, connections.

    --slots proves it for this number of slots of each connection.
    """
    phases = Phases(verbose, quiet=as_json)
    # The plan is made for the protocol's slots, and proven for the given ones.
    form = None if target is None else formats.FORMATS[formats.TARGETS[target].suffix]
    unset = replace(selection, options=Options.of(selection.options, {"slots": None}))
    plan = plan_of(unset, phases, verify=False, form=form)
    with phases("verification"):
        proof = verify(plan, selection.options.slots)
    if target is not None:
        with phases("limits"):
            formats.check(plan, target)
    if as_json:
        print_json(
            {
                "ok": True,
                "plan": plan.name,
                "collective": plan.collective.name,
                "ranks": plan.collective.ranks,
                "slots": proof.slots,
                "steps": proof.steps,
                "target": target,
                "remarks": [remark.to_json() for remark in proof.remarks],
                "seconds": phases.seconds,
            }
        )
        return
    report_notes(proof.remarks)
    click.echo(str(proof))
    if target is not None:
        click.echo(f"within the limits of {target}")
    phases.report()
