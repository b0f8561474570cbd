"""Abuse of a real server on a real socket: errors are clear, memory is bounded, and no files are opened."""

import asyncio
import contextlib
import http.client
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from linfnet.cli.main import main
from linfnet.serve import bind, protocol
from linfnet.serve.limits import Bodies
from linfnet.serve.turns import Gate, Turns

JSON, JPEG = {"Content-Type": "application/json"}, {"Content-Type": "image/jpeg"}
DIGIT = json.dumps({"pixels": [[0.0] * 12 + [1.0] * 3 + [0.0] * 13] * 28}).encode()


class Served:
    """A server in a separate process."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "linfnet", "serve", *arguments, "--port", "0"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "COLUMNS": "200"}
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
        assert found, line
        self.port = int(found[1])

    def request(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None):
        """Return the status and the body of one response."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=90)
        try:
            link.request(method, path, body, headers or {})
            answer = link.getresponse()
            return answer.status, answer.read()
        finally:
            link.close()

    def raw(self, text: bytes) -> bytes:
        """Return the response to raw bytes, read until the server closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as link:
            link.sendall(text)
            link.shutdown(socket.SHUT_WR)
            parts = iter(lambda: link.recv(65536), b"")
            return b"".join(parts)

    def peak_memory(self) -> int:
        """Return the peak memory of the process, in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
        return int(peak) * 1024


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    served = Served("mnist-small")
    # The first response of each kind imports modules and allocates memory that later responses reuse.
    assert served.request("POST", "/api/predict", DIGIT, JSON)[0] == 200
    assert served.request("POST", "/api/attack", DIGIT[:-1] + b', "steps": 2}', JSON)[0] == 200
    yield served
    with slow_pictures(served, 4, 1000):
        served.process.send_signal(signal.SIGINT)
        # Requests that are cancelled are not reported.
        assert served.process.communicate(timeout=20) == ("stopped\n", None)
        assert served.process.returncode == 0


@contextlib.contextmanager
def slow_pictures(served: Served, count: int, size: int) -> Iterator[None]:
    """Context in which there are connections that have sent `size` bytes of a picture, and send nothing more."""
    start = b"POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/jpeg\r\nContent-Length: 3990000\r\n"
    with contextlib.ExitStack() as links:
        for _ in range(count):
            link = links.enter_context(socket.create_connection(("127.0.0.1", served.port), timeout=20))
            link.sendall(start + b"\r\n" + bytes(size))
        yield


def check_still_works(server: Served) -> None:
    status, body = server.request("POST", "/api/predict", DIGIT, JSON)
    assert status == 200
    assert json.loads(body)["radius"] is not None
    assert server.process.poll() is None


@pytest.mark.parametrize("kind", ["application/json", "image/png", "text/plain"])
@pytest.mark.parametrize("path", ["/api/predict", "/api/attack", "/", "/nothing"])
def test_fifty_megabytes(server: Served, kind: str, path: str):
    before = server.peak_memory()
    status, body = server.request("POST", path, bytes(50_000_000), {"Content-Type": kind})
    taken = ("application/json", "image/png") if path == "/api/predict" else ("application/json",)
    assert status == {"/": 405, "/nothing": 404}.get(path, 413 if kind in taken else 415)
    assert json.loads(body).keys() == {"error"}
    assert server.peak_memory() - before < 16_000_000
    check_still_works(server)


def test_fifty_megabytes_of_unknown_length(server: Served):
    before = server.peak_memory()
    link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    link.request("POST", "/api/predict", (bytes(100_000) for _ in range(500)), {**JSON}, encode_chunked=True)
    answer = link.getresponse()
    assert answer.status == 413
    assert json.loads(answer.read()) == {"error": "the body has more than 26,112 bytes"}
    link.close()
    assert server.peak_memory() - before < 16_000_000
    check_still_works(server)


