"""The grid of runs: what it holds, that it goes on where it was stopped, and what it says of failures."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from paragp.data.datasets import DATASETS
from paragp.gp.methods import PAPER
from paragp.paper import protocol, uci
from paragp.paper.protocol import BASELINES, PROFILES, Spec, Work, missing, run, sharded
from paragp.paper.uci import settings


def grid(profile, methods=(*PAPER, *BASELINES)):
    chosen = PROFILES[profile]
    return chosen.specs(profile, chosen.datasets, methods, range(chosen.splits))


def test_the_full_profile_is_the_papers():
    specs = grid("full")
    assert {spec.dataset for spec in specs} == {*DATASETS}
    assert len({spec.name for spec in specs}) == len(specs)
    by_method = {method: [spec for spec in specs if spec.method == method] for method in PAPER}
    for name, method in PAPER.items():
        assert len(by_method[name]) == len(DATASETS) * 10 * len(method.beta) * max(1, len(method.gamma)), name
        assert {spec.recipe for spec in by_method[name]} == {"adam"}
        assert {spec.M for spec in by_method[name]} == {1000}
    batches = {spec.dataset: (spec.batch_size, spec.epochs) for spec in by_method["svgp"]}
    assert batches["houseelectric"] == (10_000, 200)
    assert batches["buzz"] == batches["song"] == batches["3droad"] == (10_000, 400)
    assert batches["pol"] == batches["keggdirected"] == (1000, 400)
    exact = {dataset: {s.split for s in specs if (s.method, s.dataset) == ("exact", dataset)} for dataset in DATASETS}
    assert exact["pol"] == exact["slice"] == {0, 1, 2}
    assert exact["3droad"] == exact["song"] == {0}
    assert exact["buzz"] == exact["houseelectric"] == set()
    assert not any(settings(spec).stops for spec in by_method["svgp"])  # all 400 epochs, and the last state
    assert (PROFILES["full"].exact_rows, PROFILES["full"].exact_cg_steps) == (10_000, 3)  # Wang et al. 2019


@pytest.mark.parametrize(("profile", "steps"), [("full", 3), ("lite", 0)])
def test_the_exact_process_learns_on_all_rows_in_the_full_profile_alone(profile, steps, monkeypatch):
    asked = {}

    def stop(*_, learn_rows, cg_steps, **__):
        asked.update(rows=learn_rows, steps=cg_steps)
        raise KeyboardInterrupt

    monkeypatch.setattr(uci, "fit_exact", stop)
    (spec,) = PROFILES[profile].specs(profile, ["diabetes"], ["exact"], [0])
    with pytest.raises(KeyboardInterrupt):
        uci.execute(spec)
    assert asked == {"rows": PROFILES[profile].exact_rows, "steps": steps}


def test_time_left_is_told_by_what_runs_take():
    small, large = (PROFILES["lite"].specs("lite", [name], ["svgp"], [0])[0] for name in ("elevators", "kin40k"))
    assert uci.work(large).cost > 2 * uci.work(small).cost
    smoke = grid("smoke")
    assert {spec.method: uci.work(spec).steps for spec in smoke if spec.method in BASELINES} == {
        "exact": None, "raissi": None,
    }  # fmt: skip
    assert all(uci.work(spec).steps >= spec.epochs for spec in smoke if spec.method not in BASELINES)


def test_the_bar_says_what_is_going_on(tmp_path, capsys):
    def execute(spec, tick):
        tick()
        if spec.method == "map":
            raise OSError("the disk is away")
        return {"scores": {"nll": 1.0}, "valid": {"nll": 1.0}}

    work = lambda spec: Work(3.0 if spec.method == "svgp" else 1.0, 7)  # noqa: E731
    run(SPECS, tmp_path, execute, work=work, show_progress=True)
    said = capsys.readouterr().err
    assert "run 1 of 3: diabetes-map-0" in said
    assert "run 3 of 3, 1 failed: diabetes-exact-0" in said
    assert " 80%|" in said  # 4 of 5, though the last of three runs is left
    assert "step 1 of 7" in said
    assert " gone, " in said
    assert " left" in said


def test_without_a_terminal_a_line_is_said_for_each_run(tmp_path, capsys):
    run(SPECS[:1], tmp_path, lambda *_: {"scores": {"nll": 1.0}, "valid": {"nll": 1.0}})
    assert capsys.readouterr().err == "Run 1 of 1: diabetes-map-0 took 0 s.\n"


def test_lite_searches_within_a_run():
    specs = grid("lite")
    assert all(spec.beta is None and spec.recipe == "auto" and spec.epochs is None for spec in specs)
    assert len(specs) == 5 * 2 * 11
    (large,) = PROFILES["lite"].specs("lite", ["houseelectric"], ["svgp"], [0])
    assert (large.batch_size, large.epochs) == (10_000, 10)  # as few as the recipe takes of any table


@pytest.mark.parametrize("shard", ["0/2", "3/2", "1", "a/b", "1/0", "-1/2", ""])
def test_a_wrong_shard_is_refused(shard):
    with pytest.raises(ValueError, match="A shard is i/k"):
        sharded([], shard)


def test_shards_are_all_of_it_once():
    specs = grid("lite")
    parts = [sharded(specs, f"{i}/3") for i in (1, 2, 3)]
    assert sorted(spec.name for part in parts for spec in part) == sorted(spec.name for spec in specs)


SPECS = [Spec("smoke", "diabetes", method, 0, 5, "auto", epochs=1) for method in ("map", "svgp", "exact")]


def test_what_is_done_is_not_done_again_and_a_failure_keeps_nothing_else(tmp_path, capsys):
    called = []

    def execute(spec, tick):
        called.append(spec.method)
        tick()
        if spec.method == "svgp":
            raise OSError("the disk is away")
        return {
            "scores": {"nll": 1.0},
            "valid": {"nll": math.nan if spec.method == "exact" and len(called) < 4 else 1.0},
        }

    assert run(SPECS, tmp_path, execute) == {
        "diabetes-svgp-0": "OSError: the disk is away",
        "diabetes-exact-0": "ArithmeticError: the nll on the validation rows is nan",
    }
    assert "Failed: diabetes-svgp-0: OSError: the disk is away" in capsys.readouterr().err
    assert [spec.method for spec in missing(SPECS, tmp_path)] == ["svgp", "exact"]
    run(SPECS, tmp_path, execute)
    assert called == ["map", "svgp", "exact", "svgp", "exact"]
    found = json.loads((tmp_path / "diabetes-map-0.json").read_text())
    assert found["spec"]["method"] == "map"
    assert found["scores"] == {"nll": 1.0}
    assert json.loads((tmp_path / "timing" / "diabetes-map-0.json").read_text())["seconds"] >= 0
    assert [run["spec"]["method"] for run in protocol.read(tmp_path)] == ["exact", "map"]


def test_seconds_say_what_was_loaded_before_python(monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "/somewhere/yes.so:/elsewhere/malloc.so /last.so")
    assert protocol.machine()["preloaded"] == ["yes.so", "malloc.so", "last.so"]
    monkeypatch.delenv("LD_PRELOAD")
    assert protocol.machine()["preloaded"] == []


def test_a_file_of_another_spec_is_not_taken_for_done(tmp_path):
    run(SPECS[:1], tmp_path, lambda *_: {"scores": {}, "valid": {}})
    assert missing(SPECS[:1], tmp_path) == []
    with pytest.raises(ValueError, match="was made with M = 5, and 50 is wanted"):
        missing([replace(SPECS[0], M=50)], tmp_path)


def test_files_that_are_being_written_are_no_runs(tmp_path):
    run(SPECS[:1], tmp_path, lambda *_: {"scores": {}, "valid": {}})
    (tmp_path / ".diabetes-svgp-0-1234abcd.json").write_text('{"spec": {"data')
    assert len(list(protocol.read(tmp_path))) == 1
    for damaged in ('{"spec": {"data', "{}", "[]", '{"spec": 1}'):
        (tmp_path / "diabetes-svgp-0.json").write_text(damaged)
        with pytest.raises(ValueError, match=r"diabetes-svgp-0\.json is not a run's file"):
            list(protocol.read(tmp_path))
    (failed,) = run(SPECS[1:2], tmp_path, lambda *_: {}).values()  # a grid goes on past it
    assert "is not a run's file" in failed


WORDS = [sys.executable, "-m", "paragp", "paper", "run", "--methods", "map,svgp,ppgpr-mfd,exact,raissi"]


def finished(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (folder / "smoke").glob("[!.]*.json")}


def test_a_grid_that_was_killed_ends_with_the_same_files(tmp_path):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    through, broken = tmp_path / "through", tmp_path / "broken"
    subprocess.run([*WORDS, "--results", through], check=True, env=environment, capture_output=True)
    for enough in (2, 6):
        process = subprocess.Popen([*WORDS, "--results", broken], env=environment, stdout=subprocess.DEVNULL)
        while process.poll() is None and len(finished(broken)) < enough:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert enough <= len(finished(broken)) < 10
    done = subprocess.run([*WORDS, "--results", broken], check=True, env=environment, capture_output=True, text=True)
    assert "of them done before" in done.stdout
    assert len(finished(through)) == 10
    assert finished(broken) == finished(through)
