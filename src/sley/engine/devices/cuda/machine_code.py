"""Machine code of kernels: compiled now, or in the background, and kept in the cache on disk."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from functools import cache
from queue import PriorityQueue
from random import random
from threading import Thread

from sley.engine.devices.cuda import compiler
from sley.errors import SleyError
from sley.errors.disk_cache import cached_bytes, is_cached

_SUFFIX = ".cubin"

_CHILD = """
import json, os, signal, sys
signal.alarm(600)
os.nice(19)
job = json.load(sys.stdin)
sys.path[:] = job["path"]
from sley.engine.devices.cuda.machine_code import compiled
sys.stdout.buffer.write(compiled(job["text"], job["arch"]))
"""
"""A process that compiles a text into the cache, and prints the code. It is last in line for a
processor, and ends by itself, whatever the compiler does."""


def compiled(text: str, arch: str) -> bytes:
    """The machine code of a text for an architecture, from the cache if it is there. Errors: as for
    `compile_text`."""
    return cached_bytes(_key(text, arch), _SUFFIX, lambda: compiler.compile_text(text, arch).cubin)


def is_compiled(text: str, arch: str) -> bool:
    """Whether the cache has the machine code of a text. K501 without NVRTC, of which it is."""
    return is_cached(_key(text, arch), _SUFFIX)


def compile_later(text: str, arch: str) -> None:
    """Compiles a text into the cache in the background; one that fails, only once."""
    background().put((random(), text, arch))


@cache
def background() -> PriorityQueue[tuple[float, str, str]]:
    """Texts, with their architectures, that wait for being compiled one after the other; its `join`
    waits until all are. Their order is by chance: so processes that need the same ones share them.

    Another process compiles: NVRTC would still run in this one while its memory is taken down at
    its end. It outlives this one, and tells no error; if it fails, the next job compiles.
    """
    texts: PriorityQueue[tuple[float, str, str]] = PriorityQueue()

    def work() -> None:
        asked: set[int] = set()
        while True:
            _, *job = texts.get()
            if hash(tuple(job)) not in asked:
                asked.add(hash(tuple(job)))
                _compile_apart(*job)
            texts.task_done()

    with suppress(RuntimeError):  # no further thread
        Thread(target=work, name="sley-compiler", daemon=True).start()
    return texts


def _compile_apart(text: str, arch: str) -> None:
    job = {"path": [*map(str, sys.path)], "text": text, "arch": arch}
    # Without NVRTC; a program that Python is a part of may have no Python to start; a RuntimeError
    # says that this process ends.
    with suppress(SleyError, OSError, RuntimeError):
        if not is_compiled(text, arch):
            done = subprocess.run(
                [sys.executable or "", "-c", _CHILD],
                input=json.dumps(job).encode(),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # a signal to this one's group doesn't end it
            )
            if not done.returncode:  # where the disk keeps nothing, this process does
                cached_bytes(_key(text, arch), _SUFFIX, lambda: done.stdout)


def _key(text: str, arch: str) -> tuple[str, ...]:
    major, minor = compiler.version()
    return "cuda", arch, f"{major}.{minor}", *compiler.OPTIONS, text
