"""Steps of noisy EK-FAC, and of K-FAC with exact damping, where the data have said little: no mean leaps away."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bayesrule.curvature import Tapped
from bayesrule.optim import Message, NoisyEKFACRule, NoisyKFACRule, PriorTerm
from bayesrule.optim.kronecker_inverse import step_damping
from bayesrule.train.replicas import Replicas

DAMPING = torch.tensor(0.02, dtype=torch.float64)


@pytest.mark.parametrize("extra", [0.0, 0.3])
def test_the_first_step_is_that_of_factored_damping(extra: float) -> None:
    """The first f is K-FAC's ``aᵢ sⱼ``: in the eigenbases, the step is then that of the damped factors' inverses."""
    common = {"max_kl": 1e9, "extra_damping": extra}
    inputs, gradients = torch.randn(9, 1, 4, dtype=torch.float64), torch.randn(1, 9, 1, 3, dtype=torch.float64)
    mean, gradient = torch.randn(2, 4, 3, dtype=torch.float64)
    moved = []
    for rule in (NoisyKFACRule(**common), NoisyEKFACRule(**common), NoisyKFACRule(damping="exact", **common)):
        state = rule.init(mean, [(4, 3)], DAMPING)
        message = Message(gradient, rule.curvature(state, [Tapped(inputs, gradients, 9)]))
        moved.append(rule.update(mean, state, message, PriorTerm(DAMPING), lr=0.1, refresh=True)[0])
    for exactly_damped in moved[1:]:
        torch.testing.assert_close(exactly_damped, moved[0], rtol=1e-10, atol=1e-12)


def test_without_curvature_a_step_is_damped_by_the_prior_alone() -> None:
    torch.testing.assert_close(step_damping(torch.zeros(4, 3).double(), DAMPING), DAMPING.expand(4, 3))


def nearly_collinear(rows: int) -> tuple[Tensor, Tensor]:
    """Four inputs that lie close to a plane, and a target that is a ReLU of two of them, without noise."""
    x = torch.randn(1, rows, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x[..., 2:] = x[..., [1, 0]] + 0.01 * x[..., 2:]
    y = (x[..., :1] - 0.5 * x[..., 1:2]).relu()
    return x, (y - y.mean()) / y.std()


def test_no_step_leaps_along_directions_without_curvature() -> None:
    """Units that are off, inputs that hardly vary and a small γ: the fit, once found, is never lost again.

    Without the damping of the step the noise's standard deviation, which follows the residuals, rises to 6 here.
    """
    x, y = nearly_collinear(400)
    replicas = Replicas(
        x, y, NoisyEKFACRule(beta=0.01), hidden=(10,), seeds=[0], lr=0.03, kl_weight=0.1, batch_size=20, T_inv=500,
        quiet_steps=2000, noise_prior=(1.0, 1e-4),
    )  # fmt: skip
    seen: list[float] = []
    replicas.train(75, after_step=lambda steps, after: seen.append(after.state.noise.precision.item() ** -0.5))
    assert max(seen[500:]) < 0.1
    assert seen[-1] < 0.01
