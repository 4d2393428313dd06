"""Deep kernel learning through the estimator: networks before the kernel, saved, loaded and refused."""

import json
import warnings

import gpytorch
import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import nn
from typer.testing import CliRunner

from paragp import METHODS, ParametricGPRegressor
from paragp.artefact import ModelFileError, _checksum
from paragp.cli import app
from paragp.gp.features import CollapsedFeaturesWarning
from paragp.metrics import nll

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, size=(400, 3))
Y = np.abs(X[:, 0]) + 0.2 * X[:, 1] + 0.1 * RNG.standard_normal(400)


def regressor(**options):
    return ParametricGPRegressor(**({"n_inducing": 20, "max_epochs": 10, "random_state": 0} | options))


def refused_with(folder, name, value):
    """A model whose config was altered, and its checksum with it, is not read."""
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config[name] = value
    config["config_sha256"] = _checksum(config)
    file.write_text(json.dumps(config))
    with pytest.raises(ModelFileError, match="cannot be read as a model"):
        ParametricGPRegressor.load(folder)


class Tower(nn.Module):
    """A module that is more than layers with ReLU between them."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 8), nn.Linear(8, 2)
        self.register_buffer("shift", torch.ones(()))

    def forward(self, x):
        return self.second(torch.tanh(self.first(x))) + self.shift


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_behind_a_network(method):
    model = regressor(method=method, features=(16, 4), max_epochs=30).fit(X[:300], Y[:300])
    dist = model.predict_dist(X[300:])
    assert nll(dist, Y[300:]) < 0.9  # a constant normal: 1.03
    assert model.lengthscales_ is None
    assert model.feature_relevance_ is None
    assert model.fitted_.model.family.Z.shape[1] == 4
    assert np.allclose(model.predict(X[300:]), dist.mean, atol=1e-6)


def test_the_network_is_trained_and_the_one_that_was_passed_is_not():
    module = Tower()
    before = [parameter.clone() for parameter in module.parameters()]
    model = regressor(features=module).fit(X, Y)
    assert all(torch.equal(one, other) for one, other in zip(before, module.parameters(), strict=True))
    trained = list(model.fitted_.model.features.parameters())
    assert not any(torch.equal(one.to(other), other) for one, other in zip(before, trained, strict=True))


def test_dropout_in_a_module_follows_the_seed():
    module = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.3), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    state = torch.random.get_rng_state()
    one = regressor(features=module).fit(X, Y).predict(X)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(7)
    np.testing.assert_array_equal(regressor(features=module).fit(X, Y).predict(X), one)


def test_the_solve_sees_features_as_they_are_at_prediction():
    module = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8))
    rows = np.resize(X, (2001, 3)) + 1e-3 * RNG.standard_normal((2001, 3))  # one row is left for the last chunk
    model = regressor(features=module, max_epochs=1, early_stopping=False, beta=0.05)
    assert np.isfinite(model.fit(rows, np.resize(Y, 2001)).predict(rows)).all()


@pytest.mark.parametrize("rows", [X[[0, 0]], np.ones((30, 3))])
def test_rows_that_are_all_equal_give_their_mean(rows):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # constant columns are reported
        model = regressor(features=(8, 2)).fit(rows, Y[: len(rows)])
    assert np.isfinite(model.predict(X)).all()
    assert model.predict(rows)[0] == pytest.approx(Y[: len(rows)].mean(), abs=0.2)


def test_a_kernel_is_checked_against_the_features():
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(ard_num_dims=3))
    for features in ((8, 2), nn.Linear(3, 2)):
        with pytest.raises(ValueError, match="does not take 2 inputs"):
            regressor(features=features, kernel=kernel).fit(X, Y)


def test_layers_are_saved_and_come_back(tmp_path):
    model = regressor(features=np.array([8, 2])).fit(X, Y)
    model.save(tmp_path / "model")
    again = ParametricGPRegressor.load(tmp_path / "model")
    assert again.get_params()["features"] == [8, 2]
    np.testing.assert_array_equal(again.predict_dist(X).std, model.predict_dist(X).std)
    clone(again).fit(X[:50], Y[:50])
    with pytest.raises(ValueError, match="does not ask for a module"):
        ParametricGPRegressor.load(tmp_path / "model", features=nn.Linear(3, 2))


def test_layers_that_are_more_than_their_sizes_are_not_saved(tmp_path):
    module = nn.Sequential(nn.Linear(3, 2))
    module.register_forward_hook(lambda *_: _[-1] * 2)
    model = regressor(features=module).fit(X, Y)
    with pytest.raises(ValueError, match="The features cannot be stored"):
        model.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("stored", [[8, 3], [9, 2], [8], [10**10], [], [8, -2], [8, 2.0], {"a": 1}, 7])
def test_altered_sizes_are_found(stored, tmp_path):
    regressor(features=(8, 2)).fit(X, Y).save(tmp_path / "model")
    refused_with(tmp_path / "model", "features", stored)


def test_a_module_of_ones_own_is_saved_by_its_values(tmp_path):
    model = regressor(features=Tower()).fit(X, Y)
    model.save(tmp_path / "model")
    with pytest.raises(ModelFileError, match=r"the values of a features module \('Tower'\)"):
        ParametricGPRegressor.load(tmp_path / "model")
    with pytest.raises(ModelFileError, match="features"):
        ParametricGPRegressor.load(tmp_path / "model", features=nn.Linear(3, 2))
    fresh = Tower()
    again = ParametricGPRegressor.load(tmp_path / "model", features=fresh)
    np.testing.assert_array_equal(again.predict_dist(X).std, model.predict_dist(X).std)
    assert isinstance(again.get_params()["features"], Tower)


def test_a_warm_start_goes_on_with_the_network():
    model = regressor(features=(8, 2), warm_start=True, learning_rate=1e-6).fit(X, Y)
    first = model.fitted_.model.features[0].weight
    model.set_params(random_state=1).fit(X, Y)
    again = model.fitted_.model.features[0].weight
    torch.testing.assert_close(again, first, atol=1e-3, rtol=0)
    model.set_params(features=(4, 2)).fit(X, Y)
    assert model.fitted_.model.features[0].weight.shape == (4, 3)


@pytest.mark.parametrize("features", [(), (8, 0), "wide", 8, (8, 2.5), (True,), {"a": 1}])
def test_sizes_that_are_none_are_refused(features):
    with pytest.raises(ValueError, match="features must be None, a torch module, or the sizes"):
        regressor(features=features).fit(X, Y)


def test_modules_that_cannot_be_used_are_refused():
    with pytest.raises(ValueError, match="does not take 3 inputs"):
        regressor(features=nn.Linear(5, 2)).fit(X, Y)
    with pytest.raises(ValueError, match="method='exact' takes no features"):
        regressor(method="exact", features=(8, 2)).fit(X, Y)
    one_point = nn.Linear(3, 2)
    nn.init.zeros_(one_point.weight)
    with pytest.raises(ValueError, match="Linear maps all rows to one point"):
        regressor(features=one_point).fit(X, Y)


def test_sizes_on_the_command_line(tmp_path):
    data = tmp_path / "rows.csv"
    np.savetxt(data, np.column_stack([X, Y]), delimiter=",", header="a,b,c,y", comments="")
    words = ["fit", str(data), "--target", "y", "--inducing", "10", "--epochs", "2"]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "model"), "--features", "8,2"])
    assert done.exit_code == 0, done.output
    assert ParametricGPRegressor.load(tmp_path / "model").features == [8, 2]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "other"), "--features", "8,wide"])
    assert done.exit_code == 2
    assert "Sizes are whole numbers with commas between, such as 256,128,64; got '8,wide'." in done.stderr
    assert not (tmp_path / "other").exists()


class Fading(nn.Module):
    """Its features vanish while it is trained."""

    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(3, 2), 0

    def forward(self, x):
        self.calls += self.training
        return self.layer(x) * (0.0 if self.calls > 3 else 1.0)


def test_a_network_that_collapsed_is_reported():
    with pytest.warns(CollapsedFeaturesWarning, match="has collapsed"):
        regressor(features=Fading(), early_stopping=False, beta=0.05).fit(X, Y)


# --- a network for the mean ---


def test_a_neural_mean_with_the_variance_of_inducing_points():
    model = regressor(mean=(32, 16), max_epochs=60).fit(X[:300], Y[:300])
    dist = model.predict_dist(X[300:])
    assert nll(dist, Y[300:]) < 0.5  # a constant normal: 1.03
    np.testing.assert_allclose(model.predict(X[300:]), dist.mean, atol=1e-6)
    assert model.fitted_.summary["mean"] == [32, 16]
    assert np.isfinite(model.predict(X[300:310], return_cov=True)[1]).all()
    assert set(model.lengthscales_) == {"x0", "x1", "x2"}


def test_a_module_for_the_mean_follows_the_seed_and_learns():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 32), nn.Dropout(0.1), nn.Tanh(), nn.Linear(32, 1), nn.Flatten(0))
    state = torch.random.get_rng_state()
    one = regressor(mean=module, max_epochs=30).fit(X[:300], Y[:300])
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(7)
    np.testing.assert_array_equal(
        regressor(mean=module, max_epochs=30).fit(X[:300], Y[:300]).predict(X), one.predict(X)
    )
    assert nll(one.predict_dist(X[300:]), Y[300:]) < 0.8


def test_a_mean_sees_the_features():
    model = regressor(mean="mlp", features=(8, 2)).fit(X, Y)
    assert model.fitted_.model.family.mean[0].in_features == 2
    assert model.fitted_.summary["mean"] == [256, 128, 64]


@pytest.mark.parametrize("mean", ["mlp", [8, 4]])
def test_a_mean_of_layers_is_saved_and_comes_back(mean, tmp_path):
    model = regressor(mean=mean, max_epochs=2).fit(X, Y)
    model.save(tmp_path / "model")
    again = ParametricGPRegressor.load(tmp_path / "model")
    assert again.get_params()["mean"] == mean
    np.testing.assert_array_equal(again.predict_dist(X).std, model.predict_dist(X).std)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    clone(again).fit(X[:50], Y[:50])
    with pytest.raises(ValueError, match="leave out mean"):
        ParametricGPRegressor.load(tmp_path / "model", mean=nn.Linear(3, 1))


def test_a_mean_of_ones_own_is_saved_by_its_values(tmp_path):
    model = regressor(mean=nn.Sequential(Tower(), nn.Linear(2, 1))).fit(X, Y)
    model.save(tmp_path / "model")
    assert "mean=module" in (tmp_path / "model" / "README.md").read_text()
    with pytest.raises(ModelFileError, match=r"load\(path, mean=module\)"):
        ParametricGPRegressor.load(tmp_path / "model")
    again = ParametricGPRegressor.load(tmp_path / "model", mean=nn.Sequential(Tower(), nn.Linear(2, 1)))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


@pytest.mark.parametrize("stored", [[8, 2], [8], [9, 1], [], None, 7])
def test_altered_sizes_of_a_mean_are_found(stored, tmp_path):
    regressor(mean=(8,), max_epochs=1).fit(X, Y).save(tmp_path / "model")
    refused_with(tmp_path / "model", "mean", stored)


def test_means_that_cannot_be_used_are_refused():
    for mean, message in (
        ("deep", 'mean must be None, "mlp"'),
        ((8, 0), "mean must be None"),
        (nn.Linear(3, 2), r"The mean module Linear must give \(2, 1\) for 2 rows"),
        (nn.Identity(), "has no parameters"),
        (nn.Linear(5, 1), "does not take 3 inputs"),
    ):
        with pytest.raises(ValueError, match=message):
            regressor(mean=mean).fit(X, Y)
    for method in ("ppgpr-mf", "od-svgp", "exact"):
        with pytest.raises(ValueError, match="A mean is for 'ppgpr-mfd'"):
            regressor(method=method, mean="mlp").fit(X, Y)


def test_a_warm_start_goes_on_with_the_mean():
    model = regressor(mean=(8,), warm_start=True).fit(X, Y)
    first = model.fitted_.model.family.mean[0].weight
    model.set_params(learning_rate=1e-6).fit(X, Y)
    torch.testing.assert_close(model.fitted_.model.family.mean[0].weight, first, atol=1e-3, rtol=0)


def test_a_mean_on_the_command_line(tmp_path):
    data = tmp_path / "rows.csv"
    np.savetxt(data, np.column_stack([X, Y]), delimiter=",", header="a,b,c,y", comments="")
    words = ["fit", str(data), "--target", "y", "--inducing", "10", "--epochs", "2"]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "model"), "--mean", "8,4"])
    assert done.exit_code == 0, done.output
    shown = CliRunner().invoke(app, ["info", str(tmp_path / "model")])
    assert "network for the mean: [8, 4]" in shown.output
