"""Parse the arguments of one command with tyro: its help text with examples, and each error as one line."""

import contextlib
import dataclasses
import inspect
import io
import itertools
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn, get_args, get_type_hints

import tyro

from linfnet.errors import ArgumentError, nearest

# Options have no --no-NAME twin, and None cannot be written as a value.
STYLE = (tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone, tyro.conf.OmitSubcommandPrefixes)
_KINDS = {int: "a whole number", float: "a number"}


# Stands for the description in tyro's text: tyro would join the lines of each paragraph.
_MARK = "DESCRIPTION"
_CODE = r"\x1b\[[0-9;]*m"  # of bold or coloured type
_GAP = rf"(?:\s|{_CODE})*"
_NO_DEFAULT = re.compile(rf"{_GAP}\(default:{_GAP}(?:None|False)?{_GAP}\)(?:{_CODE})*")
_HEADINGS = {
    "positional arguments": "Arguments",
    "options": "Options",
    "subcommands": "Actions",
}


class _Captured(io.StringIO):
    """Text for standard output; on a terminal, tyro uses bold type."""

    def isatty(self) -> bool:
        return sys.__stdout__ is not None and sys.__stdout__.isatty()


def parse_command(kind: Any, name: str, arguments: Sequence[str]) -> Any:
    """Return the command `kind`, a dataclass, with the values of its arguments.

    Args:
        kind: the dataclass; its docstring is the help text, and lines after `Examples:` are shown as they are.
        name: the name of the command.
        arguments: the words after the name.
    """
    for field, hint in get_type_hints(kind).items():
        parts: list[Any] = [part for part in get_args(hint) if dataclasses.is_dataclass(part)]
        if actions := {part.__name__.lower(): part for part in parts}:
            if not arguments or arguments[0] not in (*actions, "-h", "--help"):
                raise _wrong_action(name, arguments, list(actions))
            if arguments[0] in actions:
                action = parse_command(actions[arguments[0]], f"{name} {arguments[0]}", arguments[1:])
                return kind(**{field: action})
    _check_options(kind, name, arguments)
    message, text = io.StringIO(), _Captured()
    try:
        with contextlib.redirect_stderr(message), contextlib.redirect_stdout(text):
            return tyro.cli(kind, prog=f"linfnet {name}", description=_MARK, args=arguments, config=STYLE)
    except SystemExit as stop:
        if not stop.code:
            sys.stdout.write(_help_text(text.getvalue(), kind))
            raise
        _fail(message.getvalue(), kind, name, arguments)


def _help_text(text: str, kind: Any) -> str:
    """Return tyro's help text with plain headings, without rules, trailing spaces and defaults that say nothing."""
    lines: list[str] = []
    for line in text.splitlines():
        plain = re.sub(_CODE, "", line).strip()
        if plain in _HEADINGS:
            lines.append(_HEADINGS[plain])
        elif not plain or plain.strip("-"):
            lines.append(re.sub(rf"\s+((?:{_CODE})*)$", r"\1", line))
    shown = _NO_DEFAULT.sub(lambda found: "\x1b[0m" if "\x1b" in found[0] else "", "\n".join(lines))
    shown = re.sub(r"\n{3,}", "\n\n", shown).strip()
    return shown.replace(_MARK, description(kind)) + "\n"


def description(kind: Any) -> str:
    """Return the docstring of a command, wrapped to the width of the terminal, with its examples."""
    text, _, examples = (inspect.getdoc(kind) or "").partition("Examples:\n")
    width = min(shutil.get_terminal_size((80, 24)).columns, 100)
    parts = [textwrap.fill(part, width) for part in text.strip().split("\n\n")]
    return "\n\n".join([*parts, f"Examples:\n{examples.rstrip()}"] if examples else parts)


def _options(kind: Any) -> dict[str, Any]:
    """Return the type of each option."""
    return {f"--{name.replace('_', '-')}": hint for name, hint in get_type_hints(kind).items()}


def _wrong_action(name: str, arguments: Sequence[str], actions: list[str]) -> ArgumentError:
    expected = f"expected one of {', '.join(actions)}"
    if not arguments:
        return ArgumentError(f"linfnet {name} needs an action; {expected}")
    return ArgumentError(f"the action is {arguments[0]!r}; {expected}{nearest(arguments[0], actions)}")


def _check_options(kind: Any, name: str, arguments: Sequence[str]) -> None:
    """Raise an error for the first unknown option, with the most similar one or the key of the recipe."""
    known = list(_options(kind))
    for argument in arguments:
        option = argument.partition("=")[0].replace("_", "-")
        if len(option) < 3 or not option.startswith("--") or option in (*known, "--help"):
            continue
        key = _recipe_key(option) if "--set" in known else None
        hint = f"; set it in the recipe: --set '{key}'" if key else nearest(option, known)
        raise ArgumentError(f"linfnet {name} has no option {option}{hint} (linfnet {name} --help lists the options)")


def _recipe_key(option: str) -> str | None:
    """Return `section.key=default` if the option has the name of a key of recipes."""
    from linfnet.recipes import Recipe, recipe_to_toml

    section = ""
    for line in recipe_to_toml(Recipe()).splitlines():
        key, _, value = line.partition(" = ")
        section = line.strip("[]") if line.startswith("[") else section
        if section and key.replace("_", "-") == option[2:] and section != "reported":
            return f"{section}.{key}={value}"
    return None


def _fail(message: str, kind: Any, name: str, arguments: Sequence[str]) -> NoReturn:
    """Raise the error that the parser printed in a box, as one line."""
    lines = [line.strip("╭╮╰╯│+| ").strip() for line in message.splitlines()[1:]]
    rules = [k for k, line in enumerate(lines) if k and line and not line.strip("─-")]
    text = " ".join(line for line in lines[: min(rules, default=len(lines))] if line.strip("─-"))
    help_hint = f"see linfnet {name} --help"
    if found := re.match(r"Missing from .*?: (\S+)", text):
        raise ArgumentError(f"linfnet {name} needs {found[1]}; {help_hint}")
    if found := re.match(r"Missing value for argument '(\S+)'", text):
        raise ArgumentError(f"{found[1]} needs a value; {help_hint}")
    if found := re.match(r"invalid choice (.+?) for argument '(\S+)'\. Expected one of \((.*?),?\)", text):
        raise ArgumentError(f"{found[2]} is {found[1]}; expected one of {found[3].replace(chr(39), '')}")
    if found := re.match(r"Error parsing (--[\w-]+):", text):
        option, hint = found[1], _options(kind).get(found[1])
        kinds = [_KINDS[part] for part in (hint, *get_args(hint)) if part in (int, float)]
        values = [after for word, after in itertools.pairwise(arguments) if word == option]
        values += [word.partition("=")[2] for word in arguments if word.startswith(f"{option}=")]
        if kinds and values:
            raise ArgumentError(f"{option} is {values[-1]!r}; expected {kinds[0]}")
    raise ArgumentError(f"{text.rstrip('.') or 'the arguments cannot be parsed'}; {help_hint}")
