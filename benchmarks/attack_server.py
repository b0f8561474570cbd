"""Attack `linfnet serve` on this machine: slow connections and JPEG files with very many scans, while others use it.

    python benchmarks/attack_server.py [--model mnist-small] [--seconds 60] [--record records/serve-attack.json]

The server runs with 1,024 file handles. Four attacks:

- slow: 500 slow connections (silent, slow headers, slow JSON bodies, pictures of which 20 kB arrive at once), which are
  opened again when the server closes them, and ten JPEG files of 4 MB, each posted again and again;
- stalled: 20 connections that send 3.8 MB of a picture at once and then one byte per second;
- costly: ten clients that post a valid JPEG file of 99 scans again and again, which takes about a second to decode;
- idle: 1,100 silent connections.

Meanwhile other clients request the page and predictions of JSON pixels, of a small picture and of a photograph. All
connections are to 127.0.0.1.
"""

import argparse
import asyncio
import contextlib
import datetime
import http.client
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cpu import commit, cpu_name
from PIL import Image

WHAT = "latency and memory of `linfnet serve` under slow connections and JPEG files with many scans"
FILES, SLOW, STALLED, IDLE, JPEGS, COSTLY_SCANS = 1024, 500, 20, 1100, 10, 99
WANTED_SECONDS, WANTED_BYTES = 5.0, 100_000_000
HEADER = b"POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1\r\n"
STARTS = {
    "silent": b"",
    "header": HEADER,
    "json": HEADER + b"Content-Type: application/json\r\nContent-Length: 9000\r\n\r\n",
    "picture": HEADER + b"Content-Type: image/png\r\nContent-Length: 3900000\r\n\r\n" + bytes(20_000),
}
STALLED_START = STARTS["picture"] + bytes(3_780_000)


def jpeg_bomb(scans: int | None = None, side: int = 4000, size: int = 3_990_000) -> bytes:
    """Return a valid progressive JPEG file with repeated scans: `scans` of them, or as many as fit in `size` bytes."""
    file = io.BytesIO()
    Image.new("L", (side, side), 128).save(file, "JPEG", progressive=True)
    body = file.getvalue()
    scan = body[body.rindex(b"\xff\xda") : -2]
    more = (size - len(body)) // len(scan) if scans is None else scans - body.count(b"\xff\xda")
    return body[:-2] + scan * more + body[-2:]


@contextlib.contextmanager
def server(model: str, errors: Path) -> Generator[tuple[subprocess.Popen[str], int]]:
    """Run the server with few file handles; yield its process and port."""
    command = [sys.executable, "-m", "linfnet", "serve", model, "--port", "0"]
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, "COLUMNS": "200"},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES)),
        )
    assert process.stdout is not None
    (port,) = re.findall(r"http://127\.0\.0\.1:(\d+)/", process.stdout.readline())
    try:
        yield process, int(port)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
        process.stdout.close()


def memory(pid: int) -> int:
    """Return the resident bytes of a process and of its children."""
    pids, total = [pid], 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            pids += map(int, (task / "children").read_text().split())
    for one in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            total += int(Path(f"/proc/{one}/statm").read_text().split()[1]) * resource.getpagesize()
    return total


