"""Builds sley on a machine with a GPU, and runs the tests and measurements that need the GPU.

    python benchmarks/on_gpu.py [--only build,device,tests,...] [--out DIR] [-- --quick ...]

The steps are build, device, tests, sanitizer and measure. The script needs no network. It builds
sley in build/gpu with the machine's software: Python 3.11 or newer, a C++17 compiler,
scikit-build-core, nanobind, CMake and Ninja for the build; sley's own requirements (numpy, numba,
click, rich, matplotlib); cuda-core, cuda-bindings and NVRTC for the GPU; pytest and
hypothesis for the tests. It uses PyTorch, CuPy, pytest-xdist and compute-sanitizer if they are
installed. Arguments after `--` are passed to benchmarks/kernels.py, such as --nccl libnccl.so.2.
DIR, by default benchmarks/results, gets a log of each step, which includes the tables, and the
measurements as JSON.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILT = ROOT / "build" / "gpu"
BUILD_NEEDS = {"scikit_build_core": "scikit-build-core", "nanobind": "nanobind"}
NEEDS = {
    "numpy": "numpy",
    "numba": "numba",
    "click": "click",
    "rich": "rich",
    "matplotlib": "matplotlib",
    "cuda.core": "cuda-core",
    "cuda.bindings": "cuda-bindings",
    "pytest": "pytest",
    "hypothesis": "hypothesis",
}
PYTEST = ("-m", "pytest", "-p", "no:cacheprovider", "-o", "addopts=--strict-markers", "-ra", "-q")
WORKERS = "6"
"""Number of test processes at the same time: they spend most of their time in compilers."""


def steps(kernels: Sequence[str], out: Path) -> dict[str, list[str]]:
    """The arguments of `python` for each step."""
    install = ["-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps", "--upgrade"]
    workers = ["-n", WORKERS] if find_spec("xdist") else []
    tests = [*PYTEST, "-m", "gpu", "tests/gpu"]
    find = "from sley.devices.cuda import CudaDevice; print(CudaDevice.open(0).name)"
    return {
        "build": [*install, "--target", str(BUILT), "."],
        "device": ["-c", find],
        "tests": [*tests, *workers, "--deselect", "tests/gpu/test_gpu_sanitizer.py"],
        "sanitizer": [*tests, "-k", "sanitizer"],
        "measure": ["benchmarks/kernels.py", "--out", str(out), *kernels],
    }


def missing(chosen: Sequence[str]) -> list[str]:
    """The packages that the chosen steps need and that are not installed in this Python."""
    needs = BUILD_NEEDS | NEEDS if "build" in chosen else NEEDS
    return [package for module, package in needs.items() if not _is_there(module)]


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it
        return False


def run(name: str, command: Sequence[str], out: Path) -> bool:
    """Runs a step, with its output printed and in a log; returns whether it succeeded."""
    begin = time.monotonic()
    print(f"== {name}: python {' '.join(command)}", flush=True)
    path = [str(BUILT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    with (out / f"{name}.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            print(line, end="", flush=True)
    code = process.wait()
    print(f"== {name}: ended with {code} after {time.monotonic() - begin:.0f} s", flush=True)
    return code == 0


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    cut = given.index("--") if "--" in given else len(given)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", type=lambda t: t.split(","), help="some of the steps")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args(given[:cut])
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    commands = steps(given[cut + 1 :], out)
    chosen = options.only or list(commands)
    unknown = set(chosen) - set(commands)
    if unknown:
        parser.error(f"--only: {', '.join(sorted(unknown))} of {', '.join(commands)}")
    lacking = missing(chosen)
    if lacking:
        print(f"This Python lacks: {', '.join(lacking)}", file=sys.stderr)
        return 1
    ended = {}
    for name in chosen:
        ended[name] = run(name, commands[name], out)
        if name in ("build", "device") and not ended[name]:
            break
    print(", ".join(f"{name}: {'ok' if good else 'FAILED'}" for name, good in ended.items()))
    return 0 if all(ended.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
