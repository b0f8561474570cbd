"""An l_inf-distance net with sparse layers: the form of a compressed net, and its file."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn

from linfnet.errors import ArgumentError, LinfnetError
from linfnet.files import read_tensors
from linfnet.nn.conv_stem import ConvStem
from linfnet.nn.model_folder import arguments_of, check_complete
from linfnet.nn.nonexpansive import Rounding, sum_in_order
from linfnet.nn.proven import ProvenNet
from linfnet.nn.sparse import SparseDistance
from linfnet.nn.sparse_file import packed, unpacked
from linfnet.nn.weights import check_pair, load_weights
from linfnet.ops import sparse_linf_measured

# Before the names of the stem's tensors in a file.
_STEM = "stem."


class SparseNet(ProvenNet):
    """A stack of sparse distance layers on normalised pixels, with the certificates of `LinfNet`.

    `linfnet.compress` makes such a net of a trained `LinfNet` or `ConvStemNet`.

    Args:
        image_shape, classes, mean, std: as in `Classifier`.
        layers: the first layer has one input for each pixel, or for each feature of the stem; the last has one output
            for each class.
        negate_logits: as in `LinfNet`.
        stem: the convolutional layers before the sparse ones, if there are any.
    """

    system: ClassVar[str] = "sparse"
    other_layers: ClassVar[frozenset[type[nn.Module]]] = frozenset({ConvStem})

    def __init__(
        self,
        image_shape: Sequence[int],
        classes: int,
        layers: Sequence[SparseDistance],
        *,
        mean: float | Sequence[float] = 0.0,
        std: float = 1.0,
        negate_logits: bool = True,
        stem: ConvStem | None = None,
    ) -> None:
        super().__init__(image_shape, classes, mean=mean, std=std, learn_scale=True)
        self.stem = stem
        self._check_widths(layers)
        self.negate_logits = negate_logits
        self.layers = nn.Sequential(*layers)

    @property
    def hidden(self) -> tuple[int, ...]:
        """The number of neurons of each hidden layer."""
        return tuple(layer.out_features for layer in self.sparse_layers()[:-1])

    def sparse_layers(self) -> list[SparseDistance]:
        """Return the layers."""
        layers = [layer for layer in self.layers if isinstance(layer, SparseDistance)]
        if len(layers) != len(self.layers):
            raise ArgumentError("a layer of the net is not a SparseDistance; use linfnet.Classifier.wrap")
        return layers

    def _check_widths(self, layers: Sequence[SparseDistance]) -> None:
        """Raise an error unless each layer has as many inputs as the previous one has outputs."""
        inputs = self.stem.features if self.stem else math.prod(self.image_shape)
        for number, layer in enumerate(layers):
            if layer.in_features != inputs:
                raise ArgumentError(f"layer {number} has {layer.in_features} inputs; expected {inputs}")
            inputs = layer.out_features
        if not layers or inputs != self.classes:
            raise ArgumentError(f"the last layer has {inputs} outputs; expected one for each of {self.classes} classes")

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits [B, classes] of images [B, C, H, W] or vectors [B, d] in [0, 1]."""
        x = self.normalize(self.check_shape(images))
        logits = self.layers((self.stem(x) if self.stem else x).flatten(1))
        return -logits if self.negate_logits else logits

    def bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        box = self.normalize.bounds(self.check_shape(lower), self.check_shape(upper))
        low, high = (end.flatten(1) for end in (self.stem.bounds(*box) if self.stem else box))
        for layer in self.sparse_layers():
            low, high = layer.bounds(low, high)
        return (-high, -low) if self.negate_logits else (low, high)

    def measure(self, images: Tensor) -> tuple[Tensor, Rounding]:
        values, rounding, layers = self.normalize(self.check_shape(images)), Rounding(), self.sparse_layers()
        if self.stem:
            values, rounding = self.stem.measure(values)
        values, fused = values.flatten(1), None
        self._check_widths(layers)
        if not torch.is_grad_enabled() and not self.stem:
            fused = sparse_linf_measured(values, [layer.certifiable_tensors(values) for layer in layers])
        if fused is None:
            for layer in layers:
                values, sizes = layer.measure(values)
                rounding = rounding.then(sizes)
        else:  # the same bits as by separate steps
            values, sizes = fused
            rounding = Rounding((sum_in_order(sizes),), len(sizes))
        return (-values if self.negate_logits else values), rounding

    @torch.no_grad()
    def round_weights_(self, dtype: torch.dtype) -> Self:
        """Round the weights in place to numbers that a dtype represents, such as `torch.float16`; return the net.

        The net still computes in float32. Its certificates hold for the rounded weights, and `save` writes them in 2
        bytes each. Means and biases are not rounded.
        """
        for number, layer in enumerate(self.sparse_layers()):
            rounded = layer.weight.to(dtype)
            if not bool(rounded.isfinite().all()):
                raise ArgumentError(f"a weight of layer {number} is too large for {dtype}; expected another dtype")
            layer.weight.copy_(rounded)
        return self

    def settings(self) -> dict[str, Any]:
        layers = self.sparse_layers()
        return {
            "hidden": list(self.hidden),
            "connections": [layer.connections for layer in layers],
            "negate_logits": self.negate_logits,
            **({"channels": self.stem.channels, "convolutions": self.stem.convolutions} if self.stem else {}),
        }

    def saved_tensors(self) -> dict[str, Tensor]:
        """Return the tensors of model.safetensors (see `linfnet.nn.sparse_file`)."""
        named = {"scale": self.scale.detach()}
        if self.stem:
            named |= {f"{_STEM}{name}": tensor.detach() for name, tensor in self.stem.state_dict().items()}
        for number, layer in enumerate(self.sparse_layers()):
            named |= {f"layers.{number}.{name}": tensor for name, tensor in packed(layer).items()}
        return named

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Raise an error: the connections are in model.safetensors."""
        raise LinfnetError("a config does not describe the connections of a sparse net; load it from its folder")

    @classmethod
    def load_with_config(cls, folder: Path, config: Mapping[str, Any], *, device: torch.device | str = "cpu") -> Self:
        """Load a net from a folder whose config.json has already been read; what the file allocates fits its size."""
        arguments = arguments_of(cls, config)
        source = folder / "model.safetensors"
        hidden, connections = (_numbers(arguments, key) for key in ("hidden", "connections"))
        if not isinstance(negate := arguments.pop("negate_logits", None), bool):
            raise LinfnetError(f"the config's negate_logits is {negate!r}; expected true or false")
        tensors = read_tensors(source)[0]
        try:
            stem = _stem(arguments, tensors, source)
            inputs = [stem.features if stem else math.prod(map(int, arguments["image_shape"])), *hidden]
            outputs = [*hidden, int(arguments["classes"])]
            if len(connections) != len(outputs):
                raise LinfnetError(
                    f"the config has {len(connections)} numbers of connections for {len(outputs)} layers"
                )
            scale = tensors.pop("scale", None)
            if scale is None or scale.shape != () or scale.dtype != torch.float32 or not bool(scale.isfinite()):
                raise LinfnetError(f"{source}: 'scale' is not one float32 number")
            sizes = zip(inputs, outputs, connections, strict=True)
            layers = [unpacked(tensors, f"layers.{number}.", *size, source) for number, size in enumerate(sizes)]
            for name in sorted(tensors):
                raise LinfnetError(
                    f"{source} contains {name!r}, which the net does not have: it belongs to another net"
                )
            net = cls(layers=layers, negate_logits=negate, stem=stem, **arguments)
        except (KeyError, TypeError, ValueError, RuntimeError, OverflowError) as error:
            reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error).splitlines()[0]
            raise LinfnetError(f"the config does not describe a net: {reason}") from None
        check_complete(net, config)
        check_pair(folder, config)
        net.scale.data.copy_(scale)
        return net.to(device).eval()

    def describe(self) -> str:
        layers = self.sparse_layers()
        total = sum(layer.connections for layer in layers)
        share = 100 * total / sum(layer.in_features * layer.out_features for layer in layers)
        before = f"{len(self.stem)} convolutional layers, then " if self.stem else ""
        return (
            f"A compressed ℓ∞-distance net: {before}{total:,} connections ({share:.2g} % of those of dense layers of "
            f"the same widths), hidden layers {'×'.join(map(str, self.hidden)) or 'none'}. It is "
            f"{self.lipschitz:.6g}-Lipschitz in the ℓ∞ norm of the pixels: one forward pass certifies a radius inside "
            "which its class cannot change. Certificates hold for the float32 program of this net itself."
        )


def _stem(arguments: dict[str, Any], tensors: dict[str, Tensor], source: Path) -> ConvStem | None:
    """Remove and return the stem that a config describes, with its tensors; None if it describes none."""
    sizes = {key: arguments.pop(key) for key in ("channels", "convolutions") if key in arguments}
    if not sizes:
        return None
    own = {name: tensors.pop(name) for name in sorted(tensors) if name.startswith(_STEM)}
    first = own.get(f"{_STEM}0.weight")
    if first is None or len(first) != sizes["channels"]:  # before anything is allocated
        raise LinfnetError(f"{source} has no stem of {sizes['channels']} channels: it belongs to another net")
    stem = ConvStem(arguments["image_shape"], **sizes)
    load_weights(nn.ModuleDict({_STEM.rstrip("."): stem}), own, source)
    return stem


def _numbers(arguments: dict[str, Any], key: str) -> list[int]:
    """Remove and return a list of numbers above 0."""
    values: Any = arguments.pop(key, None)
    if not isinstance(values, list) or any(type(one) is not int or one < 1 for one in cast(list[Any], values)):
        raise LinfnetError(f"the config's {key} is {str(values)[:80]}; expected a list of numbers above 0")
    return cast(list[int], values)