@dataclass
class Watch:
    """Ordinary clients of the server, one thread each, and the memory of the server."""

    process: subprocess.Popen[str]
    port: int
    shape: tuple[int, int, int]
    latencies: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    statuses: Counter[str] = field(default_factory=Counter[str])
    bytes_before: int = 0
    bytes_most: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    def requests(self) -> dict[str, tuple[str, str, bytes | None, dict[str, str]]]:
        channels, rows, columns = self.shape
        pixels = json.dumps({"pixels": [[[0.5] * columns] * rows] * channels}).encode()
        file = io.BytesIO()
        picture = Image.linear_gradient("L").resize((columns, rows))
        picture.convert("RGB" if channels == 3 else "L").save(file, "PNG")
        photo = io.BytesIO()
        Image.effect_noise((300, 300), 99).save(photo, "JPEG")
        return {
            "page": ("GET", "/", None, {}),
            "json": ("POST", "/api/predict", pixels, {"Content-Type": "application/json"}),
            "picture": ("POST", "/api/predict", file.getvalue(), {"Content-Type": "image/png"}),
            "photo": ("POST", "/api/predict?fit=crop", photo.getvalue(), {"Content-Type": "image/jpeg"}),
        }

    def client(self, name: str) -> None:
        """Send one kind of request twice a second."""
        method, path, body, headers = self.requests()[name]
        while not self.stop.is_set():
            started, status = time.monotonic(), "none"
            link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            try:
                link.request(method, path, body, headers)
                answer = link.getresponse()
                answer.read()
                status = str(answer.status)
            except (OSError, http.client.HTTPException) as error:
                status = type(error).__name__
            finally:
                link.close()
            self.latencies.setdefault(name, []).append(time.monotonic() - started)
            self.statuses[f"{name}: {status}"] += 1
            self.stop.wait(0.5)

    def weigh(self) -> None:
        """Record the largest memory."""
        while not self.stop.wait(0.2):
            self.bytes_most = max(self.bytes_most, memory(self.process.pid))

    def run(self, attack: Any, seconds: float) -> dict[str, Any]:
        """Run an attack while the clients send requests; return the figures."""
        self.bytes_before = self.bytes_most = memory(self.process.pid)
        threads = [threading.Thread(target=self.client, args=(name,)) for name in self.requests()]
        threads.append(threading.Thread(target=self.weigh))
        for thread in threads:
            thread.start()
        figures = asyncio.run(attack(self.port, seconds))
        self.stop.set()
        for thread in threads:
            thread.join()
        return {
            **figures,
            "seconds": seconds,
            "longest_answer": {name: round(max(times), 3) for name, times in self.latencies.items()},
            "median_answer": {name: round(sorted(times)[len(times) // 2], 3) for name, times in self.latencies.items()},
            "answers": dict(self.statuses),
            "megabytes_before": round(self.bytes_before / 1e6, 1),
            "megabytes_added": round((self.bytes_most - self.bytes_before) / 1e6, 1),
        }


async def slow(port: int, kind: str, until: float, counts: Counter[str], start: bytes | None = None) -> None:
    """Hold a connection and send one byte per second; open it again when the server closes it."""
    while time.monotonic() < until:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(STARTS[kind] if start is None else start)
            counts[f"{kind}: opened"] += 1
            while time.monotonic() < until and not reader.at_eof():
                if kind != "silent":
                    writer.write(b"a")
                    await writer.drain()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(65536), 1)
            writer.close()
        except OSError as error:
            counts[f"{kind}: {type(error).__name__}"] += 1
        await asyncio.sleep(0.1)


async def post(port: int, body: bytes, until: float, counts: Counter[str], pause: float = 1.0) -> None:
    """Post a JPEG file every `pause` seconds, or as soon as the server has answered."""
    head = HEADER.replace(b"predict", b"predict?fit=crop")
    head += b"Content-Type: image/jpeg\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    while time.monotonic() < until:
        started = time.monotonic()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head + body)
            line = await asyncio.wait_for(reader.readline(), 60)
            counts[f"jpeg: {line.split()[1].decode() if line else 'closed'}"] += 1
            writer.close()
        except (OSError, TimeoutError) as error:
            counts[f"jpeg: {type(error).__name__}"] += 1
        await asyncio.sleep(max(0.0, pause - (time.monotonic() - started)))


async def slow_and_jpegs(port: int, seconds: float) -> dict[str, Any]:
    """Hold 500 slow connections, and post ten JPEG files."""
    until, counts, body = time.monotonic() + seconds, Counter[str](), jpeg_bomb()
    kinds = [list(STARTS)[k % len(STARTS)] for k in range(SLOW)]
    jobs = [slow(port, kind, until, counts) for kind in kinds] + [post(port, body, until, counts) for _ in range(JPEGS)]
    await asyncio.gather(*jobs)
    return {"slow": SLOW, "jpegs": JPEGS, "scans": body.count(b"\xff\xda"), "attackers": dict(sorted(counts.items()))}


async def stalled(port: int, seconds: float) -> dict[str, Any]:
    """Hold connections that have sent most of a large picture."""
    until, counts = time.monotonic() + seconds, Counter[str]()
    await asyncio.gather(*(slow(port, "picture", until, counts, STALLED_START) for _ in range(STALLED)))
    return {"stalled": STALLED, "sent_bytes": len(STALLED_START), "attackers": dict(sorted(counts.items()))}


async def costly(port: int, seconds: float) -> dict[str, Any]:
    """Post ten JPEG files that take long to decode."""
    until, counts, body = time.monotonic() + seconds, Counter[str](), jpeg_bomb(COSTLY_SCANS)
    await asyncio.gather(*(post(port, body, until, counts, 0.05) for _ in range(JPEGS)))
    return {"jpegs": JPEGS, "scans": body.count(b"\xff\xda"), "attackers": dict(sorted(counts.items()))}


async def idle(port: int, seconds: float) -> dict[str, Any]:
    """Hold 1,100 silent connections."""
    until, counts = time.monotonic() + seconds, Counter[str]()
    await asyncio.gather(*(slow(port, "silent", until, counts) for _ in range(IDLE)))
    return {"idle": IDLE, "files": FILES, "attackers": dict(sorted(counts.items()))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mnist-small")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the first attack; the others take a third")
    parser.add_argument("--record", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    results: dict[str, Any] = {}
    attacks = {"slow": slow_and_jpegs, "stalled": stalled, "costly": costly, "idle": idle}
    for name, attack in attacks.items():
        seconds = arguments.seconds / (1 if name == "slow" else 3)
        with tempfile.TemporaryDirectory() as folder:
            errors = Path(folder) / "stderr"
            with server(arguments.model, errors) as (process, port):
                link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                link.request("GET", "/api/model")
                shape = tuple(json.loads(link.getresponse().read())["image_shape"])
                for request in Watch(process, port, shape).requests().values():
                    link.request(*request)
                    link.getresponse().read()
                link.close()
                results[name] = Watch(process, port, shape).run(attack, seconds)
            results[name]["stderr_bytes"] = errors.stat().st_size
            sys.stderr.write(errors.read_text()[-4000:])
        sys.stdout.write(f"{name}: {json.dumps(results[name], indent=1)}\n")
    figures = {
        "what": WHAT,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "commit": commit(),
        "command": "python benchmarks/attack_server.py --model " + arguments.model,
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "load_before": round(load, 2),
        **results,
    }
    if arguments.record:
        arguments.record.write_text(json.dumps(figures, indent=1) + "\n")
    longest = max(max(result["longest_answer"].values()) for result in results.values())
    added = max(result["megabytes_added"] for result in results.values())
    refused = sum(
        n for result in results.values() for text, n in result["answers"].items() if not text.endswith(" 200")
    )
    sys.stdout.write(f"longest answer {longest:.2f} s, {refused} refused, {added:.1f} MB added\n")
    sys.stdout.write(f"wanted: at most {WANTED_SECONDS:g} s, none refused, at most {WANTED_BYTES / 1e6:g} MB\n")
    sys.exit(0 if longest <= WANTED_SECONDS and not refused and added * 1e6 <= WANTED_BYTES else 1)


if __name__ == "__main__":
    main()
