"""The real image sets are the published ones; their checksums are those the documentation lists."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bayesrule.data import ChannelStandardiser, binarized_mnist, cifar10, cifar100, fashion_mnist, locate, mnist
from bayesrule.data.binarized_mnist import PIXEL_SUM
from bayesrule.data.cifar import CIFAR10_FILES, CIFAR100_FILES
from bayesrule.data.files import DataFile, DataNotFound
from bayesrule.data.imdb import FILE as IMDB_FILE
from bayesrule.data.mnist import FASHION_MNIST_SUMS, MNIST_SUMS
from data_files import real_data

FACTS = {  # as published: class counts of the training and test part, first classes, channel means and stds
    mnist: (
        [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
        [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
        [5, 0, 4, 1, 9], [0.1307], [0.3081],
    ),
    fashion_mnist: ([6000] * 10, [1000] * 10, [9, 0, 0, 3, 0], [0.2860], [0.3530]),
    cifar10: ([5000] * 10, [1000] * 10, [6, 9, 9, 4, 1], [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
    cifar100: ([500] * 100, [100] * 100, [19, 29, 0, 11, 1], [0.5071, 0.4865, 0.4409], [0.2673, 0.2564, 0.2762]),
}  # fmt: skip


@contextmanager
def what_is_there() -> Iterator[None]:
    """Skip, with the reason, where the data folder has not this set."""
    try:
        yield
    except DataNotFound as missing:
        pytest.skip(str(missing))


@real_data
@pytest.mark.parametrize("load", FACTS, ids=lambda load: load.__name__)
def test_the_real_sets_are_as_published(load: type) -> None:
    with what_is_there():
        stored = load(verify=True)
    train, test, first, mean, std = FACTS[load]
    assert stored.train_y.bincount().tolist() == train
    assert stored.test_y.bincount().tolist() == test
    assert stored.train_y[:5].tolist() == first
    fitted = ChannelStandardiser.fit(stored.train_x)
    assert fitted.mean.tolist() == pytest.approx(mean, abs=5.1e-5)
    assert fitted.std.tolist() == pytest.approx(std, abs=5.1e-5)


MD5 = {
    "cifar-10-batches-bin/data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "cifar-10-batches-bin/data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "cifar-10-batches-bin/data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "cifar-10-batches-bin/data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "cifar-10-batches-bin/data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "cifar-10-batches-bin/test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    "cifar-100-binary/train.bin": "6172c7755cfe09b2fe270c85cebc1b15",
    "cifar-100-binary/test.bin": "4499cfba6c016c1be1438163640a0898",
}


@real_data
def test_the_checksums_belong_to_the_published_files() -> None:
    sums = {
        f"{files.folder}/{k}": v
        for files in (CIFAR10_FILES, CIFAR100_FILES)
        for k, v in {**files.train, **files.test}.items()
    }
    assert sums.keys() == MD5.keys()
    for name, md5 in MD5.items():
        with what_is_there():
            content = locate(DataFile(name)).read_bytes()
        assert hashlib.md5(content).hexdigest() == md5
        assert hashlib.sha256(content).hexdigest() == sums[name]


@real_data
def test_the_real_binarized_set_is_as_published() -> None:
    with what_is_there():
        stored = binarized_mnist(verify=True)
    assert (len(stored.train), len(stored.valid), len(stored.test)) == (50_000, 10_000, 10_000)
    digits = mnist().validation_split(10_000)
    for bits, images in ((stored.train, digits.train_x), (stored.valid, digits.valid_x), (stored.test, digits.test_x)):
        # Drawn pixel by pixel from the same digits, in another order: the mean brightness agrees to its noise.
        assert bits.double().mean().item() == pytest.approx(images.double().mean().item() / 255, abs=0.004)


def test_the_page_on_data_sets_has_every_checksum() -> None:
    page = (Path(__file__).parents[1] / "docs" / "data.md").read_text()
    idx_sums = [digest for sums in (MNIST_SUMS, FASHION_MNIST_SUMS) for pair in sums.values() for digest in pair]
    cifar = [
        (files.archive.sha256, *files.train.values(), *files.test.values()) for files in (CIFAR10_FILES, CIFAR100_FILES)
    ]
    listed = {*idx_sums, *sum(cifar, ()), IMDB_FILE.sha256, PIXEL_SUM}
    assert set(re.findall(r"[0-9a-f]{64}", page)) == listed
