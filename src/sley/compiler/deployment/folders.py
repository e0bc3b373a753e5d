"""Folders: the files of a directory as a runtime reads them, before any call."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from sley.compiler.deployment.candidates import CandidateFile, read_plan, read_xml
from sley.compiler.deployment.registration import SCRIPT, registered
from sley.compiler.deployment.runtimes import Grid, Runtime
from sley.errors import Diagnostic, Place, SleyError, reason_of, recognition, shortened
from sley.errors.deployment import F503, F504, F506, F507, F533
from sley.errors.text_files import text_of
from sley.formats.msccl_xml.targets import SUFFIX as XML
from sley.formats.mscclpp.targets import SUFFIX as JSON

_READERS: Mapping[str, Callable[[Path, Runtime], CandidateFile]] = MappingProxyType(
    {JSON: read_plan, XML: read_xml}
)
_KINDS = {JSON: recognition.MSCCLPP, XML: recognition.MSCCL_XML}


@dataclass(frozen=True)
class Reading:
    """What a runtime reads in a directory.

    runtime: with the names that the folder's program registers, if sley knows them.
    candidates: the files, in the order in which it tries them. left_out: the files that it doesn't
    load, with the reason. stops: why no communicator starts; empty if some do. findings: further
    problems, of the directory and of candidates.
    """

    runtime: Runtime
    folder: Path
    candidates: tuple[CandidateFile, ...] = ()
    left_out: dict[str, Diagnostic] = field(default_factory=dict)
    stops: tuple[Diagnostic, ...] = ()
    findings: tuple[Diagnostic, ...] = ()

    @property
    def stopped_ranks(self) -> frozenset[int]:
        """The numbers of ranks of which no communicator starts."""
        if not self.runtime.stops:
            return frozenset()
        return frozenset(one.ranks for one in self.candidates if one.stop is not None)

    @property
    def no_start(self) -> str:
        """Which communicators don't start, in words; "" if all do."""
        if self.stops:
            return "no communicator starts"
        ranks = shortened([str(one) for one in sorted(self.stopped_ranks)])
        return f"no communicator of {' or '.join(ranks)} ranks starts" if ranks else ""


def check_path(where: str | os.PathLike[str]) -> None:
    """Refuses a path that is neither a directory nor a file. Errors: F503."""
    _, _, missing = _files(Path(where), links=False)
    if missing is not None:
        raise SleyError([missing])


def read_folder(where: str | os.PathLike[str], runtime: Runtime) -> Reading:
    """What a runtime reads in a directory, or in one file as if it were alone in a directory.

    Every file is also proven as the runtime executes it, if sley can read its format.
    """
    path = Path(where)
    folder, paths, missing = _files(path, links=runtime.whole_folder)
    if missing is not None and runtime.stops:
        return Reading(runtime, folder, stops=(missing,))
    if missing is not None:
        return Reading(runtime, folder, findings=(missing,))
    plans = paths
    if not runtime.whole_folder and runtime.names is None and path not in paths:
        plans = [one for one in paths if one.suffix.lower() == runtime.suffix] or paths
    remarks: list[Diagnostic] = []
    stops: list[Diagnostic] = []
    if runtime.has_program:
        runtime, remarks = _as_registered(runtime, folder, [] if path in paths else paths)
        stops += _absent(runtime, folder, paths)
    wrong_names = {one.name: _wrong_name(one, runtime) for one in plans}
    left_out = {name: problem for name, problem in wrong_names.items() if problem is not None}
    candidates, unreadable = _read([one for one in plans if one.name not in left_out], runtime)
    stops += unreadable.values() if runtime.stops else ()
    is_empty = len(left_out) == len(plans)
    findings = [_nothing(folder, plans, runtime)] if is_empty and not stops else remarks
    left_out |= unreadable
    in_order = {one.name: left_out[one.name] for one in plans if one.name in left_out}
    return Reading(runtime, folder, candidates, in_order, tuple(stops), tuple(findings))


_AGAIN = "Write the package again with `sley package`."


def _read(
    paths: Sequence[Path], runtime: Runtime
) -> tuple[tuple[CandidateFile, ...], dict[str, Diagnostic]]:
    """The candidates, and by name why other files can't be read."""
    candidates: list[CandidateFile] = []
    unreadable: dict[str, Diagnostic] = {}
    for one in paths:
        try:
            candidates.append(_READERS[runtime.suffix](one, runtime))
        except SleyError as error:
            found = _with_kind(error.diagnostics[0], one, runtime)
            if runtime.has_program and runtime.stops:
                # The program ends at a file that it registers; the remedy stays if it is this
                # file's own, as without permissions.
                own = found.remedy != found.rule.instead
                found = replace(found, rule=F504, remedy=found.remedy if own else _AGAIN)
            unreadable[one.name] = found
    return tuple(candidates), unreadable


