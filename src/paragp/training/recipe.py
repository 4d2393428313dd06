"""From a method and rows to a trained model: a start, Adam with solves between its epochs, and a search of the grid.

`RECIPES` says all that differs between the default and the paper's training; `train` is the sequence of phases:

    start    kernel and noise by the exact GP of a sample, k-means in that kernel's units     (`training.start`)
    solve    where rows are many and the solved mean leaves hardly more than the noise, mean and S' together; this
             is the first epoch, without a step                                               (`training.solves`)
    train    the first value of the method's grid (beta_reg, gamma, bb_alpha) in full: epochs of Adam, each ended by the
             closed-form solve of the mean, and of S' where it has one                        (`training.solves`)
    cool     where patience ended that, some more epochs from the best state at a lower rate
    search   the values beside it go on from the best state so far for a few epochs at a low rate, away from the first
             one for as long as that helps: a better NLL that costs no CRPS
    choose   the state with the best validation NLL, or the start where no state is clearly better
"""

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from gpytorch.kernels import Kernel
from torch import nn

from paragp.data.rows import Data, Rows
from paragp.gp.covariances import Diagonal, LogLinear, LogPower
from paragp.gp.features import collapsed, draw_weights, embedded, layers, network
from paragp.gp.kernels import make_kernel
from paragp.gp.methods import Method
from paragp.gp.model import INITIAL_NOISE, NOISE_FLOOR, ParametricGP
from paragp.gp.objectives import ppgpr, ppgpr_gamma
from paragp.training.best import Best, Trial
from paragp.training.checkpoint import Checkpoint
from paragp.training.distributed import ALONE, Group
from paragp.training.inducing import starting_points
from paragp.training.loop import DECAY, Config, Epoch, Position, Standing, TrainingDivergedError, cosine, fit, steps
from paragp.training.solves import solve, solve_variance
from paragp.training.stages import fits, held_out_error, solve_in_stages
from paragp.training.start import FAR, NEAR, choose_kernel, stretch

FULL_BATCH = 1000  # rows: up to here a batch is the whole table
COOL_SHARE, COOL_RATE = 0.3, 0.3  # of the epochs and of the learning rate, after patience ended the first training
SEARCH_SHARE = 0.1  # of the epochs, for each further value of a grid
PATIENCE_SHARE, LEAST_PATIENCE = 0.05, 2  # of the epochs, in what follows the first training: it helps soon or never
ROWS_OF_THE_PRIOR, LEAST_BETA = 300, 0.05  # PPGPR's beta_reg starts near the first over the rows, or near the second
POINTS_RATE, NETWORK_RATE = 0.02, 0.001
KINDS = ("matern52", "matern32", "matern12", "rbf", "rq")  # that kernel="auto" chooses from, if training is by solves
# Inducing points of the mean, where training is by solves: up to so many times n_inducing, of no fewer rows each, while
# rows times points^2, which is what it costs, are at most
MOST_MEAN_POINTS, ROWS_OF_A_POINT, SOLVE_COST = 7, 1.5, 2e12
# Kernels are judged by the error of a mean with up to so many times n_inducing points, of at most so many rows, at a
# share of these
JUDGED_POINTS, JUDGED_ROWS, JUDGED_SHARE, MOST_JUDGED = 2, 50_000, 0.2, 5000
# S' is solved for first if the mean's squared error is at most so many times the noise, which a sample tells only
# roughly, and at least so much: near the noise's floor there may be more to learn. There must be so many rows to an
# inducing point that residuals are what they seem, and so many at all that epochs are dear. Of many rows so many do.
LEARNED, WORTH_SOLVING, ROWS_TO_A_POINT, FEWEST_SOLVED, SOLVED_ROWS = 1.5, 20 * NOISE_FLOOR, 10, 10_000, 40_000
RETRIES = 3  # with a tenth of the learning rate each, after training diverged


@dataclass(frozen=True)
class Recipe:
    """How a model is trained where the user did not say."""

    kernel_rows: int  # of the sample that the kernel starts from; 0: the kernel starts as it is
    kernel_iterations: int
    solves: bool  # whether the mean (and S', where it can be) is solved for after each epoch
    learning_rate: Callable[[int], float]  # by the steps of a training
    rates: Callable[[int], dict[str, float]]  # shares of it by the start of a parameter's name, by the steps again
    memory: float  # Adam's beta_2
    schedule: Callable[[float], float]
    stops: bool  # whether training stops early and keeps its best state; else the last state of a trial counts
    steps: Callable[[int], float]  # of the optimizer that a training on so many rows aims at
    epochs: tuple[int, int]  # fewest and most


