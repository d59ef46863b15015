"""blitz: Bayes by backprop, layer by layer."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from bayesrule.bench.job import INIT_STD, PRIOR_STD, Contender, Job
from bayesrule.bench.peers.peer import Peer, importing, swapped, trained

OPTIONS: dict[str, Any] = {
    "prior_sigma_1": PRIOR_STD,
    "prior_pi": 1,
    "posterior_rho_init": math.log(math.expm1(INIT_STD)),
}


def build(job: Job) -> Contender:
    """Its layers in the place of torch's, and its Monte Carlo KL of the draw in force."""
    from blitz.losses import kl_divergence_from_nn
    from blitz.modules import BayesianConv2d, BayesianLinear, BayesianLSTM

    def conv(layer: nn.Conv2d) -> nn.Module:
        padding = layer.kernel_size[0] // 2 if layer.padding == "same" else layer.padding
        return BayesianConv2d(
            layer.in_channels, layer.out_channels, layer.kernel_size, stride=layer.stride, padding=padding, **OPTIONS
        )

    bnn = swapped(
        job.net,
        {
            nn.Linear: lambda layer: BayesianLinear(layer.in_features, layer.out_features, **OPTIONS),
            nn.Conv2d: conv,
            nn.LSTM: lambda layer: BayesianLSTM(layer.input_size, layer.hidden_size, **OPTIONS),
        },
    )
    return trained(job, bnn, lambda: kl_divergence_from_nn(bnn))


BLITZ = Peer(
    "blitz-bayesian-pytorch",
    "pip install --no-deps blitz-bayesian-pytorch",  # its dependencies include torchvision
    importing("blitz.modules", "blitz.losses"),
    build,
)
