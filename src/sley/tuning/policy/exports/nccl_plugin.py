"""NCCL plug-in: a policy as a tuner plug-in in C, for NCCL and RCCL.

`nccl_plugin.c.in` is the text without the table of ranges; it states the interfaces' sources.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from importlib import resources
from importlib.metadata import version
from pathlib import Path

from sley.communicator.selection.policy import Policy
from sley.errors import reason_of
from sley.errors.policy import D906
from sley.formats import check_folder, write_file
from sley.ir.plan_table import PlanRow
from sley.tuning.policy.exports.tables import NO_END, Export, title
from sley.tuning.policy.nccl_names import ALGORITHMS, COLLECTIVES, PROTOCOLS, NcclChoice, nccl_rows

FLAGS = ("-std=c99", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Wpedantic")
"""The flags with which the plug-in is compiled."""

_COMPILERS = ("cc", "gcc", "clang")
_LOG_LINES = 20


def nccl_plugin(policy: Policy) -> Export:
    """The C text of the plug-in. Errors: D905 if NCCL has none of the policy's algorithms."""
    rows, remarks = nccl_rows(policy, "NCCL", "interfaces before v6 have")
    template = (resources.files(__package__) / "nccl_plugin.c.in").read_text("utf-8")
    values = {
        "TITLE": title(policy),
        "VERSION": version("sley"),
        "NODES": str(policy.machine.nodes),
        "RANKS": str(policy.machine.ranks),
        "RANGES": "\n".join(_row(*one) for one in rows),
    }
    for word, value in values.items():
        template = template.replace(f"@{word}@", value)
    return Export(template, remarks)


def build_plugin(text: str, path: str | os.PathLike[str]) -> None:
    """Compiles the text of a plug-in to a shared library, with $CC or the system's C compiler.
    After an error an existing file is unchanged. Errors: D906, F461."""
    check_folder(path)
    compiler = _compiler()
    with tempfile.TemporaryDirectory(prefix="sley-") as folder:
        source, library = Path(folder, "nccl_plugin.c"), Path(folder, "plugin.so")
        source.write_text(text, "utf-8")
        command = [*compiler, *FLAGS, "-o", str(library), str(source)]
        expected = f"a C compiler that accepts {' '.join(FLAGS)}"
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        except OSError as problem:
            raise D906.error(expected=expected, found=reason_of(problem)) from problem
        if done.returncode:
            raise D906.error(
                expected=expected,
                found=f"{compiler[0]} ended with {done.returncode}",
                notes=done.stderr.splitlines()[:_LOG_LINES],
            )
        write_file(path, library.read_bytes())


def _compiler() -> list[str]:
    """The C compiler with its own arguments. Errors: D906."""
    text = os.environ.get("CC", "")
    try:
        given = shlex.split(text)
    except ValueError as problem:
        expected, found = "a compiler with its arguments in CC", f"{text!r}: {problem}"
        raise D906.error(expected=expected, found=found) from problem
    for command in [given] if given else [[name] for name in _COMPILERS]:
        if shutil.which(command[0]):
            return command
    names = given[0] if given else ", ".join(_COMPILERS)
    raise D906.error(expected=f"one of {names} on the PATH", found="none of them")


def _row(row: PlanRow, choice: NcclChoice) -> str:
    """The row as an element of the table."""
    begin, end = row.sizes.begin_bytes, row.sizes.end_bytes
    sizes = f"UINT64_C({begin}), UINT64_C({NO_END if end is None else end})"
    algorithm = ALGORITHMS.index(choice.algorithm)
    protocol = [*PROTOCOLS.values()].index(choice.protocol)
    numbers = f"{algorithm}, {protocol}, {choice.channels}, {round(1 / choice.tile)}"
    comment = f"/* {row.collective}: {choice.algorithm}, {choice.protocol} */"
    return f"    {{{COLLECTIVES[row.collective]}, {sizes}, {numbers}}}, {comment}"
