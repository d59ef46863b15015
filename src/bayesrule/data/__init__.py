"""Data sets by name, from files the user has or can have."""

from bayesrule.data.files import DataFile, DataNotFound, locate
from bayesrule.data.mnist import fashion_mnist, mnist

__all__ = ["DataFile", "DataNotFound", "fashion_mnist", "locate", "mnist"]
