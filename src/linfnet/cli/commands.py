"""The commands in groups, with the text of `linfnet --help`. Modules of commands are imported when they are used."""

import importlib
from dataclasses import dataclass
from typing import Any

from linfnet.errors import ArgumentError, nearest
from linfnet.version import __version__


@dataclass(frozen=True)
class CommandInfo:
    """A command: the dataclass `module`.`kind` with its options, and one line that describes it."""

    module: str
    kind: str
    summary: str

    def load(self) -> Any:
        """Import the module and return the dataclass."""
        return getattr(importlib.import_module(f"linfnet.cli.{self.module}"), self.kind)


GROUPS: dict[str, dict[str, CommandInfo]] = {
    "Start here": {
        "demo": CommandInfo("demo", "Demo", "train, attack and certify a small net on digits, in a minute"),
        "models": CommandInfo("models", "Models", "list the trained nets of the package, with their accuracies"),
        "predict": CommandInfo("predict", "Predict", "classify images; no change within the radius alters the class"),
        "serve": CommandInfo("export", "Serve", "open a web page on which you draw, classify and attack"),
    },
    "Train": {
        "recipes": CommandInfo("recipes", "Recipes", "list the recipes, or show all keys of one"),
        "train": CommandInfo("train", "Train", "train a net by a recipe, or resume a run"),
        "search": CommandInfo("search", "Search", "compare variants of a recipe by short runs, with several seeds"),
        "compress": CommandInfo("compress", "Compress", "remove the connections that never decide an output"),
        "watch": CommandInfo("report", "Watch", "show the curves of a run live in the terminal"),
    },
    "Measure": {
        "evaluate": CommandInfo("evaluate", "Evaluate", "clean, attacked and certified accuracy of a net"),
        "certify": CommandInfo("certify", "Certify", "the certified radius of each image, and the certified curve"),
        "attack": CommandInfo("certify", "Attack", "try to break a net with several attacks"),
        "compare": CommandInfo("evaluate", "Compare", "the results of several runs in one table"),
    },
    "Show and share": {
        "report": CommandInfo("report", "Report", "write the results of runs as an HTML page"),
        "plot": CommandInfo("report", "Plot", "plot the training curves of a run"),
        "export": CommandInfo("export", "Export", "ONNX, VNN-LIB, model card, Hugging Face hub"),
    },
    "The paper": {
        "reproduce": CommandInfo("reproduce", "Reproduce", "train and evaluate the nets of a table of the paper"),
        "separation": CommandInfo("theory", "Separate", "the smallest distance between classes of a data set"),
        "construct": CommandInfo("theory", "Construct", "build the net of the paper's theorems"),
        "lipschitz": CommandInfo("theory", "Lipschitz", "bounds on the Lipschitz constant at a finite p"),
    },
    "Data and system": {
        "data": CommandInfo("data", "Data", "fetch, list and verify data sets"),
        "verify": CommandInfo("verify", "Verify", "which files of a run or model are intact"),
        "doctor": CommandInfo("data", "Doctor", "show versions, devices, kernels and data sets"),
    },
}
COMMANDS = {name: info for group in GROUPS.values() for name, info in group.items()}

EXAMPLES = (
    "linfnet demo",
    "linfnet predict mnist-small digit.png",
    "linfnet train digits --out runs/first",
    "linfnet evaluate runs/first --eps 0.1",
)

OPTIONS = {
    "-h, --help": "show this text; linfnet COMMAND --help describes a command",
    "--version": "show the version",
    "--import MODULE": "first import your module or .py file, which may register\n"
    "losses, systems and attacks; can be given several times",
}


def find_command(name: str) -> CommandInfo:
    """Return a command by name; an unknown name is an error with the most similar one."""
    if name not in COMMANDS:
        kind = "option" if name.startswith("-") else "command"
        known = ("--help", "--version", "--import") if kind == "option" else COMMANDS
        raise ArgumentError(f"there is no {kind} {name!r}{nearest(name, known)} (linfnet --help lists the commands)")
    return COMMANDS[name]


def overview() -> str:
    """Return the text of `linfnet --help`; lines that begin without a space are headings."""
    lines = [
        f"linfnet {__version__}: neural networks with certified robustness",
        "",
        "usage: linfnet COMMAND [OPTIONS]",
    ]
    for title, group in GROUPS.items():
        lines += ["", title, *(f"  {name:<12}{info.summary}" for name, info in group.items())]
    lines += ["", "Examples", *(f"  {example}" for example in EXAMPLES), "", "Options"]
    for option, text in OPTIONS.items():
        first, *rest = text.splitlines()
        lines += [f"  {option:<17}{first}", *(f"  {'':<17}{line}" for line in rest)]
    return "\n".join(lines)
