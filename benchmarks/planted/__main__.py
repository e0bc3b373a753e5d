"""Plants faults in copies of sley, one at a time, and reports which tests catch them.

    python benchmarks/planted [--only TEXT] [--jobs 2] [--label NAME]

Run it with the Python of an environment that can run the tests. Each fault of `faults.py` is
planted in a copy of the tree, and changed compiled parts are rebuilt. The fault's own folders of
tests run first, up to the first failure; if none of them fails, all other tests of `make test` run.
A test that also fails without the fault catches nothing. Only the copies are changed.

Each result is written to benchmarks/results/planted-NAME.json at once. Faults with a result are not
tried again without --again. The exit status is 1 if a fault was missed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from faults import COMPILED, FAULTS, Fault, find, read_sources

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "benchmarks" / "results"
TIMEOUT_S = 3600.0
"""Longer tests are assumed to hang, which also catches a fault."""

_FAILURE = re.compile(r"^(?:FAILED|ERROR) (\S+?\.py(?:::.*?)?)(?: - .*)?$", re.MULTILINE)
_ENVIRONMENT = "import sysconfig; print(sysconfig.get_paths()['purelib'])"


@dataclass
class Result:
    """The result of a fault.

    by: the test that caught it, "" if none did.
    own: whether only the fault's own folders have run.
    seconds, build_s: the time of the tests, and of building compiled parts.
    note: a remark for the table.
    """

    name: str
    file: str
    caught: bool = False
    by: str = ""
    own: bool = True
    seconds: float = 0.0
    build_s: float = 0.0
    note: str = ""


class Copy:
    """A copy of a tree, with a separate environment that imports the copy's sley."""

    def __init__(self, tree: Path, place: Path, python: Path) -> None:
        self.root = place / "tree"
        self._python = self.root / ".venv" / "bin" / "python"
        self._built = place / "built"
        self._installed = self.root / "src" / "sley"
        self._libraries: dict[Path, bytes] = {}
        self._environment = os.environ | {"SLEY_CACHE_DIR": str(place / "cache")}
        shutil.rmtree(self.root, ignore_errors=True)
        _copy_tree(tree, self.root)
        _make_environment(python, self.root, self._installed.parent)
        self._configure(place, python)
        self.build()
        self._libraries = {p: p.read_bytes() for p in self._installed.rglob("*.so")}

    def _configure(self, place: Path, python: Path) -> None:
        tools = place / "tools"
        if not (tools / "nanobind").is_dir():
            pip = [str(python), "-m", "pip", "install", "--quiet", "--target", str(tools)]
            _run([*pip, "nanobind"])
        options = {
            "CMAKE_BUILD_TYPE": "Release",
            "CMAKE_INSTALL_PREFIX": self._installed,
            "Python_EXECUTABLE": self._python,
            "nanobind_ROOT": tools / "nanobind" / "cmake",
        }
        defined = [f"-D{name}={value}" for name, value in options.items()]
        _run(["cmake", "-S", str(self.root), "-B", str(self._built), *defined])

    def build(self) -> None:
        """Builds the compiled parts and installs them into the copy."""
        cores = str(os.cpu_count() or 1)
        _run(["cmake", "--build", str(self._built), "--parallel", cores])
        _run(["cmake", "--install", str(self._built)])

    def reset(self) -> None:
        """Restores the compiled parts of the tree without a fault."""
        for path, content in self._libraries.items():
            path.write_bytes(content)

    def first_failure(self, tests: Sequence[str], timeout_s: float) -> tuple[str, bool]:
        """The first test that fails, "" if none does, and whether the timeout expired. tests:
        arguments of pytest."""
        shutil.rmtree(self.root / ".hypothesis", ignore_errors=True)
        command = [str(self._python), "-m", "pytest", "-x", "-q", "-rfE", "-p", "no:cacheprovider"]
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                [*command, *tests],
                cwd=self.root,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code, late = process.wait(timeout_s), False
            except subprocess.TimeoutExpired:
                code, late = 1, True
            finally:
                _end(process)
            output.seek(0)
            text = output.read()
        if code in (0, 5):  # 5: no tests in these folders
            return "", False
        found = _FAILURE.search(text)
        last = text.strip().splitlines()[-1:] or [""]
        return found[1] if found else f"pytest ended with {code}: {last[0]}", late


def _copy_tree(tree: Path, target: Path) -> None:
    """Copies the files of a tree that git tracks or does not ignore."""
    listing = ["git", "-C", str(tree), "ls-files", "-z", "-co", "--exclude-standard"]
    for name in subprocess.check_output(listing, text=True).split("\0"):
        path = tree / name
        if name and path.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / name)  # with a new date, so that it is rebuilt
    _run(["git", "init", "-q", str(target)])


