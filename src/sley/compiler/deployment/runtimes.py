"""Runtimes: libraries that might read plans from files, by name and version.

Sources: microsoft/mscclpp, src/ext/collectives/algorithm_collection_builder.cc and python/mscclpp
(__main__.py, language, default_algos), at the commits of `VERSIONS`; Azure/msccl-executor-nccl and
ROCm/rccl, src/misc/msccl; microsoft/msccl, src/graph/tuning.cc; NVIDIA/nccl, src/plugin/tuner.cc.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from sley.errors import Diagnostic, Place, Rule
from sley.errors.deployment import F501, F531
from sley.errors.formats import F440
from sley.formats import Target
from sley.formats.msccl_xml.targets import EXECUTOR, MSCCL, RCCL
from sley.formats.msccl_xml.targets import SUFFIX as XML
from sley.formats.mscclpp.targets import MSCCLPP, VERSIONS
from sley.formats.mscclpp.targets import SUFFIX as JSON

_FOLDER, _PARENT, _FILES = "{folder}", "{parent}", "{files}"
"""Values of variables: the folder of the files, the folder around it, and the files' paths."""


class Grid(NamedTuple):
    """The communicators of a file: their ranks, and the ranks of a node (0: any)."""

    ranks: int
    node: int = 0

    def has(self, ranks: int, node: int) -> bool:
        """Whether a communicator has these ranks."""
        return self.ranks == ranks and self.node in (0, node)

    def __str__(self) -> str:
        return f"{self.ranks} ranks{f', {self.node} a node' if self.node else ''}"


@dataclass(frozen=True)
class Runtime:
    """A library and its version, as a reader of plans.

    name, version: as the user names them. basis: where the version is from, if the user has named
        none and it matters; a sentence. title: the words for people.
    suffix: the suffix of the files that it reads as plans, "" if it reads none.
    target: sley's name of the target of the files.
    whole_folder: whether it reads every file of the directory, whatever its name is.
    stops: whether a file that it can't read stops the communicators.
    in_order: whether the first matching file runs, in the order of the names; otherwise any.
    names: the names that it reads, each with the communicators for which it is registered; None if
        it reads all.
    most_files: the most files that it loads, None without a limit.
    one_place: whether it asks only the first plan for its place.
    place_by_begin: whether a call is in place if its buffers begin at one address.
    knows_names: whether it keeps plans by the name in the file, the last one of each name.
    compares_op: whether it compares the reduction; otherwise plans sum.
    divides_first: whether it computes a call's chunks before it chooses a file. Then no call runs a
        file whose chunks don't divide it, and a file of 0 chunks ends every call.
    unit: the unit in which chunks divide a call: "elements" or "bytes".
    types: the types of elements for which its plans run; None for all.
    part_of: the collectives of which it compares the size of a rank's part, instead of the largest
        buffer's.
    own: the collectives for which it has an algorithm, within one node; None for all, everywhere.
    has_program: whether a program registers the files.
    variables: the variables of the environment with which it reads files.
    refusal: why it reads no plans in this version, or None.
    """

    name: str
    version: str
    title: str
    suffix: str = ""
    target: str = ""
    whole_folder: bool = False
    stops: bool = False
    in_order: bool = True
    names: Mapping[str, Grid] | None = None
    most_files: int | None = None
    one_place: bool = False
    place_by_begin: bool = False
    knows_names: bool = False
    compares_op: bool = True
    divides_first: bool = True
    unit: str = "elements"
    types: tuple[str, ...] | None = None
    part_of: tuple[str, ...] = ()
    own: tuple[str, ...] | None = None
    has_program: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    basis: str = ""
    refusal: tuple[Rule, str] | None = None

    def __str__(self) -> str:
        return f"{self.title} {self.version}"

    @property
    def indivisible(self) -> str:
        """What happens to a call whose size isn't a multiple of what a file needs: a sentence."""
        if self.divides_first:
            return (
                "A call whose size isn't such a multiple takes the next match, or the runtime's "
                "own algorithm (F519)."
            )
        return (
            "A call that a plan matches, and whose size isn't such a multiple, ends the process "
            "(F519)."
        )

    def why_none(self) -> Diagnostic | None:
        """Why it reads no plans, or None if it does."""
        if self.refusal is None:
            return None
        rule, found = self.refusal
        return rule.diagnostic(expected="a runtime that reads plans", found=f"{self}: {found}")


DEFAULT_PLANS: Mapping[str, Grid] = MappingProxyType(
    {
        "allreduce_2nodes_1K_64K.json": Grid(16, 8),
        "allreduce_2nodes_128K_2M.json": Grid(16, 8),
        "allreduce_4nodes_1K_64K.json": Grid(32, 8),
        "allreduce_4nodes_128K_2M.json": Grid(64, 4),
    }
)
"""The names that the default loader of MSCCL++ reads, with the ranks and the ranks a node for which
its source registers them. Its own generator makes the last one for 32 ranks, 8 a node."""

