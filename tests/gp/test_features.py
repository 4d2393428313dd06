"""Networks before the kernel: how they start, and what is refused."""

import warnings

import pytest
import torch
from torch import nn

from paragp.gp.features import (
    CollapsedFeaturesWarning,
    check_module,
    collapsed,
    embedded,
    layers,
    network,
    sizes_of,
    warn_if_collapsed,
)

from cases import generator, randn


def test_a_network_starts_with_features_of_unit_spread():
    x = randn(200, 3) * torch.tensor([1.0, 5.0, 0.1])
    made = network([16, 8, 2], x, generator=generator())
    h = embedded(made, x)
    torch.testing.assert_close(h.mean(0), torch.zeros(2).to(h), atol=1e-6, rtol=0)
    torch.testing.assert_close(h.std(0, correction=0), torch.ones(2).to(h), atol=1e-6, rtol=0)
    again = network([16, 8, 2], x, generator=generator())
    assert all(torch.equal(one, other) for one, other in zip(made.parameters(), again.parameters(), strict=True))


def test_rows_of_a_start_count_by_their_weights():
    x, copies = randn(50, 3), torch.arange(50) % 3
    weighted = network([8, 2], x, generator=generator(), weights=copies)
    repeated = network([8, 2], x.repeat_interleave(copies, 0), generator=generator())
    torch.testing.assert_close(weighted(x), repeated(x))


@pytest.mark.parametrize("seed", range(20))
def test_narrow_networks_start_alive(seed):
    x = randn(50, 3)
    assert not collapsed(embedded(network([2, 2, 2, 2], x, generator=generator(seed)), x))


def test_layers_leave_the_global_generator_alone():
    before = torch.random.get_rng_state()
    network([8, 2], randn(50, 3), generator=generator())
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("sizes", [[4], [8, 2], [5, 5, 5]])
def test_the_sizes_of_a_network_say_all_of_its_form(sizes):
    assert sizes_of(layers(3, sizes)) == sizes


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(3, 2),
        nn.Sequential(),
        nn.Sequential(nn.ReLU(), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(3, 2), nn.ReLU()),
        nn.Sequential(nn.Linear(3, 2, bias=False)),
        nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)),
    ],
)
def test_other_forms_are_not_told_by_sizes(module):
    assert sizes_of(module) is None


def test_features_are_those_of_prediction():
    features = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5)).double()
    x = randn(50, 3)
    torch.testing.assert_close(embedded(features, x), features[0](x))
    assert features.training


class Broken(nn.Module):
    def __init__(self, give):
        super().__init__()
        self.layer, self.give = nn.Linear(3, 2), give

    def forward(self, x):
        return self.give(self.layer(x))


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (nn.Tanh(), "Tanh has no parameters, so there is nothing to train"),
        (nn.Linear(4, 2), "Linear does not take 3 inputs"),
        (Broken(lambda h: h.sum(1)), r"must give \(2, p\) for 2 rows, got \(2,\)"),
        (Broken(lambda h: h[:1]), r"must give \(2, p\) for 2 rows, got \(1, 2\)"),
        (Broken(lambda h: h * torch.nan), "gives NaN or infinite values"),
        (
            nn.Linear(3, 2, device="meta"),
            'lives on meta, and the model is trained on cpu. Move it with module.to\\("cpu"',
        ),
    ],
)
def test_a_module_that_cannot_be_used_is_refused_in_a_sentence(module, said):
    with pytest.raises(ValueError, match=said):
        check_module(module, randn(5, 3))


class Unregistered(nn.Module):
    """A tensor that `.to` does not move."""

    def __init__(self):
        super().__init__()
        self.layer, self.table = nn.Linear(3, 2), torch.ones(2, 2)

    def forward(self, x):
        return self.layer(x) @ self.table


def test_a_module_must_work_in_both_precisions():
    with pytest.raises(ValueError, match=r"in torch\.float64: .* must be registered as buffers"):
        check_module(Unregistered(), randn(5, 3).float())
    with pytest.raises(ValueError, match=r"must give torch\.float64 for torch\.float64, got torch\.float32"):
        check_module(Broken(lambda h: h.float()), randn(5, 3))


def test_a_good_module_is_left_as_it_is():
    module = nn.Linear(3, 2)  # float32, and the rows are float64
    assert check_module(module, randn(5, 3)) == 2
    assert module.weight.dtype == torch.float32


def test_features_that_are_one_point_are_noticed():
    x = randn(50, 3)
    dead = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    with torch.no_grad():
        dead[0].bias.fill_(-1e6)
    assert collapsed(embedded(dead, x))
    with pytest.warns(CollapsedFeaturesWarning, match="All rows have nearly the same features"):
        warn_if_collapsed(dead, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_collapsed(nn.Linear(3, 2).double(), x)
