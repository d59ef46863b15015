"""What cannot be pruned structurally is refused by name and with the reason; bad arguments likewise."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bayesrule as br
from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.nn import BayesianModule
from prune_networks import masked_by_hand, model


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x, need_weights=False)[0][:, 0])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(5, 3), nn.Linear(3, 5)
        self.out.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.embed(x))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(F.relu(self.layer(x))))


class ReadElsewhere(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.linear(x, self.layer.weight))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x) if x.sum() > 0 else x)


def hooked() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    net[0].register_forward_hook(lambda module, args, output: output.roll(1, -1))
    return net


SEQUENCE, ROWS = torch.randn(2, 5, 4), torch.randn(4, 3)
REFUSED = {
    "lstm": (Recurrent, torch.randn(2, 5, 3), "Layer 'lstm'", "feed back", "(LSTM)"),
    "lstm alone": (lambda: nn.GRUCell(3, 4), ROWS, "The network", "feed back", "(GRUCell)"),
    "attention": (Attentive, SEQUENCE, "Layer 'attention'", "heads", "(MultiheadAttention)"),
    "encoder": (
        lambda: nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), nn.Linear(4, 2)),
        SEQUENCE, "Layer '0' (TransformerEncoderLayer)", "heads",
    ),
    "grouped": (
        lambda: nn.Sequential(nn.Conv1d(4, 4, 1, groups=2), nn.Conv1d(4, 2, 1)),
        SEQUENCE.mT, "Layer '0' (Conv1d)", "2 groups",
    ),
    "tied": (Tied, torch.tensor([1, 4]), "Layer 'embed'", "is also 'out.weight'", "(Embedding)"),
    "shared": (
        lambda: nn.Sequential(layer := nn.Linear(3, 3), nn.ReLU(), layer, nn.Linear(3, 2)),
        ROWS, "Layer '0'", "its weight is also '2.weight', its bias is also '2.bias'", "Linear",
    ),
    "called twice": (Twice, ROWS, "Layer 'layer'", "called 2 times", "Linear"),
    "read elsewhere": (ReadElsewhere, ROWS, "Layer 'layer'", "something else than its own forward", "Linear"),
    "branching": (Branching, ROWS, "The network", "depends on values", "control flow"),
    "hooks": (hooked, ROWS, "Layer '0'", "has hooks", "Linear"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*nested_tensor.*")
@pytest.mark.parametrize("case", REFUSED)
def test_a_layer_that_cannot_be_cut_is_named_and_weights_can_still_be_dropped(case: str) -> None:
    build, x, *words = REFUSED[case]
    torch.manual_seed(0)
    bnn = br.bayesianize(build(), br.Diagonal(init_std=0.2, init_spread=0.0), example=x)
    with pytest.raises(Unsupported, match="cannot be pruned structurally") as refused:
        br.prune(bnn)
    for word in (*words, 'structure="weights"'):
        assert word in str(refused.value)
    for structure in ("weights", "auto"):
        small = br.prune(bnn, structure=structure, target_sparsity=0.3)
        masked = masked_by_hand(bnn, small.pruning.masks)
        assert 0 < small.pruning.sparsity < 1
        torch.testing.assert_close(small.eval()(x), masked.eval()(x), rtol=1e-5, atol=1e-6)
        assert any(row.note for row in small.pruning) == (structure == "auto")
        for note in {row.note for row in small.pruning} - {""}:
            assert str(small.pruning).count(f") {note}\n") == 1  # however many layers it holds for


class Joined(nn.Module):
    """What two layers give, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.head = nn.Linear(3, 4), nn.Linear(3, 2), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(torch.cat([self.one(x), self.other(x)], 1)))


class ViewedByNumber(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 3, 2), nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).view(-1, 12))


class Scores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.head = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.softmax(self.query(x) @ self.key(x).mT, -1) @ x)


class PaddedShortcut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.head = nn.Conv2d(1, 2, 1), nn.Conv2d(2, 4, 1), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        narrow = self.one(x)
        return self.head((self.other(narrow) + F.pad(narrow, (0, 0, 0, 0, 1, 1))).mean((2, 3)))


def ones(net: nn.Module) -> dict[str, Tensor]:
    return {name: torch.ones(p.shape, dtype=torch.bool) for name, p in net.named_parameters() if p.ndim > 1}


HELD = {
    "cat": (Joined, torch.randn(4, 3).double(), "one", "'cat'"),
    "view": (ViewedByNumber, torch.randn(4, 1, 3, 3).double(), "conv", "'view' (whose sizes are written out"),
    "attention": (Scores, torch.randn(4, 5, 3).double(), "query", "'matmul'"),
    "residual": (PaddedShortcut, torch.randn(4, 1, 3, 3).double(), "one", "'pad'"),
    "layer norm": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)),
        torch.randn(4, 3).double(), "0", "'1' (LayerNorm)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HELD)
