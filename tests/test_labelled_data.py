"""Sets as values: splitting, scaling, names, and the synthetic stand-ins."""

from __future__ import annotations

import dataclasses
import inspect

import jaxtyping
import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from bayesrule.data import (
    LABELLED_SETS,
    ChannelStandardiser,
    LabelledSet,
    labelled_set,
    symmetric_interval,
    synthetic_binarized_mnist,
    synthetic_like,
    unit_interval,
)
from bayesrule.data.synthetic import FORMS
from bayesrule.errors import InvalidArgument, ShapeMismatch


def small() -> LabelledSet:
    images = torch.arange(10, dtype=torch.uint8).reshape(10, 1, 1, 1).expand(10, 2, 3, 3)
    return LabelledSet(images, torch.arange(10) % 4, images[:4] + 50, torch.arange(4), 4, "small")


def test_validation_examples_are_the_last_ones() -> None:
    whole = small()
    split = whole.validation_split(3)
    assert split.train_x[:, 0, 0, 0].tolist() == list(range(7))
    assert split.valid_x[:, 0, 0, 0].tolist() == [7, 8, 9]
    assert split.valid_y.tolist() == [3, 0, 1]
    assert torch.equal(split.test_x, whole.test_x)
    assert len(whole.train_x) == 10
    assert whole.valid_x.shape == (0, 2, 3, 3)


@pytest.mark.parametrize("count", [-1, 0, 10, 11])
def test_a_validation_part_leaves_something_to_train_on(count: int) -> None:
    with pytest.raises(InvalidArgument, match=f"Got: {count} of the 10 training examples of small"):
        small().validation_split(count)


def test_a_second_validation_part_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"has a validation part already\. Got: 3 examples"):
        small().validation_split(3).validation_split(2)


def test_first_keeps_the_beginning_of_each_part() -> None:
    cut = small().validation_split(3).first(train=5, valid=2)
    assert cut.train_x[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4]
    assert cut.valid_y.tolist() == [3, 0]
    assert len(cut.test_y) == 4
    for parts in ({"train": 11}, {"test": -1}, {"valid": 1}):
        with pytest.raises(InvalidArgument, match=rf"The {next(iter(parts))} part of small has \d+ examples"):
            small().first(**parts)


def test_sets_are_values() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        small().name = "other"  # type: ignore[misc]
    moved = small().validation_split(2).to("meta")
    tensors = [value for value in vars(moved).values() if isinstance(value, Tensor)]
    assert len(tensors) == 6
    assert {tensor.device.type for tensor in tensors} == {"meta"}


@pytest.mark.parametrize("label", [-1, 4])
def test_classes_out_of_range_are_refused(label: int) -> None:
    with pytest.raises(InvalidArgument, match=r"classes of small must be 0 … 3"):
        dataclasses.replace(small(), test_y=torch.tensor([0, 1, 2, label]))


def test_parts_that_do_not_fit_are_refused() -> None:
    whole = small()
    # The shape checks of the test suite may come first.
    for change in ({"train_y": whole.test_y}, {"test_x": whole.test_x[:, :1]}, {"valid_y": whole.test_y}):
        with pytest.raises((ShapeMismatch, jaxtyping.TypeCheckError)):
            dataclasses.replace(whole, **change)
    with pytest.raises(ShapeMismatch, match=r"The valid part of small must have a class for each example"):
        dataclasses.replace(whole, valid_x=torch.zeros(4, 2, dtype=torch.uint8), valid_y=whole.test_y)


def test_intervals() -> None:
    bytes_ = torch.arange(256, dtype=torch.uint8)
    exact = np.arange(256) / 255
    assert unit_interval(bytes_).numpy() == pytest.approx(exact, abs=1e-7)
    assert symmetric_interval(bytes_).numpy() == pytest.approx(2 * exact - 1, abs=2e-7)
    assert (unit_interval(bytes_).min(), unit_interval(bytes_).max()) == (0, 1)
    assert (symmetric_interval(bytes_).min(), symmetric_interval(bytes_).max()) == (-1, 1)
    assert unit_interval(bytes_).dtype == torch.float32


