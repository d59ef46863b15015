"""Reviews are their last tokens, padded on the left, in one fixed order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from bayesrule.data import BadData, DataNotFound, imdb, imdb_vocabulary
from bayesrule.data.imdb import VOCABULARY
from bayesrule.errors import InvalidArgument
from data_files import imdb_arrays, look_only_in, real_data, write_imdb


def padded(review: list[int], length: int) -> list[int]:
    """The oracle, for one review."""
    kept = review[max(0, len(review) - length) :]
    return [0] * (length - len(kept)) + kept


@pytest.mark.parametrize("length", [1, 5, 80, 200])
def test_reviews_are_cut_and_padded_on_the_left(tmp_path: Path, length: int) -> None:
    stored, arrays = imdb(write_imdb(tmp_path), length=length), imdb_arrays()
    random = np.random.RandomState(0)
    for part, x, y in (("train", stored.train_x, stored.train_y), ("test", stored.test_x, stored.test_y)):
        bounds = arrays[f"{part}_offsets"].tolist()
        tokens = arrays[f"{part}_tokens"].tolist()
        order = random.permutation(len(y))
        assert x.tolist() == [padded(tokens[bounds[i] : bounds[i + 1]], length) for i in order]
        assert y.tolist() == arrays[f"{part}_labels"][order].tolist()
    assert (stored.train_x.dtype, stored.classes, stored.name) == (torch.int64, 2, "imdb")
    assert imdb_vocabulary(tmp_path) == tuple(arrays["vocab"].tolist())


def test_the_default_is_eighty_tokens(tmp_path: Path) -> None:
    assert imdb(write_imdb(tmp_path)).train_x.shape == (5, 80)
    with pytest.raises(InvalidArgument, match="positive number of tokens"):
        imdb(tmp_path, length=0)


def test_the_checksum_is_compared_when_asked_for(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"imdb_tokens.npz does not have the checksum"):
        imdb(write_imdb(tmp_path), verify=True)


FAULTS: dict[str, dict[str, np.ndarray | None]] = {
    "no labels": {"train_labels": None},
    "no vocabulary": {"vocab": None},
    "too few labels": {"test_labels": np.zeros(4, np.uint8)},
    "no reviews": {"train_labels": np.zeros(0, np.uint8), "train_offsets": np.zeros(1, np.int32)},
    "nothing": {"train_labels": np.zeros(0, np.uint8), "train_offsets": np.zeros(0, np.int32)},
    "cut short": {"train_tokens": imdb_arrays()["train_tokens"][:-1]},
    "not from the start": {"train_offsets": imdb_arrays()["train_offsets"] + 1},
    "falling offsets": {"train_offsets": imdb_arrays()["train_offsets"][[0, 2, 1, 3, 4, 5]]},
    "unknown words": {"test_tokens": imdb_arrays()["test_tokens"] + np.uint16(50)},
    "fractions": {"train_tokens": imdb_arrays()["train_tokens"] / 2},
    "a table": {"train_tokens": imdb_arrays()["train_tokens"][None]},
    "a number": {"train_offsets": np.array(3)},
    "three classes": {"train_labels": np.array([0, 1, 2, 1, 0], np.uint8)},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_file_is_refused(tmp_path: Path, fault: str) -> None:
    with pytest.raises(InvalidArgument, match=r"is damaged|not an archive of the arrays|classes of imdb must be 0 … 1"):
        imdb(write_imdb(tmp_path, **FAULTS[fault]))


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    path = write_imdb(tmp_path) / "imdb" / "imdb_tokens.npz"
    whole = path.read_bytes()
    for content in (b"", b"junk", whole[:300], whole[:-40]):
        path.write_bytes(content)
        with pytest.raises(BadData, match="not an archive of the arrays train_tokens"):
            imdb(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look_only_in(tmp_path, monkeypatch)
    with pytest.raises(DataNotFound, match=r"imdb/imdb_tokens\.npz was not found.*Put it at .*imdb_tokens\.npz"):
        imdb(tmp_path)


@real_data
def test_the_real_set_is_as_described() -> None:
    stored = imdb(verify=True).validation_split(5_000)
    assert stored.train_x.shape == (20_000, 80)
    assert stored.test_x.shape == (25_000, 80)
    labels = torch.cat([stored.train_y, stored.valid_y])
    assert labels.bincount().tolist() == stored.test_y.bincount().tolist() == [12_500, 12_500]
    # Shuffled: a hypergeometric count of 5,000 has a standard deviation of 31.6; five of them, at failure rate 6e-7.
    assert abs(int(stored.valid_y.sum()) - 2_500) < 5 * 31.6
    assert int(stored.train_x.max()) < VOCABULARY == len(imdb_vocabulary())
    first = (stored.train_x != 0).int().argmax(1)
    beyond = torch.arange(80) >= first[:, None]
    assert torch.equal(stored.train_x != 0, beyond)  # padding on the left only
    assert imdb_vocabulary()[:2] == ("<pad>", "<oov>")
