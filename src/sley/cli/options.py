"""Options: those that several commands share, and the values that commands get from them."""

from __future__ import annotations

import ast
import os
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from multiprocessing import get_context, parent_process
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar, TypeVar

import click
from click.shell_completion import CompletionItem

from sley.algorithms import CATALOG
from sley.cli.output import Command, Gone, Phases, print_note
from sley.compiler import Options
from sley.compiler.deployment.runtimes import RUNTIMES
from sley.compiler.opening import Source
from sley.compiler.options import kinds
from sley.engine.types import DATA_TYPES
from sley.errors.successors import gone
from sley.ir.orders import BALANCED
from sley.ir.sizes import size_in_bytes
from sley.ir.words import Schedule

F = TypeVar("F", bound=Callable[..., Any])


class Whole(click.IntRange):
    """A whole number, at least `min` and at most `max`."""

    name = "number"

    def __init__(self, min: int, max: int | None = None) -> None:
        super().__init__(min, max)
        self._range = f"from {min}" if max is None else f"from {min} to {max}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return int(super().convert(value, param, ctx))
        except click.UsageError:
            self.fail(f"expected a whole number {self._range}, found {value!s:.40}", param, ctx)


POSITIVE = Whole(1)
FILE = click.Path(dir_okay=False, path_type=Path)

_ALIASES = {"half": "float16", "float": "float32", "double": "float64"}
_ALIASES |= {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_ALIASES |= {"f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2"}
_MAX_SIZES = 10_000

COMPILER_OPTIONS: dict[str, str] = {
    f.name: f.metadata["line"] for f in fields(Options) if f.metadata["line"] is not None
}
"""The compiler's options that the command line offers, each with its help text."""


@dataclass(frozen=True)
class Selection:
    """The plan to make: the values of `program_options` and `plan_options`.

    arguments: those of WHAT's algorithm or function, by name. script: those of WHAT's file, in
    `sys.argv`. opened: what was recognised so far, by its name.
    """

    what: str
    ranks: int | None = None
    nodes: int | None = None
    gpus: int | None = None
    root: int | None = None
    in_place: bool | None = None
    size: int | None = None
    topology: str | None = None
    collective: str | None = None
    options: Options = field(default_factory=Options)
    arguments: Mapping[str, object] = field(default_factory=dict)
    script: tuple[str, ...] = ()
    opened: dict[str, Source] = field(default_factory=dict, compare=False, repr=False)


def complete_names(names: Callable[[], Iterable[str]]) -> Callable[..., list[CompletionItem]]:
    """Completes an argument that is one of some names, or a file."""

    def complete(ctx: click.Context, param: click.Parameter, word: str) -> list[CompletionItem]:
        own = [CompletionItem(name) for name in names() if name.startswith(word)]
        return [*own, CompletionItem(word, type="file")]

    return complete


class EnumMember(click.Choice[str]):
    """A member of an enumeration by its value, in upper or lower case; not one of `excluded`."""

    def __init__(self, kind: type[Enum], excluded: Iterable[Enum] = ()) -> None:
        super().__init__([m.value for m in kind if m not in excluded], case_sensitive=False)
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, self._kind):
            return value
        return self._kind(super().convert(str(value), param, ctx))


class Several(click.ParamType[tuple[Any, ...]]):
    """Values of one type, separated by commas."""

    def __init__(self, one: click.ParamType[Any]) -> None:
        self._one = one
        self.name = f"{one.name}s"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        return f"{self._one.get_metavar(param, ctx) or self._one.name.upper()},..."

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        if isinstance(value, tuple):
            return value
        return tuple(self._one.convert(part, param, ctx) for part in str(value).split(","))


OWN = "sley"
"""The target of folders for sley's own communicators."""


class RuntimeName(click.Choice[str]):
    """A runtime, as NAME or NAME@VERSION. Besides those given, one that reads the files of one of
    them stands for it. any_version: whether other versions are known than those given."""

    def __init__(self, names: Iterable[str], *, any_version: bool = False) -> None:
        super().__init__(list(names))
        self._any_version = any_version

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        versioned = {name.partition("@")[0] for name in self.choices if "@" in name}
        names = [name for name in self.choices if "@" not in name]
        if self._any_version:
            return f"[{'|'.join(names)}][@VERSION]"
        return f"[{'|'.join(name + '[@VERSION]' * (name in versioned) for name in names)}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        name, at, version = str(value).partition("@")
        if found := gone("runtime", name):
            raise Gone(found)
        if name == OWN and at and OWN in self.choices:
            self.fail(f"{OWN} takes no version", param, ctx)
        if name in self.choices:
            return (
                f"{name}{at}{version}" if self._any_version else super().convert(value, param, ctx)
            )
        known = next((one for one in RUNTIMES if one.name == name), None)
        if known is not None and known.refusal is not None:
            self.fail(f"{name}: {known.refusal[1]}", param, ctx)
        if known is not None:
            value = f"{known.target.partition('@')[0]}{at}{version}"
        return super().convert(value, param, ctx)


