"""From a method and rows to a trained model: a start, Adam with solves between its epochs, and a search of the grid.

`train` follows a recipe (`training.recipe`) through these phases:

    start    kernel and noise by the exact GP of a sample, k-means in that kernel's units     (`training.start`)
    solve    where rows are many and the solved mean leaves hardly more than the noise, mean and S' together; this
             is the first epoch, without a step                                               (`training.solves`)
    train    the first value of the method's grid (beta_reg, gamma, bb_alpha) in full: epochs of Adam, each ended by the
             closed-form solve of the mean, and of S' where it has one                        (`training.solves`)
    cool     where patience ended that, some more epochs from the best state at a lower rate
    search   the values beside it go on from the best state so far for a few epochs at a low rate, away from the first
             one for as long as that helps: a better NLL that costs no CRPS
    choose   the state with the best validation NLL, or the start where no state is clearly better

The default takes no steps: after the start, `training.stages` solves for its mean and fits its noise.
"""

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from paragp.data.rows import Data, Rows
from paragp.gp.covariances import Diagonal
from paragp.gp.model import NOISE_FLOOR, ParametricGP
from paragp.gp.objectives import ppgpr, ppgpr_gamma
from paragp.training.best import Best, Trial
from paragp.training.checkpoint import Checkpoint
from paragp.training.distributed import ALONE, Group
from paragp.training.loop import DECAY, Config, Epoch, Position, Standing, TrainingDivergedError, fit
from paragp.training.recipe import Settings
from paragp.training.solves import solve, solve_variance
from paragp.training.stages import fits, solve_in_stages
from paragp.training.start import new_model

COOL_SHARE, COOL_RATE = 0.3, 0.3  # of the epochs and of the learning rate, after patience ended the first training
SEARCH_SHARE = 0.1  # of the epochs, for each further value of a grid
PATIENCE_SHARE, LEAST_PATIENCE = 0.05, 2  # of the epochs, in what follows the first training: it helps soon or never
ROWS_OF_THE_PRIOR, LEAST_BETA = 300, 0.05  # PPGPR's beta_reg starts near the first over the rows, or near the second
# S' is solved for first if the mean's squared error is at most so many times the noise, which a sample tells only
# roughly, and at least so much: near the noise's floor there may be more to learn. There must be so many rows to an
# inducing point that residuals are what they seem, and so many at all that epochs are dear. Of many rows so many do.
LEARNED, WORTH_SOLVING, ROWS_TO_A_POINT, FEWEST_SOLVED, SOLVED_ROWS = 1.5, 20 * NOISE_FLOOR, 10, 10_000, 40_000
RETRIES = 3  # with a tenth of the learning rate each, after training diverged


class Trained(NamedTuple):
    """The model at its best validation NLL (at the end, without validation rows), and how it came there."""

    model: ParametricGP
    history: list[Epoch]
    best_epoch: int  # in the history, from 1; 0 where no epoch was better than the start
    beta: float
    gamma: float | None
    bb_alpha: float | None


class HopelessError(ValueError):
    """Training diverged at every learning rate."""


def trials(settings: Settings, n: int, searching: bool) -> list[list[Trial]]:
    """What is tried on n rows: first one value alone, then those away from it, of beta_reg, gamma and bb_alpha in turn:
    the smaller ones and the larger ones, each in a row that ends with the first value that does not help.

    The first is what was asked for, or the grid's first; but for PPGPR the beta_reg nearest to 300 / n, or to .05: with
    few rows the regulariser must keep a flexible variance from explaining noise, with many it only holds the mean back.

    >>> from paragp.gp.methods import METHODS
    >>> [[trial.beta for trial in row] for row in trials(Settings(METHODS["ppgpr-mfd"]), 10_000, searching=True)]
    [[0.05], [0.01], [0.2, 1.0]]
    """
    method = settings.method
    betas = method.beta if settings.beta is None else (settings.beta,)
    if method.objective in (ppgpr, ppgpr_gamma):
        near = max(LEAST_BETA, ROWS_OF_THE_PRIOR / n)
        betas = tuple(sorted(betas, key=lambda beta: abs(math.log(max(beta, 1e-9) / near))))
    gammas = (method.gamma or (None,)) if settings.gamma is None else (settings.gamma,)
    alphas = (method.bb_alpha or (None,)) if settings.bb_alpha is None else (settings.bb_alpha,)
    grids: dict[str, tuple[Any, ...]] = {"beta": betas, "gamma": gammas, "bb_alpha": alphas}
    first = Trial(**{name: grid[0] for name, grid in grids.items()})
    rows = [[first]]
    for name, (held, *others) in grids.items() if searching else ():
        smaller = sorted((value for value in others if value < held), reverse=True)
        larger = sorted(value for value in others if value > held)
        rows += [[first._replace(**{name: value}) for value in row] for row in (smaller, larger) if row]
    return rows


