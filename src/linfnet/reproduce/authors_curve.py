"""The learning curve of the authors' run on CIFAR-10 at 8/255, and which runs it can be compared with."""

from dataclasses import dataclass, replace

from linfnet.recipes import Recipe, load_recipe


@dataclass(frozen=True)
class CurvePoint:
    """State at the end of an epoch (counted from 1) of the full recipe; shares in [0, 1]."""

    epoch: int
    p: float
    scale: float
    loss: float
    accuracy: float
    above: float  # share of training margins above theta
    test_accuracy: float | None = None  # at the p of the epoch


AUTHORS_CURVE = (
    CurvePoint(1, 8.0, 1.0, 1.076, 0.184, 0.099),
    CurvePoint(5, 8.0, 0.76, 0.827, 0.397, 0.288, 0.429),
    CurvePoint(10, 8.0, 0.66, 0.750, 0.450, 0.359, 0.474),
    CurvePoint(50, 8.0, 0.66, 0.594, 0.584, 0.477, 0.584),
    CurvePoint(100, 8.0, 0.77, 0.536, 0.634, 0.518, 0.612),
    CurvePoint(300, 18.5, 2.37, 0.584, 0.617, 0.302, 0.585),
    CurvePoint(500, 42.7, 2.94, 0.629, 0.579, 0.200, 0.552),
    CurvePoint(800, 151.0, 3.39, 0.638, 0.571, 0.155, 0.538),
    CurvePoint(1000, 349.0, 3.53, 0.629, 0.579, 0.153, 0.538),
    CurvePoint(1300, float("inf"), 3.60, 0.617, 0.589, 0.156, 0.542),
)


def comparable_epochs(recipe: Recipe) -> int:
    """Return the last epoch at which a run is comparable with the authors' run; 0 if it is not comparable.

    With the full recipe that is the last epoch. With shortened phases it is the end of the first phase, if that has at
    least ten epochs (the learning rate of a shortened run decays earlier: by 2.4 % within ten epochs of a hundred).
    """
    full = load_recipe("cifar10-8")
    for section in ("data", "model", "loss", "optimizer", "system_name"):
        if getattr(recipe, section) != getattr(full, section):
            return 0
    if recipe.schedule.p_start != full.schedule.p_start:
        return 0
    whole = replace(recipe.schedule, snap_p=False) == full.schedule
    start = recipe.schedule.epochs[0]
    return full.schedule.phases().total if whole else start if start >= 10 else 0
