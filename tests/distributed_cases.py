"""Small trainings, each written twice: for one of several processes, and plainly, for one process and whole batches.

As a script: ``distributed_cases.py RANK SIZE RENDEZVOUS OUT`` trains all as one process of several, and writes what
became of the weights.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

import bayesrule as br
from bayesrule.distributed import ByExample, Parallel, data_parallel, fully_sharded, whole_state_dict
from bayesrule.errors import BayesruleError
from bayesrule.likelihoods import GaussianGammaNoise
from bayesrule.optim import PosteriorOptimizer

Tensors = dict[str, Tensor]
SIZES = (8, 7, 1)
"""Of the batches: shared evenly by two processes, unevenly, and too small for both."""
N_DATA = 40
STEPS = {br.optim.NoisyBlockTridiagonal: 1}
"""Its draws depend on eigenvectors, whose signs rounding chooses: only the first step, at the mean, can be compared."""


def network(seed: int = 1) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()


class Several(nn.Module):
    """Tied layers, a layer that is called twice, and attention."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first, self.middle, self.last = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.tied = nn.Linear(8, 8)
        self.tied.weight = self.middle.weight
        self.attention = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        x = self.tied(self.middle(self.middle(self.first(x)).tanh()).tanh())
        return self.last(self.attention(x.unflatten(-1, (2, 4))).flatten(-2))


def batches(sizes: tuple[int, ...] = SIZES) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(7)
    return [
        (torch.randn(size, 5, dtype=torch.float64, generator=generator), torch.randint(3, (size,), generator=generator))
        for size in sizes
    ]


def converted(**options: Any) -> br.nn.BayesianModule:
    chosen = {
        "posterior": br.KTied(2, init_std=0.1),
        "estimator": br.LocalReparam(),
        "prior": br.Normal(0.2),
        **options,
    }
    return br.bayesianize(chosen.pop("net", network)(), likelihood=br.Categorical(), **chosen)


def adam_steps(bnn: Any, backward: Callable[[Tensor, Tensor], None]) -> None:
    # A bias of keys makes no difference to attention: Adam would blow up the rounding of its gradient.
    optimizer = torch.optim.Adam(bnn.parameters(), lr=0.05, eps=1e-3)
    torch.manual_seed(3)
    for x, y in batches():
        optimizer.zero_grad()
        backward(x, y)
        optimizer.step()


def layers_together(wrap: Callable[..., Parallel], parts: int = 1, **options: Any) -> Tensors:
    bnn = converted(**options)
    parallel = wrap(bnn, noise="example")

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return parallel.share * F.cross_entropy(parallel(x), y) + br.kl(bnn) / N_DATA

    def backward(x: Tensor, y: Tensor) -> None:
        if parts == 1:
            loss(*parallel.own(x, y)).backward()
        else:
            for share, *rows in parallel.microbatches(parts, x, y):
                (share * loss(*rows)).backward()

    adam_steps(bnn, backward)
    assert type(br.kl(bnn)) is Tensor
    return {**whole_state_dict(bnn), "kl": br.kl(bnn).detach()}


def layers_alone(**options: Any) -> Tensors:
    bnn = converted(**options)
    bnn.draws.noise = ByExample()
    adam_steps(bnn, lambda x, y: (F.cross_entropy(bnn(x), y) + br.kl(bnn) / N_DATA).backward())
    return {**bnn.state_dict(), "kl": br.kl(bnn).detach()}


def holder(kind: type[PosteriorOptimizer], **options: Any) -> PosteriorOptimizer:
    given = {"likelihood": br.Categorical(), **copy.deepcopy(options)}  # a likelihood may learn
    return kind(network(), n_data=N_DATA, lr=0.05, seed=5, **given)


def states(optimizer: PosteriorOptimizer) -> Tensors:
    found = {f"mean {name}": mean.clone() for name, mean in optimizer.means().items()}
    for name, posterior in optimizer.posteriors().items():
        found[f"variance {name}"] = posterior.variance
    if isinstance(optimizer.likelihood, GaussianGammaNoise):
        found |= {f"noise {name}": value for name, value in optimizer.likelihood.state_dict().items()}
    return found


def targets(optimizer: PosteriorOptimizer, y: Tensor) -> Tensor:
    return y if isinstance(optimizer.likelihood, br.Categorical) else F.one_hot(y, 3).double()


def optimizer_steps(optimizer: PosteriorOptimizer, rows: Callable[..., Any]) -> Tensors:
    for x, y in batches()[: STEPS.get(type(optimizer))]:
        x, y = rows(x, y)
        with optimizer.sampled_params():
            optimizer.zero_grad()
            optimizer.nll(optimizer.model(x), targets(optimizer, y)).backward()
        optimizer.step()
    return states(optimizer)


def optimizer_together(kind: type[PosteriorOptimizer], **options: Any) -> Tensors:
    optimizer = holder(kind, **options)
    return optimizer_steps(optimizer, data_parallel(optimizer, noise="example").own)


def optimizer_alone(kind: type[PosteriorOptimizer], **options: Any) -> Tensors:
    optimizer = holder(kind, **options)
    optimizer.source = ByExample(generator=optimizer.generator(torch.device("cpu")))
    return optimizer_steps(optimizer, lambda x, y: (x, y))


