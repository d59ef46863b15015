"""C code for one thread of a CPU, compiled where it is first needed, behind the plain operations it stands for."""

from bayesrule.kernels.native.library import is_there, serves
from bayesrule.kernels.native.normals import Noise, normals_of, standard_normals

__all__ = ["Noise", "is_there", "normals_of", "serves", "standard_normals"]
