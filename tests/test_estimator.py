"""The scikit-learn face: scikit-learn's own checks, its tools, real tables, and messages for what is wrong."""

import copy
import pickle
import warnings
from contextlib import contextmanager
from decimal import Decimal

import gpytorch
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import sklearn
import torch
from gpytorch import kernels
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from paragp import METHODS, ParametricGPRegressor
from paragp.estimator import PRECISE_ROWS

rng = np.random.default_rng(0)
X = rng.normal(size=(150, 3))
Y = 5 + 2 * X[:, 0] + 0.3 * rng.normal(size=150)


def quick(method="ppgpr-mfd", **parameters):
    return ParametricGPRegressor(method, **{"max_epochs": 3, "n_inducing": 8, "random_state": 0, **parameters})


def table(n=80, seed=0):
    """Numbers with gaps, booleans, text and categories."""
    own = np.random.default_rng(seed)
    frame = pd.DataFrame({
        "size": own.normal(100, 20, n),
        "city": own.choice(["Oslo", "Bergen", "Moss"], n),
        "new": own.random(n) < 0.3,
        "grade": pd.Categorical(own.choice(["a", "b"], n)),
        "age": np.where(own.random(n) < 0.2, np.nan, own.integers(0, 90, n)),
    })  # fmt: skip
    price = 3 * frame["size"] + 80 * (frame["city"] == "Oslo") + own.normal(0, 5, n)
    return frame, price.rename("price")


@parametrize_with_checks([ParametricGPRegressor()])
def test_scikit_learns_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


@pytest.mark.parametrize(
    "asked",
    [
        {"max_epochs": 2}, {"features": (4,)}, {"mean": (4,)}, {"recipe": "adam"}, {"learning_rate": 0.1},
        {"renyi": 0.5}, {"batch_size": 50},
    ],
)  # fmt: skip
def test_auto_takes_gradient_steps_where_something_is_set_that_only_they_have(asked):
    assert ParametricGPRegressor(**asked)._method == "ppgpr-mfd"
    assert ParametricGPRegressor("svgp", **asked)._method == "svgp"


@pytest.mark.parametrize(("asked", "method"), [({"beta": 0.3}, "two-stage"), ({"max_epochs": 2}, "ppgpr-mfd")])
def test_what_auto_stood_for_is_kept(asked, method, tmp_path):
    model = ParametricGPRegressor(n_inducing=8, random_state=0, **asked).fit(X, Y)
    assert (model.method, model.fitted_.method) == ("auto", method)
    model.save(tmp_path / "model")
    assert ParametricGPRegressor.load(tmp_path / "model").method == method


def test_a_warm_start_of_auto_begins_anew_where_it_stands_for_another_method():
    model = ParametricGPRegressor(n_inducing=8, random_state=0, warm_start=True).fit(X, Y)
    model.set_params(max_epochs=2).fit(X, Y)
    assert model.fitted_.method == "ppgpr-mfd"


def test_the_default_estimator_declares_no_excuses():
    tags = ParametricGPRegressor().__sklearn_tags__()
    assert not tags.non_deterministic
    assert not tags.no_validation
    assert not tags.regressor_tags.poor_score


# --- it learns ---
@pytest.mark.parametrize("method", [*METHODS, "exact", "fitc"])
def test_every_method_learns_and_knows_how_well(method):
    epochs = 30 if method in ("exact", "fitc") else 150
    model = quick(method, max_epochs=epochs, n_inducing=20).fit(X[:120], Y[:120])
    assert model.score(X[120:], Y[120:]) > 0.8
    mean, std = model.predict(X[120:], return_std=True)
    assert np.abs((Y[120:] - mean) / std).max() < 6
    assert model.predict_dist(X[120:]).noise_std.min() > 0
    assert sum(model.feature_relevance_.values()) == pytest.approx(1)


def test_the_relevant_input_is_found_by_its_name():
    frame = pd.DataFrame(X, columns=["cause", "noise", "more noise"])
    model = quick(max_epochs=200, n_inducing=30).fit(frame, Y)
    assert max(model.feature_relevance_, key=model.feature_relevance_.get) == "cause"
    assert set(model.lengthscales_) == set(frame.columns)


