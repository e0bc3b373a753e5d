"""Messages between the launcher and its workers: pickled values over a local socket.

A message may carry one descriptor. Both ends are this package in processes that the launcher
started itself, so the pickles come from nobody else.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
from typing import Any

_HEADER = struct.Struct("<q")


def send_message(sock: socket.socket, value: Any, fd: int | None = None) -> None:
    """Send `value`, and a duplicate of descriptor `fd`; OSError when the other end is gone."""
    data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    header = _HEADER.pack(len(data))
    if fd is None:
        sock.sendall(header)
    else:
        socket.send_fds(sock, [header], [fd])
    sock.sendall(data)


def receive_message(sock: socket.socket) -> tuple[Any, int | None]:
    """The next value and its descriptor, if it has one; EOFError when the other end is gone."""
    try:
        header, fds, _, _ = socket.recv_fds(sock, _HEADER.size, 1)
        fd = fds[0] if fds else None
        header += _receive_exactly(sock, _HEADER.size - len(header)) if header else b""
        if not header:
            raise EOFError
        return pickle.loads(_receive_exactly(sock, _HEADER.unpack(header)[0])), fd
    except ConnectionError as error:
        raise EOFError from error


def _receive_exactly(sock: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view, got = memoryview(data), 0
    while got < size:
        n = sock.recv_into(view[got:])
        if n == 0:
            raise EOFError
        got += n
    return data


def close_descriptor(fd: int | None) -> None:
    """Close `fd` if there is one."""
    if fd is not None:
        os.close(fd)
