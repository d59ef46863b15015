"""ivon-opt: the authors' IVON."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesrule.bench.job import N_DATA, PREDICT_BATCH, Contender, Job
from bayesrule.bench.peers.peer import Peer, importing
from bayesrule.errors import InvalidArgument


def build(job: Job) -> Contender:
    """One draw a step, as in ours."""
    from ivon import IVON

    if job.mode.captured:
        raise InvalidArgument("ivon-opt's steps are not captured", got=job.mode.name)
    optimizer = IVON(job.net.parameters(), lr=1e-3, ess=N_DATA)
    loss = job.compiled(lambda x, y: job.model.loss(job.net(x), y), whole=False)

    def step() -> None:
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            with job.precision():
                value = loss(job.x, job.y)
            value.backward()
        optimizer.step()

    @torch.no_grad()
    def outputs(x: Tensor, draws: int) -> Tensor:
        found = []
        for _ in range(draws):
            with optimizer.sampled_params():
                found.append(torch.cat([job.net(batch) for batch in x.split(PREDICT_BATCH)]))
        return torch.stack(found)

    def state() -> list[Tensor]:
        kept = [group[name] for group in optimizer.param_groups for name in ("momentum", "hess")]
        return [*job.net.parameters(), *kept]

    return Contender(step, outputs, state)


IVON_OPT = Peer("ivon-opt", "pip install ivon-opt", importing("ivon"), build)