_OLD_PLANS: Mapping[str, Grid] = MappingProxyType(
    {"allreduce_2nodes_1K_64K.json": Grid(16, 8), "allreduce_2nodes_64K_2M.json": Grid(16, 8)}
)
"""Those of v0.9.0, until commit 0c9b9abf of 2026-05-12. Its own generator writes a file 128K_2M
instead of 64K_2M, which the loader doesn't read."""

_DEFAULT = "default"
"""The directory of MSCCLPP_CACHE_DIR that the default loader of MSCCL++ reads."""

_MSCCLPP = Runtime(
    "mscclpp",
    MSCCLPP.version,
    "MSCCL++",
    JSON,
    str(MSCCLPP),
    in_order=False,
    names=DEFAULT_PLANS,
    one_place=True,
    place_by_begin=True,
    knows_names=True,
    compares_op=False,
    divides_first=False,
    unit="bytes",
    types=(
        *("float32", "float16", "bfloat16", "int32", "uint32"),
        *("float8_e4m3fn", "float8_e5m2"),
    ),
    own=("allreduce", "allgather"),
    variables={"MSCCLPP_CACHE_DIR": _PARENT},
)
_EXECUTOR = Runtime(
    EXECUTOR.name,
    "2.23.4",
    "msccl-executor-nccl",
    XML,
    EXECUTOR.name,
    whole_folder=True,
    stops=True,
    most_files=1024,
    part_of=("gather", "scatter"),
    variables={"MSCCL_ALGO_DIR": _FOLDER, "NCCL_MSCCL_ENABLE": "1"},
)
_RCCL = replace(
    _EXECUTOR,
    name="rccl",
    version="2.27.7",
    title="RCCL",
    target=RCCL.name,
    variables={"MSCCL_ALGO_DIR": _FOLDER, "RCCL_MSCCL_ENABLE": "1", "RCCL_MSCCL_FORCE_ENABLE": "1"},
)
_RCCL_OFF = replace(
    _RCCL,
    version="2.28.3",
    refusal=(F501, "built without MSCCL by default, and deprecated; files are not read"),
)
_RCCL_GONE = Runtime(
    "rccl", "2.29", "RCCL", refusal=(F501, "its reader of MSCCL XML was removed in March 2026")
)
_MSCCL = Runtime(
    "msccl",
    "0.7",
    "MSCCL (archived)",
    XML,
    MSCCL.name,
    most_files=4,
    variables={"MSCCL_XML_FILES": _FILES, "NCCL_ALGO": "MSCCL,RING,TREE"},
)
_NCCL = Runtime(
    "nccl",
    "2.32",
    "NCCL",
    refusal=(F501, "it loads no plans; its tuners choose among its own algorithms"),
)
_NCCLX = Runtime(
    "ncclx",
    "2.31",
    "NCCLX",
    refusal=(F501, "it loads no plans; NCCLX_TUNER_CONFIG_FILE names a table for its tuner"),
)

RUNTIMES: tuple[Runtime, ...] = (
    _MSCCLPP,
    replace(
        _MSCCLPP,
        name="mscclpp-python",
        title="MSCCL++, registered from Python,",
        names=None,
        has_program=True,
        variables={},
    ),
    _EXECUTOR,
    _RCCL,
    _RCCL_OFF,
    _RCCL_GONE,
    _MSCCL,
    _NCCL,
    _NCCLX,
)
"""All runtimes, each name's default version first."""

_ROCM: Mapping[tuple[int, ...], str] = MappingProxyType({(7, 2): "2.27.7", (7, 11): "2.28.3"})
"""The versions of RCCL in versions of ROCm."""

_SIGNS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "2026-08": ("default_algos/reducescatter_multi_nodes.py", "def reducescatter_multi_nodes"),
        "2026-07": ("language/internal/types.py", '"gstorepkt"'),
        "2026-06": ("language/collectives.py", "class SendRecv"),
        "v0.9.0": ("language/utils.py", "class AlgoSpec"),
    }
)
"""A file of MSCCL++'s Python package, and a text in it that the versions before don't have. The
package calls each of them 0.9.0."""

_KNOWN = MappingProxyType({one.name: one for one in reversed(RUNTIMES)})


def names() -> tuple[str, ...]:
    """The names of the runtimes."""
    return tuple(dict.fromkeys(one.name for one in RUNTIMES))


