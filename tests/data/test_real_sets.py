"""The real sets, if the user's cache has them; otherwise these tests are skipped."""

import pytest

from linfnet.data import cache_folder, load, present, set_info

REAL_CACHE = cache_folder()  # before any test changes the environment variable

COUNTS = {
    ("mnist", "train"): [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    ("mnist", "test"): [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
    ("fashion-mnist", "train"): [6000] * 10,
    ("fashion-mnist", "test"): [1000] * 10,
    ("cifar10", "train"): [5000] * 10,
    ("cifar10", "test"): [1000] * 10,
}


@pytest.mark.parametrize(("name", "split"), COUNTS, ids=map("-".join, COUNTS))
def test_content_classes_and_mean(name: str, split: str) -> None:
    if not present(name, folder=REAL_CACHE):
        pytest.skip(f"{name} is not in {REAL_CACHE}")
    loaded = load(name, split, folder=REAL_CACHE)  # checks the digest
    assert loaded.images.shape == (set_info(name).sizes[split], *set_info(name).image_shape)
    assert loaded.labels.bincount().tolist() == COUNTS[name, split]
    if split == "train":
        sums = loaded.images.sum(dim=(0, 2, 3)).double()
        mean = sums / (255 * loaded.images[:, 0].numel())
        assert tuple(round(value, 4) for value in mean.tolist()) == loaded.info.mean
