"""A script: compiled code keeps the precision of outputs and of the KL, and takes empty batches.

It runs alone, as the tests' shape checks break graphs.
"""

from __future__ import annotations

import torch
from torch import nn

import bayesrule as br

FAMILIES = {"ktied": br.KTied(2), "diagonal": br.Diagonal(), "matrix-normal": br.MatrixNormal()}


def main() -> None:
    """Print what was checked."""
    torch.set_num_threads(1)
    for name, family in FAMILIES.items():
        torch._dynamo.reset()
        bnn = br.bayesianize(nn.Linear(6, 5), family, estimator=br.LocalReparam(), prior=br.GroupARD("row", "gradient"))
        compiled = torch.compile(bnn, backend="eager", fullgraph=True)
        assert compiled(torch.randn(0, 6)).shape == (0, 5)
        with torch.autocast("cpu", torch.bfloat16):
            assert compiled(torch.randn(4, 6)).dtype == torch.bfloat16
        bnn.half()
        kl, want = torch.compile(lambda bnn=bnn: br.kl(bnn), backend="eager", fullgraph=True)(), br.kl(bnn)
        assert kl.dtype == want.dtype == torch.float32
        torch.testing.assert_close(kl, want, rtol=1e-6, atol=0)
        print(name)


if __name__ == "__main__":
    main()
