"""Checkpoints: a training that was killed ends as one that was not."""

import os
import random
import signal
import subprocess
import sys
import time
import warnings
from contextlib import contextmanager

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import nn

from paragp import ParametricGPRegressor
from paragp.training import checkpoint as checkpoints
from paragp.training import noise
from paragp.training.checkpoint import Checkpoint, StoppedError
from paragp.training.loop import Standing

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (300, 2))
Y = np.sin(2 * X[:, 0]) + 0.2 * (1 + X[:, 1] ** 2) * RNG.standard_normal(300)


def regressor(**options):
    return ParametricGPRegressor(
        **({"n_inducing": 12, "max_epochs": 6, "batch_size": 50, "n_iter_no_change": 3, "random_state": 0} | options)
    )


class Killed(BaseException):
    pass


def kill_at(monkeypatch, steps):
    """The process ends after so many steps, whatever is going on."""
    count = Standing.count

    def counted(self, value):
        nonlocal steps
        steps -= 1
        if steps < 0:
            raise Killed
        count(self, value)

    monkeypatch.setattr(Standing, "count", counted)


def same(one, other):
    dist, expected = one.predict_dist(X), other.predict_dist(X)
    np.testing.assert_array_equal(dist.mean, expected.mean)
    np.testing.assert_array_equal(dist.std, expected.std)
    assert (one.beta_, one.n_iter_) == (other.beta_, other.n_iter_)
    drop = {"seconds"}
    assert [{k: v for k, v in r.items() if k not in drop} for r in one.history_] == [
        {k: v for k, v in r.items() if k not in drop} for r in other.history_
    ]


MODELS = {
    "plain": {},
    "features": {"features": nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.2), nn.Linear(8, 2))},
    "dense": {"method": "svgp"},
    "gamma": {"method": "gamma-robust"},
    "power and order": {"method": "bb-alpha", "renyi": 0.5},
    "mean": {"mean": (8,)},
}


