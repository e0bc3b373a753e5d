"""Arrays: .npz files of NumPy with arrays and facts, for sweeps and checkpoints.

A file may come from anywhere: no pickle is loaded, and no size that it names is believed.
"""

from __future__ import annotations

import io
import json
import math
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sley.formats import write_file

MOST_BYTES = 64 << 20
"""Bound on a file and on its arrays together; a sweep has some kilobytes, and a recurrent policy of
64 hidden units about 2 MB."""

_FACTS = "facts"
_MOST_LENGTH = 200


def write_arrays(
    path: str | os.PathLike[str], facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> None:
    """Writes a file. facts: what JSON can express. arrays: by names other than "facts". Errors:
    F461."""
    content = io.BytesIO()
    columns: dict[str, Any] = {_FACTS: np.array(json.dumps(facts)), **arrays}
    np.savez_compressed(content, **columns)
    write_file(path, content.getvalue())


def read_arrays(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The facts and the arrays of a file. Raises ValueError, which tells why, for any other file
    than `write_arrays` makes."""
    try:
        arrays = _arrays(Path(path))
        facts = json.loads(str(arrays.pop(_FACTS)))
    except Exception as error:
        # A damaged file raises many kinds: OSError, BadZipFile, zlib.error, EOFError, ValueError of
        # NumPy (pickles, sizes), KeyError, UnicodeDecodeError, RecursionError, MemoryError.
        raise ValueError(str(error)[:_MOST_LENGTH] or type(error).__name__) from error
    if not isinstance(facts, dict):
        raise ValueError("facts that are no object of JSON")
    return facts, arrays


def columns_of(
    arrays: Mapping[str, NDArray[Any]], kinds: Mapping[str, type]
) -> dict[str, NDArray[Any]]:
    """The arrays with these names and kinds of elements. Raises ValueError if one is missing, or of
    another kind: NumPy would round it."""
    for name, kind in kinds.items():
        if name not in arrays or arrays[name].dtype != kind:
            raise ValueError(f"no array {name} of {np.dtype(kind)}")
    return {name: arrays[name] for name in kinds}


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a file. A directory that names more bytes than MOST_BYTES is refused, and no
    member has more than the directory says."""
    if path.exists() and not path.is_file():  # a FIFO would never end
        raise ValueError("something other than a file")
    with path.open("rb") as stream:
        content = stream.read(MOST_BYTES + 1)
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        if len(content) + sum(one.file_size for one in file.infolist()) > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES} bytes")
        for one in file.infolist():
            _check_member(file, one)
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def _check_member(file: zipfile.ZipFile, one: zipfile.ZipInfo) -> None:
    """Raises ValueError for an array whose header claims more bytes than there are: NumPy would
    allocate them."""
    with file.open(one) as member:
        version = np.lib.format.read_magic(member)
        if version != (1, 0):
            raise ValueError(f"arrays of version {version}")
        shape, _, kind = np.lib.format.read_array_header_1_0(member)
        if kind.hasobject or math.prod(shape) * kind.itemsize > one.file_size:
            raise ValueError(f"the array {one.filename} of {kind} with shape {shape}")
