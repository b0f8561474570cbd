"""A process that runs one command and can be killed at any moment. A server that has torch loaded starts it."""

import multiprocessing
import sys
from pathlib import Path


def command(arguments: list[str], log: Path) -> None:
    """Run a command, write its output to a file, and exit with its exit code."""
    import torch

    from linfnet.cli.main import main

    torch.set_num_threads(1)
    with log.open("w", buffering=1) as sys.stdout:
        sys.stderr = sys.stdout
        code = main(arguments)
    sys.exit(code)


def start(arguments: list[str], log: Path) -> multiprocessing.context.ForkServerProcess:
    """Start a command."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["linfnet.cli.main", "torch._dynamo"])
    process = context.Process(target=command, args=(arguments, log))
    process.start()
    return process
