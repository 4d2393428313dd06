"""The benchmarks run and keep their contract on tiny sizes; the README quotes what they measured."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
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


def test_products_keep_their_contract(tmp_path):
    out = tmp_path / "products.json"
    report = run("products.py", "--size", "20", "--repeats", "2", "--out", str(out), "--json")
    assert json.loads(out.read_text()) == report
    rows = {row["operation"]: row for row in report["rows"]}
    assert rows["product, float32"].keys() == {"operation", "torch_ms", "ours_ms"}
    assert rows["product, float64"].keys() == {"operation", "torch_ms"}
    assert all(row["torch_ms"] > 0 for row in report["rows"])


def test_predict_keeps_its_contract():
    words = "--methods ppgpr-mf --rows 300 --M 20 --d 3 --chunks 100 --repeats 1 --json"
    (row,) = run("predict.py", *words.split())["rows"]
    assert row["ratio"] == pytest.approx(row["ours_rows_per_s"] / row["gpytorch_rows_per_s"])
    assert row["mean_alone_rows_per_s"] > 0
    assert row["onnxruntime_rows_per_s"] > 0
    assert row["onnxruntime_difference"] < 1e-3


@pytest.fixture
def small_table(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2))
    (tmp_path / "uci").mkdir()
    table = pa.table({"x0": x[:, 0], "x1": x[:, 1], "y": np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=200)})
    pq.write_table(table, tmp_path / "uci" / "small.parquet")
    monkeypatch.setenv("PARAGP_DATA", str(tmp_path))
    return tmp_path


def test_quality_keeps_its_contract(small_table):
    words = f"--datasets small --splits 0 --M 10 --beta 0.05 --curve --folder {small_table} --json".split()
    (row,) = run("quality.py", *words)["rows"]
    assert {"nll", "rmse", "crps", "seconds", "start_seconds", "beta", "curve"} <= set(row)
    assert row["nll"] < 0
    assert row["curve"][0]["seconds"] > row["start_seconds"]
    again = run("quality.py", *words)["rows"]
    assert again == [row]  # from its file


def test_ablation_keeps_its_contract(small_table):
    words = f"--datasets small --folder {small_table} --plot {small_table / 'ablation.png'} --json".split()
    rows = run("ablation.py", *words)["small"]
    assert len(rows) == 7
    assert (small_table / "ablation.png").read_bytes().startswith(b"\x89PNG")
    assert all({"nll", "rmse", "crps", "coverage_90", "seconds"} <= set(row) for row in rows.values())
    whole, level = rows["the default's mean"], rows["one level of noise"]
    assert whole["rmse"] == level["rmse"]
    assert run("ablation.py", *words)["small"] == rows  # from its file


def test_candidates_keep_their_contract(small_table):
    words = f"--datasets small --folder {small_table} --json".split()
    rows = run("candidates.py", *words)["small"]
    assert set(rows) == {"default", "reweighed", "ensemble", "neighbours"}
    assert all(row["rmse"] < 0.5 and row["nll"] < 0.5 for row in rows.values())  # 1.4 and 1 of a constant
    assert len({row["rmse"] for row in rows.values()}) > 1
    assert run("candidates.py", *words)["small"] == rows  # from its file


def test_an_ensemble_has_the_variance_of_its_mixture():
    import candidates

    dists = [candidates.PredictiveDistribution(np.array([mean]), 0.0, 1.0) for mean in (-1.0, 1.0)]
    together = candidates.mixture(dists)
    assert (together.mean[0], together.var[0]) == (0.0, 2.0)


def test_fresh_tables_are_a_part_of_theirs_drawn_at_random(small_table, monkeypatch):
    import quality

    (small_table / "uci" / "small.parquet").rename(small_table / "uci" / "houseelectric.parquet")
    monkeypatch.setattr(quality, "FRESH_ROWS", 50)
    part, whole = quality.table("houseelectric"), quality.load("houseelectric")
    assert part.x.shape == (50, 2)
    rows = {tuple(row): y for row, y in zip(whole.x.tolist(), whole.y.tolist(), strict=True)}
    assert [rows[tuple(row)] for row in part.x.tolist()] == part.y.tolist()
    assert len({tuple(row) for row in part.x.tolist()}) == 50


def test_scale_keeps_its_contract(small_table):
    (small_table / "uci" / "small.parquet").rename(small_table / "uci" / "houseelectric.parquet")
    out = small_table / "scale.json"
    report = run("scale.py", *f"stream --M 10 --B 50 --repeats 1 --out {out} --json".split())
    memory, stream = (report["runs"][side][0]["rows_per_s"] for side in ("memory", "stream"))
    assert report["tax"] == pytest.approx(memory / stream - 1)
    assert json.loads(out.read_text())["stream"]["tax"] == report["tax"]


def test_the_cost_model_adds_up():
    import scale

    found = {"repeated_seconds": 0.1, "row_seconds": 1e-4, "encode_row_seconds": 1e-5, "decode_row_seconds": 1e-6,
             "send_seconds": 0.01}  # fmt: skip
    assert scale.step_seconds(found, 1000, 1) == pytest.approx(0.1 + 0.111)
    assert scale.step_seconds(found, 1000, 2) == pytest.approx(0.1 + 0.0555 + 0.01)
    assert scale.step_seconds(found, 1000, 100) == pytest.approx(0.1 + 0.00111 + 0.02)


def test_coverage_keeps_its_contract(small_table):
    pytest.importorskip("mapie")
    words = "--datasets diabetes --divisions 50 --compared 2 --tables 2 --points 10 --epochs 1 --json --out"
    report = run("intervals.py", *words.split(), str(small_table / "coverage.json"))
    assert json.loads((small_table / "coverage.json").read_text()) == report
    for row in report["coverage"]:
        assert abs(row["mean"] - row["expected_mean"]) < 5 * row["standard_error"]
    ours, theirs = (
        {row["level"]: row["width"] for row in report["widths"] if row["intervals"] == label}
        for label in ("paragp, guaranteed", "MAPIE, by our deviations")
    )
    assert ours == pytest.approx(theirs, rel=0.2)
    noisy = [row for row in report["groups"] if row["group"] == "noisy" and row["level"] == 0.9]
    assert [row["by"] for row in noisy] == [None, "kind"]
    assert noisy[0]["coverage"] < 0.7 < noisy[1]["coverage"]


def test_the_theory_of_coverage_is_that_of_drawn_ranks():
    import intervals

    n, m, level = 20, 30, 0.8
    rng = np.random.default_rng(0)
    scores = np.sort(rng.random((20_000, n)), axis=1)[:, 16]  # k = ceil(21 * .8) = 17
    shares = (rng.random((20_000, m)) <= scores[:, None]).mean(1)
    found = intervals.theory(n, m, level)
    assert found.mean == pytest.approx(shares.mean(), abs=0.003)
    assert found.deviation == pytest.approx(shares.std(), rel=0.03)
    assert found.outside == pytest.approx(np.mean((shares < found.low) | (shares > found.high)), abs=0.003)


def test_the_time_to_a_target_is_the_first_that_reached_it():
    import quality

    mine = [{"seconds": s, "nll": nll} for s, nll in ((1.0, 0.5), (2.0, -0.5), (3.0, -0.4))]
    peer = [{"seconds": s, "nll": nll} for s, nll in ((10.0, 0.6), (40.0, -0.5))]
    (found,) = quality.against(mine, peer, [])
    assert found == {"target": -0.5, "seconds": 2.0, "peer_seconds": 40.0, "ratio": 20.0}
    assert quality.against(mine, peer, [-1.0])[0]["ratio"] is None


def test_our_seconds_beside_a_peer_are_those_of_epochs_taken_in_turns():
    import gpytorch_curve

    timing = {"ours": {"first_seconds": 5.0, "epoch_seconds": 1.5}}
    curve = gpytorch_curve.ours_by_seconds(
        [{"seconds": 8.0, "nll": 1.0}, {"seconds": 9.0, "nll": 0.5}], {"timing": timing}
    )
    assert [(point["seconds"], point["nll"]) for point in curve] == [(5.0, 1.0), (6.5, 0.5)]


def test_tables_of_the_robustness_check_are_seeded_and_of_every_kind():
    import robustness

    kinds = {robustness.table(seed)[0] for seed in range(50)}
    assert kinds == set(robustness.KINDS)
    np.testing.assert_array_equal(robustness.table(3)[1], robustness.table(3)[1])


def test_a_comparison_that_lacks_one_side_is_left_out():
    import table

    assert "| pol | 400 |" in table.soonest_table()
    assert table.soonest_table("svgp").count("\n") == 1  # GPyTorch's curves are of PPGPR-MFD


def test_a_table_takes_the_place_of_the_one_with_its_head():
    import table

    page = "before\n\n| a | b |\n|---|---:|\n| old | 1 |\n| older | 2 |\n\nafter"
    new = table.markdown(["a", "b"], [["new", "3"]])
    assert table.replaced(page, new) == f"before\n\n{new}\n\nafter"
    with pytest.raises(ValueError, match="there are 0"):
        table.replaced(page, table.markdown(["c"], []))


PAGES = ("README.md", "docs/choosing.md", "docs/intervals.md", "docs/quality.md", "docs/scale.md", "docs/speed.md")


@pytest.mark.parametrize("page", PAGES)
def test_pages_quote_the_stored_results(page):
    import table

    text = (ROOT / page).read_text(encoding="utf-8")
    assert set(table.PAGES) == set(PAGES)
    for of in table.PAGES[page]:
        assert of() in text, f"{of.__name__}: python benchmarks/table.py --write"
