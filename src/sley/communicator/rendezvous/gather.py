"""Gather: all-gather over a store. Rank 0 collects the ranks' values, and answers each rank.

So all ranks get the same: all values, or the same failure, which rank 0 notices as soon as one
rank reports it. The reader deletes each message; answers carry a token of the process that
asked, so a second process of the same rank can't take them.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar
from uuid import uuid4

from sley.communicator.rendezvous.hosts import Process
from sley.communicator.rendezvous.stores import Store
from sley.engine.limits import check_timeout
from sley.errors import Diagnostic, SleyError, diagnostic_from_json
from sley.errors.aside import LateError, within
from sley.errors.communicator import N601, N603, N604, N605, N608

T = TypeVar("T")

GRACE_S = 2.0
"""How much longer ranks wait for rank 0's answer than it waits for them, and how long it continues
to answer after a failure."""

_LOOK_S = 0.2
"""How long rank 0 waits for one rank before it looks for messages of others."""

_PAUSE_S = 0.001

_PROTOCOL = 1
"""The number of the messages' format, raised when it changes."""

MOST_RANKS = 1 << 16

_NAMED = 16
"""How many ranks a message names."""


@dataclass(frozen=True)
class Deadline:
    """A point in time (of `time.monotonic`) until which a rank waits."""

    end: float

    @classmethod
    def after(cls, timeout_s: float) -> Deadline:
        """The deadline in `timeout_s` seconds. Errors: R514 for an invalid time."""
        check_timeout(timeout_s)
        return cls(time.monotonic() + timeout_s)

    @property
    def left_s(self) -> float:
        """Seconds until then; 0 once it has passed."""
        return max(0.0, self.end - time.monotonic())


class Timely:
    """A store whose calls end in time, with an error (N605) if the store doesn't answer: because
    the process that serves it is stopped, or its file system stuck. Errors: N605."""

    def __init__(self, store: Store, deadline: Deadline) -> None:
        self._store, self._deadline = store, deadline
        self._failure: SleyError | None = None

    def __repr__(self) -> str:
        return repr(self._store)

    def until(self, deadline: Deadline) -> Timely:
        """The same store, with another deadline."""
        return Timely(self._store, deadline)

    def put(self, topic: str, src: int, dst: int, value: bytes) -> bytes:
        return self._ask(self._deadline.left_s, self._store.put, topic, src, dst, value)

    def get(self, topic: str, src: int, dst: int, timeout_s: float) -> bytes | None:
        return self._ask(timeout_s, self._store.get, topic, src, dst, timeout_s)

    def delete(self, topic: str, src: int, dst: int) -> None:
        self._ask(self._deadline.left_s, self._store.delete, topic, src, dst)

    def has(self, topic: str, src: int, dst: int) -> bool:
        return self._ask(self._deadline.left_s, self._store.has, topic, src, dst)

    def _ask(self, timeout_s: float, function: Callable[..., T], *arguments: Any) -> T:
        if self._failure is not None:
            raise self._failure
        try:
            return within(timeout_s + GRACE_S, function, *arguments)
        except LateError:
            found = f"none within {timeout_s + GRACE_S:.3g} s"
        except RuntimeError as error:  # no further thread
            found = str(error)
        self._failure = N605.error(expected=f"an answer of {self._store!r}", found=found)
        raise self._failure


@dataclass(frozen=True)
class Member:
    """This process, as one of the ranks that gather. what: the communicator, for messages."""

    store: Store
    rank: int
    ranks: int
    process: Process
    what: str


def all_gather(member: Member, topic: str, value: bytes, deadline: Deadline) -> list[bytes]:
    """The values of all ranks, by rank. All ranks call it with the same topic.

    Errors: N601, with the ranks that are missing, after the deadline and at most GRACE_S more;
    N603 if another process has the rank, or the numbers of ranks differ; N604 for
    another format; N605; N608 if a rank refuses.
    """
    return _Gather(member, topic, deadline).run(value, None)


def refuse(member: Member, topic: str, error: SleyError) -> None:
    """Tells all ranks that gather about `topic` why this one can't continue: they raise N608. Takes
    up to GRACE_S if rank 0 is missing."""
    try:
        _Gather(member, topic, Deadline(time.monotonic())).run(b"", error)
    except SleyError:
        return  # the same failure, as the others see it


