"""First contact with a GPU: fourteen steps in ten minutes, and one file with all that they found.

    python benchmarks/on_gpu.py [--only smoke,cells-4,...] [--out DIR] [--nccl libnccl.so.2]

Each step is a process with a deadline: a step that is over is killed with its children, and says
where it was. The steps go from small to large, and measure before they run the full tests. Every
measurement and every test is a line of JSON in DIR/first-contact-DATE.jsonl, on the disk before the
next begins, with a line before it that names it: so the file says how far a run came and where it
hung. DIR, by default benchmarks/results, also gets a log of each step. A step that fails doesn't
stop the later ones, unless the device no longer answers.

Six further steps run only if named: `build` builds sley in build/gpu, for machines without `make`
or a network (it needs scikit-build-core, nanobind, CMake, Ninja and a C++17 compiler); `measure`
runs all of kernels.py; `slots` compares numbers and sizes of slots, in seconds; `failures` tests
hangs, refusals and ranks in processes; `client` makes all calls of NCCL's collectives in C, and
`programs` trains with PyTorch, over sley in NCCL's place. The script needs
sley's requirements (numpy, click, rich), cuda-bindings and NVRTC, pytest and hypothesis. It uses
PyTorch, CuPy, pytest-xdist, compute-sanitizer and NCCL if they are there.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILT = ROOT / "build" / "gpu"
BUILD_NEEDS = {"scikit_build_core": "scikit-build-core", "nanobind": "nanobind"}
NEEDS = {
    "numpy": "numpy",
    "click": "click",
    "rich": "rich",
    "cuda.bindings": "cuda-bindings",
    "pytest": "pytest",
    "hypothesis": "hypothesis",
}
WORKERS = 6
"""Number of test processes at the same time: they spend most of their time in compilers."""

DEVICE_S = 30.0
"""The longest time for the device to answer."""

PROTOCOLS = ("SIMPLE", "LL", "LL128", "DIRECT")

CELLS = (256, 16 << 10, 256 << 10, 4 << 20, 64 << 20)
"""Sizes that are compared with NCCL's, in bytes."""


@dataclass(frozen=True)
class Run:
    """What the steps need to know. slowness: a factor of all deadlines."""

    lines: Path
    out: Path
    nccl: str | None = None
    share: float = 1 / 32
    most_bytes: int = 64 << 20
    slowness: float = 1.0

    @property
    def timeout_s(self) -> str:
        """Of an instruction's wait: a hang must leave time for the other measurements of a step."""
        return f"{2 * self.slowness:g}"

    def sound(self) -> list[str]:
        """The protocols in which the smoke step found nothing wrong, with each engine; all, if it
        didn't run."""
        from first_contact.lines import read_lines

        rows = [row for row in read_lines(self.lines) if row["step"] == "smoke"]
        calls = [row for row in rows if "protocol" in row]
        bad = {row["protocol"] for row in calls if row.get("failure") or row.get("wrong")}
        # A line that begins a call and none of its end: it hung until the step was killed.
        begun = [row["begins"] for row in rows if "protocol" in row.get("begins", {})]
        for what in begun:
            if not any(what.items() <= row.items() for row in calls):
                bad.add(what["protocol"])
        good = {row["protocol"] for row in calls} if rows else set(PROTOCOLS)
        return [protocol for protocol in PROTOCOLS if protocol in good - bad]


@dataclass(frozen=True)
class Step:
    """A step. deadline_s: after it the step is killed. command: the arguments of `python`; none if
    there is nothing to do."""

    name: str
    deadline_s: float
    command: Callable[[Run], list[str]]


def _module(name: str, *more: str) -> Callable[[Run], list[str]]:
    def command(run: Run) -> list[str]:
        where = ["--lines", str(run.lines), "--timeout-s", run.timeout_s]
        return ["-m", f"first_contact.{name}", *where, *more]

    return command


def _of_sound(make: Callable[[Run, str], list[str]]) -> Callable[[Run], list[str]]:
    """A command that gets the protocols in which nothing was wrong; none without any."""
    return lambda run: make(run, ",".join(run.sound())) if run.sound() else []


