"""Image sets are read from their published forms, bit for bit, or refused with a reason."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from bayesrule.data import (
    BadData,
    DataNotFound,
    LabelledSet,
    binarized_mnist,
    cifar10,
    cifar100,
    fashion_mnist,
    mnist,
)
from bayesrule.data.mnist import read_idx
from data_files import (
    idx,
    look_only_in,
    random_images,
    write_cifar10,
    write_cifar100,
    write_idx_set,
)

IDX_SETS = {"MNIST/raw": mnist, "FashionMNIST/raw": fashion_mnist}


def equal(tensor: torch.Tensor, array: np.ndarray | list[int]) -> bool:
    return torch.equal(tensor, torch.as_tensor(np.array(array)))


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("folder", IDX_SETS)
def test_idx_sets_are_read_plain_or_zipped(tmp_path: Path, folder: str, zipped: bool) -> None:
    arrays = write_idx_set(tmp_path / folder, zipped=zipped)
    stored = IDX_SETS[folder](tmp_path)
    images, labels, test_images, test_labels = arrays.values()
    assert isinstance(stored, LabelledSet)
    assert (stored.classes, stored.synthetic) == (10, False)
    assert stored.train_x.dtype == torch.uint8
    assert equal(stored.train_x, images[:, None])
    assert equal(stored.train_y, labels.astype(np.int64))
    assert equal(stored.test_x, test_images[:, None])
    assert equal(stored.test_y, test_labels.astype(np.int64))


IDX_FAULTS = {
    "empty": b"",
    "a beginning": b"\x00\x00\x08",
    "half a header": idx(np.zeros((2, 3), np.uint8))[:9],
    "not bytes": struct.pack(">HBBI", 0, 0x0D, 1, 1) + bytes(4),
    "text": b"<html>not found</html>",
    "cut short": idx(np.zeros((4, 28, 28), np.uint8))[:-1],
    "too long": idx(np.zeros((4, 28, 28), np.uint8)) + b"\x00",
    "sizes beyond memory": struct.pack(">HBBIII", 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1) + bytes(1),
    "zipped, cut short": gzip.compress(idx(random_images(4, 28, 28)))[:-30],
    "zipped, damaged": gzip.compress(idx(random_images(4, 28, 28)))[:200] + b"junk" * 40,
}


@pytest.mark.parametrize("fault", IDX_FAULTS)
def test_a_damaged_idx_file_is_refused(tmp_path: Path, fault: str) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(IDX_FAULTS[fault])
    with pytest.raises(BadData, match=r"train-images-idx3-ubyte (is not|is cut|cannot be).* Got: .*get it again"):
        read_idx(path)


def test_labels_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    write_idx_set(tmp_path / "MNIST/raw", zipped=False)
    labels = tmp_path / "MNIST/raw" / "train-labels-idx1-ubyte"
    labels.write_bytes(idx(np.full(7, 10, np.uint8)))
    with pytest.raises(ValueError, match=r"classes of mnist must be 0 … 9. Got: 10 … 10 in the train part"):
        mnist(tmp_path)
    for array in (np.zeros(6, np.uint8), np.zeros((7, 1), np.uint8), random_images(7, 28, 28)):
        labels.write_bytes(idx(array))
        with pytest.raises(BadData, match=r"files of MNIST/raw do not belong together.*images \(7, 28, 28\), labels"):
            mnist(tmp_path)


@pytest.mark.parametrize("load", [mnist, fashion_mnist, cifar10, cifar100])
def test_checksums_are_compared_when_asked_for(tmp_path: Path, load: type) -> None:
    for folder in IDX_SETS:
        write_idx_set(tmp_path / folder)
    write_cifar10(tmp_path / "cifar-10-batches-bin")
    write_cifar100(tmp_path / "cifar-100-binary")
    load(tmp_path)
    with pytest.raises(BadData, match=r"does not have the checksum of the set. Got: SHA-256 [0-9a-f]{64}\. Remove"):
        load(tmp_path, verify=True)


@pytest.mark.parametrize(
    ("load", "file"),
    [
        (mnist, "MNIST/raw/train-images-idx3-ubyte"),
        (fashion_mnist, "FashionMNIST/raw/train-images-idx3-ubyte"),
        (cifar10, "cifar-10-binary.tar.gz .* cifar-10-batches-bin/data_batch_1.bin"),
        (cifar100, "cifar-100-binary.tar.gz .* cifar-100-binary/train.bin"),
        (binarized_mnist, "binarized_mnist/binarized_mnist.npz .* binarized_mnist/binarized_mnist_train.amat"),
    ],
)
def test_a_missing_set_names_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: type, file: str) -> None:
    look_only_in(tmp_path, monkeypatch)
    with pytest.raises(DataNotFound, match=file) as caught:
        load(tmp_path / "here")
    assert str(tmp_path / "here") in str(caught.value)
    assert "--data or $BAYESRULE_DATA" in str(caught.value)


def as_archive(folder: Path, archive: Path) -> None:
    """Pack a folder as published, with a file more, and remove it."""
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(folder, arcname=folder.name)
        note = tarfile.TarInfo(f"{folder.name}/readme.html")
        packed.addfile(note, io.BytesIO())
    for path in folder.iterdir():
        path.unlink()


@pytest.mark.parametrize("packed", [False, True])
def test_cifar10_is_read_from_files_or_archive(tmp_path: Path, packed: bool) -> None:
    images, labels = write_cifar10(tmp_path / "cifar-10-batches-bin")
    if packed:
        as_archive(tmp_path / "cifar-10-batches-bin", tmp_path / "cifar-10-binary.tar.gz")
    stored = cifar10(tmp_path)
    assert (stored.name, stored.classes) == ("cifar-10", 10)
    assert equal(stored.train_x, images[:10])
    assert equal(stored.train_y, labels[:10])
    assert equal(stored.test_x, images[10:])
    assert equal(stored.test_y, labels[10:])
    stored.train_x[0] = 0  # the tensor owns its memory


@pytest.mark.parametrize("packed", [False, True])
def test_cifar100_has_the_fine_classes(tmp_path: Path, packed: bool) -> None:
    images, labels = write_cifar100(tmp_path / "cifar-100-binary")
    if packed:
        as_archive(tmp_path / "cifar-100-binary", tmp_path / "cifar-100-binary.tar.gz")
    stored = cifar100(tmp_path)
    assert (stored.name, stored.classes) == ("cifar-100", 100)
    assert equal(torch.cat([stored.train_x, stored.test_x]), images)
    assert equal(torch.cat([stored.train_y, stored.test_y]), labels)


def test_the_first_folder_comes_first_whatever_its_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, _ = write_cifar100(tmp_path / "first" / "cifar-100-binary")
    as_archive(tmp_path / "first" / "cifar-100-binary", tmp_path / "first" / "cifar-100-binary.tar.gz")
    write_cifar100(tmp_path / "second" / "cifar-100-binary", train=5)
    monkeypatch.setenv("BAYESRULE_DATA", str(tmp_path / "second"))
    assert len(cifar100().train_x) == 5
    assert equal(cifar100(tmp_path / "first").train_x, images[:4])


def test_damaged_cifar_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look_only_in(tmp_path, monkeypatch)
    folder = tmp_path / "cifar-100-binary"
    write_cifar100(folder)
    whole = (folder / "train.bin").read_bytes()
    for content in (b"", whole[:-1], whole + b"\x00"):
        (folder / "train.bin").write_bytes(content)
        with pytest.raises(
            BadData, match=rf"train.bin is not a whole number of records of 3074 .* {len(content)} bytes"
        ):
            cifar100(tmp_path)
    (folder / "train.bin").unlink()
    archive = tmp_path / "cifar-100-binary.tar.gz"
    as_archive(folder, archive)
    with pytest.raises(BadData, match=r"lacks files of cifar-100-binary. Got: no train\.bin"):
        cifar100(tmp_path)
    content = archive.read_bytes()
    for damaged in (b"", b"<html>", content[: len(content) // 2]):
        archive.write_bytes(damaged)
        with pytest.raises(BadData, match=r"tar\.gz (cannot be unpacked|lacks files)"):
            cifar100(tmp_path)


def test_the_binarized_set_is_read_from_either_form(tmp_path: Path) -> None:
    folder = tmp_path / "binarized_mnist"
    folder.mkdir()
    parts = {name: random_images(n, 784, seed=n) % 2 for name, n in {"train": 4, "valid": 3, "test": 2}.items()}
    for name, pixels in parts.items():
        np.savetxt(folder / f"binarized_mnist_{name}.amat", pixels, fmt="%d")
    from_text = binarized_mnist(tmp_path)
    for path in folder.iterdir():
        path.unlink()
    np.savez_compressed(folder / "binarized_mnist.npz", **parts)
    for stored in (from_text, binarized_mnist(tmp_path)):
        assert [equal(getattr(stored, name), pixels) for name, pixels in parts.items()] == [True] * 3
    with pytest.raises(BadData, match="does not have the checksum"):
        binarized_mnist(tmp_path, verify=True)


@pytest.mark.parametrize("fault", ["missing", "two", "narrow", "numbers", "junk"])
def test_a_damaged_binarized_set_is_refused(tmp_path: Path, fault: str) -> None:
    (tmp_path / "binarized_mnist").mkdir()
    parts = {name: random_images(2, 784) % 2 for name in ("train", "valid", "test")}
    faults = {"two": parts["test"] + 1, "narrow": parts["test"][:, 1:], "numbers": parts["test"] * 1.0}
    parts |= {"test": faults[fault]} if fault in faults else {}
    np.savez(
        tmp_path / "binarized_mnist" / "binarized_mnist.npz",
        **dict(list(parts.items())[: 2 if fault == "missing" else 3]),
    )
    if fault == "junk":
        (tmp_path / "binarized_mnist" / "binarized_mnist.npz").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(
        BadData, match=r"must be rows of 784 bytes 0 or 1|not an archive of the arrays train, valid, test"
    ):
        binarized_mnist(tmp_path)