def test_two_hundred_at_once(server: Served):
    before = server.peak_memory()
    with ThreadPoolExecutor(200) as pool:
        jobs = [pool.submit(server.request, "POST", "/api/predict", DIGIT, JSON) for _ in range(200)]
        answers = Counter(job.result()[0] for job in jobs)
    assert answers == {200: 200}
    assert server.peak_memory() - before < 64_000_000


def test_two_hundred_large_pictures_at_once(server: Served):
    """The bodies have 800 MB in total; only a few of them are in memory at a time, and others get 503."""
    before = server.peak_memory()
    with ThreadPoolExecutor(200) as pool:
        headers = {"Content-Type": "image/png"}
        jobs = [pool.submit(server.request, "POST", "/api/predict", bytes(4_000_000), headers) for _ in range(200)]
        answers = Counter(job.result()[0] for job in jobs)
    assert answers.keys() <= {400, 429, 503}
    assert answers[400] >= 1
    assert server.peak_memory() - before < 64_000_000
    check_still_works(server)


def test_two_hundred_attacks_at_once(server: Served):
    before = server.peak_memory()
    with ThreadPoolExecutor(200) as pool:
        body = DIGIT[:-1] + b', "steps": 2}'
        jobs = [pool.submit(server.request, "POST", "/api/attack", body, JSON) for _ in range(200)]
        answers = Counter(job.result()[0] for job in jobs)
    assert answers.keys() == {200, 429}
    assert 1 <= answers[200] < 200
    assert server.peak_memory() - before < 64_000_000
    check_still_works(server)


TRAVERSALS = (
    b"/../../etc/passwd",
    b"/static/../../pyproject.toml",
    b"//etc/passwd",
    b"/static/%00",
    b"/%2e%2e/%2e%2e/etc",
)


@pytest.mark.parametrize("path", TRAVERSALS)
def test_path_traversal_over_a_socket(server: Served, path: bytes):
    answer = server.raw(b"GET " + path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    assert answer.split(b"\r\n")[0].split(b" ")[1] == b"404"
    assert b"root:" not in answer


def test_no_file_is_opened_by_a_request(server: Served):
    """After any request, the process has the same files open as before."""
    folder = Path(f"/proc/{server.process.pid}/fd")

    def files() -> set[str]:
        links = {str(link.readlink()) for link in folder.iterdir() if link.is_symlink()}
        return {link for link in links if link.startswith("/")}

    before = files()
    for path in ("/", "/static/page.js", "/static/../service.py", "/api/model"):
        server.request("GET", path)
    assert files() == before


def bomb(side: int, scans: int) -> bytes:
    """Return a progressive JPEG file of a grey square whose last scan is repeated."""
    file = io.BytesIO()
    Image.new("L", (side, side), 128).save(file, "JPEG", progressive=True)
    body = file.getvalue()
    return body[:-2] + body[body.rindex(b"\xff\xda") : -2] * scans + body[-2:]


def test_jpeg_files_with_many_scans_delay_nobody(server: Served):
    photo = io.BytesIO()
    Image.effect_noise((300, 300), 99).save(photo, "JPEG")
    with ThreadPoolExecutor(10) as pool:
        # The first five are refused by the number of scans, the others wait for the process for costly pictures.
        bodies = [bomb(4000, 100_000)] * 5 + [bomb(4000, 80)] * 5
        jobs = [pool.submit(server.request, "POST", "/api/predict?fit=crop", body, JPEG) for body in bodies]
        check_still_works(server)
        while not all(job.done() for job in jobs):
            begin = time.monotonic()
            assert server.request("POST", "/api/predict?fit=digit", photo.getvalue(), JPEG)[0] == 200
            assert time.monotonic() - begin < 5
        answers = [job.result() for job in jobs]
    assert [status for status, _ in answers[:5]] == [400] * 5
    assert {status for status, _ in answers[5:]} <= {200, 400, 503}
    assert b"scans; expected at most 100" in answers[0][1]


@pytest.mark.parametrize(("count", "size"), [(100, 20_000), (10, 3_900_000)])
def test_pictures_that_do_not_arrive_delay_nobody(server: Served, count: int, size: int):
    photo = io.BytesIO()
    Image.effect_noise((300, 300), 99).save(photo, "JPEG")
    with slow_pictures(server, count, size):
        started = time.monotonic()
        assert server.request("POST", "/api/predict?fit=digit", photo.getvalue(), JPEG)[0] == 200
        assert time.monotonic() - started < 5


@pytest.mark.parametrize("start", [b"", b"POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 90\r\n"])
def test_more_slow_connections_than_the_limit(server: Served, start: bytes):
    """The server closes the connections that have waited longest, and opens no more than its limit."""
    with contextlib.ExitStack() as links:
        for _ in range(700):
            link = links.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=5))
            link.sendall(start)
        started = time.monotonic()
        check_still_works(server)
        assert time.monotonic() - started < 5
        assert len(list(Path(f"/proc/{server.process.pid}/fd").iterdir())) < 650