def _tests(
    name: str, *paths: str, workers: int = 0, deadline_s: float, share: bool = False
) -> Step:
    """Tests as a step. share: whether it runs a sample of them."""

    def command(run: Run) -> list[str]:
        found = ["-m", "pytest", "-p", "no:cacheprovider", "-p", "first_contact.outcomes", "-q"]
        found += ["-o", "addopts=--strict-markers", "-o", "faulthandler_timeout=30", "-m", "gpu"]
        found += ["--tb=short", "--maxfail=3", "--lines", str(run.lines), "--step", name]
        if workers and find_spec("xdist"):
            found += ["-n", str(workers)]
        if share:
            found += ["--share", f"{run.share:g}", "--seed", str(int(time.time()))]
        return [*found, *paths]

    return Step(name, deadline_s, command)


def _cells(ranks: int, deadline_s: float) -> Step:
    """The comparison with NCCL, of so many ranks. It ends before its deadline with what it has."""

    def command(run: Run, protocols: str) -> list[str]:
        found = ["benchmarks/kernels.py", "--quick", "--parts", "cells", "--ranks", str(ranks)]
        found += ["--protocols", protocols, "--limit-s", f"{(deadline_s - 10) * run.slowness:g}"]
        found += ["--sizes", ",".join(str(n) for n in CELLS if n <= run.most_bytes)]
        found += ["--lines", str(run.lines), "--step", f"cells-{ranks}"]
        found += ["--timeout-s", run.timeout_s, "--out", str(run.out)]
        return [*found, *(["--nccl", run.nccl] if run.nccl else [])]

    return Step(f"cells-{ranks}", deadline_s, _of_sound(command))


def _sanitizer(run: Run) -> list[str]:
    return _module("sanitizer", "--limit-s", f"{26 * run.slowness:g}")(run)


def _bounded(name: str) -> Callable[[Run], list[str]]:
    """A step whose arrays are bounded."""
    return lambda run: _module(name, "--most-bytes", str(run.most_bytes))(run)


FAILURES = ("tests/gpu/test_gpu_failures.py", "tests/gpu/test_gpu_processes.py")
CALLS = "tests/gpu/test_gpu_calls.py"
LIBRARY = "tests/gpu/test_gpu_library.py"

# In the order of what they are worth. Of the ten minutes each step has what it took on an H100 with
# 16 cores, compilers included, and a seventh more; the cells end with what they have by then.
STEPS = (
    Step("facts", 12, _module("facts")),
    Step("copies", 20, _module("copies")),
    Step("smoke", 26, _module("smoke")),
    Step("scope", 30, _module("smoke", "--scope", "sys")),
    Step("parts", 25, _module("parts")),
    _cells(8, 98),
    _cells(4, 80),
    _cells(2, 60),
    Step("host", 20, _bounded("host")),
    Step("communicator", 75, _bounded("communicator")),
    Step("replays", 15, _module("replays")),
    Step("sanitizer", 30, _sanitizer),
    _tests("calls", CALLS, deadline_s=65),
    _tests("tests", LIBRARY, workers=WORKERS, share=True, deadline_s=44),
)

_INSTALL = ("-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps", "--upgrade")


def _all_kernels(run: Run) -> list[str]:
    nccl = ["--nccl", run.nccl] if run.nccl else []
    return ["benchmarks/kernels.py", "--lines", str(run.lines), "--out", str(run.out), *nccl]


FURTHER = (
    Step("build", 600, lambda _: [*_INSTALL, "--target", str(BUILT), "."]),
    Step("measure", 600, _all_kernels),
    Step("slots", 30, _bounded("slots")),
    # Alone: kernels of other processes, with which they took turns, would break their time limits.
    _tests("failures", *FAILURES, deadline_s=130),
    _tests("client", "tests/gpu/test_gpu_nccl.py", deadline_s=90),
    Step("programs", 180, _module("programs")),
)


def missing(chosen: Sequence[str]) -> list[str]:
    """The packages that the chosen steps need and that are not installed in this Python."""
    needs = BUILD_NEEDS | NEEDS if "build" in chosen else NEEDS
    return [package for module, package in needs.items() if not _is_there(module)]


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it
        return False


