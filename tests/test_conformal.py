"""Guaranteed intervals: the theory's bounds, groups, and what cannot be guaranteed."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from paragp import ParametricGPRegressor
from paragp.artefact import ModelFileError, _checksum
from paragp.cli import app
from paragp.conformal import Calibration, rows_needed


def table(n, seed=0):
    rng = np.random.default_rng(seed)
    rows = pd.DataFrame({"x": rng.uniform(-2, 2, n), "kind": rng.choice(["a", "b"], n)})
    noise = np.where(rows["kind"] == "a", 0.1, 1.0) * rng.standard_t(3, n)  # heavier tails than a normal's
    return rows, np.sin(2 * rows["x"].to_numpy()) + noise


X, Y = table(300)


@pytest.fixture(scope="module")
def fitted():
    return ParametricGPRegressor(n_inducing=10, max_epochs=3, random_state=0).fit(X, Y)


@pytest.mark.parametrize(("level", "rank"), [(0.95, 19), (0.9, 18), (0.91, 19), (0.5, 10), (0.05, 1), (1e-12, 1)])
def test_the_factor_is_a_rank_of_the_scores(level, rank):
    assert Calibration.of(np.arange(1.0, 20.0)).factor(level) == pytest.approx(rank, rel=2e-5)  # of 19 rows


def test_a_level_is_meant_in_decimals():
    scores = np.arange(1.0, 10.0)
    for level in (0.9, 0.1 + 0.2 + 0.6, np.float32(0.9)):  # the second is a little more than the first
        assert Calibration.of(-scores).factor(level) == pytest.approx(9, rel=2e-5)


def test_equal_scores_are_all_covered_whatever_rounding_does():
    rng = np.random.default_rng(0)
    mean, std, y = rng.normal(size=1000), rng.uniform(0.1, 3, 1000), rng.integers(-5, 6, 1000)  # counts, say
    z = (y - mean) / std
    reach = np.array([Calibration.of(np.full(9, score)).factor(0.9) for score in z]) * std
    assert ((mean - reach <= y) & (y <= mean + reach)).all()


@pytest.mark.parametrize("n", [19, 50])
@pytest.mark.parametrize("level", [0.5, 0.8, 0.9, 0.95])
def test_coverage_is_within_the_theorys_bounds(n, level):
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(4000):  # whatever the scores' distribution
        z = rng.standard_cauchy(n + 1)
        hits.append(abs(z[-1]) <= Calibration.of(z[:-1]).factor(level))
    error = 4 * np.sqrt(0.25 / 4000)
    assert level - error < np.mean(hits) < level + 1 / (n + 1) + error


def test_too_few_rows_for_a_level_are_counted():
    levels = {0.1: 1, 0.5: 1, 0.8: 4, 0.9: 9, 0.95: 19, 0.99: 99, 0.9999: 9999, 1 - 2**-50: 2**50 - 1}
    assert [rows_needed(level) for level in levels] == list(levels.values())
    calibration = Calibration.of(np.arange(18.0))
    with pytest.raises(ValueError, match=r"0\.95 can be guaranteed from 19 calibration rows on; the .* has 18"):
        calibration.factor(0.95)
    for level in (0, 1, -0.1, 1.5, np.nan, "0.9", [0.5, 0.9], None):
        with pytest.raises(ValueError, match="between 0 and 1"):
            calibration.factor(level)


def test_a_group_has_its_own_scores_and_a_row_without_one_those_of_all():
    keys = ["b", "a", None, "b", "a", "a"]
    calibration = Calibration.of(np.array([4.0, -1.0, 9.0, -3.0, 2.0, 0.0]), "kind", keys)
    assert {key: found.tolist() for key, found in calibration.groups.items()} == {"a": [0, 1, 2], "b": [3, 4]}
    np.testing.assert_allclose(calibration.factor(0.5, ["a", "b", None, "new"]), [1, 4, 3, 3], rtol=2e-5)
    with pytest.raises(ValueError, match=r"0\.7 can be guaranteed from 3 calibration rows on; the group 'b' has 2"):
        calibration.factor(0.7, ["a", "b"])


def test_as_many_groups_as_rows_take_no_time():
    n = 50_000  # a column of numbers taken for groups
    calibration = Calibration.of(np.arange(float(n)), "size", [str(i) for i in range(n)])
    assert len(calibration.groups) == n


def test_intervals_are_guaranteed_after_calibration(fitted):
    model = fitted
    before = model.predict_interval(X)
    with pytest.raises(ValueError, match="This model was not calibrated"):
        model.predict_interval(X, guaranteed=True)
    model.calibrate(*table(500, seed=1))
    new, y = table(4000, seed=2)
    for level in (0.5, 0.8, 0.9, 0.95):
        low, high = model.predict_interval(new, level, guaranteed=True).T
        assert np.mean((low <= y) & (y <= high)) == pytest.approx(level, abs=0.05)
    np.testing.assert_array_equal(model.predict_interval(X, guaranteed=False), before)
    np.testing.assert_array_equal(model.predict_interval(X), model.predict_interval(X, guaranteed=True))
    model.fitted_.calibration = None


def leaning_table(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, (n, 2))
    return x, np.sin(2 * x[:, 0]) + 0.3 * rng.exponential(size=n)


def test_guaranteed_intervals_lean_as_the_distributions_do():
    model = ParametricGPRegressor(n_inducing=50, random_state=0).fit(*leaning_table(600, 0))
    assert not model.fitted_.shape.is_normal
    x, y = leaning_table(4000, 2)
    model.calibrate(*leaning_table(1000, 1))
    low, high = model.predict_interval(x, 0.9, guaranteed=True).T
    assert np.mean((low <= y) & (y <= high)) == pytest.approx(0.9, abs=0.03)
    assert np.mean(y < low) == pytest.approx(0.05, abs=0.03)
    assert np.mean(y > high) == pytest.approx(0.05, abs=0.03)


def test_a_calibration_of_z_scores_serves_a_normal_alone(fitted, tmp_path):
    leaning = ParametricGPRegressor(n_inducing=50, random_state=0).fit(*leaning_table(600, 0))
    leaning.calibrate(*leaning_table(100, 1))
    fitted.calibrate(*table(100, seed=1))
    expected = fitted.predict_interval(X)
    for model, name in ((fitted, "normal"), (leaning, "leaning")):
        model.save(tmp_path / name)
        file = tmp_path / name / "config.json"
        config = json.loads(file.read_text())
        del config["calibration"]["scores"]  # as it was written before
        config["config_sha256"] = _checksum(config)
        file.write_text(json.dumps(config))
    np.testing.assert_array_equal(ParametricGPRegressor.load(tmp_path / "normal").predict_interval(X), expected)
    with pytest.raises(ModelFileError, match="calibrate the model again"):
        ParametricGPRegressor.load(tmp_path / "leaning")
    fitted.fitted_.calibration = None


def test_groups_have_guarantees_of_their_own(fitted):
    fitted.calibrate(*table(1000, seed=1), by="kind")
    new, y = table(4000, seed=2)
    new.loc[0, "kind"] = "never seen"
    low, high = fitted.predict_interval(new, 0.9).T
    for kind in ("a", "b"):
        rows = new["kind"] == kind
        assert np.mean(((low <= y) & (y <= high))[rows]) == pytest.approx(0.9, abs=0.05)
    reach = (high - low) / 2 / fitted.predict_dist(new).std
    assert len(np.unique(reach.round(9))) == 3
    fitted.fitted_.calibration = None


def test_a_calibration_is_saved_and_comes_back(fitted, tmp_path):
    fitted.calibrate(*table(100, seed=1), by="kind").save(tmp_path / "model")
    again = ParametricGPRegressor.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_interval(X), fitted.predict_interval(X))
    assert "guaranteed by 100 calibration rows, within each kind" in (tmp_path / "model" / "README.md").read_text()
    fitted.fitted_.calibration = None


@pytest.mark.parametrize(
    "record",
    [
        {"by": "other", "groups": ["a", "b"]}, {"by": "kind", "groups": ["a", "a"]}, {"by": "kind"}, 3, None,
        {"by": "kind", "groups": "ab"}, {"by": None, "groups": ["a", "b"]}, {"by": "kind", "groups": ["a"]},
    ],
)  # fmt: skip
def test_an_altered_calibration_is_found(record, fitted, tmp_path):
    fitted.calibrate(*table(100, seed=1), by="kind").save(tmp_path / "model")
    fitted.fitted_.calibration = None
    file = tmp_path / "model" / "config.json"
    config = json.loads(file.read_text())
    config["calibration"] = record
    config["config_sha256"] = _checksum(config)
    file.write_text(json.dumps(config))
    if record is None:  # then it is not used
        with pytest.raises(ValueError, match="not calibrated"):
            ParametricGPRegressor.load(tmp_path / "model").predict_interval(X, guaranteed=True)
        return
    with pytest.raises(ModelFileError, match="cannot be read as a model"):
        ParametricGPRegressor.load(tmp_path / "model")


def test_what_cannot_calibrate_is_refused(fitted):
    rows, y = table(30, seed=1)
    with pytest.raises(ValueError, match="by must name one of the inputs 'x', 'kind'"):
        fitted.calibrate(rows, y, by="colour")
    with pytest.raises(ValueError, match="y contains missing"):
        fitted.calibrate(rows, np.where(y > 0, y, np.nan))
    with pytest.raises(ValueError, match="finite predictions and targets, got 1 of 2"):
        Calibration.of(np.array([1.0, np.nan]))


def test_a_new_fit_forgets_the_calibration():
    model = ParametricGPRegressor(n_inducing=5, max_epochs=1, random_state=0).fit(X, Y)
    model.calibrate(*table(50, seed=1)).fit(X, Y)
    assert model.fitted_.calibration is None


def test_calibration_on_the_command_line(tmp_path):
    X.assign(y=Y).to_csv(tmp_path / "rows.csv", index=False)
    words = ["fit", str(tmp_path / "rows.csv"), "--target", "y", "--inducing", "10", "--epochs", "2"]
    run = CliRunner().invoke
    done = run(app, [*words, "--out", str(tmp_path / "model"), "--calibrate", ".2"])
    assert done.exit_code == 0, done.output
    assert "guaranteed by 60 calibration rows" in run(app, ["info", str(tmp_path / "model")]).output
    out = tmp_path / "predictions.csv"
    run(app, ["predict", str(tmp_path / "model"), str(tmp_path / "rows.csv"), "--out", str(out), "--interval", ".9"])
    found = pd.read_csv(out)
    expected = ParametricGPRegressor.load(tmp_path / "model").predict_interval(X, 0.9, guaranteed=True)
    np.testing.assert_allclose(found[["y_lower", "y_upper"]], expected, rtol=1e-9)
    for share in ("0", "1.5", ".001"):
        done = run(app, [*words, "--out", str(tmp_path / "other"), "--calibrate", share])
        assert done.exit_code == 2
        assert "--calibrate" in done.stderr
