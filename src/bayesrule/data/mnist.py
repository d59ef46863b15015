"""MNIST and Fashion-MNIST from their IDX files."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from bayesrule.data.files import DataFile, locate
from bayesrule.errors import InvalidArgument

_HASHES = {
    "t10k-images-idx3-ubyte": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    "train-images-idx3-ubyte": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
}
_MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"


def mnist(data: str | os.PathLike[str] | None = None) -> tuple[TensorDataset, TensorDataset]:
    """MNIST, 60,000 training and 10,000 test images as (N, 1, 28, 28) bytes, with class labels."""
    files = {name: DataFile(f"MNIST/raw/{name}", sha, f"{_MIRROR}{name}.gz") for name, sha in _HASHES.items()}
    return _pair(files, data)


def fashion_mnist(data: str | os.PathLike[str] | None = None) -> tuple[TensorDataset, TensorDataset]:
    """Fashion-MNIST, in the same form."""
    return _pair({name: DataFile(f"FashionMNIST/raw/{name}") for name in _HASHES}, data)


def _pair(files: dict[str, DataFile], data: str | os.PathLike[str] | None) -> tuple[TensorDataset, TensorDataset]:
    def split(prefix: str) -> TensorDataset:
        images = read_idx(locate(files[f"{prefix}-images-idx3-ubyte"], data))
        labels = read_idx(locate(files[f"{prefix}-labels-idx1-ubyte"], data))
        return TensorDataset(images.unsqueeze(1), labels.long())

    return split("train"), split("t10k")


def read_idx(path: Path) -> Tensor:
    """An IDX file of bytes, plain or gzipped."""
    content = path.read_bytes()
    content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise InvalidArgument(f"{path} is not an IDX file of bytes", got=content[:4])
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", content[3], 4))
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * content[3])
    if values.size != np.prod(shape):
        raise InvalidArgument(f"{path} is cut short or too long", got=f"{values.size} bytes for shape {shape}")
    return torch.from_numpy(values.reshape(shape).copy())
