"""Bootstrap: ranks find one another, and the ranks of a host get one another's descriptors."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from sley.communicator.rendezvous.gather import (
    MOST_RANKS,
    Deadline,
    Member,
    Timely,
    all_gather,
    name_ranks,
    refuse,
)
from sley.communicator.rendezvous.hosts import Description, Hosts, Process
from sley.communicator.rendezvous.local import Host, exchange_descriptors, listen, spare_descriptor
from sley.communicator.rendezvous.nics import Nic
from sley.communicator.rendezvous.stores import MpiStore, Store
from sley.engine.limits import instance
from sley.errors import SleyError, telling
from sley.errors.communicator import N603, N604, N605, N613
from sley.errors.runtime import R514
from sley.ir.words import is_integer

_SECRET_BYTES = 32
_JOB_DIGITS = 32

_VERSION = version("sley")
"""Looked up once: it takes as long as half a rendezvous."""


class Rendezvous:
    """Ranks that have found one another, with their descriptions.

    rank, ranks, name: as they were given. descriptions: of every rank, by rank.
    hosts: which ranks share a host. nics: the network interfaces of this host that are used, of
        which this rank is bound to `nic`.
    secret: 32 bytes that only the ranks know. job: a public name of this start alone, 32
        hexadecimal digits.

    One thread at a time may use it.
    """

    def __init__(
        self,
        member: Member,
        name: str,
        secret: bytes,
        descriptions: tuple[Description, ...],
        deadline: Deadline,
    ) -> None:
        self.rank, self.ranks, self.name = member.rank, member.ranks, name
        self.secret, self.job = secret, job_of(secret)
        self.descriptions = descriptions
        self.hosts = Hosts.of([description.process.host for description in descriptions])
        self._member, self._deadline = member, deadline
        self._exchanges = 0
        self.use(descriptions[member.rank].nics)

    def use(self, nics: Sequence[Nic]) -> None:
        """Binds this host's ranks to some of its interfaces, in turn."""
        self.nics = tuple(nics)
        self.nic = self.nics[self.hosts.local[self.rank] % len(nics)]

    def exchange(self, value: bytes) -> list[bytes]:
        """The values of all ranks, by rank; all ranks call it, in the same order, within the rest
        of the timeout, of `bootstrap` or `renew`.

        Errors: N601 with the ranks that are missing, N605, N608 where a rank refuses.
        """
        return all_gather(self._member, self._topic(), value, self._deadline)

    def refuse(self, error: SleyError) -> None:
        """Replaces an exchange: tells the other ranks that this one can't continue, so that they
        raise N608, with the error's words, instead of waiting."""
        refuse(self._member, self._topic(), error)

    def renew(self, timeout_s: float) -> None:
        """Gives later exchanges this timeout, from now on. Errors: R514."""
        self._deadline = Deadline.after(timeout_s)
        store = self._member.store
        if isinstance(store, Timely):
            self._member = replace(self._member, store=store.until(self._deadline))

    def drop_store(self) -> None:
        """Drops the store, which may end with this: no exchange follows."""
        del self._member

    def _topic(self) -> str:
        self._exchanges += 1
        return f"{_topic(self.name)}/{self.job}/{self._exchanges}"