def runtime_named(target: str) -> Runtime:
    """The runtime of NAME or NAME@VERSION: by default the newest that reads plans. Errors: F440.

    MSCCL++'s version is that of the Python package `mscclpp`, if it is installed beside sley.
    executor (msccl-executor-nccl) has one last version, 2.23.4; other versions of RCCL behave as
    2.27.7, the 2.28s as 2.28.3, and later ones have no reader. Known versions of ROCm stand for
    RCCL's.
    """
    name, _, given = target.partition("@")
    known, version = _KNOWN.get(name), given or None
    if known is None:
        raise _unknown(f"a runtime of {', '.join(names())}", name)
    if known.suffix == JSON:
        return _of_version(known, version)
    if version is None or version == known.version:
        return known
    match = re.fullmatch(r"([0-9]{1,4})((?:\.[0-9]{1,4}){0,3})", version)
    if match is None:
        raise _unknown("a version such as 2.27.7", version)
    parts = _parts(version)
    if name == "rccl" and parts[0] != _parts(known.version)[0]:
        if parts[:2] not in _ROCM:
            rocm = " or ".join(f"{a}.{b} (RCCL {own})" for (a, b), own in _ROCM.items())
            raise _unknown(f"a version of RCCL such as 2.27.7, or of ROCm: {rocm}", version)
        version = _ROCM[parts[:2]]
        parts = _parts(version)
    if name == "rccl":
        chosen = _RCCL if parts < (2, 28) else _RCCL_OFF if parts < (2, 29) else _RCCL_GONE
        return replace(chosen, version=version)
    if known.refusal is None and parts[: len(_parts(known.version))] != _parts(known.version):
        raise _unknown(f"version {known.version}", f"{name} {version}")
    return replace(known, version=version)


def runtime_of(target: Target) -> Runtime:
    """The runtime that reads a target's files of any name, in the target's version, or its default
    version."""
    any_name = (one for one in RUNTIMES if one.names is None)
    found = next(one for one in any_name if one.target.partition("@")[0] == target.name)
    return _of_version(found, target.version) if target.version else found


def _of_version(known: Runtime, version: str | None) -> Runtime:
    """A version of MSCCL++: by default that of the installed package, or the newest known one.
    Errors: F440."""
    basis = ""
    if version is None:
        found, folder = _installed()
        version = found or MSCCLPP.version
        unlike = f", unlike the package in {folder}" if folder else ""
        basis = (
            f"{version} is the version of the installed package in {folder}"
            if found
            else f"{version} is the newest known version{unlike}: mscclpp@VERSION names another"
        )
    if version not in VERSIONS:
        expected = f"one of {', '.join(VERSIONS)}: MSCCL++ calls all of them 0.9.0"
        raise _unknown(expected, f"{known.name} {version}")
    names = _OLD_PLANS if known.names is not None and version == "v0.9.0" else known.names
    target = f"{MSCCLPP.name}@{version}"
    return replace(known, version=version, target=target, names=names, basis=basis)


def _installed() -> tuple[str, str]:
    """The version of the installed Python package of MSCCL++, which is not imported, and its
    folder: "" for a version before those known, and without a package."""
    try:
        spec = importlib.util.find_spec("mscclpp")
    except ValueError:  # a module without a specification
        spec = None
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    for folder in folders:
        for version, (file, text) in _SIGNS.items():
            with contextlib.suppress(OSError, ValueError):
                if text in Path(folder, file).read_text("utf-8"):
                    return version, folder
    return "", folders[0] if folders else ""


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _unknown(expected: str, found: str) -> Exception:
    return F440.error(at=Place(detail="runtime"), expected=expected, found=found)


def environment(
    runtime: Runtime, folder: str | os.PathLike[str], files: Sequence[str]
) -> dict[str, str]:
    """The variables with which a runtime reads the files of a folder, by name; none if it doesn't
    read the folder. Paths are absolute, because each process takes others from its own working
    directory."""
    path = _absolute(folder)
    if runtime.refusal is not None or misplaced(runtime, folder) is not None:
        return {}
    values = {
        _FOLDER: str(path),
        _PARENT: str(path.parent),
        _FILES: ":".join(str(path / name) for name in files[: runtime.most_files]),
    }
    return {word: values.get(text, text) for word, text in runtime.variables.items()}


def misplaced(runtime: Runtime, folder: str | os.PathLike[str]) -> Diagnostic | None:
    """The remark that a runtime doesn't read a folder under its name; None if it does."""
    name = _absolute(folder).name
    if _PARENT not in runtime.variables.values() or name == _DEFAULT:
        return None
    return F531.diagnostic(
        at=Place(str(folder)),
        expected=f"the directory {_DEFAULT} of MSCCLPP_CACHE_DIR",
        found=f"a directory named {name}; {runtime} reads only $MSCCLPP_CACHE_DIR/{_DEFAULT}",
    )


def _absolute(folder: str | os.PathLike[str]) -> Path:
    return Path(os.path.abspath(folder))  # noqa: PTH100 - a link may be named `default`
