"""posteriors: functional mean-field variational inference."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from bayesrule.bench.job import ADAM, INIT_STD, N_DATA, PREDICT_BATCH, PRIOR_STD, Contender, Job
from bayesrule.bench.peers.peer import Peer, importing


def build(job: Job) -> Contender:
    """`vi.diag` with torchopt's Adam, which has no fused form."""
    import posteriors
    import torchopt

    job.need_plain("posteriors")
    params = {name: p.detach().clone() for name, p in job.net.named_parameters()}

    def log_posterior(drawn: dict[str, Tensor], batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, y = batch
        outputs = functional_call(job.net, drawn, (x,))
        log_prior = posteriors.diag_normal_log_prob(drawn, 0.0, PRIOR_STD)
        return log_prior / N_DATA - job.model.loss(outputs, y), outputs

    transform = posteriors.vi.diag.build(
        log_posterior, torchopt.adam(lr=ADAM["lr"]), temperature=1 / N_DATA, init_log_sds=math.log(INIT_STD)
    )
    kept: dict[str, Any] = {"state": transform.init(params)}

    def step() -> None:
        kept["state"], _ = transform.update(kept["state"], (job.x, job.y))

    @torch.no_grad()
    def outputs(x: Tensor, draws: int) -> Tensor:
        found = []
        for _ in range(draws):
            drawn = posteriors.vi.diag.sample(kept["state"])
            found.append(torch.cat([functional_call(job.net, drawn, (batch,)) for batch in x.split(PREDICT_BATCH)]))
        return torch.stack(found)

    def state() -> list[Tensor]:
        from optree import tree_leaves

        now = kept["state"]
        leaves = tree_leaves((dict(now.params), dict(now.log_sd_diag), now.opt_state), namespace="torchopt")
        return [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    return Contender(step, outputs, state)


POSTERIORS = Peer("posteriors", "pip install posteriors", importing("posteriors", "torchopt"), build)
