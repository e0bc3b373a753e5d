"""Files: loads plans from files, proves files, and saves plans: as sley's own file, or proven for
the runtime that will read them."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sley import formats
from sley.errors import Diagnostic, Place, SleyError, without_inner_frames
from sley.errors.compiler import C309
from sley.errors.formats import F440
from sley.errors.verifier import V203
from sley.formats import chakra, kernel_files, plan_file
from sley.formats.format import Content, Format, RuntimeFormat, Target, by_suffix, keywords
from sley.ir.one_sided import OneSidedPlan
from sley.ir.plan import Plan, check_kind
from sley.verification import Proof, verify
from sley.verification.flagged import kernel_waits

FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        f.suffix: f
        for f in (plan_file.FORMAT, *formats.FORMATS.values(), *kernel_files.FORMATS, chakra.FORMAT)
    }
)
"""The formats of plans, by the suffix of a file's name."""


@without_inner_frames
def load(path: str | os.PathLike[str], **settings: Any) -> Plan | OneSidedPlan:
    """The plan of a file, as `sley.formats.read` reads it; a one-sided one of an MSCCL++
    execution plan. A plan has no range of sizes: the result of `read` has that of the file, as
    `sizes(target)`. Errors: those of `read`."""
    return formats.read(path, **settings).plan


@without_inner_frames
def save(
    plan: Plan, path: str | os.PathLike[str], *, target: str | Target | None = None, **settings: Any
) -> None:
    """Writes a plan to sley's own file, which `load` reads as an equal plan; or proves it, and
    writes it as MSCCL XML, as an execution plan of MSCCL++, as kernels, or as Chakra traces: what a
    runtime makes of the file is proven too. If anything fails, an existing file is not changed.

    Once a chunk fills a tile, the kernels that run XML send a message of several chunks chunk by
    chunk, each in its own slot, and a connection has the protocol's slots. A plan that was not
    compiled for this (`per_chunk`) may hang there, and is refused.

    path: ends in .plan for sley's own file, in .xml, in .json for MSCCL++, in .cu for kernels for
        GPUs, in .cpp for kernels for CPUs, or in .et for ASTRA-sim, which stands for a file of each
        rank: a.0.et for a.et.
    target: for XML: executor (the default), rccl or msccl; for .json: mscclpp, or a version of it,
        as mscclpp@v0.9.0.
    settings: settings of the format; None for the default. sley's own file has recipe
        (`sley.formats.plan_file.write`), XML has name, min_bytes, max_bytes, threads
        (`sley.formats.msccl_xml.write`), execution plans have these, zero_copy and ranks_per_node
        (`sley.formats.mscclpp.raw_plan`), kernels have name, threads, dtype, reduce_op
        (`sley.formats.kernel_files.write`), traces have size and tile_bytes
        (`sley.formats.chakra.write`).
    Errors: C307, V2xx, F4xx, C309 for settings that the format doesn't have, for kernels K521,
    R504, R514, and for traces S702.
    """
    formats.write_files(render(plan, path, target=target, **settings)[0])


def render(
    plan: Plan, path: str | os.PathLike[str], *, target: str | Target | None = None, **settings: Any
) -> tuple[dict[Path, Content], tuple[Proof, ...]]:
    """The content of the files that `save` writes for `path`, and its proofs: as the target
    executes it, none without a target. Errors: those of `save`, except F461."""
    form = by_suffix(path, FORMATS)
    if isinstance(form, RuntimeFormat):
        chosen = formats.target_named(target or form.targets[0])
        given = {"target": chosen, **form.settings_of(path, form.settings, settings)}
    else:
        given = form.settings_of(path, form.settings, {**settings, "target": target})
    if form.is_own:
        check_kind(plan)
    else:
        plan = _prove(plan, form)
    made = form.make(plan, **given)
    proofs = tuple[Proof, ...]()
    if isinstance(form, RuntimeFormat):
        settings = {"collective": plan.collective, "file": str(path)}
        proofs = _prove_executions(form, chosen, made, settings).proofs
    return form.contents(path, form.text(made)), proofs


@dataclass(frozen=True)
class FileProof:
    """The proof of a file: a proof for each way in which a target executes it, or one of what the
    file means.

    target: None for what the file means.
    notes: remarks on the file.
    """

    target: Target | None
    proofs: tuple[Proof, ...]
    notes: tuple[Diagnostic, ...]

    def __str__(self) -> str:
        return "\n".join(f"{proof}\n{proof.holds}" for proof in self.proofs)


