"""Gloo: makes groups with the backend "gloo" sley's, in programs that can't be edited."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import wraps
from inspect import signature
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from sley.communicator import Settings
from sley.communicator.settings import read_flag
from sley.errors import SleyError
from sley.errors.communicator import N601
from sley.errors.torch import B905
from sley.torch.group import MAKE_GROUP, ProcessGroupSley

logger = logging.getLogger("sley.torch")

VARIABLE = "SLEY_REPLACE_GLOO"
_SET_TIMEOUT = "_set_pg_timeout"
"""PyTorch's function that changes a group's timeout, if its backend is gloo's class or NCCL's."""


class GlooReplacement(AbstractContextManager["GlooReplacement"]):
    """Makes groups sley's whose backend for CPU tensors is "gloo", until `close` or the end of a
    `with` block. Groups that were made meanwhile stay sley's."""

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the replacement; a second time changes nothing. PyTorch makes gloo's groups again
        when all replacements have ended."""
        _REPLACEMENTS.discard(self)
        if not _REPLACEMENTS:
            for name, (wrapper, original) in _WRAPPED.items():
                if getattr(c10d, name) is wrapper:  # otherwise another library has wrapped it
                    setattr(c10d, name, original)


_REPLACEMENTS: set[GlooReplacement] = set()
_WRAPPED: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}
"""PyTorch's functions that are replaced, by name: the wrapper, and the original."""


def replace_gloo() -> GlooReplacement:
    """Makes all further groups sley's whose backend for CPU tensors is "gloo": those of
    `init_process_group` and `new_group` with "gloo", "cpu:gloo,cuda:nccl" or PyTorch's default.

    All ranks of a group must do so, or none. Such a group reports that its backend is "gloo".
    Returns an object that ends the replacement. A further call replaces nothing twice, and has
    to be closed as well. Errors: B905.
    """
    new: dict[str, tuple[Callable[..., Any], Any]] = {}
    for name, wrap in ((MAKE_GROUP, _group_maker), (_SET_TIMEOUT, _timeout_setter)):
        found = getattr(c10d, name, None)
        if name not in _WRAPPED or found is not _WRAPPED[name][0]:
            new[name] = wrap(found), found
    for name, (wrapper, _) in new.items():
        setattr(c10d, name, wrapper)
    _WRAPPED.update(new)
    made = GlooReplacement()
    _REPLACEMENTS.add(made)
    return made


def replace_gloo_if_asked() -> None:
    """Replaces gloo for the rest of the process if SLEY_REPLACE_GLOO is 1. Errors: B905.

    With another word than 0 or 1, the first group raises R514: raised at `import torch`, it would
    be hidden behind PyTorch's own advice.
    """
    if not os.environ.get(VARIABLE):
        return
    try:
        if not _is_asked():
            return
    except SleyError:
        pass
    replace_gloo()


def _is_asked() -> bool:
    """Whether the environment asks for the replacement. Errors: R514."""
    return read_flag(VARIABLE, os.environ.get(VARIABLE) or "0")


def _group_maker(original: Any) -> Callable[..., Any]:
    """PyTorch's function that makes a group, with sley in place of gloo."""
    _check(MAKE_GROUP, original, "backend", "backend_options")
    parameters = signature(original)

    @wraps(original)
    def make_group(*args: Any, **kwargs: Any) -> Any:
        _is_asked()  # a wrong word is an error
        call = parameters.bind(*args, **kwargs)
        asked = call.arguments["backend"]
        backend = _replaced(asked) if _REPLACEMENTS else None
        if backend is None:
            return original(*args, **kwargs)
        call.arguments["backend"] = backend
        if not isinstance(call.arguments.get("backend_options"), Settings):
            call.arguments["backend_options"] = None  # gloo ignores options, too
        try:
            group, store = original(*call.args, **call.kwargs)
        except SleyError as error:
            raise _naming_replacement(error) from None
        if isinstance(group, ProcessGroupSley):
            # What programs check. The group's own name stays "sley": at "gloo", PyTorch's C++ asks
            # for gloo's object.
            c10d._world.pg_map[group] = (asked, store)
            c10d._world.pg_backend_config[group] = str(c10d.BackendConfig(asked))
            logger.info("group %s: runs on sley in place of gloo", group.getGroupName())
        return group, store

    return make_group


def _naming_replacement(error: SleyError) -> SleyError:
    """The error of a group that has no sign of some ranks, with the cause that is likely here."""
    return SleyError(
        [
            replace(one, remedy=f"Replace gloo on all ranks of the group, or on none. {one.remedy}")
            if one.code == N601.code
            else one
            for one in error.diagnostics
        ]
    )


def _timeout_setter(original: Any) -> Callable[..., Any]:
    """PyTorch's function that sets a group's timeout, for groups of sley's, too."""
    _check(_SET_TIMEOUT, original, "timeout", "group")

    @wraps(original)
    def set_timeout(timeout: Any, group: Any = None) -> None:
        given = group or c10d._get_default_group()
        if _REPLACEMENTS and isinstance(given, ProcessGroupSley):
            given.set_timeout(timeout)
        else:
            original(timeout, group)

    return set_timeout


def _replaced(asked: Any) -> dist.Backend | None:
    """The backend string with sley for CPU tensors and the same backends for other devices; None
    if gloo doesn't serve CPU tensors."""
    name = str(asked)
    if "gloo" not in name and name != dist.Backend.UNDEFINED:
        return None
    devices = c10d.BackendConfig(asked).get_device_backend_map()
    if devices.pop("cpu", None) != dist.Backend.GLOO:
        return None
    # sley first: PyTorch drops the backends that it has made when it comes to sley's.
    return dist.Backend(",".join(["cpu:sley", *(f"{d}:{b}" for d, b in devices.items())]))


def _check(name: str, found: Any, *parameters: str) -> None:
    missing = set(parameters) - signature(found).parameters.keys() if callable(found) else None
    if missing is None or missing:
        raise B905.error(
            expected=f"the function {name}, with the parameters {', '.join(parameters)}, in "
            "torch.distributed.distributed_c10d",
            found=f"PyTorch {dist.torch.__version__}, without "
            + (f"its parameters {', '.join(sorted(missing))}" if missing else "it"),
        )
