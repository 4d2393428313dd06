"""A fitted model on its own: blocks of rows, precisions, and how much each input matters."""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from gpytorch.kernels import PeriodicKernel, ScaleKernel
from torch import nn

from paragp.data.tables import Column, Target
from paragp.fitted import PRECISE_ROWS, Fitted
from paragp.gp.methods import METHODS


def fitted(Z, columns, dtype=torch.float32):
    model = METHODS["svgp"].model("rbf", Z.to(dtype))
    return Fitted("svgp", model, tuple(columns), Target("y", 0.0, 1.0), {})


def numeric(*names):
    return [Column(name, "numeric") for name in names]


def test_what_is_encoded_at_once_does_not_grow_with_the_table(monkeypatch):
    seen, own = [], Column.encode
    monkeypatch.setattr(Column, "encode", lambda column, values: seen.append(len(values)) or own(column, values))
    X = np.linspace(-1, 1, 45_000)[:, None]
    model = fitted(torch.zeros(1, 1), numeric("a"))
    assert len(model.predict(X)) == len(model.predict_mean(X)) == 45_000
    assert max(seen) <= 20_000
    assert sum(seen) == 90_000


def test_a_model_trained_in_float32_is_the_same_model_in_float64():
    """Inducing points that nearly coincide are kept apart by the jitter alone, which belongs to the training."""
    generator = torch.Generator().manual_seed(0)
    model = fitted(1e-3 * torch.randn(12, 1, generator=generator), numeric("a"))
    with torch.no_grad():
        model.model.family.m.copy_(torch.randn(12, generator=generator))
    X = np.linspace(-2, 2, PRECISE_ROWS + 1)[:, None]
    np.testing.assert_allclose(model.predict(X[:10]).mean, model.predict(X).mean[:10], rtol=0.02, atol=0.02)


def test_relevance_is_one_over_the_squared_lengthscale_and_a_quarter_of_it_for_indicators():
    columns = [*numeric("a"), Column("t", "categorical", categories=("u", "v")), Column("b", "numeric", missing=True)]
    model = fitted(torch.zeros(1, 5), columns)
    model.model.kernel.base_kernel.lengthscale = torch.tensor([[2.0, 1.0, 0.5, 4.0, 0.5]])
    shares = {"a": 1 / 4, "t": (1 + 4) / 4, "b": 1 / 16 + 4 / 4}
    total = sum(shares.values())
    assert model.feature_relevance == pytest.approx({name: share / total for name, share in shares.items()}, rel=1e-5)


@pytest.mark.parametrize("rows", [10, PRECISE_ROWS + 1])
def test_tails_reach_the_predictions_of_all_blocks(rows):
    model = fitted(torch.zeros(1, 1), numeric("a"))
    X = np.linspace(-1, 1, rows)[:, None]
    normal = model.predict(X)
    assert np.isinf(normal.dof)
    model.model.likelihood.tails.fill_(0.2)  # a model in float32: 1 / .2 to its digits
    dist = model.predict(X)
    assert dist.dof == model.shape.dof == pytest.approx(5, rel=1e-6)
    np.testing.assert_array_equal(dist.var, normal.var)
    assert (model.interval(X, 0.999)[:, 1] > normal.interval(0.999)[:, 1]).all()


@pytest.fixture
def restore_interval():
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("n", [200, 2 * PRECISE_ROWS])
def test_threads_that_predict_at_once_predict_alike(n, restore_interval):
    """A kernel without a path of its own, and features that do something else while they are trained."""
    features = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.5))
    kernel = ScaleKernel(PeriodicKernel())
    model = METHODS["svgp"].model(kernel, torch.linspace(-1, 1, 48).reshape(6, 8), features=features)
    with torch.no_grad():
        model.family.m.copy_(torch.linspace(-1, 1, 6))
    shared = Fitted("svgp", model, tuple(numeric("a")), Target("y", 0.0, 1.0), {})
    assert not any(module.training for module in model.modules())
    X = np.linspace(-2, 2, n)[:, None]
    alone = shared.predict(X)
    sys.setswitchinterval(1e-6)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: shared.predict(X), range(64)))
    for dist in found:
        np.testing.assert_array_equal(dist.mean, alone.mean)
        np.testing.assert_array_equal(dist.var, alone.var)
