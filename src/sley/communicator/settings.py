"""Settings of a communicator."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from typing import Any

from sley.communicator.network import Network
from sley.communicator.stats import logger
from sley.engine.limits import TIMEOUT_S, check_timeout, whole
from sley.errors import SleyError
from sley.errors.runtime import R514
from sley.ir.orders import BALANCED, SameBits
from sley.ir.words import is_real, member


class Copies(Enum):
    """How the messages of large calls are copied between the ranks of a host.

    CACHED: through slots that stay in a cache. STREAMED: through slots that are written past the
    caches. ATTACHED: by the kernel, straight out of the sender's memory. With CACHED and ATTACHED,
    shared memory is read in place. AUTO tries all three.
    """

    AUTO = "auto"
    CACHED = "cached"
    STREAMED = "streamed"
    ATTACHED = "attached"


_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_MOST_SLOTS, _MOST_SLOT_BYTES, _MOST_CHANNELS = 1 << 12, 1 << 30, 1 << 10
_MOST_EXPLORE = 0.1


@dataclass(frozen=True)
class Settings:
    """Settings of a communicator, the same on all ranks.

    timeout_s: how long nothing may move on any rank before a call gives up; None: 30 s, or the
        timeout of PyTorch's group (`patience_s` is the one that holds). slots, slot_bytes,
        channels: of the connection between any two ranks; only those in use take memory. The
        default slot_bytes depends on the number of ranks, and plans with many connections use
        less of it (`memory.tile_bytes`).
    cma: whether ranks of a host copy large messages straight out of one another's memory, where
        the system allows it (cross memory attach).
    copies: how large messages are copied within a host; calls that can't use it are CACHED.
    network: the transport between hosts. plan_dir: a folder of user plans; plan_dir_strict: whether
        an invalid file in it ends the start, instead of a warning. use_cache: whether compiled
        plans are kept on disk.
    tuner: the file of a policy, which is used if all ranks have it. explore: the most of a call's
        repetitions that may try the policy's alternatives, as a fraction; at most 0.1, 0: none.
    same_bits: whether all sums have one order (`SumOrder`), so that the bits of an element depend
        neither on the size of a call nor on the element's place in it. True: of the hosts;
        "balanced": of the balanced tree of the ranks (`sley.ir.orders`).
    replan: whether a communicator of several hosts goes on after a network interface has failed,
        with the others, and `Communicator.replan` fits its plans to their rates. The store has to
        last as long as the communicator.
    """

    timeout_s: float | None = None
    slots: int = 8
    slot_bytes: int | None = None
    channels: int = 32
    cma: bool = True
    copies: Copies = Copies.AUTO
    network: Network = Network.AUTO
    plan_dir: str | os.PathLike[str] | None = None
    plan_dir_strict: bool = False
    use_cache: bool = True
    tuner: str | os.PathLike[str] | None = None
    explore: float = 0.0
    same_bits: SameBits = False
    replan: bool = False

    def __post_init__(self) -> None:
        if self.timeout_s is not None:
            check_timeout(self.timeout_s)
        whole(self.slots, "slots", 2, _MOST_SLOTS)
        if self.slot_bytes is not None:
            whole(self.slot_bytes, "slot_bytes", 64, _MOST_SLOT_BYTES)
        whole(self.channels, "channels", 1, _MOST_CHANNELS)
        if not isinstance(self.plan_dir, str | os.PathLike | None) or self.plan_dir == "":
            raise _bad("plan_dir", "as the path of a folder", self.plan_dir)
        if not isinstance(self.tuner, str | os.PathLike | None) or self.tuner == "":
            raise _bad("tuner", "as the path of a file", self.tuner)
        if not is_real(self.explore) or not 0 <= self.explore <= _MOST_EXPLORE:
            raise _bad("explore", f"as a number from 0 to {_MOST_EXPLORE}", self.explore)
        for name in ("cma", "plan_dir_strict", "use_cache", "replan"):
            flag = getattr(self, name)
            if not isinstance(flag, bool):
                raise _bad(name, "as True or False", flag)
        if not isinstance(self.same_bits, bool) and self.same_bits != BALANCED:
            raise _bad("same_bits", f"as True, False or {BALANCED!r}", self.same_bits)
        object.__setattr__(self, "network", member(Network, self.network, "network", R514))
        object.__setattr__(self, "copies", member(Copies, self.copies, "copies", R514))

    @classmethod
    def from_environment(cls, **settings: Any) -> Settings:
        """The given settings; the others come from the environment: SLEY_TIMEOUT_S, SLEY_CMA,
        SLEY_COPIES, SLEY_NETWORK, SLEY_PLAN_DIR, SLEY_PLAN_DIR_STRICT, SLEY_TUNER,
        SLEY_EXPLORE, SLEY_SAME_BITS, SLEY_REPLAN."""
        _log_misspelt()
        found: dict[str, Any] = {}
        for name, read in _READERS.items():
            if text := os.environ.get(name):
                found[name.removeprefix("SLEY_").lower()] = read(name, text)
        return cls(**(found | settings))

    @property
    def patience_s(self) -> float:
        """`timeout_s`, or its default."""
        return TIMEOUT_S if self.timeout_s is None else self.timeout_s

    def agreement(self) -> dict[str, str]:
        """The settings that are checked to be the same on all ranks, as text."""
        return {
            "calls": "on processors",
            "slots": str(self.slots),
            "slot_bytes": str(self.slot_bytes),
            "channels": str(self.channels),
            "copies": self.copies.value,
            "network": self.network.value,
            "same_bits": str(self.same_bits),
            "replan": str(self.replan),
        }


@cache
def _log_misspelt() -> None:
    """Logs the variables that are almost, but not quite, one of sley's, once a process."""
    for name in os.environ:
        if not name.startswith("SLEY_") or name in _VARIABLES:
            continue
        near = difflib.get_close_matches(name, _VARIABLES, n=1, cutoff=0.75)
        if near:
            logger.warning("%s has no effect: did you mean %s?", name, near[0])


