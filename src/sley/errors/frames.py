"""Frames: tracebacks of users' mistakes that end at the user's line."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, TypeVar

from sley.errors.diagnostic import SleyError

P = ParamSpec("P")
T = TypeVar("T")

_INSIDE = sys.stdlib_module_names | {"sley"}
"""The packages of frames to leave out: sley, and Python's own modules, which it calls."""


def without_inner_frames(function: Callable[P, T]) -> Callable[P, T]:
    """The function, whose SleyErrors have a traceback with the frames of its callers and of
    callbacks, but without those of sley: the message itself says what is wrong, and where. Other
    errors keep all frames."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True  # for pytest and IPython, which can leave out this frame, too
        try:
            return function(*args, **kwargs)
        except SleyError as error:
            cause = error.__cause__
            if cause is not None:
                cause.__traceback__ = _outer_frames(cause.__traceback__)
            raise error.with_traceback(_outer_frames(error.__traceback__)) from cause

    return call


def _outer_frames(frames: TracebackType | None) -> TracebackType | None:
    """The frames that are neither in sley nor in Python's own modules."""
    kept = []
    while frames is not None:
        module = str(frames.tb_frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in _INSIDE:
            kept.append(frames)
        frames = frames.tb_next
    outer: TracebackType | None = None
    for one in reversed(kept):
        outer = TracebackType(outer, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return outer
