"""Turns of requests: few are active at a time, more wait, and a request is refused soon if its turn will not come."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.exceptions import HTTPException

T = TypeVar("T")
# Longest time to send the rest of a large body while other requests wait for the turn, in seconds.
HURRY_SECONDS = 5.0


class Turns:
    """Up to `active` requests at a time have a turn; up to `waiting` more wait for `patience` seconds, in order."""

    def __init__(self, name: str, active: int, waiting: int, patience: float = 60.0) -> None:
        self.name, self.active, self.capacity, self.patience = name, active, waiting, patience
        self.waiting = deque[asyncio.Future[None]]()
        self._count = 0

    @contextlib.asynccontextmanager
    async def enter(self) -> AsyncGenerator[None]:
        """Wait for a turn; raise 429 if too many requests wait, or 503 after waiting for `patience` seconds."""
        if self._count < self.active:
            self._count += 1
        else:
            await self._wait()
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        """End a turn; it passes to the next request that waits."""
        if self.waiting:
            self.waiting.popleft().set_result(None)
        else:
            self._count -= 1

    async def _wait(self) -> None:
        if len(self.waiting) >= self.capacity:
            raise HTTPException(429, f"too many requests to {self.name} at once; retry in a second")
        turn = asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        try:
            async with asyncio.timeout(self.patience):
                await asyncio.shield(turn)
        except (TimeoutError, asyncio.CancelledError) as error:
            if turn in self.waiting:
                self.waiting.remove(turn)
            elif not turn.exception():  # the turn came at the same moment
                self._pass_on()
            if isinstance(error, asyncio.CancelledError):
                raise
            raise HTTPException(503, f"no worker was free within {self.patience:g} s; retry later") from None


class Gate(Turns):
    """Turns of one thread; requests do not wait for a job that takes long."""

    def __init__(self, name: str, waiting: int, busy_seconds: float, patience: float = 60.0) -> None:
        super().__init__(name, 1, waiting, patience)
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


TakeTurn = Callable[[asyncio.Timeout], Awaitable[None]]


class BodyTurns(Turns):
    """Turns to read large bodies, so that few of them are in memory; a slow sender gives way to waiting requests."""

    def __init__(self, name: str, active: int, waiting: int) -> None:
        super().__init__(name, active, waiting)
        self._limits = list[asyncio.Timeout]()

    @contextlib.asynccontextmanager
    async def body(self) -> AsyncGenerator[TakeTurn]:
        """Context of one body. It yields a function that waits for a turn, which ends with the context.

        The argument of the function is the time limit within which the body is read: the wait does not count, and
        `HURRY_SECONDS` are left from the moment on at which another request waits.
        """
        async with contextlib.AsyncExitStack() as stack:

            async def take(limit: asyncio.Timeout) -> None:
                now = asyncio.get_running_loop().time
                left = (limit.when() or now()) - now()
                limit.reschedule(None)
                await stack.enter_async_context(self.enter())
                limit.reschedule(now() + (min(left, HURRY_SECONDS) if self.waiting else left))
                self._limits.append(limit)
                stack.callback(self._limits.remove, limit)

            yield take

    async def _wait(self) -> None:
        latest = asyncio.get_running_loop().time() + HURRY_SECONDS
        for limit in self._limits:
            with contextlib.suppress(RuntimeError):  # the body is complete, or its time is over
                limit.reschedule(min(latest, limit.when() or latest))
        await super()._wait()
