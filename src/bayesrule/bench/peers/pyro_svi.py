"""Pyro: stochastic variational inference with an automatic mean-field guide and the closed-form KL."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bayesrule.bench.job import ADAM, INIT_STD, N_DATA, PREDICT_BATCH, PRIOR_STD, Contender, Job
from bayesrule.bench.peers.peer import Peer, importing
from bayesrule.errors import Unsupported


def build(job: Job) -> Contender:
    """Every weight of a dense or convolutional layer a sample site."""
    import pyro
    import pyro.distributions as dist
    from pyro.infer import SVI, TraceMeanField_ELBO
    from pyro.infer.autoguide import AutoNormal
    from pyro.nn import PyroModule, PyroSample
    from pyro.nn.module import to_pyro_module_

    job.need_plain("pyro-ppl")
    if any(isinstance(module, nn.RNNBase | nn.MultiheadAttention) for module in job.net.modules()):
        raise Unsupported("Fused recurrent and attention layers keep their weights from Pyro", got=job.model.name)
    pyro.clear_param_store()
    to_pyro_module_(job.net)
    for module in list(job.net.modules()):
        if isinstance(module, nn.Linear | nn.Conv2d):
            for name, p in list(module.named_parameters(recurse=False)):
                prior = dist.Normal(torch.zeros_like(p), PRIOR_STD).to_event()
                setattr(module, name, PyroSample(prior))

    class Observed(PyroModule):
        """The network and its targets."""

        def __init__(self) -> None:
            super().__init__()
            self.net = job.net

        def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
            """Outputs; targets are observed if given."""
            outputs = self.net(x)
            if y is not None:
                classes = job.model.task == "classes"
                law = dist.Categorical(logits=outputs) if classes else dist.Normal(outputs, 1.0).to_event(1)
                with pyro.plate("data", N_DATA, subsample=torch.arange(len(x), device=x.device)):
                    pyro.sample("y", law, obs=y)
            return outputs

    model = Observed()
    guide = AutoNormal(model, init_scale=INIT_STD)
    guide(job.x, job.y)  # makes the guide's parameters
    svi = SVI(model, guide, pyro.optim.Adam(dict(ADAM)), TraceMeanField_ELBO())

    def step() -> None:
        svi.step(job.x, job.y)

    @torch.no_grad()
    def outputs(x: Tensor, draws: int) -> Tensor:
        found = []
        for _ in range(draws):
            drawn = guide()
            conditioned = pyro.poutine.condition(model, data=drawn)
            found.append(torch.cat([conditioned(batch) for batch in x.split(PREDICT_BATCH)]))
        return torch.stack(found)

    def state() -> list[Tensor]:
        states = [state for each in svi.optim.optim_objs.values() for state in each.state.values()]
        kept = [value for state in states for value in state.values() if isinstance(value, Tensor)]
        return [*guide.parameters(), *kept]

    return Contender(step, outputs, state)


PYRO = Peer("pyro-ppl", "pip install pyro-ppl", importing("pyro", "pyro.infer.autoguide"), build)
