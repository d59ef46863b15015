"""CIFAR-10 and CIFAR-100 from their official binary versions, unpacked or as archives; nothing is unpickled."""

from __future__ import annotations

import os
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from bayesrule.data.contents import AGAIN, BadData, check_sum, read_content
from bayesrule.data.files import DataFile, locate_one_form
from bayesrule.data.labelled import LabelledSet

SHAPE = (3, 32, 32)


@dataclass(frozen=True)
class CIFARFiles:
    """Where a set's records lie.

    Attributes:
        folder: Of the unpacked files.
        train: Files of the training part and their SHA-256, in order.
        test: Of the test part.
        archive: Of the folder, as it is downloaded.
        label_bytes: How many precede the pixels of a record; the last of them is the class.
    """

    folder: str
    train: Mapping[str, str]
    test: Mapping[str, str]
    archive: DataFile
    label_bytes: int


CIFAR10_FILES = CIFARFiles(
    folder="cifar-10-batches-bin",
    train={
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    },
    test={"test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"},
    archive=DataFile(
        "cifar-10-binary.tar.gz",
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    ),
    label_bytes=1,
)
CIFAR100_FILES = CIFARFiles(
    folder="cifar-100-binary",
    train={"train.bin": "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29"},
    test={"test.bin": "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a"},
    archive=DataFile(
        "cifar-100-binary.tar.gz",
        "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    ),
    label_bytes=2,
)


def cifar10(data: str | os.PathLike[str] | None = None, *, verify: bool = False) -> LabelledSet:
    """CIFAR-10, 50,000 training and 10,000 test photographs as (N, 3, 32, 32) bytes.

    Args:
        data: The folder to look in first, for ``cifar-10-batches-bin/*.bin`` or ``cifar-10-binary.tar.gz``.
        verify: Whether to compare the files' checksums.
    """
    return _load("cifar-10", 10, CIFAR10_FILES, data, verify)


def cifar100(data: str | os.PathLike[str] | None = None, *, verify: bool = False) -> LabelledSet:
    """CIFAR-100 with its 100 fine classes, from ``cifar-100-binary/*.bin`` or ``cifar-100-binary.tar.gz``."""
    return _load("cifar-100", 100, CIFAR100_FILES, data, verify)


def _load(name: str, classes: int, files: CIFARFiles, data: str | os.PathLike[str] | None, verify: bool) -> LabelledSet:
    contents = _contents(files, data)
    if verify:
        for file, sha256 in {**files.train, **files.test}.items():
            check_sum(contents[file], sha256, f"{files.folder}/{file}")
    train = [_records(contents.pop(file), files, file) for file in files.train]
    test = [_records(contents.pop(file), files, file) for file in files.test]
    train_x, train_y = (torch.cat(part) for part in zip(*train, strict=True))
    test_x, test_y = (torch.cat(part) for part in zip(*test, strict=True))
    return LabelledSet(train_x, train_y, test_x, test_y, classes, name)


def _contents(files: CIFARFiles, data: str | os.PathLike[str] | None) -> dict[str, bytes]:
    names = [*files.train, *files.test]
    unpacked = [DataFile(f"{files.folder}/{name}") for name in names]
    paths = locate_one_form([unpacked, [files.archive]], data)
    if len(paths) == 1:
        return _unpacked(paths[0], files.folder, names)
    return {name: read_content(path) for name, path in zip(names, paths, strict=True)}


def _unpacked(path: os.PathLike[str], folder: str, names: list[str]) -> dict[str, bytes]:
    contents = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:  # in the archive's order: going back would mean unzipping it again
                parent, _, name = member.name.removeprefix("./").rpartition("/")
                if parent == folder and name in names and (file := archive.extractfile(member)) is not None:
                    contents[name] = file.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise BadData(f"{path} cannot be unpacked: it is cut short or damaged", got=error, remedy=AGAIN) from error
    if missing := sorted(set(names) - set(contents)):
        raise BadData(f"{path} lacks files of {folder}", got=f"no {', '.join(missing)}", remedy=AGAIN)
    return contents


def _records(content: bytes, files: CIFARFiles, name: str) -> tuple[UInt8[Tensor, "n 3 32 32"], Int64[Tensor, " n"]]:
    size = files.label_bytes + int(np.prod(SHAPE))
    if not content or len(content) % size:
        raise BadData(
            f"{files.folder}/{name} is not a whole number of records of {size} bytes",
            got=f"{len(content)} bytes",
            remedy=AGAIN,
        )
    table = np.frombuffer(content, np.uint8).reshape(-1, size)
    pixels = table[:, files.label_bytes :].copy().reshape(-1, *SHAPE)
    return torch.from_numpy(pixels), torch.from_numpy(table[:, files.label_bytes - 1].astype(np.int64))