def departure(trial: Trial, first: Trial) -> dict[str, float]:
    """What a trial changes.

    >>> departure(Trial(beta=0.2, gamma=1.05), Trial(beta=0.05, gamma=1.05))
    {'beta': 0.2}
    """
    return {name: value for name, value in trial._asdict().items() if value != getattr(first, name)}


def total_epochs(settings: Settings, n: int, searching: bool) -> int:
    """The most epochs that `train` takes."""
    epochs = settings.config(n).epochs
    if settings.staged:
        return fits() if searching else 1
    others = sum(len(row) for row in trials(settings, n, searching)) - 1
    return epochs + others * _share(SEARCH_SHARE, epochs)


def train(
    settings: Settings,
    data: Rows,
    validation: Data | None = None,
    *,
    generator: torch.Generator,
    start: ParametricGP | None = None,
    on_epoch: Callable[[Epoch], object] | None = None,
    group: Group = ALONE,
    checkpoint: Checkpoint | None = None,
) -> Trained:
    """Train on standardised rows; `start` is a model to go on from instead of new starting points.

    In a `group` of processes all come to the same model, each from its part of `data`, with the same `validation`. With
    a `checkpoint` the training goes on from where it stood, and what was found before is taken as it was.
    """
    full = settings.config(data.size)
    short = replace(full, epochs=_share(SEARCH_SHARE, full.epochs), learning_rate=full.learning_rate * DECAY)
    soon = max(LEAST_PATIENCE, _share(PATIENCE_SHARE, full.epochs))
    model = new_model(settings, data.sample, generator, data.size, group) if start is None else start
    model.family.order = settings.renyi
    group.agree(list(model.state_dict().values()))
    coefficients = model.family.mean_parameters
    fresh = start is None or (bool(coefficients) and not any(bool(part.any()) for part in coefficients))
    best = Best(model, validation, settings.patience if settings.stops else None, on_epoch, group)
    (first,), *rows = trials(settings, max(round(data.total), 1), validation is not None)

    log = _Log(model, best, checkpoint)

    def attempt(trial: Trial, config: Config, patience: int | None = None) -> bool:
        """Train with this trial's values from the best state so far; whether that made it better."""
        best.begin(trial, patience)
        with _seeded(model, generator):
            _fit(model, settings, data, replace(config, beta=trial.beta), trial, generator, best, group, log)
        return best.end()

    def solve_first() -> bool:
        """Where a mean and a variance that are solved for are a start, count it as an epoch."""
        best.begin(first)
        objective = _solved_start(model, settings, data, first.beta)
        group.agree(list(model.state_dict().values()))
        if objective is None:
            best.restore()
            return False
        best.after(Epoch(0, objective, 0.0, 0.0, best.validate(model)))
        return True

    def attempt_of_search(change: dict[str, float]) -> bool:
        try:
            return attempt(best.trial._replace(**change), short, soon)
        except HopelessError as error:
            tried = ", ".join(f"{name} = {value:g}" for name, value in change.items())
            warnings.warn(f"{tried} was left out of the search. {error}", RuntimeWarning, stacklevel=2)
            best.restore()
            return False

    def epochs_to_cool() -> int:
        left = min(full.epochs - len(best.history), _share(COOL_SHARE, full.epochs))
        return left if best.ran_out else 0

    if settings.staged:
        log.recall(lambda: solve_in_stages(model, data, best, settings.ridges, group, fresh=fresh, pause=log.pause()))
    else:
        counted = full.epochs > 1 and fresh and log.recall(solve_first)
        log.recall(lambda: attempt(first, replace(full, epochs=full.epochs - counted)))
    cooling = 0 if settings.staged else log.recall(epochs_to_cool)
    if cooling > 0:
        cool = replace(full, epochs=cooling, learning_rate=full.learning_rate * COOL_RATE)
        log.recall(lambda: attempt(first, cool, soon))
    best.searching = True
    for row in [] if settings.staged else rows:
        for trial in row:
            if not log.recall(partial(attempt_of_search, departure(trial, first))):
                break
    log.end()
    if fresh:
        best.settle()
    return Trained(model, best.history, best.epoch, *best.trial)


