"""Layers seen as contractions: Linear, Conv, ConvTranspose, Embedding, and any other through Generic."""

from bayesrule.contractions.augmented import Augmented
from bayesrule.contractions.contraction import Contraction
from bayesrule.contractions.convolution import Conv, ConvTranspose
from bayesrule.contractions.embedding import Embedding
from bayesrule.contractions.generic import Generic
from bayesrule.contractions.linear import Linear

__all__ = ["Augmented", "Contraction", "Conv", "ConvTranspose", "Embedding", "Generic", "Linear"]