@dataclass(frozen=True)
class _Claim:
    """What a rank says to rank 0. token: of this attempt. failure: why it can't continue."""

    token: str
    ranks: int
    process: Process
    failure: Diagnostic | None
    value: bytes

    def encode(self) -> bytes:
        return _encoded(
            self.failure,
            self.value,
            token=self.token,
            ranks=self.ranks,
            process=asdict(self.process),
        )

    @classmethod
    def decode(cls, data: bytes) -> _Claim:
        def read(header: Mapping[str, Any], failure: Diagnostic | None, value: bytes) -> _Claim:
            process = Process.from_json(header["process"])
            return cls(str(header["token"]), int(header["ranks"]), process, failure, value)

        return _decoded(data, read)


def _encoded(failure: Diagnostic | None, body: bytes, **header: Any) -> bytes:
    header |= {"protocol": _PROTOCOL, "failure": failure and failure.to_json()}
    return json.dumps(header).encode() + b"\0" + body


def _decoded(data: bytes, read: Callable[[Mapping[str, Any], Diagnostic | None, bytes], T]) -> T:
    """What `read` makes of a message's header, failure and body. Errors: N604, N605."""
    head, _, body = data.partition(b"\0")
    try:
        header = json.loads(head)
        protocol, failure = header["protocol"], header.get("failure")
        if protocol == _PROTOCOL:
            return read(header, failure and diagnostic_from_json(failure), body)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        raise N605.error(expected="messages of sley in the store", found=f"{data[:40]!r}") from None
    raise N604.error(
        expected=f"messages of format {_PROTOCOL}, as this version of sley writes them",
        found=f"format {protocol!r}",
    )