def test_solves_that_were_stopped_start_again(tmp_path, monkeypatch):
    whole, fit = regressor(method="two-stage").fit(X, Y), noise.Head.fit

    def asked_to_stop(self, *settings, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        return fit(self, *settings, **options)

    with monkeypatch.context() as patch:
        patch.setattr(noise.Head, "fit", asked_to_stop)
        with pytest.raises(StoppedError, match="goes on"):
            regressor(method="two-stage").fit(X, Y, checkpoint=tmp_path / "kept")
    same(regressor(method="two-stage").fit(X, Y, checkpoint=tmp_path / "kept", resume=True), whole)


@pytest.mark.parametrize("kind", MODELS)
def test_a_training_killed_at_any_step_ends_as_one_that_was_not(kind, tmp_path, monkeypatch):
    whole = regressor(**MODELS[kind]).fit(X, Y)
    steps = sorted(random.Random(0).sample(range(1, 6 * whole.n_iter_), 3))
    for resume, at in enumerate([*steps, None]):
        with monkeypatch.context() as patch:
            patch.setattr(Checkpoint.__init__, "__kwdefaults__", {**Checkpoint.__init__.__kwdefaults__, "seconds": 0.0})
            if at is not None:
                kill_at(patch, at if not resume else max(1, at - steps[resume - 1]))
            model = regressor(**MODELS[kind])
            try:
                model.fit(X, Y, checkpoint=tmp_path / "kept", resume=bool(resume))
            except Killed:
                continue
            same(model, whole)
            return
    pytest.fail("the training did not end")


def test_only_two_checkpoints_are_kept_and_a_damaged_one_is_passed_over(tmp_path, monkeypatch):
    whole = regressor().fit(X, Y)
    with monkeypatch.context() as patch:
        kill_at(patch, 23)
        with pytest.raises(Killed):
            regressor().fit(X, Y, checkpoint=tmp_path / "kept")
    older, newest = sorted(tmp_path.glob("kept/*.pt"), key=lambda path: int(path.stem.split("-")[1]))
    newest.write_bytes(newest.read_bytes()[:1000])
    with pytest.warns(RuntimeWarning, match=f"{newest.name} is damaged and passed over"):
        model = regressor().fit(X, Y, checkpoint=tmp_path / "kept", resume=True)
    same(model, whole)
    assert older.name != newest.name


def test_a_changed_bit_is_found(tmp_path):
    kept = Checkpoint(tmp_path / "kept", {})
    kept.write({"a": torch.ones(100)})
    kept.write({"a": torch.zeros(100)})
    newest = kept.files[-1]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    (tmp_path / "kept" / ".checkpoint-9-abc.pt").touch()  # its writer was killed
    with pytest.warns(RuntimeWarning, match="its checksum does not fit"):
        again = Checkpoint(tmp_path / "kept", {}, resume=True)
    assert bool((again.state["a"] == 1).all())
    assert len(list((tmp_path / "kept").iterdir())) == 1


def test_a_state_that_was_never_seen_to_be_good_is_left_on_resume_as_well(tmp_path, monkeypatch):
    """An optimizer's step that leaves a NaN is found at the next loss: whoever goes on between must find it, too."""
    step, steps = torch.optim.Adam.step, 0

    def exploding(self, *more, **options):
        nonlocal steps
        steps += 1
        found = step(self, *more, **options)
        if steps == 9:
            with torch.no_grad():
                self.param_groups[0]["params"][0].fill_(torch.nan)
        return found

    def run(**options):
        nonlocal steps
        steps = 0
        monkeypatch.setattr(torch.optim.Adam, "step", exploding)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says that it diverged
            return regressor(early_stopping=False, beta=0.05).fit(X, Y, **options)

    whole = run()
    with monkeypatch.context() as patch:
        kill_at(patch, 9)
        patch.setattr(Checkpoint.__init__, "__kwdefaults__", {**Checkpoint.__init__.__kwdefaults__, "seconds": 0.0})
        with pytest.raises(Killed):
            run(checkpoint=tmp_path / "kept")
    monkeypatch.setattr(torch.optim.Adam, "step", step)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = regressor(early_stopping=False, beta=0.05).fit(X, Y, checkpoint=tmp_path / "kept", resume=True)
    np.testing.assert_array_equal(model.predict(X), whole.predict(X))


def test_a_training_that_has_ended_is_not_done_again(tmp_path, monkeypatch):
    whole = regressor().fit(X, Y, checkpoint=tmp_path / "kept")
    with monkeypatch.context() as patch:
        kill_at(patch, 0)  # not one step
        again = regressor().fit(X, Y, checkpoint=tmp_path / "kept", resume=True)
    same(again, whole)
    regressor().fit(X, Y, checkpoint=tmp_path / "kept")  # from the start, over what has ended


def test_what_does_not_fit_together_is_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        kill_at(patch, 10)
        with pytest.raises(Killed):
            regressor().fit(X, Y, checkpoint=tmp_path / "kept")
    with pytest.raises(FileExistsError, match="a training that has not ended"):
        regressor().fit(X, Y, checkpoint=tmp_path / "kept")
    for model, x, said in (
        (regressor(n_inducing=13), X, "n_inducing was 12 and is 13 now"),
        (regressor(), X[:290], "number of rows was 270 and is 261 now"),
        (regressor(), X[::-1], "rows was '"),
        (regressor(kernel=ScaleKernel(RBFKernel())), X, "kernel was 'auto' and is 'ScaleKernel"),
        (regressor(features=nn.Sequential(nn.Linear(2, 2), nn.Tanh())), X, r"features was None and is 'Sequential\("),
    ):
        with pytest.raises(ValueError, match=said):
            model.fit(x, Y[: len(x)], checkpoint=tmp_path / "kept", resume=True)
    with pytest.raises(FileNotFoundError, match="There is no checkpoint in"):
        regressor().fit(X, Y, checkpoint=tmp_path / "other", resume=True)
    with pytest.raises(ValueError, match="pass its folder"):
        regressor().fit(X, Y, resume=True)
    with pytest.raises(ValueError, match="set random_state to a whole number"):
        regressor(random_state=None).fit(X, Y, checkpoint=tmp_path / "other")
    with pytest.raises(ValueError, match="has no checkpoints"):
        regressor(method="exact").fit(X, Y, checkpoint=tmp_path / "other")
    (tmp_path / "file").touch()
    with pytest.raises(PermissionError, match="is not a folder that may be written to"):
        regressor().fit(X, Y, checkpoint=tmp_path / "file")


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    kept = Checkpoint(tmp_path / "kept", {})
    kept.write({"a": 1})

    @contextmanager
    def full(_):
        raise OSError(28, "No space left on device")
        yield

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "writing", full)
        with pytest.warns(RuntimeWarning, match="No checkpoint could be written .* No space left on device"):
            kept.write({"a": 2})
    assert [file.name for file in (tmp_path / "kept").iterdir()] == ["checkpoint-1.pt"]
    assert Checkpoint(tmp_path / "kept", {}, resume=True).state["a"] == 1