def by_rows(n: int) -> float:
    """Steps for n rows: more rows hold more to learn, up to what a user waits for.

    >>> [by_rows(n) for n in (100, 10_000, 40_000, 10_000_000)]
    [380.0, 500.0, 4000.0, 4000.0]
    """
    return min(4000.0, max(380.0, 500 * (n / 10_000) ** 1.8))


def by_steps(steps: int) -> float:
    """The kernel's learning rate, which falls with the steps: who takes more of them can take smaller ones.

    >>> [f"{by_steps(steps):.3f}" for steps in (50, 600, 4000)]
    ['0.050', '0.050', '0.016']
    """
    return 0.05 * min(1.0, 600 / steps) ** 0.6


def shares(steps: int) -> dict[str, float]:
    """Shares of that rate: inducing points move at a rate of their own, whatever the steps. Faster ones with
    a slower kernel cost PPGPR-MFD a tenth of a nat on pol, and RMSE and CRPS too; why, we have not looked into. A
    network before the kernel takes Adam's usual thousandth: at ten times as much all rows end at one point of the
    features.

    >>> [f"{shares(steps)['family.Z']:.2f}" for steps in (50, 600, 4000)]
    ['0.40', '0.40', '1.25']
    """
    points, network = (rate / by_steps(steps) for rate in (POINTS_RATE, NETWORK_RATE))
    return {"family.Z": points, "family.S": 0.6, "likelihood": 0.6, "family.mean": 0.2, "features": network}


# One batch with an extreme row moves every parameter by up to (1 - beta_1) / sqrt(1 - beta_2) learning rates at once,
# and by some thirty of them until it is forgotten with the usual .999; by ten with this.
SHORT = 0.99