def _with_kind(found: Diagnostic, path: Path, runtime: Runtime) -> Diagnostic:
    """Why a runtime can't read a file, with what the file is if its content shows another kind."""
    kind = recognition.kind_of(path)
    if kind is recognition.SLEY_PLAN:
        return found.rule.diagnostic(
            at=Place(str(path)),
            expected=f"a file that {runtime} reads",
            found=kind.text,
            remedy=f"sley's communicators read it: SLEY_PLAN_DIR={path.parent}. For this runtime "
            "name it in the table of a package: sley package DIR --table plans.toml --target "
            f"{runtime.name}.",
        )
    nameless = (*recognition.VAGUE, *recognition.ABSENT, _KINDS[runtime.suffix])
    return found if kind in nameless else replace(found, notes=(*found.notes, f"it is {kind.text}"))


def _as_registered(
    runtime: Runtime, folder: Path, paths: Sequence[Path]
) -> tuple[Runtime, list[Diagnostic]]:
    """The runtime with the names that the folder's program registers, or the remark that they are
    unknown. A plan that it can't register ends the program."""
    program = folder / SCRIPT
    found = f"no {SCRIPT}"
    if program in paths:
        found = f"another {SCRIPT} than `sley package` writes"
        try:
            plans = registered(text_of(program, F533))
        except SleyError as error:
            plans, found = None, error.diagnostics[0].found
        if plans is not None:
            names = {file: Grid(ranks, node) for file, ranks, node in plans}
            return replace(runtime, names=names, stops=True), []
    unknown = F533.diagnostic(
        at=Place(str(folder)),
        expected=f"{SCRIPT} as `sley package` writes it",
        found=f"{found}; every file is taken as registered, for its own ranks",
    )
    return runtime, [unknown]


def _absent(runtime: Runtime, folder: Path, paths: Sequence[Path]) -> list[Diagnostic]:
    """The registered files that aren't in the folder."""
    there = {one.name for one in paths}
    expected, found = f"a file, because {SCRIPT} registers it", "no file"
    return [
        F504.diagnostic(at=Place(str(folder / name)), expected=expected, found=found, remedy=_AGAIN)
        for name in runtime.names or ()
        if name not in there
    ]


def _files(path: Path, *, links: bool) -> tuple[Path, list[Path], Diagnostic | None]:
    """Returns the folder and its files by name, or the reason why it can't be read. links: whether
    every link is a file, also one to a folder or to nothing."""
    try:
        if path.is_file():
            return path.parent, [path], None
        entries = [one for one in path.iterdir() if one.is_file() or (links and one.is_symlink())]
        return path, sorted(entries), None
    except NotADirectoryError:
        found = "neither a directory nor a regular file"
    except (OSError, ValueError) as error:
        found = reason_of(error)
    missing = F503.diagnostic(
        at=Place(str(path)), expected="a directory or a file with plans", found=found
    )
    return path, [], missing


def _nothing(folder: Path, paths: list[Path], runtime: Runtime) -> Diagnostic:
    expected = f"files that {runtime} reads: {', '.join(runtime.names or ['*' + runtime.suffix])}"
    found = ", ".join(shortened([one.name for one in paths]))
    if not found:
        inner = shortened(sorted(one.name for one in folder.iterdir() if one.is_dir()))
        found = f"only directories: {', '.join(inner)}" if inner else "an empty directory"
    return F503.diagnostic(at=Place(str(folder)), expected=expected, found=found)


def _wrong_name(path: Path, runtime: Runtime) -> Diagnostic | None:
    """Why the runtime doesn't open a file of this name; None if it does."""
    if runtime.whole_folder:
        return None
    rule = F507
    if runtime.names is not None and path.name not in runtime.names:
        expected = f"one of {', '.join(runtime.names)}"
        if runtime.has_program:
            expected = f"a file that {SCRIPT} registers"
    elif path.suffix.lower() != runtime.suffix:
        rule, expected = F506, f"a name that ends in {runtime.suffix}"
    else:
        return None
    return rule.diagnostic(at=Place(str(path)), expected=expected, found=path.name)
