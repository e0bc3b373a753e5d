"""Files: loads plans from files, and saves plans, proven for the runtime that will read them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sley import formats
from sley.devices import kernel_files
from sley.errors import Place
from sley.errors.compiler import C309
from sley.formats import Format, Target, by_suffix, target_named, write_file
from sley.ir.plan import Plan
from sley.verify import verify

FORMATS: Mapping[str, Format] = MappingProxyType(
    {**formats.FORMATS, **{form.suffix: form for form in kernel_files.FORMATS}}
)
"""The formats of plans, by the suffix of a file's name."""


def load(path: str | os.PathLike[str], **settings: Any) -> Plan:
    """The plan of a file, as `sley.formats.read` reads it. Errors: those of `read`."""
    return formats.read(path, **settings).plan


def save(
    plan: Plan,
    path: str | os.PathLike[str],
    *,
    target: str | Target | None = None,
    **settings: Any,
) -> None:
    """Proves a plan and writes it: as MSCCL XML for a target, or as kernels. If anything fails, an
    existing file is not changed.

    Once a chunk fills a tile, the targets' kernels send a message of several chunks chunk by chunk,
    each in its own slot, and a connection has the protocol's slots. A plan that was not compiled
    for this (`per_chunk`) may hang there, and is refused.

    path: ends in .xml, in .cu for kernels for GPUs, or in .cpp for kernels for CPUs.
    target: for XML: executor (the default), rccl or msccl.
    settings: settings of the format; None for the default. XML has name, min_bytes, max_bytes,
        threads (`sley.formats.msccl_xml.write`), kernels have name, threads, dtype, reduce_op
        (`sley.devices.kernel_files.write`).
    Errors: V2xx, F4xx, C309 for settings that the format doesn't have, and for kernels K515, R504,
    R514.
    """
    form = by_suffix(path, FORMATS)
    given = {word: value for word, value in settings.items() if value is not None}
    known = form.settings
    if form.targets:
        given["target"] = target_named(target or form.targets[0])
        known = (*known, "target")
    elif target is not None:
        given["target"] = target
    for word, value in given.items():
        if word not in known:
            raise C309.error(
                at=Place(str(path)),
                expected=f"no {word}, which {form.name} does not have",
                found=f"{word}={value!r}",
                remedy=f"Leave {word} out, or use another suffix.",
            )
    _prove(plan, form)
    write_file(path, form.write(plan, **given))


def check(plan: Plan, target: str | Target) -> None:
    """Proves a plan for a target's connections, and checks the target's limits. Errors: V2xx,
    F4xx."""
    target = target_named(target)
    _prove(plan, FORMATS[target.suffix])
    formats.check(plan, target)


def _prove(plan: Plan, form: Format) -> None:
    """Proves a plan for the connections of a format's runtimes. Errors: V2xx."""
    if form.runs_with_own_slots:
        verify(plan, plan.protocol.slots, per_chunk=True)
    else:
        verify(plan)
