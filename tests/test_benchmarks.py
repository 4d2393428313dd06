"""The benchmarks run and keep their contract on tiny sizes; the README quotes what they measured."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))


def run(*words):
    command = [sys.executable, "-W", "ignore", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT / "benchmarks", check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_step_keeps_its_contract():
    report = run("step.py", "--methods", "ppgpr-mfd", "--M", "20", "--B", "30", "--d", "3", "--repeats", "2", "--json")
    (row,) = report["rows"]
    wanted = {
        "method",
        "M",
        "B",
        "d",
        "ours_ms",
        "gpytorch_ms",
        "ratio",
        "ours_peak_mb",
        "gpytorch_peak_mb",
        "roofline",
    }
    assert wanted <= set(row)
    assert row["ratio"] == pytest.approx(row["gpytorch_ms"] / row["ours_ms"])
    assert row["ours_peak_mb"] > 50


def test_predict_keeps_its_contract():
    words = "--methods ppgpr-mf --rows 300 --M 20 --d 3 --chunks 100 --repeats 1 --json"
    (row,) = run("predict.py", *words.split())["rows"]
    assert row["ratio"] == pytest.approx(row["ours_rows_per_s"] / row["gpytorch_rows_per_s"])
    assert row["mean_alone_rows_per_s"] > 0


def test_the_readme_quotes_the_stored_results():
    import table

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert table.step_table() in readme
    assert table.predict_table() in readme
    page = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    assert table.growth_table() in page
    assert table.precision_table() in page
