"""The entry point of the command: settings that must be made before torch is imported, then the command line.

Threads of torch that wait for each other use a core until they may continue. On a machine with other load they so wait
for threads that do not run. The variable OMP_WAIT_POLICY lets them sleep instead; OpenMP runtimes read it when they are
loaded. The library does not set it: this is left to the program that uses it.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Generator, MutableMapping, Sequence
from typing import NoReturn

# Each of these selects how threads wait: the standard, the GNU runtime, the Intel and LLVM runtimes.
WAIT_SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")

INTERRUPTED = 130  # 128 + SIGINT


def set_wait_policy(environment: MutableMapping[str, str]) -> None:
    """Let waiting threads of OpenMP sleep, unless the user has selected something else.

    >>> environment = {}
    >>> set_wait_policy(environment)
    >>> environment
    {'OMP_WAIT_POLICY': 'passive'}
    """
    if not any(name in environment for name in WAIT_SETTINGS):
        environment["OMP_WAIT_POLICY"] = "passive"


def _exit_now(*_: object) -> NoReturn:
    with contextlib.suppress(OSError):
        os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


@contextlib.contextmanager
def interrupt_exits() -> Generator[None]:
    """Exit at once on Ctrl-C. A `KeyboardInterrupt` within an import may be replaced by another exception."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _exit_now)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command as `linfnet.cli.main.main` does; an interrupt while it is imported gives status 130 as well."""
    set_wait_policy(os.environ)
    try:
        with interrupt_exits():
            from linfnet.cli.main import main as run
        return run(arguments)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
