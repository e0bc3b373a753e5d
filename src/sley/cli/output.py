"""Output: text for people, JSON for programs, diagnostics for both; progress and times."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from sley.cli.annotations import SARIF, annotation_lines
from sley.cli.examples import EXAMPLES
from sley.errors import Diagnostic, SleyError, did_you_mean, printable, reason_of
from sley.errors.compiler import C301, C304, C305, C306, C308, C309, C310, C313, C315
from sley.errors.deployment import F525
from sley.errors.devices import K510
from sley.errors.formats import F404, F440, F460
from sley.errors.runtime import R514
from sley.errors.successors import gone
from sley.errors.tuning import D923
from sley.report.tables import stage_table

T = TypeVar("T")


INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it."""

WRONG, USAGE = 1, 2
"""The exit codes for a wrong program, plan, file or run, and for a wrong command line."""

_VALUES = frozenset(
    rule.code
    for rule in (
        *(C301, C304, C305, C308, C309, C310, C313, C315),
        *(D923, F440, F525, K510, R514),
    )
)
_STAGES = frozenset("LT")
_FILES = frozenset(rule.code for rule in (F404, F460))
"""Rules of the command line: of values and names, as are those of languages and topologies, which
have a file as their place if they stand in one; and files that can't be read."""

_NOTES = "sley.notes"
"""Where click's context keeps the remarks of a command."""


_COLORS = (
    (r"^(error|warning)(?=:)", "bold red"),
    (r"^note(?=:)", "yellow"),
    (r"^proven(?=:)", "green"),
    (r"^  (also|called from|expected|found|note|remedy|more)(?=:)", "cyan"),
    (r"(?<= )[A-Z]\d{3} [a-z][a-z-]+$", "bold"),
    (r"^#.*$", "dim"),
    # The names of columns: words far apart, above a row with numbers. Looks ahead, since a search
    # that goes back takes the square of a long line's time.
    (r"^(?! [a-z ]+:)(?=[^\d\n#]*\S  +\S)[^\d\n]*$(?=\n.*\d)", "bold"),
)
"""What stands out in lines, on terminals with colours: diagnostics, proofs, heads of tables."""


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Prints text for people: what files and other processes say can't control the terminal. In
    colours if the terminal has them and NO_COLOR isn't set, by the rules of rich."""
    shown = printable(str(text))
    console = Console(stderr=err, highlight=False, soft_wrap=True)
    try:
        if console.color_system is None or console.no_color:
            click.echo(shown, err=err, nl=nl)
            return
        colored = Text(shown)
        for pattern, style in _COLORS:
            colored.highlight_regex(re.compile(pattern, re.MULTILINE), style)
        console.print(colored, end="\n" if nl else "")
    except OSError as error:
        error.filename = "standard error" if err else "standard output"
        raise


def print_note(text: str) -> None:
    """Prints a remark on standard error, so that it is no part of a result; `print_json` adds it to
    one. A command's remark about several plans is printed once."""
    if context := click.get_current_context(silent=True):
        known: list[str] = context.meta.setdefault(_NOTES, [])
        if text in known:
            return
        known.append(text)
    echo(f"note: {text}", err=True)


def print_written(*files: Path | None) -> None:
    """Prints the names of the files that were written; None for no file."""
    print_rows(("written", file) for file in files if file is not None)


def print_rows(rows: Iterable[tuple[str, object]], *, err: bool = False) -> None:
    """Prints names and values side by side."""
    for name, value in rows:
        echo(f"{name:<22} {value}", err=err)


def print_json(value: object) -> None:
    """Prints `value` as one JSON document on standard output. That of a command, which has "ok",
    gets the remarks so far as "notes"."""
    if isinstance(value, dict) and "ok" in value:
        value = value | {"notes": click.get_current_context().meta.get(_NOTES, [])}
    echo(json.dumps(value, indent=2))


def attributes(one: object, *names: str) -> dict[str, Any]:
    """Attributes by name, for the JSON of a command."""
    return {name: getattr(one, name) for name in names}


def _show_warning(message: Warning | str, *_place: object, **_source: object) -> None:
    """Prints a warning of the library as a remark."""
    print_note(str(message))


class Gone(click.ClickException):
    """Wrong usage: something that an earlier version had; the diagnostic names its successor."""

    exit_code = 2

    def __init__(self, error: SleyError) -> None:
        super().__init__(str(error))
        self._error = error

    def show(self, file: Any = None) -> None:
        report_error(self._error, as_json=False)


def _own_path(ctx: click.Context) -> str:
    """The words of a command after sley."""
    return ctx.command_path.partition(" ")[2]


def options_of(command: click.Command) -> set[str]:
    """The options of a command, as they are written."""
    return {word for one in command.params for word in (*one.opts, *one.secondary_opts)}


def _commands_with(option: str, group: click.Command, path: str = "") -> Iterator[str]:
    """The commands of a group that have an option."""
    for name, command in getattr(group, "commands", {}).items():
        if option in options_of(command):
            yield path + name
        yield from _commands_with(option, command, f"{path}{name} ")


