"""C code for one thread of a CPU, compiled where it is first needed, behind the plain operations it stands for."""

from bayesrule.kernels.native.library import function, is_there, serves

__all__ = ["function", "is_there", "serves"]
