"""Low-rank standard deviations after training, and the spectra that say what rank is enough."""

from bayesrule.compress.compress import compress
from bayesrule.compress.compression import CompressedWeight, Compression
from bayesrule.compress.spectrum import Spectrum, explained_variance, rank_that_explains, spectra

__all__ = [
    "CompressedWeight",
    "Compression",
    "Spectrum",
    "compress",
    "explained_variance",
    "rank_that_explains",
    "spectra",
]
