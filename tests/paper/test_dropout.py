"""MC dropout: its masks, its grid, and what it predicts."""

import numpy as np
import pytest
import torch
from sklearn.base import clone

from paragp.gp.features import draw_weights, layers
from paragp.metrics import nll
from paragp.paper import dropout
from paragp.paper.dropout import RATES, TAUS, MCDropoutRegressor, best_tau, draw_masks, forward

from cases import generator

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, size=(300, 2))
Y = 5 + 3 * np.abs(X[:, 0]) + 0.2 * RNG.standard_normal(300)


def regressor(**options):
    return MCDropoutRegressor((16, 8), **({"max_epochs": 30, "batch_size": 100, "random_state": 0} | options))


def test_masks_keep_the_mean_and_drop_a_share():
    (mask,) = draw_masks((50,), 0.2, generator(), rows=2000)
    assert mask.unique().tolist() == pytest.approx([0.0, 1.25])
    assert float((mask == 0).float().mean()) == pytest.approx(0.2, abs=0.01)
    assert float(mask.mean()) == pytest.approx(1.0, abs=0.02)


def test_a_mask_of_ones_is_the_network_itself():
    network = layers(2, [4, 3, 1])
    draw_weights(network, generator())  # they come without values
    x = torch.randn(7, 2)
    torch.testing.assert_close(forward(network, x, [torch.ones(1, 4), torch.ones(1, 3)]), network(x)[:, 0])


def test_sampled_networks_hold_for_all_rows(monkeypatch):
    """One mask per sampled network: a row has the same distribution alone, among others, and in another chunk."""
    model = regressor(p=0.2, tau=0.1, max_epochs=2).fit(X, Y)
    monkeypatch.setattr(dropout, "CHUNK", 100)
    twice = model.predict_dist(np.vstack([X[:1], X, X[:1]]))
    assert twice.mean[0] == pytest.approx(twice.mean[-1], abs=1e-5)
    assert twice.std[0] == pytest.approx(model.predict_dist(X[:1]).std[0], abs=1e-5)


def test_it_learns_and_finds_its_settings():
    model = regressor(max_epochs=150).fit(X[:200], Y[:200], X_val=X[200:250], y_val=Y[200:250])
    dist = model.predict_dist(X[250:])
    assert nll(dist, Y[250:]) < 1.2  # a constant normal: 1.9
    assert 0 < model.p_ < RATES[-1]  # a small network wants little dropout
    assert model.tau_ < TAUS[-1]
    mean, std = model.predict(X[250:], return_std=True)
    np.testing.assert_array_equal(mean, dist.mean)
    np.testing.assert_array_equal(std, dist.std)
    assert dist.noise_var == pytest.approx(model.tau_ * np.var(Y[:200]))


def test_what_is_given_is_not_searched():
    model = regressor(p=0.3, tau=0.7, max_epochs=1).fit(X, Y)
    assert (model.p_, model.tau_) == (0.3, 0.7)
    assert clone(model).get_params()["tau"] == 0.7


def test_tau_is_the_best_of_its_grid_and_beyond_its_edges():
    y = RNG.standard_normal(2000)
    zeros = np.zeros(2000)
    assert best_tau(zeros, zeros, y) == 1.0
    assert best_tau(zeros, zeros, 2.2 * y) == 4.0
    assert best_tau(zeros, zeros, 0.5 * y) == 0.25
    assert best_tau(zeros, zeros + 1.0, y) < TAUS[0]


def test_the_same_seed_gives_the_same_model():
    one, other = (regressor(p=0.1, max_epochs=3).fit(X, Y).predict(X) for _ in range(2))
    np.testing.assert_array_equal(one, other)