def test_a_header_that_does_not_end_closes_the_connection():
    """One byte per 0.1 s does not extend the time limit; a connection that is kept alive has the same limit."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    async def trickle(port: int, first: bytes) -> float:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        started = time.monotonic()
        writer.write(first)
        if first:
            await reader.readuntil(b"\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while not reader.at_eof() and time.monotonic() - started < 20:
                writer.write(b"G")
                await writer.drain()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(1), 0.1)
        writer.close()
        return time.monotonic() - started

    async def run() -> list[float]:
        with bind("127.0.0.1", 0) as bound:
            server = protocol.GuardedServer(app)
            task = asyncio.create_task(server.serve([bound]))
            while not server.started:
                await asyncio.sleep(0.01)
            port = bound.getsockname()[1]
            times = await asyncio.gather(trickle(port, b""), trickle(port, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"))
            server.should_exit = True
            await task
            return times

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "HEADER_SECONDS", 0.5)
        assert all(0.4 < seconds < 10 for seconds in asyncio.run(run()))


@pytest.mark.parametrize(("files", "expected"), [(-1, 512), (1024, 512), (256, 96), (64, 8)])
def test_the_limit_of_connections_follows_the_limit_of_files(
    files: int, expected: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("resource.getrlimit", lambda kind: (files, files))
    assert protocol.max_connections() == expected


@pytest.mark.parametrize(
    "text", [b"hello\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\r\n\r\n"]
)
def test_requests_that_are_not_http(server: Served, text: bytes):
    answer = server.raw(text)
    assert answer == b"" or answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 403"))
    check_still_works(server)


def test_a_body_that_does_not_arrive_is_an_error(monkeypatch: pytest.MonkeyPatch):
    async def never() -> Message:
        await asyncio.sleep(60)
        raise AssertionError

    monkeypatch.setattr("linfnet.serve.limits.BODY_SECONDS", 0.05)
    begin = time.monotonic()
    request = Request({"type": "http", "method": "POST", "headers": [(b"content-length", b"9")]}, never)
    with pytest.raises(HTTPException, match=r"did not arrive within 0\.05 s") as raised:
        asyncio.run(Bodies().read(request, 100))
    assert raised.value.status_code == 408
    assert time.monotonic() - begin < 0.4


def test_requests_beyond_the_capacity_get_an_error():
    async def two() -> list[int]:
        turns = Turns("predict", capacity=1, patience=0.05)
        async with turns.enter():
            tries = [asyncio.create_task(_status(turns)) for _ in range(2)]
            statuses = [await job for job in tries]
        return [*statuses, await _status(turns)]

    assert asyncio.run(two()) == [503, 429, 200]


async def _status(turns: Turns) -> int:
    try:
        async with turns.enter():
            return 200
    except HTTPException as error:
        return error.status_code


def test_requests_have_their_turns_in_order():
    async def three() -> list[int]:
        turns, order = Turns("predict", capacity=3), []

        async def wait(number: int) -> None:
            async with turns.enter():
                order.append(number)

        async with turns.enter():
            jobs = [asyncio.create_task(wait(number)) for number in range(3)]
            await asyncio.sleep(0)
            jobs[1].cancel()  # a request that is cancelled gives its turn to others
        await asyncio.wait(jobs)
        assert await _status(turns) == 200
        return order

    assert asyncio.run(three()) == [0, 2]


def test_a_busy_thread_is_reported_to_all_who_wait_for_it():
    async def busy() -> list[object]:
        gate, done, started = Gate("predict", 3, 0.2), threading.Event(), time.monotonic()
        first = asyncio.create_task(gate.run(lambda: done.wait(20)))
        await asyncio.sleep(0.01)
        waiting = await asyncio.gather(gate.run(lambda: 1), gate.run(lambda: 2), return_exceptions=True)
        late = await asyncio.gather(gate.run(lambda: 3), return_exceptions=True)
        assert time.monotonic() - started < 10
        done.set()
        return [*waiting, *late, await first, await gate.run(lambda: 4)]

    *refused, first, last = asyncio.run(busy())
    assert [error.status_code for error in refused if isinstance(error, HTTPException)] == [503] * 3
    assert (first, last) == (True, 4)


def test_cheap_requests_have_their_turns_before_costly_ones():
    """If too many wait, the most costly request is refused, even if it came first."""

    async def four() -> tuple[list[int], list[object]]:
        turns, order = Turns("decode", capacity=7), list[int]()

        async def wait(cost: int, size: int) -> None:
            async with turns.enter(cost, size):
                order.append(cost)

        async with turns.enter():
            jobs = [asyncio.create_task(wait(cost, size)) for cost, size in ((9, 4), (5, 2), (1, 1), (3, 1))]
            await asyncio.sleep(0)
        return order, await asyncio.gather(*jobs, return_exceptions=True)

    order, results = asyncio.run(four())
    assert order == [1, 3, 5]
    assert [error.status_code for error in results if isinstance(error, HTTPException)] == [429]


def test_large_slow_bodies_give_way_to_other_bodies():
    """Of the bodies that are too large in total, the one that has occupied the most memory is refused."""

    async def three() -> list[object]:
        bodies = Bodies(max_total=1000)

        def read(first: int, rest: asyncio.Event) -> asyncio.Task[bytes]:
            parts = iter([first, 1])

            async def receive() -> Message:
                if (size := next(parts)) == 1:
                    await rest.wait()
                return {"type": "http.request", "body": bytes(size), "more_body": size > 1}

            request = Request({"type": "http", "method": "POST", "headers": []}, receive)
            return asyncio.create_task(bodies.read(request, 1000))

        rest, now = asyncio.Event(), asyncio.Event()
        now.set()
        slow = [read(size, rest) for size in (300, 500)]
        await asyncio.sleep(0.02)
        fast = await read(600, now)
        rest.set()
        return [fast, *await asyncio.gather(*slow, return_exceptions=True)]

    fast, small, large = asyncio.run(three())
    assert [len(body) for body in (fast, small) if isinstance(body, bytes)] == [601, 301]
    assert isinstance(large, HTTPException)
    assert large.status_code == 503


def test_a_port_in_use_is_reported(capsys: pytest.CaptureFixture[str]):
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 2
    assert (
        capsys.readouterr().err
        == f"error: port {port} of 127.0.0.1 is in use; choose another --port (0 for any free port)\n"
    )


@pytest.mark.parametrize("missing", ["fastapi", "uvicorn", "PIL"])
def test_a_missing_extra_is_reported(missing: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in sys.modules if name.startswith("linfnet.serve")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    assert main(["serve", "--port", "0"]) == 2
    assert "pip install 'linfnet[serve]'" in capsys.readouterr().err


def test_wrong_addresses_are_reported(capsys: pytest.CaptureFixture[str]):
    for arguments, words in ((["--port", "70000"], "port is 70000"), (["--host", "no such host"], "no such address")):
        assert main(["serve", *arguments]) == 2
        assert words in capsys.readouterr().err
    assert main(["serve", "/no/such/model", "--port", "0"]) == 2
