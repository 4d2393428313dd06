"""Calibrated networks on trips: what is read, what is scored, and the command."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import norm
from typer.testing import CliRunner

from paragp.cli import app
from paragp.paper import trips
from paragp.predictive import PredictiveDistribution


def paragp(*words):
    return CliRunner().invoke(app, ["paper", *map(str, words)])


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("PARAGP_DATA", str(tmp_path))
    (tmp_path / "trips").mkdir()
    taxis = {
        "pu_borough": ["Queens", "Queens", "Manhattan"], "is_dispatch": [0.0, 1.0, 0.0], "pu_lon": [1.0, 2.0, 3.0],
        "trip_distance": [9.0, 9.0, 9.0], "pickup_datetime": pa.array([0, 1, 2], pa.timestamp("ms")),
        "year": [2021.0, 2022.0, 2023.0], "duration_min": [5.0, 6.0, 7.0],
    }  # fmt: skip
    bikes = {
        "city": ["NYC", "Chicago"], "month": [1, 2], "hour": [3, 4], "day_of_week": ["Sunday", "Monday"],
        "user_type": ["Casual", "Casual"], "subscriber": [0, 1], "duration_min": [np.e, 1.0],
    }  # fmt: skip
    pq.write_table(pa.table(taxis), tmp_path / "trips" / f"{trips.TAXIS}.parquet")
    pq.write_table(pa.table(bikes), tmp_path / "trips" / f"{trips.BIKES}.parquet")


def test_taxis_are_hailed_in_a_borough_and_forecast(data):
    x, y = trips.city("queens")
    np.testing.assert_array_equal(x, [[1.0, 2021.0]])  # neither the distance nor an id
    np.testing.assert_array_equal(y, [5.0])


def test_bikes_are_numbers_with_a_logarithm_to_predict(data):
    x, y = trips.city("nyc-bikes")
    np.testing.assert_array_equal(x, [[1.0, 3.0, 0.0, 6.0]])
    np.testing.assert_allclose(y, [1.0], rtol=1e-12)


def test_trips_that_are_not_there_are_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("PARAGP_DATA", str(tmp_path))
    done = paragp("run", "--experiment", "trips", "--profile", "lite", "--results", tmp_path / "results")
    assert done.exit_code == 2
    assert "The trips of manhattan are not at" in done.stderr
    assert not (tmp_path / "results").exists()


def test_normal_z_scores_are_calibrated_and_narrow_ones_are_not():
    y = norm.ppf((np.arange(1000) + 0.5) / 1000)
    right = trips.calibration(PredictiveDistribution(np.zeros(1000), np.ones(1000), np.array(0.0)), y)
    assert right["scores"]["ks"] < 0.001
    assert right["scores"]["cvm"] < 1e-6
    assert right["scores"]["coverage_0.8"] == pytest.approx(0.8, abs=0.002)
    np.testing.assert_allclose(right["z_cdf"], norm.cdf(trips.Z), atol=0.001)
    wide = trips.calibration(PredictiveDistribution(np.zeros(1000), np.full(1000, 4.0), np.array(0.0)), y)
    gap = np.abs(norm.cdf(2 * trips.Z) - norm.cdf(trips.Z)).max()
    assert wide["scores"]["ks"] == pytest.approx(gap, abs=0.01)
    assert wide["scores"]["cvm"] > 0.001


def test_the_command_runs_once_and_gives_table_and_figure(tmp_path):
    words = ("--experiment", "trips", "--results", tmp_path)
    assert "4 runs, 0 of them done before" in paragp("run", *words).stdout
    assert "4 runs, 4 of them done before" in paragp("run", *words).stdout
    shown = paragp("tables", *words).stdout
    assert all(f"| diabetes | {row.label} |" in shown for row in trips.DEEP.values())
    timing = json.loads((tmp_path / "trips" / "smoke" / "timing" / "diabetes-mc-dropout-0.json").read_text())
    assert timing["seconds_to_predict_a_million_rows"] > 0
    assert "timing" not in json.loads((tmp_path / "trips" / "smoke" / "diabetes-mc-dropout-0.json").read_text())
    assert "trips.svg" in paragp("figures", *words).stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--experiment", "ships"], "There is no experiment 'ships'. Experiments: univariate, trips."),
        (["--experiment", "trips", "--betas", "1"], "The trips have no --betas"),
        (["--experiment", "trips", "--methods", "map"], "There is no method 'map'. Known: svgp-dkl"),
        (["--experiment", "trips", "--datasets", "pol"], "There is no city 'pol'. Known: manhattan"),
    ],
)
def test_wrong_words_are_answered(words, said, tmp_path):
    done = paragp("run", *words, "--results", tmp_path)
    assert done.exit_code == 2
    assert said in done.stderr
    assert not list(tmp_path.iterdir())
