"""Another library, as a method to be measured."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
import types
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bayesrule.bench.job import N_DATA, Contender, Job, Loss, drawn_by_calls, state_of
from bayesrule.errors import Unsupported

Maker = Callable[[Any], nn.Module]
"""Of a layer, its counterpart."""


@dataclass(frozen=True)
class Peer:
    """A library that may be installed.

    Attributes:
        distribution: Its name for pip, and in results.
        install: How to install it without what it asks for and does not need here.
        load: Imports what the adapter uses, and raises ImportError where that cannot be had.
        build: Makes it ready.
    """

    distribution: str
    install: str
    load: Callable[[], object]
    build: Callable[[Job], Contender]

    def absent(self) -> str | None:
        """Why it cannot be measured; None if it can."""
        try:
            importlib.metadata.version(self.distribution)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about deprecations in the other library
                self.load()
        except ImportError as error:  # PackageNotFoundError is one
            return f"{self.distribution} is not installed, or not whole ({error}): {self.install}"
        return None


def importing(*modules: str) -> Callable[[], object]:
    """Imports these."""
    return lambda: [importlib.import_module(name) for name in modules]


def import_parts_of(package: str, *parts: str) -> None:
    """Make a package's modules importable one by one, without running the package's own imports.

    torch-uncertainty's front door needs lightning and torchvision; its Bayesian layers need neither.
    """
    if package in sys.modules:  # whole, or made so before
        return
    spec = importlib.util.find_spec(package)
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError(f"{package} is not installed")
    folder = Path(next(iter(spec.submodule_search_locations)))
    for name, path in ((package, folder), *((f"{package}.{part}", folder / part) for part in parts)):
        shell = types.ModuleType(name)
        shell.__path__ = [str(path)]
        sys.modules.setdefault(name, shell)


def swapped(net: nn.Module, makers: Mapping[type[nn.Module], Maker]) -> nn.Module:
    """The network with another library's layers in the place of its own. Changes the network: callers own it.

    Embeddings and norms stay as they are. A layer without a counterpart is refused: a network that is Bayesian in part
    would be compared with networks that are so as a whole.

    Args:
        net: The plain network.
        makers: By the class of a layer, what makes its counterpart.
    """
    if type(net) in makers:
        return makers[type(net)](net)
    for name, child in net.named_children():
        if type(child) in makers:
            setattr(net, name, makers[type(child)](child).to(next(child.parameters())))
        elif isinstance(child, nn.Linear | nn.Conv2d | nn.RNNBase | nn.MultiheadAttention):
            raise Unsupported("The library has no counterpart of a layer", got=type(child).__name__)
        else:
            swapped(child, makers)
    return net


def trained(job: Job, bnn: nn.Module, kl: Callable[[], torch.Tensor]) -> Contender:
    """A network of another library's layers, on the same loss and by the same optimizer as ours."""
    bnn = bnn.to(job.device)
    optimizer = job.adam(bnn.parameters())
    loss: Loss = lambda x, y: job.model.loss(bnn(x), y) + kl() / N_DATA  # noqa: E731
    step = job.training(loss, optimizer, whole=False)
    return Contender(step, drawn_by_calls(bnn), lambda: state_of(optimizer))
