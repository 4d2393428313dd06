"""Algorithm 1: it learns, it repeats, it stops when asked and when it must."""

import numpy as np
import pytest
import torch

from paragp.data.rows import Data, batches
from paragp.gp.linalg import NotPositiveDefiniteError
from paragp.gp.methods import METHODS
from paragp.gp.objectives import estimate
from paragp.metrics import nll
from paragp.training import loop
from paragp.training.loop import SOLVED_RATE, Config, TrainingDivergedError, fit
from paragp.training.step import backward

from cases import generator, randn, random_data, random_model


def run(name="ppgpr-mfd", *, data=None, epochs=20, seed=0, **options):
    data = data or random_data(60, dtype=torch.float32)
    method = METHODS[name]
    model = method.model("matern52", data.x[:10])
    config = Config(epochs=epochs, batch_size=20, learning_rate=0.03, beta=method.beta[0])
    return model, fit(model, method.objective_for(), data, config, generator=generator(seed), **options)


@pytest.mark.parametrize("name", METHODS)
def test_training_raises_the_objective_and_the_likelihood(name):
    data, fresh = random_data(300, dtype=torch.float32), random_data(200, seed=77, dtype=torch.float32)
    untrained = METHODS[name].model("matern52", data.x[:10]).predict(fresh.x)
    model, history = run(name, data=data, epochs=30)
    assert history[-1].objective > history[0].objective
    assert nll(model.predict(fresh.x), fresh.y) < nll(untrained, fresh.y) - 0.3


@pytest.mark.parametrize("name", METHODS)
def test_same_seed_gives_the_same_numbers(name):
    (first, history), (second, again) = run(name), run(name)
    assert [e.objective for e in history] == [e.objective for e in again]
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
    _, other = run(name, seed=1)
    assert other[-1].objective != history[-1].objective


def test_no_global_random_state_is_touched():
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    run()
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert (np.random.get_state()[1] == numpy_state).all()  # noqa: NPY002


def test_rate_drops_tenfold_at_the_milestones():
    _, history = run(epochs=8)
    rates = [e.learning_rate for e in history]
    np.testing.assert_allclose(rates, [0.03] * 4 + [0.003] * 2 + [0.0003] * 2)


def test_what_is_solved_for_starts_anew_and_moves_slowly():
    seen = []

    def solve(model):
        with torch.no_grad():
            model.family.m.fill_(0.5)
        return [model.family.m]

    def watch(record):
        seen.append(model.family.m.detach().clone())

    data, model = random_data(40), METHODS["svgp"].model("rbf", random_data(5).x)
    Z = model.family.Z.detach().clone()
    config = Config(epochs=1, batch_size=40, learning_rate=0.1)
    fit(model, METHODS["svgp"].objective, data, config, generator=generator(), solve=solve, on_epoch=watch)
    assert bool((seen[0] == 0.5).all())  # solved after the epoch, before it is scored
    once, first = METHODS["svgp"].model("rbf", Z), iter([True])

    def only_first(model):
        return solve(model) if next(first, False) else []

    fit(once, METHODS["svgp"].objective, data, config, generator=generator(), solve=only_first)
    moved = (once.family.m.detach() - 0.5).abs()
    np.testing.assert_allclose(moved, 0.1 * SOLVED_RATE, rtol=1e-3)  # Adam's first step is the rate
    np.testing.assert_allclose((once.family.Z.detach() - Z).abs(), 0.1, rtol=1e-3)


def test_the_solve_is_called_first_and_after_each_epoch(monkeypatch):
    data, model = random_data(35), METHODS["svgp"].model("rbf", random_data(5).x)
    steps, seen = [], []
    monkeypatch.setattr(loop, "backward", lambda *given, **options: steps.append(1) or backward(*given, **options))
    config, solve = Config(epochs=2, batch_size=5), lambda _: seen.append(len(steps)) or []
    fit(model, METHODS["svgp"].objective, data, config, generator=generator(), solve=solve)
    assert seen == [0, 7, 14]


def test_a_group_of_parameters_has_its_own_rate():
    data, model = random_data(40), random_model("svgp")
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    config = Config(epochs=1, batch_size=40, learning_rate=0.1, rates={"family.S": 0.5, "kernel": 0.2})
    fit(model, METHODS["svgp"].objective, data, config, generator=generator())
    for name, parameter in model.named_parameters():
        moved = (parameter.detach() - before[name]).abs().max()
        expected = 0.05 if name.startswith("family.S") else 0.02 if name.startswith("kernel") else 0.1
        assert float(moved) == pytest.approx(expected, rel=1e-3), name  # Adam's first step is the rate


