"""The most memory that tensors take at once during a step, on a CPU or a GPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

REFUSED = ("can't allocate memory", "not enough memory", "Storage size calculation over", "Overflow when unpacking")
"""What torch says of tensors that do not fit a CPU's memory, or no memory at all."""


def out_of_memory(error: Exception) -> bool:
    """Whether an error says that there is no memory: on a CPU torch has no class for that, only words."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(words in str(error) for words in REFUSED)


def held_bytes(tensors: Iterable[Tensor]) -> int:
    """Of all of them; memory that several share is counted once."""
    storages = {(storage := tensor.untyped_storage()).data_ptr(): storage.nbytes() for tensor in tensors}
    return sum(storages.values())


def peak_bytes(held: Iterable[Tensor], step: Callable[[], object], device: torch.device) -> int:
    """Of what is held before a step (parameters, state, batch) and everything the step allocates, at their largest.

    Gradients are dropped first: a step makes its own. On a GPU by the allocator's own count; on a CPU by adding up what
    the profiler saw allocated and freed.
    """
    held = list(held)
    for tensor in held:
        if tensor.is_leaf:
            tensor.grad = None
    return held_bytes(held) + (_on_cuda(step) if device.type == "cuda" else _on_cpu(step))


def _on_cuda(step: Callable[[], object]) -> int:
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _on_cpu(step: Callable[[], object]) -> int:
    with _silent(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    results = profiled.profiler.kineto_results
    changes = [event for event in results.events() if event.name() == "[memory]"]
    taken = most = 0
    for change in sorted(changes, key=lambda event: event.start_ns()):
        taken += change.nbytes()
        most = max(most, taken)
    return most


@contextmanager
def _silent() -> Iterator[None]:
    """Without what the profiler's native code says about itself, past Python, on the standard error stream."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
