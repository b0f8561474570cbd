"""Turns of requests: few are active at a time, more wait, and a request is refused soon if its turn will not come."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.exceptions import HTTPException

T = TypeVar("T")
# Longest wait for a turn, in seconds.
PATIENCE = 60.0
# Longest time to send a large body while other requests wait for the turn, in seconds.
HURRY_SECONDS = 2.0


class Turns:
    """Up to `active` requests at a time have a turn; up to `waiting` more wait, and the newest of them is next.

    During an attack the queue consists of slow requests, which must not delay a new one.
    """

    def __init__(self, name: str, active: int, waiting: int) -> None:
        self.name, self.active, self.capacity = name, active, waiting
        self.waiting = list[asyncio.Future[None]]()
        self._count = 0

    @contextlib.asynccontextmanager
    async def enter(self) -> AsyncGenerator[None]:
        """Wait for a turn; raise 429 if too many requests wait, or 503 after waiting for `PATIENCE` seconds."""
        if self._count < self.active:
            self._count += 1
        else:
            await self._wait()
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        """End a turn; it passes to the newest request that waits."""
        if self.waiting:
            self.waiting.pop().set_result(None)
        else:
            self._count -= 1

    async def _wait(self) -> None:
        if len(self.waiting) >= self.capacity:
            raise HTTPException(429, f"too many requests to {self.name} at once; retry in a second")
        turn = asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        try:
            async with asyncio.timeout(PATIENCE):
                await asyncio.shield(turn)
        except (TimeoutError, asyncio.CancelledError) as error:
            if turn in self.waiting:
                self.waiting.remove(turn)
            elif not turn.exception():  # the turn came at the same moment
                self._pass_on()
            if isinstance(error, asyncio.CancelledError):
                raise
            raise HTTPException(503, f"no worker was free within {PATIENCE:g} s; retry later") from None


class Gate(Turns):
    """Turns of one thread; requests do not wait for a job that takes long."""

    def __init__(self, name: str, waiting: int, busy_seconds: float) -> None:
        super().__init__(name, 1, waiting)
        self.busy_seconds = busy_seconds
        self._busy = False
        self._worker = ThreadPoolExecutor(1, thread_name_prefix=f"linfnet-{name}")

    async def run(self, job: Callable[[], T]) -> T:
        """Return the result of a job; raise 503 as soon as the job before it has taken `busy_seconds`."""
        if self._busy:
            raise self._refusal()
        async with self.enter():
            loop = asyncio.get_running_loop()
            timer = loop.call_later(self.busy_seconds, self._refuse)
            try:
                return await loop.run_in_executor(self._worker, job)
            finally:
                timer.cancel()
                self._busy = False

    def _refusal(self) -> HTTPException:
        text = f"{self.name} is busy with a request that takes more than {self.busy_seconds:g} s; retry later"
        return HTTPException(503, text)

    def _refuse(self) -> None:
        self._busy = True
        for turn in self.waiting:
            turn.set_exception(self._refusal())
        self.waiting.clear()


class BodyTurns(Turns):
    """Turns for large bodies, so that few of them are in memory; a slow sender gives way to waiting requests."""

    def __init__(self, name: str, active: int, waiting: int) -> None:
        super().__init__(name, active, waiting)
        self._limits = list[asyncio.Timeout]()

    @contextlib.asynccontextmanager
    async def reading(self, seconds: float) -> AsyncGenerator[None]:
        """Context in which a body is read; it raises TimeoutError after `seconds`, or earlier if others wait."""
        async with asyncio.timeout(min(seconds, HURRY_SECONDS) if self.waiting else seconds) as limit:
            self._limits.append(limit)
            try:
                yield
            finally:
                self._limits.remove(limit)

    async def _wait(self) -> None:
        latest = asyncio.get_running_loop().time() + HURRY_SECONDS
        for limit in self._limits:
            limit.reschedule(min(latest, limit.when() or latest))
        await super()._wait()
