"""MNIST and Fashion-MNIST from their IDX files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from bayesrule.data.contents import AGAIN, BadData, read_content
from bayesrule.data.files import DataFile, locate
from bayesrule.data.labelled import LabelledSet


class IDXSums(NamedTuple):
    """SHA-256 of an IDX file: as it is downloaded, and unzipped (different programs zip differently)."""

    gzipped: str
    unzipped: str


MNIST_SUMS = {
    "train-images-idx3-ubyte": IDXSums(
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    "train-labels-idx1-ubyte": IDXSums(
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    "t10k-images-idx3-ubyte": IDXSums(
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    "t10k-labels-idx1-ubyte": IDXSums(
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
}
FASHION_MNIST_SUMS = {
    "train-images-idx3-ubyte": IDXSums(
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    ),
    "train-labels-idx1-ubyte": IDXSums(
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    ),
    "t10k-images-idx3-ubyte": IDXSums(
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    ),
    "t10k-labels-idx1-ubyte": IDXSums(
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
}
_MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FASHION_MNIST_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"


def mnist(data: str | os.PathLike[str] | None = None, *, verify: bool = False) -> LabelledSet:
    """MNIST, 60,000 training and 10,000 test images of digits as (N, 1, 28, 28) bytes.

    Args:
        data: The folder to look in first, for ``MNIST/raw/*``, plain or ``.gz``.
        verify: Whether to compare the files' checksums.
    """
    return _load("mnist", "MNIST/raw", MNIST_SUMS, _MNIST_URL, data, verify)


def fashion_mnist(data: str | os.PathLike[str] | None = None, *, verify: bool = False) -> LabelledSet:
    """Fashion-MNIST, ten kinds of clothing in the form of MNIST, under ``FashionMNIST/raw``."""
    return _load("fashion-mnist", "FashionMNIST/raw", FASHION_MNIST_SUMS, _FASHION_MNIST_URL, data, verify)


def _load(
    name: str,
    folder: str,
    sums: dict[str, IDXSums],
    url: str,
    data: str | os.PathLike[str] | None,
    verify: bool,
) -> LabelledSet:
    def tensor(file: str) -> UInt8[Tensor, " ..."]:
        path = locate(DataFile(f"{folder}/{file}", sums[file].gzipped, f"{url}{file}.gz"), data)
        return read_idx(path, sums[file].unzipped if verify else "")

    train_x, train_y, test_x, test_y = map(tensor, sums)
    for images, labels in ((train_x, train_y), (test_x, test_y)):
        if images.shape[1:] != (28, 28) or labels.shape != images.shape[:1]:
            raise BadData(
                f"The files of {folder} do not belong together: images are 28 × 28, each with a label",
                got=f"images {tuple(images.shape)}, labels {tuple(labels.shape)}",
                remedy=AGAIN,
            )
    return LabelledSet(train_x.unsqueeze(1), train_y.long(), test_x.unsqueeze(1), test_y.long(), 10, name)


def read_idx(path: Path, sha256: str = "") -> UInt8[Tensor, " ..."]:
    """An IDX file of bytes, plain or gzipped: ``0 0 8 d``, then d sizes of four bytes, then the numbers."""
    content = read_content(path, sha256)
    start = 4 + 4 * content[3] if len(content) >= 4 else 4
    if len(content) < start or content[:3] != b"\x00\x00\x08":
        raise BadData(f"{path} is not an IDX file of bytes", got=f"it begins with {content[:4]!r}", remedy=AGAIN)
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", content[3], 4))
    values = np.frombuffer(content, np.uint8, offset=start)
    if values.size != np.prod(shape, dtype=object):
        raise BadData(f"{path} is cut short or too long", got=f"{values.size} bytes for shape {shape}", remedy=AGAIN)
    return torch.from_numpy(values.reshape(shape).copy())
