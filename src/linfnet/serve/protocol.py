"""The server of uvicorn with limits that uvicorn does not have: slow headers, slow readers, too many connections."""

import asyncio
import logging
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

# Largest number of open connections, if the process may open so many files.
MAX_CONNECTIONS = 512
# Number of connections that asyncio accepts before it processes the first of them.
ACCEPT_AT_ONCE = 32
# Files that are not connections, and connections above the limit that are about to be closed.
OTHER_FILES = 160
# Longest time until a request header is complete, since the connection was opened or since the last response.
HEADER_SECONDS = 10.0
# Longest time in which the client reads nothing of a response.
WRITE_SECONDS = 10.0
MAX_HEADER_BYTES = 16_384
# Size of the buffer of a connection, so that requests that wait for a turn occupy little memory.
RECEIVE_BYTES = 32_768


def max_connections() -> int:
    """Return the largest number of connections: `MAX_CONNECTIONS`, or fewer if the process may open few files."""
    try:
        import resource
    except ImportError:  # on Windows there is no such limit
        return MAX_CONNECTIONS
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_CONNECTIONS if files < 0 else max(8, min(MAX_CONNECTIONS, files - OTHER_FILES))


class GuardedProtocol(H11Protocol):
    """A connection that is closed if it waits too long for its client, or if newer connections exceed the limit."""

    since = 0.0
    """When the connection was opened or the last response was complete."""
    _header_limit: asyncio.TimerHandle | None = None
    _write_limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Start the time limit. If there are too many connections, close the one that has waited longest."""
        super().connection_made(transport)
        self._wait_for_request()
        others: Any = self.connections
        if len(others) > max_connections():
            waiting = [one for one in others if one.waits_for_client()]
            min(waiting, key=lambda one: (one.in_request(), one.since)).transport.abort()

    def waits_for_client(self) -> bool:
        """Return whether the client has to send the rest of a header or of a body."""
        return not self.transport.is_closing() and (not self.in_request() or self.cycle.more_body)

    def in_request(self) -> bool:
        """Return whether there is a request without a complete response."""
        return self.cycle is not None and not self.cycle.response_complete  # pyright: ignore[reportUnnecessaryComparison]

    def handle_events(self) -> None:
        """Process what has arrived; a complete header ends the time limit."""
        super().handle_events()
        if self.in_request():
            _cancel(self._header_limit)

    def on_response_complete(self) -> None:
        """Start the time limit of the next request."""
        self._wait_for_request()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Start a time limit: the client does not read the response."""
        _cancel(self._write_limit)
        self._write_limit = self.loop.call_later(WRITE_SECONDS, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        """End the time limit of `pause_writing`."""
        _cancel(self._write_limit)
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """End all time limits."""
        _cancel(self._header_limit)
        _cancel(self._write_limit)
        super().connection_lost(exc)

    def _wait_for_request(self) -> None:
        self.since = self.loop.time()
        _cancel(self._header_limit)
        self._header_limit = self.loop.call_later(HEADER_SECONDS, self.transport.abort)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


class GuardedServer(uvicorn.Server):
    """A server with the limits of this module."""

    def __init__(self, app: Any) -> None:
        config = uvicorn.Config(
            app,
            http=GuardedProtocol,
            loop="asyncio",
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            # asyncio also uses this number as the number of connections that it accepts at once.
            backlog=ACCEPT_AT_ONCE,
            # Above the limit of `GuardedProtocol`, by the connections that are accepted before others are closed.
            limit_concurrency=max_connections() + 3 * ACCEPT_AT_ONCE,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            timeout_graceful_shutdown=3,
        )
        super().__init__(config)

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until Ctrl-C; requests that are cancelled then are not reported as errors."""
        logger = logging.getLogger("uvicorn.error")

        def is_running(record: logging.LogRecord) -> bool:
            return not self.should_exit

        logger.addFilter(is_running)
        try:
            super().run(sockets)
        finally:
            logger.removeFilter(is_running)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, with a longer queue of connections than asyncio accepts at once."""
        asyncio.get_running_loop().set_exception_handler(_report)
        await super().startup(sockets)
        for one in sockets or []:
            # Connections inherit the size of the buffer: one read returns no more than this.
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
            one.listen(MAX_CONNECTIONS)


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report an error in the loop, except that no file can be opened: asyncio repeats it and tries again."""
    if "out of system resource" not in context["message"]:
        loop.default_exception_handler(context)
