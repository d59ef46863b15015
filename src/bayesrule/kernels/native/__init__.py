"""C code for one thread of a CPU, compiled where it is first needed, behind the plain operations it stands for."""

from bayesrule.kernels.native.library import is_there, serves
from bayesrule.kernels.native.normals import standard_normals

__all__ = ["is_there", "serves", "standard_normals"]
