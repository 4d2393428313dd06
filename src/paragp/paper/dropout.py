"""MC dropout (Gal and Ghahramani 2016), which the paper calibrates networks against (sec:dkl, sec:suppdkl).

A ReLU network is trained with dropout on the squared error. At test time `n_samples` networks are drawn from it, each
with masks of its own that hold for all rows; y is normal with their mean, and their variance plus tau. The dropout rate
p and tau are found on validation rows, on the paper's grid and beyond its edges where these win.
"""

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from paragp.data.rows import Data, batches
from paragp.gp.features import draw_weights, layers
from paragp.metrics import nll
from paragp.predictive import Array, PredictiveDistribution
from paragp.training.loop import DECAY, MILESTONES

SIZES = (256, 256, 128, 128, 64)  # the paper's network
RATES = (0.05, 0.1, 0.15, 0.2, 0.25)
TAUS = (0.05, 0.1, 0.25, 0.5, 0.75, 1.0)
SMALLEST, LARGEST_RATE = 1e-4, 0.6  # how far the grids are extended
CHUNK = 10_000  # rows that go through a sampled network at once


class MCDropoutRegressor(RegressorMixin, BaseEstimator):
    """Regression by a network whose dropout stays on at test time; a baseline for tables of numbers.

    Parameters
    ----------
    sizes : of the hidden layers
    p, tau : dropout rate and added variance (in units of the target's variance), or "auto"
    n_samples : networks drawn at test time
    max_epochs, batch_size, learning_rate : of Adam, whose rate drops tenfold at half and at three quarters
    validation_fraction : held out where no `X_val` is passed and something is to be found
    progress : called after each epoch

    Attributes
    ----------
    p_, tau_ : the values used
    """

    def __init__(
        self,
        sizes: tuple[int, ...] = SIZES,
        *,
        p: float | str = "auto",
        tau: float | str = "auto",
        n_samples: int = 50,
        max_epochs: int = 200,
        batch_size: int = 1000,
        learning_rate: float = 0.01,
        validation_fraction: float = 0.1,
        progress: Callable[[], object] | None = None,
        random_state: Any = None,
    ) -> None:
        self.sizes = sizes
        self.p = p
        self.tau = tau
        self.n_samples = n_samples
        self.max_epochs = max_epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.validation_fraction = validation_fraction
        self.progress = progress
        self.random_state = random_state

    def fit(self, X: Any, y: Any, *, X_val: Any = None, y_val: Any = None) -> Self:
        """Fit to rows X (n, d) and a target y (n,); validate on `X_val, y_val`, or on rows held out."""
        X, y = validate_data(self, X, y, y_numeric=True, dtype=np.float64)
        if (X_val is None) != (y_val is None):
            raise ValueError("Pass both X_val and y_val, or neither.")
        generator = torch.Generator().manual_seed(int(check_random_state(self.random_state).randint(2**31 - 1)))
        self._shift, self._scale = X.mean(0), np.where(X.std(0) > 0, X.std(0), 1.0)
        self._mean, self._deviation = float(y.mean()), float(y.std()) or 1.0
        data = Data(self._inputs(X), torch.from_numpy((y - self._mean) / self._deviation).float())
        if X_val is not None:
            rows, targets = validate_data(self, X_val, y_val, y_numeric=True, dtype=np.float64, reset=False)
            valid = Data(self._inputs(rows), torch.from_numpy((targets - self._mean) / self._deviation).float())
        elif isinstance(self.p, str) or isinstance(self.tau, str):
            order = torch.randperm(len(y), generator=generator)
            held_out = max(1, round(self.validation_fraction * len(y)))
            data, valid = data.take(order[held_out:]), data.take(order[:held_out])
        else:
            valid = data  # nothing is found by it
        self._seed = int(torch.randint(2**31 - 1, (), generator=generator))
        self._search(data, valid, generator)
        return self

    def _search(self, data: Data, valid: Data, generator: torch.Generator) -> None:
        """Train for each rate, and keep the rate and tau with the best validation NLL."""
        rates = list(RATES) if isinstance(self.p, str) else [float(self.p)]
        best, tried = np.inf, dict[float, float]()
        while rates:
            p = rates.pop(0)
            network = self._train(data, p, generator)
            mean, var = self._moments(network, p, valid.x)
            if not np.isfinite(mean).all():
                raise ArithmeticError(f"Training diverged with p = {p:g}. Take a lower learning rate.")
            tau = best_tau(mean, var, valid.y.double().numpy()) if isinstance(self.tau, str) else float(self.tau)
            tried[p] = nll(PredictiveDistribution(mean, var, np.array(tau)), valid.y.double().numpy())
            if tried[p] < best:
                best, self.network_, self.p_, self.tau_ = tried[p], network, p, tau
            if not rates and isinstance(self.p, str):  # beyond an edge that wins
                low, high = min(tried), max(tried)
                rates += [low / 2] * (self.p_ == low and low / 2 > SMALLEST)
                rates += [high + 0.05] * (self.p_ == high and high + 0.05 < LARGEST_RATE)

    def _train(self, data: Data, p: float, generator: torch.Generator) -> nn.Sequential:
        """A network with dropout of rate p after each hidden layer, trained on the squared error."""
        network = layers(data.x.shape[1], [*self.sizes, 1])
        draw_weights(network, generator)
        optimizer = torch.optim.Adam(network.parameters(), lr=self.learning_rate)
        drops = [round(share * self.max_epochs) for share in MILESTONES]
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, drops, gamma=DECAY)
        for _ in range(self.max_epochs):
            for batch in batches(data, self.batch_size, generator):
                optimizer.zero_grad()
                masks = draw_masks(self.sizes, p, generator, rows=len(batch.y))
                (forward(network, batch.x, masks) - batch.y).square().mean().backward()
                optimizer.step()
            schedule.step()
            if self.progress is not None:
                self.progress()
        return network

    @torch.no_grad()
    def _moments(self, network: nn.Sequential, p: float, x: Tensor) -> tuple[Array, Array]:
        """Mean and variance over the sampled networks, each (n,)."""
        generator = torch.Generator().manual_seed(self._seed)
        samples = [draw_masks(self.sizes, p, generator) for _ in range(self.n_samples)]
        mean, var = torch.zeros(len(x), dtype=torch.float64), torch.zeros(len(x), dtype=torch.float64)
        for start in range(0, len(x), CHUNK):
            rows = slice(start, start + CHUNK)
            drawn = torch.stack([forward(network, x[rows], masks) for masks in samples]).double()
            mean[rows], var[rows] = drawn.mean(0), drawn.var(0, correction=0)
        return mean.numpy(), var.numpy()

    def predict_dist(self, X: Any) -> PredictiveDistribution:
        """The distribution of y for each row: the networks' variance is the function's, tau the noise."""
        check_is_fitted(self)
        x = self._inputs(validate_data(self, X, dtype=np.float64, reset=False))
        mean, var = self._moments(self.network_, self.p_, x)
        return PredictiveDistribution(mean, var, np.array(self.tau_)).rescaled(self._mean, self._deviation)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean of y for each row; with `return_std` also its deviation."""
        dist = self.predict_dist(X)
        return (dist.mean, dist.std) if return_std else dist.mean

    def _inputs(self, X: Array) -> Tensor:
        return torch.from_numpy((X - self._shift) / self._scale).float()


def draw_masks(sizes: tuple[int, ...], p: float, generator: torch.Generator, *, rows: int = 1) -> list[Tensor]:
    """What each hidden unit is multiplied with: 0 with probability p, else 1 / (1 - p); (rows, size) a layer."""
    return [(torch.rand(rows, size, generator=generator) >= p).float() / (1 - p) for size in sizes]


def forward(network: nn.Sequential, x: Tensor, masks: list[Tensor]) -> Tensor:
    """The network's output with its hidden units masked; shape (b,)."""
    left = iter(masks)
    for layer in network:
        x = layer(x)
        if isinstance(layer, nn.ReLU):
            x = x * next(left)
    return x[:, 0]


def best_tau(mean: Array, var: Array, y: Array) -> float:
    """The added variance with the lowest NLL: on the paper's grid, and by halves and doubles beyond an edge that wins.

    >>> best_tau(np.zeros(4), np.zeros(4), np.array([0.01, -0.01, 0.01, -0.01]))
    0.0001953125
    """

    def score(tau: float) -> float:
        return nll(PredictiveDistribution(mean, var, np.array(tau)), y)

    best = min(TAUS, key=score)
    for edge, factor in ((TAUS[0], 0.5), (TAUS[-1], 2.0)):
        while best == edge and best * factor > SMALLEST and score(best * factor) < score(best):
            best = edge = best * factor
    return best
