"""sley synthesize: makes a program for a topology."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sley.cli.choose import options_json
from sley.cli.options import (
    SizeType,
    Whole,
    common_options,
    limit_option,
    output_option,
    place_option,
)
from sley.cli.output import Command, Phases, attributes, echo, print_rows, print_written
from sley.cli.simulating import note_blocks, note_left, tiles_rows
from sley.cli.sources import target_of_file, topology_of
from sley.compiler.synthesis import Synthesis
from sley.compiler.tree_search import TILES, Fastest, fastest
from sley.errors import counted
from sley.formats import files, program_source, write_file
from sley.ir.sizes import size_text
from sley.model.bounds import Bounds
from sley.report.pictures import tree_picture
from sley.report.pictures.canvas import METADATA
from sley.topologies import Routing
from sley.topologies.forests import MOST_CHUNKS, WITHIN


@click.command("synthesize", cls=Command)
@click.argument("collective")
@click.option("--topology", required=True, help="NAME[:NODES], NODESxGPUS[:NICS] or a file.")
@click.option(
    "--chunks",
    type=Whole(1, MOST_CHUNKS),
    help="Chunks of each rank's data, which its trees divide; of an AllToAll's data between two "
    "ranks. [the fastest of a few numbers]",
)
@click.option(
    "--within",
    type=click.FloatRange(0, 1, max_open=True),
    default=WITHIN,
    help="Share of the bound's bandwidth that trees may lack, or routes of the best routes'.",
)
@click.option("--size", type=SizeType(), default="1G", help="Size of the call to simulate.")
@place_option(default=True)
@limit_option
@output_option("Write the program here, as Python, its plan, or a picture of rank 0's trees.")
@common_options
def synthesize_command(  # as many parameters as options; click passes each by name
    collective: str,
    topology: str,
    chunks: int | None,
    within: float,
    size: int,
    in_place: bool,
    limit_s: float | None,
    output: Path | None,
    phases: Phases,
) -> None:
    """Make a COLLECTIVE for a topology: allgather, reducescatter or allreduce along trees, alltoall
    along routes over other ranks.

    It takes the trees or routes that are simulated as the fastest, with few of the compiler's
    options. Trees have the least height, for small sizes, up to the height of ForestColl's, which
    maximum flows find for large ones; a linear program finds routes. The program is proven. sley
    choose COLLECTIVE --topology ... tries all options.
    """
    target = target_of_file(output, ".py", *METADATA)
    cluster = topology_of(topology)
    assert cluster is not None
    with phases.progress("packing, compiling and simulating", several=True) as progress:
        found = fastest(
            collective,
            cluster,
            size,
            chunks=chunks,
            within=within,
            in_place=in_place,
            tiles=TILES if target is None else TILES[:1],  # smaller ones need Direct
            target=target,
            limit_s=limit_s,
            progress=progress,
        )
    note_left(found.left)
    plan = found.choice.plan
    note_blocks(plan.name, plan.blocks_per_rank, cluster.model)
    bounds = Bounds.of(found.choice.program.collective, cluster)
    _write(found, output)
    if phases.quiet:
        phases.print_json(**_facts(found, bounds, size), output=output and str(output))
        return
    print_rows(_rows(found, bounds, size))
    print_written(output)
    _print_front(found, bounds)
    phases.report()


def _word(made: Synthesis) -> str:
    return "routes" if isinstance(made.parts[0], Routing) else "trees"


def _sum_orders(found: Fastest) -> int:
    """Into how many orders of sums the program divides each chunk of its trees."""
    c = found.choice.program.collective
    is_routed = isinstance(found.synthesis.parts[0], Routing)
    return 1 if is_routed else c.blocks * c.chunks // found.synthesis.chunks


def _facts(found: Fastest, bounds: Bounds, size: int) -> dict[str, Any]:
    """What --json prints."""
    made, choice = found.synthesis, found.choice
    part = made.parts[0]
    best = {"best_routes_GBps": part.optimum_GBps} if isinstance(part, Routing) else {}
    return {
        "program": choice.program.name,
        _word(made): len(part.weight),
        "height": part.height,
        "chunks": part.chunks,
        "sum_orders": _sum_orders(found),
        "algbw_GBps": made.algbw_GBps,
        **best,
        "front": [attributes(one, "sends", "chunks", "algbw_GBps") for one in found.front],
        "bound_GBps": bounds.algbw_GBps,
        "bound": bounds.reason,
        "simulated": {
            "size_bytes": size,
            "time_us": choice.end.time_us,
            "of_bound": choice.end.of_bound,
            "blocks": choice.plan.blocks_per_rank,
            "options": options_json(choice.options),
            "tile": found.tile,
        },
        "left": found.left,
    }


def _rows(found: Fastest, bounds: Bounds, size: int) -> list[tuple[str, object]]:
    """The lines about the fastest."""
    made, choice, orders = found.synthesis, found.choice, _sum_orders(found)
    part, share = made.parts[0], made.algbw_GBps / bounds.algbw_GBps
    best, whole = list[tuple[str, object]](), "high, for {} of all ranks' data"
    if isinstance(part, Routing):
        best = [("best routes", f"{part.optimum_GBps:.2f} GB/s algbw at most")]
        whole = "long, for {} of each rank's data"
    of, data = counted(part.height, "send"), counted(part.chunks, "chunk")
    return [
        ("program", choice.program.name),
        (_word(made), f"{len(part.weight)}, at most {of} {whole.format(data)}"),
        *[("sums", f"in {orders} orders")] * (orders > 1),
        *best,
        ("link loads", f"{made.algbw_GBps:.2f} GB/s algbw, {share:.1%} of the bound"),
        ("bound", f"{bounds.algbw_GBps:.2f} GB/s, by {bounds.reason}"),
        (
            f"simulated, {size_text(size)}",
            f"{choice.end.algbw_GBps:.2f} GB/s algbw, {choice.end.of_bound:.1%} of the bound, "
            f"{counted(choice.plan.blocks_per_rank, 'block')} on a rank",
        ),
        ("options", choice.options),
        *tiles_rows(found),
        ("proven", "right values, no races, no hangs"),
    ]


def _write(found: Fastest, output: Path | None) -> None:
    """Writes the program, the picture of the trees, or the plan, as the file's suffix says."""
    if output is None:
        return
    down = found.synthesis.parts[-1]
    if output.suffix.lower() == ".py":
        write_file(output, program_source.write(found.choice.program))
    elif output.suffix.lower() not in METADATA:
        files.save(found.choice.plan, output)
    elif isinstance(down, Routing):
        raise click.UsageError(f"only trees are drawn: -o {output.with_suffix('.py')}")
    else:
        tree_picture(down).save(output)


def _print_front(found: Fastest, bounds: Bounds) -> None:
    """Prints what was compared, with the fastest marked."""
    head = (f"{name:>10}" for name in ("sends", _word(found.synthesis), "chunks", "GB/s"))
    echo("\ncompared  " + "".join(head) + f"{'of bound':>10}")
    for one in found.front:
        counts = one.sends, len(one.parts[0].weight), one.chunks
        rates = f"{one.algbw_GBps:>10.2f}{one.algbw_GBps / bounds.algbw_GBps:>10.1%}"
        row = "".join(f"{number:>10}" for number in counts) + rates
        echo(f"{'fastest' if one is found.synthesis else '':<10}{row}")
