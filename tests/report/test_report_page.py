"""The page as a file: harmless whatever the data holds, small, and the same for the same rows."""

import importlib.util
import json
import re
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from gpytorch.kernels import LinearKernel
from scipy.stats import kstest, norm, t
from typer.testing import CliRunner

from paragp import ParametricGPRegressor
from paragp.cli import app
from paragp.data.files import even_blocks
from paragp.fitted import Fitted
from paragp.predictive import PredictiveDistribution
from paragp.report import gather, write_report

from report_cases import HOSTILE_TARGET, hostile_table, quick, table

VOID = {"meta", "link", "img", "br", "input"}
PARTS = [
    "verdict", "scores", "calibration", "uncertainty", "relevance", "surprising", "predictions", "training", "data",
    "reproduce",
]  # fmt: skip


class Page(HTMLParser):
    """Elements, text, and whether every element is closed where it should be."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.text = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.text.append(data)

    @property
    def words(self):
        return " ".join(" ".join(self.text).split())

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def made(estimator, X, y, path):
    estimator.report(X, y, path)
    return Page(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def data():
    return table(250, seed=1)


@pytest.fixture(scope="module")
def page(calibrated, data, tmp_path_factory):
    return made(calibrated, *data, tmp_path_factory.mktemp("page") / "report.html")


def test_all_parts_in_order_and_open(page):
    panels = [attributes for attributes in page.all("details") if attributes.get("class") == "panel"]
    assert [panel["id"] for panel in panels] == PARTS
    assert all("open" in panel for panel in panels)


def test_it_can_be_read_aloud(page):
    assert page.all("html") == [{"lang": "en"}]
    for landmark in ("header", "nav", "main", "footer"):
        assert len(page.all(landmark)) == 1
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    charts = page.all("svg")
    assert len(charts) >= 12
    assert all(chart["role"] == "img" and chart["aria-label"] and chart["tabindex"] == "0" for chart in charts)
    assert len([name for name, _ in page.elements if name == "figure"]) == len(charts)
    assert page.words.count("The numbers behind:") == len(charts)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(set(ids)) == len(ids)


def test_nothing_is_fetched_and_nothing_else_runs(page):
    policy = next(meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    for _, attributes in page.elements:
        assert "src" not in attributes
        assert not any(name.startswith("on") or name == "style" for name in attributes)
        assert attributes.get("href", "#").startswith("#")


def test_it_says_what_the_scores_say(calibrated, data, page):
    X, y = data
    mean = calibrated.predict(X)
    off, same = np.abs(y - mean).mean(), np.abs(y - calibrated.fitted_.target.mean).mean()
    found = re.search(r"On these 250 rows it is typically off by ([\d.]+), .*? off by ([\d.]+)\.", page.words)
    assert [float(value) for value in found.groups()] == pytest.approx([off, same], rel=6e-3)
    low, high = calibrated.predict_interval(X, 0.9, guaranteed=False).T
    assert f"Its 90 % intervals hold {100 * np.mean((low <= y) & (y <= high)):.3g} % of the rows" in page.words
    assert "Calibrated by 100 rows" in page.words
    assert f"predicts price from 4 inputs, learned from {calibrated.fitted_.summary['rows']} rows." in page.words
    _, std = calibrated.predict(X, return_std=True)
    z = np.sort((y - mean) / std)
    gaps = [np.abs(np.arange(251)[start : start + 250] / 250 - norm.cdf(z)).max() for start in (0, 1)]
    assert f"Kolmogorov-Smirnov distance {max(gaps):.3g}" in page.words


def test_it_says_what_the_shape_is(heavy, data, page, tmp_path):
    assert "Student-t" not in page.words
    assert "z-scores beside the normal distribution" in page.words
    assert "a calibrated model, 0.8 deviations" in page.words
    X, y = data
    found, dist = made(heavy, X, y, tmp_path / "report.html").words, heavy.predict_dist(X)
    assert "250 rows of data; shape: Student-t with 2.5 degrees of freedom" in found
    assert "normal scores beside the normal distribution" in found
    scores = norm.ppf(t.cdf(y, 2.5, dist.mean, dist.std * np.sqrt(0.5 / 2.5)))
    assert f"Kolmogorov-Smirnov distance {kstest(scores, norm.cdf).statistic:.3g}" in found
    expected = 2 * t.expect(lambda x: x, (2.5,), lb=0) * np.sqrt(0.5 / 2.5)
    assert f"a calibrated model, {expected:.2g} deviations" in found


def test_a_better_score_is_marked_by_a_word(page):
    assert page.words.count("✓ better") >= 4


def test_settings_and_commands(page):
    assert "paragp report model/ data.parquet --target price --out report.html" in page.words
    assert "--method ppgpr-mfd --inducing 10 --epochs 2 --beta 0.05 --seed 0" in page.words
    assert "torch" in page.words


def test_hostile_names_are_plain_text(hostile, tmp_path):
    page = made(hostile, *hostile_table(100, seed=1), tmp_path / "report.html")
    assert len(page.all("script")) == len(page.all("style")) == len(page.all("title")) == 1
    assert page.all("img") == page.all("b") == []
    assert HOSTILE_TARGET in page.words
    assert "{{7*7}}" in page.words
    assert "49" not in re.findall(r"By (\S+)", page.words)
    assert "two lines" in page.words
    text = (tmp_path / "report.html").read_text()
    assert "\u202e" not in text
    assert "long " * 50 not in text
    for _, attributes in page.elements:
        assert not any(name.startswith("on") for name in attributes)


def test_the_same_rows_give_the_same_bytes(model, data, tmp_path):
    model.save(tmp_path / "model")
    for name, estimator in (("a", model), ("b", model), ("c", ParametricGPRegressor.load(tmp_path / "model"))):
        estimator.report(*data, tmp_path / f"{name}.html")
    a, b, c = ((tmp_path / f"{name}.html").read_bytes() for name in "abc")
    assert a == b == c


def test_a_default_is_told_as_what_it_is(default, model, data, tmp_path):
    """Its noise is not what more rows would leave, and its training has fits and no learning rate."""
    solved, stepped = (made(each, *data, tmp_path / f"{i}.html") for i, each in enumerate((default, model)))
    assert "What too few rows leave open among others is counted as noise" in solved.words
    assert "which more rows would make smaller, and of noise" not in solved.words
    assert "what too few rows leave open is part of it" in solved.words
    assert "The model of fit " in solved.words
    assert "earning rate" not in solved.words
    assert "which more rows would make smaller, and of noise" in stepped.words
    assert "Learning rate" in stepped.words
    assert "epoch" in stepped.words


def test_a_small_file_of_many_columns_and_rows(tmp_path):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(20_000, 60)), columns=[f"column {i} with a longer name" for i in range(60)])
    y = X.iloc[:, 0] + rng.normal(size=20_000)
    model = quick(max_epochs=1).fit(X[:300], y[:300])
    page = made(model, X, y, tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 600_000
    assert "and 40 more" in page.words


def test_long_names_and_many_categories_stay_small(tmp_path):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(
        {f"{i}" + "x" * 100_000: rng.choice([f"{k}" + "y" * 10_000 for k in range(40)], 200) for i in range(3)}
    )
    model = quick(max_epochs=1).fit(X, rng.normal(size=200))
    made(model, X, rng.normal(size=200), tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 600_000


# --- in batches ---


def write(path, X, y):
    rows = pa.Table.from_pandas(X.assign(price=y), preserve_index=False)
    (pacsv.write_csv if path.suffix == ".csv" else pq.write_table)(rows, path)
    return path


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_streamed_equals_in_memory(calibrated, tmp_path, monkeypatch):
    for module in ("cli", "estimator"):
        monkeypatch.setattr(f"paragp.{module}.BLOCK_ROWS", 64)
    monkeypatch.setattr(gather, "MOST_ROWS", 150)
    X, y = table(500, seed=3)
    calibrated.report(X, y, tmp_path / "memory.html")
    calibrated.save(tmp_path / "model")
    (tmp_path / "many").mkdir()
    for i, start in enumerate(range(0, 500, 90)):
        write(tmp_path / "many" / f"{i}.parquet", X[start : start + 90], y[start : start + 90])
    pages = [(tmp_path / "memory.html").read_text()]
    for i, data in enumerate((write(tmp_path / "t.parquet", X, y), write(tmp_path / "t.csv", X, y), tmp_path / "many")):
        done = run("report", tmp_path / "model", data, "--out", tmp_path / f"{i}.html")
        assert (done.exit_code, done.stdout) == (0, f"Wrote {tmp_path / f'{i}.html'}.\n"), done.output
        pages.append((tmp_path / f"{i}.html").read_text())
    memory, *streamed = [re.sub(r"<pre.*?</pre>", "", page) for page in pages]
    assert "a uniform sample of 150 rows out of 500" in memory
    for page in streamed:
        assert page == memory


def test_blocks_are_even_however_batches_are_cut():
    rows = pa.table({"a": range(100)})
    batches = [rows.slice(0, 3), rows.slice(3, 60), rows.slice(63, 0), rows.slice(63)]
    blocks = list(even_blocks(batches, 25))
    assert [len(block) for block in blocks] == [25] * 4
    assert pa.concat_tables(blocks).to_pydict() == rows.to_pydict()
    words = pa.table({"a": ["x"]})
    assert [len(block) for block in even_blocks([rows.slice(0, 3), words], 25)] == [3, 1]


# --- what is odd, and what is refused ---


@pytest.mark.filterwarnings("ignore:The target is constant")
@pytest.mark.parametrize(
    ("kind", "scale"),
    [("plain", 1e-12), ("plain", 1e12), ("constant", 1.0), ("one row", 1.0), ("equal predictions", 1e12)],
)
def test_odd_targets(kind, scale, tmp_path):
    X, y = table(60, seed=4)
    y = scale * (y * 0 + 7 if kind == "constant" else y)
    model = quick(max_epochs=1).fit(X, y)
    if kind == "equal predictions":
        X = X.iloc[np.zeros(60, dtype=int)]
    rows = 1 if kind == "one row" else 60
    page = made(model, X[:rows], y[:rows], tmp_path / "report.html")
    assert "nan" not in page.words.lower().replace("constant", "")
    for attributes in (attributes for name, attributes in page.elements if name in ("circle", "rect", "line", "path")):
        assert "nan" not in str(attributes)
        assert "inf" not in str(attributes)
    assert ("this row" in page.words) == (kind == "one row")


def test_a_network_has_no_relevance_and_a_full_batch_no_history(tmp_path):
    X, y = table(80)
    page = made(quick(features=(4, 2), max_epochs=1).fit(X, y), X, y, tmp_path / "network.html")
    assert "their relevance is not known" in page.words
    page = made(quick(method="fitc", max_epochs=2).fit(X, y), X, y, tmp_path / "fitc.html")
    assert "No history of the epochs is known" in page.words
    assert "--keep-rows" not in page.words
    near = made(quick(method="fitc", n_inducing=60).fit(X, y), X, y, tmp_path / "near.html")
    assert " --keep-rows" in near.words  # without it nothing would be saved
    page = made(
        quick(kernel=LinearKernel(), max_epochs=1).fit(X[["size"]].fillna(0), y),
        X[["size"]].fillna(0),
        y,
        tmp_path / "linear.html",
    )
    assert "--kernel" not in page.words


def test_the_history_comes_back_and_is_drawn(model, data, tmp_path):
    model.save(tmp_path / "model")
    loaded = ParametricGPRegressor.load(tmp_path / "model")
    assert loaded.history_ == model.history_
    page = made(loaded, *data, tmp_path / "report.html")
    for name in ("Validation NLL", "Validation RMSE", "Validation CRPS", "Learning rate"):
        assert name in page.words
    assert f"The model of epoch {model.fitted_.summary['best_epoch']} was kept." in page.words
    assert f"best: {model.fitted_.summary['best_epoch']}" in page.words


def test_places_that_cannot_be_written_to(model, data, tmp_path):
    (tmp_path / "there.html").write_text("mine")
    for path, error, reason in (
        (tmp_path, FileExistsError, "is a folder"),
        (tmp_path / "there.html", FileExistsError, "exists. Choose another path"),
        (tmp_path / "nowhere" / "r.html", FileNotFoundError, "There is no folder"),
    ):
        with pytest.raises(error, match=reason):
            model.report(*data, path)
    assert (tmp_path / "there.html").read_text() == "mine"
    model.report(*data, tmp_path / "there.html", overwrite=True)
    assert (tmp_path / "there.html").read_text().startswith("<!DOCTYPE html>")


def test_without_jinja(model, data, tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "jinja2" else find(name))
    with pytest.raises(ValueError, match=r'needs jinja2. Install it with: pip install "paragp\[report\]"'):
        model.report(*data, tmp_path / "report.html")


def test_predictions_that_are_no_numbers_are_refused_by_row(model, data, tmp_path, monkeypatch):
    X, y = data
    predict = Fitted.predict

    def broken(self, X):
        dist = predict(self, X)
        mean = np.where(np.isin(np.arange(len(dist)), (16, 40)), np.nan, dist.mean)
        return PredictiveDistribution(mean, dist.function_var, dist.noise_var)

    monkeypatch.setattr(Fitted, "predict", broken)
    with pytest.raises(ValueError, match=r"prediction is missing or infinite in 2 of the rows 1 to 250, .* in row 17 "):
        model.report(X, y, tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


def test_no_rows_and_missing_targets(model, data, tmp_path):
    X, y = data
    with pytest.raises(ValueError, match="There are no rows to report on"):
        write_report(model.fitted_, [], tmp_path / "report.html")
    with pytest.raises(ValueError, match="minimum of 1 is required"):
        model.report(X[:0], y[:0], tmp_path / "report.html")
    gap = y.copy()
    gap[3] = np.nan
    with pytest.raises(ValueError, match="missing"):
        model.report(X, gap, tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def place(model, tmp_path_factory):
    place = tmp_path_factory.mktemp("report_cli")
    model.save(place / "model")
    return place


@pytest.mark.parametrize(
    ("content", "words", "reason"),
    [
        ("size,rooms,age,town\n1,2,3,Ulm\n", [], "lacks the column 'price'"),
        ("size,rooms,age,price\n1,2,3,4\n", [], "lacks the column 'town'"),
        ("size,rooms,age,town,price\n", [], "has no rows"),
        (
            "size,rooms,age,town,price\n1,2,3,Ulm,4\n1,2,3,Ulm,\n",
            [],
            "in 1 of the rows 1 to 2, the first time in row 2",
        ),
        ("size,rooms,age,town,price\n1,2,3,Ulm,4\n", ["--target", "town"], "where a number is expected"),
        ("size,rooms,age,town,price\n1,2,3,Ulm,4\n", ["--target", "cost"], "lacks the column 'cost'"),
    ],
)
def test_tables_that_cannot_be_reported_on(content, words, reason, place, tmp_path):
    (tmp_path / "data.csv").write_text(content)
    done = run("report", place / "model", tmp_path / "data.csv", "--out", tmp_path / "report.html", *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    assert reason in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["data.csv"]


def test_the_command(place, tmp_path):
    X, y = table(40, seed=8)
    data = write(tmp_path / "data.parquet", X.assign(cost=2 * y, **{"id": 1}), y)
    words = ["report", place / "model", data, "--out", tmp_path / "report.html", "--target", "cost"]
    done = run(*words)
    assert done.exit_code == 0, done.output
    assert "left out: 'price', 'id'" in done.stderr or "left out: 'id', 'price'" in done.stderr
    assert "How well is cost predicted?" in Page((tmp_path / "report.html").read_text()).words
    done = run(*words)
    assert done.exit_code == 2
    assert "exists. Choose another path" in done.stderr
    assert run(*words, "--force").exit_code == 0
    done = run("report", place / "model", data, "--out", data, "--force")
    assert done.exit_code == 2
    assert "is the table to report on" in done.stderr
    assert json.loads(run("evaluate", place / "model", data, "--json").stdout)["rows"] == 40
    assert "Example: paragp report" in " ".join(run("report", "--help").output.split())
