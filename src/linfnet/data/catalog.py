"""The known data sets: their shapes, classes, normalisation and content hashes, and the files that store them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from linfnet.data.formats import Arrays, read_binary, read_idx_pair, read_png, read_python
from linfnet.errors import ArgumentError, LinfnetError, nearest

# Largest number of characters of a class name.
LONGEST_NAME = 300


@dataclass(frozen=True)
class SetInfo:
    """The description of a known data set."""

    name: str
    title: str
    image_shape: tuple[int, int, int]
    """(C, H, W)"""
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    """One mean per channel, of pixels in [0, 1]."""
    std: float
    """One number for all channels, so that normalisation maps l_inf balls to l_inf balls."""
    sizes: dict[str, int] = field(hash=False)
    """The number of images per split."""
    white: int
    """The integer that represents the pixel value 1.0."""
    digests: dict[str, str] = field(default_factory=dict[str, str], hash=False, repr=False)
    """For each split, the SHA-256 of the image bytes [N, C, H, W] followed by one byte per label."""


_DIGIT_NAMES = tuple(str(digit) for digit in range(10))

_SETS = (
    # E. Alpaydin and C. Kaynak, UCI Machine Learning Repository, 1998, CC BY 4.0; see digits.txt.
    SetInfo(
        name="digits", title="Hand-written digits", image_shape=(1, 8, 8), classes=_DIGIT_NAMES,
        mean=(0.3055,), std=0.3761, sizes={"train": 1437, "test": 360}, white=16,
        digests={
            "train": "cbbdeb6f2159654572ebc44de8dfb7b68275e67e8101e3b6d12f897e7f7a3102",
            "test": "7d67c25dac01a835f76ffcd63ba53b7a030d034e1d9d54b87569041eb7072055",
        },
    ),
    # Y. LeCun, C. Cortes and C. J. C. Burges, The MNIST database of handwritten digits, 1998, CC BY-SA 3.0.
    SetInfo(
        name="mnist", title="MNIST", image_shape=(1, 28, 28), classes=_DIGIT_NAMES, mean=(0.1307,), std=0.3081,
        sizes={"train": 60000, "test": 10000}, white=255,
        digests={
            "train": "edc0d1098aa497be14ace79ddd5171e5a3dcf9c4d196c015389203eb3ba1f59b",
            "test": "c3f9adf9c66efb572b1f9326c3a511b45910c7173b97be66ceceeeeaef6b802b",
        },
    ),
    # H. Xiao, K. Rasul and R. Vollgraf, Fashion-MNIST, 2017, arXiv:1708.07747, MIT licence.
    SetInfo(
        name="fashion-mnist", title="Fashion-MNIST", image_shape=(1, 28, 28), mean=(0.2860,), std=0.3520,
        classes=("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
                 "ankle boot"),
        sizes={"train": 60000, "test": 10000}, white=255,
        digests={
            "train": "16d82e2b505296aa2b78bd5ea0992634f30419a4c97def7c907d154a35ac6157",
            "test": "9f1ec356a747bfe4ebab3cfb722d3694c9ca737e2570f6f90cf31d7b6fd689d4",
        },
    ),
    # A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009; no licence is stated.
    SetInfo(
        name="cifar10", title="CIFAR-10", image_shape=(3, 32, 32), mean=(0.4914, 0.4822, 0.4465), std=0.2009,
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        sizes={"train": 50000, "test": 10000}, white=255,
        digests={
            "train": "1e91790dbaf241617ca1f29a9aba08eb9a62df84cc90676b47edd05ad2ab3c94",
            "test": "9a4c74f5c8b6f2c4e13d3a1dfb43a5a8cda8a9da515e99fd620d2013a1a6287a",
        },
    ),
)  # fmt: skip


def known_sets() -> tuple[str, ...]:
    """Return the names that `load` accepts.

    >>> known_sets()
    ('digits', 'mnist', 'fashion-mnist', 'cifar10')
    """
    return tuple(info.name for info in _SETS)


def set_info(name: str) -> SetInfo:
    """Return the description of the data set `name`.

    >>> set_info("mnist").std
    0.3081
    """
    for info in _SETS:
        if info.name == name:
            return info
    names = known_sets()
    raise LinfnetError(f"the data set is {name!r}; expected one of {', '.join(names)}{nearest(name.lower(), names)}")


def check_names(names: Iterable[str]) -> None:
    """Raise an error if a class name is too long to be shown."""
    if (longest := max(map(len, names), default=0)) > LONGEST_NAME:
        raise ArgumentError(f"a class name has {longest:,} characters; expected at most {LONGEST_NAME}")


def own_name(name: str) -> str:
    """Return a name for the user's own data that is not the name of a known data set.

    >>> own_name("photos"), own_name("mnist")
    ('photos', 'own-mnist')
    """
    return f"own-{name}" if name in known_sets() else name


def set_title(name: str) -> str:
    """Return the title of a known data set, or the name of the user's own data.

    >>> set_title("mnist"), set_title("photos")
    ('MNIST', 'photos')
    """
    return set_info(name).title if name in known_sets() else name


@dataclass(frozen=True)
class Format:
    """A file format of a data set."""

    files: dict[str, tuple[str, ...]]
    """The paths of the files of each split, relative to the folder."""
    read: Callable[[list[Path]], Arrays]
    """A function that decodes the files of one split."""

    def all_files(self) -> list[str]:
        """Return the paths of the files of all splits."""
        return [file for files in self.files.values() for file in files]

    def read_split(self, folder: Path, split: str) -> Arrays:
        """Decode one split of the data set in `folder`."""
        paths = [folder / file for file in self.files[split]]
        images, labels = self.read(paths)
        if len(images) != len(labels):
            raise LinfnetError(f"{paths[-1]} contains {len(labels)} labels for {len(images)} images")
        return images, labels


def _idx_format(suffix: str) -> Format:
    prefixes = {"train": "train", "test": "t10k"}
    parts = f"images-idx3-ubyte{suffix}", f"labels-idx1-ubyte{suffix}"
    return Format(
        {split: tuple(f"{prefix}-{part}" for part in parts) for split, prefix in prefixes.items()}, read_idx_pair
    )


def _cifar_files(prefix: str, suffix: str) -> dict[str, tuple[str, ...]]:
    batches = tuple(f"{prefix}data_batch_{number}{suffix}" for number in range(1, 6))
    return {"train": batches, "test": (f"{prefix}test_batch{suffix}",)}


PLAIN_IDX, GZIPPED_IDX = _idx_format(""), _idx_format(".gz")
BINARY_BATCHES = Format(_cifar_files("", ".bin"), read_binary)
PNG_BATCHES = Format(
    # The file names in the package are spelt "lables".
    {split: (*files, f"{split}_lables.json") for split, files in _cifar_files("", ".png").items()},
    read_png,
)
FORMATS = {
    "mnist": (PLAIN_IDX, GZIPPED_IDX),
    "fashion-mnist": (PLAIN_IDX, GZIPPED_IDX),
    "cifar10": (
        BINARY_BATCHES,
        Format(_cifar_files("cifar-10-batches-bin/", ".bin"), read_binary),
        Format(_cifar_files("", ""), read_python),
        Format(_cifar_files("cifar-10-batches-py/", ""), read_python),
        PNG_BATCHES,
    ),
}
