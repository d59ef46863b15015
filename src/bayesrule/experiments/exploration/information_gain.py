"""What a posterior learns from one observation: the KL from after to before."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bayesrule.errors import Unsupported
from bayesrule.linalg import MatrixView
from bayesrule.posteriors import GaussianPosterior, Posterior

CHUNK = 1024


@torch.no_grad()
def information_gain(
    net: nn.Module,
    means: Mapping[str, Tensor],
    posteriors: Mapping[str, Posterior],
    x: Float[Tensor, "examples inputs"],
    y: Float[Tensor, "examples outputs"],
    noise_std: float | Tensor,
) -> Float[Tensor, " examples"]:
    """``KL(q(w | x, y) ‖ q(w))`` for each example by itself, of the network linearised at its mean   [Sec. 5.3].

    With the Jacobian J of the outputs, their covariance ``K = J Σ Jᵀ``, the residual r and the noise's precision τ, the
    update ``Λ + τ JᵀJ`` is exact, and with the eigenvalues κ and eigenvectors v of K

        KL = ½ Σ_i [ log(1 + τκ_i) − τκ_i/(1 + τκ_i) + κ_i (τ v_iᵀr / (1 + τκ_i))² ].

    Only K depends on the family: VIME's mean field and the matrix normal of noisy K-FAC share everything else.

    Args:
        net: The network.
        means: Its weights at the posterior mean.
        posteriors: By group, Gaussian.
        x: Inputs.
        y: Targets.
        noise_std: ``τ^(−½)``, one number or one for each output; with several, K and r are in units of them.
    """
    gains = [
        _gain(net, means, posteriors, inputs, targets, noise_std)
        for inputs, targets in zip(x.split(CHUNK), y.split(CHUNK), strict=True)
    ]
    return torch.cat(gains)


def _gain(
    net: nn.Module,
    means: Mapping[str, Tensor],
    posteriors: Mapping[str, Posterior],
    x: Tensor,
    y: Tensor,
    noise_std: float | Tensor,
) -> Tensor:
    weights = dict(means)

    def outputs(weights: dict[str, Tensor], one: Tensor) -> Tensor:
        return torch.func.functional_call(net, weights, (one,))

    residual = y - outputs(weights, x)
    jacobians = torch.func.vmap(torch.func.jacrev(outputs), (None, 0))(weights, x)
    covariance = torch.stack([_output_covariance(each, jacobians) for each in posteriors.values()]).sum(0)
    scale = torch.as_tensor(noise_std, dtype=torch.float64).expand(y.shape[1])
    values, vectors = torch.linalg.eigh(covariance.double() / scale / scale[:, None])
    signal = values.clamp_min(0)
    projected = (vectors.mT @ (residual.double() / scale).unsqueeze(-1)).squeeze(-1)
    shrunk = signal / (1 + signal)
    gain = 0.5 * (signal.log1p() - shrunk + shrunk * projected.square() / (1 + signal)).sum(-1)
    return gain.to(x.dtype)


def _output_covariance(posterior: Posterior, jacobians: Mapping[str, Tensor]) -> Tensor:
    """``J Σ Jᵀ`` of one group, (examples, outputs, outputs)."""
    if not isinstance(posterior, GaussianPosterior):
        raise Unsupported("Information gain is that of Gaussian posteriors", got=posterior.structure)
    events = _events(posterior, jacobians)
    spread = posterior.covariance.matmul(events)
    return events.flatten(2) @ spread.flatten(2).mT


def _events(posterior: GaussianPosterior, tensors: Mapping[str, Tensor]) -> Tensor:
    """Tensors by parameter, (examples, outputs, …), as events of the posterior's group."""
    pieces = []
    for part in posterior.parts:
        tensor, layout = tensors[part.name], part.layout
        if isinstance(layout, MatrixView):
            matrix = layout.matrix(tensor)
            pieces.append(matrix if posterior.event_dim == 2 else matrix.flatten(-2))
        else:
            pieces.append(tensor.unsqueeze(-2) if posterior.event_dim == 2 else tensor.flatten(2))
    return torch.cat(pieces, dim=-posterior.event_dim)
