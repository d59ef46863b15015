"""What a step costs: the library's methods and other libraries', on the same networks, measured in turns."""

from bayesrule.bench.methods import METHODS, Method
from bayesrule.bench.models import MODELS, Model
from bayesrule.bench.peers import PEERS, Peer
from bayesrule.bench.report import write_report
from bayesrule.bench.request import PRESETS, Request
from bayesrule.bench.running import bench

__all__ = ["METHODS", "MODELS", "PEERS", "PRESETS", "Method", "Model", "Peer", "Request", "bench", "write_report"]
