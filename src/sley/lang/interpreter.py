"""The interpreter: runs the code of users' files, and is afterwards as it was before."""

from __future__ import annotations

import io
import os
import shlex
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from sysconfig import get_path
from types import ModuleType

from sley.errors import Place, SleyError, did_you_mean
from sley.errors.formats import F404
from sley.errors.language import L114


class UserFile:
    """A user's Python file. Its code runs as the module of the given name, with its folder
    importable; afterwards the interpreter is as it was before. What the code has set (arguments,
    search path, modules, working folder, recursion limit) holds when more of it runs.

    arguments: those after its name in `sys.argv`. run_name: its `__name__`. remedy: that of L114.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        arguments: Sequence[str] = (),
        *,
        run_name: str,
        remedy: str = "",
    ) -> None:
        self.path = Path(path)
        self._arguments, self._name, self._remedy = tuple(arguments), run_name, remedy
        self._module = ModuleType(run_name)
        self._module.__file__ = str(self.path)
        self._modules: dict[str, object] = {run_name: self._module}
        self._left: _Settings | None = None

    @property
    def values(self) -> Mapping[str, object]:
        """The file's globals."""
        return vars(self._module)

    def run(self, *, may_exit: bool = False) -> bool:
        """Runs the file; whether to its end.

        may_exit: whether it may end by `sys.exit` with code 0. Errors: L114, F404; L114 if it ends
        by `sys.exit` otherwise.
        """
        if not self.path.is_file():
            found = "a folder" if self.path.is_dir() else "nothing there"
            raise F404.error(
                at=Place(str(self.path)),
                expected="a Python file",
                found=found,
                remedy="Give the path of a Python file, or the name of an algorithm that `sley "
                "list` prints.",
            )
        with self.running(may_exit=may_exit):
            try:
                # Python's own way of reading, which knows encodings.
                with io.open_code(str(self.path.resolve())) as stream:
                    code = compile(stream.read(), str(self.path), "exec", dont_inherit=True)
                exec(code, vars(self._module))
            except SystemExit as error:
                if may_exit and _is_success(error):
                    return False
                raise
        return True

    @contextmanager
    def running(self, remedy: str = "", *, may_exit: bool = False) -> Iterator[None]:
        """Runs code of the file in the ``with`` block. Errors: as of `run`."""
        try:
            with _same_interpreter_afterwards(), own_modules(self.path, self._modules):
                if self._left is None:
                    sys.argv = [str(self.path), *self._arguments]
                    sys.path.insert(0, str(self.path.resolve().parent))
                else:
                    self._left.restore()
                try:
                    yield
                finally:
                    self._left = _Settings.now(_ATTRIBUTES)
        except (KeyboardInterrupt, BrokenPipeError):
            raise
        except SleyError as error:
            place = _own_line(self.path, error)
            if not place.line or any(p.file for d in error.diagnostics for p in d.places):
                raise
            raise SleyError(
                [replace(d, places=(place, *d.places)) for d in error.diagnostics]
            ) from error
        except SystemExit as error:
            raise L114.error(
                at=_own_line(self.path, error),
                expected="exit code 0" if may_exit else "code that runs to its end",
                found=f"sys.exit({error.code!r})",
                remedy="Pass the arguments that the file expects, after -- on the command line.",
            ) from error
        except BaseException as error:  # also exceptions that the file defines
            raise self.problem(error, remedy) from error

    def problem(self, error: BaseException, remedy: str = "") -> SleyError:
        """An exception of the file's code: a SleyError as it is, another one as L114."""
        if isinstance(error, SleyError):
            return error
        command = shlex.join(["python", str(self.path), *self._arguments])
        whole = f"Correct the named line; {command} shows the whole traceback."
        remedy = remedy or self._remedy or whole
        if isinstance(error, SyntaxError):
            at = Place(error.filename or str(self.path), error.lineno or 0, error.offset or 0)
            return L114.error(at=at, expected="Python", found=str(error.msg), remedy=remedy)
        return L114.error(
            at=_own_line(self.path, error),
            expected="code that runs to its end",
            found=_words(error),
            remedy=remedy,
        )


_ATTRIBUTES = ("argv", "path")
"""Attributes of `sys` that a file's code may set, and relies on."""

_STREAMS = ("stdin", "stdout", "stderr")
"""Attributes of `sys` that a file's code may set; its caller may have other ones each time."""