class _Log:
    """What the phases of a training have found, so that one that goes on from a checkpoint passes over them."""

    def __init__(self, model: ParametricGP, best: Best, checkpoint: Checkpoint | None) -> None:
        self.model, self.best, self.checkpoint = model, best, checkpoint
        self.found: list[Any] = []
        self.saved = None if checkpoint is None else checkpoint.state
        self.left: list[Any] = [] if self.saved is None else list(self.saved["found"])
        if self.saved is not None:
            model.load_state_dict(self.saved["model"])
            best.load(self.saved["best"])

    def recall(self, find: Callable[[], Any]) -> Any:
        """What a phase found, before or now."""
        self.found.append(self.left.pop(0) if self.left else find())
        return self.found[-1]

    def end(self) -> None:
        if self.checkpoint is not None:
            self.checkpoint.write(self._standing() | {"position": None}, done=True)

    def pause(self) -> Callable[[], object]:
        """What a phase of solves calls between them: one that is stopped there goes on from its beginning, now."""
        if self.checkpoint is None:
            return lambda: None
        state = copy.deepcopy(self._standing()) | {"retry": 0, "position": None}
        return partial(self.checkpoint.offer, lambda: state)

    def resumed(self) -> tuple[int, Position | None]:
        """Where within a phase the checkpoint stands: the retry, and the loop's position."""
        saved, self.saved = self.saved, None
        if saved is None or saved["position"] is None:
            return 0, None
        self.model.load_state_dict(saved["model"])
        self.best.load(saved["best"])
        return saved["retry"], saved["position"]

    def offer(self, retry: int, at: Standing) -> None:
        if self.checkpoint is not None:
            self.checkpoint.offer(
                lambda: self._standing() | {"retry": retry, "position": at.position()}, epoch=not at.step
            )

    def _standing(self) -> dict[str, Any]:
        return {"found": self.found, "model": self.model.state_dict(), "best": self.best.standing()}


def _share(share: float, epochs: int) -> int:
    return max(1, round(share * epochs))


@torch.no_grad()
def _solved_start(model: ParametricGP, settings: Settings, data: Rows, beta: float) -> float | None:
    """Solve for the mean and a diagonal S', at a start whose noise is that of its kernel; the objective per row.

    None where the mean has more to learn than that noise: variances as small as its errors would keep it from doing so.
    Where the residuals are hardly more, the many epochs in which S' would come down from the prior's are spared.
    """
    family, objective = model.family, settings.method.objective
    plain = isinstance(family.S, Diagonal) and objective is ppgpr and settings.renyi == 1 and not model.networks
    if not (plain and settings.recipe.solves and settings.recipe.kernel_rows):
        return None
    if data.total < max(FEWEST_SOLVED, ROWS_TO_A_POINT * max(len(family.Z), len(family.variance_points))):
        return None
    rows = data.sample
    rows = rows.take(slice(None, None, math.ceil(rows.size / SOLVED_ROWS)))
    share, noise = rows.total / data.total, float(model.noise)
    if not solve(model, objective, rows, beta=beta * share):
        return None
    return solve_variance(model, rows, beta=beta * share, within=(WORTH_SOLVING, LEARNED * noise))


@contextmanager
def _seeded(model: ParametricGP, generator: torch.Generator) -> Iterator[None]:
    """What a module draws (dropout, say) comes from torch's global generator: it follows ours for a while."""
    if not model.networks:
        yield
        return
    with torch.random.fork_rng():
        torch.manual_seed(int(torch.randint(2**31 - 1, (), generator=generator)))
        yield


def _fit(
    model: ParametricGP,
    settings: Settings,
    data: Rows,
    config: Config,
    trial: Trial,
    generator: torch.Generator,
    best: Best,
    group: Group,
    log: _Log,
) -> None:
    """One trial; where training diverges it goes on from the last good state at a tenth of the rate."""
    objective = settings.method.objective_for(gamma=trial.gamma, bb_alpha=trial.bb_alpha)

    def solved(model: ParametricGP) -> list[nn.Parameter]:
        covariance = settings.method.solved_covariance and settings.renyi == 1
        if not solve(model, objective, data, beta=config.beta, covariance=covariance, group=group):
            return []
        return [*model.family.mean_parameters, *(model.family.S.parameters() if covariance else ())]

    retry, position = log.resumed()
    for attempt in range(retry, RETRIES + 1):
        try:
            rate = config.learning_rate * DECAY**attempt
            fit(
                model,
                objective,
                data,
                replace(config, learning_rate=rate),
                generator=generator,
                group=group,
                solve=solved if settings.recipe.solves else None,
                validate=best.validate,
                on_epoch=best.after,
                on_step=partial(log.offer, attempt),
                position=position,
            )
            return
        except TrainingDivergedError as error:
            position = None
            if attempt == RETRIES:
                raise HopelessError(f"Training diverged at every learning rate down to {rate:.0e}. {error}") from error
            warnings.warn(
                f"Training diverged at learning rate {rate:.0e} and goes on from the last good state at a tenth of it.",
                RuntimeWarning,
                stacklevel=2,
            )