def test_units_of_the_target_and_of_the_inputs_do_not_matter():
    plain = quick().fit(X, Y)
    scaled = quick().fit(1e6 * X - 3, 1e-6 * Y + 2)
    np.testing.assert_allclose(scaled.predict(1e6 * X - 3), 1e-6 * plain.predict(X) + 2, rtol=0, atol=1e-9)
    stds = scaled.predict(1e6 * X - 3, return_std=True)[1], plain.predict(X, return_std=True)[1]
    np.testing.assert_allclose(stds[0], 1e-6 * stds[1], rtol=1e-3)


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_scales_from_tiny_to_huge(scale):
    mean, std = quick().fit(scale * X, scale * Y).predict(scale * X, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    assert np.corrcoef(mean, Y)[0, 1] > 0.5


def test_order_and_copies_of_rows_do_not_matter_for_small_tables():
    order = rng.permutation(150)
    first, second = quick().fit(X, Y), quick().fit(X[order], Y[order])
    np.testing.assert_array_equal(first.predict(X), second.predict(X))
    copies = rng.integers(0, 3, size=150)
    weighted = quick().fit(X, Y, sample_weight=copies)
    repeated = quick().fit(X.repeat(copies, 0), Y.repeat(copies))
    np.testing.assert_array_equal(weighted.predict(X), repeated.predict(X))


@pytest.mark.parametrize("method", ["exact", "fitc"])
def test_full_batch_methods_take_whole_weights_as_copies(method):
    copies = rng.integers(0, 3, size=40)
    weighted = quick(method).fit(X[:40], Y[:40], sample_weight=copies)
    repeated = quick(method).fit(X[:40].repeat(copies, 0), Y[:40].repeat(copies))
    np.testing.assert_allclose(weighted.predict(X), repeated.predict(X))
    with pytest.raises(ValueError, match="whole-number sample weights"):
        quick(method).fit(X, Y, sample_weight=np.full(150, 0.5))


def many_rows(n=PRECISE_ROWS + 200):
    """Rows beyond what is folded into distinct ones, and a number of copies for each."""
    own = np.random.default_rng(5)
    x = own.normal(size=(n, 2))
    copies = np.where(x[:, 0] > 0, 3, 1)
    return x, x[:, 0] + np.where(x[:, 1] > 0, 5, 0) + own.normal(size=n), copies


def test_weights_are_copies_in_the_standardisation_of_large_tables():
    x, y, copies = many_rows()
    weighted = quick(max_epochs=1, early_stopping=False, beta=1.0).fit(x, y, copies).fitted_
    repeated = quick(max_epochs=1, early_stopping=False, beta=1.0).fit(x.repeat(copies, 0), y.repeat(copies)).fitted_
    for one, other, plain in (
        (weighted.target, repeated.target, y),
        (weighted.columns[0], repeated.columns[0], x[:, 0]),
    ):
        assert one.mean == pytest.approx(other.mean)
        assert one.deviation == pytest.approx(other.deviation)
        assert one.mean != pytest.approx(plain.mean(), rel=0.01)


@pytest.mark.parametrize("method", ["ppgpr-mfd", "svgp"])
def test_weights_are_copies_in_the_training_of_large_tables(method):
    """From the same start, with one batch an epoch: nothing is random."""
    x, y, copies = many_rows()
    start = quick(method, max_epochs=1, early_stopping=False, beta=1.0, dtype="float64").fit(x, y)

    def trained(*rows):
        model = copy.deepcopy(start).set_params(warm_start=True, batch_size=10**6)
        return model.fit(*rows).predict(x[:50])

    expected = trained(x.repeat(copies, 0), y.repeat(copies))
    np.testing.assert_allclose(trained(x, y, copies), expected, rtol=1e-6)
    assert np.abs(trained(x, y) - expected).max() > 1e-3


def test_weights_of_validation_rows_count_in_every_epoch_and_in_the_end():
    x, y, weights = X[100:], Y[100:] + 10 * (np.arange(50) < 25), np.where(np.arange(50) < 25, 0.1, 3.0)
    model = quick(beta=0.05).fit(X[:100], Y[:100], X_val=x, y_val=y, sample_weight_val=weights)
    losses = -model.predict_dist(x).logpdf(y)
    expected = np.average(losses, weights=weights)
    assert model.validation_scores_["nll"] == pytest.approx(expected, abs=1e-9)
    found = min(record["nll"] for record in model.history_) + np.log(model.fitted_.target.deviation)
    assert found == pytest.approx(expected, abs=1e-9)
    assert losses.mean() > expected + 0.5


def test_batches_are_as_large_as_asked():
    one, other = (quick(batch_size=size, early_stopping=False, beta=0.05).fit(X, Y).predict(X) for size in (10, 150))
    assert np.abs(one - other).max() > 1e-6
    np.testing.assert_array_equal(other, quick(early_stopping=False, beta=0.05).fit(X, Y).predict(X))


# --- what comes out ---
def test_the_ways_to_ask_agree():
    model = quick().fit(X, Y)
    dist, (mean, std) = model.predict_dist(X), model.predict(X, return_std=True)
    np.testing.assert_array_equal(dist.mean, mean)
    np.testing.assert_array_equal(dist.std, std)
    np.testing.assert_allclose(model.predict(X), mean)
    np.testing.assert_array_equal(model.predict_interval(X, 0.8), dist.interval(0.8))
    np.testing.assert_array_equal(model.predict_quantiles(X, [0.1, 0.9]), dist.interval(0.8))
    assert model.predict_quantiles(X).shape == (150, 3)
    np.testing.assert_allclose(dist.noise_std, model.noise_std_)


@pytest.mark.parametrize("method", ["ppgpr-mfd", "od-svgp", "ppgpr-mf", "svgp", "map", "exact"])
def test_covariance_has_the_variances_on_its_diagonal_and_samples_follow_it(method):
    model = quick(method).fit(X, Y)
    mean, covariance = model.predict(X[:4], return_cov=True)
    np.testing.assert_allclose(np.sqrt(covariance.diagonal()), model.predict(X[:4], return_std=True)[1], rtol=1e-6)
    assert np.linalg.eigvalsh(covariance).min() > 0
    draws = model.sample_y(X[:4], n_samples=20_000)
    scale = np.sqrt(covariance.diagonal().max())
    np.testing.assert_allclose(draws.mean(1), mean, atol=0.05 * scale)
    np.testing.assert_allclose(np.cov(draws), covariance, atol=0.05 * scale**2)


def test_joint_samples_of_a_mixture_have_its_quantiles_and_hang_together():
    model = quick("svgp").fit(X, Y)
    near = np.concatenate([X[:2], X[:1] + 1e-4])
    model.fitted_.model.likelihood.raw.data.fill_(-20.0)  # next to no noise: rows that lie close are alike
    model.fitted_.model.likelihood.parts.copy_(torch.tensor([[0.3, -0.4, 0.1], [0.65, -0.05, 0.5], [0.05, 3.0, 2.0]]))
    draws = model.sample_y(near, n_samples=20_000)
    for p, quantiles in zip((0.1, 0.5, 0.99), model.predict_quantiles(near, (0.1, 0.5, 0.99)).T, strict=True):
        np.testing.assert_allclose((draws <= quantiles[:, None]).mean(1), p, atol=0.012)
    _, covariance = model.predict(near, return_cov=True)
    expected = covariance[0, 2] / np.sqrt(covariance[0, 0] * covariance[2, 2])
    assert stats.spearmanr(draws[0], draws[2]).statistic == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize("method", ["svgp", "exact"])
def test_joint_samples_of_a_student_have_the_covariance_and_the_tails(method):
    model = quick(method).fit(X, Y)
    _, covariance = model.predict(X[:3], return_cov=True)
    model.fitted_.model.likelihood.tails.fill_(0.125)
    mean, same = model.predict(X[:3], return_cov=True)
    np.testing.assert_array_equal(same, covariance)
    draws = model.sample_y(X[:3], n_samples=60_000)
    np.testing.assert_array_equal(draws, model.sample_y(X[:3], n_samples=60_000))
    scale = np.sqrt(covariance.diagonal().max())
    np.testing.assert_allclose(draws.mean(1), mean, atol=0.05 * scale)
    np.testing.assert_allclose(np.cov(draws), covariance, atol=0.05 * scale**2)
    low, high = model.predict_interval(X[:3], 0.999).T[:, :, None]
    np.testing.assert_allclose(((low <= draws) & (draws <= high)).mean(1), 0.999, atol=5e-4)  # a normal's: .9966
    values, vectors = np.linalg.eigh(covariance)  # where rows are uncorrelated, their squares are not
    apart = (vectors.T @ (draws - mean[:, None])) / np.sqrt(values)[:, None]
    assert np.corrcoef(apart**2)[0, 1:].min() > 0.1


def test_a_covariance_of_very_many_rows_is_refused():
    with pytest.raises(ValueError, match="would hold 10001\\^2 numbers"):
        quick().fit(X, Y).predict(np.zeros((10_001, 3)), return_cov=True)


def test_one_row_alone_and_in_a_batch_agree():
    many = rng.normal(size=(PRECISE_ROWS + 500, 3))
    model = quick(n_inducing=40).fit(many, many[:, 0])
    assert model.fitted_.summary["dtype"] == "float32"
    for ask in (lambda x: model.predict(x), lambda x: model.predict(x, return_std=True)[1]):
        alone = np.concatenate([ask(row[None]) for row in X[:20]])
        np.testing.assert_allclose(alone, ask(X[:20]), rtol=1e-7)
    np.testing.assert_allclose(model.predict(many)[:20], model.predict(many[:20]), rtol=1e-3, atol=1e-3)


def test_history_tells_the_epochs():
    model = quick(max_epochs=5, beta=0.05).fit(X, Y)
    assert model.n_iter_ == len(model.history_) == 5
    assert set(model.history_[0]) == {"epoch", "objective", "learning_rate", "seconds", "nll", "rmse", "crps"}
    assert [record["epoch"] for record in model.history_] == [1, 2, 3, 4, 5]
    assert set(model.validation_scores_) >= {"nll", "rmse", "crps", "coverage_90"}


# --- validation, search, early stopping, warm start ---
def test_the_best_epoch_on_the_validation_rows_is_kept():
    model = quick(max_epochs=40, learning_rate=0.5, beta=0.05, early_stopping=True, n_iter_no_change=5).fit(X, Y)
    scores = [record["nll"] for record in model.history_]
    assert model.n_iter_ < 40
    assert model.fitted_.summary["best_epoch"] == int(np.argmin(scores)) + 1
    deviation = model.fitted_.target.deviation
    assert model.validation_scores_["nll"] - np.log(deviation) == pytest.approx(min(scores), abs=1e-6)


def test_auto_beta_is_one_of_the_grid_and_the_best_of_it():
    model = quick(max_epochs=30).fit(X, Y)
    assert model.beta_ in METHODS["ppgpr-mfd"].beta
    assert model.n_iter_ <= 30 + 3 * 3
    assert quick(beta=0.7).fit(X, Y).beta_ == 0.7
    robust = quick("gamma-robust", max_epochs=10).fit(X, Y)
    assert robust.gamma_ in METHODS["gamma-robust"].gamma
    assert robust.beta_ == 1.0
    powers = quick("bb-alpha", max_epochs=10).fit(X, Y)
    assert powers.bb_alpha_ in METHODS["bb-alpha"].bb_alpha
    assert quick("bb-alpha", bb_alpha=0.7).fit(X, Y).bb_alpha_ == 0.7


def test_the_order_of_the_regulariser_makes_another_model():
    kl, other = (quick("ppgpr-mf", beta=1.0, renyi=order).fit(X, Y).predict_dist(X) for order in (1, 0.2))
    assert np.abs(kl.std - other.std).max() > 1e-4 * np.std(Y)


def test_noise_that_depends_on_the_row_has_no_one_deviation():
    model = quick("ppgpr-log").fit(X, Y)
    assert model.noise_std_ is None
    assert np.ptp(model.predict_dist(X).noise_std) > 0


def test_given_validation_rows_are_used():
    model = quick(beta=0.05).fit(X[:100], Y[:100], X_val=X[100:], y_val=Y[100:], sample_weight_val=np.ones(50))
    assert model.fitted_.summary["validation_rows"] == 50
    assert model.fitted_.summary["rows"] == 100
    dist = model.predict_dist(X[100:])
    assert model.validation_scores_["nll"] == pytest.approx(-dist.logpdf(Y[100:]).mean(), abs=1e-6)
    with pytest.raises(ValueError, match="both X_val and y_val"):
        quick().fit(X, Y, X_val=X)


@pytest.mark.parametrize("yes", [True, np.True_, 1])
def test_the_smallest_tables_spare_no_rows_unless_asked(yes):
    assert quick().fit(X[:29], Y[:29]).validation_scores_ is None
    assert quick(early_stopping=yes).fit(X[:29], Y[:29]).fitted_.summary["validation_rows"] == 3


@pytest.mark.parametrize(("rows", "held_out"), [(30, 10), (60, 20), (150, 20), (250, 25)])
def test_small_tables_hold_out_enough_rows_to_tell_by(rows, held_out):
    x = np.linspace(-2, 2, rows)[:, None]
    assert quick().fit(x, np.sin(3 * x[:, 0])).fitted_.summary["validation_rows"] == held_out


def test_rows_are_not_spared_where_nothing_is_chosen_by_them():
    assert quick("map", recipe="adam").fit(X, Y).fitted_.summary["validation_rows"] == 0
    assert quick("map").fit(X, Y).fitted_.summary["validation_rows"] == 20
    assert quick(recipe="adam").fit(X, Y).fitted_.summary["validation_rows"] == 20  # beta is searched


@pytest.mark.parametrize("no", [False, np.False_, 0])
def test_training_stops_early_only_when_asked(no):
    settings = {"max_epochs": 12, "learning_rate": 0.5, "n_iter_no_change": 1}
    assert quick(early_stopping=no, **settings).fit(X, Y).n_iter_ >= 12
    assert quick(early_stopping=True, **settings).fit(X, Y).n_iter_ < 12
    assert quick(early_stopping=no, beta=0.05).fit(X, Y).validation_scores_ is None


def test_rows_are_counted_as_they_came():
    twice = quick(beta=0.05).fit(np.tile(X, (2, 1)), np.tile(Y, 2)).fitted_.summary
    assert (twice["rows"], twice["validation_rows"]) == (260, 40)
    weighted = quick(beta=0.05).fit(X, Y, np.full(150, 2.0)).fitted_.summary
    assert (weighted["rows"], weighted["validation_rows"]) == (130, 20)


def test_warm_start_goes_on_where_it_was():
    model = quick(warm_start=True, early_stopping=False, beta=0.05, max_epochs=20).fit(X, Y)
    first = model.history_[0]["objective"], model.history_[-1]["objective"]
    model.fit(X, Y)
    assert model.history_[0]["objective"] > first[0]
    assert model.history_[-1]["objective"] > first[1]


CHANGES = [
    {"method": "svgp"}, {"kernel": "rbf"}, {"kernel": gpytorch.kernels.RBFKernel()}, {"n_inducing": 20},
    {"n_inducing_variance": 3}, {"categorical_features": [1]},
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_warm_start_with_another_form_of_model_starts_anew(change):
    rounded = X.round()
    model = quick(warm_start=True, max_epochs=1).fit(rounded, Y).set_params(**change).fit(rounded, Y)
    np.testing.assert_array_equal(model.predict(X), quick(max_epochs=1, **change).fit(rounded, Y).predict(X))


def test_a_warm_start_that_is_interrupted_leaves_the_model_as_it_was(monkeypatch):
    model = quick(warm_start=True).fit(X, Y)
    before = model.predict(X, return_std=True)

    @contextmanager
    def interrupting(*_):
        def show(record):
            raise KeyboardInterrupt

        yield show

    monkeypatch.setattr("paragp.estimator._progress", interrupting)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y + 10)
    np.testing.assert_array_equal(model.predict(X, return_std=True), before)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X, return_std=True), before)


