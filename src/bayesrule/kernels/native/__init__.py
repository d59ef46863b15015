"""C code for one thread of a CPU, compiled where it is first needed, behind the plain operations it stands for."""

from bayesrule.kernels.native.library import library, serves

__all__ = ["library", "serves"]
