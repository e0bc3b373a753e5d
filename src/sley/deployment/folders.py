"""Folders: the files of a directory as a runtime reads them, before any call."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from sley.deployment.candidates import Candidate
from sley.deployment.plan_candidates import read_plan
from sley.deployment.runtimes import Runtime
from sley.deployment.xml_candidates import read_xml
from sley.errors import Diagnostic, Place, SleyError, shortened
from sley.errors.deployment import F503, F506, F507
from sley.formats.msccl_xml.targets import SUFFIX as XML
from sley.formats.mscclpp.targets import SUFFIX as JSON

_READERS: Mapping[str, Callable[[Path, Runtime], Candidate]] = MappingProxyType(
    {JSON: read_plan, XML: read_xml}
)


@dataclass(frozen=True)
class Reading:
    """What a runtime reads in a directory.

    candidates: the files, in the order in which it tries them. left_out: the files that it doesn't
    load, with the reason. stops: why no communicator starts; empty if some do. findings: further
    problems, of the directory and of candidates.
    """

    runtime: Runtime
    folder: Path
    candidates: tuple[Candidate, ...] = ()
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
    if not runtime.whole_folder and runtime.names is None and path not in paths:
        paths = [one for one in paths if one.suffix.lower() == runtime.suffix]
    candidates: list[Candidate] = []
    left_out: dict[str, Diagnostic] = {}
    stops: list[Diagnostic] = []
    opened = 0
    for one in paths:
        wrong_name = _wrong_name(one, runtime)
        if wrong_name is not None:
            left_out[one.name] = wrong_name
            continue
        opened += 1
        try:
            candidates.append(_READERS[runtime.suffix](one, runtime))
        except SleyError as error:
            found = error.diagnostics[0]
            left_out[one.name] = found
            if runtime.stops:
                stops.append(found)
    findings = [_nothing(folder, paths, runtime)] if opened == 0 else []
    return Reading(runtime, folder, tuple(candidates), left_out, tuple(stops), tuple(findings))


def _files(path: Path, *, links: bool) -> tuple[Path, list[Path], Diagnostic | None]:
    """The folder, its files by name, and why there is none. links: whether every link is a file,
    also one to a folder or to nothing."""
    try:
        if path.is_file():
            return path.parent, [path], None
        entries = [one for one in path.iterdir() if one.is_file() or (links and one.is_symlink())]
        return path, sorted(entries), None
    except NotADirectoryError:
        found = "neither a directory nor a regular file"
    except (OSError, ValueError) as error:
        found = getattr(error, "strerror", None) or str(error)
    missing = F503.diagnostic(
        at=Place(str(path)), expected="a directory or a file with plans", found=found
    )
    return path, [], missing


def _nothing(folder: Path, paths: list[Path], runtime: Runtime) -> Diagnostic:
    expected = f"files that {runtime} reads: {', '.join(runtime.names or ['*' + runtime.suffix])}"
    found = ", ".join(shortened([one.name for one in paths])) or "an empty directory"
    return F503.diagnostic(at=Place(str(folder)), expected=expected, found=found)


def _wrong_name(path: Path, runtime: Runtime) -> Diagnostic | None:
    """Why the runtime doesn't open a file of this name; None if it does."""
    if runtime.whole_folder:
        return None
    if runtime.names is not None and path.name not in runtime.names:
        expected = f"one of {', '.join(runtime.names)}"
        return F507.diagnostic(at=Place(str(path)), expected=expected, found=path.name)
    if path.suffix.lower() != runtime.suffix:
        expected = f"a name that ends in {runtime.suffix}"
        return F506.diagnostic(at=Place(str(path)), expected=expected, found=path.name)
    return None
