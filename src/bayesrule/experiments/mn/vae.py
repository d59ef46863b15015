"""Variational auto-encoders whose encoder predicts a diagonal, matrix normal or full covariance   [Sec. 4.3, 5.4]."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from bayesrule.nn import Latent
from bayesrule.posteriors import GaussianPosterior
from bayesrule.priors import Normal, kl_divergence
from bayesrule.random import draw, keyed_generator

HIDDEN = (300, 300, 300)
PIXELS = 784


def latent(family: str, size: int) -> Latent:
    """DIAG, MN or MV over codes of length 40 (as 20 × 2), 9 (as 3 × 3), or 2 for trials   [Sec. 5.4]."""
    rows, columns = {40: (20, 2), 9: (3, 3), 2: (2, 1)}[size]
    return Latent("mn", size, 1) if family == "mv" else Latent("diag" if family == "diag" else "mn", rows, columns)


class StackedLinear(nn.Module):
    """One affine map for each of several models, which are computed together.

    Args:
        maps: Those of the models.
    """

    def __init__(self, maps: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.stack([each.weight.detach().mT for each in maps]))
        self.bias = nn.Parameter(torch.stack([each.bias.detach() for each in maps]).unsqueeze(1))

    def forward(self, x: Float[Tensor, "*draws models batch fan_in"]) -> Float[Tensor, "*draws models batch fan_out"]:
        """``x W + b``, model by model: draws join the batch, so that every weight is read once."""
        rows = x.movedim(-3, 0)
        found = torch.baddbmm(self.bias, rows.flatten(1, -2), self.weight)
        return found.unflatten(1, rows.shape[1:-1]).movedim(0, -3)


class VAE(nn.Module):
    """Three hidden layers of exponential linear units on either side; pixels are independent Bernoulli given z.

    Several models, which differ in their seed alone, are kept as one: tensors have a dimension of models before that
    of images. A sum of their losses trains each of them as if it were alone.

    Args:
        latent: The law of the code.
        seeds: Of the models.
        pixels: How many an image has.
        hidden: Widths of the encoder; the decoder has them in reverse.
    """

    def __init__(
        self, latent: Latent, seeds: tuple[int, ...] = (0,), pixels: int = PIXELS, hidden: tuple[int, ...] = HIDDEN
    ) -> None:
        super().__init__()
        self.latent, self.models = latent, len(seeds)
        self.encoder = _perceptron((pixels, *hidden, sum(latent.sizes)), seeds, "encoder")
        self.decoder = _perceptron((latent.size, *reversed(hidden), pixels), seeds, "decoder")

    def encode(self, x: Float[Tensor, "models batch pixels"]) -> GaussianPosterior:
        """``q(z | x)``."""
        return self.latent.posterior(self.encoder(x))

    def logits(
        self, z: Float[Tensor, "*draws models batch rows columns"]
    ) -> Float[Tensor, "*draws models batch pixels"]:
        """Of every pixel, given a code."""
        return self.decoder(z.flatten(-2))

    def log_likelihood(self, x: Tensor, z: Tensor) -> Tensor:
        """``log p(x | z)``; a dimension of draws may come before those of ``x``."""
        logits = self.logits(z)
        return -F.binary_cross_entropy_with_logits(logits, x.expand_as(logits), reduction="none").sum(-1)

    def terms(
        self, x: Float[Tensor, "models batch pixels"]
    ) -> tuple[Float[Tensor, "models batch"], Float[Tensor, "models batch"]]:
        """``E_q log p(x | z)`` at one draw, and ``KL(q(z | x) ‖ N(0, I))`` in closed form, image by image."""
        posterior = self.encode(x)
        z = posterior.from_noise(draw(tuple(posterior.noise_shape), "normal", posterior.mean))
        return self.log_likelihood(x, z), kl_divergence(posterior, Normal(1.0))


def _perceptron(sizes: tuple[int, ...], seeds: tuple[int, ...], key: str) -> nn.Sequential:
    """PyTorch's own start of linear layers, by seed."""
    members = []
    with torch.random.fork_rng(devices=[]):
        for seed in seeds:
            torch.set_rng_state(keyed_generator(torch.device("cpu"), key, seed).get_state())
            members.append([nn.Linear(fan_in, fan_out) for fan_in, fan_out in pairwise(sizes)])
    layers: list[nn.Module] = []
    for maps in zip(*members, strict=True):
        layers += [StackedLinear(maps), nn.ELU()]
    return nn.Sequential(*layers[:-1])


@torch.no_grad()
def log_marginal(
    posterior: GaussianPosterior,
    log_likelihood: Callable[[Tensor], Tensor],
    samples: int,
    *,
    together: int = 100,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "*batch"]:
    """``log p(x) ≈ log (1/S) Σ_s p(x | z_s) p(z_s) / q(z_s | x)``, ``z_s ~ q(z | x)``, prior ``N(0, I)``.

    With ``z = mean + R ε`` the weight of a draw is ``log p(x | z) − ½‖z‖² + ½‖ε‖² + ½ log det Σ``, so no inverse is
    needed.

    Args:
        posterior: ``q(z | x)`` of a batch.
        log_likelihood: ``log p(x | z)`` of the batch for codes with a dimension of draws in front.
        samples: S.
        together: How many draws are evaluated at once.
        generator: Where the noise comes from.
    """
    half_logdet = 0.5 * posterior.covariance.logdet()
    total = torch.full_like(half_logdet, -math.inf)
    for start in range(0, samples, together):
        count = min(together, samples - start)
        noise = draw((count, *posterior.noise_shape), "normal", posterior.mean, generator)
        z = posterior.from_noise(noise)
        weights = log_likelihood(z) + 0.5 * (noise.square() - z.square()).sum((-2, -1)) + half_logdet
        total = torch.logaddexp(total, weights.logsumexp(0))
    return total - math.log(samples)