def test_warm_start_takes_more_rows_but_not_other_columns():
    many = rng.normal(size=(PRECISE_ROWS + 100, 3))
    model = quick(warm_start=True).fit(X, Y).fit(many, many[:, 0])
    assert model.fitted_.summary["dtype"] == "float32"
    assert np.isfinite(model.predict(many)).all()
    with pytest.raises(ValueError, match="expecting 3 features"):
        model.fit(X[:, :2], Y)


def test_inducing_points_are_as_asked_and_never_more_than_rows():
    family = quick(n_inducing=8, n_inducing_variance=5).fit(X, Y).fitted_.model.family
    assert len(family.Z) == 8
    assert len(family.Z_variance) == 5
    assert len(quick(n_inducing=1000).fit(X[:25], Y[:25]).fitted_.model.family.Z) == 25


def test_random_state_decides_and_global_state_is_untouched():
    np.random.seed(3)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    first, second, other = (quick(random_state=s).fit(X, Y).predict(X) for s in (1, 1, 2))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)
    np.testing.assert_array_equal(before, np.random.get_state()[1])  # noqa: NPY002


def test_progress_is_shown_when_asked_and_silent_otherwise(capsys):
    quick().fit(X, Y)
    assert capsys.readouterr() == ("", "")
    quick(verbose=1).fit(X, Y)
    assert "validation NLL" in capsys.readouterr().err


