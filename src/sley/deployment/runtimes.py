"""Runtimes: libraries that read plans from files, or don't, by name and version.

Sources: microsoft/mscclpp, src/ext/collectives/algorithm_collection_builder.cc and
python/mscclpp/__main__.py; Azure/msccl-executor-nccl and ROCm/rccl, src/misc/msccl;
microsoft/msccl, src/graph/tuning.cc; NVIDIA/nccl, src/plugin/tuner.cc.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from sley.errors import Diagnostic, Place, Rule
from sley.errors.deployment import F500, F501, F502
from sley.formats import Target

XML = ".xml"
JSON = ".json"


@dataclass(frozen=True)
class Runtime:
    """A library and its version, as a reader of plans.

    name, version: as the user names them. title: the words for people.
    suffix: the suffix of the files that it reads as plans, "" if it reads none.
    target: sley's name of the target of the files.
    whole_folder: whether it reads every file of the directory, whatever its name is.
    stops: whether a file that it can't read stops the communicators.
    in_order: whether the first matching file runs, in the order of the names; otherwise any.
    names: the names that it reads, each with the ranks and the ranks a node for which it is
        registered; None if it reads all.
    most_files: the most files that it loads.
    one_place: whether its plans must all be in place, or all out of place.
    registered: whether a program registers the files.
    closed: why it reads no plans in this version, or None.
    """

    name: str
    version: str
    title: str
    suffix: str = ""
    target: str = ""
    whole_folder: bool = False
    stops: bool = False
    in_order: bool = True
    names: Mapping[str, tuple[int, int]] | None = None
    most_files: int = 1024
    one_place: bool = False
    registered: bool = False
    closed: tuple[Rule, str] | None = None

    def __str__(self) -> str:
        return f"{self.title} {self.version}"

    def counts_part(self, collective: str) -> bool:
        """Whether it compares the size of one rank's part of a call of this collective, instead of
        that of the largest buffer."""
        return collective in ("gather", "scatter") and self.target in ("executor", "rccl")

    def why_closed(self) -> Diagnostic | None:
        """Why it reads no plans, or None if it does."""
        if self.closed is None:
            return None
        rule, found = self.closed
        return rule.diagnostic(expected="a runtime that reads plans", found=f"{self}: {found}")


DEFAULT_PLANS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "allreduce_2nodes_1K_64K.json": (16, 8),
        "allreduce_2nodes_128K_2M.json": (16, 8),
        "allreduce_4nodes_1K_64K.json": (32, 8),
        "allreduce_4nodes_128K_2M.json": (64, 4),
    }
)
"""The names that the default loader of MSCCL++ 0.9 reads, with the ranks and the ranks a node for
which its source registers them. Its own generator makes the last one for 32 ranks, 8 a node. The
third name is inferred from the others: that part of the source of 0.9 could not be read."""

_DEFAULT = "default"
"""The directory of MSCCLPP_CACHE_DIR that the default loader of MSCCL++ reads."""

_MSCCLPP = Runtime(
    "mscclpp",
    "0.9",
    "MSCCL++",
    JSON,
    "mscclpp",
    in_order=False,
    names=DEFAULT_PLANS,
    one_place=True,
)
_EXECUTOR = Runtime(
    "msccl-executor-nccl",
    "2.23.4",
    "msccl-executor-nccl",
    XML,
    "executor",
    whole_folder=True,
    stops=True,
)
_RCCL = replace(_EXECUTOR, name="rccl", version="2.27.7", title="RCCL", target="rccl")
_RCCL_OFF = replace(
    _RCCL,
    version="2.28.3",
    closed=(F502, "built without MSCCL by default, and deprecated; files are not read"),
)
_RCCL_GONE = Runtime(
    "rccl", "2.29", "RCCL", closed=(F501, "its reader of MSCCL XML was removed in March 2026")
)
_MSCCL = Runtime("msccl", "0.7", "MSCCL (archived)", XML, "msccl", most_files=4)
_NCCL = Runtime(
    "nccl",
    "2.32",
    "NCCL",
    closed=(F501, "it loads no plans; its tuners choose among its own algorithms"),
)
_NCCLX = Runtime(
    "ncclx",
    "2.31",
    "NCCLX",
    closed=(F501, "it loads no plans; NCCLX_TUNER_CONFIG_FILE names a table for its tuner"),
)

RUNTIMES: tuple[Runtime, ...] = (
    _MSCCLPP,
    replace(
        _MSCCLPP,
        name="mscclpp-python",
        title="MSCCL++, registered from Python,",
        names=None,
        registered=True,
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

_KNOWN = MappingProxyType({one.name: one for one in reversed(RUNTIMES)})


def names() -> tuple[str, ...]:
    """The names of the runtimes."""
    return tuple(dict.fromkeys(one.name for one in RUNTIMES))


def runtime_named(name: str, version: str | None = None) -> Runtime:
    """The runtime of this name, in a version: by default the newest that reads plans. Errors: F500.

    msccl-executor-nccl has one last version, 2.23.4; other versions of RCCL behave as 2.27.7, the
    2.28s as 2.28.3, and later ones have no reader.
    """
    known = _KNOWN.get(name)
    if known is None:
        raise _unknown(f"a runtime of {', '.join(names())}", name)
    if version is None or version == known.version:
        return known
    match = re.fullmatch(r"([0-9]{1,4})((?:\.[0-9]{1,4}){0,3})", version)
    if match is None:
        raise _unknown("a version such as 2.27.7", version)
    parts = tuple(int(part) for part in version.split("."))
    if name == "rccl":
        chosen = _RCCL if parts < (2, 28) else _RCCL_OFF if parts < (2, 29) else _RCCL_GONE
        return replace(chosen, version=version)
    if known.closed is None and parts[: len(_parts(known))] != _parts(known):
        raise _unknown(f"version {known.version}", f"{name} {version}")
    return replace(known, version=version)


def runtime_of(target: Target) -> Runtime:
    """The runtime that reads a target's files of any name, in its default version."""
    return next(one for one in RUNTIMES if one.target == target.name and one.names is None)


def _parts(known: Runtime) -> tuple[int, ...]:
    return tuple(int(part) for part in known.version.split("."))


def _unknown(expected: str, found: str) -> Exception:
    return F500.error(at=Place(detail="runtime"), expected=expected, found=found)


def environment(
    runtime: Runtime, folder: str | os.PathLike[str], files: Sequence[str]
) -> dict[str, str]:
    """The variables with which a runtime reads the files of a folder, by name."""
    path = os.fspath(folder)
    if runtime.closed is not None:
        return {}
    if runtime.target == "executor":
        return {"MSCCL_ALGO_DIR": path, "NCCL_MSCCL_ENABLE": "1"}
    if runtime.target == "rccl":
        on = {"RCCL_MSCCL_ENABLE": "1", "RCCL_MSCCL_FORCE_ENABLE": "1"}
        return {"MSCCL_ALGO_DIR": path, **on}
    if runtime.target == "msccl":
        chosen = [str(Path(path, name)) for name in files[: runtime.most_files]]
        return {"MSCCL_XML_FILES": ":".join(chosen), "NCCL_ALGO": "MSCCL,RING,TREE"}
    if runtime.names is not None and Path(path).name == _DEFAULT:
        return {"MSCCLPP_CACHE_DIR": str(Path(path).parent)}
    return {}
