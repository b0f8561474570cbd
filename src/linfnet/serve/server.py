"""The socket and the loop: uvicorn behind an address that was bound first, so that a taken port is told at once."""

import errno
import logging
import socket
from collections.abc import Callable
from typing import Any

import torch

from linfnet.errors import ArgumentError, LinfnetError
from linfnet.serve.app import create_app
from linfnet.serve.service import Service

# Connections beyond this get 503; each that waits holds at most 64 kB.
CONNECTIONS = 512
# Below this, starting threads takes longer than the work they share.
SMALL_NET = 4_000_000


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; an error says whose fault it is."""
    if not 0 <= port < 65536:
        raise ArgumentError(f"port is {port}; wanted a number from 0 to 65535")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
    except (socket.gaierror, UnicodeError):
        raise LinfnetError(f"host is {host!r}: there is no such address") from None
    taken = socket.socket(family, kind)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken.bind(address)
        taken.listen(CONNECTIONS)
    except OSError as error:
        taken.close()
        if error.errno == errno.EADDRINUSE:
            raise LinfnetError(f"port {port} of {host} is taken; choose another --port (0 for any free one)") from None
        raise LinfnetError(f"cannot listen on {host}, port {port}: {error.strerror}") from None
    return taken


def url_of(bound: socket.socket, host: str) -> str:
    """What to type into a browser on this machine."""
    if host in ("0.0.0.0", "::", ""):
        host = "localhost"
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{bound.getsockname()[1]}/"


def run_server(service: Service, bound: socket.socket, names: frozenset[str], ready: Callable[[], None]) -> None:
    """Serve until the process is told to stop; `ready` is called once requests are answered."""
    import uvicorn

    if sum(parameter.numel() for parameter in service.net.parameters()) < SMALL_NET:
        torch.set_num_threads(1)

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            ready()

    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    config = uvicorn.Config(
        create_app(service, names),
        http="h11",
        loop="asyncio",
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=3,
    )
    Server(config).run(sockets=[bound])
