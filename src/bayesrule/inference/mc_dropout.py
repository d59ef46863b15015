"""Monte Carlo dropout: dropout stays on in prediction, and every mask is a draw of the network."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.inference.empirical import EmpiricalPosterior
from bayesrule.likelihoods import Likelihood
from bayesrule.posteriors import Part
from bayesrule.random import keyed_generator

MASK = "dropout_mask"
MASKS = 1 << 16
"""How many masks there are to draw from, each by its number."""


class MCDropout(nn.Module):
    """A trained network whose dropout is on in prediction   [Gal & Ghahramani, 2016]; `br.predict` takes it.

    One mask serves all examples of a draw, as one weight does elsewhere: a draw is a function, which does not depend
    on how the inputs are cut into batches, and every example's marginal is that of masks of its own.

    Args:
        net: A network with `nn.Dropout` layers (or `nn.Dropout1d`, …); it is copied.
        likelihood: What its outputs mean.
        seed: Of the masks.
    """

    numbers: Tensor

    def __init__(self, net: nn.Module, likelihood: Likelihood | None = None, *, seed: int = 0) -> None:
        super().__init__()
        fused = [name for name, module in net.named_modules() if _drops_inside(module)]
        if fused:
            raise Unsupported(
                "Dropout inside recurrent and attention layers, and alpha dropout, have no masks to draw here",
                got=fused, remedy="Use nn.Dropout layers, between the others.",
            )  # fmt: skip
        self.net, self.likelihood, self.seed = copy.deepcopy(net), likelihood, seed
        if not self._layers():
            raise InvalidArgument(
                "MC dropout needs a network with dropout", got="no layer that drops", remedy="Add nn.Dropout layers."
            )
        self.register_buffer("numbers", torch.arange(MASKS, dtype=torch.float32)[:, None])
        self.eval()

    @property
    def batchable(self) -> bool:
        """A mask is drawn by its number, which must be known."""
        return False

    def default_likelihood(self) -> Likelihood | None:
        """The one given."""
        return self.likelihood

    def posteriors(self) -> dict[str, EmpiricalPosterior]:
        """The number of a mask, uniform."""
        return {MASK: EmpiricalPosterior(self.numbers, (Part(MASK, ()),))}

    def at(self, draws: Mapping[str, Tensor], *args: Any, **kwargs: Any) -> Any:
        """Outputs with the mask of a number."""
        with self._masked(int(draws[MASK])):
            return self.net(*args, **kwargs)

    def _layers(self) -> dict[str, _DropoutNd]:
        return {name: each for name, each in self.net.named_modules() if isinstance(each, _DropoutNd) and each.p > 0}

    @contextmanager
    def _masked(self, number: int) -> Iterator[None]:
        """Dropout layers, which do nothing in eval mode, multiply by the masks of a number."""
        with ExitStack() as hooks:
            for name, layer in self._layers().items():
                hook = _Mask(layer, (self.seed, number, name))
                hooks.callback(layer.register_forward_hook(hook).remove)
            yield


class _Mask:
    """``z / (1 − p)`` with ``z ~ Bernoulli(1 − p)`` for every unit, or every channel, the same for all examples."""

    def __init__(self, layer: _DropoutNd, key: tuple[int | str, ...]) -> None:
        self.keep, self.key = 1 - layer.p, key
        self.whole_channels = not isinstance(layer, nn.Dropout)

    def __call__(self, layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        shape = output.shape[1:2] + (1,) * (output.ndim - 2) if self.whole_channels else output.shape[1:]
        generator = keyed_generator(output.device, *self.key)
        kept = torch.rand(shape, generator=generator, device=output.device) < self.keep
        return output * kept.to(output.dtype) / max(self.keep, torch.finfo(output.dtype).tiny)


def _drops_inside(module: nn.Module) -> bool:
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
        return module.dropout > 0
    return isinstance(module, nn.AlphaDropout | nn.FeatureAlphaDropout)