def test_batches_hold_every_row_once_in_near_equal_parts():
    data = Data(torch.arange(23.0)[:, None], torch.arange(23.0), torch.arange(23.0))
    parts = list(batches(data, 5, generator()))
    assert [len(p.y) for p in parts] == [4, 5, 4, 5, 5]
    rows = torch.cat([p.y for p in parts])
    assert not torch.equal(rows, data.y)
    assert torch.equal(rows.sort().values, data.y)
    for part in parts:
        assert torch.equal(part.x[:, 0], part.y)
        assert torch.equal(part.weights, part.y)


def test_full_batch_weights_train_as_repeated_rows():
    data = random_data(12, dtype=torch.float64)
    copies = torch.tensor([1, 0, 2, 3] * 3)
    repeated = data.take(torch.repeat_interleave(torch.arange(12), copies))
    weighted = data._replace(weights=copies.double())
    results = []
    for rows in (repeated, weighted):
        model = METHODS["svgp"].model("rbf", data.x[:5])
        fit(model, METHODS["svgp"].objective, rows, Config(epochs=5, batch_size=100), generator=generator())
        results.append(model.predict(data.x).mean)
    np.testing.assert_allclose(*results, rtol=1e-10)


def test_validation_and_early_end():
    seen = []

    def stop_after_three(record):
        seen.append(record.epoch)
        return record.epoch == 3

    _, history = run(validate=lambda m: {"answer": 42.0}, on_epoch=stop_after_three)
    assert seen == [1, 2, 3]
    assert len(history) == 3
    assert history[-1].validation == {"answer": 42.0}


# --- what must stop a training ---
class Exploding(torch.nn.Module):
    """Identity features until a given call, then NaN."""

    def __init__(self, good_calls):
        super().__init__()
        self.calls, self.good_calls = 0, good_calls

    def forward(self, x):
        self.calls += 1
        return x * (float("nan") if self.calls > self.good_calls else 1.0)


def test_nan_stops_with_step_parameter_and_last_good_state():
    data = random_data(40, dtype=torch.float32)
    method = METHODS["ppgpr-mfd"]
    config = Config(epochs=5, batch_size=20, beta=0.05)

    def model_with(features):
        return method.model("matern52", data.x[:10], features=features)

    model = model_with(Exploding(good_calls=3))
    with pytest.raises(TrainingDivergedError, match=r"step 4 \(epoch 2\).*last good state, before step 3") as error:
        fit(model, method.objective, data, config, generator=generator())
    assert error.value.step == 4
    assert error.value.parameter is not None
    assert len(error.value.history) == 1

    # The state kept is the one the third step started from: two steps of an undisturbed run.
    states = []

    class Recording(torch.nn.Module):
        def forward(self, x):
            states.append([p.detach().clone() for p in undisturbed.parameters()])
            return x

    undisturbed = model_with(Recording())
    fit(undisturbed, method.objective, data, config, generator=generator())
    for kept, expected in zip(model.parameters(), states[2], strict=True):
        assert torch.equal(kept, expected)


def test_infinite_gradient_names_its_parameter():
    data = random_data(40, dtype=torch.float32)
    model = METHODS["svgp"].model("rbf", data.x[:5])
    model.family.m.register_hook(lambda g: g + float("inf"))
    with pytest.raises(TrainingDivergedError, match=r"family\.m \(its gradient\)"):
        fit(model, METHODS["svgp"].objective, data, Config(epochs=1), generator=generator())
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_matrix_without_factor_is_reported_with_its_step():
    data = random_data(40, dtype=torch.float32)
    model = METHODS["svgp"].model("rbf", data.x[:5])
    with torch.no_grad():
        model.kernel.raw_outputscale.fill_(float("nan"))
    with pytest.raises(TrainingDivergedError, match=r"step 1.*NaN or infinite.*kernel.raw_outputscale") as error:
        fit(model, METHODS["svgp"].objective, data, Config(epochs=1), generator=generator())
    assert isinstance(error.value.__cause__, NotPositiveDefiniteError)


