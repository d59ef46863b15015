"""What counted work costs on a kind of device, in floating-point operations of its matrix products."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayesrule.cuda_graphs import to_be_recorded
from bayesrule.kernels import untransformed
from bayesrule.kernels.native import is_there
from bayesrule.posteriors import Work


@dataclass(frozen=True)
class Prices:
    """Costs in FLOP-equivalents: the time of a thing times the speed of float32 matrix products.

    Attributes:
        normal: Of a standard normal.
        entry: Of an entry in an elementwise pass over a tensor that the nearest caches hold.
        call: Of calling an operation, whatever its size.
        growth: A pass over more than `CACHED` entries costs ``(entries / CACHED)^growth`` times as much for each.
        node: Of local noise in a layer, whose output and KL then have nodes of their own.
        together: Whether a model's small weights are drawn by one call, in which only their normals count.
    """

    normal: float
    entry: float
    call: float
    growth: float = 0.0
    node: float = 0.0
    together: bool = False

    def of(self, work: Work) -> float:
        """What this work costs."""
        passes = () if work.together and self.together else work.passes
        passes_cost = sum(count * self._of_pass(entries) for count, entries in passes)
        return self.normal * work.normals + 2 * work.products + passes_cost

    def _of_pass(self, entries: int) -> float:
        return self.call + self.entry * entries * max(1.0, entries / CACHED) ** self.growth


CACHED = 1 << 16
CPU = Prices(normal=25, entry=90, call=4e5, growth=0.25, node=8e6, together=True)
"""One thread at 88 GFLOP/s: 0.25 ns a normal; 1 ns, 2 ns and 4 ns an entry of 2¹⁶, 2²⁰ and 2²⁴; 5 µs a call,
90 µs a layer's nodes.

Measured by `benchmarks/estimator_choice.py`, which sets both estimators beside each other
and beside the choice made here.
"""
PLAIN_CPU = replace(CPU, normal=300, together=False)
"""Without the compiled library: torch's own normals take 3.5 ns."""
GPU = Prices(normal=200, entry=100, call=1.5e8)
"""Derived from an H200's bytes, at 50 TFLOP/s without reduced precision: a pass reads and writes 8 bytes an entry at
4.8 TB/s, 1.7 ps or 85 FLOPs, and a little more; a counter-based normal takes twice that, a call 3 µs."""

EAGER_GPU = replace(GPU, call=1e9)
"""Where every call waits for Python: 20 µs. A layer of local noise takes one or two milliseconds then, and all drawn
weights of a model together one."""


def prices_for(x: Tensor) -> Prices:
    """Those of an input's device, and of how a step runs there; compiled code makes normals in single precision."""
    if x.device.type != "cpu":
        return GPU if torch.compiler.is_compiling() or to_be_recorded() else EAGER_GPU
    compiled = torch.compiler.is_compiling() or (untransformed(x) and is_there())
    return CPU if compiled and x.dtype == torch.float32 else PLAIN_CPU
