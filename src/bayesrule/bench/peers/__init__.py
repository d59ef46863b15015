"""Other libraries, one small file each; those that are not installed say so."""

from bayesrule.bench.peers.bayesian_torch import BAYESIAN_TORCH
from bayesrule.bench.peers.blitz import BLITZ
from bayesrule.bench.peers.ivon_opt import IVON_OPT
from bayesrule.bench.peers.laplace_torch import LAPLACE_TORCH
from bayesrule.bench.peers.peer import Peer, import_parts_of
from bayesrule.bench.peers.posteriors_vi import POSTERIORS
from bayesrule.bench.peers.pyro_svi import PYRO
from bayesrule.bench.peers.torch_uncertainty import TORCH_UNCERTAINTY

PEERS: dict[str, Peer] = {
    peer.distribution: peer
    for peer in (BAYESIAN_TORCH, BLITZ, IVON_OPT, LAPLACE_TORCH, POSTERIORS, PYRO, TORCH_UNCERTAINTY)
}
"""By the name of their distribution; a new one is one file and one entry here."""

__all__ = ["PEERS", "Peer", "import_parts_of"]
