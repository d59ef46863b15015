"""Noise as a function of a key and a place; whose rows are whose; and parts of a batch that add up to it."""

from __future__ import annotations

from typing import Any

import jaxtyping
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import bayesrule as br
import distributed_cases as cases
from bayesrule.distributed import ByExample, ByRank, Rows, World, data_parallel
from bayesrule.distributed import noise as noise_module
from bayesrule.distributed.counted import counted
from bayesrule.errors import InvalidArgument, ShapeMismatch, Unsupported

LIKE = torch.zeros((), dtype=torch.float64)
WORD = 2**64 - 1


def splitmix(key: int, number: int) -> int:
    """SplitMix64 as published, in whole numbers of any size."""
    state = (key + number * 0x9E3779B97F4A7C15) & WORD
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & WORD
    return state ^ (state >> 31)


def test_bits_are_those_of_splitmix() -> None:
    bits = [splitmix(12345, number) for number in range(5, 205)]
    uniform = counted((10, 20), "uniform", LIKE, key=12345, first=5).flatten()
    assert uniform.tolist() == [(word >> 11) * 2.0**-53 for word in bits]
    signs = counted((200,), "sign", LIKE, key=12345, first=5)
    assert signs.tolist() == [-1.0 if word >= 2**63 else 1.0 for word in bits]
    normal = counted((200,), "normal", LIKE, key=12345, first=5)
    expected = stats.norm.ppf([((word >> 12) + 0.5) * 2.0**-52 for word in bits])
    torch.testing.assert_close(normal, torch.from_numpy(expected), rtol=1e-12, atol=1e-13)


def test_the_published_sequence() -> None:
    """The first outputs of the reference implementation for the seed 1234567."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [splitmix(1234567, number) for number in (1, 2, 3)] == published


def test_normals_are_normal() -> None:
    noise = torch.stack([counted((50_000,), "normal", LIKE, key=key) for key in (1, 2)])
    assert stats.kstest(noise.flatten().numpy(), "norm").pvalue > 1e-6
    between_keys, between_entries = (noise[0] * noise[1]).mean(), (noise[:, 1:] * noise[:, :-1]).mean()
    assert abs(between_keys) < 4.9 / 50_000**0.5  # two-sided 1e-6
    assert abs(between_entries) < 4.9 / 100_000**0.5


def test_single_precision_is_the_same_noise() -> None:
    double, single = (counted((100,), "normal", LIKE.to(dtype), key=3) for dtype in (torch.float64, torch.float32))
    assert torch.equal(double.float(), single)
    assert counted((10_000,), "uniform", LIKE.float(), key=3).max() < 1


def test_an_example_has_the_same_noise_wherever_it_is_computed() -> None:
    def noise(rows: Rows | None, shape: tuple[int, ...]) -> Tensor:
        torch.manual_seed(0)
        return ByExample(rows).by_example()(shape, "normal", LIKE)

    whole = noise(None, (6, 4))
    assert torch.equal(noise(Rows(2, 3, 6), (3, 4)), whole[2:5])
    assert torch.equal(noise(Rows(4, 1, 6), (2, 2)).flatten(), whole[4])  # two rows of an example, say positions
    with pytest.raises(InvalidArgument, match="same number of rows"):
        noise(Rows(0, 3, 6), (4, 4))


def test_weights_have_the_same_noise_in_all_processes_or_each_its_own() -> None:
    def drawn(source: Any) -> Tensor:
        torch.manual_seed(0)
        return source((4, 3), "normal", LIKE)

    assert torch.equal(drawn(ByExample(Rows(0, 2, 4))), drawn(ByExample(Rows(2, 2, 4))))
    assert not torch.isclose(drawn(ByRank(World(0, 2))), drawn(ByRank(World(1, 2)))).any()


@pytest.mark.parametrize("total", [1, 2, 3, 7, 12])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_rows_cover_a_batch_once_or_all_have_it(total: int, size: int) -> None:
    parts = [Rows.of(total, World(rank, size)).cut(torch.arange(total))[0] for rank in range(size)]
    if total < size:
        assert all(torch.equal(part, torch.arange(total)) for part in parts)
    else:
        assert torch.equal(torch.cat(parts), torch.arange(total))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_rows_of_tensors_that_do_not_belong_together() -> None:
    with pytest.raises(ShapeMismatch, match="5 rows"):
        Rows(0, 2, 5).cut(torch.zeros(5), torch.zeros(4))


@pytest.mark.parametrize("options", cases.LAYERS.values(), ids=list(cases.LAYERS))
def test_gradients_of_parts_add_up_to_those_of_the_batch(options: dict[str, Any]) -> None:
    x, y = cases.batches((7,))[0]

    def gradients(parts: int) -> list[Tensor]:
        bnn = cases.converted(**options)
        parallel = data_parallel(bnn, noise="example")
        torch.manual_seed(2)
        for share, part_x, part_y in parallel.microbatches(parts, x, y):
            (share * (F.cross_entropy(parallel(part_x), part_y) + br.kl(bnn) / cases.N_DATA)).backward()
        return [parameter.grad for parameter in bnn.parameters()]

    for parts in (3, 9):  # of which there are no more than rows
        for whole, added in zip(gradients(1), gradients(parts), strict=True):
            torch.testing.assert_close(added, whole, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("total", range(1, 12))
def test_all_processes_cut_a_batch_into_as_many_parts(total: int) -> None:
    """None of them may wait for another's."""
    for size in (1, 2, 3):
        own = [Rows.of(total, World(rank, size)) for rank in range(size)]
        fewest = {rows.fewest(World(rank, size)) for rank, rows in enumerate(own)}
        assert fewest == {min(rows.count for rows in own)}


