"""The files of an evaluation: results.json, a CSV file with all samples, and the broken images."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

from torch import Tensor

from linfnet.attacks import other_class
from linfnet.evaluation.outcome import Broken, Evaluation
from linfnet.files import write_tensors
from linfnet.results import add_evaluations, storage


def save_evaluation(evaluation: Evaluation, folder: Path | str) -> None:
    """Add the results to results.json in a folder, and write files with all samples and with the broken images."""
    folder = Path(folder)
    if evaluation.results:
        path = storage.samples_path(folder, evaluation.results)
        storage.write_columns(path, _sample_columns(evaluation))
        tensors = _named({at.eps: at.broken for at in evaluation.at})
        attack = f"{evaluation.attack.name}-{evaluation.attack.steps}"
        write_tensors(storage.broken_path(path), tensors, {"linfnet": "broken-samples-1", "attack": attack})
        found = {at.eps: at.witnesses for at in evaluation.at if at.witnesses is not None}
        if found:
            write_tensors(storage.witness_path(path), _named(found), {"linfnet": "witnesses-1"})
    # Written last: a study does not repeat an evaluation that is in results.json.
    add_evaluations(folder, evaluation.results)


def _named(samples: Mapping[Fraction, Broken]) -> dict[str, Tensor]:
    """Return the tensors of a file of broken images."""
    tensors: dict[str, Tensor] = {}
    for eps, broken in samples.items():
        tensors[storage.at_epsilon(storage.INDEX, eps)] = broken.index
        tensors[storage.at_epsilon(storage.IMAGES, eps)] = broken.images
        tensors[storage.at_epsilon(storage.PREDICTIONS, eps)] = broken.predictions
    return tensors


def _sample_columns(evaluation: Evaluation) -> dict[str, Sequence[object]]:
    """Return the columns of the CSV file: label, prediction, margin, radii, and the outcome at each epsilon."""
    prediction, attack = evaluation.logits.argmax(1), evaluation.attack
    columns: dict[str, Sequence[object]] = {
        storage.INDEX: range(len(evaluation.labels)),
        storage.LABEL: evaluation.labels.tolist(),
        storage.PREDICTION: prediction.tolist(),
        storage.RUNNER_UP: other_class(evaluation.logits, prediction).tolist(),
        storage.MARGIN: [f"{value:.9g}" for value in evaluation.margins.tolist()],
    }
    for name, radii in evaluation.radii.items():
        columns[storage.radius_column(name)] = radii.tolist()  # all digits: a rounded radius might not be certified
    if evaluation.real_radii is not None:
        columns[storage.REAL_MARGIN_RADIUS] = [f"{value:.9g}" for value in evaluation.real_radii.tolist()]
    for at in evaluation.at:
        for name, flags in at.certified.items():
            columns[storage.at_epsilon(f"certified_{name}", at.eps)] = flags.int().tolist()
        columns[storage.at_epsilon(f"{attack.name}{attack.steps}", at.eps)] = at.survived.int().tolist()
        if at.exact is not None and at.undecided is not None:
            flags = zip(at.exact.int().tolist(), at.undecided.tolist(), strict=True)
            columns[storage.at_epsilon("exact", at.eps)] = ["" if unknown else robust for robust, unknown in flags]
    return columns
