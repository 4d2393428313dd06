"""The facts of a report against slow, plain NumPy and pandas; rows in parts give what they give at once."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from paragp import PredictiveDistribution, evaluate
from paragp.report import charts, gather
from paragp.report.bins import by_deviation, by_input, expected_counts
from paragp.report.gather import LEVELS, Gathering
from paragp.report.page import compare, judged
from paragp.report.words import number, shown

from report_cases import quick, table


def gathered(fitted, X, y, size=10**9):
    gathering = Gathering(fitted)
    for start in range(0, len(y), size):
        gathering.add(X[start : start + size], np.asarray(y[start : start + size]))
    return gathering.facts()


@pytest.fixture(scope="module")
def data():
    return table(700, seed=1)


@pytest.fixture(scope="module")
def facts(model, data):
    return gathered(model.fitted_, *data)


def test_scores_and_coverage_are_those_of_all_rows(model, data, facts):
    X, y = data
    dist = model.predict_dist(X)
    assert facts.rows == 700
    assert facts.scores == pytest.approx(evaluate(dist, y))
    same = PredictiveDistribution(np.full(700, 0.0), np.zeros(700), model.fitted_.target.deviation**2)
    assert facts.baseline == pytest.approx(evaluate(same, y - model.fitted_.target.mean))
    for level, share in zip(LEVELS, facts.covered, strict=True):
        low, high = dist.interval(level).T
        assert share == np.mean((low <= y) & (y <= high))
    pit = stats.norm.cdf(y, dist.mean, dist.std)
    assert facts.pit.tolist() == np.histogram(pit, bins=20, range=(0, 1))[0].tolist()


def test_coverage_and_scores_are_those_of_the_tails(heavy, data):
    X, y = data
    dist, facts = heavy.predict_dist(X), gathered(heavy.fitted_, X, y, size=100)
    for level, share in zip(LEVELS, facts.covered, strict=True):
        low, high = dist.interval(level).T
        assert share == np.mean((low <= y) & (y <= high))
    pit = stats.t.cdf(y, 2.5, dist.mean, dist.std * np.sqrt(0.5 / 2.5))
    assert facts.pit.tolist() == np.histogram(pit, bins=20, range=(0, 1))[0].tolist()
    np.testing.assert_allclose(facts.sample.normal_scores, stats.norm.ppf(pit), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(facts.sample.dist.interval(0.9), dist.interval(0.9), rtol=1e-12)


def test_few_rows_have_fewer_bins(model, data):
    X, y = data
    assert len(gathered(model.fitted_, X[:50], y[:50]).pit) == 10


def test_the_most_surprising_rows(model, data, facts):
    X, y = data
    mean, std = model.predict(X, return_std=True)
    z = (y - mean) / std
    order = np.argsort(-np.abs(z.to_numpy()))[:10]
    assert [row.row for row in facts.surprising] == (order + 1).tolist()
    for row, i in zip(facts.surprising, order, strict=True):
        assert (row.actual, row.predicted, row.deviation, row.z) == pytest.approx((y[i], mean[i], std[i], z[i]))
    names = list(X.columns[facts.important])
    first = X.iloc[order[0]]
    shown_values = dict(zip(names, facts.surprising[0].values, strict=True))
    assert shown_values["town"] == first["town"]
    assert float(shown_values["age"]) == pytest.approx(first["age"], rel=1e-3)


def test_the_summary_of_the_columns(model, data):
    X, y = data
    odd = X.copy()
    odd["town"] = odd["town"].astype(object)
    odd.loc[0, "town"], odd.loc[1, "town"], odd.loc[2, "age"] = "Rome", None, 1e9
    odd.loc[3, "age"] = model.fitted_.columns[2].mean + 7 * model.fitted_.columns[2].deviation
    found = {each.column.name: each for each in gathered(model.fitted_, odd, y, size=100).columns}
    assert found["size"].missing == X["size"].isna().sum()
    assert (found["size"].low, found["size"].high) == (X["size"].min(), X["size"].max())
    distance = (odd["age"] - model.fitted_.columns[2].mean).abs() / model.fitted_.columns[2].deviation
    assert found["age"].unknown == (distance > 5).sum() > 0
    assert (found["town"].unknown, found["town"].examples, found["town"].missing) == (1, ["Rome"], 1)
    assert found["town"].counts == odd["town"][2:].value_counts().to_dict()


def test_rows_in_parts_are_the_rows_at_once(calibrated, data):
    one, other = (gathered(calibrated.fitted_, *data, size=size) for size in (10**9, 37))
    assert one.scores == pytest.approx(other.scores, rel=1e-9)
    assert np.allclose(one.covered, other.covered)
    assert [row.row for row in one.surprising] == [row.row for row in other.surprising]
    assert np.array_equal(one.sample.order, other.sample.order)
    np.testing.assert_allclose(one.sample.dist.std, other.sample.dist.std, rtol=1e-9)
    np.testing.assert_allclose(one.guaranteed, other.guaranteed, rtol=1e-9)


def test_the_sample_is_uniform_and_bounded(model, monkeypatch):
    X, y = table(900, seed=2)
    whole = gathered(model.fitted_, X, y).sample
    assert whole.row.tolist() == list(range(1, 901))
    monkeypatch.setattr(gather, "MOST_ROWS", 300)
    one, other = (gathered(model.fitted_, X, y, size=size).sample for size in (900, 70))
    assert len(one.row) == 300
    assert one.row.tolist() == other.row.tolist() == sorted(one.row)
    assert np.array_equal(one.y, y.to_numpy()[one.row - 1])
    assert np.bincount((one.row - 1) // 300).min() > 70  # of 100 expected in each third
    assert sorted(one.row[one.order[:50]]) == sorted(whole.row[whole.order[:50]])


def test_guaranteed_intervals_beside_the_models_own(calibrated, data):
    X, y = data
    found = gathered(calibrated.fitted_, X, y, size=200).guaranteed
    assert [each.level for each in found] == [0.5, 0.8, 0.9, 0.95]
    for each in found:
        for guaranteed, share, width in (
            (True, each.coverage, each.width),
            (False, each.own_coverage, each.own_width),
        ):
            low, high = calibrated.predict_interval(X, each.level, guaranteed).T
            assert share == pytest.approx(np.mean((low <= y) & (y <= high)))
            assert width == pytest.approx(np.mean(high - low))


def test_levels_that_cannot_be_guaranteed_are_left_out(data):
    X, y = data
    model = quick(max_epochs=1).fit(X[:100], y[:100]).calibrate(X[100:112], y[100:112])
    assert [each.level for each in gathered(model.fitted_, X, y).guaranteed] == [0.5, 0.8, 0.9]
    model.calibrate(X[100:106], y[100:106])
    assert [each.level for each in gathered(model.fitted_, X, y).guaranteed] == [0.5, 0.8]


def test_bins_by_deviation(facts):
    sample = facts.sample
    frame = pd.DataFrame({"std": sample.dist.std, "error": np.abs(sample.y - sample.dist.mean)})
    groups = frame.groupby(pd.qcut(frame["std"], 10))
    bins = by_deviation(sample)
    assert len(bins) == 10
    assert sum(each.rows for each in bins) == 700
    np.testing.assert_allclose([each.deviation for each in bins], groups["std"].mean(), rtol=0.02)
    np.testing.assert_allclose([each.rows for each in bins], groups.size(), atol=2)


def test_bins_by_input(model, data, facts):
    X, _ = data
    sample, columns = facts.sample, model.fitted_.columns
    noise = pd.Series(sample.dist.noise_var / (sample.dist.noise_var + sample.dist.function_var))
    error = pd.Series(np.abs(sample.y - sample.dist.mean))
    position = {columns[i].name: k for k, i in enumerate(facts.important)}
    by_name = {column.name: column for column in columns}

    towns = by_input(sample, by_name["town"], sample.inputs[:, position["town"]])
    assert {each.label: each.rows for each in towns} == X["town"].value_counts().to_dict()
    expected = noise.groupby(X["town"]).mean()
    assert {each.label: each.noise for each in towns} == pytest.approx(expected.to_dict())
    expected = error.groupby(X["town"]).mean()
    assert {each.label: each.error for each in towns} == pytest.approx(expected.to_dict())

    rooms = by_input(sample, by_name["rooms"], sample.inputs[:, position["rooms"]])
    assert [each.label for each in rooms] == ["1", "2", "3", "4"]
    sizes = by_input(sample, by_name["size"], sample.inputs[:, position["size"]])
    assert len(sizes) == 11
    assert sizes[-1].label == "missing"
    assert sizes[-1].rows == X["size"].isna().sum()
    assert max(each.rows for each in sizes[:-1]) - min(each.rows for each in sizes[:-1]) <= 2


def test_the_most_frequent_ten_categories():
    rng = np.random.default_rng(0)
    letters = pd.Series(rng.choice(list("abcdefghijklmnop"), 400, p=np.arange(1, 17) / 136))
    X, y = pd.DataFrame({"letter": letters}), pd.Series(rng.normal(size=400))
    model = quick(max_epochs=1).fit(X, y)
    sample = gathered(model.fitted_, X.assign(letter=letters.replace("p", "new")), y).sample
    bins = by_input(sample, model.fitted_.columns[0], sample.inputs[:, 0])
    counts = letters.replace("p", "any other").value_counts()
    assert [each.rows for each in bins] == counts.head(10).tolist()
    assert bins[0].label == "any other"


def test_expected_counts_hold_most_of_what_chance_does():
    counts = np.random.default_rng(0).multinomial(700, np.full(20, 1 / 20), size=2000)
    low, high = expected_counts(700, 20)
    assert 0.95 <= np.mean((low <= counts) & (counts <= high)) < 0.975


@pytest.mark.parametrize(
    ("coverage", "rows", "expected"),
    [
        (0.85, 2000, "too narrow"), (0.95, 2000, "too wide"), (0.905, 2000, "about right"), (0.85, 100, "about right"),
        (0.82, 100, "too narrow"), (0.903, 10**6, "about right"), (0.88, 10**6, "too narrow"), (1.0, 5, "too few rows"),
        (0.0, 5, "too narrow"), (1.0, 1, "too few rows"),
    ],
)  # fmt: skip
def test_the_verdict_allows_for_chance(coverage, rows, expected):
    assert expected in judged(coverage, 0.9, rows)


def test_the_better_score_is_marked(facts):
    found = {score.label: score for score in compare(facts)}
    assert found["RMSE"].better == "model"
    assert found["RMSE"].direction == "lower is better"
    assert found["sharpness"].better == ""
    gaps = [abs(scores["coverage_90"] - 0.9) for scores in (facts.scores, facts.baseline)]
    assert found["coverage at 90 %"].better == ("model" if gaps[0] < gaps[1] else "baseline")


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1.0, 1e5, 1e12, 1e139])
@pytest.mark.parametrize("shift", [0.0, 1.0, -7.3])
def test_ticks_are_round_few_and_short(scale, shift):
    low, high = charts.widened(shift * scale, (shift + 1) * scale)
    values = charts.ticks(low, high)
    labels, note = charts.tick_labels(values)
    assert 2 <= len(values) <= 6
    assert low <= values[0] < values[-1] <= high
    assert len(set(labels)) == len(labels)
    assert max(map(len, labels)) <= 8
    factor = 10.0 ** int(note[5:-1].translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))) if note else 1.0
    assert [float(label.replace(",", "")) * factor for label in labels] == pytest.approx(values, abs=1e-9 * scale)


@pytest.mark.parametrize("value", [0.0, 7.0, -1e12, 1e-300, 1e300])
def test_a_range_of_one_value_has_ticks(value):
    low, high = charts.widened(value, value)
    assert low < value < high
    assert 2 <= len(set(charts.tick_labels(charts.ticks(low, high))[0])) <= 6


def test_numbers_and_names_as_they_are_shown():
    assert [number(value) for value in (99999.5, -0.00012344, 1e12, 12, -0.0)] == [
        "100,000",
        "-0.0001234",
        "1e12",
        "12",
        "0",
    ]
    assert shown("\x00\u202e\n") == "(blank)"
    assert shown("\ud800name") == "name"
    assert shown("a" * 1000, 20) == "a" * 13 + "…" + "a" * 6
    assert len(shown("漢" * 1000, 20)) == 10
