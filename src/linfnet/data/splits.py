"""Which samples of the user's own data form a split: stored splits by name, or a split made from a seed."""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from linfnet.errors import ArgumentError, LinfnetError

# How people call the splits; the first match counts.
SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "test": "test",
    "testing": "test",
    "val": "val",
    "valid": "val",
    "validation": "val",
}


def stored_split(split: str, present: Iterable[str], where: str) -> str | None:
    """The stored split ("train", "test" or "val") that serves as `split`, or None if a split must be made.

    Data without a test split uses "val" as its test split; data with neither is split by a seed.

    >>> stored_split("test", ["train", "val"], "photos")
    'val'
    """
    known = set(present)
    if split not in ("train", "test", "val"):
        raise ArgumentError(f"split is {split!r}; expected 'train' or 'test' ('val' if the data has one)")
    if split in known and known != {"train"}:
        return split
    if split == "test" and "val" in known:
        return "val"
    if known <= {"train"} and split != "val":
        return None
    raise LinfnetError(f"{where} has no {split} split; it has {', '.join(sorted(known)) or 'none'}")


def made_split(
    split: str, labels: Sequence[int], keys: Sequence[str], classes: Sequence[str], seed: int, where: str
) -> list[int]:
    """The indices of one part of a stratified split: a fifth of each class is the test part, at least one sample.

    The split depends on the keys (for example file names) and the seed, not on the order of the samples.

    >>> made_split("test", [0, 0, 1, 1], ["a", "b", "c", "d"], ["x", "y"], 0, "photos")
    [1, 2]
    """
    members: defaultdict[int, list[int]] = defaultdict(list)
    for index, label in enumerate(labels):
        members[label].append(index)
    test: set[int] = set()
    for label, indices in members.items():
        if len(indices) < 2:
            raise LinfnetError(
                f"{where}: class {classes[label]!r} has one sample; a split needs at least two (or store train and "
                "test apart)"
            )
        order = sorted(indices, key=lambda index: name_hash(f"{seed}/{keys[index]}"))
        test.update(order[: max(1, (len(indices) + 2) // 5)])
    return [index for index in range(len(labels)) if (index in test) == (split == "test")]


def name_hash(name: str) -> bytes:
    """A number that is fixed for each name but in no order: for orders that look random and can be repeated."""
    return hashlib.sha256(name.encode()).digest()


def sorted_classes(names: Iterable[str], where: str) -> tuple[str, ...]:
    """The class names in order: as numbers if all of them are integers.

    >>> sorted_classes(["10", "9", "1"], "photos")
    ('1', '9', '10')
    """
    different = set(names)
    if len(different) < 2:
        only = f"only the class {next(iter(different))!r}" if different else "no classes"
        raise LinfnetError(f"{where} has {only}; expected at least two classes")
    if all(re.fullmatch(r"-?[0-9]{1,18}", name) for name in different):
        return tuple(sorted(different, key=lambda name: (int(name), name)))
    return tuple(sorted(different))


def check_same_classes(splits: Mapping[str, Iterable[str]], where: str) -> None:
    """Raise unless all splits have the same classes; the message names those that a split lacks."""
    sets = {split: set(names) for split, names in splits.items()}
    every = set[str]().union(*sets.values())
    lacking = [f"{split} lacks {', '.join(sorted(every - names))}" for split, names in sets.items() if every - names]
    if lacking:
        raise LinfnetError(f"the splits of {where} have different classes: {'; '.join(lacking)}")