def read_flag(name: str, text: str, *more: str) -> bool:
    """The value of the environment variable `name` that says yes or no (R514). more: further words
    that it may have, for the error."""
    word, words = text.strip().lower(), (*_YES, *_NO)
    if word not in words:
        raise _bad(name, f"as one of {', '.join((*words, *more))}", text)
    return word in _YES


def _read_same_bits(name: str, text: str) -> SameBits:
    return BALANCED if text.strip().lower() == BALANCED else read_flag(name, text, BALANCED)


def _bad(name: str, expected: str, value: object) -> SleyError:
    return R514.error(
        expected=f"{name} {expected}",
        found=f"{name}={value!r}",
        remedy="Give that, or leave it out.",
    )


def _number(name: str, text: str, expected: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise _bad(name, expected, text) from None


SAME_BITS = "SLEY_SAME_BITS"

_READERS: Mapping[str, Callable[[str, str], object]] = {
    "SLEY_TIMEOUT_S": partial(_number, expected="as a number of seconds"),
    "SLEY_CMA": read_flag,
    "SLEY_COPIES": lambda name, text: member(Copies, text, name, R514),
    "SLEY_NETWORK": lambda name, text: member(Network, text, name, R514),
    "SLEY_PLAN_DIR": lambda _, folder: folder,
    "SLEY_PLAN_DIR_STRICT": read_flag,
    "SLEY_TUNER": lambda _, file: file,
    "SLEY_EXPLORE": partial(_number, expected="as a fraction"),
    SAME_BITS: _read_same_bits,
    "SLEY_REPLAN": read_flag,
}
"""What reads a variable, which has the name of its field of `Settings`, from its text."""

_VARIABLES = (
    *_READERS,
    "SLEY_CACHE_DIR",
    "SLEY_DEBUG",
    "SLEY_DUMP",
    "SLEY_HEAP_BYTES",
    "SLEY_HOST_ID",
    "SLEY_NCCL",
    "SLEY_NCCL_KERNELS",
    "SLEY_NCCL_LIBRARY",
    "SLEY_NCCL_TABLES",
    "SLEY_NCCL_WAIT_S",
    "SLEY_NICS",
    "SLEY_REPLACE_GLOO",
    "SLEY_TOPOLOGY",
)
"""All variables of the environment that sley reads."""
