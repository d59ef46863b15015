"""Hamiltonian Monte Carlo, through numpyro: the converged sampler that posteriors are compared with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule.errors import Unsupported
from bayesrule.inference.hmc_arguments import ACTIVATIONS, check_chains, check_problem, layers_of
from bayesrule.inference.sampled_network import LOG_NOISE_STD, SampledNetwork
from bayesrule.likelihoods import Gaussian, GaussianGammaNoise, Likelihood
from bayesrule.priors import Normal, Prior

CONVERGED = 1.05
MAPS, MOST_MAPS = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
"""The pieces of memory that this process has, a line for each, and how many Linux allows."""
Weights = Mapping[str, Any]


@dataclass(frozen=True)
class Diagnostics:
    """Whether the chains agree.

    The weights of a network need not mix: hidden units can be exchanged without any change of its outputs. The
    outputs must.

    Attributes:
        r_hat: Split R-hat of every parameter, the largest over its entries.
        output_r_hat: The largest split R-hat of the outputs at the training inputs, and of the noise.
        effective_draws: The smallest effective sample size of the same.
        divergences: Transitions, after warm-up, whose integration broke down.
        acceptance: Mean acceptance probability.
    """

    r_hat: Mapping[str, float]
    output_r_hat: float
    effective_draws: float
    divergences: int
    acceptance: float

    @property
    def converged(self) -> bool:
        """Whether ``output_r_hat`` is below 1.05."""
        return self.output_r_hat < CONVERGED


@dataclass(frozen=True)
class HMC:
    """What `hmc` returns.

    Attributes:
        network: The network with its draws, which `br.predict` takes.
        diagnostics: Whether the chains agree.
    """

    network: SampledNetwork
    diagnostics: Diagnostics


def hmc(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    prior: Prior | None = None,
    likelihood: Likelihood | None = None,
    chains: int = 4,
    warmup: int = 1000,
    draws: int = 1000,
    target_acceptance: float = 0.8,
    max_tree_depth: int = 10,
    seed: int = 0,
) -> HMC:
    """Draws from ``p(w, τ | data) ∝ Π N(y | f(x, w), 1/τ) · N(w; 0, η²) · Gamma(τ; a₀, b₀)`` by NUTS, in float64.

    Args:
        net: An `nn.Linear`, or an `nn.Sequential` of linear layers and activations; its weights are not used.
        x: Inputs, (rows, features).
        y: Targets, (rows, targets).
        prior: Of every weight and bias; by default ``N(0, 1)``.
        likelihood: `GaussianGammaNoise`, whose precision is sampled with the weights (the default, with its
            Gamma(6, 6) prior), or `Gaussian`, whose noise is known.
        chains: Run one after another, each from a draw of the prior.
        warmup: Transitions of each chain that adapt step size and metric, and are dropped.
        draws: Transitions of each chain that are kept.
        target_acceptance: What the step size is adapted to.
        max_tree_depth: At most ``2^depth`` leapfrog steps a transition.
        seed: Of everything random.
    """
    likelihood = likelihood or GaussianGammaNoise()
    check_problem(net, x, y, likelihood)
    normal = _plain_normal(prior or Normal(1.0))
    check_chains(chains, warmup, draws, target_acceptance, max_tree_depth)
    jax, numpyro = _packages()
    program = _Program(
        tuple((prefix, ACTIVATIONS.get(type(layer), "")) for prefix, layer in layers_of(net)),
        tuple((name, tuple(parameter.shape)) for name, parameter in net.named_parameters()),
        (tuple(x.shape), tuple(y.shape)), normal, _noise(likelihood), chains, warmup, draws, target_acceptance,
        max_tree_depth,
    )  # fmt: skip
    inputs, targets = x.detach().cpu().double().numpy(), y.detach().cpu().double().numpy()
    with jax.enable_x64(True), _compiled_once(jax):
        sampler = _sampler(program)
        sampler.run(jax.random.PRNGKey(seed), inputs, targets, extra_fields=("diverging", "accept_prob"))
        found = sampler.get_samples(group_by_chain=True)
        outputs = jax.vmap(jax.vmap(lambda weights: program.forward(weights, inputs)))(found)
        arrays = {name: torch.tensor(jax.device_get(value)) for name, value in found.items()}
        diagnostics = _diagnose(numpyro, arrays, torch.tensor(jax.device_get(outputs)), sampler.get_extra_fields())
    if isinstance(likelihood, Gaussian):
        noise = likelihood.log_noise_std.detach().double().expand(y.shape[1])
        arrays[LOG_NOISE_STD] = noise.expand(chains, draws, -1)
    else:
        arrays[LOG_NOISE_STD] = -0.5 * arrays.pop("precision").log()[..., None].expand(-1, -1, y.shape[1])
    return HMC(SampledNetwork(net, {name: value.flatten(0, 1) for name, value in arrays.items()}), diagnostics)


def _packages() -> tuple[Any, Any]:
    try:
        import jax
        import numpyro
        import numpyro.diagnostics
        import numpyro.infer
    except ImportError as error:
        raise Unsupported(
            f"HMC needs the package {error.name}", remedy="pip install 'bayesrule[hmc]'"
        ) from error  # fmt: skip
    return jax, numpyro


def _plain_normal(prior: Prior) -> tuple[float, float]:
    """Mean and standard deviation."""
    if isinstance(prior, Normal) and isinstance(prior.mean, int | float) and isinstance(prior.std, int | float):
        return float(prior.mean), float(prior.std)
    raise Unsupported("HMC takes a Normal prior of one mean and one std", got=repr(prior))


def _noise(likelihood: Likelihood) -> tuple[str, tuple[float, ...]]:
    """The Gamma prior of the noise's precision, or the noise's known standard deviations."""
    if isinstance(likelihood, GaussianGammaNoise):
        return "gamma", (float(likelihood.prior_shape), float(likelihood.prior_rate))
    return "known", tuple(likelihood.noise_std.detach().cpu().double().flatten().tolist())  # type: ignore[operator]


@dataclass(frozen=True)
class _Program:
    """All that a compiled sampler depends on but the numbers in its data."""

    layers: tuple[tuple[str, str], ...]
    parameters: tuple[tuple[str, tuple[int, ...]], ...]
    data: tuple[tuple[int, ...], tuple[int, ...]]
    prior: tuple[float, float]
    noise: tuple[str, tuple[float, ...]]
    chains: int
    warmup: int
    draws: int
    target_acceptance: float
    max_tree_depth: int

    def forward(self, weights: Weights, x: Any) -> Any:
        """The network as a function of weights by name and inputs, in JAX."""
        import jax

        for prefix, activation in self.layers:
            if activation:
                x = getattr(jax.nn, activation)(x)
            else:
                x = x @ weights[f"{prefix}weight"].T + weights.get(f"{prefix}bias", 0.0)
        return x

    def model(self, x: Any, y: Any) -> None:
        """The joint density, for numpyro."""
        _, numpyro = _packages()
        normal, gamma, sample = numpyro.distributions.Normal, numpyro.distributions.Gamma, numpyro.sample
        weights = {name: sample(name, normal(*self.prior).expand(shape).to_event()) for name, shape in self.parameters}
        kind, numbers = self.noise
        noise_std = (
            sample("precision", gamma(*numbers)) ** -0.5
            if kind == "gamma"
            else torch.tensor(numbers, dtype=torch.float64).numpy()
        )
        sample("y", normal(self.forward(weights, x), noise_std).to_event(2), obs=y)


@contextmanager
def _compiled_once(jax: Any) -> Iterator[None]:
    """What is compiled inside is kept for the life of this process, unless jax was told of a folder of its own.

    numpyro makes new functions in every run, also where they are the same program; on disk they are found again.
    """
    from jax.experimental.compilation_cache import compilation_cache

    if jax.config.jax_compilation_cache_dir is not None:
        yield
        return
    settings = {"jax_compilation_cache_dir": _folder().name, "jax_persistent_cache_min_entry_size_bytes": -1}
    before = {name: getattr(jax.config, name) for name in settings}
    try:
        _configure(jax, compilation_cache, settings)
        yield
    finally:
        _configure(jax, compilation_cache, before)


def _configure(jax: Any, compilation_cache: Any, settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@cache
def _folder() -> TemporaryDirectory[str]:
    """Deleted when Python ends."""
    return TemporaryDirectory(prefix="bayesrule-hmc-")


def _sampler(program: _Program) -> Any:
    """The program's, compiled if it ran not long before."""
    if _crowded():
        forget_programs()
    return _made(program)


