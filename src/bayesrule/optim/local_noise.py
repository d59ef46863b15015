"""One draw of the weights for each example, as noise on the layers' outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from bayesrule.curvature import watching
from bayesrule.errors import Unsupported
from bayesrule.optim.group import Group
from bayesrule.posteriors import CovarianceOperator
from bayesrule.random import NoiseSource, by_example


@contextmanager
def local_noise(
    model: nn.Module, groups: Mapping[str, Group], covariances: Mapping[str, CovarianceOperator], noise: NoiseSource
) -> Iterator[None]:
    """While the weights are the means, every example's outputs get the noise that a draw of its own would give.

    The weight's gradient is then ``a gᵀ`` with that noise in g, as at a draw for each example. Where one weight meets
    an example several times (positions of a convolution, steps of a sequence), each has the right marginal, and the
    covariance between them is lost.
    """
    noise = by_example(noise)
    by_module = {group.layers[0].modules[0]: group for group in groups.values()}

    def use(name: str, x: Tensor, output: Tensor) -> Tensor | None:
        group = by_module[name]
        contraction, covariance = group.layers[0].augmented, covariances[group.name]
        with torch.autocast(x.device.type, enabled=False):
            terms = covariance.project(contraction, x.to(covariance.diagonal().dtype))
        for term in terms:
            drawn = noise(term.noise_shape(output, contraction), "normal", term.scale)
            output = output + term.apply(drawn, contraction).to(output.dtype)
        return output

    with watching(model, [group.layers[0] for group in groups.values()], use):
        yield


def check_local(groups: tuple[Group, ...], rule: str) -> None:
    """Refuse what has no law for each output row on its own."""
    for group in groups:
        if group.event_dim == 1:
            raise Unsupported(
                f"{rule} correlates layers, so that outputs of one layer have no noise of their own",
                got='noise="example"', remedy='Use noise="batch", or NoisyAdam, NoisyKFAC or NoisyEKFAC.',
            )  # fmt: skip
        if len(group.layers[0].modules) > 1 or not group.layers[0].has_weight:
            raise Unsupported(
                f"The parameters of {group.name!r} are tied, or a bias alone: one draw must serve all uses",
                got='noise="example"', remedy='Use noise="batch".',
            )  # fmt: skip
