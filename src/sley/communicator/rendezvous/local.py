"""Local: descriptors exchanged among the ranks of a host, over local sockets.

The first rank of the host, its leader, listens on a name in the abstract namespace, which is in
no file system and ends with the process. Each message is one packet: a rank, a proof that the
sender knows the job's secret, and the rank's descriptors. Every member sends its own and gets
those of the other ranks. The leader closes connections of other users, and those without a valid
proof.
"""

from __future__ import annotations

import array
import contextlib
import errno
import hmac
import json
import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from uuid import uuid4

from sley.communicator.rendezvous.gather import GRACE_S, Deadline, missing_error
from sley.communicator.rendezvous.hosts import Description
from sley.errors import SleyError, diagnostic_from_json, telling
from sley.errors.calls import N620
from sley.errors.communicator import N610

_MOST_DESCRIPTORS = 64
"""How many descriptors a rank may pass to others; the kernel passes 253 at once."""

_HEADER = struct.Struct("<i32s")
_GAVE_UP = -1
"""Instead of a rank: the leader gives up; its error follows."""

_MESSAGE_BYTES = 16384
_CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid
_LOOK_S = 0.2
"""How often the leader looks whether the awaited ranks still live."""

_PAUSE_S = 0.002
_MOST_UNPROVEN = 256
"""How many connections may be without a proof; for one more, the oldest is closed."""


@dataclass
class Peers:
    """The other ranks of the host. sockets: to the leader, or from it to each member. fds: this
    process' duplicates of each other rank's descriptors."""

    sockets: dict[int, socket.socket] = field(default_factory=dict)
    fds: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def close(self) -> None:
        """Closes all of them. Closing twice does nothing."""
        for sock in self.sockets.values():
            sock.close()
        self.sockets.clear()
        while self.fds:
            close_all(self.fds.popitem()[1])


@dataclass(frozen=True)
class Host:
    """This host, as one of its ranks sees it. ranks: all of the host, ascending; the first is the
    leader. descriptions: of all ranks of the communicator. what: the communicator, for messages."""

    rank: int
    ranks: tuple[int, ...]
    descriptions: Sequence[Description]
    secret: bytes
    what: str

    @property
    def leader(self) -> int:
        return self.ranks[0]

    def proof(self, src: int, dst: int) -> bytes:
        """The proof that rank `src` sends rank `dst`."""
        return hmac.digest(self.secret, f"{src} to {dst}".encode(), "sha256")

    def describe(self, rank: int) -> str:
        return f"rank {rank} ({self.descriptions[rank].process})"


_NEEDED: Mapping[int, str] = {
    errno.EMFILE: "this process' limit of descriptors is reached",
    errno.ENFILE: "the system's limit of files is reached",
    errno.ENOBUFS: "the system has no memory for sockets",
    errno.ENOMEM: "the system has no memory for sockets",
}


@contextlib.contextmanager
def _descriptor_errors() -> Iterator[None]:
    """Turns errors of the system into N610."""
    try:
        yield
    except OSError as error:
        found = _NEEDED.get(error.errno or 0, error.strerror or str(error))
        raise N610.error(expected="a local socket and its descriptors", found=found) from error


def listen() -> socket.socket:
    """A socket that listens on a new name in the abstract namespace. Errors: N610."""
    with _descriptor_errors():
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.bind(f"\0sley-{uuid4().hex}".encode())
            sock.listen(socket.SOMAXCONN)
            sock.setblocking(False)
        except OSError:
            sock.close()
            raise
    return sock


def spare_descriptor() -> socket.socket:
    """A descriptor to close when the limit is reached: the store may need one to report that.
    Errors: N610."""
    with _descriptor_errors():
        return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def exchange_descriptors(
    host: Host, listener: socket.socket, fds: Sequence[int], deadline: Deadline
) -> Peers:
    """Exchanges descriptors among the ranks of the host, which all call it.

    fds: this rank's, at most 64; the caller keeps owning them. Errors: N601, N620, N610.
    """
    peers = Peers()
    try:
        if host.rank != host.leader:
            _follow(host, fds, deadline, peers)
        elif len(host.ranks) > 1:
            _Leader(host, listener, tuple(fds), deadline, peers).run()
    except BaseException:
        peers.close()
        raise
    return peers