# --- tables ---
@pytest.mark.parametrize(
    "convert", [lambda f: f, pl.from_pandas, pa.Table.from_pandas], ids=["pandas", "polars", "arrow"]
)
def test_frames_of_any_make_give_the_same_predictions(convert):
    frame, price = table()
    expected = quick().fit(frame, price).predict(frame, return_std=True)
    model = quick().fit(convert(frame), price.to_numpy())
    np.testing.assert_allclose(model.predict(convert(frame), return_std=True), expected)
    assert list(model.feature_names_in_) == list(frame.columns)


def test_unseen_categories_are_uncertain_not_an_error():
    frame, price = table(200)
    model = quick(max_epochs=100, n_inducing=30).fit(frame, price)
    known = model.predict_dist(frame).function_std
    unseen = model.predict_dist(frame.assign(city="Paris")).function_std
    assert unseen.mean() > known.mean()


def test_a_missing_value_is_its_own_fact():
    x = pd.DataFrame({"a": [np.nan, 1.0, 2.0, 3.0] * 20})
    y = np.array([10.0, 0.0, 0.1, 0.2] * 20)
    model = quick(max_epochs=200).fit(x, y)
    assert model.predict(x)[0] > 5
    assert model.predict(x)[1] < 3


def test_categories_by_position_in_an_array():
    codes = np.arange(150) % 3
    model = quick(categorical_features=[1]).fit(np.c_[X[:, 0], codes], Y)
    assert model.fitted_.columns[1].categories == ("0", "1", "2")
    objects = np.array([[1.0, "u"], [2.0, "v"]] * 20, dtype=object)
    y = Y[:40] + 5 * (objects[:, 1] == "u")
    expected = quick(categorical_features=[1]).fit(objects, y).predict(objects)
    assert expected[0] > expected[1]
    for made in (objects.tolist(), objects.astype(str), pd.DataFrame(objects, columns=["a", "b"])):
        model = quick(categorical_features=[1]).fit(made, y)
        np.testing.assert_array_equal(model.predict(made), expected)
    assert quick(categorical_features=[0]).fit(np.array([["u"], ["v"]] * 5), Y[:10]).fitted_.columns[0].categories


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_a_frame_and_its_array_are_predicted_alike():
    model = quick().fit(FRAME, PRICE)
    np.testing.assert_array_equal(model.predict(FRAME.to_numpy()), model.predict(FRAME))


