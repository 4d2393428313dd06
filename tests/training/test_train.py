"""Starting points, early stopping on the best state, and the search of a method's grid in one pass."""

import warnings

import numpy as np
import pytest
import torch

from paragp import METHODS, Data
from paragp.gp.covariances import Dense, Diagonal, LogPower
from paragp.gp.objectives import ppgpr, ppgpr_gamma
from paragp.metrics import nll
from paragp.training import best, recipe, start
from paragp.training import train as phases
from paragp.training.loop import Config, Epoch, TrainingDivergedError
from paragp.training.recipe import RECIPES, Settings
from paragp.training.start import new_model
from paragp.training.step import backward
from paragp.training.train import total_epochs, train, trials

from cases import generator


def rows(n=60, seed=0):
    x = torch.randn(n, 2, generator=generator(seed), dtype=torch.float64)
    return Data(x, torch.sin(2 * x[:, 0]) + 0.1 * torch.randn(n, generator=generator(seed + 1), dtype=torch.float64))


def settings(method="ppgpr-mf", **options):
    return Settings(METHODS[method], **{"n_inducing": 6, "epochs": 10, **options})


def test_automatic_lengths_follow_the_rows():
    automatic, default = Settings(METHODS["svgp"]), RECIPES["auto"]
    fewest, most = default.epochs
    assert automatic.config(300).batch_size == 300
    assert automatic.config(300).epochs == most
    assert automatic.config(10_000_000).epochs == fewest
    assert automatic.config(6_000).epochs == round(default.steps(6_000) / 6)
    assert automatic.config(30_000).epochs == round(default.steps(30_000) / 30)
    assert Settings(METHODS["svgp"], epochs=7, batch_size=13, learning_rate=0.5).config(300).batch_size == 13


@pytest.mark.parametrize("n", [300, 10_000, 40_000, 10_000_000])
def test_inducing_points_move_at_a_rate_of_their_own(n):
    config = Settings(METHODS["ppgpr-mfd"]).config(n)
    assert config.learning_rate * config.rates["family.Z"] == pytest.approx(recipe.POINTS_RATE)
    assert not any("kernel".startswith(group) for group in config.rates)  # the kernel takes the rate itself


def test_the_papers_recipe_is_plain_adam(monkeypatch):
    config = Settings(METHODS["svgp"], recipe=RECIPES["adam"]).config(5_000)
    assert config == Config(epochs=400, batch_size=1000, learning_rate=0.01)
    monkeypatch.setattr(phases, "solve", None)  # neither solves nor a kernel from a sample
    monkeypatch.setattr(start, "choose_kernel", None)
    train(settings(recipe=RECIPES["adam"]), rows(), generator=generator())


def test_the_default_solves_the_mean_after_each_epoch():
    data = rows()
    model = train(settings("ppgpr-mfd", beta=0.2), data, generator=generator()).model
    backward(model, METHODS["ppgpr-mfd"].objective, data, num_data=60, beta=0.2)
    assert float(model.family.m.grad.norm()) < 1e-8
    assert float(model.family.Z.grad.norm()) > 1e-6


@pytest.mark.parametrize("name", METHODS)
def test_the_grid_is_the_rows_and_its_first_value_comes_first(name):
    method = METHODS[name]
    (first,), *others = trials(settings(name), 60, searching=True)
    tried = [first, *(trial for row in others for trial in row)]
    assert sorted({trial.beta for trial in tried}) == sorted(method.beta)
    assert sorted({trial.gamma for trial in tried if trial.gamma}) == sorted(method.gamma)
    assert sorted({trial.bb_alpha for trial in tried if trial.bb_alpha}) == sorted(method.bb_alpha)
    assert (
        len(set(tried))
        == len(tried)
        == 1 + sum(len(grid) - 1 for grid in (method.beta, method.gamma, method.bb_alpha) if grid)
    )
    assert first.beta == (1.0 if method.objective in (ppgpr, ppgpr_gamma) else method.beta[0])
    for row in others:  # one after the other moves away, in one coordinate
        away = [sum(abs((one or 0) - (held or 0)) for one, held in zip(trial, first, strict=True)) for trial in row]
        assert away == sorted(away)
        assert {sum(one != held for one, held in zip(trial, first, strict=True)) for trial in row} == {1}
    assert trials(settings(name), 60, searching=False) == [[first]]
    assert trials(settings(name, beta=0.7), 60, searching=True)[0][0].beta == 0.7


def test_without_validation_rows_the_last_epoch_counts():
    trained = train(settings(), rows(), generator=generator())
    assert len(trained.history) == trained.best_epoch == 10
    assert trained.beta == 1.0


