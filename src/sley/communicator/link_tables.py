"""Link tables: what a communicator on devices needs to open without Python, made ahead as a file.

A file has the plans, and the names of their prebuilt kernels, for a `LinkKey`. Its plans are right
whether or not a rank's call is in place, since in NCCL only the rank itself knows that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from importlib.metadata import version
from itertools import permutations, product, starmap

from sley.communicator.call_table import CallTable, programs_of
from sley.communicator.calls import ready_kind
from sley.communicator.rendezvous.hosts import Hosts
from sley.communicator.selection import plan_cache
from sley.communicator.selection.device_rules import DeviceLimits
from sley.communicator.selection.kinds import BARRIER, CALLS
from sley.communicator.selection.plans import Plans
from sley.engine import native
from sley.engine.devices.cuda import CudaDevice
from sley.engine.devices.link_layout import layout_of
from sley.engine.devices.settings import Settings
from sley.engine.devices.windows import single_messages
from sley.engine.kernels import Engine, Kernels, Platform, Variant, messages_source
from sley.engine.kernels.prebuilt import file_of
from sley.engine.types import DATA_TYPES, DataType
from sley.errors import Place, SleyError, disk_cache, reason_of
from sley.errors.selection import N655
from sley.ir.words import ReduceOp
from sley.verification.scales import prove_scales

TYPES = tuple(own for name, own in DATA_TYPES.items() if name != "int16")
"""NCCL's types."""

OPS = (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.AVG)
"""NCCL's operations. Averages of floats, and PreMulSum, are sums of inputs times a factor."""

_LEAST_BYTES = 1
"""Of a call. What plans for calls of any size need of scratch for it, ranks have from the start."""


def link_tables(
    key: native.LinkKey,
    *,
    types: Sequence[DataType] = TYPES,
    ops: Sequence[ReduceOp] = OPS,
    platform: Platform = Platform.CUDA,
    name_of: Callable[[str], str] = file_of,
) -> native.LinkTables:
    """The tables for a key. types, ops: those that have kernels. name_of: the
    name of the file with a text's kernels. Errors: those of plans and of layouts."""
    ranks = key.ranks
    limits = DeviceLimits(
        has_lines=key.has_lines, is_one_device=key.is_one_device, max_blocks=key.most_blocks
    )
    plans = Plans(Hosts.of([""] * ranks), devices=limits, same_bits=key.same_bits)
    table = CallTable.of(plans, ranks, lambda kind: () if kind == BARRIER else (None,))
    settings = Settings()
    layout = layout_of(
        tuple(table.plans),
        tuple(single_messages(plan, {}, is_one_process=False) for plan in table.plans),
        settings,
        tuple([0] * ranks if key.is_one_device else range(ranks)),
        tuple(table.largest_bytes),
    )
    return native.LinkTables(
        key,
        version("sley"),
        settings.most_threads,
        [(plan.name, own) for plan, own in zip(table.plans, layout.tables, strict=True)],
        layout.boxes.size.tolist(),
        scratch_bytes(table, layout.tables, ranks),
        [(row[0], ready_kind(row[0]), row[2], *table.ranges(row)) for row in table.rows],
        list(dict.fromkeys(_kernels(table, layout.kernels, types, ops, platform, name_of))),
        name_of(messages_source(platform, settings.most_threads)),
    )


def scratch_bytes(
    table: CallTable,
    tables: Sequence[native.PlanTables],
    ranks: int,
    users: Collection[int] = (),
) -> int:
    """The scratch that a rank needs in calls of bounded size, at most. users: the numbers of the
    user's plans, which don't count."""
    most = 0
    for key in table.rows:
        parts = ranks if CALLS[key[0]].has_parts else 1
        ends, numbers = table.ranges(key)
        for end, number in zip([*ends, _LEAST_BYTES], numbers, strict=True):
            if number not in users:
                most = max(most, *tables[number].scratch_bytes(1, end // parts))
    return most


def _kernels(
    table: CallTable,
    kernels: Sequence[Kernels],
    types: Sequence[DataType],
    ops: Sequence[ReduceOp],
    platform: Platform,
    name_of: Callable[[str], str],
) -> Iterator[tuple[int, int, int, bool, str]]:
    """The prebuilt kernels of each plan, which serve one GPU and several."""
    for key in table.rows:
        _, numbers = table.ranges(key)
        if CALLS[key[0]].reduces:
            for number in numbers:
                prove_scales(table.plans[number])
        for number, (dtype, op) in product(numbers, programs_of(key[0], types, ops)):
            own = kernels[number]
            scales = op is ReduceOp.AVG and dtype.is_float
            variant = Variant(platform, dtype.number, ReduceOp.SUM if scales else op, scales=scales)
            text = own.source(Engine.INTERPRETED, variant)
            yield number, dtype.number, int(variant.reduce_op), scales, name_of(text)


def machine_keys(ranks: int, *, same_bits: bool) -> list[native.LinkKey]:
    """The keys of communicators of so many ranks on this machine's GPUs, each with as many ranks as
    the others, or with all where there is only one. same_bits: whether all sums have one order.
    Errors: K501, K510."""
    gpus = range(CudaDevice.count())
    multiprocessors = min(map(native.CudaDevice.multiprocessors_of, gpus))
    blocks = max(1, min(multiprocessors // -(-ranks // len(gpus)), DeviceLimits.max_blocks))
    if ranks == 1 or len(gpus) == 1:
        return [native.LinkKey(ranks, True, True, blocks, same_bits)]
    pairs = starmap(native.CudaDevice.is_line_carried, permutations(gpus, 2))
    # If only some links carry lines, ranks may be on GPUs with these alone.
    return [native.LinkKey(ranks, way, False, blocks, same_bits) for way in {*pairs}]


def section() -> str:
    """The folder of the files in sley's cache: one for each state of sley. Errors: N655."""
    state = plan_cache.state_of(*plan_cache.MAKERS, "communicator", "engine")
    found = f"tables-{hashlib.sha256(state.encode()).hexdigest()[:16]}"
    if problem := plan_cache.refusal(found):
        raise SleyError([problem])
    return found


def read(key: native.LinkKey, section: str) -> native.LinkTables | None:
    """The tables of a key, from a folder of the cache; None if they aren't there."""
    with suppress(OSError, SleyError):
        file = disk_cache.folder(section) / key.file_name()
        return native.LinkTables.from_bytes(file.read_bytes())
    return None


def write(key: native.LinkKey, section: str) -> native.LinkTables:
    """The tables of a key, made, and put into a folder of the cache. Errors: as of
    `link_tables`; N655 if the cache can't be written."""
    made = link_tables(key)
    try:
        disk_cache.put(section, key.file_name(), made.to_bytes())
    except OSError as error:
        raise N655.error(
            at=Place(str(disk_cache.folder(section))),
            expected="a folder that this user can write to",
            found=reason_of(error),
        ) from error
    return made
