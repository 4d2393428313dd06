"""The command line: what it writes equals what the estimator says, and what is wrong is said in one line."""

import json
import os
import signal
import subprocess
import sys
import termios
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from paragp import METHODS, METRICS, ParametricGPRegressor, PredictiveDistribution, __version__, evaluate
from paragp.artefact import CARD, CONFIG, TENSORS
from paragp.cli import app
from paragp.fitted import Fitted

from cases import full_disk

WRITERS = {"csv": pacsv.write_csv, "parquet": pq.write_table, "feather": feather.write_feather}
QUICK = ["--inducing", "5", "--epochs", "2", "--beta", "0.05"]


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def table(n=120, seed=0):
    rng = np.random.default_rng(seed)
    size = rng.normal(size=n)
    price = 100 + 20 * size + rng.normal(size=n)
    size[::9] = np.nan
    town = rng.choice(["Ulm", "Aix", None], n)
    return pa.table({
        "id": pa.array(np.arange(n)), "size": pa.array(size, from_pandas=True), "town": pa.array(town.tolist()),
        "garden": rng.random(n) < 0.5, "weight": rng.integers(1, 4, n), "price": price,
    })  # fmt: skip


def write(path, content):
    """A table or a text as a file."""
    if isinstance(content, str):
        path.write_text(content)
    else:
        WRITERS[path.suffix[1:]](content, path)
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a table and a model, that every test may read."""
    place = tmp_path_factory.mktemp("cli")
    for ending in WRITERS:
        write(place / f"train.{ending}", table())
        write(place / f"new.{ending}", table(30, seed=1))
    done = fit(place / "train.parquet", place / "model")
    assert done.exit_code == 0, done.output
    return place


@pytest.fixture
def files(place, monkeypatch, tmp_path):
    """Stand in an empty folder; `place` is where the files are."""
    monkeypatch.chdir(tmp_path)
    return place


def fit(data, out, *words, target="price"):
    return run("fit", data, "--target", target, "--out", out, "--drop", "id", "--drop", "weight", *QUICK, *words)


def inputs(data):
    return data.drop_columns(["id", "weight", "price"])


def assert_refused(done, *parts):
    """Exit code 2, nothing on standard output, and one line on standard error that holds all parts."""
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    assert done.stderr.removesuffix("\n").isprintable()
    for part in parts:
        assert part in done.stderr


# --- fit ---


@pytest.mark.parametrize("ending", WRITERS)
def test_fit_writes_what_the_estimator_learns(ending, files, tmp_path):
    done = fit(files / f"train.{ending}", "model")
    assert done.exit_code == 0, done.output
    assert done.stderr == ""
    assert done.stdout.startswith("Fitted ppgpr-mfd to 100 rows of")
    assert "On 20 validation rows:" in done.stdout
    assert "coverage at 90 %" in done.stdout
    data = table()
    estimator = ParametricGPRegressor(n_inducing=5, max_epochs=2, beta=0.05, random_state=0)
    estimator.fit(inputs(data), data["price"].to_numpy())
    loaded = ParametricGPRegressor.load("model")
    assert np.array_equal(loaded.predict(inputs(data)), estimator.predict(inputs(data)))
    assert loaded.fitted_.target.name == "price"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_default_from_fit_to_report(files):
    words = ["--target", "price", "--drop", "id", "--drop", "weight", "--inducing", "20", "--calibrate", "0.2"]
    done = run("fit", files / "train.csv", "--out", "model", *words)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("Fitted two-stage to ")
    assert "two-stage model of 'price'" in run("info", "model").stdout
    done = run("predict", "model", files / "new.csv", "--out", "p.csv", "--interval", ".5", "--quantiles", ".1,.9")
    assert done.exit_code == 0, done.output
    assert "coverage at 90 %" in run("evaluate", "model", files / "new.csv").stdout
    done = run("report", "model", files / "new.csv", "--out", "report.html")
    assert done.exit_code == 0, done.output
    assert "Two-stage" in Path("report.html").read_text(encoding="utf-8")
    assert run("export", "model", "--onnx", "model.onnx", "--interval", ".5").exit_code == 0


def test_the_papers_recipe_by_name(files):
    assert fit(files / "train.csv", "model", "--recipe", "adam").exit_code == 0
    assert ParametricGPRegressor.load("model").recipe == "adam"
    done = fit(files / "train.csv", "other", "--recipe", "best")
    assert_refused(done, "recipe must be one of auto, adam; got 'best'")


def test_fit_prints_json(files):
    done = fit(files / "train.csv", "model", "--json")
    found = json.loads(done.stdout)
    assert found["model"] == "model"
    assert found["method"] == "ppgpr-mfd"
    assert found["target"] == "price"
    assert found["rows"] == 100
    assert found["inputs"] == 3
    assert found["beta"] == 0.05
    assert set(found["validation_scores"]) == set(METRICS)


def test_the_seed_decides_the_model(files):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert fit(files / "train.csv", name, "--seed", seed).exit_code == 0
    a, b, c = (Path(name, TENSORS).read_bytes() for name in "abc")
    assert a == b
    assert a != c


def test_weights_are_copies_of_rows(files, tmp_path):
    data = table()
    copies = data.take(np.repeat(np.arange(len(data)), data["weight"].to_numpy()))
    write(tmp_path / "copies.parquet", copies)
    words = ["--target", "price", "--drop", "id", "--valid", files / "new.parquet", *QUICK]
    assert run("fit", files / "train.parquet", "--out", "a", "--weights", "weight", *words).exit_code == 0
    assert run("fit", "copies.parquet", "--out", "b", "--drop", "weight", *words).exit_code == 0
    for name in ("id", "weight"):
        assert name not in [column["name"] for column in json.loads(Path("a", CONFIG).read_text())["columns"]]
    one, other = (ParametricGPRegressor.load(name).predict(inputs(data)) for name in "ab")
    np.testing.assert_allclose(one, other, rtol=1e-6)


def test_weights_of_validation_rows_count_in_their_scores(files):
    words = ["--target", "price", "--drop", "id", "--weights", "weight", *QUICK, "--json"]
    done = run("fit", files / "train.csv", "--out", "model", "--valid", files / "new.csv", *words)
    found = json.loads(done.stdout)["validation_scores"]
    for weights, same in ((["--weights", "weight"], True), ([], False)):
        scores = json.loads(run("evaluate", "model", files / "new.csv", "--json", *weights).stdout)["scores"]
        assert (scores["nll"] == pytest.approx(found["nll"], rel=1e-9)) is same


def test_validation_rows_are_scored_and_not_trained_on(files):
    found = json.loads(fit(files / "train.csv", "model", "--valid", files / "new.csv", "--json").stdout)
    assert found["rows"] == 120
    assert found["validation_rows"] == 30
    scores = json.loads(run("evaluate", "model", files / "new.parquet", "--json").stdout)["scores"]
    for name, score in found["validation_scores"].items():
        assert scores[name] == pytest.approx(score, rel=1e-9)


def test_codes_of_validation_rows_are_read_as_those_of_training(files, tmp_path):
    write(tmp_path / "train.csv", "code,y\n" + "007,1\nA1,2\n" * 20)
    write(tmp_path / "valid.csv", "code,y\n" + "007,1\n" * 5)
    assert run("fit", "train.csv", "--target", "y", "--out", "m", "--valid", "valid.csv", *QUICK).exit_code == 0
    found = json.loads(Path("m", CONFIG).read_text())
    scores = json.loads(run("evaluate", "m", "valid.csv", "--json").stdout)["scores"]
    assert scores["rmse"] == pytest.approx(found["summary"]["validation_scores"]["rmse"])


def test_an_existing_model_is_replaced_only_by_force(files):
    assert fit(files / "train.csv", "model").exit_code == 0
    before = Path("model", CONFIG).read_bytes()
    assert_refused(fit(files / "train.csv", "model", "--method", "map"), "model exists", "--force")
    assert Path("model", CONFIG).read_bytes() == before
    assert fit(files / "train.csv", "model", "--method", "map", "--force").exit_code == 0
    assert json.loads(run("info", "model", "--json").stdout)["method"] == "map"


def test_what_is_no_model_is_not_replaced_even_by_force(files, tmp_path):
    (tmp_path / "kept").mkdir()
    write(tmp_path / "kept" / "thesis.txt", "mine")
    assert_refused(fit(files / "train.csv", "kept", "--force"), "kept is not a model, so it is not overwritten")
    assert (tmp_path / "kept" / "thesis.txt").read_text() == "mine"


def test_exact_stores_its_rows_only_when_allowed(files):
    assert_refused(fit(files / "train.csv", "model", "--method", "exact"), "--keep-rows")
    assert fit(files / "train.csv", "model", "--method", "exact", "--keep-rows").exit_code == 0
    assert run("predict", "model", files / "new.csv", "--out", "p.csv").exit_code == 0


def test_fitc_stores_points_that_were_rows_only_when_allowed(files, monkeypatch):
    words = ["--method", "fitc", "--inducing", "60"]
    with monkeypatch.context() as before_the_work:
        before_the_work.setattr("paragp.estimator.fit_fitc", lambda *_, **__: pytest.fail("it was fitted"))
        done = fit(files / "train.csv", "model", *words)
    assert_refused(done, "--keep-rows", "--inducing below half of the 120 rows")
    assert fit(files / "train.csv", "model", *words, "--keep-rows").exit_code == 0
    assert fit(files / "train.csv", "other", "--method", "fitc", "--inducing", "59").exit_code == 0


@pytest.mark.filterwarnings("default")
def test_a_constant_target_gives_a_note(files, tmp_path):
    write(tmp_path / "flat.csv", "a,y\n" + "".join(f"{i},7\n" for i in range(40)))
    done = run("fit", "flat.csv", "--target", "y", "--out", "model", *QUICK)
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith("Note: The target is constant (7).")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("a,y\n", ["data.csv has 2 columns and 0 rows"]),
        ("", ["data.csv cannot be read as CSV: Empty CSV file"]),
        ("a,y\n1,2\n", ["at least 2 rows"]),
        ("y\n1\n2\n", ["data.csv has no input columns beside the target 'y'"]),
        ("a,b\n1,2\n", ["data.csv lacks the column 'y'; it has 'a', 'b'."]),
        ("a,y\n1,low\n2,high\n", ["The column 'y' of data.csv must hold numbers; it is of type string."]),
        ("a,y\n1,true\n2,false\n", ["The column 'y' of data.csv must hold numbers; it is of type bool."]),
        ("a,y\n1,2\n2,\n3,NA\n4,5\n", ["missing", "2 of 4 rows"]),
        ("a,y\n1,\n2,\n", ["missing", "2 of 2 rows"]),
        ("a,y\n1,2\n2,inf\n3,4\n", ["infinite", "1 of 3 rows"]),
        ("a,a,y\n1,2,3\n", ["data.csv has the column 'a' more than once"]),
        ("a,y\n1,2\n1\n", ["data.csv cannot be read as CSV", "Expected 2 columns, got 1"]),
        ("a,y\n2024-01-01,1\n2024-01-02,2\n", ["Column 'a' is of type Date"]),
        ("a,y\n1,2\n\x1b[2J,2,3\n", ["Expected 2 columns, got 3"]),
    ],
)
def test_tables_that_cannot_be_fitted(content, parts, files, tmp_path):
    write(tmp_path / "data.csv", content)
    assert_refused(run("fit", "data.csv", "--target", "y", "--out", "model", *QUICK), *parts)
    assert [path.name for path in tmp_path.iterdir()] == ["data.csv"]


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--method", "gpt"], ["method must be one of auto, map, svgp", "got 'gpt'"]),
        (["--kernel", "gauss"], ["kernel must be one of matern12", "got 'gauss'"]),
        (["--drop", "nothing"], ["train.csv lacks the column 'nothing'"]),
        (["--weights", "nothing"], ["train.csv lacks the column 'nothing'"]),
        (["--weights", "town"], ["The column 'town'", "must hold numbers; it is of type string"]),
        (["--weights", "price", "--weights", "size"], ["sample_weight"]),
        (["--valid", "none.csv"], ["There is no file none.csv."]),
        (["--valid", "other.csv"], ["other.csv lacks the columns 'size', 'town', 'garden'; it has 'price', 'tall'"]),
        (["--valid", "text.csv"], ["Column 'size' holds 'big' where a number is expected"]),
    ],
)
def test_words_that_cannot_be_followed(words, parts, files, tmp_path):
    write(tmp_path / "other.csv", "price,tall\n1,2\n")
    write(tmp_path / "text.csv", "price,size,town,garden\n1,big,Ulm,true\n")
    assert_refused(fit(files / "train.csv", "model", *words), *parts)
    assert not Path("model").exists()


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ("none.csv", "Error: There is no file none.csv.\n"),
        ("folder.csv", "Error: folder.csv is a folder without Parquet files.\n"),
        ("notes.txt", "Error: notes.txt ends in none of .csv, .csv.gz,"),
        ("device.csv", "Error: device.csv is not a file on a disk, so it cannot be read as a table.\n"),
        ("junk.parquet", "Error: junk.parquet cannot be read as Parquet: Parquet"),
    ],
)
def test_files_that_are_no_tables(data, sentence, files, tmp_path):
    (tmp_path / "folder.csv").mkdir()
    write(tmp_path / "notes.txt", "a,y\n1,2\n")
    (tmp_path / "junk.parquet").write_bytes(bytes(200))
    (tmp_path / "device.csv").symlink_to(os.devnull)
    for done in (
        fit(data, "out"),
        run("predict", files / "model", data, "--out", "p.csv"),
        run("evaluate", files / "model", data),
    ):
        assert_refused(done, sentence)
    assert not Path("out").exists()
    assert not Path("p.csv").exists()


def test_places_that_cannot_be_written_are_refused_before_the_work(files, tmp_path, monkeypatch):
    write(tmp_path / "file", "mine")
    monkeypatch.setattr("paragp.cli.read_table", lambda *_: pytest.fail("the table was read"))
    assert_refused(fit(files / "train.csv", "file/model"), "file/model cannot be written: ")
    assert_refused(fit(files / "train.csv", "file"), "file exists")
    assert_refused(fit(files / "train.csv", "/"), "/ exists")
    assert_refused(fit(files / "train.csv", "/", "--force"), "not overwritten")
    monkeypatch.setattr("paragp.cli.rows_of", lambda *_: pytest.fail("the table was read"))
    assert_refused(
        run("predict", files / "model", files / "new.csv", "--out", "file/p.csv"), "file/p.csv cannot be written: "
    )
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folders_that_may_not_be_written(files, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    assert_refused(fit(files / "train.csv", "locked/model"), "locked/model cannot be written")
    assert_refused(run("predict", files / "model", files / "new.csv", "--out", "locked/p.csv"), "locked")


def test_folders_that_may_not_be_written_even_by_root(files, tmp_path, monkeypatch):
    (tmp_path / "locked").mkdir()
    monkeypatch.setattr("paragp.atomic.os.access", lambda place, *_: Path(place).name != "locked")
    assert_refused(fit(files / "train.csv", "locked/model"), "locked/model cannot be written")
    assert_refused(
        run("predict", files / "model", files / "new.csv", "--out", "locked/p.csv"), "locked/p.csv cannot be"
    )


# --- predict ---


@pytest.mark.parametrize("ending", WRITERS)
@pytest.mark.parametrize("out", ["p.csv", "p.parquet"])
def test_predictions_are_those_of_the_estimator_in_the_order_of_the_rows(ending, out, files, tmp_path):
    done = run("predict", files / "model", files / f"new.{ending}", "--out", out)
    assert done.exit_code == 0, done.output
    assert done.stdout == f"Wrote 30 predictions to {out}.\n"
    found = (pacsv.read_csv if out.endswith("csv") else pq.read_table)(out).to_pandas()
    assert found.columns.tolist() == ["y_mean", "y_std", "function_std", "noise_std"]
    dist = ParametricGPRegressor.load(files / "model").predict_dist(inputs(table(30, seed=1)))
    for name, expected in zip(found, (dist.mean, dist.std, dist.function_std, dist.noise_std), strict=True):
        assert np.array_equal(found[name], expected)
    assert [path.name for path in tmp_path.iterdir()] == [out]


def test_intervals_and_quantiles_are_those_of_the_estimator(files):
    words = ["--interval", ".8", "--quantiles", ".05, .5,0.123456789"]
    done = run("predict", files / "model", files / "new.csv", "--out", "p.parquet", *words)
    assert done.exit_code == 0, done.output
    found = pd.read_parquet("p.parquet")
    model, X = ParametricGPRegressor.load(files / "model"), inputs(table(30, seed=1))
    assert np.array_equal(found[["y_lower", "y_upper"]], model.predict_interval(X, 0.8))
    levels = [0.05, 0.5, 0.123456789]
    assert np.array_equal(found[[f"y_q{level}" for level in levels]], model.predict_quantiles(X, levels))


def test_predictions_of_many_batches_are_in_the_order_of_the_rows(files, tmp_path):
    many = table(30, seed=1).take(np.arange(70_000) % 30)
    write(tmp_path / "many.csv", many)
    write(tmp_path / "many.parquet", many)
    assert run("predict", files / "model", files / "new.csv", "--out", "p.parquet").exit_code == 0
    few = pd.read_parquet("p.parquet")["y_mean"].to_numpy()
    for name in ("many.csv", "many.parquet"):
        assert run("predict", files / "model", name, "--out", "q.parquet", "--force").exit_code == 0
        found = pd.read_parquet("q.parquet")["y_mean"].to_numpy()
        np.testing.assert_allclose(found, few[np.arange(70_000) % 30], rtol=1e-9)


def test_columns_the_model_does_not_know_are_left_out_with_a_note(files):
    done = run("predict", files / "model", files / "new.csv", "--out", "p.csv")
    assert done.exit_code == 0
    assert done.stderr == "Note: columns the model does not know are left out: 'id', 'weight'.\n"


def test_the_order_of_the_columns_does_not_matter(files, tmp_path):
    data = table(30, seed=1)
    for ending in WRITERS:
        write(tmp_path / f"turned.{ending}", data.select(["garden", "town", "size"]))
        done = run("predict", files / "model", f"turned.{ending}", "--out", "p.parquet", "--force")
        assert done.stderr == ""
        expected = ParametricGPRegressor.load(files / "model").predict_dist(inputs(data)).mean
        assert np.array_equal(pd.read_parquet("p.parquet")["y_mean"], expected)


def test_an_existing_file_is_replaced_only_by_force(files, tmp_path):
    write(tmp_path / "p.csv", "mine")
    words = ["predict", files / "model", files / "new.csv", "--out"]
    assert_refused(run(*words, "p.csv"), "p.csv exists. Choose another --out, or --force.")
    assert (tmp_path / "p.csv").read_text() == "mine"
    assert run(*words, "p.csv", "--force").exit_code == 0
    (tmp_path / "folder.csv").mkdir()
    assert_refused(run(*words, "folder.csv", "--force"), "folder.csv exists")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--interval", "90"], "--interval must lie between 0 and 1 (.9 for 90 %), got 90.0."),
        (["--interval", "0"], "--interval must lie between 0 and 1"),
        (["--interval", "nan"], "--interval must lie between 0 and 1"),
        (["--quantiles", "5,50"], "--quantiles must lie between 0 and 1, got '5,50'."),
        (["--quantiles", "low"], "--quantiles must be numbers between 0 and 1, such as .05,.5,.95; got 'low'."),
        (["--quantiles", ""], "--quantiles must be numbers"),
        (["--quantiles", "nan"], "--quantiles must lie between 0 and 1"),
        (["--quantiles", ".1,0.10"], "--quantiles must differ from each other, got '.1,0.10'."),
        (["--out", "p.txt"], "p.txt cannot be written: choose a name that ends in .parquet or .csv."),
        (["--out", "p.arrow"], "choose a name that ends in .parquet or .csv"),
    ],
)
def test_wrong_words_of_predict(words, part, files, tmp_path):
    assert_refused(run("predict", files / "model", files / "new.csv", "--out", "p.csv", *words), part)
    assert not list(tmp_path.iterdir())


SHORT = "size,town,garden,price\n"


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("size,garden\n1,true\n", "data.csv lacks the column 'town'; it has 'size', 'garden'."),
        (
            SHORT + "1,Ulm,true,1\nbig,Ulm,true,1\n",
            "data.csv holds 'big' in the column 'size', where a number is expected",
        ),
        (SHORT + "1,Ulm,maybe,1\n", "data.csv holds 'maybe' in the column 'garden', where a number is expected"),
        (SHORT + "inf,Ulm,true,1\n", "Column 'size' holds 1 infinite value"),
        (SHORT, "data.csv has no rows."),
        ("", "data.csv cannot be read as CSV: Empty CSV file."),
    ],
)
def test_tables_that_cannot_be_predicted(content, part, files, tmp_path):
    write(tmp_path / "data.csv", content)
    assert_refused(run("predict", files / "model", "data.csv", "--out", "p.csv"), part)
    assert_refused(run("evaluate", files / "model", "data.csv"), *(["'town'"] if "lacks" in part else [part]))
    assert [path.name for path in tmp_path.iterdir()] == ["data.csv"]


def test_text_in_a_parquet_where_numbers_were_is_named(files, tmp_path):
    write(tmp_path / "data.parquet", pa.table({"size": ["big"], "town": ["Ulm"], "garden": [True]}))
    done = run("predict", files / "model", "data.parquet", "--out", "p.csv")
    assert_refused(done, "Column 'size' holds 'big' where a number is expected")


def broken_copy(model, out):
    out.mkdir()
    for name in (CARD, CONFIG, TENSORS):
        (out / name).write_bytes((model / name).read_bytes()[:-1])


def test_folders_that_are_no_models(files, tmp_path):
    (tmp_path / "empty").mkdir()
    broken_copy(files / "model", tmp_path / "broken")
    for model, part in (
        ("none", "There is no model at none."),
        ("empty", "empty is not a model folder: it has no config.json."),
        (files / "new.csv", "new.csv is not a model folder"),
        ("broken", "config.json is truncated or not JSON"),
    ):
        assert_refused(run("predict", model, files / "new.csv", "--out", "p.csv"), part)
        assert_refused(run("evaluate", model, files / "new.csv"), part)
        assert_refused(run("info", model), part)
    assert not Path("p.csv").exists()


def test_the_table_to_predict_is_never_overwritten(files, tmp_path):
    data = write(tmp_path / "late.csv", table(30, seed=1))
    before = data.read_bytes()
    (tmp_path / "link.csv").symlink_to(data)
    (tmp_path / "hard.csv").hardlink_to(data)
    for out in ("late.csv", "./late.csv", "link.csv", "hard.csv"):
        done = run("predict", files / "model", "late.csv", "--out", out, "--force")
        assert_refused(done, f"{Path(out)} is the table to predict, so it is not overwritten. Choose another --out.")
    assert data.read_bytes() == before


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_whole_numbers_beyond_2_to_53_go_all_the_way(ending, files, tmp_path):
    data = table(40).set_column(0, "id", pa.array([2**60 + 1 + 8 * i for i in range(40)]))
    write(tmp_path / f"id.{ending}", data)
    assert run("fit", f"id.{ending}", "--target", "price", "--out", "model", *QUICK).exit_code == 0
    assert run("predict", "model", f"id.{ending}", "--out", "p.csv").exit_code == 0
    assert run("evaluate", "model", f"id.{ending}").exit_code == 0


def test_text_that_polars_writes_is_read(files, tmp_path):
    pl.from_arrow(table(40)).write_ipc(tmp_path / "t.arrow")
    assert run("fit", "t.arrow", "--target", "price", "--out", "model", *QUICK).exit_code == 0
    assert run("predict", "model", "t.arrow", "--out", "p.csv").exit_code == 0


def test_a_category_called_na_is_the_same_in_every_format(files, tmp_path):
    data = pa.table({"t": ["NA", "null", "", None, "u"] * 8, "n": [1.0, None, 3.0, 4.0, 5.0] * 8, "y": np.arange(40.0)})
    write(tmp_path / "t.parquet", data.set_column(0, "t", pa.array(["NA", "null", None, None, "u"] * 8)))
    write(tmp_path / "t.csv", data)
    found = []
    for name in ("t.csv", "t.parquet"):
        assert run("fit", name, "--target", "y", "--out", "m", "--force", *QUICK).exit_code == 0
        assert json.loads(Path("m", CONFIG).read_text())["columns"][0]["categories"] == ["NA", "null", "u"]
        assert run("predict", "m", name, "--out", "p.parquet", "--force").exit_code == 0
        found.append(pd.read_parquet("p.parquet")["y_mean"].to_numpy())
    np.testing.assert_array_equal(*found)


# --- evaluate, info, methods ---


@pytest.mark.parametrize("weights", [[], ["--weights", "weight"]])
@pytest.mark.parametrize("ending", WRITERS)
def test_scores_stand_beside_those_of_a_constant_normal(weights, ending, files):
    done = run("evaluate", files / "model", files / f"new.{ending}", "--json", *weights)
    assert done.exit_code == 0, done.output
    found, data = json.loads(done.stdout), table(30, seed=1)
    model, y = ParametricGPRegressor.load(files / "model"), data["price"].to_numpy()
    w = data["weight"].to_numpy() if weights else None
    same = PredictiveDistribution(
        np.full(30, model.fitted_.target.mean), np.zeros(30), model.fitted_.target.deviation**2
    )
    assert found["rows"] == 30
    assert found["scores"] == pytest.approx(evaluate(model.predict_dist(inputs(data)), y, w), rel=1e-12)
    assert found["constant_normal"] == pytest.approx(evaluate(same, y, w), rel=1e-12)


def test_scores_as_text_hold_every_metric(files):
    done = run("evaluate", files / "model", files / "new.csv", "--target", "price")
    assert done.stdout.startswith("30 rows, price in its own units:\n")
    assert "constant normal" in done.stdout
    for metric in METRICS.values():
        assert metric.label in done.stdout


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--target", "nothing"], "data.csv lacks the column 'nothing'"),
        (["--target", "town"], "data.csv holds 'Ulm' in the column 'town', where a number is expected."),
        (["--target", "gap"], "The target is missing in 1 of 3 rows"),
        (["--target", "none"], "The target is missing in 3 of 3 rows"),
        (["--weights", "gap"], "The weights must be known and not negative"),
        (["--weights", "below"], "The weights must be known and not negative"),
        (["--weights", "zero"], "The weights 'zero' are all zero"),
    ],
)
def test_truth_and_weights_that_cannot_be_used(words, part, files, tmp_path):
    write(
        tmp_path / "data.csv",
        "size,town,garden,price,gap,none,below,zero\n1,Ulm,true,1,1,,-1,0\n1,Ulm,true,1,,,1,0\n1,Ulm,true,1,1,,1,0\n",
    )
    assert_refused(run("evaluate", files / "model", "data.csv", *words), part)


@pytest.mark.filterwarnings("ignore:overflow")
def test_scores_without_a_number_are_null_in_json(files, tmp_path):
    write(tmp_path / "far.csv", SHORT + "1,Ulm,true,1e200\n")
    done = run("evaluate", files / "model", "far.csv", "--json")
    assert json.loads(done.stdout, parse_constant=pytest.fail)["rows"] == 1


def test_info_says_what_the_model_is(files):
    done = run("info", files / "model")
    assert done.exit_code == 0
    assert done.stdout.startswith(f"ppgpr-mfd model of 'price', made by paragp {__version__}\n")
    assert "rows: 100 for training, 20 for validation" in done.stdout
    assert "'size'" in done.stdout
    found = json.loads(run("info", files / "model", "--json").stdout)
    assert found["target"]["name"] == "price"
    assert [column["name"] for column in found["columns"]] == ["size", "town", "garden"]
    assert sum(found["feature_relevance"].values()) == pytest.approx(1)
    assert found["noise_std"] == ParametricGPRegressor.load(files / "model").noise_std_


def test_info_says_the_shape_where_it_is_not_normal(files, tmp_path):
    assert "shape" not in run("info", files / "model").stdout
    assert json.loads(run("info", files / "model", "--json").stdout)["shape"]["dof"] is None
    model = ParametricGPRegressor.load(files / "model")
    model.fitted_.model.likelihood.tails.fill_(1 / 4.2)
    model.save(tmp_path / "heavy")
    assert "\nshape: Student-t with 4.2 degrees of freedom\n" in run("info", "heavy").stdout
    assert json.loads(run("info", "heavy", "--json").stdout)["shape"]["dof"] == pytest.approx(4.2)


def test_names_that_could_write_to_the_terminal_are_shown_as_words(files, tmp_path):
    data = pa.table({"\x1b[2Jevil": np.arange(40.0), "y": np.sin(np.arange(40.0))})
    write(tmp_path / "evil.parquet", data)
    assert run("fit", "evil.parquet", "--target", "y", "--out", "model", *QUICK).exit_code == 0
    assert "\x1b" not in run("info", "model").output
    done = run("predict", "model", files / "new.csv", "--out", "p.csv")
    assert_refused(done, "lacks the column '\\x1b[2Jevil'")


def test_methods_are_listed():
    text, found = run("methods").stdout, json.loads(run("methods", "--json").stdout)
    assert list(found) == [*METHODS, "exact", "fitc"]
    for name in found:
        assert name in text


# --- whole or not at all ---


@pytest.mark.parametrize("out", ["p.csv", "p.parquet"])
@pytest.mark.parametrize("old", [False, True])
def test_a_full_disk_leaves_no_part_of_the_predictions(out, old, files, tmp_path):
    if old:
        write(tmp_path / "p", "mine").rename(out)
    with full_disk(500):
        done = run("predict", files / "model", files / "new.csv", "--out", out, "--force")
    assert_refused(done, f"Error: {out} cannot be written: ", "File too large")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == ([(out, "mine")] if old else [])


def test_a_full_disk_leaves_no_part_of_the_model(files, tmp_path):
    with full_disk(500):
        assert_refused(fit(files / "train.csv", "model"), "The model cannot be written to model: File too large")
    assert not list(tmp_path.iterdir())


def interrupt(*_, **__):
    raise KeyboardInterrupt


def test_an_interrupt_leaves_no_half_written_output(files, tmp_path, monkeypatch):
    with monkeypatch.context() as during_training:
        during_training.setattr("paragp.estimator.train", interrupt)
        assert fit(files / "train.csv", "model").exit_code == 130
    with monkeypatch.context() as while_saving:
        while_saving.setattr("paragp.artefact.card", interrupt)
        assert fit(files / "train.csv", "model").exit_code == 130
    many = table(30, seed=1).take(np.arange(70_000) % 30)
    write(tmp_path / "many.parquet", many)
    calls, predict = [], Fitted.predict

    def second_batch(self, X):
        calls.append(X)
        return predict(self, X) if len(calls) == 1 else interrupt()

    monkeypatch.setattr(Fitted, "predict", second_batch)
    for out in ("p.csv", "p.parquet"):
        calls.clear()
        assert run("predict", files / "model", "many.parquet", "--out", out).exit_code == 130
        assert len(calls) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["many.parquet"]


# --- as a process ---


def process(*words, **options):
    done = [sys.executable, "-m", "paragp", *map(str, words)]
    return subprocess.run(done, capture_output=True, text=True, check=False, **options)


def test_fit_as_a_process_is_silent_where_nobody_watches(files):
    done = process("fit", files / "train.csv", "--target", "price", "--out", "model", *QUICK)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Fitted ppgpr-mfd to 100 rows of ")


def test_an_error_as_a_process_is_one_line(tmp_path):
    done = process("predict", "none", "none.csv", "--out", "p.csv", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "Error: There is no model at none.\n")


ENDED = """
import os, signal, sys
from paragp.cli import app
from paragp.fitted import Fitted