def forget_programs() -> None:
    """Free what was compiled; it is compiled anew where it is needed again."""
    _made.cache_clear()
    _packages()[0].clear_caches()


def _crowded() -> bool:
    """Whether half of the pieces of memory are taken: every chain loads programs anew, and none is freed before.

    Programs are kept as long as they can be: to compile one takes far longer than to run a small one.
    """
    if not (MAPS.exists() and MOST_MAPS.exists()):
        return False
    with MAPS.open("rb") as lines:
        return 2 * sum(1 for _ in lines) > int(MOST_MAPS.read_text())


@cache
def _made(program: _Program) -> Any:
    _, numpyro = _packages()
    kernel = numpyro.infer.NUTS(
        program.model, target_accept_prob=program.target_acceptance, max_tree_depth=program.max_tree_depth,
        init_strategy=numpyro.infer.init_to_sample,
    )  # fmt: skip
    return numpyro.infer.MCMC(
        kernel, num_warmup=program.warmup, num_samples=program.draws, num_chains=program.chains,
        chain_method="sequential", progress_bar=False, jit_model_args=True,
    )  # fmt: skip


def _diagnose(numpyro: Any, arrays: Mapping[str, Tensor], outputs: Tensor, extra: Mapping[str, Any]) -> Diagnostics:
    split, effective = numpyro.diagnostics.split_gelman_rubin, numpyro.diagnostics.effective_sample_size
    r_hat = {name: float(split(value.numpy()).max()) for name, value in arrays.items()}
    seen = [outputs.numpy(), *(arrays[name].numpy() for name in ("precision",) if name in arrays)]
    return Diagnostics(
        r_hat,
        output_r_hat=max(float(split(each).max()) for each in seen),
        effective_draws=min(float(effective(each).min()) for each in seen),
        divergences=int(extra["diverging"].sum()),
        acceptance=float(extra["accept_prob"].mean()),
    )
