"""sley list, sley explain: the algorithms of the library, and the rules behind diagnostics."""

from __future__ import annotations

from textwrap import fill, indent

import click
from click.shell_completion import CompletionItem

from sley.algorithms import CATALOG
from sley.cli.options import json_option, parameter_flag
from sley.cli.output import Command, attributes, echo, print_json
from sley.errors import Rule, did_you_mean
from sley.errors.catalog import SUCCESSORS, WENT, all_rules


@click.command("list", cls=Command)
@click.argument("text", required=False)
@json_option
def list_command(text: str | None, as_json: bool) -> None:
    """List the algorithms of the library; with TEXT, those whose name or summary contains it."""
    shown = [a for a in CATALOG.values() if (text or "").lower() in f"{a.name} {a.summary}".lower()]
    if not shown:
        near = did_you_mean(str(text), [*CATALOG, *(a.collective for a in CATALOG.values())])
        message = f"no algorithm has {text!r} in its name or its summary. {near}"
        raise click.UsageError(message.strip())
    if as_json:
        print_json(
            [attributes(a, "name", "collective", "summary", "source", "parameters") for a in shown]
        )
        return
    width = max(len(a.name) for a in shown)
    for a in shown:
        options = " ".join(map(parameter_flag, (*a.parameters, *["in_place"] * a.has_both_places)))
        echo(f"{a.name:<{width}}  {a.summary}  [{options}]")


_WORD = 4
"""The fewest letters of a word that is searched in the rules' texts."""

_MOST = 8
"""The most rules that are named for a word."""


_PARTS = ("code", "name", "what", "why", "example", "instead")
"""What there is to say about a rule, in JSON."""


def _codes(ctx: click.Context, param: click.Parameter, word: str) -> list[CompletionItem]:
    """Completes a code."""
    rules = all_rules().items()
    begun = [(code, rule) for code, rule in rules if code.startswith(word.upper())]
    return [CompletionItem(code, help=rule.name) for code, rule in begun]


def _rule(code: str) -> Rule:
    """The rule of a code, perhaps a former one, or of a name. Errors: click's usage error."""
    rules = all_rules()
    code = SUCCESSORS.get(code.upper(), code)
    by_word = {**rules, **{rule.name: rule for rule in rules.values()}}
    for word in (code.upper(), code.lower()):
        if word in by_word:
            return by_word[word]
    if code.upper() in WENT:
        raise click.BadParameter(f"{code} went with {WENT[code.upper()]}", param_hint="CODE")
    texts = {rule: f"{rule.what} {rule.why} {rule.instead}".lower() for rule in rules.values()}
    about = [rule.title for rule, text in texts.items() if code.lower() in text]
    hint = did_you_mean(code, by_word)
    if len(code) >= _WORD and about:
        hint = f"These mention it: {', '.join(about[:_MOST])}."
    found = f"there is no code {code!r}. {hint}".strip()
    raise click.BadParameter(found, param_hint="CODE")


@click.command("explain", cls=Command)
@click.argument("code", required=False, shell_complete=_codes)
@json_option
def explain_command(code: str | None, as_json: bool) -> None:
    """Explain the diagnostic CODE (L112, or bad-argument); without CODE, list all codes."""
    rules = all_rules()
    if code is None:
        if as_json:
            print_json({rule.code: rule.name for rule in rules.values()})
        else:
            echo("\n".join(f"{code}  {rules[code].name}" for code in sorted(rules)))
        return
    rule = _rule(code)
    if as_json:
        print_json({word: getattr(rule, word) for word in _PARTS})
        return
    if code.upper() in SUCCESSORS:
        echo(f"{code.upper()} is now a case of {rule.code}.\n")
    echo(f"{rule.title}\n")
    for title, text in (("What", rule.what), ("Why", rule.why)):
        echo(fill(f"{title}: {text}", 88, subsequent_indent="  ") + "\n")
    echo(f"Example:\n{indent(rule.example, '  ')}\n")
    echo(fill(f"Instead: {rule.instead}", 88, subsequent_indent="  "))
