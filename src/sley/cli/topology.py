"""sley topology: lists, shows and imports clusters."""

from __future__ import annotations

from collections.abc import Sequence

import click
import numpy as np

from sley import topologies
from sley.cli.options import POSITIVE, complete_names, json_option
from sley.cli.output import Command, CommandGroup, attributes, echo, print_json, report_notes
from sley.errors import counted
from sley.ir.cost_model import CostModel
from sley.ir.fabric import LinkKind
from sley.ir.topology import Topology
from sley.report.tables import table_lines
from sley.topologies.clusters import parts_of
from sley.topologies.structure import alike_nodes, card_of, link_classes, path_matrix

_MATRIX_GPUS = 16
"""The largest number of GPUs whose matrix fits on a screen."""


@click.group("topology", cls=CommandGroup)
def topology_command() -> None:
    """List, show and import topologies.

    NAME is a machine (sley topology list), alone or as NAME:NODES; NODESxGPUS or
    NODESxGPUS:NICS; mesh:4x4 or torus:4x4x4; one-h100:RANKS, which share it; or a file, alone or
    as FILE:NODES: TOML, NCCL's topology XML, hwloc's XML (lstopo), the output of nvidia-smi topo
    -m, or TACCL's JSON.
    FILE,like=MACHINE:NODES takes what the file leaves open from a machine.
    """


@topology_command.command("list", cls=Command)
@json_option
def list_command(as_json: bool) -> None:
    """List the machines that come with sley."""
    machines = [topologies.find_machine(name) for name in topologies.machine_names()]
    if as_json:
        print_json(
            [
                {
                    **attributes(m, "name", "description"),
                    "gpus": m.node.gpus,
                    "cards": len(m.node.cards),
                    "sources": dict(m.sources),
                }
                for m in machines
            ]
        )
        return
    width = max(len(m.name) for m in machines)
    echo(f"{'name':<{width}}  GPUs  cards  description")
    for m in machines:
        numbers = f"{m.node.gpus:>4}  {len(m.node.cards):>5}"
        echo(f"{m.name:<{width}}  {numbers}  {m.description}")


@topology_command.command("show", cls=Command)
@click.argument("name", shell_complete=complete_names(topologies.machine_names))
@click.option("--nodes", type=POSITIVE, help="Number of nodes.")
@json_option
def show_command(name: str, nodes: int | None, as_json: bool) -> None:
    """Show a topology: its nodes, links and rates, and the parameters of its cost model."""
    found = topologies.look_up(name if nodes is None else f"{name}:{nodes}")
    if as_json:
        print_json(_as_json(found))
        return
    report_notes(found.notes)
    echo(_text(found))


@topology_command.command("import", cls=Command)
@click.argument("file", type=click.Path())
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(),
    metavar="FILE.toml",
    help="Write the topology here.",
)
@click.option("--nodes", type=POSITIVE, help="Number of nodes. [1]")
@click.option("--like", metavar="MACHINE", help="Take what the file leaves open from this machine.")
def import_command(file: str, output: str, nodes: int | None, like: str | None) -> None:
    """Convert a topology of another tool to TOML, with the rate of every link.

    FILE is NCCL's topology XML (NCCL_TOPO_DUMP_FILE, or a cloud's for NCCL_TOPO_FILE), hwloc's
    XML (lstopo), the output of nvidia-smi topo -m, TACCL's JSON, or TOML. FILE,like=MACHINE:NODES
    is FILE with --like and --nodes.
    """
    path, machine, count = parts_of(file)
    if like is not None and machine is not None:
        raise click.UsageError("give --like or FILE,like=MACHINE, not both")
    if nodes is not None and count is not None:
        raise click.UsageError("give --nodes or FILE:NODES, not both")
    found = topologies.read(
        path,
        nodes=count if nodes is None else nodes,
        like=machine if like is None else like,
    )
    report_notes(found.notes)
    topologies.save(found.topology, output)
    echo(f"{output}: {_size(found.topology)}")


def _size(topology: Topology) -> str:
    return (
        f"{counted(topology.ranks, 'GPU')} in {counted(topology.nodes, 'node')}, "
        f"{counted(len(topology.links), 'link')}"
    )


