"""Files of arrays: what is written is read back, and hostile files end in a ValueError."""

import os
import zipfile

import numpy as np
import pytest

from sley.tuning.arrays import MOST_BYTES, read_arrays, write_arrays


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file.npz"


def test_facts_and_arrays_are_read_back_as_they_were(path):
    write_arrays(path, {"name": "é", "count": 2}, {"a/b": np.arange(3), "c": np.array(0.5)})
    facts, arrays = read_arrays(path)
    assert facts == {"name": "é", "count": 2}
    assert {name: array.tolist() for name, array in arrays.items()} == {"a/b": [0, 1, 2], "c": 0.5}


def test_a_pickle_is_never_loaded(path):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was loaded",))

    np.savez(path, facts=np.array(Trap(), object))
    with pytest.raises(ValueError, match="shape"):
        read_arrays(path)


def test_sizes_that_a_file_claims_are_not_believed(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a.npy", bytes(MOST_BYTES + 1))  # 64 KB in the file
    with pytest.raises(ValueError, match="more than"):
        read_arrays(path)
    fields = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,)}"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a.npy", (b"\x93NUMPY\x01\x00v\x00" + fields).ljust(127) + b"\n")
    with pytest.raises(ValueError, match="with shape"):
        read_arrays(path)


def test_a_pipe_is_refused_and_not_waited_for(path):
    os.mkfifo(path)
    with pytest.raises(ValueError, match="other than a file"):
        read_arrays(path)


def test_what_is_no_file_of_arrays_is_refused(path):
    write_arrays(path, {}, {})
    good = path.read_bytes()
    for content in (b"", b"\x80\x04.", good[:60], good.replace(b"facts", b"fakts")):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"."):  # a reason is given
            read_arrays(path)
    np.savez(path, facts=np.array("[1]"))
    with pytest.raises(ValueError, match="object of JSON"):
        read_arrays(path)
