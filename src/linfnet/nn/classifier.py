"""The base class of all nets: prediction, certification, and saving to and loading from model folders."""

import contextlib
import math
import operator
from collections.abc import Generator, Mapping, Sequence
from fractions import Fraction
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from linfnet.boxes import check_images, outer_box
from linfnet.data.arrays import channels_hint
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.files import read_table, tensors_size
from linfnet.nn.distance import DistanceModule
from linfnet.nn.frozen import frozen_copy
from linfnet.nn.label_margin import label_on_top
from linfnet.nn.model_folder import FORMAT, METADATA, build_net, read_model, write_model
from linfnet.nn.model_path import find_model
from linfnet.nn.nonexpansive import modules_of
from linfnet.nn.normalization import Normalize
from linfnet.results import Results, guarantee

if TYPE_CHECKING:  # wrapped imports this module
    from linfnet.nn.wrapped import WrappedNet


class Classifier(nn.Module):
    """A net that maps images [B, C, H, W] in [0, 1] to logits [B, classes] and normalises its inputs itself.

    The inputs can have any other shape of at least one dimension, such as vectors [B, d] with values in [0, 1].
    `Classifier.wrap` makes a classifier of a module with distance layers. A subclass defines `forward`, `least_margin`
    (or `certified`), and `settings`, which returns the arguments of its constructor other than the first four below.

    Args:
        image_shape: (C, H, W) of the images, or (d,) for vectors.
        classes: number of logits.
        mean: mean of each channel (of each feature of a vector) in pixel units, or one number for all.
        std: one standard deviation for all channels or features. Mean 0 and std 1 do not change the pixels.
        learn_scale: whether the temperature of the cross-entropy is trained with the net; otherwise it is 1.
    """

    system: ClassVar[str] = "own"
    """The name of the system to which the net belongs, as in config.json."""
    certificate_names: ClassVar[tuple[str, ...]] = ("bounds",)
    """The names of the net's certificates in results and tables, in order of preference."""
    arithmetic: ClassVar[Literal["float32", "real"]] = "real"
    """`float32` if certificates hold for the floating-point program, `real` if they ignore rounding."""
    cheap: ClassVar[bool] = True
    """Whether a certificate costs about as much as a prediction, so that training can report certified accuracy."""
    scale: Tensor

    def __init__(
        self,
        image_shape: Sequence[int],
        classes: int,
        *,
        mean: float | Sequence[float] = 0.0,
        std: float = 1.0,
        learn_scale: bool = False,
    ) -> None:
        super().__init__()
        self.image_shape = _checked_shape(image_shape)
        if classes < 2:
            raise ArgumentError(f"classes is {classes}; expected 2 classes or more")
        self.classes = classes
        channels = self.image_shape[0]
        if isinstance(mean, int | float | Real):
            mean = [float(mean)] * (channels if len(self.image_shape) > 1 else 1)
        self.mean = tuple(map(float, mean))
        if len(self.mean) not in (1, channels):
            raise ArgumentError(f"mean has {len(self.mean)} numbers; expected one or {channels}")
        self.normalize = Normalize(self.mean, std, dims=len(self.image_shape))
        self.std = float(std)
        # The temperature s of the cross-entropy; it does not change predictions.
        if learn_scale:
            self.scale = nn.Parameter(torch.ones(()))
        else:
            self.register_buffer("scale", torch.ones(()), persistent=False)

    @staticmethod
    def wrap(
        body: nn.Module,
        image_shape: Sequence[int],
        classes: int,
        *,
        mean: float | Sequence[float] = 0.0,
        std: float = 1.0,
    ) -> "WrappedNet":
        """Make a classifier of a module with distance layers, with the certificates of `LinfNet`.

        The net normalises its inputs, then applies the body. The operations of the body are found by `torch.fx`; an
        error names the first one that is not known to be 1-Lipschitz. docs/howto/own-net.md lists the operations.

        Args:
            body: maps [B, *image_shape] to logits [B, classes].
            image_shape, classes, mean, std: as in `Classifier`.

        >>> from linfnet.nn import LpDistance
        >>> body = nn.Sequential(nn.Flatten(), LpDistance(64, 32, mean_shift=True), LpDistance(32, 10, bias=True))
        >>> net = Classifier.wrap(body, image_shape=(1, 8, 8), classes=10, mean=0.3, std=0.4)
        >>> net.certificate_names
        ('margin', 'interval')
        """
        from linfnet.nn.wrapped import WrappedNet

        return WrappedNet(body, image_shape, classes, mean=mean, std=std)

    @torch.no_grad()
    def certified(self, images: Tensor, labels: Tensor, epsilon: Fraction | Tensor) -> Tensor:
        """Return bool [N]: which samples are certified at epsilon. At 0 these are the correctly classified samples.

        Args:
            images: [N, C, H, W] in [0, 1].
            labels: [N].
            epsilon: exact, in pixel units; a float64 tensor [N] contains one epsilon per image.
        """
        lower, upper = outer_box(check_images(images), epsilon)
        net = self.frozen()
        # Bounds have rounding errors. Therefore never certify a wrong class, and ignore the bounds at epsilon 0.
        return net.keeps_class(images, labels) & (
            (net.least_margin(lower, upper, labels) > 0) | torch.as_tensor(epsilon == 0)
        )

    def certified_in_training(self, images: Tensor, labels: Tensor, epsilon: Fraction | Tensor) -> Tensor:
        """Return what training reports: `certified`, but without checks that the assumptions of a proof hold."""
        return self.certified(images, labels, epsilon)

    def least_margin(self, lower: Tensor, upper: Tensor, labels: Tensor) -> Tensor:
        """Return a lower bound [N] on the margin over the box lower <= image <= upper, for the net's arithmetic."""
        raise no_certificate(self)

    @torch.no_grad()
    def keeps_class(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return bool [N]: whether each image is classified as its label, without a tie."""
        return label_on_top(self(images), labels)

    @torch.no_grad()
    def logits_and_kept(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits [N, K] and the result [N] of `keeps_class`, with a single forward pass if possible."""
        logits = self(images)
        if type(self).keeps_class is Classifier.keeps_class:
            return logits, label_on_top(logits, labels)
        return logits, self.keeps_class(images, labels)  # this may need more passes, for example votes under noise

    def certified_radius(self, images: Tensor, labels: Tensor) -> Tensor | None:
        """Return certified radii float64 [N] by a formula (-inf for a wrong class), or None if there is no formula."""
        return None

    @property
    def drops_inputs(self) -> bool:
        """Whether training drops inputs of distance layers: its means are not those of eval mode, not even at p = inf.

        Then training estimates the means again before each test and at its end.
        """
        return False

    @property
    def confidence(self) -> float:
        """The probability that a certificate is correct: 1 except for methods that use random samples."""
        return 1.0

    @property
    def guarantee(self) -> str:
        """What the certificates of the net promise, as a phrase."""
        return guarantee(self.arithmetic, self.confidence)

    @property
    def lipschitz(self) -> float | None:
        """The Lipschitz constant in l_inf from pixels to logits, or None if it is not known by construction."""
        return None

    def settings(self) -> dict[str, Any]:
        """Return the additional arguments of the constructor, as they are saved in config.json."""
        return {}

    @property
    def p(self) -> float:
        """The exponent of all distance layers (infinity without distance layers). Setting it changes all layers."""
        return next((layer.p for layer in self.modules() if isinstance(layer, DistanceModule)), math.inf)

    @p.setter
    def p(self, value: float) -> None:
        for layer in self.distance_layers():
            layer.p = value

    @property
    def slopes_p(self) -> float:
        """The largest exponent of the gradients in training mode (see `DistanceModule.slopes_p`), of all layers."""
        return next((layer.slopes_p for layer in self.modules() if isinstance(layer, DistanceModule)), math.inf)

    @slopes_p.setter
    def slopes_p(self, value: float) -> None:
        for layer in self.distance_layers():
            layer.slopes_p = value

    def distance_layers(self) -> list[DistanceModule]:
        """Return all distance layers, in order."""
        return [module for module in self.modules() if isinstance(module, DistanceModule)]

    def frozen(self) -> Self:
        """Return a net with the same parameters and buffers, at p = inf in eval mode.

        Certificates and attacks use it: it is not affected by what other threads do with p, the mode or hooks.
        """
        return frozen_copy(self)

    @contextlib.contextmanager
    def at_infinity(self) -> Generator[Self]:
        """Context in which the net is at p = inf in eval mode; p and the training flags are restored at its end.

        This changes the net for all threads that use it; `frozen` does not.
        """
        # Change only what differs: setting an attribute of a module costs as much as a small layer.
        parts = modules_of(self)
        relaxed = [(part, part.p) for part in parts if isinstance(part, DistanceModule) and not math.isinf(part.p)]
        in_training = [module for module in parts if module.training]
        for layer, _ in relaxed:
            layer.p = math.inf
        for module in in_training:
            module.training = False
        try:
            yield self
        finally:
            for layer, p in relaxed:
                layer.p = p
            for module in in_training:
                module.training = True

    def picture_shape(self) -> tuple[int, int, int]:
        """Return (C, H, W), or raise an error if the inputs of the net are not images."""
        if len(self.image_shape) != 3:
            raise ArgumentError(f"the inputs of the net have shape {self.image_shape}; expected images (C, H, W)")
        return self.image_shape

    def check_shape(self, images: Tensor) -> Tensor:
        """Return the images, or raise an error if they have another shape, or a dtype that the net would round."""
        if not isinstance(images, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(f"images is a {type(images).__name__}; expected a tensor: torch.as_tensor(images)")
        if not images.is_floating_point():
            raise ArgumentError(f"images have dtype {images.dtype}; expected numbers in [0, 1]: images.float() / 255")
        if tuple(images.shape[1:]) != self.image_shape:
            shape, given = " x ".join(map(str, self.image_shape)), tuple(images.shape)
            one_image = given == self.image_shape
            remedy = ": pass image.unsqueeze(0)" if one_image else channels_hint(given, self.image_shape)
            raise ArgumentError(f"images have shape {given}; the net expects [B, {shape}]{remedy}")
        # A lower precision is converted exactly; a higher one would be rounded.
        dtype = self.check_std().dtype
        rounded = torch.promote_types(images.dtype, dtype) != dtype
        return self.check_dtype(images) if rounded else images

    def check_dtype(self, images: Tensor) -> Tensor:
        """Return the images, or raise an error if they do not have the dtype in which the net computes."""
        dtype = self.check_std().dtype
        if images.dtype != dtype:
            remedy = "images.float()" if dtype == torch.float32 else f"images.to({dtype})"
            raise ArgumentError(
                f"images have dtype {images.dtype}, the net computes in {dtype}; expected the same: pass {remedy}"
            )
        return images

    def check_std(self) -> Tensor:
        """Return the number by which `normalize` divides, or raise an error if the user has replaced it by others."""
        std: Any = getattr(self.normalize, "std", None)
        if not isinstance(std, Tensor):
            kind = type(self.normalize).__name__
            raise ArgumentError(f"normalize of the net is a {kind}; expected linfnet.nn.Normalize")
        if std.numel() != 1:
            raise ArgumentError(f"normalize.std of the net has {std.numel()} numbers; expected one")
        return std

    def config(self) -> dict[str, Any]:
        """Return the settings from which `from_config` builds the same net without its weights."""
        return {
            "format": FORMAT,
            "system": self.system,
            "image_shape": list(self.image_shape),
            "classes": self.classes,
            "mean": list(self.mean),
            "std": self.std,
            **self.settings(),
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Build a net with new weights from a dictionary that `config` returned."""
        return build_net(cls, config)

    def describe(self) -> str:
        """Return one or two sentences for the model card about the kind of net and its certificates."""
        names = ", ".join(self.certificate_names)
        return f"A net of system `{self.system}`. Its certificates ({names}): {self.guarantee}."

    def save(self, folder: Path | str, *, class_names: Sequence[str] = (), results: Results | None = None) -> None:
        """Write `model.safetensors`, `config.json` and the model card `README.md` with the results into a folder.

        Nets are saved in float32, the precision in which they are loaded and certified.
        """
        write_model(self, Path(folder), class_names, results)

    def saved_tensors(self) -> dict[str, Tensor]:
        """Return the tensors that `save` writes to model.safetensors."""
        return self.state_dict()

    def saved_size(self) -> int:
        """Return the number of bytes of the model.safetensors that `save` writes."""
        return tensors_size(self.saved_tensors(), METADATA)

    @classmethod
    def load(cls, folder: Path | str, *, device: torch.device | str = "cpu") -> Self:
        """Load a net that `save` wrote, in eval mode at p = inf.

        A folder `hf://user/name` is a model on the Hugging Face hub (needs the extra `hub`).
        """
        folder = find_model(folder)
        return cls.load_with_config(folder, read_table(folder / "config.json"), device=device)

    @classmethod
    def load_with_config(cls, folder: Path, config: Mapping[str, Any], *, device: torch.device | str = "cpu") -> Self:
        """Load a net from a folder whose config.json has already been read; what it allocates fits the weights."""
        return read_model(cls, folder, config).to(device).eval()


def no_certificate(net: Classifier) -> LinfnetError:
    """Return the error that says that a net defines no certificate."""
    return LinfnetError(
        f"{type(net).__name__} defines neither least_margin nor certified, so it has no certificate; for modules "
        "with distance layers use linfnet.Classifier.wrap; docs/extending.md describes other nets"
    )


def _checked_shape(image_shape: Sequence[int]) -> tuple[int, ...]:
    try:
        shape = tuple(map(operator.index, image_shape))
    except TypeError:
        shape = ()
    if not shape or min(shape) < 1:
        raise ArgumentError(f"image_shape is {image_shape}; expected (C, H, W) for images or (d,) for vectors")
    return shape