RECIPES = {
    "auto": Recipe(
        kernel_rows=1000, kernel_iterations=50, solves=True,
        learning_rate=by_steps, rates=shares, memory=SHORT, schedule=cosine, stops=True,
        steps=by_rows, epochs=(10, 130),
    ),
    "adam": Recipe(  # the paper's
        kernel_rows=0, kernel_iterations=0, solves=False,
        learning_rate=lambda _: 0.01, rates=lambda _: {}, memory=0.999, schedule=steps, stops=False,
        steps=by_rows, epochs=(400, 400),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """What to train. None means: choose from the data."""

    method: Method
    kernel: str | Kernel = "auto"
    n_inducing: int = 1000
    n_inducing_variance: int | None = None
    features: nn.Module | Sequence[int] | None = None  # before the kernel: a module, or the sizes of a network
    mean: nn.Module | Sequence[int] | None = None  # in place of the mean's inducing points: a module, or hidden sizes
    beta: float | None = None
    gamma: float | None = None
    bb_alpha: float | None = None
    renyi: float = 1.0  # order of the regulariser; 1: the KL
    epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    early_stopping: bool | None = None  # stop after `patience` epochs without a better validation NLL
    patience: int = 10
    recipe: Recipe = RECIPES["auto"]

    @property
    def staged(self) -> bool:
        """Whether training is by solves alone."""
        return self.method.stages and self.recipe.solves and self.features is None and self.mean is None

    @property
    def stops(self) -> bool:
        return self.staged or (self.recipe.stops if self.early_stopping is None else self.early_stopping)

    @property
    def kernels(self) -> Sequence[str | Kernel]:
        """Those that a sample of rows chooses from."""
        if self.kernel != "auto":
            return [self.kernel]
        return KINDS if self.staged else KINDS[:1]

    @property
    def ridges(self) -> tuple[float, ...]:
        """Weights of the mean's prior, where training is by solves."""
        return self.method.beta if self.beta is None else (self.beta,)

    def points(self, n: int) -> list[int]:
        """How many inducing points each set has: of the mean, or of all, and of the variance."""
        M, M_variance = self.n_inducing, self.n_inducing_variance or self.n_inducing
        if self.mean is not None:
            return [M_variance]
        if not self.method.two_sets:
            return [M]
        if self.staged and self.n_inducing_variance is None:
            M = round(max(M, min(MOST_MEAN_POINTS * M, n / ROWS_OF_A_POINT, math.sqrt(SOLVE_COST / n))))
        return [M, M_variance]

    def config(self, n: int) -> Config:
        """The loop's settings for n rows."""
        recipe = self.recipe
        batch_size = min(n, FULL_BATCH) if self.batch_size is None else self.batch_size
        batches, (low, high) = math.ceil(n / batch_size), recipe.epochs
        epochs = min(high, max(low, round(recipe.steps(n) / batches))) if self.epochs is None else self.epochs
        rate = recipe.learning_rate(epochs * batches) if self.learning_rate is None else self.learning_rate
        return Config(
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=rate,
            schedule=recipe.schedule,
            rates=recipe.rates(epochs * batches),
            memory=recipe.memory,
        )


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
    (first,), *rows = trials(settings, round(data.total), validation is not None)

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


def new_model(
    settings: Settings, data: Data, generator: torch.Generator, rows: int | None = None, group: Group = ALONE
) -> ParametricGP:
    """A model at its starting point for these rows, a sample of so many `rows`."""
    recipe, method, features = settings.recipe, settings.method, _features(settings, data, generator)
    if features is not None:  # the kernel and its points live behind the network, as it is at the start
        data = data._replace(x=embedded(features, data.x))
        if isinstance(settings.features, nn.Module) and collapsed(data.x):
            raise ValueError(
                f"The features module {type(features).__name__} maps all rows to one point, so that no kernel can tell "
                "them apart. Check its weights, or start from others."
            )
    d = data.x.shape[1]
    kernels = [make_kernel(kernel, d).to(data.x) for kernel in settings.kernels]
    kernel, noise = kernels[0], INITIAL_NOISE
    if recipe.kernel_rows:
        kernel, noise = choose_kernel(
            kernels, data, rows=recipe.kernel_rows, iterations=recipe.kernel_iterations, generator=generator,
            deviation=FAR if settings.staged else NEAR, error=_judge(settings, data, generator), group=group,
        )  # fmt: skip
    Z = _points(kernel, data, settings.points(rows or data.size), recipe.kernel_rows > 0, generator)
    noise = max(noise, 2 * NOISE_FLOOR)
    mean = _mean(settings, data, generator)
    model = method.model(kernel, *Z, mean=mean, noise=noise, features=features)
    if isinstance(model.family.S, LogPower):  # a constant start, with the marginal's variance
        model.likelihood.start(min(noise, 0.99))
        nn.init.constant_(model.family.S.b, math.log(1 - min(noise, 0.99)))
    elif isinstance(model.family.S, LogLinear):  # the noise is there
        nn.init.constant_(model.family.S.b, math.log(noise))
        model.likelihood.start(2 * NOISE_FLOOR)
    return model


def _points(
    kernel: Kernel, data: Data, sizes: Sequence[int], scaled: bool, generator: torch.Generator
) -> list[torch.Tensor]:
    """Starting points of these sizes; `scaled`, they are spread in the units of a kernel that suits the rows."""
    found = stretch(kernel, data.x.shape[1]) if scaled else None
    units = torch.ones(()).to(data.x) if found is None else found.to(data.x)
    sets = starting_points(data.x / units, *sizes, generator=generator, weights=data.weights)
    return [points * units for points in sets]


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


def _judge(settings: Settings, data: Data, generator: torch.Generator) -> Callable[[Kernel, float], float] | None:
    """What tells kernels apart for a solved mean: its error, with fewer points, at rows that it has not seen. They are
    more than the kernels were fitted to: what suits few rows is too smooth for many. None where the rows are few."""
    if not settings.staged or len(settings.kernels) == 1:
        return None
    there = torch.arange(data.size) if data.weights is None else (data.weights > 0).nonzero()[:, 0].cpu()
    if len(there) <= 2 * settings.recipe.kernel_rows:
        return None
    order = there[torch.randperm(len(there), generator=generator)][:JUDGED_ROWS].to(data.y.device)
    held_out = min(MOST_JUDGED, round(JUDGED_SHARE * len(order)))
    judged, known = data.take(order[:held_out]), data.take(order[held_out:])
    points = min(JUDGED_POINTS * settings.n_inducing, settings.points(data.size)[0])
    seed = int(torch.randint(2**31 - 1, (), generator=generator))

    def error(kernel: Kernel, noise: float) -> float:
        Z = _points(kernel, known, [points, 1], True, torch.Generator().manual_seed(seed))
        model = settings.method.model(kernel, *Z, noise=max(noise, 2 * NOISE_FLOOR))
        return held_out_error(model, known, judged, settings.ridges)

    return error


def _features(settings: Settings, data: Data, generator: torch.Generator) -> nn.Module | None:
    """The module before the kernel, a copy of what was passed."""
    if settings.features is None:
        return None
    if isinstance(settings.features, nn.Module):
        return copy.deepcopy(settings.features).to(data.x)
    sizes = [int(size) for size in settings.features]
    return network(sizes, data.x, generator=generator, weights=data.weights)


def _mean(settings: Settings, data: Data, generator: torch.Generator) -> nn.Module | None:
    """The network of the mean, a copy of what was passed; one made from sizes starts at a mean of zero."""
    if settings.mean is None:
        return None
    if isinstance(settings.mean, nn.Module):
        return copy.deepcopy(settings.mean).to(data.x)
    made = layers(data.x.shape[1], [*(int(size) for size in settings.mean), 1]).to(data.x)
    draw_weights(made, generator)
    last = made[-1]
    assert isinstance(last, nn.Linear)
    nn.init.zeros_(last.weight)
    return made


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
