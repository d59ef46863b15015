"""Which rows each member trains on, and how many steps are a pass over them."""

from __future__ import annotations

import pytest
import torch

from bayesrule.cli.passes import steps_of, steps_per_pass
from bayesrule.train.member_loop import MemberLoop
from bayesrule.train.members import Settings, build_member, make_likelihood
from bayesrule.train.stacked import StackedMembers


def loop(rows: int, settings: Settings) -> MemberLoop:
    generator = torch.Generator().manual_seed(0)
    members = [build_member(2, 1, "regression", settings, generator) for _ in range(settings.size)]
    folds = torch.randperm(rows, generator=generator).tensor_split(settings.folds)
    x = torch.zeros(rows, 2)
    likelihood = make_likelihood("regression", settings)
    return MemberLoop(StackedMembers(members), likelihood, x, x[:, :1], folds, settings, generator, None, None)


def test_folds_of_equal_size_lose_no_row() -> None:
    made = loop(12, Settings(hidden=(2,), folds=3))
    for trained, held_out in zip(made.rows, made.held_out, strict=True):
        assert sorted([*trained.tolist(), *held_out.tolist()]) == list(range(12))


def test_folds_of_unequal_size_lose_one_row_at_most() -> None:
    made = loop(14, Settings(hidden=(2,), folds=3))
    for trained, held_out in zip(made.rows, made.held_out, strict=True):
        assert len({*trained.tolist(), *held_out.tolist()}) >= 13


@pytest.mark.parametrize("rows", [10, 60, 1999, 2000, 5000])
def test_a_pass_reads_as_many_rows_as_a_member_has(rows: int) -> None:
    settings = Settings(hidden=(2,)).for_rows(rows)
    made = loop(rows, settings)
    assert steps_per_pass(rows, settings) == pytest.approx(max(1, made.rows.shape[1] / made.batch), abs=0.02)
    assert steps_of(3, rows, settings) >= 3