@pytest.mark.parametrize("name", [name for name in cases.HOLDERS if "mirrored" not in name])
def test_blocks_of_parts_are_one_step_of_the_batch(name: str) -> None:
    kind, options = cases.HOLDERS[name]

    def trained(parts: int) -> dict[str, Tensor]:
        optimizer = cases.holder(kind, **options)
        parallel = data_parallel(optimizer, noise="example")
        for x, y in cases.batches((8, 8))[: cases.STEPS.get(kind)]:
            for _, part_x, part_y in parallel.microbatches(parts, x, y):
                with optimizer.sampled_params():
                    optimizer.nll(optimizer.model(part_x), cases.targets(optimizer, part_y)).backward()
            optimizer.step()
        return cases.states(optimizer)

    whole, added = trained(1), trained(4)
    for key, value in whole.items():
        torch.testing.assert_close(added[key], value, rtol=1e-6, atol=1e-9, msg=key)


def test_parts_of_optimizers_are_of_one_size() -> None:
    parallel = data_parallel(cases.holder(br.optim.IVON), noise="example")
    with pytest.raises(InvalidArgument, match="one size"):
        list(parallel.microbatches(3, *cases.batches()[0]))


@pytest.mark.parametrize("noise", [ByExample(), ByRank(World(1, 2))])
@pytest.mark.parametrize("estimator", [br.LocalReparam(), br.WeightSample()])
def test_recomputed_activations_have_the_same_keyed_noise(noise: Any, estimator: br.estimators.Estimator) -> None:
    class Twice(nn.Module):
        def __init__(self, recompute: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.shared, self.once = nn.Linear(4, 4).double(), nn.Linear(4, 4).double()
            self.recompute = recompute

        def forward(self, x: Tensor) -> Tensor:
            x = self.shared(x).tanh()

            def rest(x: Tensor) -> Tensor:
                return self.shared(self.once(x).tanh())

            return checkpoint(rest, x, use_reentrant=False) if self.recompute else rest(x)

    def gradients(recompute: bool) -> list[Tensor]:
        bnn = br.bayesianize(Twice(recompute), br.Diagonal(0.1), estimator=estimator)
        bnn.draws.noise = noise
        torch.manual_seed(1)
        bnn(torch.ones(3, 4, dtype=torch.float64)).square().sum().backward()
        return [parameter.grad for parameter in bnn.parameters()]

    for plain, recomputed in zip(gradients(False), gradients(True), strict=True):
        torch.testing.assert_close(recomputed, plain, rtol=1e-12, atol=1e-12)


def test_only_rows_that_are_used_would_be_other_draws_in_other_processes() -> None:
    bnn = br.bayesianize(nn.Embedding(9, 2).double(), br.Diagonal(0.1), estimator=br.WeightSample())
    bnn.draws.noise = ByExample()
    outputs = []
    for tokens in (torch.tensor([4, 7]), torch.tensor([7, 1])):
        torch.manual_seed(0)
        outputs.append(bnn(tokens))
    assert torch.equal(outputs[0][1], outputs[1][0])


def test_noise_in_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_module, "in_graph", lambda: True)
    with pytest.raises(Unsupported, match="recorded graph"):
        ByExample()((2,), "normal", LIKE)
    torch.manual_seed(4)
    drawn = ByRank(World(1, 2))((2,), "normal", LIKE)
    torch.manual_seed(4)
    assert torch.equal(drawn, torch.randn(2, dtype=torch.float64))


