"""How much happens at once: so many requests hold a body, so many more wait, the rest are told to come again."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

from linfnet.serve.refusal import RefusedError

T = TypeVar("T")


class Gate:
    """Lets `inside` requests in at a time and `waiting` more wait; work is done by one thread, in turn.

    A request that waits has not been read yet: the connection's own flow control holds it back.
    """

    def __init__(self, name: str, inside: int, waiting: int, patience: float = 60.0) -> None:
        self.name, self.most, self.patience = name, inside + waiting, patience
        self._here = 0
        self._slots = asyncio.Semaphore(inside)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix=f"linfnet-{name}")

    @asynccontextmanager
    async def enter(self) -> AsyncGenerator[None]:
        """Wait for a slot and hold it."""
        if self._here >= self.most:
            raise RefusedError(429, f"too many requests to {self.name} at once; come again in a second")
        self._here += 1
        try:
            try:
                async with asyncio.timeout(self.patience):
                    await self._slots.acquire()
            except TimeoutError:
                raise RefusedError(503, f"no turn came within {self.patience:g} s; come again later") from None
            try:
                yield
            finally:
                self._slots.release()
        finally:
            self._here -= 1

    async def work(self, job: Callable[[], T]) -> T:
        """Run a job in the gate's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, job)
