"""Training by several processes: which rows and noises are whose, and what is exchanged."""

from bayesrule.distributed.footprint import Footprint, footprint
from bayesrule.distributed.noise import ByExample, ByRank, NoiseKey
from bayesrule.distributed.parallel import Parallel, data_parallel
from bayesrule.distributed.rows import Rows
from bayesrule.distributed.sharded import fully_sharded, whole_state_dict
from bayesrule.distributed.world import World, alone, join, restarted

__all__ = [
    "ByExample",
    "ByRank",
    "Footprint",
    "NoiseKey",
    "Parallel",
    "Rows",
    "World",
    "alone",
    "data_parallel",
    "footprint",
    "fully_sharded",
    "join",
    "restarted",
    "whole_state_dict",
]
