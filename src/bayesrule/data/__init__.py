"""Data sets by name and tables from files, as arrays to learn from.

What needs pandas is imported when it is first asked for: a program without tables starts faster, and runs without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from bayesrule.data.config import BadConfig
from bayesrule.data.files import DataFile, DataNotFound, locate
from bayesrule.data.mnist import fashion_mnist, mnist
from bayesrule.data.splits import Split, split
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
    "BadConfig",
    "BadTable",
    "BuiltinSet",
    "ClassTarget",
    "DataFile",
    "DataNotFound",
    "Encoded",
    "Encoder",
    "EncodingReport",
    "NumberTarget",
    "Split",
    "UCISet",
    "builtin",
    "fashion_mnist",
    "fit_target",
    "iterate_table",
    "locate",
    "mnist",
    "read_table",
    "recognise_target",
    "separate_target",
    "split",
    "target_from_config",
    "uci",
    "uci_names",
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
