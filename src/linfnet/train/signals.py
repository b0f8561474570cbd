"""Stopping in good order: an interrupt is noted, and acted upon between two steps."""

import contextlib
import signal
import threading
from collections.abc import Generator
from types import FrameType


class StopRequest:
    """Whether somebody asked the run to stop."""

    def __init__(self) -> None:
        self.requested = False

    def __bool__(self) -> bool:
        return self.requested


@contextlib.contextmanager
def stop_on_signals() -> Generator[StopRequest]:
    """Turn SIGINT, SIGTERM and SIGHUP into a request for the length of a block; a second SIGINT interrupts at once.

    SIGHUP comes when a terminal closes; where it is ignored (`nohup`), it stays so.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def note(number: int, _: FrameType | None) -> None:
        if request.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        request.requested = True

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
