"""The body of a request, read under a limit of bytes and of time."""

import asyncio
import contextlib
from collections.abc import Callable

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from linfnet.serve.refusal import RefusedError

SECONDS = 10.0


async def read_body(request: Request, most: int) -> bytes:
    """The whole body; 413 before the first byte if the header says it is too long, and as soon as it gets too long."""
    packed = request.headers.get("content-encoding", "identity")
    if packed.lower() != "identity":
        raise RefusedError(415, f"the content encoding is {packed[:60]!r}; wanted it unpacked")
    told = request.headers.get("content-length", "0")
    if told.isdigit() and int(told) > most:
        raise RefusedError(413, f"the body has {told[:20]} bytes; wanted at most {most:,}")
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise RefusedError(413, f"the body has more than {most:,} bytes")
                parts.append(part)
    except TimeoutError:
        raise RefusedError(408, f"the body did not arrive within {SECONDS:g} s") from None
    except ClientDisconnect:
        raise RefusedError(400, "the body was cut short") from None
    return b"".join(parts)


class Drain:
    """Answers that come before the body was read: the rest of the body is thrown away, for a while, then it is cut.

    Many clients send everything before they look at the answer; closing at once would show them a broken connection.
    """

    def __init__(self, app: ASGIApp, most: int = 64_000_000, seconds: float = 5.0) -> None:
        self.app, self.most, self.seconds = app, most, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
            await self.app(scope, receive, send)
            return
        whole = False

        async def watched() -> Message:
            nonlocal whole
            message = await receive()
            whole = message["type"] == "http.disconnect" or not message.get("more_body", False)
            return message

        async def drained(message: Message) -> None:
            if whole or (message["type"] == "http.response.body" and message.get("more_body", False)):
                await send(message)
            elif message["type"] == "http.response.start":
                MutableHeaders(scope=message)["Connection"] = "close"
                await send(message)
            else:
                await send({**message, "more_body": True})
                await self._throw_away(watched, lambda: whole)
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        await self.app(scope, watched, drained)

    async def _throw_away(self, receive: Receive, done: Callable[[], bool]) -> None:
        size = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.seconds):
                while not done() and size < self.most:
                    size += len((await receive()).get("body", b""))