class _Leader:
    """The leader's part. peers: filled as members connect, so that they are closed on errors."""

    def __init__(
        self,
        host: Host,
        listener: socket.socket,
        fds: tuple[int, ...],
        deadline: Deadline,
        peers: Peers,
    ) -> None:
        self.host, self.listener, self.fds = host, listener, fds
        self.deadline, self.peers = deadline, peers
        self.unproven: list[socket.socket] = []  # the oldest first

    def run(self) -> None:
        try:
            with telling(self._give_up), _descriptor_errors():
                while waiting := self._absent():
                    ended = self._serve(self.deadline)
                    # Each look reads files of the system; one a message would grow with the square
                    # of the ranks.
                    if self._absent() == waiting:
                        ended += [r for r in waiting if self.host.descriptions[r].process.is_gone()]
                    if ended:
                        raise _ended_error(self.host, ended[0])
                    if not self.deadline.left_s:
                        raise _absent_error(self.host, waiting)
                for member in self.host.ranks[1:]:
                    self._tell(member, self.peers.sockets[member])
        finally:
            for sock in self.unproven:
                sock.close()

    def _absent(self) -> list[int]:
        """The members that have not connected yet."""
        return [rank for rank in self.host.ranks[1:] if rank not in self.peers.sockets]

    def _serve(self, deadline: Deadline) -> list[int]:
        """Handles the next connections and messages; returns the members that have ended."""
        members = {sock: rank for rank, sock in self.peers.sockets.items()}
        ready = wait([self.listener, *self.unproven, *members], min(_LOOK_S, deadline.left_s))
        if self.listener in ready:
            self._accept()
        for sock in [sock for sock in self.unproven if sock in ready]:
            self.unproven.remove(sock)
            self._admit(sock)
        # A member sends one message only, so now its socket becomes ready at its end.
        return [rank for sock, rank in members.items() if sock in ready]

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            sock, _ = self.listener.accept()
            sock.setblocking(False)
            if _uid(sock) != os.geteuid():
                sock.close()
                return
            self.unproven.append(sock)
            if len(self.unproven) > _MOST_UNPROVEN:
                self.unproven.pop(0).close()

    def _admit(self, sock: socket.socket) -> None:
        """Admits a connection whose message carries a valid proof; closes any other."""
        with contextlib.suppress(ConnectionError):
            message = _receive(sock)
            src = message.rank
            is_awaited = src in self.host.ranks[1:] and src not in self.peers.sockets
            if is_awaited and message.proves(self.host.proof(src, self.host.rank)):
                self.peers.sockets[src], self.peers.fds[src] = sock, message.fds
                message.check()
                return
            close_all(message.fds)
        sock.close()

    def _tell(self, member: int, sock: socket.socket) -> None:
        """Sends a member the descriptors of all other ranks."""
        for rank in self.host.ranks:
            if rank == member:
                continue
            proof = self.host.proof(self.host.rank, member)
            fds = self.fds if rank == self.host.rank else self.peers.fds[rank]
            try:
                _send_all(sock, _HEADER.pack(rank, proof), fds, self.deadline)
            except ConnectionError:
                raise _ended_error(self.host, member) from None
            except TimeoutError:
                raise _absent_error(self.host, [member]) from None

    def _give_up(self, error: SleyError) -> None:
        """Sends the error to the members that have connected, and for GRACE_S to those that still
        do."""
        words = json.dumps(error.diagnostics[0].to_json()).encode()
        end = Deadline(min(self.deadline.end, time.monotonic() + GRACE_S))
        notified: set[int] = set()
        while True:
            for member in self.peers.sockets.keys() - notified:
                notified.add(member)
                header = _HEADER.pack(_GAVE_UP, self.host.proof(self.host.rank, member))
                with contextlib.suppress(OSError):
                    _send(self.peers.sockets[member], header + words)
            gone = [self.host.descriptions[rank].process.is_gone() for rank in self._absent()]
            if all(gone) or not end.left_s:
                return
            with contextlib.suppress(OSError):
                self._serve(end)


