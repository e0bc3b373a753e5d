"""Packages: directories of proven plans for a runtime, each file for a range of sizes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from sley.compiler.deployment.examination import Examination, examine
from sley.compiler.deployment.registration import SCRIPT, script
from sley.compiler.deployment.runtimes import Grid, Runtime, environment, misplaced
from sley.errors import Diagnostic, Place, SleyError
from sley.errors.deployment import F507, F519, F528, F531
from sley.errors.formats import F461
from sley.formats import files, new_folder, write_file
from sley.formats.mscclpp.document import read_json
from sley.formats.mscclpp.parse import PlanHeader, read_header
from sley.ir.plan import Plan
from sley.ir.plan_table import PlanRow
from sley.ir.sizes import SizeRange, checked_size
from sley.ir.tables import by_key


@dataclass(frozen=True)
class PackageFile:
    """A file of a folder.

    name: its name. label: what it is for, in words. write: writes it to a path. node: the ranks of
    a node for which it is registered, 0 if all ranks share one. entry: the place that asks for it,
    which its errors name.
    """

    name: str
    label: str
    write: Callable[[Path], None]
    node: int = 0
    entry: Place = Place()


@dataclass(frozen=True)
class Package:
    """A written directory.

    paths: its files; without any, nothing was written. remarks: what a user should know about it, a
    sentence each. environment: the variables with which the runtime reads it.
    """

    paths: tuple[Path, ...]
    remarks: tuple[str, ...]
    environment: dict[str, str]


def plan_part(
    name: str,
    label: str,
    make: Callable[[], tuple[Plan, SizeRange]],
    runtime: Runtime,
    sizes: SizeRange,
    node: int = 0,
) -> PackageFile:
    """The part of a plan for a runtime.

    make: makes the plan, with the options that the runtime's format needs, and its own range of
    sizes, as the runtime compares it. sizes: of its calls, of the largest buffer of any rank; an
    open end is the plan's own. node: as in `PackageFile`.
    """

    def write(path: Path) -> None:
        plan, own = make()
        range_ = _range_for(runtime, plan, sizes).filled(own)
        settings: dict[str, Any] = {"min_bytes": range_.begin_bytes, "max_bytes": range_.end_bytes}
        if runtime.knows_names:
            settings |= {"name": name, "ranks_per_node": node or plan.collective.ranks}
        files.save(plan, path, target=runtime.target, **settings)

    return PackageFile(f"{name}{runtime.suffix}", label, write, node)


def copied_part(name: str, row: PlanRow, source: Path, runtime: Runtime) -> PackageFile:
    """The part of an execution plan that is copied, with the name of the part and the row's sizes.

    source: the file. Errors, when it is written: F506, F528 if the row says more of the plan than
    its sizes and nodes, or other calls than the file.
    """

    def write(path: Path) -> None:
        head, at = read_header(source), Place(str(source))
        if row.in_place not in (None, head.in_place):
            expected = f"in_place = {str(head.in_place).lower()}, as the file says"
            raise F528.error(at=at, expected=expected, found="the other place")
        if row.ranks not in (None, head.ranks):
            raise F528.error(at=at, expected=f"ranks = {head.ranks}", found=f"ranks = {row.ranks}")
        given = ["root"] if row.root is not None else []
        given += [word for word in row.recipe.arguments if word not in ("nodes", "gpus")]
        given += row.recipe.options
        if given:
            expected = "for an execution plan only its calls, nodes and gpus"
            raise F528.error(at=at, expected=expected, found=given[0])
        document = json.loads(read_json(source)[1])
        own = row.sizes.filled(SizeRange(head.min_bytes, head.max_bytes))
        document["name"] = name
        document |= {"min_message_size": own.begin_bytes, "max_message_size": own.end_bytes}
        write_file(path, json.dumps(document))

    return PackageFile(f"{name}{runtime.suffix}", str(row), write, node_of(row), row.entry)


def node_of(row: PlanRow) -> int:
    """The ranks of a node of a row's machine, 0 if all ranks share one."""
    arguments = row.recipe.arguments
    return arguments.get("gpus", 0) if "nodes" in arguments else 0


