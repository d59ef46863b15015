"""Small data files in the forms of the real ones, written byte by byte from their descriptions."""

from __future__ import annotations

import gzip
import os
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

real_data = pytest.mark.skipif(
    not os.environ.get("BAYESRULE_DATA"), reason="needs the real files: $BAYESRULE_DATA names their folder"
)


def random_images(count: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx_set(folder: Path, train: int = 7, test: int = 3, *, zipped: bool = True) -> dict[str, np.ndarray]:
    """The four files of MNIST or Fashion-MNIST, and what they hold."""
    arrays = {
        "train-images-idx3-ubyte": random_images(train, 28, 28, seed=1),
        "train-labels-idx1-ubyte": np.arange(train, dtype=np.uint8) % 10,
        "t10k-images-idx3-ubyte": random_images(test, 28, 28, seed=2),
        "t10k-labels-idx1-ubyte": np.arange(test, dtype=np.uint8)[::-1] % 10,
    }
    folder.mkdir(parents=True)
    for name, array in arrays.items():
        if zipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
        else:
            (folder / name).write_bytes(idx(array))
    return arrays


def cifar_record(labels: tuple[int, ...], red: np.ndarray, green: np.ndarray, blue: np.ndarray) -> bytes:
    return bytes(labels) + red.tobytes() + green.tobytes() + blue.tobytes()


def write_cifar10(folder: Path, each: int = 2) -> tuple[np.ndarray, list[int]]:
    """The six files, and the images and classes in their order, the test ones last."""
    folder.mkdir(parents=True)
    images, labels = random_images(6 * each, 3, 32, 32, seed=3), [(3 * i) % 10 for i in range(6 * each)]
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    for part, name in enumerate(names):
        rows = range(part * each, (part + 1) * each)
        (folder / name).write_bytes(b"".join(cifar_record((labels[i],), *images[i]) for i in rows))
    return images, labels


def write_cifar100(folder: Path, train: int = 4, test: int = 2) -> tuple[np.ndarray, list[int]]:
    """The two files; each record has a coarse class (here 19, no fine class of any record) before the fine one."""
    folder.mkdir(parents=True)
    images, labels = random_images(train + test, 3, 32, 32, seed=4), [(37 * i + 99) % 100 for i in range(train + test)]
    records = [cifar_record((19, label), *image) for image, label in zip(images, labels, strict=True)]
    (folder / "train.bin").write_bytes(b"".join(records[:train]))
    (folder / "test.bin").write_bytes(b"".join(records[train:]))
    return images, labels


def imdb_arrays(lengths: tuple[int, ...] = (3, 120, 0, 80, 1), words: int = 50) -> dict[str, np.ndarray]:
    """Reviews of these lengths, sorted by class, in the stored form."""
    random = np.random.default_rng(5)
    stored: dict[str, np.ndarray] = {"vocab": np.array(["<pad>", "<oov>", *(f"word{i}" for i in range(2, words))])}
    for part in ("train", "test"):
        stored[f"{part}_tokens"] = random.integers(1, words, sum(lengths)).astype(np.uint16)
        stored[f"{part}_offsets"] = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        stored[f"{part}_labels"] = (np.arange(len(lengths)) >= len(lengths) // 2).astype(np.uint8)
    return stored


def write_imdb(folder: Path, **changes: np.ndarray | None) -> Path:
    (folder / "imdb").mkdir(exist_ok=True)
    kept = {name: array for name, array in {**imdb_arrays(), **changes}.items() if array is not None}
    np.savez(folder / "imdb" / "imdb_tokens.npz", **kept)
    return folder


def look_only_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the environment's data, nor the user's cache, nor a download."""
    monkeypatch.delenv("BAYESRULE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setitem(sys.modules, "pooch", None)
