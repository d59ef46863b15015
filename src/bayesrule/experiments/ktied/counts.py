"""How many numbers a posterior takes   [Table 1]."""

from __future__ import annotations

from collections.abc import Callable

from bayesrule.experiments.ktied.recipe import Recipe


def parameters(model: str, posterior: str) -> int:
    """Trainable numbers of the whole network at its full size."""
    bnn = Recipe(model, posterior, epochs=1).build()
    return sum(parameter.numel() for parameter in bnn.parameters() if parameter.requires_grad)


def tied_weights(model: str) -> list[tuple[int, int]]:
    """Fan-in and fan-out of the weights that may be tied: those whose numbers a rank changes."""
    one, two = (Recipe(model, posterior, epochs=1).build().homes() for posterior in ("1-tied", "2-tied"))
    shapes = {name: tuple(home().mean.shape) for name, home in two.items()}
    sizes = [{name: sum(p.numel() for p in home.parameters()) for name, home in homes.items()} for homes in (one, two)]
    return [(shape[0], shape[1]) for name, shape in shapes.items() if sizes[0][name] != sizes[1][name]]


FORMULAS: dict[str, Callable[[int, int], int]] = {
    "multivariate-normal": lambda m, n: m * n + m * n * (m * n + 1) // 2,
    "mean-field": lambda m, n: 2 * m * n,
    "matrix-normal": lambda m, n: m * n + m * (m + 1) // 2 + n * (n + 1) // 2,
    "matrix-normal-diagonal": lambda m, n: m * n + m + n,
    "1-tied": lambda m, n: m * n + (m + n),
    "2-tied": lambda m, n: m * n + 2 * (m + n),
    "3-tied": lambda m, n: m * n + 3 * (m + n),
}
"""Numbers for a weight of fan-in m and fan-out n   [Table 1]."""


def by_formula(model: str, family: str) -> int:
    """The whole network's numbers: a formula for the weights that may be tied, mean-field's own for the rest."""
    shapes = tied_weights(model)
    rest = parameters(model, "mean-field") - sum(FORMULAS["mean-field"](m, n) for m, n in shapes)
    return rest + sum(FORMULAS[family](m, n) for m, n in shapes)
