"""Two processes come to the model of one."""

import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch

from paragp.data.rows import Data, Share
from paragp.gp.methods import METHODS
from paragp.training.distributed import ALONE, _own_cores
from paragp.training.loop import Config, fit
from paragp.training.solves import solve

from cases import generator, random_data, random_model

SCRIPT = """
import sys
import numpy as np, pandas as pd, torch
from paragp import ParametricGPRegressor
from paragp.training.distributed import joined
torch.set_num_threads(1)
folder, kind = sys.argv[1:]
with joined() as group:
    model = ParametricGPRegressor(n_inducing=15, max_epochs=4, dtype="float64", random_state=None, batch_size=64)
    rows = pd.read_parquet(folder)
    model.set_params(random_state=0)
    if kind == "network":  # statistics and draws of its own in each process
        layers = torch.nn.Linear(2, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 2)
        model.set_params(features=torch.nn.Sequential(*layers), n_iter_no_change=2, max_epochs=15)
    if kind.startswith("default"):
        model = ParametricGPRegressor(n_inducing=15, dtype="float64", random_state=0)
    if kind.endswith("stream"):
        model.fit_stream(folder, "y")
    else:
        model.fit(rows[["a", "b"]], rows["y"])
    if not group.rank:
        dist = model.predict_dist(rows[["a", "b"]])
        np.savez(f"{folder}-{kind}-{group.count}.npz", mean=dist.mean, std=dist.std, beta=model.beta_)
"""


def table(n=400):
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (n, 2))
    return pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": np.sin(2 * x[:, 0]) + 0.2 * rng.standard_normal(n)})


def run(tmp_path, kind, processes):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    words = ["--standalone", "--nproc-per-node", str(processes), str(script), str(tmp_path / "rows"), kind]
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words], capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize(
    ("kind", "near"), [("memory", 1e-5), ("stream", 1e-5), ("default-memory", 1e-3), ("default-stream", 1e-3)]
)
def test_two_processes_come_to_the_model_of_one(kind, near, tmp_path):
    (tmp_path / "rows").mkdir()
    table().to_parquet(tmp_path / "rows" / "part.parquet", row_group_size=30)
    for processes in (1, 2):
        done = run(tmp_path, kind, processes)
        assert done.returncode == 0, done.stderr[-2000:]
    one, two = (np.load(tmp_path / f"rows-{kind}-{processes}.npz") for processes in (1, 2))
    np.testing.assert_allclose(two["mean"], one["mean"], rtol=0, atol=near)
    np.testing.assert_allclose(two["std"], one["std"], rtol=0, atol=near)
    assert one["beta"] == two["beta"]


def test_processes_stay_together_behind_a_network_with_a_state(tmp_path):
    (tmp_path / "rows").mkdir()
    table().to_parquet(tmp_path / "rows" / "part.parquet")
    done = run(tmp_path, "network", 2)
    assert done.returncode == 0, done.stderr[-2000:]
    assert np.isfinite(np.load(tmp_path / "rows-network-2.npz")["std"]).all()


def test_a_process_that_fails_ends_all_with_its_message(tmp_path):
    (tmp_path / "rows").mkdir()
    rows = table()
    rows.loc[335, "y"] = np.nan  # the second one reads it, and both say so
    rows.to_parquet(tmp_path / "rows" / "part.parquet", row_group_size=30)
    done = run(tmp_path, "stream", 2)
    assert done.returncode != 0
    assert "The target 'y' is nan in row 335" in done.stderr
    assert "Connection closed" not in done.stderr


class Together:
    """Adds up what two processes would, in one: the second one's part was put here before."""

    rank, count = 0, 2

    def __init__(self, others):
        self.others = others

    def add(self, tensors):
        for tensor, other in zip(tensors, self.others.pop(0), strict=True):
            tensor += other


class Recorder:
    rank, count = 1, 2

    def __init__(self):
        self.seen = []

    def add(self, tensors):
        self.seen.append([tensor.clone() for tensor in tensors])


@pytest.mark.parametrize("name", METHODS)
def test_a_solve_of_two_shares_is_that_of_all_rows(name):
    data = random_data()
    objective = METHODS[name].objective_for()
    alone, shared = random_model(name), random_model(name)
    assert solve(alone, objective, data, beta=0.1, covariance=METHODS[name].solved_covariance, group=ALONE)
    recorder = Recorder()
    solve(random_model(name), objective, Share(data, 1, 2), beta=0.1, group=recorder)
    options = {"beta": 0.1, "covariance": METHODS[name].solved_covariance, "group": Together(recorder.seen)}
    assert solve(shared, objective, Share(data, 0, 2), **options)
    for one, other in zip(alone.parameters(), shared.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)


def test_shares_of_a_batch_make_the_batch():
    data = Data(torch.arange(20.0)[:, None], torch.arange(20.0), torch.ones(20))
    whole = list(data.batches(6, generator()))
    shares = [list(Share(data, rank, 3).batches(6, generator())) for rank in range(3)]
    for batch, *parts in zip(whole, *shares, strict=True):
        assert sorted(torch.cat([part.y for part in parts]).tolist()) == sorted(batch.y.tolist())


def test_an_empty_share_of_a_batch_adds_nothing():
    data = random_data()
    model = random_model("ppgpr-mfd")
    recorder = Recorder()
    few = data.take(slice(0, 3))
    fit(
        model, METHODS["ppgpr-mfd"].objective, Share(few, 1, 2), Config(epochs=1, batch_size=1, beta=0.1),
        generator=generator(), group=recorder,
    )  # fmt: skip
    assert len(recorder.seen) == 3
    assert all(not bool(tensor.any()) for step in recorder.seen for tensor in step)


def test_processes_of_one_machine_keep_to_their_own_cores(monkeypatch):
    cores, asked = set(range(4)), []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, chosen: asked.append(list(chosen)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    shares = []
    for rank in range(3):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        with _own_cores():
            shares += asked[-1]
        assert asked[-1] == [0, 1, 2, 3]  # all of them again
    assert sorted(shares) == [0, 1, 2, 3]
    asked.clear()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "5")  # more processes than cores
    with _own_cores():
        pass
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    cores = {1, 2}  # assigned by someone else
    with _own_cores():
        pass
    assert asked == []