class DType(click.Choice[str]):
    """A data type by the name in NumPy or in nccl-tests."""

    def __init__(self) -> None:
        super().__init__([*sorted(DATA_TYPES), *_ALIASES])

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        name = super().convert(value, param, ctx)
        return _ALIASES.get(name, name)


class BlockThreads(Whole):
    """The number of threads of a thread block: whole warps, at most the GPU's limit."""

    def __init__(self) -> None:
        super().__init__(32, 1024)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number = int(super().convert(value, param, ctx))
        if number % 32:
            self.fail(f"{number} threads are not whole warps of 32", param, ctx)
        return number


class SizeFactor(click.ParamType[float]):
    """The ratio of a size to the one before: more than 1."""

    name = "number"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            factor = float(str(value))
        except ValueError:
            factor = 0.0
        if not 1 < factor < 1e12:
            self.fail(f"expected a number above 1, found {value!s:.40}", param, ctx)
        return int(factor) if factor.is_integer() else factor


class SizeType(click.ParamType[int]):
    """A size in bytes, as for nccl-tests; K, M and G are powers of 1024."""

    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        size = size_in_bytes(value)
        if size is None:
            bits = ", in bytes (B), not bits (b)" if str(value).endswith("b") else ""
            such = f"such as 4096, 64K, 16M or 1G{bits}"
            self.fail(f"{value!r} is not a size from 1, {such}", param, ctx)
        return size


PARAMETERS = ("ranks", "nodes", "gpus")
"""Parameters of programs that have options; others are given by --arg."""

_WORDS = "sley.words"
"""The key of a context's `meta` for the command's words, and for those that it got."""


class PlanCommand(Command):
    """A command that takes WHAT; the words after ``--`` are for a Python file."""

    sections: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys((*PARAMETERS, "root", "in_place", "arguments", "collective"), "WHAT"),
        **dict.fromkeys(("values", "interpreter"), "Cost model"),
        **dict.fromkeys(("output", "html", "plot", "trace_file", "verbose", "as_json"), "Output"),
        **dict.fromkeys(COMPILER_OPTIONS, "Compiler"),
    }

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_WORDS] = tuple(ctx.command_path.split()), tuple(args)
        return super().parse_args(ctx, args[: args.index("--")] if "--" in args else args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- ARGS]"]


def script_arguments() -> tuple[str, ...]:
    """The words after ``--`` of the current `PlanCommand`."""
    _, words = given_words()
    return words[words.index("--") + 1 :] if "--" in words else ()


def given_words() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The words of the current `PlanCommand`, such as sley and run, and those that it got."""
    found: tuple[tuple[str, ...], tuple[str, ...]] = click.get_current_context().meta[_WORDS]
    return found


def named_values(texts: Iterable[str], option: str) -> dict[str, str]:
    """The values of texts NAME=VALUE, by name. option: the one that they were given to. Errors:
    click's for a text without a value, and for a name that is given twice."""
    values: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=option)
        if name in values:
            raise click.BadParameter(f"{name} is given twice", param_hint=option)
        values[name] = value
    return values


def _literals(
    ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]
) -> dict[str, object]:
    """The arguments NAME=VALUE, by name, with their values as Python's literals or as texts."""
    return {name: _literal(text) for name, text in named_values(texts, ARG).items()}


def _literal(text: str) -> object:
    try:
        with warnings.catch_warnings():  # Python's, about a text like 1if
            warnings.simplefilter("ignore")
            return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


ARG = "--arg"
"""The option for an argument of a function in a Python file."""

argument_option = click.option(
    ARG,
    "arguments",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_literals,
    help="A parameter of the algorithm, the text or the function FILE.py:NAME: a Python literal, "
    "or else a text. (--set is for the cost model.)",
)
"""Adds --arg; the command gets the values by name."""


collective_option = click.option(
    "--collective",
    metavar="FILE.py|NAME",
    help="The program with the collective of an XML file that does not name it; for ForestColl's "
    "trees, allgather, reducescatter or allreduce.",
)
"""Adds --collective."""


def flag(word: str) -> str:
    """An option of the compiler as the command line spells it."""
    return f"--{word.replace('_', '-')}"


def parameter_flag(word: str) -> str:
    """A parameter of a program as the command line gives it."""
    has_option = word in (*PARAMETERS, "root", "in_place", "channels")
    return flag(word) if has_option else f"{ARG} {word}=VALUE"


