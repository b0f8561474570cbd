"""The routes: a page, and the JSON API that docs/howto/serve.md and /api/openapi.json describe."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from torch import Tensor

from linfnet.serve.body import Drain, read_body
from linfnet.serve.decode import read_picture
from linfnet.serve.gate import Gate
from linfnet.serve.guard import Guard
from linfnet.serve.openapi import describe_api
from linfnet.serve.pixels import json_limit, parse_json, parse_pixels, parse_steps
from linfnet.serve.refusal import RefusedError
from linfnet.serve.service import Service

STATIC = Path(__file__).parent / "static"
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PICTURE_BYTES = 4_000_000
PICTURES = ("image/png", "image/jpeg")

Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]


def create_app(service: Service, names: frozenset[str] = frozenset({"localhost"})) -> Starlette:
    """The application for one net; `names` are the host names besides numbers under which it may be asked."""
    predictions, attacks = Gate("predict", inside=8, waiting=248), Gate("attack", inside=1, waiting=3)

    async def model(request: Request) -> Response:
        return JSONResponse(service.describe())

    async def openapi(request: Request) -> Response:
        return JSONResponse(describe_api(service.shape, service.net.classes))

    async def predict(request: Request) -> Response:
        async with predictions.enter():
            read = await _read_image(request, service.shape)
            return JSONResponse(await predictions.work(lambda: service.predict(read())))

    async def attack(request: Request) -> Response:
        if _kind(request) != "application/json":
            raise RefusedError(415, f"the content type is {_kind(request)[:60]!r}; wanted application/json")
        async with attacks.enter():
            body = parse_json(await read_body(request, json_limit(service.shape)))
            image, steps = parse_pixels(body, service.shape), parse_steps(body)
            gone = threading.Event()
            watch = asyncio.create_task(_set_when_gone(request, gone))
            try:
                return JSONResponse(await attacks.work(lambda: service.attack(image, steps, gone.is_set)))
            finally:
                gone.set()
                watch.cancel()

    routes = [
        Route("/api/model", model),
        Route("/api/openapi.json", openapi),
        Route("/api/predict", predict, methods=["POST"]),
        Route("/api/attack", attack, methods=["POST"]),
        *_static_routes(),
    ]
    handlers: dict[Any, Any] = {RefusedError: _tell_refusal, HTTPException: _tell_http, Exception: _tell_failure}
    middleware = [Middleware(Drain), Middleware(Guard, names=names)]
    return Starlette(routes=routes, exception_handlers=handlers, middleware=middleware)


def _kind(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def _read_image(request: Request, shape: tuple[int, int, int]) -> Callable[[], Tensor]:
    """The posted image, read; decoding is left to the thread that calls the result."""
    kind = _kind(request)
    if kind == "application/json":
        body = parse_json(await read_body(request, json_limit(shape)))
        if unknown := body.keys() - {"pixels"}:
            raise RefusedError(400, f"the body has {min(unknown)[:40]!r}; known is 'pixels'")
        return partial(parse_pixels, body, shape)
    if kind in PICTURES:
        fit = request.query_params.get("fit", "none")
        return partial(read_picture, await read_body(request, PICTURE_BYTES), shape, fit)
    raise RefusedError(415, f"the content type is {kind[:60]!r}; wanted application/json, image/png or image/jpeg")


async def _set_when_gone(request: Request, gone: threading.Event) -> None:
    """Nobody waits for the answer any more: let the attack stop."""
    while not await request.is_disconnected():
        await asyncio.sleep(0.2)
    gone.set()


def _static_routes() -> list[Route]:
    """The page's files, read once: no later request opens a file."""
    files = {path.name: (path.read_bytes(), KINDS[path.suffix]) for path in sorted(STATIC.iterdir())}

    def answer(content: bytes, kind: str) -> Endpoint:
        async def send(request: Request) -> Response:
            return Response(content, media_type=kind)

        return send

    pages = [Route("/", answer(*files["index.html"]))]
    return pages + [Route(f"/static/{name}", answer(*file)) for name, file in files.items() if name != "index.html"]


async def _tell_refusal(request: Request, error: RefusedError) -> Response:
    later = {"Retry-After": "1"} if error.status in (429, 503) else None
    return JSONResponse({"error": str(error)}, error.status, headers=later)


async def _tell_http(request: Request, error: HTTPException) -> Response:
    told = {404: "there is nothing under this path", 405: f"{request.method} is not for this path"}
    return JSONResponse({"error": told.get(error.status_code, error.detail)}, error.status_code, headers=error.headers)


async def _tell_failure(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": f"the server failed: {str(error).splitlines()[0][:200] if str(error) else '?'}"}, 500)
