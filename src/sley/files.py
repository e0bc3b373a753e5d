"""Files: plans from files and into files, proven for the runtime that will read them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sley import formats
from sley.devices import kernel_files
from sley.errors import Place
from sley.errors.compiler import C309
from sley.formats import Format, Target, by_suffix, target_among, target_named, write_file
from sley.ir.plan import Plan
from sley.verify import verify

FORMATS: Mapping[str, Format] = MappingProxyType(
    {**formats.FORMATS, **{form.suffix: form for form in kernel_files.FORMATS}}
)
"""All that a plan can be written as, by the end of a file's name."""


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
    """Writes a plan, after proving it: as MSCCL XML for a target, or as kernels. The file is there
    whole or not at all: whatever goes wrong, what stood there before stays.

    The targets' kernels send a message of several chunks chunk by chunk once a chunk fills a
    tile, each through a slot of its own, and a connection has the protocol's slots. A plan that
    was not compiled for that (`per_chunk`) may hang there, and is refused.

    path: ends in .xml, in .cu for kernels for GPUs, or in .cpp for kernels for CPUs.
    target: of XML: executor (without), rccl or msccl.
    settings: those of the kind of file; None for the default. XML has name, min_bytes, max_bytes,
        threads (`sley.formats.msccl_xml.write`), kernels have name, threads, dtype, reduce_op
        (`sley.devices.kernel_files.write`).
    Errors: V2xx, F4xx, C309 for what such a file doesn't have, and for kernels K515, R504, R514;
    then nothing is written.
    """
    form = by_suffix(path, FORMATS)
    given = {word: value for word, value in settings.items() if value is not None}
    known = form.settings
    if form.targets:
        default, *_ = form.targets
        own = {one.name: one for one in form.targets}
        given["target"] = target_among(own, target or default, type(default))
        known = (*known, "target")
    elif target is not None:
        given["target"] = target
    for word, value in given.items():
        if word not in known:
            raise C309.error(
                at=Place(str(path)),
                expected=f"no {word}: a file with {form.name} has none",
                found=f"{word}={value!r}",
                remedy=f"Leave {word} out, or give the file another ending.",
            )
    _prove(plan, form)
    write_file(path, form.write(plan, **given))


def check(plan: Plan, target: str | Target) -> None:
    """Proves a plan as a target's runtime runs it, and refuses what it can't run. Errors: V2xx,
    F4xx."""
    target = target_named(target)
    _prove(plan, FORMATS[target.suffix])
    formats.check(plan, target)


def _prove(plan: Plan, form: Format) -> None:
    """Errors: V2xx."""
    if form.runs_with_own_slots:
        verify(plan, plan.protocol.slots, per_chunk=True)
    else:
        verify(plan)
