"""The most memory that tensors take at once during a step, on a CPU or a GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile


def peak_bytes(layer: nn.Module, step: Callable[[], None], x: Tensor) -> int:
    """Of the layer's parameters, its input, and everything a step allocates, at their largest.

    On a GPU by the allocator's own count; on a CPU by adding up what the profiler saw allocated and freed.
    """
    for parameter in (*layer.parameters(), x):
        parameter.grad = None
    held = sum(tensor.numel() * tensor.element_size() for tensor in (*layer.parameters(), x))
    return held + (_on_cuda(step) if x.is_cuda else _on_cpu(step))


def _on_cuda(step: Callable[[], None]) -> int:
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _on_cpu(step: Callable[[], None]) -> int:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    results = profiled.profiler.kineto_results  # type: ignore[union-attr]
    changes = [event for event in results.events() if event.name() == "[memory]"]
    taken = most = 0
    for change in sorted(changes, key=lambda event: event.start_ns()):
        taken += change.nbytes()
        most = max(most, taken)
    return most
