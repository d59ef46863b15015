"""Data sets by name and tables from files, as arrays to learn from.

What needs pandas is imported when it is first asked for: a program without tables starts faster, and runs without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from bayesrule.data.binarized_mnist import binarized_mnist
from bayesrule.data.cifar import cifar10, cifar100
from bayesrule.data.config import BadConfig
from bayesrule.data.contents import BadData
from bayesrule.data.files import DataFile, DataNotFound, locate
from bayesrule.data.imdb import imdb, imdb_vocabulary
from bayesrule.data.labelled import LabelledSet, UnlabelledSet
from bayesrule.data.labelled_sets import LABELLED_SETS, labelled_set
from bayesrule.data.mnist import fashion_mnist, mnist
from bayesrule.data.scaling import ChannelStandardiser, symmetric_interval, unit_interval
from bayesrule.data.splits import Split, split
from bayesrule.data.synthetic import synthetic_binarized_mnist, synthetic_like
from bayesrule.data.uci import UCISet, uci, uci_names
from bayesrule.errors import Unsupported

if TYPE_CHECKING:
    from bayesrule.data.builtin_sets import BUILTIN, BuiltinSet, builtin
    from bayesrule.data.columns import BadTable
    from bayesrule.data.encoding import Encoded, Encoder
    from bayesrule.data.encoding_report import EncodingReport
    from bayesrule.data.tables import iterate_table, read_table
    from bayesrule.data.targets import (
        ClassTarget,
        NumberTarget,
        fit_target,
        recognise_target,
        separate_target,
        target_from_config,
    )

__all__ = [
    "BUILTIN",
    "LABELLED_SETS",
    "BadConfig",
    "BadData",
    "BadTable",
    "BuiltinSet",
    "ChannelStandardiser",
    "ClassTarget",
    "DataFile",
    "DataNotFound",
    "Encoded",
    "Encoder",
    "EncodingReport",
    "LabelledSet",
    "NumberTarget",
    "Split",
    "UCISet",
    "UnlabelledSet",
    "binarized_mnist",
    "builtin",
    "cifar10",
    "cifar100",
    "fashion_mnist",
    "fit_target",
    "imdb",
    "imdb_vocabulary",
    "iterate_table",
    "labelled_set",
    "locate",
    "mnist",
    "read_table",
    "recognise_target",
    "separate_target",
    "split",
    "symmetric_interval",
    "synthetic_binarized_mnist",
    "synthetic_like",
    "target_from_config",
    "uci",
    "uci_names",
    "unit_interval",
]

_WITH_PANDAS = {
    "builtin_sets": ("BUILTIN", "BuiltinSet", "builtin"),
    "columns": ("BadTable",),
    "encoding": ("Encoded", "Encoder"),
    "encoding_report": ("EncodingReport",),
    "tables": ("iterate_table", "read_table"),
    "targets": (
        "ClassTarget", "NumberTarget", "fit_target", "recognise_target", "separate_target", "target_from_config",
    ),
}  # fmt: skip


def __getattr__(name: str) -> object:
    for module, names in _WITH_PANDAS.items():
        if name in names:
            try:
                value = getattr(import_module(f"bayesrule.data.{module}"), name)
            except ModuleNotFoundError as error:
                raise Unsupported(
                    f"{name} needs the package {error.name}", remedy="pip install 'bayesrule[tabular]'"
                ) from error
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