@pytest.mark.parametrize("n", [40, PRECISE_ROWS + 100])
def test_declared_categories_may_be_dates_or_infinite(n):
    dates = pd.DataFrame({"d": pd.to_datetime(["2020-01-01", "2020-02-01"] * (n // 2)), "e": [1.0, np.inf] * (n // 2)})
    model = quick(categorical_features=["d", "e"], max_epochs=1).fit(dates, np.arange(n) % 2 + 0.1 * np.arange(n))
    assert [len(column.categories) for column in model.fitted_.columns] == [2, 2]
    assert np.isfinite(model.predict(dates)).all()


WIDE = pa.table({"id": [2**60 + 1, 2**60 + 9] * 20, "a": X[:40, 0]})


@pytest.mark.parametrize("convert", [lambda t: t, pl.from_arrow, lambda t: t.to_pandas(types_mapper=pd.ArrowDtype)])
def test_whole_numbers_beyond_2_to_53_are_fitted_and_predicted(convert):
    model = quick(max_epochs=1).fit(convert(WIDE), Y[:40])
    assert np.isfinite(model.predict(convert(WIDE))).all()


def test_text_in_views_is_fitted_and_predicted():
    frame = pa.table({"t": pa.array(["u", "v"] * 20, pa.string_view()), "a": X[:40, 0]})
    assert np.isfinite(quick(max_epochs=1).fit(frame, Y[:40]).predict(frame)).all()


def test_a_target_far_from_zero_keeps_its_spread():
    far = quick(beta=0.05).fit(X, 1e12 + Y)
    assert far.predict(X, return_std=True)[1].max() < 10
    np.testing.assert_allclose(far.predict(X) - 1e12, quick(beta=0.05).fit(X, Y).predict(X), atol=1e-2)


@pytest.mark.parametrize(
    ("y", "name"),
    [(Y[:40], "y"), (pd.Series(Y[:40], name=0), "0"), (pd.Series(Y[:40]), "y"), (pl.Series("p", Y[:40]), "p")],
)
def test_the_target_is_called_by_its_name(y, name):
    assert quick(max_epochs=1).fit(X[:40], y).fitted_.target.name == name


@pytest.mark.filterwarnings("ignore:A column-vector y")
def test_a_frame_with_a_column_called_name_has_no_name():
    assert quick(max_epochs=1).fit(X[:40], pd.DataFrame({"name": Y[:40]})).fitted_.target.name == "y"


# --- scikit-learn's tools ---
def test_pipeline_search_scoring_and_target_transform():
    pipeline = make_pipeline(StandardScaler(), quick())
    search = GridSearchCV(pipeline, {"parametricgpregressor__beta": [0.05, 1.0]}, cv=2).fit(X, Y)
    assert search.best_params_
    assert cross_val_score(quick(), X, Y, cv=2).shape == (2,)
    logged = TransformedTargetRegressor(quick(), func=np.log, inverse_func=np.exp).fit(X, np.exp(Y / 10))
    assert (logged.predict(X) > 0).all()


def test_parallel_search_gives_the_same():
    search = {"beta": [0.05, 1.0]}
    one, two = (GridSearchCV(quick(), search, cv=2, n_jobs=jobs).fit(X, Y) for jobs in (1, 2))
    np.testing.assert_allclose(one.cv_results_["mean_test_score"], two.cv_results_["mean_test_score"], rtol=1e-6)


def test_metadata_is_routed():
    with sklearn.config_context(enable_metadata_routing=True):
        model = quick().set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        search = GridSearchCV(model, {"beta": [1.0]}, cv=2).fit(X, Y, sample_weight=np.ones(150))
    assert search.best_params_ == {"beta": 1.0}


def test_clone_and_pickle_before_and_after_prediction():
    model = quick().fit(X, Y)
    small = len(pickle.dumps(model))
    expected = model.predict(X)
    assert len(pickle.dumps(model)) == pytest.approx(small, rel=0.02)  # caches stay behind
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X), expected)
    assert not hasattr(clone(model), "fitted_")
    assert not hasattr(clone(model), "noise_std_")


def test_mapie_makes_conformal_intervals_of_it():
    mapie = pytest.importorskip("mapie.regression")
    model = quick(max_epochs=60, n_inducing=20).fit(X[:60], Y[:60])
    conformal = mapie.SplitConformalRegressor(model, confidence_level=0.8, prefit=True)
    mean, intervals = conformal.conformalize(X[60:110], Y[60:110]).predict_interval(X[110:])
    np.testing.assert_allclose(mean, model.predict(X[110:]))
    inside = (intervals[:, 0, 0] <= Y[110:]) & (Y[110:] <= intervals[:, 1, 0])
    assert inside.mean() > 0.55


def test_crepes_scales_its_intervals_by_our_deviations():
    crepes = pytest.importorskip("crepes")
    model = quick(max_epochs=60, n_inducing=20).fit(X[:60], Y[:60])
    mean, std = model.predict(X, return_std=True)
    conformal = crepes.ConformalRegressor().fit(Y[60:110] - mean[60:110], sigmas=std[60:110])
    intervals = conformal.predict_int(mean[110:], sigmas=std[110:], confidence=0.8)
    widths = intervals[:, 1] - intervals[:, 0]
    np.testing.assert_allclose(widths / std[110:], widths[0] / std[110])


# --- a gpytorch kernel ---
def test_a_gpytorch_kernel_is_copied_not_changed():
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel() + gpytorch.kernels.LinearKernel())
    before = kernel.outputscale.item()
    model = quick(kernel=kernel).fit(X, Y)
    assert kernel.outputscale.item() == before
    assert model.lengthscales_ is None
    assert model.feature_relevance_ is None


# --- what is wrong is said ---
def with_value(value, row=3, column=1):
    changed = X.copy()
    changed[row, column] = value
    return changed


def missing_targets():
    changed = Y.copy()
    changed[[2, 7]] = np.nan
    return changed


FRAME, PRICE = table()
HUGE = pd.DataFrame({"a": [10**400, 1]})
DATES = FRAME.assign(size=pd.Timestamp("2020-01-01"))
TWICE = pa.Table.from_arrays([pa.array([1.0, 2.0])] * 2, names=["a", "a"])
BAD_FITS = {
    "infinite input": (lambda: quick().fit(with_value(np.inf), Y), "Column 'x1' holds 1 infinite values"),
    "missing target": (lambda: quick().fit(X, missing_targets()), "in 2 of 150 rows, the first in row 2"),
    "text target": (lambda: quick().fit(X, ["a"] * 150), "must hold numbers"),
    "two targets": (lambda: quick().fit(X, np.c_[Y, Y]), "1d array"),
    "no target": (lambda: quick().fit(X, None), "requires y to be passed"),
    "huge target": (lambda: quick().fit(X, 1e200 * Y), "Rescale y"),
    "one row": (lambda: quick().fit(X[:1], Y[:1]), "at least 2 rows"),
    "no rows": (lambda: quick().fit(X[:0], Y[:0]), "0 sample"),
    "no rows in a frame": (lambda: quick().fit(FRAME[:0], PRICE[:0]), "0 row"),
    "unequal lengths": (lambda: quick().fit(X, Y[1:]), "inconsistent numbers of samples"),
    "text array": (lambda: quick().fit(np.array([["a"], ["b"]]), Y[:2]), "numeric"),
    "dates": (lambda: quick().fit(DATES, PRICE), "Column 'size' is of type Datetime"),
    "a name twice": (lambda: quick().fit(TWICE, Y[:2]), "unique column names"),
    "a number too large": (lambda: quick().fit(np.array([[10**400], [1]], dtype=object), Y[:2]), "too large"),
    "text as a number": (lambda: quick(categorical_features=None).fit(FRAME, PRICE), "Column 'city' holds"),
    "unknown categories": (lambda: quick(categorical_features=["q"]).fit(X, Y), "list of column names"),
    "negative weights": (lambda: quick().fit(X, Y, -np.ones(150)), "Negative values"),
    "unknown method": (lambda: quick("x").fit(X, Y), "method must be one of auto, map, svgp"),
    "unknown kernel": (lambda: quick(kernel="x").fit(X, Y), "kernel must be one of matern12"),
    "kernel of another kind": (lambda: quick(kernel=3).fit(X, Y), "name or a gpytorch kernel"),
    "no inducing points": (lambda: quick(n_inducing=0).fit(X, Y), "n_inducing must be a whole number at least 1"),
    "half a point": (lambda: quick(n_inducing=2.5).fit(X, Y), "n_inducing must be a whole number"),
    "negative beta": (lambda: quick(beta=-1).fit(X, Y), "beta must be a number at least 0"),
    "gamma without use": (lambda: quick(gamma=1.03).fit(X, Y), "has no gamma"),
    "a power without use": (lambda: quick(bb_alpha=0.5).fit(X, Y), "has no bb_alpha"),
    "a power above one": (lambda: quick("bb-alpha", bb_alpha=1.5).fit(X, Y), "bb_alpha must be a number above 0"),
    "no order": (lambda: quick(renyi=0).fit(X, Y), "renyi must be a number above 0"),
    "no epochs": (lambda: quick(max_epochs=0).fit(X, Y), "max_epochs must be a whole number"),
    "fraction": (lambda: quick(validation_fraction=1.0).fit(X, Y), "must be a number above 0 and below 1"),
    "dtype": (lambda: quick(dtype="float16").fit(X, Y), 'dtype must be "float32" or "float64"'),
    "device": (lambda: quick(device="nowhere").fit(X, Y), "device must be"),
    "huge whole target": (lambda: quick().fit(X[:2], [10**400, 1]), "The target y must hold numbers"),
    "target of dates": (lambda: quick().fit(X[:2], np.array([1, 2], "M8[D]")), "must hold numbers, not dates"),
    "target of durations": (lambda: quick().fit(X[:2], pd.Series([1, 2], dtype="m8[ns]")), "not dates or durations"),
    "dates in an array": (lambda: quick().fit(np.array([[1], [2]], "M8[D]"), Y[:2]), "X holds dates"),
    "NA in a target": (lambda: quick().fit(X[:2], pd.Series([1.0, pd.NA], dtype=object)), "in 1 of 2 rows"),
    "null in an Arrow target": (lambda: quick().fit(X[:3], pa.array([1, None, 2])), "in 1 of 3 rows"),
    "target with a gradient": (lambda: quick().fit(X, torch.ones(150, requires_grad=True)), "y cannot be read"),
    "inputs with a gradient": (lambda: quick().fit(torch.ones(150, 3, requires_grad=True), Y), "X cannot be read"),
    "huge number in a column": (lambda: quick(categorical_features=None).fit(HUGE, Y[:2]), "Column 'a' holds 1000"),
    "lazy frame": (lambda: quick().fit(pl.LazyFrame({"a": [1.0]}), Y[:1]), r"LazyFrame, .* collect\(\) it first"),
    "dictionary": (lambda: quick().fit({"a": [1.0]}, Y[:1]), "X is a dict, which is not a table"),
    "object": (lambda: quick().fit(object(), Y[:1]), "X is a object, which is not a table"),
    "ragged lists": (lambda: quick(categorical_features=[0]).fit([["u"], ["v", "w"]], Y[:2]), "2D|inhomogeneous"),
    "heavy weights": (lambda: quick().fit(X, Y, np.full(150, 1e300)), "largest sample weight is 1e.300; .* Rescale"),
    "light weights": (lambda: quick().fit(X, Y, np.full(150, 1e-320)), "largest sample weight .* Rescale"),
    "many copies": (lambda: quick("exact").fit(X, Y, np.full(150, 1e9)), "weights make 150000000000 rows"),
    "weights alone": (lambda: quick().fit(X, Y, sample_weight_val=np.ones(3)), "Pass X_val and y_val, too"),
    "endless epochs": (lambda: quick(max_epochs=10**400).fit(X, Y), "max_epochs must be a whole number"),
    "lengthscales": (lambda: quick(kernel=kernels.RBFKernel(ard_num_dims=5)).fit(X, Y), "does not take 3 inputs"),
    "active dims": (lambda: quick(kernel=kernels.RBFKernel(active_dims=[7])).fit(X, Y), "does not take 3 inputs"),
    "tasks": (lambda: quick(kernel=kernels.IndexKernel(num_tasks=3)).fit(X, Y), "IndexKernel does not take 3 inputs"),
    "batch of kernels": (lambda: quick(kernel=kernels.RBFKernel(batch_shape=[2])).fit(X, Y), "without batches"),
    "meta device": (lambda: quick(device="meta").fit(X, Y), "device of this machine .* got 'meta'"),
    "no device": (lambda: quick(device=None).fit(X, Y), "device must be"),
    "stopping": (lambda: quick(early_stopping="no").fit(X, Y), "early_stopping must be"),
}  # fmt: skip


ABSENT = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cuda:99": False}


@pytest.mark.parametrize("device", [name for name, there in ABSENT.items() if not there])
def test_a_device_that_is_not_there_is_refused(device):
    with pytest.raises(ValueError, match=f"device of this machine .* got '{device}'"):
        quick(device=device).fit(X, Y)


@pytest.mark.parametrize("case", BAD_FITS)
def test_bad_fits_are_explained(case):
    call, message = BAD_FITS[case]
    with pytest.raises(ValueError, match=message):
        call()


BAD_PREDICTIONS = {
    "a column missing": (lambda m: m.predict(FRAME.drop(columns="age")), "now missing:\n- age"),
    "a column more": (lambda m: m.predict(FRAME.assign(rent=1)), "unseen at fit time:\n- rent"),
    "another order": (lambda m: m.predict(FRAME[FRAME.columns[::-1]]), "same order"),
    "text for numbers": (lambda m: m.predict(FRAME.assign(size="big")), "Column 'size' holds 'big'"),
    "infinite": (lambda m: m.predict(FRAME.assign(size=np.inf)), "infinite"),
    "no rows": (lambda m: m.predict(FRAME[:0]), "0 row"),
    "both": (lambda m: m.predict(FRAME, return_std=True, return_cov=True), "Choose one"),
    "coverage": (lambda m: m.predict_interval(FRAME, 90), "between 0 and 1"),
    "coverage as text": (lambda m: m.predict_interval(FRAME, "a"), "coverage must be a number"),
    "no coverage": (lambda m: m.predict_interval(FRAME, None), "coverage must be a number"),
    "two coverages": (lambda m: m.predict_interval(FRAME, np.array([0.5, 0.9])), "coverage must be a number"),
    "level": (lambda m: m.predict_quantiles(FRAME, [0.5, 2]), "between 0 and 1"),
    "levels of levels": (lambda m: m.predict_quantiles(FRAME[:2], [[0.1, 0.9], [0.2, 0.8]]), "one or a list"),
    "huge number": (lambda m: m.predict(FRAME.assign(size=10**400)), "Column 'size' holds 1000"),
    "list": (lambda m: m.predict(FRAME.assign(city=[["Oslo"]] * 80)), "Column 'city' holds \\['Oslo'\\], which"),
}


@pytest.fixture(scope="module")
def fitted():
    return quick().fit(FRAME, PRICE)


@pytest.mark.parametrize("case", BAD_PREDICTIONS)
def test_bad_predictions_are_explained(case, fitted):
    call, message = BAD_PREDICTIONS[case]
    with pytest.raises(ValueError, match=message):
        call(fitted)


def test_predicting_before_fitting_is_refused():
    with pytest.raises(NotFittedError):
        quick().predict(X)
    with pytest.raises(NotFittedError):
        quick().save("nowhere")


def test_a_column_target_is_flattened_with_scikit_learns_warning():
    with pytest.warns(DataConversionWarning):
        model = quick().fit(X, Y[:, None])
    assert model.predict(X).shape == (150,)


def test_constants_are_pointed_out():
    with pytest.warns(UserWarning, match="target is constant .7"):
        mean, std = quick().fit(X, np.full(150, 7.0)).predict(X, return_std=True)
    np.testing.assert_allclose(mean, 7, atol=0.2)
    with pytest.warns(UserWarning, match="All inputs are constant"):
        mean, std = quick(max_epochs=100).fit(np.ones((150, 2)), Y).predict(np.ones((1, 2)), return_std=True)
    assert mean[0] == pytest.approx(Y.mean(), abs=0.5)
    assert std[0] == pytest.approx(Y.std(), rel=0.3)


CELLS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(),
    st.text(max_size=5),
    st.decimals(),
    st.dates(),
    st.sampled_from([b"x", [1], (1, 2), 10**400, Decimal("sNaN"), pd.NA, pd.NaT, np.float32(2), np.array([1.0])]),
)
PURE = [
    st.floats(), st.integers(0, 2**63 - 1), st.none() | st.text(max_size=2), st.none() | st.booleans(), st.dates(),
    st.decimals(-100, 100, places=2), st.lists(st.integers(0, 9), max_size=2),
]  # fmt: skip