def test_channels_are_standardised_by_the_training_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayesrule.data.scaling.CHUNK", 3)
    data = synthetic_like("cifar-10", train=10, test=4)
    fitted = ChannelStandardiser.fit(data.train_x)
    pixels = data.train_x.permute(0, 2, 3, 1).reshape(-1, 3).double().numpy() / 255
    oracle = StandardScaler().fit(pixels)
    assert fitted.mean.numpy() == pytest.approx(oracle.mean_, rel=1e-6)
    assert fitted.std.numpy() == pytest.approx(oracle.scale_, rel=1e-6)
    scaled = data.validation_split(2).map_x(fitted)
    test = data.test_x.permute(0, 2, 3, 1).reshape(-1, 3).double().numpy() / 255
    assert scaled.test_x.permute(0, 2, 3, 1).reshape(-1, 3).numpy() == pytest.approx(oracle.transform(test), abs=2e-6)
    assert torch.equal(fitted(data.train_x[-1]), scaled.valid_x[-1])
    for images in (data.train_x[:0], torch.full_like(data.train_x, 7)):
        with pytest.raises(InvalidArgument, match=r"no images|cannot be standardised"):
            ChannelStandardiser.fit(images)


def test_names() -> None:
    assert LABELLED_SETS.keys() == FORMS.keys()
    assert all({"data", "verify"} <= inspect.signature(load).parameters.keys() for load in LABELLED_SETS.values())
    for function in (labelled_set, synthetic_like):
        with pytest.raises(InvalidArgument, match=r"no data set 'cifar10'. Did you mean 'cifar-10'\? Known: mnist, "):
            function("cifar10")


def counts(tokens: Tensor) -> np.ndarray:
    return np.stack([np.bincount(row, minlength=200)[2:200] for row in tokens.numpy()])


@pytest.mark.parametrize("name", FORMS)
def test_a_stand_in_has_the_true_form_and_can_be_learned(name: str) -> None:
    data = synthetic_like(name, train=600, test=300, seed=1)
    form = FORMS[name]
    assert data.synthetic
    assert (data.name, data.classes) == (name, form.classes)
    assert data.train_x.shape == (600, *form.shape)
    assert data.test_x.shape == (300, *form.shape)
    assert data.train_x.dtype == (torch.int64 if name == "imdb" else torch.uint8)
    frequencies = torch.cat([data.train_y, data.test_y]).bincount(minlength=form.classes)
    assert int(frequencies.max() - frequencies.min()) <= 1
    features = counts if name == "imdb" else lambda images: (images[..., ::4, ::4].flatten(1) / 255).numpy()
    model = LogisticRegression(max_iter=300).fit(features(data.train_x), data.train_y.numpy())
    accuracy = model.score(features(data.test_x), data.test_y.numpy())
    chance = 1 / form.classes
    assert accuracy > chance + 6 * (chance * (1 - chance) / 300) ** 0.5


def test_stand_ins_depend_on_the_seed_alone() -> None:
    one, same, other = (synthetic_like("mnist", 8, 4, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.train_x, same.train_x)
    assert not torch.equal(one.train_x, other.train_x)
    with pytest.raises(InvalidArgument, match=r"at least one example. Got: \{'train': 0, 'test': 4\}"):
        synthetic_like("mnist", 0, 4)


def test_synthetic_reviews_are_padded_on_the_left() -> None:
    x = synthetic_like("imdb").train_x
    lengths = (x != 0).sum(1)
    assert torch.equal(x != 0, torch.arange(80) >= 80 - lengths[:, None])
    assert 20 <= int(lengths.min()) < int(lengths.max()) <= 80
    assert int(x.max()) < 20_000


def test_the_synthetic_binarized_set() -> None:
    data = synthetic_binarized_mnist(30, 20, 10)
    assert data.synthetic
    assert [tuple(part.shape) for part in (data.train, data.valid, data.test)] == [(30, 784), (20, 784), (10, 784)]
    assert data.train.unique().tolist() == [0, 1]
    assert data.to("meta").test.is_meta
    # Pixels of one image are not independent coin flips: neighbours agree more often than their frequency says.
    pixels = synthetic_binarized_mnist(400).train.double()
    products = (pixels[:, 300:319] * pixels[:, 301:320]).mean(0)
    assert float((products - pixels[:, 300:319].mean(0) * pixels[:, 301:320].mean(0)).mean()) > 0.01
