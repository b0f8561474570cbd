"""The README's Python runs, its commands exist."""

import contextlib
import io
import re
from pathlib import Path

from linfnet.cli.main import main

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_the_python_example_runs():
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(block.strip().splitlines()) <= 10
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block, "README.md", "exec"), {})
    assert re.search(r"radius 0\.\d+ \(median\), \d+\.\d% right and certified", printed.getvalue())


def test_every_command_has_help(capsys):
    commands = {line.split()[0] for line in re.findall(r"`linfnet ([^`]*)`", README)}
    assert {"train", "evaluate", "predict", "recipes", "data", "doctor", "demo"} <= commands
    for command in sorted(commands):
        with contextlib.suppress(SystemExit):
            main([command, "--help"])
        assert f"usage: linfnet {command}" in capsys.readouterr().out