def compiler_options(*, several: bool = False) -> Callable[[F], F]:
    """Adds the options of the compiler; None by default.

    several: whether each takes several values; its help then names no default, and `auto`, which
        chooses one value by the size, is not among them.
    """

    def decorate(command: F) -> F:
        for word in reversed(COMPILER_OPTIONS):
            kind, line = kinds()[word], COMPILER_OPTIONS[word]
            if several:
                line = line.partition(" [")[0]
            if kind is bool:
                name = f"{flag(word)}/{flag(f'no_{word}')}"
                command = click.option(name, word, default=None, help=line)(command)
            else:
                one: click.ParamType[Any] = click.INT
                if issubclass(kind, Enum):
                    one = EnumMember(kind, (Schedule.AUTO,) if several else ())
                kind_of_value = Several(one) if several else one
                command = click.option(flag(word), type=kind_of_value, help=line)(command)
        return command

    return decorate


def program_options(command: F) -> F:
    """Adds the argument WHAT and the options of its program, to a `PlanCommand`; it gets them as
    one `Selection`, its first argument. A plan of WHAT is compiled with the compiler's defaults."""

    @click.argument("what", shell_complete=complete_names(lambda: CATALOG))
    @click.option("--ranks", type=POSITIVE, help="Number of ranks.")
    @click.option("--nodes", type=POSITIVE, help="Number of nodes.")
    @click.option("--gpus", type=POSITIVE, help="GPUs on each node.")
    @click.option("--root", type=Whole(0), help="Root of a rooted collective.")
    @place_option()
    @click.option(
        "--topology",
        help="NAME[:NODES] (sley topology list), NODESxGPUS[:NICS] or a file. It defines which "
        "ranks are linked, and which share a network card.",
    )
    @argument_option
    @collective_option
    @click.pass_context
    def wrapper(ctx: click.Context, /, **values: Any) -> object:
        own = [f.name for f in fields(Selection) if f.name in values]
        chosen = {word: values.pop(word) for word in own}
        return ctx.invoke(command, Selection(**chosen, script=script_arguments()), **values)

    return standing_for(command, wrapper)


def plan_options(command: F) -> F:
    """Adds `program_options` and the options of the compiler, which make a plan of WHAT; a file
    with a plan is compiled again if --schedule is given."""

    def wrapper(selection: Selection, /, **values: Any) -> object:
        options = Options(**{word: values.pop(word) for word in COMPILER_OPTIONS})
        return command(replace(selection, options=options), **values)

    return program_options(standing_for(command, compiler_options()(wrapper)))


def standing_for(command: F, wrapper: Callable[..., object]) -> F:
    """The wrapper, which has options of its own, with the command's name, text and options."""
    wrapper.__name__ = command.__name__
    wrapper.__doc__ = command.__doc__
    wrapper.__click_params__ = [  # type: ignore[attr-defined]
        *getattr(command, "__click_params__", []),
        *wrapper.__click_params__,  # type: ignore[attr-defined]
    ]
    return wrapper  # type: ignore[return-value]


def option(*words: str, **settings: Any) -> Any:
    """A field of a dataclass, for `gather_options`: the value of this option of click."""
    return field(metadata={"words": words, "settings": settings})


def gather_options(kind: type[Any], name: str) -> Callable[[F], F]:
    """Adds options to a command, which gets their values as one `kind`, its parameter `name`. kind:
    a dataclass whose fields are each an `option`."""

    def decorate(command: F) -> F:
        def wrapper(*args: Any, **values: Any) -> object:
            own = {one.name: values.pop(one.name) for one in fields(kind)}
            return command(*args, **{name: kind(**own)}, **values)

        # Each option goes before those that were added, so the last one is added first.
        for one in reversed(fields(kind)):
            words, settings = one.metadata["words"], one.metadata["settings"]
            wrapper = click.option(*words, one.name, **settings)(wrapper)
        return standing_for(command, wrapper)

    return decorate


def sizes_between(begin: int, end: int, factor: float, step: int | None) -> list[int]:
    """Sizes from begin to end, each `factor` times the one before (rounded down to whole bytes, but
    larger), or `step` bytes larger."""
    count = (end - begin) // step if step else 0
    if count > _MAX_SIZES:
        raise click.UsageError(f"--step {step} makes {count} sizes; {_MAX_SIZES} are enough")
    sizes = [begin]
    # Each size is larger by a byte at least, and the check inside ends a factor near 1.
    while (
        size := sizes[-1] + step if step else max(int(sizes[-1] * factor), sizes[-1] + 1)
    ) <= end:
        if len(sizes) > _MAX_SIZES:
            raise click.UsageError(f"--factor {factor:g} makes more than {_MAX_SIZES} sizes")
        sizes.append(size)
    return sizes


