"""The command line `linfnet COMMAND`. A user error prints one line on standard error and exits with status 2."""

import contextlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Protocol

from linfnet.cli.commands import find_command, overview
from linfnet.cli.parsing import parse_command
from linfnet.cli.start import interrupt_exits
from linfnet.errors import ArgumentError, LinfnetError, printable
from linfnet.plugins import import_modules
from linfnet.version import __version__

# Largest number of characters of an error message; values of foreign files may be longer.
_LONGEST = 2000


class Runnable(Protocol):
    """A parsed command; `run` returns an exit status, or None for 0."""

    def run(self) -> int | None: ...


def _parse(arguments: list[str]) -> Runnable:
    """Import the modules of `--import`, and parse the arguments of the command."""
    (name, *rest), modules = _without_imports(arguments)
    if name in ("-h", "--help"):
        _print_overview()
        raise SystemExit(0)
    info = find_command(name)
    with interrupt_exits():  # this imports torch
        kind = info.load()
    import_modules(modules)
    return parse_command(kind, name, rest)


def _without_imports(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments without `--import MODULE`, and the modules."""
    rest, modules, words = list[str](), list[str](), iter(arguments)
    for word in words:
        if word == "--import" or word.startswith("--import="):
            module = word.partition("=")[2] or next(words, "")
            if not module:
                raise ArgumentError("--import needs a module name or the path of a .py file")
            modules.append(module)
        else:
            rest.append(word)
    if modules and not rest:
        raise ArgumentError("--import needs a command, as in: linfnet --import my_module train digits")
    return rest, modules


def _print_error(line: str) -> None:
    """Print a message on standard error as one line, even if a file name contains a line break."""
    text = printable(" ".join(line.splitlines()))
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"
    with contextlib.suppress(OSError):  # a closed terminal must not change the exit status
        sys.stderr.write(f"{text}\n")


def _with_option(message: str, arguments: Sequence[str]) -> str:
    """Return a message about an argument of the library with the option of that name, if it was given.

    >>> _with_option("hold_out is 0; expected a number from 1 to 99", ["search", "digits", "--hold-out", "0"])
    '--hold-out is 0; expected a number from 1 to 99'
    """
    name, is_, rest = message.partition(" is ")
    option = f"--{name.replace('_', '-')}"
    given = any(word.partition("=")[0].replace("_", "-") == option for word in arguments)
    return f"{option}{is_}{rest}" if given else message


def _print_overview() -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False, soft_wrap=True)
    for line in overview().splitlines():
        console.print(line, style=None if line.startswith(" ") else "bold")


def _run(arguments: list[str]) -> int:
    try:
        command = _parse(arguments)
    except SystemExit:  # after a help text
        return 0
    from linfnet.train import StoppedError

    try:
        return command.run() or 0
    except StoppedError as error:
        _print_error(str(error))
        return 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return 0 on success, 2 after a user error, and 130 after an interrupt."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names may contain bytes that are not UTF-8
    arguments = arguments or ["--help"]
    if arguments == ["--version"]:
        sys.stdout.write(f"linfnet {__version__}\n")
        return 0
    try:
        return _run(arguments)
    except KeyboardInterrupt as error:
        _print_error(str(error) or "interrupted")
        return 130
    except BrokenPipeError:  # as in `linfnet predict … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to flush at exit
        return 0
    except LinfnetError as error:
        _print_error(f"error: {_with_option(str(error), arguments)}")
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _print_error(f"error: {where}{error.strerror or error}")
    except RuntimeError as error:
        # Modules that torch imports late may replace an interrupt by another exception.
        if not isinstance(error.__cause__ or error.__context__, KeyboardInterrupt):
            raise
        _print_error("interrupted")
        return 130
    return 2
