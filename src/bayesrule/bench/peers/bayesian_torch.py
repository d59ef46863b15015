"""bayesian-torch: its own conversion, mean-field with the weights drawn."""

from __future__ import annotations

import math

from bayesrule.bench.job import INIT_STD, PRIOR_STD, Contender, Job
from bayesrule.bench.peers.peer import Peer, importing, trained

RHO = math.log(math.expm1(INIT_STD))


def build(job: Job) -> Contender:
    """`dnn_to_bnn`; the KL is what the library adds up, a mean over each tensor."""
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss

    dnn_to_bnn(
        job.net,
        {
            "prior_mu": 0.0, "prior_sigma": PRIOR_STD, "posterior_mu_init": 0.0, "posterior_rho_init": RHO,
            "type": "Reparameterization", "moped_enable": False,
        },
    )  # fmt: skip
    return trained(job, job.net, lambda: get_kl_loss(job.net))


BAYESIAN_TORCH = Peer(
    "bayesian-torch",
    "pip install --no-deps bayesian-torch",  # its dependencies include torchvision
    importing("bayesian_torch.layers", "bayesian_torch.models.dnn_to_bnn"),
    build,
)