def bootstrap(
    store: Store,
    rank: int,
    ranks: int,
    *,
    name: str,
    timeout_s: float,
    segments: Callable[[], Sequence[int]] = tuple,
    attach: Callable[[Hosts, Mapping[int, tuple[int, ...]]], None] = lambda hosts, fds: None,
    agreed: Mapping[str, str] | None = None,
    offered: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Rendezvous:
    """Brings the ranks of a communicator together: all of them call it.

    store: the ranks find one another over it; later only `Rendezvous.exchange` uses it.
    name: the communicator's, unique among those open on the store. A name may be used again once
        its communicator is closed.
    segments: makes the descriptors for the other ranks of the host, which the caller keeps owning.
    attach: gets duplicates of theirs, by rank, which are closed when it returns. Both pass their
        errors to the other ranks, and have returned on all ranks when this function returns.
    agreed: settings that must be the same on every rank, as sley's version must.
    offered: words that may differ, which all ranks get (`Description.offered`).
    environ: replaces the environment for SLEY_NICS and SLEY_HOST_ID.
    Errors: N601, N603 to N605, N607 to N610, N613, R514; within `timeout_s` and
    gather.GRACE_S more. After an error nothing is left open, and all ranks may try again.
    """
    environ = os.environ if environ is None else instance(environ, Mapping, "environ")
    deadline = Deadline.after(timeout_s)
    member = _member(store, rank, ranks, name, environ, deadline)
    what = member.what
    settings = {"sley": _VERSION, **(agreed or {})}
    with contextlib.ExitStack() as opened:
        start = _start(name)
        spare = opened.enter_context(spare_descriptor())

        def tell(error: SleyError) -> None:
            spare.close()
            refuse(member, start, error)

        with telling(tell):
            listener = opened.enter_context(listen())
            address = listener.getsockname().hex()
            own = Description.here(rank, address, settings, environ, offered or {})
            descriptors = segments()
        secret, descriptions = _exchange_descriptions(member, start, own, deadline)
        _check_agreement(descriptions, what)
        hosts = Hosts.of([one.process.host for one in descriptions])
        _check_users(descriptions, hosts, what)
        host = Host(rank, hosts.of_host(rank), descriptions, secret, what)
        if rank != host.leader:
            listener.close()
        job = f"{_topic(name)}/{job_of(secret)}"
        with telling(lambda error: refuse(member, job, error)):
            peers = exchange_descriptors(host, listener, descriptors, deadline)
            with contextlib.closing(peers):
                attach(hosts, peers.fds)
        # No rank continues before all have everything.
        all_gather(member, job, b"", deadline)
    return Rendezvous(member, name, secret, descriptions, deadline)


def decline(
    store: Store,
    rank: int,
    ranks: int,
    error: SleyError,
    *,
    name: str,
    environ: Mapping[str, str] | None = None,
) -> None:
    """Replaces `bootstrap`, of which it has the arguments: tells the other ranks why this one can't
    come, so that they raise N608 instead of waiting. Takes up to gather.GRACE_S."""
    environ = os.environ if environ is None else environ
    member = _member(store, rank, ranks, name, environ, Deadline(time.monotonic()))
    refuse(member, _start(name), error)


def _member(
    store: Store,
    rank: int,
    ranks: int,
    name: str,
    environ: Mapping[str, str],
    deadline: Deadline,
) -> Member:
    _check(store, rank, ranks, name)
    # MPI allows its calls in certain threads only, and those of its store don't wait.
    timely = store if isinstance(store, MpiStore) else Timely(store, deadline)
    return Member(timely, rank, ranks, Process.here(environ), f"communicator {name!r}")


def job_of(secret: bytes) -> str:
    """The public name of the job with a secret, which doesn't reveal the secret."""
    return hashlib.sha256(b"job" + secret).hexdigest()[:_JOB_DIGITS]


def _topic(name: str) -> str:
    return f"sley/{name}"


def _start(name: str) -> str:
    return f"{_topic(name)}/start"


def _exchange_descriptions(
    member: Member, topic: str, own: Description, deadline: Deadline
) -> tuple[bytes, tuple[Description, ...]]:
    """The job's secret, which rank 0 chooses, and the description of every rank."""
    secret = secrets.token_bytes(_SECRET_BYTES) if member.rank == 0 else b""
    values = all_gather(member, topic, secret.hex().encode() + b"\n" + own.encode(), deadline)
    try:
        parts = [value.partition(b"\n") for value in values]
        secret = bytes.fromhex(parts[0][0].decode())
        return secret, tuple(Description.decode(description) for _, _, description in parts)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        raise N605.error(
            expected="descriptions of ranks", found="something else in the store"
        ) from None


def _check(store: Any, rank: Any, ranks: Any, name: Any) -> None:
    if not isinstance(store, Store):
        raise N605.error(
            expected="a Store of sley.communicator",
            found=f"{type(store).__name__}",
            remedy="Wrap it: TorchStore(store) for a store of torch.distributed, MpiStore(comm) "
            "for a communicator of mpi4py, FolderStore(folder) for a folder.",
        )
    check_place(rank, ranks)
    if not (isinstance(name, str) and name):
        raise R514.error(expected="a communicator's name", found=f"{name!r}")


def check_place(rank: Any, ranks: Any) -> None:
    """Refuses a rank that is not below the number of ranks. Errors: N603."""
    if not (is_integer(rank) and is_integer(ranks) and 0 <= rank < ranks <= MOST_RANKS):
        raise N603.error(
            expected=f"a rank from 0 on, below the number of ranks, which is at most {MOST_RANKS}",
            found=f"rank {rank!r} of {ranks!r}",
        )


def _check_agreement(descriptions: Sequence[Description], what: str) -> None:
    first = descriptions[0].agreed
    for key in dict.fromkeys(key for one in descriptions for key in one.agreed):
        others = [r for r, one in enumerate(descriptions) if one.agreed.get(key) != first.get(key)]
        if others:
            raise N604.error(
                expected=f"{key} {first.get(key)} on all ranks of {what}, as on rank 0 "
                f"({descriptions[0].process.host_name})",
                found=f"{key} {descriptions[others[0]].agreed.get(key)} on "
                f"{name_ranks(others)} "
                f"({descriptions[others[0]].process.host_name})",
            )


def _check_users(descriptions: Sequence[Description], hosts: Hosts, what: str) -> None:
    """Refuses ranks of different users on a host: all ranks raise the same. Ids of different
    namespaces are not comparable; there the local sockets decide. Errors: N613."""
    for ranks in hosts.members:
        first = descriptions[ranks[0]]
        mates = [descriptions[rank] for rank in ranks if descriptions[rank].users == first.users]
        others = [one for one in mates if one.user != first.user]
        if others:
            raise N613.error(
                expected=f"user {first.user} for all ranks of {what} on "
                f"{first.process.host_name}, as for rank {first.rank} ({first.process})",
                found=", ".join(f"rank {one.rank} runs as user {one.user}" for one in others[:16]),
            )