@pytest.mark.parametrize(("n", "beta"), [(10, 1.0), (300, 1.0), (1500, 0.2), (10_000, 0.05), (10**6, 0.05)])
def test_many_rows_start_with_little_regularisation(n, beta):
    assert trials(settings(), n, searching=False)[0][0].beta == beta
    assert trials(settings("svgp"), n, searching=False)[0][0].beta == 1.0


def test_weights_may_sum_to_less_than_one_row():
    data = rows()._replace(weights=torch.full((60,), 1e-3, dtype=torch.float64))
    assert len(train(settings(epochs=1), data, generator=generator()).history) == 1


def test_the_best_trial_is_kept():
    data, validation = rows(), rows(seed=5)
    found = train(settings(), data, validation, generator=generator())
    assert total_epochs(settings(), 60, True) == 10 + 3 >= len(found.history) > 10
    scores = [record.validation["nll"] for record in found.history]
    assert found.best_epoch == int(np.argmin(scores)) + 1
    dist = found.model.predict(validation.x)
    assert -dist.logpdf(validation.y.numpy()).mean() == pytest.approx(min(scores))


@pytest.mark.parametrize(
    ("scores", "tried", "chosen"),
    [
        ({1.0: -3.0, 0.2: -2.0}, [1.0, 0.2], 1.0),
        ({1.0: -3.0, 0.2: -4.0, 0.05: -2.0}, [1.0, 0.2, 0.05], 0.2),
        ({1.0: -3.0, 0.2: -4.0, 0.05: -5.0, 0.01: -6.0}, [1.0, 0.2, 0.05, 0.01], 0.01),
    ],
)
def test_the_search_goes_away_from_the_first_value_while_that_helps(monkeypatch, scores, tried, chosen):
    seen = []

    def pretended(model, objective, data, config, *, on_epoch, **_):
        seen.append(config.beta)
        on_epoch(Epoch(1, 0.0, 0.1, 0.0, {"nll": scores[config.beta], "crps": crps}))

    crps = 0.1
    monkeypatch.setattr(phases, "fit", pretended)
    found = train(settings(), rows(), rows(seed=5), generator=generator())
    assert seen == tried
    assert found.beta == chosen


def test_the_search_of_one_setting_keeps_what_that_of_another_found(monkeypatch):
    method = METHODS["bb-alpha"]
    seen = []

    def pretended(model, objective, data, config, *, on_epoch, **_):
        power = objective.keywords["alpha"]
        seen.append((config.beta, power))
        nll = abs(config.beta - method.beta[1]) + abs(power - method.bb_alpha[1])
        on_epoch(Epoch(1, 0.0, 0.1, 0.0, {"nll": nll, "crps": 0.1}))

    monkeypatch.setattr(phases, "fit", pretended)
    found = train(settings("bb-alpha"), rows(), rows(seed=5), generator=generator())
    assert seen[0] == (method.beta[0], method.bb_alpha[0])
    assert (found.beta, found.bb_alpha) == (method.beta[1], method.bb_alpha[1])


