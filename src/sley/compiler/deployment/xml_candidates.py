"""XML candidates: files of MSCCL XML as msccl-executor-nccl, RCCL and msccl read them, before any
call."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sley.compiler.deployment.candidates import (
    CandidateFile,
    PlaceSupport,
    prove,
    unused,
    why_unused,
)
from sley.compiler.deployment.consequences import XML_CONSEQUENCES
from sley.compiler.deployment.runtimes import Grid, Runtime
from sley.compiler.deployment.xml_head import XmlHead, read_head, refuse
from sley.errors import Place, Rule
from sley.errors.deployment import F504, F506, F515
from sley.formats.msccl_xml.targets import COLLECTIVE_NAMES, XmlTarget
from sley.formats.msccl_xml.targets import TARGETS as XML_TARGETS
from sley.ir.sizes import SizeRange

_ONLY_KNOWN = ("alltoallv", "send", "recv")
"""Names that msccl-executor-nccl and RCCL know, of collectives that sley doesn't have."""


def read_xml(path: Path, runtime: Runtime) -> CandidateFile:
    """A file of MSCCL XML. Errors: F504 or F506 for one whose first tag can't be read, F506 for one
    that is left out."""
    rule = F504 if runtime.stops else F506
    head, target = read_head(path, rule), XML_TARGETS[runtime.target]
    msccl = not target.reads_both_places
    collective = _collective(head, target, rule)
    ranks, chunks = head.number("ngpus"), head.number("nchunksperloop")
    channels, limit = head.number("nchannels"), target.channels
    least = head.number("minBytes", 0 if msccl else None)
    most = head.number("maxBytes", target.default_max_bytes)
    if msccl:
        head.text("name")
    inside = head.number("inplace", 0 if msccl else None) != 0
    outside = not inside if msccl else head.number("outofplace") != 0
    if channels > limit and target.name != "executor":
        refuse(str(path), F506, f"at most {limit} channels", f"nchannels={channels}")
    found = CandidateFile(
        path=path,
        collective=collective,
        plan_name=head.attributes.get("name", path.stem),
        ranks=ranks,
        grid=Grid(ranks),
        places=PlaceSupport(outside, inside),
        sizes=SizeRange(least, _last_size(most, target)),
        multiple=max(abs(chunks), 1),
    )
    if chunks == 0:
        fault = F515.diagnostic(
            at=Place(str(path)), expected="nchunksperloop of at least 1", found="0"
        )
        return replace(found, faults=(fault,))
    reason = why_unused(found)
    if collective in _ONLY_KNOWN and reason is None:
        reason = unused(found, "a collective that calls ask for", collective)
    if reason is None and not _has_multiple(found):
        reason = unused(found, f"a size that is a multiple of {found.multiple}", str(found.sizes))
    # A file with another suffix is read by the runtime, but sley knows formats by their suffix.
    is_known = collective in COLLECTIVE_NAMES.values() and path.suffix.lower() == runtime.suffix
    if reason is not None or not is_known:
        return replace(found, unused=reason)
    return prove(found, runtime, XML_CONSEQUENCES)


def _has_multiple(found: CandidateFile) -> bool:
    """Whether the chunks of a file divide a size of its range."""
    least, most = max(found.sizes.begin_bytes, 1), found.sizes.end_bytes
    return most is None or -(-least // found.multiple) * found.multiple <= most


def _last_size(most: int, target: XmlTarget) -> int | None:
    """The last size of a range, None for no limit."""
    if most == target.no_limit_bytes:
        return None
    return most if target.max_is_inclusive else most - 1


def _collective(head: XmlHead, target: XmlTarget, rule: Rule) -> str:
    """The collective of a file. Errors: `rule` if the runtime has none of this name."""
    word = head.text("coll")
    known = {theirs: own for own, theirs in target.collectives.items()}
    extra = _ONLY_KNOWN if target.custom_collective is None else (target.custom_collective,)
    if word in extra:
        return word
    if word not in known:
        refuse(head.file, rule, f"coll to be one of {', '.join((*known, *extra))}", word)
    return known[word]
