"""One network and one posterior, put into several libraries, and what the KL call of each returns."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import softplus

import bayesrule as br
from bayesrule.bench.peers import import_parts_of

WIDTHS, STD, PRIOR_STD, SEED, DRAWS = (784, 400, 400, 10), 0.05, 1.0, 0, 100
LAYERS = len(WIDTHS) - 1
RHO = math.log(math.expm1(STD))  # softplus(RHO) = STD, for the libraries that keep ρ


@dataclass(frozen=True)
class Answer:
    """What a library's KL call returned: one number if in closed form, one for each draw if by Monte Carlo.

    ``summed`` is the same brought to a sum over the weights, as ``remedy`` says.
    """

    call: str
    convention: str
    returned: list[float]
    summed: list[float]
    remedy: str = "as it is"


def network() -> nn.Sequential:
    """The perceptron whose weights are everybody's posterior means."""
    generator = torch.Generator().manual_seed(SEED)
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(WIDTHS):
        linear = nn.Linear(fan_in, fan_out, dtype=torch.float64)
        for parameter in linear.parameters():
            nn.init.uniform_(parameter, -(fan_in**-0.5), fan_in**-0.5, generator=generator)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def exact_kl(net: nn.Module) -> float:
    """``Σ KL(N(mean, std²) ‖ N(0, prior_std²))`` over every weight and bias, by torch.distributions."""
    prior = Normal(torch.zeros((), dtype=torch.float64), PRIOR_STD)
    return sum(kl_divergence(Normal(p.detach(), STD), prior).sum().item() for p in net.parameters())


def rebuilt(
    net: nn.Sequential, layer: Callable[[int, int], nn.Module], mean: str, scale: str, value: float
) -> nn.Sequential:
    """The network with another library's linear layers, holding the same means, and one value for every scale.

    Args:
        net: The plain network.
        layer: Makes the other library's layer of a fan-in and a fan-out.
        mean: The attribute that holds the means, with ``{}`` for ``weight`` or ``bias``.
        scale: Likewise the parameter behind the standard deviations.
        value: That parameter's value.
    """
    layers: list[nn.Module] = []
    for module in net:
        other = layer(module.in_features, module.out_features) if isinstance(module, nn.Linear) else module
        for part, parameter in module.named_parameters():
            getattr(other, mean.format(part)).data.copy_(parameter.data)
            getattr(other, scale.format(part)).data.fill_(value)
        layers.append(other)
    return nn.Sequential(*layers)


def monte_carlo(estimate: Callable[[], Tensor]) -> list[float]:
    torch.manual_seed(SEED)
    return [float(estimate()) for _ in range(DRAWS)]


def bayesrule(net: nn.Sequential) -> Answer:
    bnn = br.bayesianize(net, br.Diagonal(init_std=STD), br.Normal(PRIOR_STD))
    for home in bnn.homes().values():
        nn.init.constant_(home.posterior.log_std, math.log(STD))
    kl = br.kl(bnn).item()
    return Answer("br.kl(bnn)", "sum, closed form", [kl], [kl])


def bayesian_torch(net: nn.Sequential) -> Answer:
    from bayesian_torch.layers import LinearReparameterization
    from bayesian_torch.models.dnn_to_bnn import get_kl_loss

    # The argument is called a variance and used as a standard deviation; at 1 they are the same.
    bnn = rebuilt(net, lambda m, n: LinearReparameterization(m, n, prior_variance=PRIOR_STD), "mu_{}", "rho_{}", RHO)
    total = 0.0
    for layer in (module for module in bnn if isinstance(module, LinearReparameterization)):
        for part in ("weight", "bias"):
            mean, rho, prior_mean, prior_std = (
                getattr(layer, name.format(part)) for name in ("mu_{}", "rho_{}", "prior_{}_mu", "prior_{}_sigma")
            )
            total += mean.numel() * layer.kl_div(mean, softplus(rho), prior_mean, prior_std).item()
    return Answer(
        "get_kl_loss(model)", "sum over tensors of the mean over each tensor's weights, closed form",
        [get_kl_loss(bnn).item()], [total], "each tensor's kl_div × its numel(), summed",
    )  # fmt: skip


def blitz(net: nn.Sequential) -> Answer:
    from blitz.losses import kl_divergence_from_nn
    from blitz.modules import BayesianLinear

    bnn = rebuilt(net, lambda m, n: BayesianLinear(m, n, prior_sigma_1=PRIOR_STD, prior_pi=1), "{}_mu", "{}_rho", RHO)
    x = torch.zeros(1, WIDTHS[0], dtype=torch.float64)
    values = monte_carlo(lambda: (bnn(x), kl_divergence_from_nn(bnn))[1])
    return Answer("kl_divergence_from_nn(model)", "sum, one Monte Carlo draw a call", values, values)