def _text(found: topologies.LoadedTopology) -> str:
    topology = found.topology
    parts = [f"{topology.name}: {_size(topology)}"]
    if found.machine is not None and found.machine.description:
        parts[0] += f"\n{found.machine.description}"
    if topology.in_network:
        parts[0] += "\nSwitches reduce and multicast."
    if topology.accuracy:
        parts[0] += f"\n{topology.accuracy}"
    parts.append(_links_text(topology))
    for nodes in alike_nodes(topology):
        parts.append(_node_text(topology, nodes))
    parts.append(_model_text(topology.model))
    if found.machine is None and not found.notes and not topology.accuracy:
        parts.append("These rates are no machine's. sley topology list has machines.")
    if found.machine is not None and found.machine.sources:
        sources = found.machine.sources.items()
        parts.append(
            "sources\n" + "\n".join(f"  {key}: {' '.join(text.split())}" for key, text in sources)
        )
    return "\n\n".join(parts)


def _links_text(topology: Topology) -> str:
    head = ("links, each direction", "count", "nominal GB/s", "reached GB/s", "latency us")
    rows = [
        (
            f"{LinkKind(kind).name.lower()}: {ends}",
            str(count),
            f"{nominal:g}",
            f"{reached:g}",
            "model's" if latency < 0 else f"{latency:g}",
        )
        for kind, ends, nominal, reached, latency, count in link_classes(topology)
    ]
    return _indent([head, *rows], left=1)


def _node_text(topology: Topology, nodes: list[int]) -> str:
    first = f"node {nodes[0]}"
    title = first if len(nodes) == 1 else f"{first}, and {counted(len(nodes) - 1, 'equal node')}"
    ranks = np.flatnonzero(topology.node == nodes[0])
    if len(ranks) > _MATRIX_GPUS:
        most = f"--json prints matrices of more than {_MATRIX_GPUS}"
        return f"{title}: {counted(len(ranks), 'GPU')}; {most}"
    matrix = path_matrix(topology, nodes[0])
    cards = topology.nodes > 1
    head = ["", *(f"GPU{r}" for r in ranks), *(["card"] if cards else [])]
    rows = [
        [f"GPU{r}", *cells, *([card_of(topology, int(r))] if cards else [])]
        for r, cells in zip(ranks, matrix, strict=True)
    ]
    legend = "  GB/s reached by one GPU alone; NV: NVLink or xGMI, PCI: PCIe, -: through other GPUs"
    return f"{title}\n{_indent([head, *rows], left=1)}\n{legend}"


def _model_text(model: CostModel) -> str:
    usual, origins = CostModel().items(), CostModel.origins()
    rows = [
        (name, value, origins[name] if value == usual[name] else f"by default {usual[name]}")
        for name, value in model.items().items()
    ]
    head = ("cost model", "value", "from")
    more = "The defaults are those of A100s; the docstring of sley.CostModel explains them."
    return "\n".join([_indent([head, *rows], left=3), f"  {more}"])


def _indent(rows: Sequence[Sequence[str]], *, left: int) -> str:
    """An indented table, its first `left` columns flush left."""
    return "\n".join(f"  {line}" for line in table_lines(rows, range(left)))


def _as_json(found: topologies.LoadedTopology) -> dict[str, object]:
    topology, machine = found.topology, found.machine
    usual, origins = CostModel().items(), CostModel.origins()
    return {
        "name": topology.name,
        "description": "" if machine is None else machine.description,
        **attributes(topology, "ranks", "nodes", "in_network", "accuracy"),
        "node": topology.node.tolist(),
        "card": topology.nic.tolist(),
        "links": [
            {
                "kind": LinkKind(kind).name.lower(),
                "ends": ends,
                "nominal_GBps": nominal,
                "GBps": reached,
                "latency_us": None if latency < 0 else latency,
                "count": count,
            }
            for kind, ends, nominal, reached, latency, count in link_classes(topology)
        ],
        "matrices": [
            {"nodes": nodes, "matrix": path_matrix(topology, nodes[0])}
            for nodes in alike_nodes(topology)
        ],
        "model": {
            name: {"value": value, "default": usual[name], "origin": origins[name]}
            for name, value in topology.model.items().items()
        },
        "sources": {} if machine is None else dict(machine.sources),
        "notes": [note.to_json() for note in found.notes],
    }
