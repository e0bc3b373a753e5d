"""Plan folders: the plans of a table as communicators read them, with the code of their kernels.

    plans.toml              the table, with a row for each plan
    01-ring-allreduce.plan  a plan
    kernels/sm_90/*.cubin   kernels as machine code for GPUs of an architecture, and their digests

`user_plans.read_folder` reads the plans, and communicators on GPUs load the kernels.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sley.communicator.selection.kinds import kinds_of
from sley.communicator.selection.ready_plans import Capacity
from sley.communicator.selection.user_plans import read_folder
from sley.compiler.deployment.packages import at_final_place
from sley.engine.kernels import Engine, Kernels, Platform, Variant
from sley.engine.kernels.prebuilt import CODE, DIGESTS, digests_of, file_of
from sley.engine.types import DataType
from sley.errors import Place, SleyError
from sley.errors.runtime import R514
from sley.errors.selection import N651
from sley.formats import files, new_folder, plan_file, write_file
from sley.ir.plan import Plan
from sley.ir.plan_table import TABLE, PlanRow, PlanTable, Recipe
from sley.ir.tables import NONE
from sley.ir.words import ReduceOp


@dataclass(frozen=True)
class CodeRequest:
    """For which calls on GPUs kernels are compiled ahead. archs: the architectures, as "sm_90"."""

    archs: tuple[str, ...]
    dtypes: tuple[DataType, ...]
    ops: tuple[ReduceOp, ...]


@dataclass(frozen=True)
class NamedPlan:
    """A plan of a folder. name: of its file, without the suffix. row: what the folder's table says
    of it, but for its file."""

    name: str
    plan: Plan
    row: PlanRow


def write_folder(
    plans: Iterable[NamedPlan], folder: str | os.PathLike[str], code: CodeRequest
) -> tuple[Path, ...]:
    """Writes a folder for SLEY_PLAN_DIR, and reads it as communicators do; after an error nothing
    is written.

    folder: an empty or a new one. Returns the files, and the folders of kernels. Errors: F461,
    N651, R514, those of `user_plans.read_folder`; K501 to K503 if kernels can't be compiled.
    """
    final, given = Path(folder), list(plans)
    with new_folder(final) as temporary:
        rows = []
        for one in given:
            file = f"{one.name}{plan_file.FORMAT.suffix}"
            if not kinds_of(one.plan.collective):
                found = str(one.plan.collective)
                raise N651.error(at=Place(file), expected="a collective of a call", found=found)
            files.save(one.plan, temporary / file)
            rows.append(_row(one, file))
        write_file(temporary / TABLE, PlanTable(tuple(rows)).text())
        for ranks in sorted({one.plan.collective.ranks for one in given}):
            if problems := read_folder(temporary, Capacity(ranks)).problems:
                raise SleyError([at_final_place(one, temporary, final) for one in problems])
        _write_code([one.plan for one in given], temporary, code)
        names = sorted(path.name for path in temporary.iterdir() if path.is_file())
    return tuple(final / name for name in [*names, *(f"{CODE}/{arch}" for arch in code.archs)])


def _row(one: NamedPlan, file: str) -> PlanRow:
    c, row = one.plan.collective, one.row
    root = None if c.root == NONE else c.root
    note = row.note or str(row.recipe)
    return PlanRow(Recipe(file), row.sizes, c.name, c.ranks, c.in_place, root, note)


def _write_code(plans: Sequence[Plan], folder: Path, code: CodeRequest) -> None:
    """Compiles the kernels of the plans. Those of several plans with one text count once."""
    from sley.engine.devices.cuda import compiler  # with CUDA's bindings

    for arch in code.archs:
        if not re.fullmatch(r"sm_\d{2,3}", arch):  # others run on one GPU alone, or are no code
            remedy = "Give sm_ and the GPU's compute capability without its dot: sm_90 for H100."
            expected, found = "an architecture such as sm_90", f"arch={arch!r}"
            raise R514.error(expected=expected, found=found, remedy=remedy)
        (folder / CODE / arch).mkdir(parents=True)
    texts = list(dict.fromkeys(text for plan in plans for text in _texts(plan, code)))
    # The compiler needs seconds for each, without Python's lock.
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        made = {
            arch: pool.map(partial(compiler.compile_text, arch=arch), texts) for arch in code.archs
        }
    for arch, compiled in made.items():
        names = (file_of(text, ".cubin") for text in texts)
        contents = {name: one.cubin for name, one in zip(names, compiled, strict=True)}
        digests = digests_of(arch, contents, compiler.version()[0])
        write_file(folder / CODE / arch / DIGESTS, digests)
        for name, cubin in contents.items():
            write_file(folder / CODE / arch / name, cubin)


def _texts(plan: Plan, code: CodeRequest) -> Iterator[str]:
    """The kernels that calls of a plan run, on ranks in processes of their own."""
    if not code.archs or plan.collective.varies:  # GPUs have no calls of varying counts
        return
    kernels = Kernels.of(plan)
    for dtype in code.dtypes:
        for op in code.ops if plan.reduces else (ReduceOp.SUM,):
            yield kernels.source(Engine.GENERATED, Variant(Platform.CUDA, dtype.number, op))