@pytest.mark.parametrize("noise", ["rank", "example"])
def test_one_process_is_a_world(noise: br.distributed.NoiseKey) -> None:
    bnn = cases.converted()
    parallel = data_parallel(bnn, noise=noise)
    x, y = cases.batches()[0]
    assert all(torch.equal(own, whole) for own, whole in zip(parallel.own(x, y), (x, y), strict=True))
    assert parallel.share == 1
    assert parallel.network is bnn


def test_wrong_arguments() -> None:
    refused = (InvalidArgument, jaxtyping.TypeCheckError)  # the latter where types are checked at run time
    with pytest.raises(refused):
        data_parallel(cases.converted(), noise="batch")  # type: ignore[arg-type]
    with pytest.raises(refused):
        data_parallel(cases.network())  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [br.optim.IVON, br.optim.NoisyKFAC])
def test_a_state_goes_on_whether_it_is_loaded_before_or_after(kind) -> None:
    """Into an optimizer whose noise is keyed by example, and which draws keys from its own generator."""
    x, y = torch.randn(6, 3, dtype=torch.float64), torch.arange(6) % 2

    def made() -> tuple[nn.Module, br.optim.PosteriorOptimizer]:
        torch.manual_seed(0)
        net = nn.Linear(3, 2).double()
        return net, kind(net, n_data=50, likelihood=br.Categorical(), seed=1)

    def run(optimizer: br.optim.PosteriorOptimizer, parallel: Any) -> list[float]:
        losses = []
        for _ in range(4):
            own_x, own_y = parallel.own(x, y)
            with optimizer.sampled_params():
                loss = optimizer.nll(parallel(own_x), own_y)
                loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    net, whole = made()
    parallel = data_parallel(whole, noise="example")
    run(whole, parallel)
    saved = {name: value.clone() for name, value in net.state_dict().items()}, whole.state_dict()
    want = run(whole, parallel)
    for wrapped_first in (True, False):
        net, resumed = made()
        parallel = data_parallel(resumed, noise="example") if wrapped_first else None
        net.load_state_dict(saved[0])
        resumed.load_state_dict(saved[1])
        assert run(resumed, parallel or data_parallel(resumed, noise="example")) == want


def test_batches_that_are_none_are_refused() -> None:
    net = nn.Linear(3, 2)
    parallel = data_parallel(br.optim.IVON(net, n_data=50, likelihood=br.Categorical()), noise="example")
    x = torch.randn(6, 3)
    with pytest.raises(InvalidArgument, match="one or more tensors"):
        parallel.own()
    with pytest.raises(InvalidArgument, match="at least 1 part"):
        next(parallel.microbatches(0, x))
    with pytest.raises(InvalidArgument, match="6 rows of 1 processes"):
        next(parallel.microbatches(4, x))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_all_processes_agree_whether_parts_are_of_one_size(size: int) -> None:
    for total in range(1, 20):
        own = [Rows.of(total, World(rank, size)) for rank in range(size)]
        for count in range(1, own[0].fewest(World(0, size)) + 1):
            even = all(rows.count % count == 0 for rows in own)
            assert {rows.even(count, World(rank, size)) for rank, rows in enumerate(own)} == {even}
