"""A model of a table as one ONNX graph, at the posterior mean."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from bayesrule.data import NumberTarget
from bayesrule.errors import Unsupported
from bayesrule.likelihoods import Likelihood
from bayesrule.nn import mean_module
from bayesrule.train.tabular import TabularModel

NAME = "model.onnx"


class PlainMixture(nn.Module):
    """The mixture over the members, each at its mean.

    Gives class probabilities; or the mean and standard deviation of the target, in its own units.
    """

    shares: Tensor

    def __init__(
        self, members: list[nn.Module], likelihood: Likelihood, shares: Tensor, target: NumberTarget | None
    ) -> None:
        super().__init__()
        self.members, self.likelihood, self.target = nn.ModuleList(members), likelihood, target
        self.register_buffer("shares", (shares / shares.sum())[:, None, None])

    def forward(self, features: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """From encoded features, (rows, features)."""
        outputs = torch.stack([member(features) for member in self.members])
        moments = self.likelihood.moments(outputs)
        mean = (self.shares * moments.mean).sum(0)
        if self.target is None:
            return mean
        spread = (self.shares * (moments.variance + (moments.mean - mean).square())).sum(0).sqrt()
        return self.target.mean + self.target.std * mean, self.target.std * spread


def plain_mixture(model: TabularModel) -> PlainMixture:
    """The model's mixture as a plain network, in evaluation."""
    every = model.members
    target = model.target if isinstance(model.target, NumberTarget) else None
    members = [mean_module(member).eval() for member in every.members]  # type: ignore[arg-type]
    return PlainMixture(members, every.likelihood, every.shares, target).eval()


def require_onnx() -> None:
    """Refuse early where the packages are missing."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ModuleNotFoundError as error:
        raise Unsupported(
            f"The export to ONNX needs the package {error.name}", remedy="pip install 'bayesrule[onnx]'"
        ) from error


def onnx_bytes(model: TabularModel) -> bytes:
    """The graph; its input is a table as the model's encoder encodes it, of any number of rows."""
    mixture, features = plain_mixture(model), torch.zeros(2, len(model.encoder.feature_names))
    outputs = ["probabilities"] if mixture.target is None else ["mean", "std"]
    shapes = ({0: torch.export.Dim("rows")},)
    with TemporaryDirectory() as folder, _silent():
        torch.onnx.export(
            mixture, (features,), str(Path(folder) / NAME), input_names=["features"], output_names=outputs,
            dynamo=True, dynamic_shapes=shapes, external_data=False, verbose=False,
        )  # fmt: skip
        return (Path(folder) / NAME).read_bytes()


@contextmanager
def _silent() -> Iterator[None]:
    """Without what torch's exporter says of its own internals and of packages that are not needed."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
