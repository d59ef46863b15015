"""Messages of all processes, averaged in one all-reduce a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.optim import Exchange, Message, Messages, PosteriorOptimizer
from bayesrule.optim.messages import Residuals


class AllReduce(Exchange):
    """Means over examples become means over the examples of all; states, which are no means, are never exchanged.

    Which parameters got a gradient may differ between processes: it is sent along, and where any has one, all step.

    Args:
        optimizer: Whose messages.
        share: This process's examples over the average of all, for the present batch.
    """

    def __init__(self, optimizer: PosteriorOptimizer, share: Callable[[], float]) -> None:
        self.optimizer, self.share = optimizer, share

    def messages(self, messages: Messages) -> Messages:
        """Weighted by the number of examples; residuals are added up."""
        optimizer, factor = self.optimizer, self.share() / dist.get_world_size()
        own = {name: message.gradient for name, message in messages.groups.items()} | messages.plain
        gradients = {name: self._or_zero(own.get(name), name) for name in (*optimizer.groups, *optimizer.plain_states)}
        curvatures = {
            (name, key): tensor
            for name, message in messages.groups.items()
            for key, tensor in sorted((message.curvature or {}).items())
        }
        self._check_curvatures(messages)
        one = next(iter(gradients.values()))
        present = one.new_tensor([float(parameter.grad is not None) for parameter in optimizer.trained.values()])
        residuals = messages.residuals
        sums = one.new_zeros(2) if residuals is None else one.new_tensor([residuals.squares, residuals.examples])
        means = [tensor * factor for tensor in (*gradients.values(), *curvatures.values())]
        *reduced, sums, present = all_reduced([*means, sums, present])
        return self._assembled(
            dict(zip(gradients, reduced, strict=False)),
            dict(zip(curvatures, reduced[len(gradients) :], strict=True)),
            {name for name, count in zip(optimizer.trained, present.tolist(), strict=True) if count},
            None if residuals is None else Residuals(sums[0], round(float(sums[1])), residuals.entries),
        )

    def any(self, flag: bool) -> bool:
        """Whether it holds in any process."""
        device = next(iter(self.optimizer.trained.values())).device
        return bool(all_reduced([torch.tensor(float(flag), device=device)])[0])

    def _or_zero(self, gradient: Tensor | None, name: str) -> Tensor:
        if gradient is not None:
            return gradient
        groups = self.optimizer.groups
        return torch.zeros_like(self.optimizer.mean(groups[name]) if name in groups else self.optimizer.mean_of(name))

    def _check_curvatures(self, messages: Messages) -> None:
        """One process cannot know the shape of what another gathered."""
        gathered = {name for name, message in messages.groups.items() if message.curvature is not None}
        missing = set(self.optimizer.groups) - gathered
        if gathered and missing:
            raise Unsupported(
                "Curvature of some layers was gathered in one process and not in another, or in none",
                got=sorted(missing), remedy="Use every layer for every batch; name those that are not in plain=(…).",
            )  # fmt: skip

    def _assembled(
        self,
        gradients: dict[str, Tensor],
        curvatures: dict[tuple[str, str], Tensor],
        named: set[str],
        residuals: Residuals | None,
    ) -> Messages:
        """Messages about what got a gradient in any process, where all parameters of it have one now."""
        for name in named:
            parameter = self.optimizer.trained[name]
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        found: dict[str, dict[str, Tensor]] = {}
        for (name, key), tensor in curvatures.items():
            found.setdefault(name, {})[key] = tensor
        groups = {
            name: Message(gradients[name], found.get(name))
            for name, group in self.optimizer.groups.items()
            if any(part.name in named for part in group.parts)
        }
        plain = {name: gradients[name] for name in self.optimizer.plain_states if name in named}
        return Messages(groups, plain, residuals)


def all_reduced(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Sums over processes: one collective for each device and precision."""
    kinds: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for index, tensor in enumerate(tensors):
        kinds.setdefault((tensor.device, tensor.dtype), []).append(index)
    found: dict[int, Tensor] = {}
    for indices in kinds.values():
        flat = torch.cat([tensors[index].reshape(-1) for index in indices])
        dist.all_reduce(flat)
        pieces = flat.split([tensors[index].numel() for index in indices])
        shaped = [piece.view(tensors[index].shape) for index, piece in zip(indices, pieces, strict=True)]
        found |= dict(zip(indices, shaped, strict=True))
    return [found[index] for index in range(len(tensors))]


def need_alike(tensors: Iterable[Tensor], what: str) -> None:
    """Refuse processes that do not start from the same numbers."""
    sums = [torch.stack([t.double().sum(), t.double().square().sum()]) for t in (each.detach() for each in tensors)]
    own = torch.stack([each.to(sums[0].device) for each in sums])
    least, most = own.clone(), own.clone()
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    if not torch.equal(least, most):
        raise InvalidArgument(
            f"The processes do not start from the same {what}", got=f"{int((least != most).any(1).sum())} that differ",
            remedy="Build the network under the same torch.manual_seed in all of them, or load the same file.",
        )  # fmt: skip