def test_a_bad_last_step_is_noticed():
    data = random_data(20, dtype=torch.float32)
    model = METHODS["svgp"].model("rbf", data.x[:5])

    def spoil(record):
        with torch.no_grad():
            model.family.m.fill_(torch.nan)

    with pytest.raises(TrainingDivergedError, match=r"last step .*parameter family\.m"):
        fit(model, METHODS["svgp"].objective, data, Config(epochs=1), generator=generator(), on_epoch=spoil)
    assert torch.isfinite(model.family.m).all()


@pytest.mark.parametrize("bad", [{"epochs": 0}, {"batch_size": -5}, {"learning_rate": 0.0}, {"beta": -1.0}])
def test_bad_settings_are_refused(bad):
    with pytest.raises(ValueError, match=f"{next(iter(bad))} must"):
        Config(**bad)


def test_history_is_per_datum():
    """One full batch, before any step: the history holds the estimate itself."""
    data = random_data(30, dtype=torch.float32)
    method = METHODS["ppgpr-chol"]
    model = method.model("rbf", data.x[:5])
    q, kl = model(data.x)
    expected = float(estimate(method.objective(q, data.y, model.noise), kl, num_data=30, beta=0.3).detach())
    config = Config(epochs=1, batch_size=30, beta=0.3)
    (record,) = fit(model, method.objective, data, config, generator=generator())
    assert record.objective == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_chunks_change_neither_value_nor_gradient(name, weighted):
    """Forward and backward by chunks against plain autograd through the whole batch at once."""
    features = torch.nn.Linear(3, 2)
    data = random_data(23, d=3)
    if weighted:
        weights = torch.linspace(0, 3, 23, dtype=torch.float64)
        data = data._replace(weights=weights / weights.mean())
    model = random_model(name, features=features)
    objective = METHODS[name].objective_for()
    q, kl = model(data.x)
    terms = objective(q, data.y, model.noise)
    expected = estimate(terms, kl, num_data=100, beta=0.3, weights=data.weights)
    gradients = torch.autograd.grad(-expected, list(model.parameters()))
    value = backward(model, objective, data, num_data=100, beta=0.3, chunk=5)
    assert value == pytest.approx(float(expected.detach()), rel=1e-12)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Data(torch.ones(3, 2), torch.ones(3).double()), "y is torch.float64, x is torch.float32"),
        (Data(torch.ones(3, 2).int(), torch.ones(3)), "floating-point"),
        (Data(torch.ones(3, 1), torch.ones(3)), r"inputs of shape \(n, 2\)"),
        (Data(torch.ones(3, 2).double(), torch.ones(3).double()), r"in torch\.float32, got shape"),
        (Data(torch.ones(3), torch.ones(3)), r"x of shape \(N, d\)"),
        (Data(torch.ones(3, 2), torch.ones(4)), "one target per row"),
        (Data(torch.ones(0, 2), torch.ones(0)), "one target per row"),
        (Data(torch.full((3, 2), torch.nan), torch.ones(3)), "x holds 6 NaN"),
        (Data(torch.ones(3, 2), torch.tensor([1.0, torch.inf, 2.0])), "y holds 1 NaN or infinite"),
        (Data(torch.ones(3, 2), torch.ones(3), torch.zeros(3)), "not all zero"),
        (Data(torch.ones(3, 2), torch.ones(3), torch.tensor([1.0, -1.0, 1.0])), "non-negative"),
    ],
)
def test_bad_data_is_refused(data, message):
    model = random_model("svgp", dtype=torch.float32)
    with pytest.raises(ValueError, match=message):
        fit(model, METHODS["svgp"].objective, data, Config(epochs=1), generator=generator())


def test_features_are_trained_with_the_rest():
    data = random_data(100, d=3, dtype=torch.float32)
    torch_linear = torch.nn.Linear(3, 2)
    with torch.no_grad():
        torch_linear.weight.copy_(randn(2, 3, dtype=torch.float32))
    model = METHODS["ppgpr-mfd"].model("matern52", randn(5, 2, dtype=torch.float32), features=torch_linear)
    before = torch_linear.weight.detach().clone()
    fit(model, METHODS["ppgpr-mfd"].objective, data, Config(epochs=2, beta=0.05), generator=generator())
    assert not torch.equal(torch_linear.weight, before)
    assert model.predict(data.x).mean.shape == (100,)
