"""laplace-torch: a Gaussian at trained weights, so nothing to train; its set-up is the fit of the curvature."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from bayesrule.bench.job import PREDICT_BATCH, PRIOR_STD, Contender, Job
from bayesrule.bench.peers.peer import Peer, importing

EXAMPLES = 8


def build(job: Job) -> Contender:
    """Diagonal Gauss–Newton of all weights, fitted on a few examples: it keeps every example's Jacobian at once."""
    from laplace import Laplace

    job.need_plain("laplace-torch")
    kind = "classification" if job.model.task == "classes" else "regression"
    fitted: Any = Laplace(job.net, kind, "all", "diag", prior_precision=PRIOR_STD**-2)
    few = TensorDataset(job.x[:EXAMPLES], job.y[:EXAMPLES])
    fitted.fit(DataLoader(few, batch_size=EXAMPLES))

    def outputs(x: Tensor, draws: int) -> Tensor:
        batches = x.split(PREDICT_BATCH)
        return torch.cat([fitted._nn_predictive_samples(batch, draws) for batch in batches], dim=1)

    return Contender(None, outputs, lambda: [*job.net.parameters(), fitted.H])


LAPLACE_TORCH = Peer(
    "laplace-torch",
    "pip install --no-deps laplace-torch asdfghjkl==0.1a4 backpack-for-pytorch curvlinops-for-pytorch linear-operator "
    "einops einconv opt-einsum unfoldNd",
    importing("laplace"),
    build,
)
