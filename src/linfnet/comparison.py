"""Compare runs of any systems in one table of accuracies and costs."""

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from linfnet.epsilon import format_epsilon
from linfnet.errors import LinfnetError
from linfnet.files import read_table
from linfnet.nn import count_parameters
from linfnet.nn.model_path import system_name
from linfnet.results import guarantee, read_results
from linfnet.systems import load_model


@dataclass(frozen=True)
class Compared:
    """A row of the table: one evaluation at one epsilon. Missing values are None or an empty text."""

    run: str
    system: str
    images: str
    """`Result.images`, or "test, after training" for accuracies that were computed at the end of training."""
    eps: str
    clean: float
    attacked: float | None
    exact: float | None
    """The share of images that the exact method proved robust."""
    certified: float | None
    """The accuracy by the certificate that certifies most samples."""
    certificate: str
    arithmetic: str
    confidence: float
    guarantee: str
    """What the certificate promises, as a phrase."""
    train_seconds: float | None
    certify_seconds_per_image: float | None
    parameters: int | None


def compare_runs(folders: Iterable[Path], *, data: str | None = None) -> list[Compared]:
    """Return the rows of all runs, each run once, by rising epsilon.

    A run without evaluations has the accuracies from the end of training.

    `data`: the name of a data set; only evaluations on it are returned.
    """
    folders = list({folder.resolve(): folder for folder in folders}.values())
    names = [folder.resolve().name for folder in folders]
    rows: list[Compared] = []
    for folder, name in zip(folders, names, strict=True):
        # The runs of a study are named after their seeds, so runs of two studies may differ only in their paths.
        new = list(_rows(folder, name if names.count(name) == 1 else str(folder), data))
        if not new:
            on, option = ("", "") if data is None else (f" on {data}", " --data DATA")
            path = shlex.quote(str(folder))
            raise LinfnetError(f"{folder} has no results{on}; evaluate it: linfnet evaluate{option} {path}")
        rows += new
    return rows


def _rows(folder: Path, run: str, data: str | None) -> Iterator[Compared]:
    results, system = read_results(folder), system_name(read_table(folder / "config.json"))
    training = results.training
    if training:
        seconds, parameters = training.seconds, training.parameters
    else:
        seconds, parameters = None, count_parameters(load_model(folder)) if results.evaluations else None
    for result in sorted(results.evaluations, key=lambda result: (bool(result.net), result.eps)):
        if data not in (None, result.data):
            continue
        yield Compared(
            run=run,
            # The run did not train `result.net`, so its system and training time do not apply.
            system="" if result.net else system,
            images=result.images,
            eps=format_epsilon(result.eps),
            clean=result.clean,
            attacked=result.attacked,
            exact=result.exact.robust if result.exact else None,
            certified=result.best_certified,
            certificate=result.best,
            arithmetic=result.arithmetic,
            confidence=result.confidence,
            guarantee=result.guarantee,
            train_seconds=None if result.net else seconds,
            certify_seconds_per_image=result.certify_seconds.get(result.best),
            parameters=None if result.net else parameters,
        )
    if training and training.test and not results.evaluations and data is None:
        for eps, share in training.test.certified.items() or ((None, None),):
            named = (run, system, "test, after training", "" if eps is None else format_epsilon(eps))
            kind = ("", "real", 1.0, guarantee("real"))
            yield Compared(*named, training.test.clean, None, None, share, *kind, seconds, None, parameters)
