"""What `sley exec` makes ahead for ranks without Python, for the stand-in for NVIDIA's driver."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from sley.communicator.link_tables import link_tables
from sley.engine import native
from sley.engine.devices import ThreadsDevice
from sley.engine.kernels import Platform, messages_source
from sley.engine.kernels.prebuilt import DIGESTS, digests_of, file_of
from sley.engine.types import DATA_TYPES
from sley.ir.words import ReduceOp
from support.devices.device_calls import module_of
from support.devices.native_programs import TESTS


def stand_in(folder: Path) -> dict[str, str]:
    """The variables of processes over the stand-in, which is put into a folder."""
    sys.path.insert(0, str(TESTS.parent / "engine" / "devices"))
    try:
        import fake_driver
    finally:
        sys.path.pop(0)
    return fake_driver.environment(folder)


def write_tables(
    key: native.LinkKey,
    folder: Path,
    types: Sequence[str],
    ops: Sequence[ReduceOp],
    flags: Sequence[str] = (),
) -> None:
    """Writes the tables for a key, and kernels that the stand-in runs, into a folder. flags: of the
    compiler, for the kernel of messages."""
    messages = messages_source(Platform.CPU)

    def name_of(text: str) -> str:
        path = folder / file_of(text)
        if not path.exists():
            of_messages = ("Messages", ThreadsDevice(flags=["-O0", *flags]))
            path.write_bytes(module_of(text, *(of_messages if text == messages else ())))
        return path.name

    kinds = [DATA_TYPES[name] for name in types]
    made = link_tables(key, types=kinds, ops=ops, platform=Platform.CPU, name_of=name_of)
    (folder / key.file_name()).write_bytes(made.to_bytes())
    code = {path.name: path.read_bytes() for path in folder.glob("*.fatbin")}
    (folder / DIGESTS).write_text(digests_of("", code, 0))
