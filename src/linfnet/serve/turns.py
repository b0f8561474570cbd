"""Turns of requests: one is active at a time, more wait, and a request is refused soon if its turn will not come."""

import asyncio
import bisect
import contextlib
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from starlette.exceptions import HTTPException

T = TypeVar("T")


@dataclass(eq=False)
class Waiting:
    """A request that waits for its turn."""

    cost: int
    size: int
    turn: asyncio.Future[None]


class Turns:
    """One request at a time has a turn; others wait for `patience` seconds, those with the lowest cost first.

    The sizes of the requests that wait are at most `capacity` in total.
    """

    def __init__(self, name: str, capacity: int, patience: float = 60.0) -> None:
        self.name, self.capacity, self.patience = name, capacity, patience
        self.waiting = list[Waiting]()
        self._taken = False

    @contextlib.asynccontextmanager
    async def enter(self, cost: int = 0, size: int = 1) -> AsyncGenerator[None]:
        """Wait for a turn; raise 429 if too many cheaper requests wait, or 503 after waiting for `patience` seconds."""
        if self._taken:
            await self._wait(cost, size)
        self._taken = True
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        """End a turn; it passes to the next request that waits."""
        if self.waiting:
            self.waiting.pop(0).turn.set_result(None)
        else:
            self._taken = False

    async def _wait(self, cost: int, size: int) -> None:
        turn = asyncio.get_running_loop().create_future()
        request = Waiting(cost, size, turn)
        bisect.insort(self.waiting, request, key=lambda one: one.cost)
        while sum(one.size for one in self.waiting) > self.capacity:
            text = f"too many requests to {self.name} at once; retry in a second"
            self.waiting.pop().turn.set_exception(HTTPException(429, text))
        try:
            async with asyncio.timeout(self.patience):
                await asyncio.shield(turn)
        except (TimeoutError, asyncio.CancelledError) as error:
            if request in self.waiting:
                self.waiting.remove(request)
            elif not turn.exception():  # the turn came at the same moment
                self._pass_on()
            if isinstance(error, asyncio.CancelledError):
                raise
            raise HTTPException(503, f"no worker was free within {self.patience:g} s; retry later") from None


class Gate(Turns):
    """Turns of one thread; requests do not wait for a job that takes long."""

    def __init__(self, name: str, capacity: int, busy_seconds: float, patience: float = 60.0) -> None:
        super().__init__(name, capacity, patience)
        self.busy_seconds = busy_seconds
        self._busy = False
        self._worker = ThreadPoolExecutor(1, thread_name_prefix=f"linfnet-{name}")

    async def run(self, job: Callable[[], T], cost: int = 0, size: int = 1) -> T:
        """Return the result of a job; raise 503 as soon as the job before it has taken `busy_seconds`."""
        if self._busy:
            raise self._refusal()
        async with self.enter(cost, size):
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
        for request in self.waiting:
            request.turn.set_exception(self._refusal())
        self.waiting.clear()