_MOST_COMMANDS = 4
"""Commands that have an option, at most, for one without it to name them."""


class _Usage(click.Command):
    """A command that answers wrong options: one that went with what replaces it, one of few other
    commands with these, one that is given twice; examples end its help."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if examples := EXAMPLES.get(ctx.command_path):
            with formatter.section("Examples"):
                for words, line in examples:
                    formatter.write(f"{'':{formatter.current_indent}}# {words}\n")
                    formatter.write(f"{'':{formatter.current_indent}}sley {line}\n")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            if not ctx.resilient_parsing:
                self._refuse_repeated(ctx, args)
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            option = error.option_name
            if found := gone("option", option, _own_path(ctx)):
                raise Gone(found) from None
            if option == "--size" and "--begin" in options_of(self):
                text = f"{ctx.command_path} has no --size: give -b SIZE -e SIZE, the same for one"
                raise click.UsageError(text, ctx) from None
            others = [*_commands_with(option, ctx.find_root().command)]
            if 0 < len(others) <= _MOST_COMMANDS:
                near = did_you_mean(option, {*(error.possibilities or ())} - {"--help"})
                near += " " if near else ""
                has = f"{near}Commands with it: {', '.join(others)}"
                raise click.UsageError(f"{ctx.command_path} has no {option}. {has}", ctx) from None
            raise
        except click.BadParameter as error:
            wrong = re.match(r"'(.*)' is not one of (.*)\.", error.message)
            if wrong and (hint := did_you_mean(wrong[1], re.findall("'(.*?)'", wrong[2]))):
                error.message += f" {hint}"  # type: ignore[misc]  # click prints it
            raise

    def _refuse_repeated(self, ctx: click.Context, args: list[str]) -> None:
        """Refuses an option with one value that is given twice: click takes the last value."""
        seen = set[str | None]()
        # click's `parse_args` parses again: it doesn't tell in which order it met which options.
        for one in self.make_parser(ctx).parse_args(list(args))[2]:
            if not isinstance(one, click.Option) or one.multiple:
                continue
            if one.name in seen and not (one.is_bool_flag and not one.secondary_opts):
                same = [p for p in self.get_params(ctx) if p.name == one.name]
                names = [name for p in same for name in (p.opts[-1], *p.secondary_opts)]
                once = f"give {names[0]} once"
                if len(names) > 1:
                    once = f"give one of {' and '.join(names)}, not both"
                raise click.UsageError(once, ctx)
            seen.add(one.name)


class Command(_Usage):
    """A command in which a SleyError becomes diagnostics and an exit code, and a warning a
    remark.

    sections: titles for the help of options, by the option's parameter; it shows the others first.
    """

    sections: ClassVar[Mapping[str, str]] = {}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows: dict[str, list[tuple[str, str]]] = {"Options": []}
        rows |= {title: [] for title in self.sections.values()}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            if row and isinstance(parameter, click.Option):
                rows[self.sections.get(str(parameter.name), "Options")].append(row)
        for title, own in rows.items():
            if own:
                with formatter.section(title):
                    formatter.write_dl(own)

    def invoke(self, ctx: click.Context) -> object:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show_warning
                return super().invoke(ctx)
        except click.ClickException as error:
            error.message = printable(error.message)  # type: ignore[misc]  # click prints it
            raise
        except (SleyError, MemoryError) as error:
            if isinstance(error, MemoryError):
                found = str(error) or "no memory left"
                error = C306.error(expected="memory for the whole program", found=found)
            form, as_json = ctx.params.get("output_format"), bool(ctx.params.get("as_json"))
            sys.exit(report_refusal(error, form, as_json=as_json))
        except BrokenPipeError:
            # The reader of the output has ended (sley list | head).
            sys.stderr.close()
            sys.exit(1)
        except OSError as error:
            named = "" if error.filename is None else f"{error.filename}: "
            echo(f"error: {named}{reason_of(error)}", err=True)
            sys.exit(WRONG)
        except KeyboardInterrupt:
            echo("interrupted", err=True)
            sys.exit(INTERRUPTED)


def report_refusal(error: SleyError, form: str | None, *, as_json: bool = False) -> int:
    """Prints an error, for code review in this form; returns the exit code, USAGE for one that the
    command line alone makes."""
    if form is not None:
        for line in annotation_lines(form, error.diagnostics):
            echo(line)
    if form != SARIF:
        report_error(error, as_json=as_json)
    first = error.diagnostics[0]
    is_missing = first.found == os.strerror(errno.ENOENT)
    is_value = first.code in _VALUES or first.code[0] in _STAGES
    in_file = any(place.file for place in first.places)
    is_usage = is_missing or first.code in _FILES or (is_value and not in_file)
    return USAGE if is_usage else WRONG


class CommandGroup(_Usage, click.Group):
    """Commands; for one that doesn't exist its successor or the most similar names are told."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            if found := gone("command", name, _own_path(ctx)):
                raise Gone(found)
            longer = [own for own in self.commands if own.startswith(name)]
            hint = f"Did you mean {' or '.join(longer)}?" if longer else ""
            hint = hint or did_you_mean(name, self.commands)
            hint = hint or f"{ctx.command_path} --help lists them."
            raise click.UsageError(f"there is no command {name!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)


def diagnostics_json(error: SleyError) -> list[dict[str, object]]:
    """The JSON of an error's diagnostics."""
    return [diagnostic.to_json() for diagnostic in error.diagnostics]


def report_error(error: SleyError, *, as_json: bool) -> None:
    """Prints an error's diagnostics: JSON on standard output, or text on standard error."""
    if as_json:
        print_json({"ok": False, "diagnostics": diagnostics_json(error)})
        return
    for diagnostic in error.diagnostics:
        echo(f"error: {diagnostic}\n", err=True)


def report_notes(notes: tuple[Diagnostic, ...]) -> None:
    """Prints remarks on standard error."""
    for note in notes:
        print_note(note.brief)


@dataclass
class Phases:
    """Measures phases, with a spinner on a terminal.

    verbose: whether `report` prints the times.
    quiet: without the spinner.
    print_after: the passes of the compiler whose results are printed.
    seconds: the time of each phase.
    """

    verbose: bool
    quiet: bool = False
    print_after: Collection[str] = ()
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        console = Console(stderr=True)
        try:
            if self.quiet or not console.file.isatty():  # whatever FORCE_COLOR says
                yield
            else:
                words = TextColumn("{task.description}")
                columns = (SpinnerColumn(), words, TimeElapsedColumn())
                with Progress(*columns, console=console, transient=True) as progress:
                    progress.add_task(name, total=None)
                    yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def run(self, name: str, work: Callable[[], T], /) -> T:
        """Runs a phase of the compiler; returns its result."""
        with self(name):
            value = work()
        if name in self.print_after:
            echo("\n".join([f"after {name}:", *stage_table(value), ""]))
        return value

    @contextmanager
    def progress(
        self, name: str, is_over: Callable[[], bool] = lambda: False, *, several: bool = False
    ) -> Iterator[Callable[[int, int], Any]]:
        """Measures a phase that tells what is done, and all, to the function that it gets, which
        answers whether the phase is to end. several: whether it begins anew several times."""
        with self.bar() as bar, self(name):
            task, before, last = bar.add_task(name, total=None), 0, 0

            def show(done: int, total: int) -> bool:
                nonlocal before, last
                before, last = before + (last if done < last else 0), done
                bar.update(task, completed=before + done, total=None if several else total)
                return is_over()

            yield show

    def bar(self) -> Progress:
        """A progress bar for a phase of known length."""
        return progress_bar(quiet=self.quiet)

    def print_json(self, ok: bool = True, /, **values: object) -> None:
        """Prints the result of a command, with the time of each phase, as JSON."""
        print_json({"ok": ok, **values, "seconds": self.seconds})

    def report(self) -> None:
        """Prints the times on standard error, if they are wanted."""
        if self.verbose:
            for name, seconds in self.seconds.items():
                echo(f"{name:<22} {seconds * 1e3:>10.1f} ms", err=True)


def progress_bar(*, quiet: bool) -> Progress:
    """A progress bar for work of known length, on standard error; lines without a terminal. quiet:
    nothing."""
    console = Console(stderr=True)
    if quiet:
        return Progress(disable=True)
    if not console.file.isatty():  # whatever FORCE_COLOR says
        return _Lines(disable=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TextColumn("left:"), TimeRemainingColumn())
    return Progress(*columns, *times, console=console, transient=True)


@contextmanager
def first_interrupt() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C interrupts nothing here: the function that is yielded then returns True. The
    second one interrupts."""
    came = list[int]()

    def note(number: int, _frame: object) -> None:
        came.append(number)
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(came)
    finally:
        signal.signal(signal.SIGINT, before)


_LINE_S = 10.0
"""The time between lines of progress."""


class _Lines(Progress):
    """Prints how far work is, in a line every few seconds; nothing for short work."""

    _last = 0.0

    def start(self) -> None:
        self._last = time.monotonic()
        super().start()

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        self._tell(task_id)

    def update(self, task_id: TaskID, **changes: Any) -> None:
        super().update(task_id, **changes)
        self._tell(task_id)

    def _tell(self, task_id: TaskID) -> None:
        if time.monotonic() - self._last < _LINE_S:
            return
        self._last = time.monotonic()
        task = next(task for task in self.tasks if task.id == task_id)
        line = f"{task.description}: {task.completed:.0f}"
        line += " done" if task.total is None else f" of {task.total:.0f}"
        if task.total and task.completed and task.elapsed:
            left_s = task.elapsed * (task.total / task.completed - 1)
            line += f", about {left_s:.0f} s left"
        echo(line, err=True)
