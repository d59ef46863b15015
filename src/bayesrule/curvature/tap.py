"""One tap on layers' inputs and on the gradients of their pre-activations: by module hooks, or as a pure function."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule.contractions import Linear
from bayesrule.curvature.layers import Layer, example_count, state_dtype
from bayesrule.curvature.moments import Tapped
from bayesrule.errors import InvalidArgument

Uses = list[tuple[str, Tensor, Tensor]]
"""Calls of tapped modules, in order: the module's name, its input and its pre-activation."""


@dataclass(frozen=True)
class Pass:
    """One pass of a network, use by use.

    Attributes:
        uses: Of the tapped modules.
        gradients: With respect to their pre-activations: one list for each cotangent, None where there is none.
        examples: Targets of the batch.
        factor: What the gradients are to be multiplied by.
    """

    uses: Uses
    gradients: Sequence[Sequence[Tensor | None]]
    examples: int
    factor: float = 1.0


class ModuleTap:
    """Hooks in a network, for as long as the context lasts; every pass of the root hands over what its layers saw.

    With ``cotangents``, gradients are pulled back in a hook after the root's forward, before the caller's ``backward``
    frees the graph. Without, they are those of the caller's own ``backward`` (the empirical Fisher), whose loss is a
    mean over examples, and are handed over when the context ends. A pass without gradients is not counted.

    Args:
        model: The root.
        layers: What to tap.
        receive: Called with ``{layer name: Tapped}`` after each pass.
        cotangents: Gradients with respect to the outputs, stacked in front, for given outputs.
        loss_scale: What the caller's loss was multiplied by (gradient scaling); for the empirical Fisher alone.
        hand_over: Called with each pass as it is, in place of ``receive``.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Sequence[Layer],
        receive: Callable[[dict[str, Tapped]], None],
        cotangents: Callable[[Tensor], Tensor] | None,
        loss_scale: float = 1.0,
        hand_over: Callable[[Pass], None] | None = None,
    ) -> None:
        self.model, self.layers, self.receive = model, tuple(layers), receive
        self.hand_over = hand_over or self._assembled
        self.cotangents, self.loss_scale = cotangents, loss_scale
        self._uses: Uses | None = None
        self._own: list[_OwnGradient] = []
        self._passes: list[_EmpiricalPass] = []

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Hooks in; when the body ends without an error, empirical passes are handed over; hooks out."""
        with ExitStack() as stack:
            opening = self.model.register_forward_pre_hook(self._open)
            stack.callback(opening.remove)
            stack.enter_context(watching(self.model, self.layers, self._use))
            closing = self.model.register_forward_hook(self._close)
            stack.callback(closing.remove)
            yield
            for each in self._passes:
                if any(gradient.gradient is not None for gradient in each.own):
                    self.hand_over(each.passed())

    def _open(self, module: nn.Module, args: Any) -> None:
        self._uses, self._own = [], []

    def _use(self, name: str, x: Tensor, output: Tensor) -> Tensor | None:
        if self._uses is None or not output.requires_grad:
            return None
        if self.cotangents is None:
            self._own.append(_OwnGradient(output))  # a hook sees the gradient before whatever is done in place later
            self._uses.append((name, x.detach(), output.detach()))
            return None
        self._uses.append((name, x.detach(), output))
        return output.clone()  # the caller may overwrite its copy in place, as nn.ReLU(inplace=True) does

    def _close(self, module: nn.Module, args: Any, outputs: Any) -> None:
        uses, self._uses = self._uses, None  # a recomputation by activation checkpointing is not a further use
        if not isinstance(outputs, Tensor):
            raise InvalidArgument(
                "Curvature is taken of a network that returns one tensor", got=f"a {type(outputs).__name__}",
                remedy="Wrap the network in a module that returns the output its likelihood is of.",
            )  # fmt: skip
        if not uses or not outputs.requires_grad:
            return
        examples = example_count(outputs)
        if self.cotangents is None:
            self._passes.append(_EmpiricalPass(uses, self._own, examples, examples / self.loss_scale))
            return
        pre = [output for _, _, output in uses]
        columns = self.cotangents(outputs.detach())
        pulled = [torch.autograd.grad(outputs, pre, column, retain_graph=True, allow_unused=True) for column in columns]
        self.hand_over(Pass(uses, pulled, examples))

    def _assembled(self, passed: Pass) -> None:
        self.receive(assemble(self.layers, passed))


class _OwnGradient:
    """The gradient of a tensor that the caller's own backward passes will bring, their sum if several do."""

    def __init__(self, output: Tensor) -> None:
        self.gradient: Tensor | None = None
        output.register_hook(self._keep)

    def _keep(self, gradient: Tensor) -> None:
        found = gradient.detach()
        self.gradient = found if self.gradient is None else self.gradient + found


@dataclass(frozen=True)
class _EmpiricalPass:
    """A pass whose gradients are those of a mean over examples, times a factor that undoes the mean."""

    uses: Uses
    own: list[_OwnGradient]
    examples: int
    factor: float

    def passed(self) -> Pass:
        """With the gradients that have come."""
        return Pass(self.uses, [[each.gradient for each in self.own]], self.examples, self.factor)


