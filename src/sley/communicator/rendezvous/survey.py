"""Survey: over which network interfaces the hosts reach one another, and at what rates.

The first rank of each host connects to those of the others over TCP, whatever the transport of
messages is. Interface k of a host is for interface k of the others, by their order at the first
start, as ranks are bound to them.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import TypeVar

import numpy as np

from sley.communicator.rendezvous.bootstrap import Rendezvous
from sley.communicator.rendezvous.nics import Nic
from sley.errors import Place
from sley.errors.calls import N628
from sley.ir.tables import FloatArray

T = TypeVar("T")

_REACH_S = 1.0
"""How long a host waits for connections: a lost packet is sent again after 0.2 s, and 0.4 s."""

_RATE_S, _LATE_S = 0.15, 1.0
"""How long a host sends to measure a rate, and how much longer what was sent may take."""

_MOST_BYTES, _PIECE_BYTES = 64 << 20, 256 << 10
"""The most bytes that are sent, and the bytes of a piece, which are also those of the buffers:
what is sent in `_RATE_S` then arrives little later."""

_SKIPPED_BYTES = 256 << 10
"""Bytes that aren't counted at the beginning."""

_LEAST_GBPS = 1e-6
"""The rate where hardly anything arrives."""

_MOST_SHIFTS = 2
"""How many other hosts each host sends to. Of two rates of an interface the higher is its own,
unless both peers are slow."""

_TOKEN_BYTES = 32

_EQUAL, _STEPS = 0.8, 8
"""Rates from this share of the highest on count as equal to it: short transfers differ so much.
Lower ones are rounded to a whole number of this part, so that trees have few chunks."""

Way = tuple[int, int]
"""Another host, and the number of the interfaces at both ends."""


@dataclass(frozen=True)
class Survey:
    """nics: of each number over which all hosts reach one another, the interface of each host.
    sent_GBps, received_GBps: float64 (hosts, numbers), the rates that were reached, while all
    interfaces sent and received."""

    nics: tuple[tuple[Nic, ...], ...]
    sent_GBps: FloatArray  # noqa: N815 - a unit
    received_GBps: FloatArray  # noqa: N815

    @property
    def shares(self) -> tuple[FloatArray, FloatArray]:
        """The rates as shares of the highest, rounded."""
        most = max(self.sent_GBps.max(), self.received_GBps.max())
        shares = (_rounded(one / most) for one in (self.sent_GBps, self.received_GBps))
        return next(shares), next(shares)

    @property
    def most_GBps(self) -> float:  # noqa: N802 - a unit
        """The highest rate."""
        return float(max(self.sent_GBps.max(), self.received_GBps.max()))


def survey(rendezvous: Rendezvous, known: Sequence[Sequence[str]]) -> Survey:
    """Measures the network between the hosts; all ranks call it. known: the names of each host's
    interfaces at the first start. Errors: N628 on all ranks if no number is left; as of
    `Rendezvous.exchange`."""
    hosts, descriptions = rendezvous.hosts, rendezvous.descriptions
    up = [{nic.name: nic for nic in descriptions[own[0]].nics} for own in hosts.members]
    numbers = range(max(map(len, known)))
    # Hosts with fewer interfaces use each for several numbers.
    all_nics = [
        [up[h].get(names[k % len(names)]) for h, names in enumerate(known)] for k in numbers
    ]
    whole = {k: [nic for nic in nics if nic is not None] for k, nics in enumerate(all_nics)}
    used = {k: nics for k, nics in whole.items() if len(nics) == hosts.count}
    with ExitStack() as opened:
        host = hosts.host[rendezvous.rank]
        links = dict[Way, socket.socket]()
        is_first = hosts.members[host][0] == rendezvous.rank
        own = {k: nics[host] for k, nics in used.items()}
        doors = _listen(own if is_first else {}, opened)
        ports = json.dumps({k: door.getsockname()[1] for k, door in doors.items()})
        ports_of_all = [json.loads(one) for one in rendezvous.exchange(ports.encode())]
        if is_first:
            there = {
                (peer, k): (nics[peer].addresses[0], ports_of_all[members[0]][str(k)])
                for peer, members in enumerate(hosts.members)
                for k, nics in used.items()
                if peer > host and str(k) in ports_of_all[members[0]]
            }
            below = [(peer, k) for peer in range(host) for k in doors]
            links = _Reach(rendezvous.secret, host, own, doors, opened).run(there, below)
        found = rendezvous.exchange(json.dumps(list(links)).encode())
        reached = [{tuple(way) for way in json.loads(found[own[0]])} for own in hosts.members]
        kept = [k for k in used if _joins(reached, k)]
        if not kept:
            raise _nothing_left(rendezvous, known, up)
        rates = _rates(rendezvous, links, kept)
    return Survey(tuple(tuple(used[k]) for k in kept), *rates)


def _joins(reached: Sequence[set[tuple[int, ...]]], number: int) -> bool:
    """Whether the interfaces of a number reach one another, as both ends have seen."""
    return all(
        (b, number) in reached[a] and (a, number) in reached[b]
        for a, b in combinations(range(len(reached)), 2)
    )


def _nothing_left(
    rendezvous: Rendezvous, known: Sequence[Sequence[str]], up: Sequence[dict[str, Nic]]
) -> Exception:
    words = [
        f"host {h} has {', '.join(own) or 'none'} of {', '.join(names)}"
        for h, (names, own) in enumerate(zip(known, up, strict=True))
    ]
    return N628.error(
        at=Place(detail=f"{rendezvous.name}, rank {rendezvous.rank}"),
        expected="interfaces of one number over which all hosts reach one another",
        found=f"none: {'; '.join(words)}",
    )