def fitted(**options: Any) -> Tensors:
    """By `br.fit`, whose own batches are those of the whole data set in either case."""
    (x, y), (valid_x, valid_y) = batches((30, 9))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=7, shuffle=True)
    found = br.fit(converted(), loader, [(valid_x, valid_y)], epochs=3, lr=0.02, seed=4, **options)
    history = torch.tensor([[epoch.nll, epoch.valid_nll, epoch.kl_per_example] for epoch in found.history])
    return {**found.bnn.state_dict(), "history": history}


LAYERS: dict[str, dict[str, Any]] = {
    "k-tied": {},
    "weight sampling": {"estimator": br.WeightSample(), "prior": br.LearnedNormal()},
    "flipout": {"estimator": br.Flipout(), "posterior": br.Diagonal(), "prior": br.GroupARD("row")},
    "matrix normal": {"posterior": br.MatrixNormal(), "bias": "augment"},
    "tied layers and attention": {"net": Several, "prior": br.LearnedNormal("model")},
}
HOLDERS: dict[str, tuple[type[PosteriorOptimizer], dict[str, Any]]] = {
    **{kind.__name__: (kind, {}) for kind in br.optim.OPTIMIZERS},
    "NoisyAdam, noise of each example": (br.optim.NoisyAdam, {"noise": "example"}),
    "NoisyKFAC, learned noise": (br.optim.NoisyKFAC, {"likelihood": GaussianGammaNoise()}),
    "VOGN, empirical Fisher, mirrored": (br.optim.VOGN, {"fisher": "empirical", "mirrored": True}),
}
ALONE: dict[str, Callable[[], Tensors]] = {
    **{f"{kind}, in parts": layers_alone for kind in ("DDP", "FSDP2")},
    **{f"DDP, {name}": partial(layers_alone, **options) for name, options in LAYERS.items()},
    **{f"FSDP2, {name}": partial(layers_alone, **options) for name, options in LAYERS.items()},
    **{name: partial(optimizer_alone, kind, **options) for name, (kind, options) in HOLDERS.items()},
    "fit": partial(fitted, noise="example"),
}
TOGETHER: dict[str, Callable[[], Tensors]] = {
    "DDP, in parts": partial(layers_together, data_parallel, 3),
    "FSDP2, in parts": partial(layers_together, fully_sharded, 3),
    **{f"DDP, {name}": partial(layers_together, data_parallel, **options) for name, options in LAYERS.items()},
    **{f"FSDP2, {name}": partial(layers_together, fully_sharded, **options) for name, options in LAYERS.items()},
    **{name: partial(optimizer_together, kind, **options) for name, (kind, options) in HOLDERS.items()},
    "fit": partial(fitted, noise="example"),
}


def by_rank() -> Tensors:
    """Noise of each process's own: different draws, the same posteriors."""
    optimizer = holder(br.optim.IVON)
    parallel = data_parallel(optimizer)
    with optimizer.sampled_params():
        draw = optimizer.model[0].weight.detach().clone()
    bnn = converted()
    torch.manual_seed(3)
    output = data_parallel(bnn)(torch.ones(2, 5, dtype=torch.float64)).detach()
    return {"draw": draw, "output": output, **optimizer_steps(optimizer, parallel.own)}


NEED_WHOLE: dict[str, Callable[[Any], Any]] = {
    "br.save": lambda bnn: br.save(bnn, "never written"),
    "br.mean_module": br.mean_module,
    "br.compress": lambda bnn: br.compress(bnn, 1),
    "br.prune": br.prune,
}
"""What no process can do by itself with its part of a model."""


def refusals() -> dict[str, str]:
    """What processes that disagree are told, all of them."""
    return dict(_refusals())


def _refusals() -> Iterator[tuple[str, str]]:
    rank = dist.get_rank()
    optimizer = br.optim.IVON(network(seed=rank), n_data=N_DATA, likelihood=br.Categorical())
    yield "other weights", _message(lambda: data_parallel(optimizer))
    optimizer = holder(br.optim.IVON)
    parallel = data_parallel(optimizer)
    (x, y), *_ = batches()
    x, y = parallel.own(x * (float("nan") if rank == 1 else 1.0), y)
    with optimizer.sampled_params():
        optimizer.nll(optimizer.model(x), y).backward()
    yield "not finite", _message(optimizer.step)
    yield "Auto", _message(lambda: data_parallel(converted(estimator=br.Auto()), noise="example"))
    sharded = converted(posterior=br.Diagonal())
    fully_sharded(sharded)
    for name, verb in NEED_WHOLE.items():
        yield name, _message(partial(verb, sharded))


def _message(action: Callable[[], Any]) -> str:
    try:
        action()
    except BayesruleError as error:
        return str(error)
    return "no error"


def saved_whole(folder: Path) -> dict[str, Tensors]:
    """What `whole_state_dict` gives of a sharded model, and what the first process saved of it."""
    bnn = converted(prior=br.LearnedNormal())
    fully_sharded(bnn)
    adam_steps(bnn, lambda x, y: (F.cross_entropy(bnn(x), y) + br.kl(bnn) / N_DATA).backward())
    state = whole_state_dict(bnn)
    if dist.get_rank() > 0:
        return {"whole": state, "read": state}
    whole = converted(prior=br.LearnedNormal())
    whole.load_state_dict(state)
    return {"whole": state, "read": br.load(br.save(whole, folder), into=network(seed=2)).state_dict()}


def main(rank: int, size: int, rendezvous: str, out: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    found: dict[str, Any] = {name: train() for name, train in TOGETHER.items()}
    found["by rank"], found["refusals"], found["saved"] = by_rank(), refusals(), saved_whole(out / "saved")
    torch.save(found, out / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