@without_inner_frames
def verify_file(
    path: str | os.PathLike[str], target: str | Target | None = None, **settings: Any
) -> FileProof:
    """Proves a file as a target reads and executes it: every way in which it does. Without a target
    it proves what the file means, which a runtime may execute otherwise, or refuse.

    target: by default the newest mscclpp for an execution plan, which has a meaning only for its
        executor, and none for XML. mscclpp@v0.9.0 names a version.
    settings: those of `load`, and with a target those of the format's `executions`; None for the
        default.
    A plan file is proven like a plan, and within the target's limits.
    Errors: those of `sley.formats.form_of`, F440 for a target that doesn't read it,
        C309 for settings that the format, or a proof without a target, doesn't have, those of
        `load` and `executions`, V2xx.
    """
    if formats.is_own(path):
        plan = formats.read(path, **settings).message_plan
        if target is not None:
            check(plan, target)
        return FileProof(None, (verify(plan),), ())
    form = formats.form_of(path)
    # A one-sided plan has no meaning but that which its target gives it.
    target = target or (form.targets[0] if form.one_sided else None)
    if target is None:
        for word in set(keywords(form.executions)) - set(keywords(form.read)):
            if settings.get(word) is not None:
                names = ", ".join(form.target_names)
                raise C309.error(
                    at=Place(str(path)),
                    expected=f"a target, whose calls {word} is about",
                    found=f"{word}={settings[word]!r} without a target",
                    remedy=f"Name a target: {names}.",
                )
        found = formats.read(path, **settings)
        try:
            return FileProof(None, (verify(found.plan),), found.notes)
        except SleyError as error:
            raise _naming_targets(error, path, form, settings) from error
    target = formats.target_named(target)
    if target not in form.targets:
        names = ", ".join(form.target_names)
        again = f"sley compile {path} --target {target} -o NEW{target.suffix}"
        raise F440.error(
            at=Place(str(path)),
            expected=f"a target that reads {form.name}: {names}",
            found=f"{target}, which reads {target.suffix}",
            remedy=f"Prove the file for {names}"
            + ("." if form.one_sided else f", or write its plan for {target}: {again}."),
        )
    settings = form.settings_of(path, keywords(form.executions), settings)
    return _prove_executions(form, target, Path(path), settings)


def _naming_targets(
    error: SleyError, path: str | os.PathLike[str], form: RuntimeFormat, settings: dict[str, Any]
) -> SleyError:
    """The refusal of what a file means. A hang names the targets for which the file is proven, as
    it may be for the sizes of their calls: then every message takes one slot."""
    if error.code != V203.code:
        return error
    proves = functools.partial(verify_file, path, **settings)
    names = [one.name for one in form.targets if not _refused(proves, one)]
    if not names:
        return error
    remedy = (
        f"Prove the file for its runtime: sley verify {path} --target {names[0]}. With the sizes "
        f"of its calls it is proven for {', '.join(names)}."
    )
    return SleyError([replace(one, remedy=remedy) for one in error.diagnostics])


def _prove_executions(
    form: RuntimeFormat, target: Target, source: Any, settings: dict[str, Any]
) -> FileProof:
    """The proof of a file, or of what is written to one, as a target executes it."""
    found = form.executions(source, target, **settings)
    proofs = []
    for way in found.executions:
        formats.refuse_varying_counts(way.plan.collective)
        proof = verify(
            way.plan,
            way.slots,
            per_chunk=way.per_chunk,
            one_slot_bytes=way.one_slot_bytes,
            flagged=True,
        )
        proofs.append(proof.under(way.conditions))
    return FileProof(target, tuple(proofs), found.notes)


def check(plan: Plan, target: str | Target) -> None:
    """Proves a plan for a target's connections, and checks the target's limits. Errors: C307,
    V2xx, F4xx."""
    target = formats.target_named(target)
    formats.check(_prove(plan, FORMATS[target.suffix]), target)


def runtimes(plan: Plan) -> tuple[str, ...]:
    """The names of the targets that can run a plan as it is, in their newest versions."""
    found: list[str] = []
    for form in formats.FORMATS.values():
        names = [name for name in form.target_names if not _refused(formats.check, plan, name)]
        if names and not _refused(_prove, plan, form):
            found += names
    return tuple(found)


def why_none(plan: Plan) -> str:
    """What is wrong with a plan that no runtime can run, in a few words: for the first target."""
    for form in formats.FORMATS.values():
        for name in form.target_names:
            refused = _refused(formats.check, plan, name) or _refused(_prove, plan, form)
            if refused is not None:
                return refused.diagnostics[0].found
    return ""


def _refused(check: Callable[..., object], *given: object) -> SleyError | None:
    try:
        check(*given)
    except SleyError as error:
        return error
    return None


def _prove(plan: Plan, form: Format) -> Plan:
    """The plan, proven for the connections of a format's runtimes, with the waits that their
    kernels don't add (docs/machine.md, "Order, races and hangs"). Errors: C307, F437, V2xx."""
    check_kind(plan)
    formats.refuse_varying_counts(plan.collective)
    if not form.runs_with_own_slots:
        verify(plan)
        return plan
    verify(plan, plan.protocol.slots, per_chunk=True)
    return replace(plan, waits=kernel_waits(plan))