@dataclass(frozen=True)
class FunctionalPass:
    """Outputs of a network at given parameters, and the way back to its tapped layers.

    Attributes:
        outputs: Of the network.
        uses: Inputs of the tapped modules.
        pull: From a gradient with respect to the outputs to those of the pre-activations and of the other parameters.
    """

    outputs: Tensor
    layers: tuple[Layer, ...]
    uses: Uses
    pull: Callable[[Tensor], tuple[list[Tensor], dict[str, Tensor]]]

    def tapped(self, cotangents: Tensor | Sequence[Tensor]) -> dict[str, Tapped]:
        """What each layer saw under the cotangents, which are stacked in front."""
        pulled = [self.pull(column)[0] for column in cotangents]
        return assemble(self.layers, Pass(self.uses, pulled, example_count(self.outputs)))


class FunctionalTap:
    """The tap as a pure function of the parameters, for `torch.func`: many networks at once under ``vmap``.

    Weight gradients need no pass of their own: they are ``aᵀg``, by `moments.weight_gradient`.
    """

    def __init__(self, model: nn.Module, layers: Sequence[Layer]) -> None:
        self.model, self.layers = model, tuple(layers)

    def __call__(self, parameters: Mapping[str, Tensor], *args: Any, **kwargs: Any) -> FunctionalPass:
        """Run the network at these parameters."""
        tapped = {part.name for layer in self.layers for part in layer.parts}
        others = {name: tensor for name, tensor in parameters.items() if name not in tapped}
        fixed = {name: tensor for name, tensor in parameters.items() if name in tapped}
        zeros = self._zeros(parameters, args, kwargs)

        names: list[str] = []

        def run(shifts: list[Tensor], free: dict[str, Tensor]) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
            seen: list[tuple[Tensor, Tensor]] = []

            def use(name: str, x: Tensor, output: Tensor) -> Tensor:
                names.append(name)
                seen.append((x, output))
                return output + shifts[len(seen) - 1]

            with watching(self.model, self.layers, use):
                return torch.func.functional_call(self.model, {**fixed, **free}, args, kwargs), seen

        outputs, pull, seen = torch.func.vjp(run, zeros, others, has_aux=True)  # type: ignore[misc]
        uses = [(name, pair[0].detach(), pair[1].detach()) for name, pair in zip(names, seen, strict=True)]
        return FunctionalPass(outputs, self.layers, uses, pull)

    def _zeros(self, parameters: Mapping[str, Tensor], args: Any, kwargs: Any) -> list[Tensor]:
        zeros: list[Tensor] = []
        with torch.no_grad(), watching(self.model, self.layers, lambda _, __, s: zeros.append(torch.zeros_like(s))):
            torch.func.functional_call(self.model, dict(parameters), args, kwargs)
        return zeros


@contextmanager
def watching(
    model: nn.Module, layers: Sequence[Layer], use: Callable[[str, Tensor, Tensor], Tensor | None]
) -> Iterator[None]:
    """Call ``use(name, input, pre-activation)`` whenever a layer's module is called; it may return another output."""

    def hook_of(name: str) -> Callable[..., Any]:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> Tensor | None:
            return use(name, args[0] if args else kwargs["input"], output)

        return hook

    names = dict.fromkeys(name for layer in layers for name in layer.modules)
    handles = [model.get_submodule(name).register_forward_hook(hook_of(name), with_kwargs=True) for name in names]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def assemble(layers: Sequence[Layer], passed: Pass) -> dict[str, Tapped]:
    """Inputs and gradients by layer: the uses of one layer side by side, as positions of the same examples."""
    found, uses, examples = {}, passed.uses, passed.examples
    for layer in layers:
        own = [index for index, (name, _, _) in enumerate(uses) if name in layer.modules]
        if not own:
            continue
        for index in own:
            _warn_of_sequences_first(layer, uses[index][1], examples)
        inputs = [layer.input_rows(uses[index][1], uses[index][2]) for index in own]
        pulled = [[_rows(layer, uses[index][2], column[index]) for index in own] for column in passed.gradients]
        whole = all(len(rows) % examples == 0 for rows in inputs)
        dtype = state_dtype(inputs[0].dtype)
        positioned = [_by_example(rows, examples, whole).to(dtype) for rows in inputs]
        columns = [
            _joined([_by_example(rows, examples, whole).to(dtype) for rows in column], -2 if whole else -3)
            for column in pulled
        ]
        stacked = columns[0].unsqueeze(0) if len(columns) == 1 else torch.stack(columns)
        scaled = stacked if passed.factor == 1 else stacked * passed.factor
        found[layer.name] = Tapped(_joined(positioned, -2 if whole else -3), scaled, examples)
    return found


def _warn_of_sequences_first(layer: Layer, x: Tensor, examples: int) -> None:
    """Rows are divided into examples in the order in which they lie; K-FAC's factors alone do not mind."""
    if isinstance(layer.contraction, Linear) and x.ndim >= 3 and len(x) != examples == x.shape[1]:
        warnings.warn(
            f"The inputs of {layer.name!r} have shape {tuple(x.shape)} in a batch of {examples}: examples seem "
            "to be their second dimension. Squares of gradients are then summed over positions of different examples; "
            "put examples first (batch_first=True).",
            stacklevel=2,
        )


def _joined(tensors: list[Tensor], dim: int) -> Tensor:
    """Side by side; one alone is not copied."""
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors, dim)


def _rows(layer: Layer, output: Tensor, gradient: Tensor | None) -> Tensor:
    return layer.output_rows(torch.zeros_like(output) if gradient is None else gradient)


def _by_example(rows: Tensor, examples: int, whole: bool) -> Tensor:
    """(examples, positions, channels); where rows do not divide into the examples, each stands for itself."""
    return rows.reshape(examples if whole else len(rows), -1, rows.shape[-1])