@dataclass(frozen=True)
class _Settings:
    """Settings of the interpreter that a file's code may change, to anything.

    attributes: of `sys`, by name. contents: of those that are lists.
    """

    attributes: dict[str, object]
    contents: dict[str, list[object]]
    recursion_limit: int
    folder: str | None

    @classmethod
    def now(cls, names: Sequence[str]) -> _Settings:
        """The settings, with these attributes."""
        values = {name: getattr(sys, name, None) for name in names}
        contents = {name: list(value) for name, value in values.items() if isinstance(value, list)}
        return cls(values, contents, sys.getrecursionlimit(), _working_folder())

    def restore(self) -> None:
        vars(sys).update(self.attributes)
        for name, content in self.contents.items():
            # The list stays the same one, which other modules may hold.
            getattr(sys, name)[:] = content
        sys.setrecursionlimit(self.recursion_limit)
        if self.folder is not None:
            with suppress(OSError):  # it may be gone
                os.chdir(self.folder)


@contextmanager
def _same_interpreter_afterwards() -> Iterator[None]:
    """Puts back the settings and the filters of warnings."""
    settings = _Settings.now((*_ATTRIBUTES, *_STREAMS))
    try:
        with warnings.catch_warnings():
            yield
    finally:
        settings.restore()


def _working_folder() -> str | None:
    try:
        return str(Path.cwd())
    except OSError:  # somebody has removed it
        return None


def _is_success(error: SystemExit) -> bool:
    """Whether an exit has code 0. Python exits with 1 for a code that is no integer, 0.0
    included."""
    return error.code is None or (isinstance(error.code, int) and error.code == 0)


def _words(error: BaseException) -> str:
    """The exception's type and, unless its own `__str__` fails, its message; with attributes that
    are similar to a missing one, which Python tells only in a traceback."""
    name = type(error).__name__
    try:
        missing = error.name if isinstance(error, AttributeError) and error.name else ""
        known = [one for one in dir(getattr(error, "obj", None)) if not one.startswith("_")]
        hint = did_you_mean(missing, known) if missing else ""
        return f"{name}: {error}{'. ' if hint else ''}{hint}"
    except BaseException:  # the file's own code
        return name


def _own_line(path: Path, error: BaseException) -> Place:
    """The innermost line of the user's file that led to the error."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    return Place(str(path), frames[-1].lineno or 0) if frames else Place(str(path))


_SLEY = Path(__file__).parents[1]
"""The folder of sley's modules."""

_INSTALLED = frozenset({"site-packages", "dist-packages"})
"""The names of folders of installed modules, also of those that `sysconfig` does not list."""


@contextmanager
def own_modules(path: Path, own: dict[str, object]) -> Iterator[None]:
    """The modules of a file, among all modules in the ``with`` block alone: another file may have
    modules of the same names. Modules that the file replaces or removes come back.

    own: the modules that the file has loaded from its folder; those that it loads in the block are
        added. Installed modules are none of them, even if they are below that folder.
    """
    modules, before = sys.modules, dict(sys.modules)
    folder = path.resolve().parent
    installed = _installed_below(folder)
    modules.update(own)  # type: ignore[arg-type]
    try:
        yield
    finally:
        sys.modules = modules
        # The path of a package may depend on other modules: it is looked up before they are gone.
        changed = {n: m for n, m in modules.items() if n not in before or m is not before[n]}
        own |= {n: m for n, m in changed.items() if _is_own(m, folder, installed)}
        for name in own.keys() & changed.keys() - before.keys():
            del modules[name]
        modules.update(before)


def _is_own(module: object, folder: Path, installed: Sequence[Path]) -> bool:
    """Whether a module is of a file's folder, outside of the folders of installed ones; also what a
    file has put in a module's place."""
    if not isinstance(module, ModuleType):
        return True
    place = _place_of(module)
    return (
        place is not None
        and folder in place.parents
        and not any(root in place.parents for root in installed)
        and _INSTALLED.isdisjoint(place.relative_to(folder).parts)
    )


def _place_of(module: ModuleType) -> Path | None:
    """The file of a module, or the folder of a package without one; None for other modules."""
    values = vars(module)
    place = values.get("__file__")
    if place is None:
        try:
            place = next(iter(values.get("__path__") or ()), None)
        except (AttributeError, KeyError, TypeError):  # a file may set it to anything
            return None
    return Path(place).resolve() if isinstance(place, str) and "\0" not in place else None


def _installed_below(folder: Path) -> list[Path]:
    """The folders of installed modules and of sley that are in a folder, or are the folder."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    roots = [root.resolve() for root in (*(Path(get_path(name)) for name in names), _SLEY)]
    return [root for root in roots if folder in (root, *root.parents)]
