"""Draw the picture of the README from records/ball.json: a digit in its certified ball, and accuracies over epsilon.

`make docs` writes it through generate_docs.py. The picture is an SVG file with light and dark colours. Its small images
are PNG files without compression, because the bytes of compressed ones depend on the version of zlib.
"""

import base64
import math
import struct
import zlib
from fractions import Fraction
from typing import Any

from tools.records import read_record

WIDTH, HEIGHT = 880, 372
STYLE = """
svg { --paper: #fbfaf7; --edge: #dcd8cd; --ink: #1b1f24; --soft: #5a6068; --line: #0b6b74; --warm: #b4501e; }
@media (prefers-color-scheme: dark) {
  svg { --paper: #171b1f; --edge: #343a40; --ink: #e9e7e2; --soft: #a3a9b0; --line: #52c4cb; --warm: #f0986a; }
}
text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", sans-serif;
  fill: var(--soft); }
.head { font-size: 17px; font-weight: 650; fill: var(--ink); }
.strong { font-weight: 650; fill: var(--ink); }
.sure { fill: var(--line); font-weight: 650; }
.broken { fill: var(--warm); font-weight: 650; }
.paper { fill: var(--paper); stroke: var(--edge); }
.box { fill: var(--line); fill-opacity: .12; stroke: var(--line); stroke-width: 2; }
.area { fill: var(--line); fill-opacity: .16; }
.curve { fill: none; stroke: var(--line); stroke-width: 2.5; }
.attack { fill: none; stroke: var(--warm); stroke-width: 2; }
.dot { fill: var(--warm); }
.grid { stroke: var(--edge); }
.ruler { stroke: var(--soft); stroke-dasharray: 3 3; }
.frame { fill: none; stroke: var(--line); stroke-width: 2; }
.wrong { fill: none; stroke: var(--warm); stroke-width: 2; }
.end { text-anchor: end; } .middle { text-anchor: middle; }
image { image-rendering: pixelated; }
"""


