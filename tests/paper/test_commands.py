"""`paragp paper` as a user types it."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from paragp.cli import app
from paragp.data.datasets import DATASETS, digest_of


def paragp(*words):
    return CliRunner().invoke(app, ["paper", *map(str, words)])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--profile", "huge"], "There is no profile 'huge'. Profiles: smoke, lite, full"),
        (["run", "--methods", "map,none"], "There is no method 'none'. Known: map, svgp"),
        (["run", "--splits", "0,x"], "Splits are whole numbers from 0"),
        (["run", "--betas", "0,x"], "Values of beta_reg are numbers from 0"),
        (["run", "--betas", "-1"], "Values of beta_reg are numbers from 0"),
        (["run", "--methods", "exact", "--betas", "1"], "There is no beta_reg in exact"),
        (["run", "--shard", "3/2"], "A shard is i/k with i from 1 to k"),
        (["run", "--datasets", "nowhere"], "There is no data set 'nowhere'. Known: pol, elevators"),
        (["run", "--methods", "exact", "--splits", "7"], "That leaves nothing to run."),
        (["tables"], "There are no runs in"),
        (["figures"], "There are no runs in"),
    ],
)
def test_wrong_words_are_answered_in_a_sentence(words, said, tmp_path):
    done = paragp(*words, "--results", tmp_path)
    assert done.exit_code != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_damaged_table_is_found_before_anything_is_trained(tmp_path, monkeypatch):
    monkeypatch.setenv("PARAGP_DATA", str(tmp_path))
    (tmp_path / "uci").mkdir()
    (tmp_path / "uci" / "pol.parquet").write_bytes(b"PAR1")
    done = paragp("run", "--datasets", "pol", "--methods", "map", "--splits", "0", "--results", tmp_path / "results")
    assert done.exit_code == 2
    assert "pol.parquet" in done.stderr
    assert not (tmp_path / "results").exists()


def test_a_run_is_done_once_and_gives_tables(tmp_path):
    words = ("--methods", "map,svgp,map", "--splits", "0,0", "--results", tmp_path)
    assert "2 runs, 0 of them done before" in paragp("run", *words).stdout
    assert "2 runs, 2 of them done before" in paragp("run", *words).stdout
    done = paragp("tables", "--results", tmp_path)
    assert "| diabetes | SVGP | 1 |" in done.stdout
    assert (tmp_path / "smoke" / "tables" / "complete.tex").exists()


def test_beta_can_be_held(tmp_path):
    words = ("--methods", "ppgpr-mfd,exact", "--splits", "0", "--betas", "0,.5", "--results", tmp_path)
    assert "2 runs, 0 of them done before" in paragp("run", *words).stdout
    runs = [json.loads(file.read_text()) for file in sorted((tmp_path / "smoke").glob("*.json"))]
    assert sorted((run["spec"]["beta"], run["beta"]) for run in runs) == [(0.0, 0.0), (0.5, 0.5)]


def test_data_sets_are_listed_with_where_they_are(tmp_path, monkeypatch):
    monkeypatch.setenv("PARAGP_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "uci").mkdir()
    (tmp_path / "uci" / "pol.parquet").touch()
    lines = paragp("datasets").stdout.splitlines()
    assert len(lines) == 2 * len(DATASETS)
    assert lines[0].split()[:4] == ["pol", "15,000", "x", "26"]
    assert lines[1].strip() == str(tmp_path / "uci" / "pol.parquet")
    assert "downloaded when needed from https://" in lines[3]


def test_tables_that_are_here_are_compared_with_what_is_known_of_them(tmp_path, monkeypatch):
    monkeypatch.setenv("PARAGP_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "uci").mkdir()
    values = np.random.default_rng(0).normal(size=(4, 3))
    table = pa.table(dict(zip(("x0", "x1", "y"), values.T, strict=True)))
    pq.write_table(table, tmp_path / "uci" / "pol.parquet")
    for digest, code, said in (
        (digest_of(values), 0, "as expected"),
        (None, 0, "of the expected size"),
        (digest_of(2 * values), 1, "NOT the same: values with the digest"),
    ):
        monkeypatch.setitem(DATASETS, "pol", replace(DATASETS["pol"], rows=4, inputs=2, digest=digest))
        done = paragp("datasets", "--check")
        assert done.exit_code == code
        assert said in done.stdout