def _environment() -> dict[str, str]:
    before = os.environ.get("PYTHONPATH", "")
    path = [str(BUILT), str(ROOT / "benchmarks"), str(ROOT / "tests"), before]
    return {
        "CUDA_DEVICE_MAX_CONNECTIONS": "32",  # a queue for each rank's stream
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
    }


def _answers(run: Run) -> bool:
    """Whether the device answers."""
    return _ended(run, Step("device", DEVICE_S, lambda _: ["-m", "first_contact.device"]))


def _ended(run: Run, step: Step) -> bool:
    """Runs a step, tells how it ended, and returns whether it ended well."""
    from first_contact.deadlines import run_within
    from first_contact.lines import Lines

    lines, deadline_s = Lines(run.lines, step.name), step.deadline_s * run.slowness
    command = step.command(run)
    if not command:
        lines.write(left_out="no protocol passed the smoke step")
        return False
    lines.write(step_begins=command, deadline_s=deadline_s)
    try:
        end = run_within(
            [sys.executable, *command],
            deadline_s,
            run.out / f"{step.name}.log",
            cwd=ROOT,
            environment=_environment(),
        )
    except (KeyboardInterrupt, SystemExit):
        lines.write(step_ended="interrupted")
        raise
    how = "over its deadline" if end.code is None else "good" if end.is_good else "failed"
    last = {} if end.is_good else {"last": end.last}
    lines.write(step_ended=how, code=end.code, s=round(end.seconds, 1), **last)
    return end.is_good


def run_steps(run: Run, steps: Sequence[Step]) -> dict[str, bool]:
    """Runs steps one after another; whether each ended well. A step that ended badly may have lost
    the device: if it doesn't answer, the steps after it are left out."""
    from first_contact.lines import Lines

    ended: dict[str, bool] = {}
    for number, step in enumerate(steps):
        ended[step.name] = _ended(run, step)
        if ended[step.name] or step.name == "build" or number + 1 == len(steps):
            continue
        # Asked twice, since a killed process is cleared away slowly.
        if not _answers(run) and not _answers(run):
            for left in steps[number + 1 :]:
                Lines(run.lines, left.name).write(left_out="the device doesn't answer")
                ended[left.name] = False
            break
    return ended


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", type=lambda t: t.split(","), help="some of the steps")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--nccl", help="libnccl.so.2, of NCCL 2.30 or newer")
    parser.add_argument("--share", type=float, default=1 / 32, help="of the library's tests")
    parser.add_argument("--most-bytes", type=int, default=64 << 20, help="of a rank's array")
    parser.add_argument("--slowness", type=float, default=1.0, help="a factor of all deadlines")
    options = parser.parse_args(arguments)
    known = {step.name: step for step in (FURTHER[0], *STEPS, *FURTHER[1:])}
    chosen = options.only or [step.name for step in STEPS]
    unknown = set(chosen) - set(known)
    if unknown:
        parser.error(f"--only: {', '.join(sorted(unknown))} of {', '.join(known)}")
    options.steps = [step for name, step in known.items() if name in chosen]
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    lacking = missing([step.name for step in options.steps])
    if lacking:
        print(f"This Python lacks: {', '.join(lacking)}", file=sys.stderr)
        return 1
    for number in (signal.SIGTERM, signal.SIGHUP):  # the step is killed, too
        signal.signal(number, lambda signalled, _: sys.exit(128 + signalled))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # processes are ended by signals
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    lines = out / time.strftime("first-contact-%Y%m%d-%H%M%S.jsonl", time.gmtime())
    run = Run(lines, out, options.nccl, options.share, options.most_bytes, options.slowness)
    steps = options.steps
    if steps[0].name == "build":
        if not run_steps(run, steps[:1])["build"]:
            return 1
        steps = steps[1:]
    if steps and not _answers(run):
        lines.unlink()
        print("No GPU answers: nothing can be measured on this machine.", file=sys.stderr)
        return 1
    ended: dict[str, bool] = {}
    try:
        ended = run_steps(run, steps)
    finally:
        print(f"\nwritten: {lines}")
        for step in steps:
            print(f"  {step.name}: {'good' if ended.get(step.name) else 'NOT GOOD'}")
    return 0 if all(ended.values()) else 1


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    sys.exit(main())