class _Gather:
    def __init__(self, member: Member, topic: str, deadline: Deadline) -> None:
        self.member, self.store, self.rank = member, member.store, member.rank
        self.topic, self.deadline = topic, deadline
        self.unread: SleyError | None = None  # the error of a message that can't be decoded

    def run(self, value: bytes, error: SleyError | None) -> list[bytes]:
        of, failure = self.member, None if error is None else error.diagnostics[0]
        claim = _Claim(uuid4().hex, of.ranks, of.process, failure, value)
        message = claim.encode()
        try:
            self._claim(message)
            if self.rank != 0:
                return self._answer_of_rank_0(claim)
            values = self._collect(claim)
            self.store.delete(self.topic, 0, 0)
        except BaseException:
            with contextlib.suppress(SleyError):  # the first error is the one to raise
                # The message that is there may be of another process with this rank.
                if self.store.get(self.topic, self.rank, 0, 0.0) == message:
                    self.store.delete(self.topic, self.rank, 0)
            raise
        return values

    def _claim(self, message: bytes) -> None:
        """Leaves this rank's message, unless another process has claimed the rank. Errors: N603."""
        present = self.store.put(self.topic, self.rank, 0, message)
        if present != message and _Claim.decode(present).process.is_gone():
            self.store.delete(self.topic, self.rank, 0)  # of a killed process
            present = self.store.put(self.topic, self.rank, 0, message)
        if present != message:
            other = _Claim.decode(present).process
            raise N603.error(
                expected=f"one process with rank {self.rank} of {self.member.what}",
                found=f"{other} has that rank, and so has {self.member.process}",
            )

    def _answer_of_rank_0(self, claim: _Claim) -> list[bytes]:
        about = self._about(claim)
        data = self.store.get(about, 0, self.rank, self.deadline.left_s)
        if data is None:
            # Look for absent ranks before those that wait no longer leave, too.
            absent = [r for r in range(self.member.ranks) if not self.store.has(self.topic, r, 0)]
            data = self.store.get(about, 0, self.rank, GRACE_S)
        if data is None:
            raise self._missing_error([0] if self._has_lost_rank_0() else absent or [0])
        self.store.delete(about, 0, self.rank)
        return _decoded(data, _values)

    def _has_lost_rank_0(self) -> bool:
        """Whether rank 0 came, but ended before it answered this rank. It has then deleted the
        messages of the ranks that it answered: these are not absent."""
        if not self.store.has(self.topic, self.rank, 0):
            return True  # only rank 0 deletes this rank's message
        claim = self.store.get(self.topic, 0, 0, 0.0)
        return claim is not None and _Claim.decode(claim).process.is_gone()

    def _collect(self, own: _Claim) -> list[bytes]:
        claims, waiting = {0: own}, list(range(1, self.member.ranks))
        failure = self._failure(0, own)
        while waiting and failure is None and self.deadline.left_s:
            arrived = self._take_claims(waiting)
            claims |= arrived
            failures = [self._failure(rank, claim) for rank, claim in arrived.items()]
            failure = next((error for error in [self.unread, *failures] if error), None)
        if waiting and failure is None:
            failure = self._missing_error(waiting)
        if failure is None:
            values = [claims[rank].value for rank in range(self.member.ranks)]
            sizes = [len(value) for value in values]
            self._answer(claims, _encoded(None, b"".join(values), sizes=sizes))
            self._wait_until_read(claims, Deadline.after(GRACE_S))
            return values
        self._answer_all(claims, waiting, _encoded(failure.diagnostics[0], b""))
        raise failure

    def _take_claims(self, waiting: list[int]) -> dict[int, _Claim]:
        """The claims of `waiting` that have arrived, by rank; removes these ranks from `waiting`.
        Waits up to _LOOK_S for the first rank."""
        arrived = {}
        for number, rank in enumerate(list(waiting)):
            data = self.store.get(self.topic, rank, 0, 0.0 if number else _LOOK_S)
            if data is None:
                continue
            try:
                claim = _Claim.decode(data)
            except SleyError as error:
                self.unread = error
                waiting.remove(rank)
                continue
            if claim.process.is_gone():
                continue  # of an earlier start: its own rank will replace it
            waiting.remove(rank)
            arrived[rank] = claim
        if not arrived:
            time.sleep(_PAUSE_S)
        return arrived

    def _answer_all(self, claims: Mapping[int, _Claim], waiting: list[int], answer: bytes) -> None:
        """Answers the ranks that have arrived, and for GRACE_S those that still arrive."""
        self._answer(claims, answer)
        believed = max(claim.ranks for claim in claims.values())
        waiting += range(self.member.ranks, min(believed, MOST_RANKS))
        end = Deadline.after(GRACE_S)
        while waiting and end.left_s:
            arrived = self._take_claims(waiting)
            self._answer(arrived, answer)
            claims = {**claims, **arrived}
        self._wait_until_read(claims, end)

    def _answer(self, claims: Mapping[int, _Claim], answer: bytes) -> None:
        """Answers ranks: all of them, even if an exception comes between two answers (Ctrl-C)."""
        problem: BaseException | None = None
        for rank, claim in claims.items():
            if rank == 0:
                continue
            try:
                # Delete the claim first: with the answer, the rank may make its next claim.
                self.store.delete(self.topic, rank, 0)
                self.store.put(self._about(claim), 0, rank, answer)
            except BaseException as error:
                problem = problem or error
        if problem is not None:
            raise problem

    def _wait_until_read(self, claims: Mapping[int, _Claim], end: Deadline) -> None:
        """Waits until the others have read their answers: the store may end with this process."""
        for rank, claim in claims.items():
            while rank != 0 and self.store.has(self._about(claim), 0, rank) and end.left_s:
                time.sleep(_PAUSE_S)

    def _about(self, claim: _Claim) -> str:
        """The topic of a claim's answer, with its token, so that no other process takes it."""
        return f"{self.topic}/{claim.token}"

    def _failure(self, rank: int, claim: _Claim) -> SleyError | None:
        """Why the ranks can't continue with this one; None if they can."""
        why = claim.failure
        if claim.ranks != self.member.ranks:
            return N603.error(
                expected=f"{self.member.ranks} ranks in {self.member.what}, as on rank 0",
                found=f"{claim.ranks} ranks on rank {rank}",
            )
        if why is None:
            return None
        return N608.error(
            at=why.places,
            expected=f"rank {rank} ({claim.process}) to continue with {self.member.what}",
            found=why.rule.title,
            notes=[f"expected: {why.expected}", f"found: {why.found}", *why.notes],
            remedy=why.remedy,
        )

    def _missing_error(self, ranks: Sequence[int]) -> SleyError:
        notes = [f"the ranks meet in {self.store!r}"]
        return missing_error(ranks, self.member.ranks, self.member.what, notes)


def missing_error(ranks: Sequence[int], of: int, what: str, notes: Sequence[str] = ()) -> SleyError:
    """The error that names missing ranks, among `of`."""
    return N601.error(
        expected=f"{of} ranks in {what}",
        found=f"no sign of {name_ranks(ranks)} in time",
        notes=notes,
    )


def name_ranks(ranks: Sequence[int]) -> str:
    """Ranks for messages: "rank 3", "ranks 0, 2"; of many only the first, and how many more."""
    named = ", ".join(map(str, ranks[:_NAMED]))
    more = f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {named}{more}"


def _values(header: Mapping[str, Any], failure: Diagnostic | None, body: bytes) -> list[bytes]:
    """The values in rank 0's answer; raises its failure."""
    if failure is not None:
        raise SleyError([failure])
    values, start = [], 0
    for size in header["sizes"]:
        values.append(body[start : start + size])
        start += size
    return values
