"""`linfnet predict`: the class of image files, and the radius inside which it is certified not to change."""

import csv
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import arg

from linfnet.certificates import Certification, certify_images
from linfnet.cli import inputs
from linfnet.cli.certify import images_table
from linfnet.cli.console import print_table
from linfnet.distributed.device import choose_device
from linfnet.epsilon import format_epsilon
from linfnet.errors import ArgumentError


@dataclass(frozen=True)
class Predict:
    """Classify image files, and compute the radius inside which the class is certified not to change.

    The radius is the largest certified change of every pixel, which is a number from 0 to 1. A file that cannot be
    used is named on standard error, the others are classified, and the exit status is 2.

    Examples:
        linfnet predict mnist-small digit.png
        linfnet predict mnist-small scans/ --grey --resize 28x28 --csv > out.csv
    """

    model: inputs.Model
    images: Annotated[tyro.conf.Positional[tuple[Path, ...]], arg(metavar="IMAGE|DIR [...]")]
    """Image files (PNG, JPEG, …), .npy files with floats in [0, 1] or bytes, or folders of them."""
    eps: Annotated[
        inputs.Epsilons, arg(metavar="EPS [EPS ...]", help="Also show whether the class is certified at these changes.")
    ] = ()
    json: bool = False
    """Write JSON instead of a table, with all digits."""
    csv: bool = False
    """Write CSV instead of a table, with all digits."""
    resize: inputs.Resize = None
    grey: inputs.Grey = False
    rgb: inputs.Rgb = False
    device: inputs.Device = "auto"

    def run(self) -> int:
        """Print the predictions; return 2 if image files were skipped."""
        if not self.images:
            raise ArgumentError("no image is given; expected image files or folders")
        if self.json and self.csv:
            raise ArgumentError("--json and --csv cannot be combined")
        epsilons = inputs.parse_epsilons(self.eps)
        conversion = inputs.parse_conversion(self.resize, self.grey, self.rgb)
        device = choose_device(self.device)
        _, net, classes = inputs.load_checked(self.model, device)
        skipped = inputs.SkippedFiles(net.picture_shape())
        images = inputs.read_own_images(list(self.images), net, conversion, skipped).to(device)
        found = certify_images(net, images.batches(inputs.BATCH), epsilons)
        if self.json:
            sys.stdout.write(json.dumps(rows(found, images.names, classes), indent=2, ensure_ascii=False) + "\n")
        elif self.csv:
            table = [_flat(row) for row in rows(found, images.names, classes)]
            writer = csv.DictWriter(sys.stdout, table[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(table)
        else:
            radii = {"certified radius": found.best_radii}
            table = images_table(found, images.names, classes, radii, at_epsilons=True)
            table.caption = f"radii: {found.guarantee}"
            print_table(table)
        return skipped.status


def rows(found: Certification, names: list[str], classes: list[str]) -> list[dict[str, Any]]:
    """Return one row for each image: class, number, radius (None in a tie) and what it promises, runner-up."""
    flags = found.certified_by_any.T.tolist()
    columns = (found.predictions.tolist(), found.runners_up.tolist(), found.best_radii.tolist(), flags)
    return [
        {
            "image": name,
            "class": classes[first],
            "prediction": first,
            "radius": radius if radius >= 0 else None,
            "guarantee": found.guarantee,
            "runner_up": classes[second],
            "certified": {
                format_epsilon(epsilon): flag for epsilon, flag in zip(found.epsilons, certified, strict=True)
            },
        }
        for name, first, second, radius, certified in zip(names, *columns, strict=True)
    ]


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    certified = {f"certified@{epsilon}": int(flag) for epsilon, flag in row["certified"].items()}
    return {**{key: value for key, value in row.items() if key != "certified"}, **certified}