def torchbnn(net: nn.Sequential) -> Answer:
    from torchbnn import BayesLinear, BKLLoss

    bnn = rebuilt(net, lambda m, n: BayesLinear(0.0, PRIOR_STD, m, n), "{}_mu", "{}_log_sigma", math.log(STD))
    value, total = BKLLoss()(bnn).item(), BKLLoss(reduction="sum")(bnn).item()
    return Answer(
        "BKLLoss()(model)", "mean over all weights (the default of an option), closed form",
        [value], [total], 'BKLLoss(reduction="sum")',
    )  # fmt: skip


def posteriors(net: nn.Sequential) -> Answer:
    from posteriors import diag_normal_log_prob
    from posteriors.vi.diag import nelbo

    mean = {name: p.detach() for name, p in net.named_parameters()}
    std = {name: torch.full_like(p, STD) for name, p in mean.items()}

    def log_prior(params: dict[str, Tensor], batch: None) -> tuple[Tensor, Tensor]:
        return diag_normal_log_prob(params, 0.0, PRIOR_STD), torch.empty(0)

    values = monte_carlo(lambda: nelbo(mean, std, None, log_prior)[0])
    return Answer("vi.diag.nelbo, log-prior alone", "sum, one Monte Carlo draw a call", values, values)


def torch_uncertainty(net: nn.Sequential) -> Answer:
    import_parts_of("torch_uncertainty", "losses", "layers", "utils")
    from torch_uncertainty.layers.bayesian import BayesLinear
    from torch_uncertainty.losses.bayesian import KLDiv

    bnn = rebuilt(net, lambda m, n: BayesLinear(m, n, prior_sigma_1=PRIOR_STD, prior_pi=1), "{}_mu", "{}_sigma", RHO)
    x, kl = torch.zeros(1, WIDTHS[0], dtype=torch.float64), KLDiv(bnn)
    values = monte_carlo(lambda: (bnn(x), kl())[1])
    half = 0.5 * sum(p.numel() for p in net.parameters())
    return Answer(
        "KLDiv(model)()", "mean over layers, less ½ for every weight of a layer, one Monte Carlo draw a call",
        values, [LAYERS * value + half for value in values], "× number of layers, + ½ × number of weights",
    )  # fmt: skip


def torchbayesian(net: nn.Sequential) -> Answer:
    from torchbayesian.bnn import BayesianModule
    from torchbayesian.bnn.variational_posteriors import PretrainedGaussianPosterior

    prior = ("NORMAL", {"mu": 0.0, "sigma": PRIOR_STD})
    bnn = BayesianModule(copy.deepcopy(net), "PRETRAINED_NORMAL", prior, dtype=torch.float64)
    for module in bnn.modules():
        if isinstance(module, PretrainedGaussianPosterior):
            nn.init.constant_(module.rho, RHO)
    value = bnn.kl_divergence().item()
    return Answer("model.kl_divergence()", "sum (the default of an option), closed form", [value], [value])


def torch_blue(net: nn.Sequential) -> Answer:
    from torch_blue.vi import AnalyticalKullbackLeiblerLoss, VILinear
    from torch_blue.vi.distributions import Categorical, MeanFieldNormal

    prior = MeanFieldNormal(0.0, PRIOR_STD)
    bnn = rebuilt(net, lambda m, n: VILinear(m, n, prior=prior), "_{}_mean", "_{}_log_std", math.log(STD))
    value = AnalyticalKullbackLeiblerLoss(bnn, Categorical()).prior_matching().item()
    return Answer("AnalyticalKullbackLeiblerLoss.prior_matching()", "sum, closed form", [value], [value])


def pyro(net: nn.Sequential) -> Answer:
    import pyro
    from pyro.distributions import Normal as PyroNormal
    from pyro.infer import TraceMeanField_ELBO

    means = {name: p.detach() for name, p in net.named_parameters()}

    def model() -> None:
        for name, mean in means.items():
            pyro.sample(name, PyroNormal(torch.zeros_like(mean), PRIOR_STD).to_event())

    def guide() -> None:
        for name, mean in means.items():
            pyro.sample(name, PyroNormal(mean, STD).to_event())

    value = float(TraceMeanField_ELBO().loss(model, guide))
    return Answer("TraceMeanField_ELBO().loss, no data", "sum, closed form", [value], [value])


LIBRARIES: dict[str, Callable[[nn.Sequential], Answer]] = {
    "bayesrule": bayesrule,
    "bayesian-torch": bayesian_torch,
    "blitz-bayesian-pytorch": blitz,
    "torchbnn": torchbnn,
    "torch-uncertainty": torch_uncertainty,
    "posteriors": posteriors,
    "torchbayesian": torchbayesian,
    "torch-blue": torch_blue,
    "pyro-ppl": pyro,
}
"""By the name of their distribution."""
