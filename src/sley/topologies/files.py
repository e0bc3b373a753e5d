"""Files: reads topologies from TOML and from other tools' files, and saves them as TOML."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sley.errors import Diagnostic, Place, SleyError, recognition
from sley.errors.compiler import C307, C308
from sley.errors.schedules import F550
from sley.errors.text_files import text_of, toml_tables
from sley.errors.topology import T605
from sley.ir.topology import Topology
from sley.topologies.assumptions import Import
from sley.topologies.graph import graph_from, graph_text
from sley.topologies.machine import Machine, at_place, find_machine, machine_from, machine_names
from sley.topologies.nccl_log import NcclLogImport, is_log
from sley.topologies.smi import AmdImport, NvidiaImport, is_matrix
from sley.topologies.taccl import TacclImport
from sley.topologies.xml_trees import HwlocImport, NcclXmlImport


@dataclass(frozen=True)
class LoadedTopology:
    """The contents of a topology file.

    topology: the cluster.
    machine: the description of its nodes, None for a graph.
    notes: the values that the file leaves open and the importer's assumptions (F434), and how far
        predictions for the machine are known to be off (T611).
    """

    topology: Topology
    machine: Machine | None
    notes: tuple[Diagnostic, ...] = ()


def load(
    path: str | os.PathLike[str], *, nodes: int | None = None, like: str | None = None
) -> Topology:
    """The topology in a file, as `read` reads it. Errors: those of `read`."""
    return read(path, nodes=nodes, like=like).topology


def read(
    path: str | os.PathLike[str], *, nodes: int | None = None, like: str | None = None
) -> LoadedTopology:
    """The topology in a file, its machine, and the importer's assumptions.

    The file is TOML (a machine or a graph), NCCL's topology XML or its log, hwloc's XML (lstopo),
    the output of nvidia-smi topo -m, rocm-smi --showtopo or amd-smi topology, or TACCL's JSON; the
    suffix and the content decide which.

    nodes: number of nodes of the machine, 1 by default. Not allowed for a graph, which is a
        whole cluster.
    like: the name of a machine, which supplies what another tool's file leaves open: the cost
        model, the network, NVLink if the file can't show it, and the speed of cards without one.
        Not allowed for TOML, which has a key for it, and for TACCL's JSON, which has all rates.
    Errors: C307, C308, F550 for a file of another kind, T601 to T608.
    """
    if not isinstance(path, str | os.PathLike):
        raise C307.error(expected="the path of a file", found=repr(path)[:60])
    path = Path(path)
    if str(path).partition(":")[0] in machine_names() and not path.exists():
        raise T605.error(
            at=Place(str(path)),
            expected="a file",
            found="the name of a machine",
            remedy=f'sley.topologies.find("{path}") is its topology.',
        )
    kind = recognition.kind_of(path)
    # The reader of the text says of these what is wrong.
    unread = (recognition.MISSING, recognition.UNREADABLE)
    if kind not in (*recognition.TOPOLOGIES, *recognition.VAGUE, *unread):
        raise recognition.refuse_kind(path, kind, "a topology")
    file, text = str(path), text_of(path, T605)
    base = None if like is None else find_machine(like)
    suffix, start = path.suffix.lower(), text.lstrip()[:1]
    complete = suffix in (".toml", ".json") or start == "{"
    if base is not None and complete and kind is not recognition.AMD_SMI:
        raise C308.error(
            at=Place(file),
            expected="like= for a file that leaves rates open, such as NCCL's XML",
            found="TOML or JSON, which have all rates",
            remedy=f'Leave like= out, or write like = "{like}" into a machine\'s TOML.',
        )
    notes: list[Diagnostic] = []
    if suffix == ".toml":
        tables = toml_tables(file, text, T605)
        if "vertices" in tables or "links" in tables:
            if nodes is not None:
                raise C308.error(
                    at=Place(file),
                    expected="the file's own nodes: it describes a whole cluster",
                    found=f"{nodes} nodes for it",
                    remedy=f"Leave the number of nodes out: {file}",
                )
            return LoadedTopology(graph_from(file, tables), None)
        machine = machine_from(file, tables)
    else:
        imported = _importer(path, kind, text, base)
        machine, notes = imported.machine(base), imported.notes
    try:
        return LoadedTopology(
            machine.topology(1 if nodes is None else nodes), machine, tuple(notes)
        )
    except SleyError as error:
        raise at_place(error, Place(file)) from error


def _importer(path: Path, kind: recognition.Kind, text: str, base: Machine | None) -> Import:
    """What another tool's text describes. base: the machine that it is like. Errors: T604 to T608,
    F550."""
    file, suffix, start = str(path), path.suffix.lower(), text.lstrip()[:1]
    if kind is recognition.HWLOC:
        return HwlocImport(file, text)
    if suffix == ".xml" or start == "<":
        return NcclXmlImport(file, text)
    if kind is recognition.AMD_SMI:
        return AmdImport(file, text, base)
    if start != "{" and is_log(text):
        return NcclLogImport(file, text)
    if suffix == ".json" or start == "{":
        return TacclImport(file, text)
    if is_matrix(text):
        return NvidiaImport(file, text)
    raise F550.error(
        at=Place(file),
        expected="TOML (.toml), NCCL's XML or its log, hwloc's XML, the output of nvidia-smi "
        "topo -m, rocm-smi --showtopo or amd-smi topology, or TACCL's JSON",
        found=f"text that starts with {text.strip()[:30]!r}",
        remedy="Export one of these, or write a machine in TOML; docs/topologies.md "
        "describes the format.",
    )


def save(topology: Topology, path: str | os.PathLike[str]) -> None:
    """Writes a topology as a graph in TOML: every vertex, every link, every parameter of the
    model. `load` reads an equal one. Errors: C307, OSError."""
    if not isinstance(topology, Topology):
        raise C307.error(expected="a Topology", found=type(topology).__name__)
    Path(path).write_bytes(graph_text(topology).encode("utf-8"))