def _listen(own: dict[int, Nic], opened: ExitStack) -> dict[int, socket.socket]:
    """Sockets that listen at interfaces; without those that have just gone."""
    doors = {}
    for k, nic in own.items():
        address = nic.addresses[0]
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with suppress(OSError):
            doors[k] = opened.enter_context(socket.create_server((address, 0), family=family))
    return doors


class _Reach:
    """Connects a host to the others. Both ends of a connection prove that they know the secret."""

    def __init__(
        self,
        secret: bytes,
        host: int,
        own: dict[int, Nic],
        doors: dict[int, socket.socket],
        opened: ExitStack,
    ) -> None:
        self._secret, self._host, self._own = secret, host, own
        self._doors, self._opened = doors, opened
        self._end = time.monotonic() + _REACH_S
        self._links: dict[Way, socket.socket] = {}
        self._lock = threading.Lock()

    def run(
        self, there: dict[Way, tuple[str, int]], below: Sequence[Way]
    ) -> dict[Way, socket.socket]:
        """Connections to `there`, and from `below`."""
        jobs: list[Callable[[], None]] = []
        for k, door in self._doors.items():
            mine = [way for way in below if way[1] == k]
            jobs.append(partial(self._accept, door, mine))
        jobs += [partial(self._connect, way, address) for way, address in there.items()]
        _at_once(jobs)
        return self._links

    def _token(self, src: int, dst: int, number: int) -> bytes:
        about = f"survey {src} {dst} {number}".encode()
        return hmac.new(self._secret, about, hashlib.sha256).digest()

    def _left_s(self) -> float:
        return max(self._end - time.monotonic(), 0.001)

    def _begin(self, link: socket.socket) -> None:
        with self._lock:
            self._opened.enter_context(link)
        link.settimeout(self._left_s())
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _PIECE_BYTES)

    def _connect(self, way: Way, address: tuple[str, int]) -> None:
        peer, k = way
        source = self._own[k].addresses[0], 0
        with suppress(OSError):
            link = socket.create_connection(address, self._left_s(), source)
            self._begin(link)
            link.sendall(self._token(self._host, peer, k))
            if _read(link) == self._token(peer, self._host, k):
                self._links[way] = link

    def _accept(self, door: socket.socket, ways: Sequence[Way]) -> None:
        expected = {self._token(peer, self._host, k): (peer, k) for peer, k in ways}
        # Ends: at the latest after `_REACH_S`.
        while expected and time.monotonic() < self._end:
            door.settimeout(self._left_s())
            with suppress(OSError):
                link, _ = door.accept()
                self._begin(link)
                way = expected.pop(_read(link), None)
                if way is not None:
                    link.sendall(self._token(self._host, *way))
                    self._links[way] = link


def _read(link: socket.socket) -> bytes:
    """A token; less if the other end closes before."""
    data = b""
    while len(data) < _TOKEN_BYTES and (piece := link.recv(_TOKEN_BYTES - len(data))):
        data += piece
    return data


def _at_once(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """The jobs' results, from as many threads."""
    with ThreadPoolExecutor(max(len(jobs), 1), thread_name_prefix="sley-survey") as pool:
        return [job.result() for job in [pool.submit(job) for job in jobs]]


def _rates(
    rendezvous: Rendezvous, links: dict[Way, socket.socket], kept: Sequence[int]
) -> tuple[FloatArray, FloatArray]:
    """The rates at which hosts send and receive. In each of a few rounds all send to the host that
    is so many further, over all interfaces."""
    hosts = rendezvous.hosts.count
    host = rendezvous.hosts.host[rendezvous.rank]
    sent, received = (np.zeros((hosts, len(kept))) for _ in range(2))
    for shift in range(1, min(_MOST_SHIFTS + 1, hosts)):
        rendezvous.exchange(b"")  # so that all begin together
        own = list[float]()
        if links:
            jobs = [partial(_receive, links[(host - shift) % hosts, k]) for k in kept]
            jobs += [partial(_send, links[(host + shift) % hosts, k]) for k in kept]
            own = _at_once(jobs)[: len(kept)]
        rates = [json.loads(one) for one in rendezvous.exchange(json.dumps(own).encode())]
        for dst, members in enumerate(rendezvous.hosts.members):
            src, rate = (dst - shift) % hosts, np.array(rates[members[0]])
            received[dst] = np.maximum(received[dst], rate)
            sent[src] = np.maximum(sent[src], rate)
    return sent, received


def _send(link: socket.socket) -> float:
    """Sends for `_RATE_S`. Returns 0."""
    piece, sent, end = bytes(_PIECE_BYTES), 0, time.monotonic() + _RATE_S
    link.settimeout(_RATE_S + _LATE_S)
    with suppress(OSError):
        while sent < _MOST_BYTES and time.monotonic() < end:
            link.sendall(piece)
            sent += len(piece)
        link.shutdown(socket.SHUT_WR)
    return 0.0


def _receive(link: socket.socket) -> float:
    """The rate in GB/s at which data arrive, after the first ones: a shaped link lets these pass at
    once."""
    into = memoryview(bytearray(_PIECE_BYTES))
    link.settimeout(_RATE_S + _LATE_S)
    total, first = 0, 0
    began = now = time.monotonic()
    end = now + _RATE_S + _LATE_S
    with suppress(OSError):
        while now < end and (got := link.recv_into(into)):
            now = time.monotonic()
            total += got
            if total - got < _SKIPPED_BYTES <= total:
                began, first = now, total
    return max((total - first) / max(now - began, 1e-6) / 1e9, _LEAST_GBPS)


def _rounded(share: FloatArray) -> FloatArray:
    """Shares of the highest rate, by `_EQUAL` and `_STEPS`."""
    steps = np.maximum(np.round(share * _STEPS), 1) / _STEPS
    return np.where(share >= _EQUAL, 1.0, steps)
