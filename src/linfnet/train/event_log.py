"""The lines of events.jsonl, and the digest of the log that a checkpoint stores."""

import hashlib
import json
from typing import Any, cast

from linfnet.train.metrics import MEANS

# The numeric fields of each kind of event.
_NUMBERS = {
    "epoch": ("epoch", "seconds", "lambda", "lr", "scale", *MEANS),
    "test": ("epoch", "seconds", "accuracy_at_p", "clean"),
}


def describe_log(content: bytes) -> str:
    """Return the length and the digest of the content of a log."""
    return f"{len(content)} {hashlib.sha256(content).hexdigest()}"


def parse_events(text: str) -> list[dict[str, Any]]:
    """Return the events of a log, without lines that are truncated or have missing or non-numeric values."""
    return [event for _, event in parse_lines(text)]


def parse_lines(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the lines of a log that are events, and the events."""
    events: list[tuple[str, dict[str, Any]]] = []
    for line in text.split("\n"):
        try:
            event: Any = json.loads(line, parse_constant=_refuse)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict) and _is_event(cast(dict[str, Any], event)):
            events.append((line, cast(dict[str, Any], event)))
    return events


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _is_event(event: dict[str, Any]) -> bool:
    kind = event.get("event")
    numbers = [event.get("step", 0), *(event.get(key) for key in _NUMBERS.get(str(kind), ()))]
    if kind == "epoch":
        numbers.append(0 if event.get("p") == "inf" else event.get("p"))
    if kind == "test":
        certified: Any = event.get("certified")
        numbers += certified.values() if isinstance(certified, dict) else [None]
    known = isinstance(kind, str) and all(isinstance(number, int | float) and abs(number) < 2**63 for number in numbers)
    return known and (kind != "epoch" or event["epoch"] >= 1)
