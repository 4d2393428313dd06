"""From a method and rows to a trained model: starting points, training, and the search of a row's grid.

The search is one warm-started pass: the first value of the grid (beta_reg, or gamma) is trained in full, each of the
others goes on from there for a tenth of the epochs, and the state with the best validation NLL is kept.
"""

import copy
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from gpytorch.kernels import Kernel

from paragp.data.rows import Data
from paragp.gp.methods import Method
from paragp.gp.model import ParametricGP
from paragp.metrics import crps, nll, rmse
from paragp.training.inducing import starting_points
from paragp.training.loop import DECAY, Config, Epoch, TrainingDivergedError, fit

FULL_BATCH = 1000  # rows: up to here a batch is the whole table
STEPS = 2000  # that a training of automatic length takes
EPOCHS = (20, 400)  # fewest and most of an automatic length
SEARCH_SHARE = 0.1  # of the epochs, for each further value of a grid
RETRIES = 3  # with a tenth of the learning rate each, after training diverged


@dataclass(frozen=True)
class Settings:
    """What to train. None means: choose from the data."""

    method: Method
    kernel: str | Kernel = "matern52"
    n_inducing: int = 1000
    n_inducing_variance: int | None = None
    beta: float | None = None
    gamma: float | None = None
    epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    patience: int | None = 10  # epochs without a better validation NLL before training ends; None: never

    def config(self, n: int) -> Config:
        """The loop's settings for n rows."""
        batch_size = min(n, FULL_BATCH) if self.batch_size is None else self.batch_size
        low, high = EPOCHS
        automatic = min(high, max(low, round(STEPS / math.ceil(n / batch_size))))
        return Config(
            epochs=automatic if self.epochs is None else self.epochs,
            batch_size=batch_size,
            learning_rate=0.02 if self.learning_rate is None else self.learning_rate,
        )


class Trained(NamedTuple):
    """The model at its best validation NLL (at the end, without validation rows), and how it came there."""

    model: ParametricGP
    history: list[Epoch]
    best_epoch: int  # in the history, from 1
    beta: float
    gamma: float | None


class Trial(NamedTuple):
    """One value of the method's grid."""

    beta: float
    gamma: float | None


def trials(settings: Settings, searching: bool) -> list[Trial]:
    """What is tried, in order: the grid of the method's row, or what was asked for."""
    method = settings.method
    betas = method.beta if settings.beta is None else (settings.beta,)
    gammas = (method.gamma or (None,)) if settings.gamma is None else (settings.gamma,)
    found = [Trial(beta, gamma) for beta in betas for gamma in gammas]
    return found if searching else found[:1]


def total_epochs(settings: Settings, n: int, searching: bool) -> int:
    """The most epochs that `train` takes."""
    epochs = settings.config(n).epochs
    return epochs + (len(trials(settings, searching)) - 1) * _search_epochs(epochs)


def train(
    settings: Settings,
    data: Data,
    validation: Data | None = None,
    *,
    generator: torch.Generator,
    start: ParametricGP | None = None,
    on_epoch: Callable[[Epoch], object] | None = None,
) -> Trained:
    """Train on standardised rows; `start` is a model to go on from instead of new starting points."""
    full = settings.config(len(data.y))
    short = replace(full, epochs=_search_epochs(full.epochs), learning_rate=full.learning_rate * DECAY)
    model = _new_model(settings, data, generator) if start is None else start
    best = _Best(model, validation, settings.patience, on_epoch)
    first, *others = trials(settings, validation is not None)
    for trial, config in [(first, full), *((other, short) for other in others)]:
        best.begin(trial)
        _fit(model, settings.method, data, replace(config, beta=trial.beta), trial.gamma, generator, best)
        best.restore()
    return Trained(model, best.history, best.epoch, *best.trial)


def _search_epochs(epochs: int) -> int:
    return max(1, round(SEARCH_SHARE * epochs))


def _new_model(settings: Settings, data: Data, generator: torch.Generator) -> ParametricGP:
    Z, Z_variance = starting_points(
        data.x, settings.n_inducing, settings.n_inducing_variance, generator=generator, weights=data.weights
    )
    return settings.method.model(settings.kernel, Z, Z_variance if settings.method.two_sets else None)


def _fit(
    model: ParametricGP,
    method: Method,
    data: Data,
    config: Config,
    gamma: float | None,
    generator: torch.Generator,
    best: "_Best",
) -> None:
    """One trial; where training diverges it goes on from the last good state at a tenth of the rate."""
    for attempt in range(RETRIES + 1):
        try:
            rate = config.learning_rate * DECAY**attempt
            fit(
                model,
                method.objective_for(gamma),
                data,
                replace(config, learning_rate=rate),
                generator=generator,
                validate=best.validate,
                on_epoch=best.after,
            )
            return
        except TrainingDivergedError as error:
            if attempt == RETRIES:
                raise ValueError(f"Training diverged at every learning rate down to {rate:.0e}. {error}") from error
            warnings.warn(
                f"Training diverged at learning rate {rate:.0e} and goes on from the last good state at a tenth of it.",
                RuntimeWarning,
                stacklevel=2,
            )


class _Best:
    """Scores each epoch on the validation rows, keeps the best state, and says when to stop."""

    def __init__(
        self,
        model: ParametricGP,
        validation: Data | None,
        patience: int | None,
        on_epoch: Callable[[Epoch], object] | None,
    ) -> None:
        self.model, self.validation, self.patience, self.on_epoch = model, validation, patience, on_epoch
        self.history: list[Epoch] = []
        self.nll, self.epoch, self.state = math.inf, 0, copy.deepcopy(model.state_dict())
        self.trial = self.current = Trial(1.0, None)
        self.since, self.start = 0, time.perf_counter()

    def begin(self, trial: Trial) -> None:
        self.current, self.since = trial, 0

    def validate(self, model: ParametricGP) -> dict[str, float]:
        if self.validation is None:
            return {}
        x, y, weights = self.validation
        dist = model.predict(x)
        targets, copies = y.double().numpy(force=True), None if weights is None else weights.numpy(force=True)
        return {metric.__name__: metric(dist, targets, copies) for metric in (nll, rmse, crps)}

    def after(self, record: Epoch) -> bool:
        record = replace(record, epoch=len(self.history) + 1, seconds=time.perf_counter() - self.start)
        self.history.append(record)
        score = record.validation.get("nll", -math.inf)
        self.since += 1
        if self.validation is None or score < self.nll:
            self.nll, self.epoch, self.trial, self.since = score, record.epoch, self.current, 0
            if self.validation is not None:
                self.state = copy.deepcopy(self.model.state_dict())
        stop = self.on_epoch is not None and self.on_epoch(record) is True
        return stop or (self.patience is not None and self.validation is not None and self.since >= self.patience)

    def restore(self) -> None:
        if self.validation is not None:
            self.model.load_state_dict(self.state)
