"""How every likelihood runs: differentiated, batched, in other types, on other devices, saved and copied."""

from __future__ import annotations

import copy

import pytest
import torch
from likelihood_cases import Case, assert_equal, every_case
from noise_tape import Tape
from torch.func import grad, vmap

from bayesrule.likelihoods import Categorical
from bayesrule.random import Replay


@every_case
def test_gradients_equal_finite_differences(case: Case) -> None:
    likelihood, outputs, targets = case.build(), case.outputs(2, 3).requires_grad_(), case.targets(3)
    for name in ("log_prob", "expected_log_prob"):
        assert torch.autograd.gradcheck(lambda f, name=name: getattr(likelihood, name)(f, targets), outputs)
    assert torch.autograd.gradgradcheck(lambda f: likelihood.expected_log_prob(f, targets), outputs)


@every_case
def test_per_example_gradients_by_vmap_equal_a_loop(case: Case) -> None:
    likelihood, outputs, targets = case.build(), case.outputs(5), case.targets(5)
    batched = vmap(grad(likelihood.expected_log_prob))(outputs, targets)
    leaf = outputs.clone().requires_grad_()
    likelihood.expected_log_prob(leaf, targets).sum().backward()
    assert_equal(batched, leaf.grad)


@every_case
def test_samples_are_a_function_of_the_noise_also_under_vmap(case: Case) -> None:
    likelihood, outputs, tape = case.build(), case.outputs(4, 5), Tape()
    samples = likelihood.sample(outputs, tape)
    replayed = vmap(lambda f, *rows: likelihood.sample(f, Replay(list(rows))))(outputs, *tape.noises)
    assert torch.equal(replayed, samples)


@every_case
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_outputs_are_lifted_to_float32(case: Case, dtype: torch.dtype) -> None:
    likelihood, outputs, targets = case.build().float(), case.outputs(5).to(dtype), case.targets(5)
    for method in (likelihood.log_prob, likelihood.expected_log_prob):
        assert method(outputs, targets).dtype == torch.float32
        assert_equal(method(outputs, targets), method(outputs.float(), targets), tolerance=0)
    assert likelihood.moments(outputs).variance.dtype == torch.float32
    sample = likelihood.sample(outputs)
    assert sample.dtype == (torch.int64 if isinstance(likelihood, Categorical) else torch.float32)


@every_case
def test_float32_outputs_stay_float32_beside_float64_noise(case: Case) -> None:
    likelihood, outputs, targets = case.build(), case.outputs(5).float(), case.targets(5)
    for rows in ((outputs, targets), (outputs[0], targets[0])):
        assert likelihood.log_prob(*rows).dtype == torch.float32
        assert likelihood.expected_log_prob(*rows).dtype == torch.float32
    assert {m.dtype for m in likelihood.moments(outputs)} == {torch.float32}


@every_case
def test_nothing_off_the_cpu_waits_for_values(case: Case) -> None:
    """Tensors of the meta device have no values: a look at one, which on a GPU would be a wait, raises."""
    likelihood = case.build().to("meta")
    outputs, targets = case.outputs(3, 5).to("meta"), case.targets(5).to("meta")
    assert likelihood.nll(outputs, targets).shape == ()
    assert likelihood.mixture_log_prob(outputs, targets).shape == (5,)
    assert likelihood.predictive_moments(outputs).mean.shape == (5, case.target_dim)
    assert likelihood.sample(outputs).shape[:2] == (3, 5)
    assert likelihood.kl().shape == ()


@pytest.mark.gpu
@every_case
def test_cuda_equals_cpu(case: Case) -> None:
    likelihood, outputs, targets = case.build(), case.outputs(3, 5), case.targets(5)
    on_gpu = copy.deepcopy(likelihood).cuda()
    for method in ("log_prob", "expected_log_prob", "mixture_log_prob", "nll"):
        expected = getattr(likelihood, method)(outputs, targets)
        assert_equal(getattr(on_gpu, method)(outputs.cuda(), targets.cuda()).cpu(), expected)
    assert on_gpu.log_prob(outputs.cuda(), on_gpu.sample(outputs.cuda())).isfinite().all()
    assert_equal(on_gpu.kl().cpu(), likelihood.kl())


@every_case
def test_state_travels_in_the_state_dict_and_in_copies(case: Case) -> None:
    source, outputs, targets = case.build(), case.outputs(5), case.targets(5)
    with torch.no_grad():
        for state in source.state_dict().values():
            state.mul_(1.25)
    fresh = case.build()
    fresh.load_state_dict(source.state_dict())
    for other in (fresh, copy.deepcopy(source)):
        assert torch.equal(other.expected_log_prob(outputs, targets), source.expected_log_prob(outputs, targets))