def picture() -> str:
    """Return the SVG file."""
    record = read_record("ball")
    digit = record["digit"]
    name, closest = digit["label"], digit["closest"]
    described = (
        f"Left: a handwritten {name} in the centre of a box, its certified ball of radius {_down(digit['radius'])}; "
        f"the changed images at the corners are all classified as {name}. Right: certified accuracy over epsilon, and "
        "above it the accuracy under attack."
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'role="img" aria-labelledby="what">',
        f'<title id="what">{described}</title>',
        f"<style>{STYLE}</style>",
        f'<rect class="paper" x=".5" y=".5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="10"/>',
        *_ball(digit, name, closest),
        *_curves(record),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _ball(digit: dict[str, Any], name: int, closest: dict[str, Any]) -> list[str]:
    """Return the left half: the box, the digit in its centre, changed images at the corners, the closest error."""
    middle, centre, half = 154, 218, 94
    radius, distance = _down(digit["radius"]), _up(closest["distance"])
    if set(digit["predictions_inside"]) != {name} or closest["distance"] <= digit["radius"]:
        raise ValueError("records/ball.json: an image inside the certified ball is misclassified")
    parts = [
        _text(28, 36, f"Proven: a {name} everywhere in this box", "head"),
        _text(28, 58, f"Each pixel may change by up to {radius}, all at the same time."),
        f'<rect class="box" x="{middle - half}" y="{centre - half}" width="{2 * half}" height="{2 * half}"/>',
        _thumb(digit["image"], middle, centre, 84, "frame"),
    ]
    corners = ((1, -1), (-1, -1), (-1, 1), (1, 1))
    for image, (right, down) in zip(digit["inside"], corners, strict=True):
        parts.append(_thumb(image, middle + right * half, centre + down * half, 62, "frame"))
    x = middle + half + 112
    parts += [
        f'<path class="wrong" d="M{middle + half} {centre}H{x - 31}" stroke-dasharray="3 3"/>',
        _thumb(closest["image"], x, centre, 62, "wrong"),
        _text(x, centre - 58, "closest error", "middle"),
        _text(x, centre - 41, "an attack found", "middle"),
        _text(x, centre + 50, f"at {distance}:", "middle"),
        _text(x, centre + 68, f"classified as {closest['prediction']}", "broken middle"),
    ]
    return parts


def _curves(record: dict[str, Any]) -> list[str]:
    """Return the right half: certified accuracy as an area, the accuracy under attack as a line above it."""
    left, right, top, bottom, last = 512, 846, 84, 318, 0.5
    total = record["images"]

    def at(epsilon: Fraction, count: int) -> str:
        x = left + (right - left) * float(epsilon) / last
        return f"{x:.1f} {bottom - (bottom - top) * count / total:.1f}"

    certified = {Fraction(eps): count for eps, count in record["certified"].items()}
    attacked = {Fraction(0): record["clean"]} | {Fraction(eps): count for eps, count in record["attacked"].items()}
    if any(count < certified[eps] for eps, count in attacked.items()):
        raise ValueError("records/ball.json: fewer images survived the attack than are certified")
    parts = [
        _text(472, 36, "Certified and attacked accuracy", "head"),
        _text(472, 58, f"{record['net']} on {total:,} MNIST test images, percent"),
    ]
    for share in (0, 25, 50, 75, 100):
        y = bottom - (bottom - top) * share / 100
        parts += [
            f'<path class="grid" d="M{left} {y:.1f}H{right}"/>',
            _text(left - 10, round(y) + 5, str(share), "end"),
        ]
    for tenth in range(6):
        parts.append(_text(left + (right - left) * tenth // 5, bottom + 20, f"{tenth / 10:g}", "middle"))
    curve = "L".join(at(eps, count) for eps, count in certified.items())
    path = "L".join(at(eps, count) for eps, count in attacked.items())
    dots = [at(eps, count).split() for eps, count in attacked.items()]
    mark = Fraction(3, 10)
    x, y = at(mark, certified[mark]).split()
    parts += [
        f'<path class="area" d="M{curve}V{bottom}H{left}Z"/>',
        f'<path class="curve" d="M{curve}"/>',
        f'<path class="attack" d="M{path}"/>',
        *(f'<circle class="dot" cx="{cx}" cy="{cy}" r="2.5"/>' for cx, cy in dots),
        f'<path class="ruler" d="M{x} {bottom}V{y}"/>',
        _text(float(x) - 10, 182, f"at ε = {float(mark):g}", "strong end"),
        _text(float(x) - 10, 204, f"PGD-100: {100 * attacked[mark] / total:.2f}", "broken end"),
        _text(float(x) - 10, 226, f"certified: {100 * certified[mark] / total:.2f}", "sure end"),
        _text((left + right) / 2, bottom + 41, "largest change ε of a pixel", "middle"),
    ]
    return parts


def _text(x: float, y: float, words: str, kind: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}"' + (f' class="{kind}"' if kind else "") + f">{words}</text>"


def _thumb(rows: list[str], x: float, y: float, size: int, frame: str) -> str:
    """Return an image of hexadecimal rows, centred at x, y, with a frame."""
    uri = "data:image/png;base64," + base64.b64encode(_png(rows)).decode()
    at = f'x="{x - size / 2:g}" y="{y - size / 2:g}" width="{size}" height="{size}"'
    return f'<image {at} href="{uri}"/><rect class="{frame}" {at}/>'


def _png(rows: list[str]) -> bytes:
    """Return a grey PNG file without compression; each row of the pixels starts with filter type 0."""
    pixels = [bytes.fromhex(row) for row in rows]
    header = struct.pack(">IIBBBBB", len(pixels[0]), len(pixels), 8, 0, 0, 0, 0)
    raw = b"".join(b"\0" + row for row in pixels)
    # One stored block of deflate: the last block, its length and the complement of its length.
    size = struct.pack("<HH", len(raw), len(raw) ^ 0xFFFF)
    body = b"\x78\x01\x01" + size + raw + struct.pack(">I", zlib.adler32(raw))
    chunks = ((b"IHDR", header), (b"IDAT", body), (b"IEND", b""))
    packed = (struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def _down(radius: float) -> str:
    """Return a radius with three decimals, rounded down because it is certified."""
    return f"{math.floor(radius * 1000) / 1000:.3f}"


def _up(distance: float) -> str:
    """Return a distance with three decimals, rounded up."""
    return f"{math.ceil(distance * 1000) / 1000:.3f}"