@_descriptor_errors()
def _follow(host: Host, fds: Sequence[int], deadline: Deadline, peers: Peers) -> None:
    """The part of all ranks but the leader."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peers.sockets[host.leader] = sock
    sock.setblocking(False)
    name = bytes.fromhex(host.descriptions[host.leader].listener)
    try:
        while not _connect(sock, name):
            if not deadline.left_s:
                raise TimeoutError
            time.sleep(_PAUSE_S)
        if _uid(sock) != os.geteuid():
            raise ConnectionRefusedError  # not a rank of the job, so the leader is gone
        header = _HEADER.pack(host.rank, host.proof(host.rank, host.leader))
        _send_all(sock, header, fds, deadline)
        # The leader may wait until our deadline, and then sends its error.
        patience = Deadline(deadline.end + GRACE_S)
        while len(peers.fds) < len(host.ranks) - 1:
            if wait([sock], min(_LOOK_S, patience.left_s)):
                _take(host, sock, peers)
            elif not patience.left_s:
                raise TimeoutError
    except ConnectionError:
        raise _ended_error(host, host.leader) from None
    except TimeoutError:
        raise _absent_error(host, [host.leader]) from None


def _take(host: Host, sock: socket.socket, peers: Peers) -> None:
    """Handles the next message of the leader."""
    message = _receive(sock)
    rank = message.rank
    if not message.proves(host.proof(host.leader, host.rank)):
        close_all(message.fds)
        raise ConnectionRefusedError
    if rank == _GAVE_UP:
        raise SleyError([diagnostic_from_json(json.loads(message.rest))])
    peers.fds[rank] = message.fds
    message.check()


@dataclass(frozen=True)
class _Message:
    """A packet. rest: what follows the header. is_cut: whether the kernel dropped descriptors."""

    rank: int
    proof: bytes
    rest: bytes
    fds: tuple[int, ...]
    is_cut: bool

    def proves(self, proof: bytes) -> bool:
        return hmac.compare_digest(self.proof, proof)

    def check(self) -> None:
        """Raises OSError if descriptors are missing."""
        if self.is_cut:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def close_all(fds: Sequence[int]) -> None:
    """Closes descriptors."""
    for fd in fds:
        os.close(fd)


def _connect(sock: socket.socket, name: bytes) -> bool:
    """Whether it is connected now; False while the leader's backlog is full."""
    try:
        sock.connect(name)
    except BlockingIOError:
        return False
    return True


def _send_all(sock: socket.socket, data: bytes, fds: Sequence[int], deadline: Deadline) -> None:
    """Sends a message, waiting until there is room. Errors: TimeoutError, ConnectionError."""
    while not _send(sock, data, fds):
        if not deadline.left_s:
            raise TimeoutError
        time.sleep(_PAUSE_S)


def _send(sock: socket.socket, data: bytes, fds: Sequence[int] = ()) -> bool:
    """Sends a message; False if there is no room yet."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    try:
        sock.sendmsg([data], rights, socket.MSG_NOSIGNAL)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno == errno.ETOOMANYREFS:  # descriptors in flight count, too
            return False
        raise
    return True


def _receive(sock: socket.socket) -> _Message:
    """The next message. Errors: ConnectionError at the end, and for an invalid message."""
    fds = array.array("i")
    # Not socket.recv_fds, which in Python 3.11 ignores the flags.
    room = socket.CMSG_SPACE(_MOST_DESCRIPTORS * fds.itemsize)
    data, parts, flags, _ = sock.recvmsg(_MESSAGE_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, part in parts:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(part[: len(part) - len(part) % fds.itemsize])
    if len(data) < _HEADER.size:
        close_all(fds)
        raise ConnectionResetError
    rank, proof = _HEADER.unpack(data[: _HEADER.size])
    return _Message(rank, proof, data[_HEADER.size :], tuple(fds), bool(flags & socket.MSG_CTRUNC))


def _uid(sock: socket.socket) -> int:
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid: int = _CREDENTIALS.unpack(data)[1]
    return uid


def _ended_error(host: Host, rank: int) -> SleyError:
    return N620.error(
        expected=f"{host.describe(rank)} to join {host.what}",
        found="its process has ended or given up",
        remedy="Look for the cause in that rank's output (`dmesg` names processes killed "
        "for memory), and start again.",
    )


def _absent_error(host: Host, ranks: Sequence[int]) -> SleyError:
    return missing_error(ranks, len(host.ranks), f"{host.what} on this host")