def _range_for(runtime: Runtime, plan: Plan, sizes: SizeRange) -> SizeRange:
    """A range of sizes as the runtime compares it: for some collectives the size of a rank's
    part."""
    parts = plan.collective.ranks if plan.collective.name in runtime.part_of else 1
    end = sizes.end_bytes
    return SizeRange(-(-sizes.begin_bytes // parts), None if end is None else end // parts)


def write_package(
    parts: Iterable[PackageFile],
    folder: str | os.PathLike[str],
    runtime: Runtime,
    *,
    lenient: bool = False,
) -> Package:
    """Writes a directory for a runtime, and examines it as the runtime reads it. After an error
    nothing is written.

    folder: a new or an empty one. lenient: whether a part that can't be written is left out with a
    remark, and a problem of the directory is a remark. Errors: F501 for a runtime that
    reads no plans, F461, those of parts, and those of `examine`.
    """
    refusal = runtime.why_none()
    if refusal is not None:
        raise SleyError([refusal])
    final = Path(folder)
    with new_folder(final) as temporary:
        parts = list(parts)
        names, remarks = _write_parts(parts, temporary, lenient=lenient)
        names = _as_named(names, parts, temporary, runtime)
        if runtime.has_program and names:
            names.append(_register(names, parts, temporary))
        examined = examine(temporary, runtime)
        problems = [at_final_place(one, temporary, final) for one in examined.problems]
        if problems and not lenient:
            raise SleyError(problems)
        remarked = [one for one in examined.remarks if one.rule is not F531]
        found = [*problems, *(at_final_place(one, temporary, final) for one in remarked)]
    place = misplaced(runtime, final)  # instead of what was said of the temporary folder's name
    found += [] if place is None else [place]
    if names:
        remarks += [one.brief for one in found]
        remarks += _circumstances(examined)
    paths = tuple(final / name for name in names)
    return Package(paths, tuple(remarks), environment(runtime, final, names))


def _circumstances(examined: Examination) -> Iterator[str]:
    """What calls of the files must obey: the sizes that end the process, and the conditions of the
    proofs that the runtime doesn't check. Names of files are left out where all are meant."""
    multiples = by_key((one.multiple, one.name) for one in examined.reading.candidates)
    runtime, every = examined.runtime, {one.name for one in examined.reading.candidates}
    if runtime.basis:
        yield runtime.basis
    end = (
        f"{F519.title}: a call whose size isn't a multiple of {{}} {runtime.unit} ends the process"
    )
    told = [(of, end.format(n)) for n, of in multiples.items() if not runtime.divides_first]
    told += [(list(of), f"proven for: {one}") for one, of in examined.conditions.items()]
    for names, text in told:
        is_for_all = every <= {*names}
        yield text if is_for_all else f"{', '.join(names)}: {text}"


def _as_named(
    names: Sequence[str], parts: Sequence[PackageFile], folder: Path, runtime: Runtime
) -> list[str]:
    """The files' names, after those that the runtime reads: each gets one that is registered for
    its ranks, of these the one whose sizes have the most in common with its own. Errors: F507 if
    there are not enough."""
    if runtime.names is None:
        return list(names)
    of_name, found = {part.name: part for part in parts}, list[str]()
    for name in names:
        head = read_header(folder / name)
        wanted = Grid(head.ranks, of_name[name].node or head.ranks)
        fitting = [one for one, of in runtime.names.items() if of == wanted]
        free = [one for one in fitting if one not in found]
        if not free:
            others = ", ".join(f"{one} for {of}" for one, of in runtime.names.items())
            raise F507.error(
                at=(Place(name), of_name[name].entry),
                expected=f"a free name of {runtime} for {wanted}",
                found=f"other plans have {' and '.join(fitting)}" if fitting else f"only {others}",
                remedy="Use --target mscclpp-python, which registers plans of any name.",
            )
        best = max(free, key=partial(_common_bytes, head))
        (folder / name).rename(folder / best)
        found.append(best)
    return found


def _common_bytes(head: PlanHeader, name: str) -> int:
    """The number of sizes that a plan has in common with those that a name ends in, such as
    1K_64K.json; the runtime doesn't compare them."""
    first, last = (checked_size(word) for word in Path(name).stem.split("_")[-2:])
    return min(head.max_bytes, last) - max(head.min_bytes, first) + 1


def _register(names: Sequence[str], parts: Sequence[PackageFile], folder: Path) -> str:
    """Writes the text that registers the plans; returns its name."""
    nodes = {part.name: part.node for part in parts}
    ranks = {name: read_header(folder / name).ranks for name in sorted(names)}
    rows = [(name, number, nodes[name] or number) for name, number in ranks.items()]
    write_file(folder / SCRIPT, script(rows))
    return SCRIPT


def _write_parts(
    parts: Iterable[PackageFile], folder: Path, *, lenient: bool
) -> tuple[list[str], list[str]]:
    """Writes parts to a folder; returns the names of the files, and a remark on each part that is
    left out. Errors: F461, and those of the parts if not lenient."""
    names: list[str] = []
    remarks: list[str] = []
    for part in parts:
        try:
            with naming(part.entry):
                part.write(folder / part.name)
        except SleyError as error:
            if error.code == F461.code or not lenient:  # F461 would repeat for every part
                raise
            remarks.append(f"{part.label}: {left_out(error)}")
        else:
            names.append(part.name)
    return names, remarks


def left_out(error: SleyError) -> str:
    """Why something is left out, for a remark."""
    d = error.diagnostics[0]
    return f"left out, {d.code}: expected {d.expected}, found {d.found}"


@contextmanager
def naming(entry: Place) -> Iterator[None]:
    """A context whose errors also name the place of an entry."""
    try:
        yield
    except SleyError as error:
        if not str(entry):
            raise
        named = [replace(one, places=(*one.places, entry)) for one in error.diagnostics]
        raise SleyError(named) from error


def at_final_place(found: Diagnostic, temporary: Path, final: Path) -> Diagnostic:
    """A diagnostic with the places of the final folder."""
    places = tuple(
        replace(place, file=place.file.replace(str(temporary), str(final)))
        for place in found.places
    )
    return replace(found, places=places)
