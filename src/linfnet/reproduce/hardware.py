"""The hardware a run was trained on, including changes between the sessions of a resumed run."""

from typing import Any


def hardware_of(environment: dict[str, Any], trained: dict[str, Any], events: list[dict[str, Any]]) -> str:
    """Return the processors or GPUs of a run in order, joined by "then".

    Args:
        environment: the contents of env.json.
        trained: the figures of training in results.json; `device` is read.
        events: the event log, whose `resume` events hold what changed.
    """
    names: list[str] = []
    for changes in ({}, *(resumed["environment"] for resumed in resumptions(events))):
        session = environment | changes
        on_cpu = trained.get("device") == "cpu" or not session.get("gpu")
        names.append(str(session.get("cpu" if on_cpu else "gpu", "unknown")))
    return ", then ".join(dict.fromkeys(names))


def resumptions(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return, for each time a run was resumed, the step and the changes of the environment."""
    resumed = [event for event in events if event["event"] == "resume"]
    tables = [event.get("environment") for event in resumed]
    return [
        {"step": event.get("step", 0), "environment": table if isinstance(table, dict) else {}}
        for event, table in zip(resumed, tables, strict=True)
    ]
