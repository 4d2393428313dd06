"""What is trained, and how: `Settings`, and the `Recipe` that fills in what they leave open.

`RECIPES` says all that differs between the default and the paper's training; `training.train` follows it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpytorch.kernels import Kernel
from torch import nn

from paragp.gp.methods import Method
from paragp.training.loop import Config, cosine, steps

FULL_BATCH = 1000  # rows: up to here a batch is the whole table
POINTS_RATE, NETWORK_RATE = 0.02, 0.001
KINDS = ("matern52", "matern32", "matern12", "rbf", "rq")  # that kernel="auto" chooses from, if training is by solves
# Inducing points of the mean, where training is by solves: up to so many times n_inducing, of no fewer rows each, while
# rows times points^2, which is what it costs, are at most
MOST_MEAN_POINTS, ROWS_OF_A_POINT, SOLVE_COST = 7, 1.5, 1e13


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