predict, calls = Fitted.predict, []
def second_batch(self, X):
    calls.append(X)
    if len(calls) % 2 == 0:
        os.kill(os.getpid(), number)
    return predict(self, X)
Fitted.predict = second_batch
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)  # whatever whoever runs the tests ignores
    try:
        app(sys.argv[1:])
    except SystemExit as end:
        print(end.code - number)
"""


def test_a_signal_that_ends_the_process_leaves_no_half_written_output(files, tmp_path):
    write(tmp_path / "many.parquet", table(30, seed=1).take(np.arange(70_000) % 30))
    words = ["predict", files / "model", "many.parquet", "--out", "p.csv"]
    done = subprocess.run([sys.executable, "-c", ENDED, *map(str, words)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "128\n128\n", "")
    assert [path.name for path in tmp_path.iterdir()] == ["many.parquet"]


def test_signals_are_as_they_were_and_ignored_ones_stay_ignored(monkeypatch):
    seen = []
    monkeypatch.setattr("paragp.cli._echo_json", lambda _: seen.extend(map(signal.getsignal, found)))
    found = [signal.SIGTERM, signal.SIGHUP]
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run("methods", "--json")
        assert seen[0] not in (signal.SIG_DFL, signal.SIG_IGN)
        assert seen[1] is signal.SIG_IGN
        assert [*map(signal.getsignal, found)] == [signal.SIG_DFL, signal.SIG_IGN]
    finally:
        signal.signal(signal.SIGHUP, before)


def test_progress_is_shown_to_whoever_watches(files):
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    words = ["fit", files / "train.csv", "--target", "price", "--out", "model", *QUICK]
    command = [sys.executable, "-m", "paragp", *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, check=False)
    os.write(theirs, b"end")  # so that there is something to read in any case
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 0
    assert "validation NLL" in shown


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["fit", "t.csv"], "Missing option '--target'. See"),
        (["fit", "t.csv", "--target", "y", "--out", "m", "--inducing", "0"], "Invalid value for '--inducing': "),
        (["fit", "t.csv", "--target", "y", "--out", "m", "--beta", "low"], "Invalid value for '--beta': "),
        (["fit", "--nothing"], "--nothing"),
        (["info"], "Missing argument '"),
        (["info", "a", "b"], "b"),
        (["nothing"], "No such command 'nothing'"),
        (["--nothing", "info"], "--nothing"),
        (["demo", "--out", __file__], "Invalid value for '--out'"),
        (["demo", "--epochs", "0"], "Invalid value for '--epochs': "),
        (["demo", "--seed", "-1"], "Invalid value for '--seed': "),
    ],
)
def test_wrong_words_are_answered_in_one_line(words, part):
    done = run(*words)
    assert_refused(done, part, ". See ", " --help.\n")


@pytest.mark.parametrize("command", ["fit", "predict", "evaluate", "report", "info", "methods", "demo"])
def test_help_holds_an_example(command):
    done = run(command, "--help")
    assert done.exit_code == 0
    assert f"Example: paragp {command}" in " ".join(done.output.split())


def test_version_and_help():
    assert run("--version").output == f"paragp {__version__}\n"
    shown = run("--help").output
    assert run().output.strip() == shown.strip()
    for command in ("fit", "predict", "evaluate", "report", "info", "methods", "demo"):
        assert command in shown


# --- the demonstration ---


def test_demo_writes_table_and_pictures(tmp_path, monkeypatch):
    monkeypatch.setattr("paragp.paper.toy.BASELINE_ITERATIONS", 1)
    result = run("demo", "--out", tmp_path / "demo", "--epochs", "1")
    assert result.exit_code == 0, result.output
    assert sorted(p.name for p in (tmp_path / "demo").iterdir()) == ["table.md", "univariate.png", "univariate.svg"]
    assert (tmp_path / "demo" / "table.md").read_text(encoding="utf-8").strip() in result.output
    assert "PPGPR-MFD" in result.output


def test_demo_without_matplotlib_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("paragp.paper.toy.BASELINE_ITERATIONS", 1)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = run("demo", "--out", tmp_path, "--epochs", "1")
    assert result.exit_code == 0
    assert 'pip install "paragp[report]"' in result.output
    assert [p.name for p in tmp_path.iterdir()] == ["table.md"]
