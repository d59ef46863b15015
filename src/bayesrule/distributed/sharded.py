"""Fully sharded converted networks (FSDP2): every process keeps a part of means, factors and optimizer states."""

from __future__ import annotations

import copy
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from bayesrule.distributed.noise import NoiseKey
from bayesrule.distributed.parallel import Parallel, set_noise
from bayesrule.distributed.world import join
from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.nn import BayesianModule
from bayesrule.nn.bayesian_module import need_bayesian
from bayesrule.nn.draw_table import DrawTable
from bayesrule.nn.home import Home
from bayesrule.nn.layer import BayesianLayer

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def fully_sharded(bnn: BayesianModule, *, noise: NoiseKey = "rank", mesh: DeviceMesh | None = None) -> Parallel:
    """Shard a converted network over the processes, a unit for each Bayesian layer and one for the rest.

    A layer is put together for its forward and backward pass; its posterior outside of them, as for ``br.kl``, is
    gathered too, and the KL's gradient, the same in all processes, goes to each one's part without a further exchange.
    So the KL counts once, and must be computed after the forward pass. Make the torch optimizer afterwards: parameters
    are exchanged in place. Layers that share a posterior belong to the last unit.

    Args:
        bnn: Made alike in all processes.
        noise: As in `data_parallel`.
        mesh: The processes, where they are not all those of the world.
    """
    from torch.distributed.fsdp import fully_shard

    need_bayesian(bnn, "fully_sharded")
    world = join()
    if world.size == 1 and not dist.is_initialized():
        return Parallel(world, set_noise(bnn, world, noise), bnn)
    _refuse_scalars(bnn)
    source = set_noise(bnn, world, noise)
    mesh = mesh or _whole_world(next(bnn.parameters()).device)
    for layer in _units(bnn):
        layer.register_forward_hook(_without_views)
        fully_shard(layer, mesh=mesh, ignored_params=_constants(layer))
    fully_shard(bnn, mesh=mesh, ignored_params=_constants(bnn))
    gather = _Gather(bnn.draws)
    for home in bnn.homes().values():
        home.posterior.gather = gather
    return Parallel(world, source, bnn)


def whole_state_dict(bnn: BayesianModule) -> dict[str, Tensor]:
    """The state of a sharded network as plain tensors, for a network that is not; all processes must call it."""
    from torch.distributed.tensor import DTensor

    state = bnn.state_dict()
    return {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in state.items()}


def _units(bnn: BayesianModule) -> list[BayesianLayer]:
    """The outermost Bayesian layers that own their posteriors: attention reads the weights of modules inside it."""
    outermost: list[BayesianLayer] = []

    def look(module: nn.Module) -> None:
        if isinstance(module, BayesianLayer):
            outermost.append(module)
        else:
            for child in module.children():
                look(child)

    look(bnn.module)
    used = Counter(id(home) for layer in outermost for home in _homes(layer))
    return [layer for layer in outermost if all(used[id(home)] == 1 for home in _homes(layer))]


def _without_views(module: nn.Module, args: Any, outputs: Any) -> Any:
    """Attention returns views, and work in place on those would lose the hook that puts the layer together again."""
    return tree_map(lambda each: each.clone() if isinstance(each, Tensor) and each._is_view() else each, outputs)


def _homes(layer: BayesianLayer) -> list[Home]:
    return [module for module in layer.modules() if isinstance(module, Home)]


def _constants(module: nn.Module) -> set[nn.Parameter]:
    """Single numbers that priors learn: the KL's gradient is the same everywhere, so they stay whole."""
    homes = [home for home in module.modules() if isinstance(home, Home)]
    return {p for home in homes for p in home.hyperparameters.parameters() if p.ndim == 0}


def _refuse_scalars(bnn: BayesianModule) -> None:
    learned = _constants(bnn)
    scalars = [name for name, p in bnn.named_parameters() if p.ndim == 0 and p not in learned]
    if scalars:
        raise InvalidArgument(
            "A parameter that is a single number cannot be sharded", got=scalars,
            remedy="Give it the shape (1,), or use data_parallel.",
        )  # fmt: skip


def _whole_world(device: torch.device) -> DeviceMesh:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device.type, (dist.get_world_size(),))


class _Gather:
    """The whole of a sharded parameter; copies of a model share it, and with it the model's passes."""

    def __init__(self, draws: DrawTable) -> None:
        self.draws = draws

    def __call__(self, tensor: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor

        if not isinstance(tensor, DTensor):
            return tensor
        if self.draws.in_pass and torch.is_grad_enabled():  # the gradients of other processes would be lost
            raise Unsupported(
                "A layer's sharded posterior was read in a forward pass outside of that layer",
                remedy="Use br.distributed.data_parallel for this network.",
            )
        return tensor.full_tensor()

    def __deepcopy__(self, memo: dict[int, object]) -> _Gather:
        return _Gather(copy.deepcopy(self.draws, memo))
