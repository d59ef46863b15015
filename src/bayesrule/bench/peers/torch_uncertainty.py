"""torch-uncertainty: its Bayesian layers, imported without the rest of the package."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from bayesrule.bench.job import INIT_STD, PRIOR_STD, Contender, Job
from bayesrule.bench.peers.peer import Peer, import_parts_of, importing, swapped, trained

OPTIONS: dict[str, Any] = {
    "prior_sigma_1": PRIOR_STD,
    "prior_pi": 1,
    "sigma_init": math.log(math.expm1(INIT_STD)),
}


def load() -> None:
    """Only what the layers and the KL lie in."""
    import_parts_of("torch_uncertainty", "losses", "layers", "utils")
    importing("torch_uncertainty.layers.bayesian", "torch_uncertainty.losses.bayesian")()


def build(job: Job) -> Contender:
    """Its layers in the place of torch's, and its Monte Carlo KL of the draw in force."""
    load()
    from torch_uncertainty.layers.bayesian import BayesConv2d, BayesLinear
    from torch_uncertainty.losses.bayesian import KLDiv

    def conv(layer: nn.Conv2d) -> nn.Module:
        return BayesConv2d(
            layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, layer.padding, **OPTIONS
        )

    def linear(layer: nn.Linear) -> nn.Module:
        return BayesLinear(layer.in_features, layer.out_features, **OPTIONS)

    bnn = swapped(job.net, {nn.Linear: linear, nn.Conv2d: conv})
    return trained(job, bnn, KLDiv(bnn))


TORCH_UNCERTAINTY = Peer(
    "torch-uncertainty", "pip install --no-deps torch-uncertainty", load, build
)  # its dependencies include lightning and torchvision
