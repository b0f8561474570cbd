"""Runs of any system side by side: what was measured of each, and what it cost."""

import dataclasses
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from linfnet.errors import LinfnetError
from linfnet.nn.classifier import read_config
from linfnet.train import read_results


@dataclass(frozen=True)
class Compared:
    """One evaluation of a run at one epsilon; shares in [0, 1], None where it was not measured."""

    run: str
    system: str
    images: str
    """Which images, and how many steps the attack took if not 100: as in results.json."""
    eps: str
    clean: float
    attacked: float | None
    certified: float | None
    certificate: str
    """The certificate that proves most; of equals, the cheaper."""
    arithmetic: str
    """float32: proven of the program. real: rounding apart."""
    confidence: float
    train_seconds: float | None
    certify_seconds_per_image: float | None
    parameters: int | None

    def as_dict(self) -> dict[str, Any]:
        """All fields by name."""
        return dataclasses.asdict(self)


def compare_runs(folders: Iterable[Path]) -> list[Compared]:
    """A row for each evaluation of each run; runs that were only trained have what training measured in the end."""
    folders = list(folders)
    names = [folder.resolve().name for folder in folders]
    rows: list[Compared] = []
    for folder, name in zip(folders, names, strict=True):
        # The runs of a study are all called by their seeds: their paths tell them apart.
        rows += list(_rows(folder, name if names.count(name) == 1 else str(folder))) or [_fail(folder)]
    return rows


def _fail(folder: Path) -> Compared:
    raise LinfnetError(f"{folder} holds no results; measure it with: linfnet evaluate {shlex.quote(str(folder))}")


def _rows(folder: Path, run: str) -> Iterator[Compared]:
    results, config = read_results(folder), read_config(folder)
    system = str(config.get("system", "linf"))
    trained = _table(results.get("train"))
    cost = {"train_seconds": trained.get("seconds"), "parameters": trained.get("parameters")}
    evaluated = {key: _table(entry) for key, entry in results.items() if " eps=" in key}
    for key, entry in evaluated.items():
        images, _, eps = key.rpartition(" eps=")
        certificate, share = _best(entry)
        prices = _table(entry.get("certify_seconds_per_image"))
        yield Compared(
            run=run,
            system=system,
            images=images,
            eps=eps,
            clean=float(entry.get("clean", 0.0)),
            attacked=entry.get("pgd"),
            certified=share,
            certificate=certificate,
            arithmetic=str(entry.get("arithmetic", "float32")),
            confidence=float(entry.get("confidence", 1.0)),
            certify_seconds_per_image=prices.get(certificate),
            **cost,
        )
    if not evaluated and trained:
        # What training watches is not what one may rely on: real arithmetic, whatever the system.
        own = _table(trained.get("certified"))
        for eps in own or {"": None}:
            named = (run, system, "test, after training", eps)
            measured = (float(trained.get("clean", 0.0)), None, own.get(eps), "")
            yield Compared(*named, *measured, "real", 1.0, trained.get("seconds"), None, trained.get("parameters"))


def _best(entry: Mapping[str, Any]) -> tuple[str, float | None]:
    """The certificate with the largest share; the margin comes first among equals, as it costs one forward pass."""
    shares = {key.removeprefix("certified_"): value for key, value in entry.items() if key.startswith("certified_")}
    shares.pop("and_broken", None)
    name = max(shares, key=lambda key: (shares[key], key == "margin"), default="")
    return name, shares.get(name)


def _table(value: Any) -> dict[str, Any]:
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}