@pytest.mark.parametrize("make", [pd.DataFrame, pa.table, pl.DataFrame])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_whatever_the_frame_a_prediction_or_a_reason(make, data):
    n, d = data.draw(st.integers(0, 6)), data.draw(st.integers(0, 3))
    kinds = st.sampled_from([CELLS, *PURE] if make is pd.DataFrame else PURE)
    columns = {f"c{i}": data.draw(st.lists(data.draw(kinds), min_size=n, max_size=n)) for i in range(d)}
    y = data.draw(st.lists(st.floats(), min_size=n, max_size=n))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        frame = make(columns)
        try:
            mean, std = quick(max_epochs=1).fit(frame, y).predict(frame, return_std=True)
        except (ValueError, TypeError):
            return
    assert np.isfinite(mean).all()
    assert (std > 0).all()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(hnp.arrays(np.float64, hnp.array_shapes(min_dims=1, max_dims=3, max_side=5)), st.randoms(use_true_random=False))
def test_whatever_the_array_a_prediction_or_a_reason(x, random):
    y = [random.gauss(0, 1) for _ in range(len(x))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            mean, std = quick(max_epochs=1).fit(x, y).predict(x, return_std=True)
        except (ValueError, TypeError):
            return
    assert np.isfinite(mean).all()
    assert (std > 0).all()


def test_many_copies_of_rows_are_said_where_they_count():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 2))
    y = x[:, 0] + 0.1 * rng.normal(size=600)
    twice = np.concatenate([x, x]), np.concatenate([y, y])
    with pytest.warns(UserWarning, match="600 of 1200 rows are copies of others"):
        ParametricGPRegressor(n_inducing=10, random_state=0).fit(*twice)
    few = np.concatenate([x, rng.normal(size=(500, 2)), x[:20]]), np.concatenate([y, rng.normal(size=500), y[:20]])
    ParametricGPRegressor(n_inducing=10, random_state=0).fit(*few)  # a warning would be an error
    ParametricGPRegressor("svgp", n_inducing=10, max_epochs=1, random_state=0).fit(*twice)
    grades = rng.integers(0, 3, (1200, 3)).astype(float)  # few values come again without being copies
    ParametricGPRegressor(n_inducing=10, random_state=0).fit(grades, rng.integers(1, 6, 1200).astype(float))


def test_a_row_far_out_is_said_where_it_leaves_the_others_alike():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(100, 2)), columns=["near", "far"])
    frame["flag"] = (np.arange(100) == 7).astype(float)  # all others are alike as they are
    y = frame["near"] + 0.1 * rng.normal(size=100)
    model = ParametricGPRegressor("map", n_inducing=5, max_epochs=1, random_state=0)
    model.fit(frame, y)  # a warning would be an error
    frame["sparse"] = np.r_[np.zeros(98), 1.0, 10.0]  # mostly one value, as counts are
    model.fit(frame, y)
    frame.loc[3, "far"] = 1e6
    with pytest.warns(UserWarning, match="One row lies so far out in 'far' that all others look alike there"):
        model.fit(frame, y)