def test_a_dropped_unit_that_an_operation_needs_is_refused(case: str) -> None:
    build, x, layer, where = HELD[case]
    torch.manual_seed(0)
    net = build().double()
    masks = ones(net)
    assert br.prune(model(net, masks)).pruning.cuts == ()  # nothing dropped, nothing to refuse
    masks[f"{layer}.weight"][1] = False
    bnn = model(net, masks)
    why = re.escape(f"1 of its units have been dropped, but {where}")
    with pytest.raises(Unsupported, match=rf"Layer '{layer}' \(\w+\) cannot be pruned structurally: {why}"):
        br.prune(bnn)
    small = br.prune(bnn, structure="auto")
    assert where in small.pruning[f"{layer}.weight"].note
    torch.testing.assert_close(small(x), masked_by_hand(bnn, masks)(x), rtol=1e-13, atol=1e-13)


def test_inputs_behind_an_unknown_operation_are_picked() -> None:
    torch.manual_seed(0)
    net = Joined().double()
    masks = ones(net)
    masks["head.weight"][:, [0, 5]] = False
    bnn, x = model(net, masks), torch.randn(4, 3).double()
    small = br.prune(bnn)
    assert small.head.layer.in_features == 4
    torch.testing.assert_close(small(x), masked_by_hand(bnn, masks)(x), rtol=1e-13, atol=1e-13)


class Clipped(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.clamp(-1, 1) if x.abs().max() > 1 else x


def test_what_has_no_parameters_need_not_be_traced() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2), Clipped()).double()
    masks = ones(net)
    masks["2.weight"][:, [1, 3]] = False
    bnn, x = model(net, masks), torch.randn(4, 3).double()
    small = br.prune(bnn, example=x)
    assert small[0].out_features == 2
    torch.testing.assert_close(small(x), masked_by_hand(bnn, masks)(x), rtol=1e-13, atol=1e-13)


class ChangedInPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        before = self.layer(x)
        return self.head(F.relu(before, inplace=True) + before)


def test_a_tensor_that_is_changed_under_another_reader_is_held_fast() -> None:
    torch.manual_seed(0)
    net = ChangedInPlace().double()
    net.layer.bias.data.fill_(-1.0)
    masks = ones(net)
    masks["layer.weight"][1] = False
    bnn, x = model(net, masks), torch.randn(4, 3).double()
    with pytest.raises(Unsupported, match="'relu' needs every one"):
        br.prune(bnn)
    small = br.prune(bnn, structure="auto")
    torch.testing.assert_close(small(x), masked_by_hand(bnn, masks)(x), rtol=1e-13, atol=1e-13)


class KnowsItsSize(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.other(self.one(x)) * (self.one.out_features == 3)


def test_the_example_tells_when_a_network_does_more_than_its_graph() -> None:
    torch.manual_seed(0)
    net = KnowsItsSize().double()
    masks = ones(net)
    masks["other.weight"][:, 0] = False
    with pytest.raises(Unsupported, match="other outputs than masked"):
        br.prune(model(net, masks), example=torch.randn(4, 3).double())


def small_model() -> BayesianModule:
    torch.manual_seed(0)
    return br.bayesianize(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), br.Diagonal(init_std=0.1))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"threshold": 3.0, "target_sparsity": 0.5}, "either a threshold or a target"),
        ({"target_sparsity": 1.0}, "between 0 and 1"),
        ({"target_sparsity": -0.1}, "between 0 and 1"),
        ({"threshold": float("nan")}, "must be a number"),
        ({"threshold": -100.0}, "Every weight would be dropped"),
        ({"structure": "rows"}, "one of units, auto, weights"),
        ({"evaluate": [(torch.zeros(1, 3), torch.zeros(1))]}, "likelihood"),
    ],
)
def test_bad_arguments(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        br.prune(small_model(), **arguments)


def test_only_converted_models_with_weights_that_are_numbers() -> None:
    with pytest.raises(InvalidArgument, match="Only a converted model"):
        br.prune(nn.Linear(2, 2))
    bnn = small_model()
    bnn.homes()["0.weight"].mean.data[0, 0] = float("nan")
    with pytest.raises(InvalidArgument, match=r"0\.weight.*no numbers"):
        br.prune(bnn)


def test_a_network_that_would_become_constant_is_refused() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    masks = ones(net)
    masks["2.weight"][:] = False
    with pytest.raises(InvalidArgument, match=r"no longer depend on the inputs. Got: no weight left in 2\.weight"):
        br.prune(model(net, masks))
