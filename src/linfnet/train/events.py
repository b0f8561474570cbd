"""The event log: a JSON table in each line, as a run writes it; what is no event is left out when it is read."""

import json
from typing import Any, cast

from linfnet.train.kinds import count, finite, table

_EPOCH = ("seconds", "lambda", "lr", "scale", "loss", "accuracy", "above", "between", "below")
_TEST = ("seconds", "accuracy_at_p", "clean")


def parse_events(text: str) -> list[dict[str, Any]]:
    """The events of a log; a line that a crash cut short, or in which a value is missing or wrong, is left out.

    >>> parse_events('{"event": "resume", "step": 7}\\n{"event": "epoch", "epoch": "first"}\\n{"event": "fin')
    [{'event': 'resume', 'step': 7}]
    """
    events: list[dict[str, Any]] = []
    for line in text.splitlines():
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if table(event) and _whole(cast(dict[str, Any], event)):
            events.append(event)
    return events


def _whole(event: dict[str, Any]) -> bool:
    """Whether an event has all that those who read it look at."""
    if not (isinstance(event.get("event"), str) and count(event.get("step", 0))):
        return False
    if event["event"] == "epoch":
        numbers = all(finite(event.get(key)) for key in _EPOCH) and count(event.get("epoch"))
        return numbers and event["epoch"] > 0 and (event.get("p") == "inf" or finite(event.get("p")))
    if event["event"] == "test":
        certified: Any = event.get("certified")
        shares = table(certified) and all(map(finite, certified.values()))
        return shares and count(event.get("epoch")) and all(finite(event.get(key)) for key in _TEST)
    return True