def _make_environment(python: Path, root: Path, packages: Path) -> None:
    """Makes an environment with the packages of `python`, but with sley from `packages`. A path
    file names both folders; Python ignores path files in folders named in this way."""
    _run([str(python), "-m", "venv", "--without-pip", "--symlinks", str(root / ".venv")])
    code = [str(root / ".venv" / "bin" / "python"), "-c", _ENVIRONMENT]
    own = Path(subprocess.check_output(code, text=True).strip())
    theirs = subprocess.check_output([str(python), "-c", _ENVIRONMENT], text=True).strip()
    (own / "planted.pth").write_text(f"{packages}\n{theirs}\n")
    if (Path(theirs) / "nvidia").is_dir():  # CUDA's packages look for one another here alone
        (own / "nvidia").symlink_to(Path(theirs) / "nvidia")
    _, _, script = (python.parent / "sley").read_text().partition("\n")
    command = root / ".venv" / "bin" / "sley"
    command.write_text(f"#!{command.parent}/python\n{script}")
    command.chmod(0o755)


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills the tests and all processes of their session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def plant(fault: Fault, copy: Copy, *, own_only: bool, timeout_s: float) -> Result:
    """Plants a fault, runs tests until one fails, and removes the fault."""
    path, edit = find(fault, read_sources(copy.root))
    original = path.read_text()
    result = Result(fault.name, str(path.relative_to(copy.root)))
    is_compiled = path.suffix in COMPILED
    path.write_text(original.replace(edit.text, edit.replacement))
    folders = [f"tests/{name}" for name in fault.tests if (copy.root / "tests" / name).is_dir()]
    runs = [(True, folders)]
    if not own_only:
        runs.append((False, ["tests", *(f"--ignore={folder}" for folder in folders)]))
    try:
        if is_compiled:
            start = time.monotonic()
            copy.build()
            result.build_s = time.monotonic() - start
        start = time.monotonic()
        for result.own, tests in runs:
            result.by, late = copy.first_failure(tests, timeout_s)
            if result.by:
                result.caught = True
                result.note = "timeout" if late else ""
                break
        result.seconds = time.monotonic() - start
    finally:
        path.write_text(original)
        if is_compiled:
            copy.reset()
    if result.caught and "::" in result.by and copy.first_failure([result.by], timeout_s)[0]:
        result.caught, result.note = False, "also fails without the fault"
    return result


def table(results: Sequence[Result]) -> str:
    """The results as a table in Markdown."""
    lines = ["| fault | file | caught by | s |", "|---|---|---|---|"]
    for r in results:
        by = r.by.removeprefix("tests/") if r.caught else f"**missed** {r.by}"
        note = f" ({r.note})" if r.note else ""
        lines.append(f"| {r.name} | {r.file} | {by}{note} | {r.build_s + r.seconds:.0f} |")
    caught = sum(r.caught for r in results)
    own = sum(r.caught and r.own for r in results)
    spent = sum(r.build_s + r.seconds for r in results) / 60
    lines.append(
        f"\n{caught} of {len(results)} caught, {own} in their own folders; {spent:.0f} min"
    )
    return "\n".join(lines)


class Results:
    """The results, kept in a file."""

    def __init__(self, path: Path, tree: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        words = ["git", "-C", str(tree), "describe", "--always", "--dirty"]
        self._commit = subprocess.check_output(words, text=True).strip()
        self.by_name: dict[str, Result] = {}
        if path.exists():
            rows = json.loads(path.read_text())["faults"]
            self.by_name = {row["name"]: Result(**row) for row in rows}

    def add(self, result: Result) -> None:
        with self._lock:
            self.by_name[result.name] = result
            content = {"commit": self._commit, "faults": [asdict(r) for r in self.in_order()]}
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps(content, indent=1) + "\n")
            by = result.by if result.caught else f"MISSED {result.by} {result.note}".rstrip()
            seconds = result.build_s + result.seconds
            print(f"{seconds:6.0f} s  {result.name}: {by}", flush=True)

    def has(self, fault: Fault, *, own: bool) -> bool:
        """Whether a fault needs no further tests. own: whether only its own folders are to run."""
        known = self.by_name.get(fault.name)
        return known is not None and (known.caught or own or not known.own)

    def in_order(self) -> list[Result]:
        known = [fault.name for fault in FAULTS]
        return [self.by_name[name] for name in known if name in self.by_name]


def run(chosen: Sequence[Fault], results: Results, options: argparse.Namespace) -> None:
    """Tries the faults, in one copy for each job."""
    waiting: queue.SimpleQueue[Fault] = queue.SimpleQueue()
    for fault in chosen:
        waiting.put(fault)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            place = options.work / options.label / str(number)
            copy = Copy(options.tree, place, options.python)
            while not errors:
                fault = waiting.get_nowait()
                results.add(plant(fault, copy, own_only=options.own, timeout_s=TIMEOUT_S))
        except queue.Empty:
            return
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(options.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    made = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    made.add_argument("--list", action="store_true", help="list the faults and their files")
    made.add_argument(
        "--only", action="append", default=[], help="only faults whose name contains this"
    )
    made.add_argument(
        "--own", action="store_true", help="run only the faults' own folders of tests"
    )
    made.add_argument("--again", action="store_true", help="also try faults that have a result")
    made.add_argument("--label", default="tree", help="the name of the results [%(default)s]")
    made.add_argument("--jobs", type=int, default=1, help="number of copies [%(default)s]")
    made.add_argument("--tree", type=Path, default=ROOT, help="the tree to copy [this one]")
    made.add_argument(
        "--python",
        type=Path,
        default=Path(sys.executable),
        help="the Python of an environment with all tools",
    )
    work = Path(tempfile.gettempdir()) / "sley-planted"
    made.add_argument(
        "--work", type=Path, default=work, help="the folder of the copies [%(default)s]"
    )
    return made.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    options.tree = options.tree.resolve()
    chosen = [f for f in FAULTS if not options.only or any(o in f.name for o in options.only)]
    sources = read_sources(options.tree)
    places = {fault: find(fault, sources)[0].relative_to(options.tree) for fault in chosen}
    if options.list:
        print("\n".join(f"{fault.name}\n    {place}" for fault, place in places.items()))
        return 0
    results = Results(RESULTS / f"planted-{options.label}.json", options.tree)
    left = [f for f in chosen if options.again or not results.has(f, own=options.own)]
    run(left, results, options)
    found = results.in_order()
    print(table(found))
    return 0 if all(result.caught for result in found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
