"""Device names: "threads", "threads:0,1", "cuda", "cuda:0,1", and the device of each rank."""

from __future__ import annotations

import re
from collections.abc import Callable

from sley.engine.devices.device import Device
from sley.engine.devices.threads import ThreadsDevice
from sley.engine.limits import whole
from sley.errors import counted, did_you_mean
from sley.errors.devices import K510

THREADS, CUDA = "threads", "cuda"
_PART = re.compile(r"(?:([a-z]+)(?::([0-9]{1,9}))?|([0-9]{1,9}))", re.ASCII)
_FORM = "threads, cuda, or numbers of one of them: cuda:0,1"


def open_devices(text: str, ranks: int, ranks_per_device: int | None = None) -> list[Device]:
    """The device of each of `ranks` ranks, in rank order: consecutive ranks share a device.

    text: "threads" for threads of this machine, "cuda" for the GPUs that the process sees; with
        numbers ("cuda:0,2", also "cuda:0,cuda:2") only those devices, filled in this order.
    ranks_per_device: ranks on each device; the last device may get fewer. Only as many devices are
        used as needed. By default the ranks are distributed evenly over the devices, one each if
        there are enough, and "threads" is one device.

    K510 for invalid names and for too few devices; K501, K502 if CUDA can't be used; R514 for
    invalid numbers.
    """
    ranks = whole(ranks, "ranks", 1)
    if ranks_per_device is not None:
        ranks_per_device = whole(ranks_per_device, "ranks_per_device", 1)
    kind, numbers = _parse(text)
    needed = ranks if ranks_per_device is None else -(-ranks // ranks_per_device)
    open_device, count = _kind(kind)
    if numbers is None:
        # Threads can form any number of devices, and form one by default.
        most = count() if count else needed if ranks_per_device else 1
        numbers = list(range(min(needed, max(most, 1))))
    used = [open_device(number) for number in numbers[:needed]]
    if ranks_per_device is None:
        return [used[rank * len(used) // ranks] for rank in range(ranks)]
    if len(used) < needed:
        raise K510.error(
            expected=f"{counted(needed, 'device')} for {counted(ranks, 'rank')}, "
            f"{ranks_per_device} on each",
            found=f"{counted(len(used), 'device')}: {', '.join(d.name for d in used)}",
            remedy="Put more ranks on each device (--ranks-per-gpu), or name more devices.",
        )
    return [used[rank // ranks_per_device] for rank in range(ranks)]


def _kind(kind: str) -> tuple[Callable[[int], Device], Callable[[], int] | None]:
    """The functions that open and count the devices of a kind; no count if it is unlimited."""
    if kind == THREADS:
        return ThreadsDevice.open, None
    from sley.engine.devices.cuda import CudaDevice  # only when needed: most machines have no GPU

    return CudaDevice.open, CudaDevice.count


def _parse(text: str) -> tuple[str, list[int] | None]:
    """The kind of devices, and their numbers; None without numbers."""
    kind, numbers, bare = "", list[int](), False
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None or not (match[1] or numbers):
            raise _unknown(text, part)
        if match[1] and match[1] not in (THREADS, CUDA):
            raise _unknown(text, match[1])
        if match[1] and kind and match[1] != kind:
            raise K510.error(
                expected="devices of one kind, which reach one another's memory",
                found=f"{text!r}",
                remedy="Name devices of one kind.",
            )
        kind = match[1] or kind
        number = match[2] or match[3]
        bare = bare or number is None
        numbers += [int(number)] if number is not None else []
    if bare and "," in text:
        raise _unknown(text, text)
    if len(set(numbers)) < len(numbers):
        raise K510.error(
            expected="each device once",
            found=f"{text!r}",
            remedy="Name each device once; set ranks_per_device (--ranks-per-gpu) for several "
            "ranks on each.",
        )
    return kind, None if bare else numbers


def _unknown(text: str, part: str) -> Exception:
    word = part.partition(":")[0]
    remedy = did_you_mean({"cpu": THREADS, "gpu": CUDA}.get(word, word), (THREADS, CUDA))
    if re.fullmatch("[0-9]+", word):
        remedy = f"Did you mean cuda:{word}?"
    return K510.error(
        expected=_FORM,
        found=f"{text!r}",
        remedy=remedy
        or "Name devices in that form. Without devices, sley run and sley.run use processes.",
    )