def test_another_number_of_threads_is_mentioned(tmp_path, monkeypatch):
    Checkpoint(tmp_path / "kept", {}).write({})
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    with pytest.warns(RuntimeWarning, match="there are 99 now"):
        Checkpoint(tmp_path / "kept", {}, resume=True)


def test_a_signal_ends_the_training_with_a_checkpoint(tmp_path, monkeypatch):
    count, steps = Standing.count, 8

    def counted(self, value):
        nonlocal steps
        steps -= 1
        if not steps:
            os.kill(os.getpid(), signal.SIGTERM)
        count(self, value)

    before = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch:
        patch.setattr(Standing, "count", counted)
        with pytest.raises(StoppedError, match="Stopped by a signal"):
            regressor().fit(X, Y, checkpoint=tmp_path / "kept")
    assert signal.getsignal(signal.SIGTERM) is before
    same(regressor().fit(X, Y, checkpoint=tmp_path / "kept", resume=True), regressor().fit(X, Y))


def test_a_stream_goes_on_within_an_epoch(tmp_path, monkeypatch):
    (tmp_path / "rows").mkdir()
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": Y}).to_parquet(tmp_path / "rows" / "x.parquet", row_group_size=40)
    whole = regressor().fit_stream(tmp_path / "rows", "y")
    with monkeypatch.context() as patch:
        kill_at(patch, 21)
        patch.setattr(Checkpoint.__init__, "__kwdefaults__", {**Checkpoint.__init__.__kwdefaults__, "seconds": 0.0})
        with pytest.raises(Killed):
            regressor().fit_stream(tmp_path / "rows", "y", checkpoint=tmp_path / "kept")
    model = regressor().fit_stream(tmp_path / "rows", "y", checkpoint=tmp_path / "kept", resume=True)
    rows = pd.DataFrame({"a": X[:, 0], "b": X[:, 1]})
    np.testing.assert_array_equal(model.predict(rows), whole.predict(rows))


def command(tmp_path, *more, processes=None):
    start = [sys.executable, "-m", "paragp"]
    if processes:
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes),
                 "--max-restarts", "3", "-m", "paragp"]  # fmt: skip
    words = ["fit", str(tmp_path / "rows.csv"), "--target", "y", "--inducing", "12", "--epochs", "40"]
    return [*start, *words, *more]


@pytest.fixture
def rows(tmp_path):
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": Y}).to_csv(tmp_path / "rows.csv", index=False)
    return tmp_path


def tensors(folder):
    return (folder / "model.safetensors").read_bytes()


def until(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.01)


def begun(folder):
    return any(int(file.stem.split("-")[1]) >= 5 for file in folder.glob("checkpoint-*.pt"))


def test_sigkill_and_resume_on_the_command_line(rows):
    subprocess.run(command(rows, "--out", str(rows / "whole")), check=True, capture_output=True)
    more = ["--out", str(rows / "model"), "--checkpoint", str(rows / "kept")]
    process = subprocess.Popen(command(rows, *more), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: begun(rows / "kept") or process.poll() is not None)
    process.kill()
    process.wait()
    assert not (rows / "model").exists()
    done = subprocess.run(command(rows, *more, "--resume"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert tensors(rows / "model") == tensors(rows / "whole")


def test_a_killed_worker_is_restarted_from_the_checkpoint(rows):
    subprocess.run(command(rows, "--out", str(rows / "whole"), processes=2), check=True, capture_output=True)
    more = ["--out", str(rows / "model"), "--checkpoint", str(rows / "kept")]
    process = subprocess.Popen(
        command(rows, *more, processes=2), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    until(lambda: begun(rows / "kept") or process.poll() is not None)
    workers = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
    os.kill(int(workers[-1]), signal.SIGKILL)
    errors = process.communicate(timeout=600)[1]
    assert process.returncode == 0, errors[-3000:]
    assert tensors(rows / "model") == tensors(rows / "whole")
