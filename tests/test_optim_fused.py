"""Recurrent and attention modules: optimizers that need nothing but gradients hold posteriors over their matrices."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.optim import IVON, BayesBiNN, KTiedVON, NoisyKFAC
from optim_problems import Recorded, step

N, B1, B2, H0, LR, PRIOR_STD = 50, 0.8, 0.9, 0.3, 0.05, 0.8
GAMMA = 1 / (N * PRIOR_STD**2)


class Reader(nn.Module):
    """An embedding, a recurrent layer, attention, a cell and a head."""

    def __init__(self, recurrent: nn.Module, attention: nn.Module) -> None:
        super().__init__()
        self.embedding, self.recurrent, self.attention = nn.Embedding(7, 4), recurrent, attention
        self.norm, self.cell, self.head = nn.LayerNorm(4), nn.GRUCell(4, 3), nn.Linear(3, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, _ = self.recurrent(self.embedding(tokens))
        keys = hidden[..., [*range(4), 0]][..., : self.attention.kdim]
        attended, _ = self.attention(hidden, keys, keys)
        return self.head(self.cell(self.norm(hidden + attended).mean(1)))


RECURRENT = {
    "RNN": lambda: nn.RNN(4, 4, batch_first=True),
    "two-layer LSTM": lambda: nn.LSTM(4, 4, 2, batch_first=True),
    "bidirectional GRU": lambda: nn.GRU(4, 2, bidirectional=True, batch_first=True),
    "without biases": lambda: nn.LSTM(4, 4, bias=False, batch_first=True),
}
ATTENTION = {
    "joint": lambda: nn.MultiheadAttention(4, 2, batch_first=True),
    "apart": lambda: nn.MultiheadAttention(4, 2, batch_first=True, kdim=5, vdim=5),
}


def reader(recurrent: str = "RNN", attention: str = "joint") -> Reader:
    torch.manual_seed(0)
    return Reader(RECURRENT[recurrent](), ATTENTION[attention]()).double()


TOKENS = torch.randint(7, (12, 5), generator=torch.Generator().manual_seed(1))
CLASSES = torch.randint(2, (12,), generator=torch.Generator().manual_seed(2))


def loss_of(net: nn.Module) -> Tensor:
    return nn.functional.cross_entropy(net(TOKENS), CLASSES)


def is_matrix(name: str) -> bool:
    return not name.startswith(("embedding", "norm"))


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("recurrent", RECURRENT)
def test_ivon_is_its_transcription_over_every_matrix(recurrent: str, attention: str) -> None:
    """Shen et al. (2024), Algorithm 1, parameter by parameter; what is left follows Adam."""
    net = reader(recurrent, attention)
    twin = copy.deepcopy(net)
    optimizer = IVON(
        net, n_data=N, lr=LR, betas=(B1, B2), init_curvature=H0, max_kl=None, prior=br.Normal(PRIOR_STD),
        likelihood=br.Categorical(), plain_lr=1e-3,
    )  # fmt: skip
    means = {name: parameter for name, parameter in twin.named_parameters() if is_matrix(name)}
    others = torch.optim.Adam([p for name, p in twin.named_parameters() if not is_matrix(name)], lr=1e-3)
    momenta = {name: torch.zeros_like(mean) for name, mean in means.items()}
    curvatures = {name: torch.full_like(mean, H0) for name, mean in means.items()}
    for count in range(1, 4):
        recorded = Recorded()
        step(optimizer, lambda: loss_of(net), noise=recorded)
        noises = {}
        for group, noise in zip(optimizer.groups.values(), recorded.noises, strict=True):
            rows = list(noise)
            for part in group.parts:
                taken = [rows.pop(0) for _ in range(1 if len(part.shape) == 1 else part.shape[1])]
                noises[part.name] = taken[0] if len(part.shape) == 1 else torch.stack(taken, 1)
        centres = {name: mean.detach().clone() for name, mean in means.items()}
        sigmas = {name: (N * (each + GAMMA)).rsqrt() for name, each in curvatures.items()}
        twin.zero_grad()
        with torch.no_grad():
            for name, mean in means.items():
                mean.add_(sigmas[name] * noises[name])
        loss_of(twin).backward()
        others.step()
        with torch.no_grad():
            for name, mean in means.items():
                estimate = mean.grad * noises[name] / sigmas[name]
                h, spread = curvatures[name], (curvatures[name] - estimate).square()
                momenta[name] = B1 * momenta[name] + (1 - B1) * mean.grad
                new = B2 * h + (1 - B2) * estimate + 0.5 * (1 - B2) ** 2 * spread / (h + GAMMA)
                pull = momenta[name] / (1 - B1**count) + GAMMA * centres[name]
                mean.copy_(centres[name] - LR * pull / (new + GAMMA))
                curvatures[name] = new
        for (name, mine), theirs in zip(net.named_parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-10, msg=name)


@pytest.mark.parametrize("kind", [IVON, KTiedVON])
def test_predictions_are_those_of_networks_with_drawn_weights(kind) -> None:
    net = reader("two-layer LSTM")
    optimizer = kind(net, n_data=N, lr=0.01, likelihood=br.Categorical(), seed=0)
    step(optimizer, lambda: loss_of(net))
    names = {part.name for posterior in optimizer.posteriors().values() for part in posterior.parts}
    assert names == {name for name, _ in net.named_parameters() if is_matrix(name)}
    generator = torch.Generator().manual_seed(3)
    draws = {name: piece for posterior in optimizer.posteriors().values()
             for name, piece in posterior.split(posterior.rsample(generator=generator)).items()}  # fmt: skip
    twin = copy.deepcopy(net)
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            parameter.copy_(draws.get(name, parameter))
    torch.testing.assert_close(optimizer.at(draws, TOKENS), twin(TOKENS), rtol=1e-12, atol=1e-12)
    assert bool((br.predict(optimizer, TOKENS, samples=20).mutual_information > 0).all())


def test_what_is_listed_shared_frozen_or_tapped_is_left_out() -> None:
    net = reader()
    net.recurrent.weight_hh_l0.requires_grad_(False)
    net.other = nn.RNNCell(4, 4).double()
    net.other.weight_ih = net.recurrent.weight_ih_l0
    with pytest.warns(UserWarning, match=r"'attention.out_proj.weight' is in plain, but 'attention.out_proj.bias'"):
        optimizer = IVON(net, n_data=N, likelihood=br.Categorical(), plain=("attention.out_proj.weight", "cell"))
    rules = {row.name: (row.rule, row.group) for row in optimizer.plan}
    assert rules["recurrent.weight_ih_l0"] == ("Adam", "")
    assert optimizer.plan["recurrent.weight_ih_l0"].note == "of several recurrent or attention layers"
    assert rules["recurrent.bias_ih_l0"] == ("IVON", "recurrent.bias_ih_l0")
    assert rules["recurrent.weight_hh_l0"] == ("none", "")
    assert rules["recurrent.bias_hh_l0"] == ("IVON", "recurrent.bias_hh_l0")
    assert rules["attention.out_proj.weight"] == ("Adam", "")
    assert rules["attention.in_proj_bias"] == ("IVON", "attention.in_proj_weight")
    assert all(rules[f"cell.{key}"] == ("Adam", "") for key in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    for kind in (NoisyKFAC, BayesBiNN):
        plan = kind(reader(), n_data=N, likelihood=br.Categorical()).plan
        assert plan["recurrent.weight_ih_l0"].rule == plan["attention.in_proj_weight"].rule == "Adam"


def test_a_bias_keeps_its_posterior_where_its_weight_is_computed() -> None:
    net = reader()
    nn.utils.parametrizations.weight_norm(net.recurrent, "weight_hh_l0")
    plan = IVON(net, n_data=N, likelihood=br.Categorical()).plan
    assert (plan["recurrent.bias_hh_l0"].rule, plan["recurrent.bias_hh_l0"].group) == ("IVON", "recurrent.bias_hh_l0")
    assert plan["recurrent.bias_ih_l0"].group == "recurrent.weight_ih_l0"