@pytest.mark.parametrize("name", ["ppgpr-mfd", "ppgpr-chol", "svgp"])
def test_an_order_above_one_trains_without_leaving_its_domain(name):
    wanted = settings(name, renyi=3.0, learning_rate=0.5, epochs=20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = train(wanted, rows(), rows(seed=5), generator=generator())
    assert np.isfinite([record.objective for record in found.history]).all()
    eye = torch.eye(6, dtype=torch.float64)
    assert float(torch.linalg.eigvalsh(found.model.family.S.joint(eye).detach()).max()) < 1.5  # a / (a - 1)


def test_another_value_may_not_pay_for_likelihood_with_crps(monkeypatch):
    scores = {1.0: {"nll": -3.0, "crps": 0.1}, 0.2: {"nll": -4.0, "crps": 0.11}}

    def pretended(model, objective, data, config, *, on_epoch, **_):
        on_epoch(Epoch(1, 0.0, 0.1, 0.0, scores[config.beta]))

    monkeypatch.setattr(phases, "fit", pretended)
    assert train(settings(), rows(), rows(seed=5), generator=generator()).beta == 1.0


def test_on_noise_the_start_is_kept_and_a_warm_start_is_not_undone():
    noise = [Data(rows(seed=s).x, torch.randn(60, generator=generator(s + 20), dtype=torch.float64)) for s in (1, 2)]
    found = train(settings(), *noise, generator=generator())
    assert found.best_epoch == 0
    dist = found.model.predict(noise[1].x)
    assert np.ptp(dist.mean) < 1e-6
    assert np.ptp(dist.std) < 1e-6
    learned = train(settings(), rows(), rows(seed=5), generator=generator())
    assert learned.best_epoch > 0
    slightly = train(settings(epochs=1), rows(), rows(seed=5), generator=generator(), start=learned.model)
    before, after = (min(record.validation["nll"] for record in each.history) for each in (learned, slightly))
    assert nll(slightly.model.predict(rows(seed=5).x), rows(seed=5).y.numpy()) == pytest.approx(min(before, after))


@pytest.mark.parametrize("name", METHODS)
def test_the_start_is_a_constant_where_the_covariance_is_the_priors(name):
    dist = new_model(settings(name), rows(), generator()).predict(rows(seed=5).x)
    assert np.ptp(dist.mean) == 0
    assert (np.ptp(dist.std) < 1e-6) == (METHODS[name].covariance in (Diagonal, Dense, LogPower))


def pretend(monkeypatch, gains, weights=None):
    """Training that gains so much on each validation row: whether it is kept."""
    data, validation = rows(), Data(*rows(n=len(gains), seed=5)[:2], weights)
    settled = {"n": 0}

    def densities(self):
        settled["n"] += 1
        return np.asarray(gains if settled["n"] == 1 else np.zeros(len(gains)))

    monkeypatch.setattr(best.Best, "_log_densities", densities)
    return train(settings(beta=0.05), data, validation, generator=generator()).best_epoch > 0


def test_a_gain_must_exceed_its_standard_error(monkeypatch):
    assert pretend(monkeypatch, [1.0, 1.2, 0.9, 1.1])
    assert not pretend(monkeypatch, [1.0, -1.0, 1.0, -0.9])
    assert not pretend(monkeypatch, [2.0, -1.0, 0.0])  # mean 1/3, error 0.88
    copies = torch.full((3,), 20.0, dtype=torch.float64)
    assert pretend(monkeypatch, [2.0, -1.0, 0.0], copies)  # error 0.16
    assert pretend(monkeypatch, [-1.0])  # one row cannot tell


def test_without_early_stopping_the_last_state_counts():
    found = train(
        settings(beta=0.05, epochs=20, learning_rate=0.5, early_stopping=False),
        rows(),
        rows(seed=5),
        generator=generator(),
    )
    assert len(found.history) == found.best_epoch == 20
    assert nll(found.model.predict(rows(seed=5).x), rows(seed=5).y.numpy()) == pytest.approx(
        found.history[-1].validation["nll"]
    )


def test_a_value_that_cannot_be_trained_is_left_out_of_the_search(monkeypatch):
    fit = phases.fit

    def failing(model, objective, data, config, **options):
        if config.beta != 1.0:
            raise TrainingDivergedError("it went wrong", step=1, parameter=None, history=[])
        return fit(model, objective, data, config, **options)

    monkeypatch.setattr(phases, "fit", failing)
    with pytest.warns(RuntimeWarning) as said:
        found = train(settings(), rows(), rows(seed=5), generator=generator())
    assert any("beta = 0.2 was left out of the search" in str(warning.message) for warning in said)
    assert found.beta == 1.0
    assert found.best_epoch > 0


def test_copies_count_as_rows_for_the_first_value():
    data = rows()
    heavy = data._replace(weights=torch.full((60,), 1000.0, dtype=torch.float64))
    assert train(settings(epochs=1), data, generator=generator()).beta == 1.0
    assert train(settings(epochs=1), heavy, generator=generator()).beta == 0.05


def test_patience_ends_a_trial():
    history = train(
        settings(beta=0.05, epochs=200, learning_rate=0.5, patience=3), rows(), rows(seed=5), generator=generator()
    ).history
    scores = [record.validation["nll"] for record in history]
    (ended,) = [i for i, record in enumerate(history) if record.learning_rate == pytest.approx(0.15)]
    assert int(np.argmin(scores[:ended])) == ended - 4  # then it cools, from the best state, and ends again
    assert len(history) < 200
    assert int(np.argmin(scores)) == len(history) - 4
    unending = settings(beta=0.05, epochs=20, learning_rate=0.5, early_stopping=False)
    assert len(train(unending, rows(), rows(seed=5), generator=generator()).history) == 20


def test_training_goes_on_at_a_lower_rate_after_it_diverged(monkeypatch):
    rates = []
    fit = phases.fit

    def failing_at_first(model, objective, data, config, **options):
        rates.append(config.learning_rate)
        if len(rates) < 3:
            raise TrainingDivergedError("it went wrong", step=1, parameter=None, history=[])
        return fit(model, objective, data, config, **options)

    monkeypatch.setattr(phases, "fit", failing_at_first)
    with pytest.warns(RuntimeWarning, match="goes on from the last good state"):
        train(settings(learning_rate=0.1), rows(), generator=generator())
    assert rates == pytest.approx([0.1, 0.01, 0.001])


def test_training_that_always_diverges_is_an_error_in_words(monkeypatch):
    def failing(*_, **__):
        raise TrainingDivergedError("it went wrong", step=1, parameter=None, history=[])

    monkeypatch.setattr(phases, "fit", failing)
    with pytest.warns(RuntimeWarning), pytest.raises(ValueError, match="diverged at every learning rate"):
        train(settings(), rows(), generator=generator())


def test_a_model_to_start_from_is_trained_further():
    first = train(settings(beta=0.05), rows(), generator=generator())
    second = train(settings(beta=0.05), rows(), generator=generator(), start=first.model)
    assert second.model is first.model
    assert second.history[0].objective > first.history[0].objective


def test_what_follows_the_first_training_has_less_patience():
    rows = Data(torch.zeros(4, 1), torch.zeros(4))
    kept = best.Best(METHODS["map"].model("rbf", torch.zeros(1, 1)), rows, 3, None)

    def epochs_until_it_stops(trial, patience=None):
        kept.begin(trial, patience)
        worse = Epoch(epoch=1, objective=0.0, learning_rate=0.1, seconds=0.0, validation={"nll": 99.0, "crps": 9.0})
        return next(i for i in range(1, 10) if kept.after(worse))

    assert epochs_until_it_stops(best.Trial(1.0, None)) == 3
    assert epochs_until_it_stops(best.Trial(0.1, None), patience=2) == 2
    assert epochs_until_it_stops(best.Trial(0.1, None), patience=7) == 3  # never more than was asked for
    again = best.Best(kept.model, rows, 3, None)
    again.load(kept.standing())
    assert again.limit == kept.limit


def noisy(n=200, seed=3):
    """There is a line to learn, and noise that depends on the other input."""
    x = torch.randn(n, 2, generator=generator(seed), dtype=torch.float64)
    deviation = 0.1 + 0.4 * (x[:, 1] > 0)
    return Data(x, 0.5 * x[:, 0] + deviation * torch.randn(n, generator=generator(seed + 1), dtype=torch.float64))


@pytest.fixture
def few_are_enough(monkeypatch):
    monkeypatch.setattr(phases, "FEWEST_SOLVED", 200)


@pytest.mark.usefixtures("few_are_enough")
@pytest.mark.parametrize("method", ["ppgpr-mf", "ppgpr-mfd"])
def test_where_residuals_are_noise_the_first_epoch_is_a_solve(method):
    trained = train(settings(method), noisy(), noisy(seed=5), generator=generator())
    first, second = trained.history[:2]
    assert (first.epoch, first.learning_rate, second.epoch) == (1, 0.0, 2)
    assert second.learning_rate > 0
    many_points = settings(method, n_inducing=30)  # for the rows
    without = train(many_points, noisy(), noisy(seed=5), generator=generator())
    assert without.history[0].learning_rate > 0
    assert first.validation["nll"] < without.history[0].validation["nll"] - 0.1


@pytest.mark.usefixtures("few_are_enough")
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("ppgpr-chol", {}),  # no diagonal S'
        ("vfitc", {}),  # another objective
        ("ppgpr-mfd", {"renyi": 0.5}),
        ("ppgpr-mfd", {"features": (4, 2)}),
        ("ppgpr-mfd", {"recipe": RECIPES["adam"]}),
        ("ppgpr-mfd", {"epochs": 1}),
    ],
)
def test_other_starts_are_not_solved_for(method, options):
    assert train(settings(method, **options), noisy(), generator=generator()).history[0].learning_rate > 0


def test_few_rows_are_no_start_to_solve_for():
    trained = train(settings("ppgpr-mfd"), noisy(), noisy(seed=5), generator=generator())
    assert trained.history[0].learning_rate > 0


@pytest.mark.usefixtures("few_are_enough")
def test_a_mean_with_more_to_learn_than_noise_starts_with_the_priors_variance(monkeypatch):
    seen = []
    monkeypatch.setattr(phases, "fit", lambda model, *_, **__: seen.append(model.family.S.s.detach().clone()))
    x = torch.linspace(-3, 3, 400, dtype=torch.float64)[:, None]
    train(settings("ppgpr-mfd", n_inducing=4), Data(x, torch.sin(9 * x[:, 0])), generator=generator())
    assert torch.equal(seen[0], torch.ones(4, dtype=torch.float64))


@pytest.mark.usefixtures("few_are_enough")
def test_the_epochs_of_a_solved_start_are_those_asked_for():
    assert len(train(settings(beta=0.2, early_stopping=False), noisy(), generator=generator()).history) == 10