def size_options(first: str, last: str | None = None) -> Callable[[F], F]:
    """Adds -b, -e, -f and -i of nccl-tests; the command gets the list of sizes as `sizes`.

    first, last: the default sizes; without `last`, the last size is the first.
    """
    size = SizeType()
    end_text = "Last size, also for -b alone." if last else "Last size. [the first]"

    def decorate(command: F) -> F:
        @click.option("-b", "--begin", type=size, default=first, help="First size.")
        @click.option(
            "-e", "--end", type=size, default=last, show_default=bool(last), help=end_text
        )
        @click.option(
            "-f",
            "--factor",
            type=SizeFactor(),
            help="Ratio of each size to the one before, such as 1.5. [2]",
        )
        @click.option(
            "-i", "--step", type=size, help="Bytes from one size to the next, instead of a factor."
        )
        def wrapper(
            *args: Any,
            begin: int,
            end: int | None,
            factor: float | None,
            step: int | None,
            **values: Any,
        ) -> object:
            if end is not None and end < begin:
                raise click.UsageError(f"--end {end} is less than --begin {begin}")
            if factor and step:
                raise click.UsageError("give --factor or --step, not both")
            if end is None and (factor or step):
                raise click.UsageError(f"{'--factor' if factor else '--step'} needs --end")
            sizes = sizes_between(begin, end or begin, factor or 2, step)
            return command(*args, sizes=sizes, **values)

        return standing_for(command, wrapper)

    return decorate


def output_option(text: str, *, required: bool = False) -> Callable[[F], F]:
    """Adds -o, a file to write."""
    return click.option("-o", "--output", type=FILE, required=required, help=text)


def place_option(
    text: str = "Whether input and output share memory.", default: bool | None = None
) -> Callable[[F], F]:
    """Adds --in-place and --out-of-place; the command gets `in_place`."""
    return click.option("--in-place/--out-of-place", "in_place", default=default, help=text)


def json_option(command: F) -> F:
    """Adds --json; the command gets it as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def same_bits_option(command: F) -> F:
    """Adds --same-bits and --balanced-bits; the command gets either as `same_bits`."""
    command = click.option(
        "--balanced-bits",
        "same_bits",
        type=click.UNPROCESSED,
        flag_value=BALANCED,
        default=False,
        help="As --same-bits, by a balanced tree of the ranks.",
    )(command)
    return click.option(
        "--same-bits",
        "same_bits",
        type=click.UNPROCESSED,
        flag_value=True,
        default=False,
        help="Only plans whose sums have one order: of each node the ranks one after another, then "
        "the nodes' sums.",
    )(command)


jobs_option = click.option(
    "-j", "--jobs", type=POSITIVE, default=1, help="Processes that compile and simulate."
)

limit_option = click.option(
    "--limit",
    "limit_s",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="End the search then, with the best that was compared.",
)


@contextmanager
def executor_of(jobs: int) -> Iterator[Executor | None]:
    """Processes that simulate; None for this one alone."""
    if jobs == 1:
        yield None
        return
    # Processes that start afresh: a forked one has locks of threads that it doesn't have.
    context = get_context("spawn")
    remarks = context.SimpleQueue()
    executor = ProcessPoolExecutor(jobs, context, _start, (remarks,))
    # Ctrl-C reaches them, too, but this process decides what it ends: they ignore it from their
    # first moment on, as they inherit, but for turns of searches.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    for _ in range(jobs):
        executor.submit(int)  # starts one: none is idle yet
    signal.signal(signal.SIGINT, before)
    try:
        yield executor
    except BrokenExecutor as error:
        remedy = "give fewer --jobs; sley choose --resume FILE keeps what was compared"
        text = f"a process of --jobs was killed, as for lack of memory: {remedy}"
        raise click.ClickException(text) from error
    finally:
        # They end their turns. An exception while they are joined would leave them for ever.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        executor.shutdown(cancel_futures=True)
        signal.signal(signal.SIGINT, before)
        while not remarks.empty():
            print_note(remarks.get())


def _start(remarks: SimpleQueue[str]) -> None:
    """Sends the texts of a process's warnings to its parent, which prints those of several once;
    and lets this process end when its parent is killed: its queue stays open, for the others write
    to it, too."""
    warnings.showwarning = lambda message, *_place, **_source: remarks.put(str(message))

    def end() -> None:
        if (parent := parent_process()) is not None:
            parent.join()
            os._exit(1)

    Thread(target=end, daemon=True).start()


def common_options(command: F) -> F:
    """Adds --json and -v; the command gets the `Phases` that they want, quiet with --json."""

    @click.option("-v", "--verbose", is_flag=True, help="Print more: each phase's time.")
    @json_option
    def wrapper(*args: Any, verbose: bool, as_json: bool, **values: Any) -> object:
        return command(*args, phases=Phases(verbose, quiet=as_json), **values)

    return standing_for(command, wrapper)
