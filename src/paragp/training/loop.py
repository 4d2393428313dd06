"""Algorithm 1 of the paper: one loop for every method. It knows no family and no method.

`fit` takes a model (`model(x)` gives moments and regulariser), an objective (per-datum terms), data and a
config. Randomness comes from the generator passed in; nothing global is read or set.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from paragp.gp.linalg import NotPositiveDefiniteError
from paragp.gp.model import ParametricGP
from paragp.gp.objectives import Objective, estimate

# Assumed: the paper says the rate is "progressively decimated"; its deep-kernel runs drop it tenfold at half
# and three quarters of the epochs, and so do we everywhere.
MILESTONES = (0.5, 0.75)
DECAY = 0.1


class Data(NamedTuple):
    """Rows to train on. A weight of w counts as w copies of its row."""

    x: Tensor  # (N, d)
    y: Tensor  # (N,)
    weights: Tensor | None = None  # (N,), non-negative

    def take(self, rows: Tensor | slice) -> "Data":
        """Some of the rows."""
        return Data(self.x[rows], self.y[rows], None if self.weights is None else self.weights[rows])


@dataclass(frozen=True)
class Config:
    """Settings of the loop; the defaults are the paper's (appendix on univariate regression)."""

    epochs: int = 400
    batch_size: int = 1000
    learning_rate: float = 0.01
    beta: float = 1.0  # beta_reg
    milestones: tuple[float, ...] = MILESTONES  # fractions of the epochs after which the rate drops
    decay: float = DECAY


@dataclass(frozen=True)
class Epoch:
    """One line of the history."""

    epoch: int  # from 1
    objective: float  # mean minibatch estimate, per datum; rises
    learning_rate: float
    seconds: float  # since the start of `fit`
    validation: dict[str, float] = field(default_factory=dict)


class TrainingDivergedError(ArithmeticError):
    """Training met a NaN, an infinity or a matrix without factor. The model holds the last good state."""

    def __init__(self, message: str, *, step: int, parameter: str | None, history: list[Epoch]) -> None:
        super().__init__(message)
        self.step = step  # from 1
        self.parameter = parameter
        self.history = history


def fit(
    model: ParametricGP,
    objective: Objective,
    data: Data,
    config: Config,
    *,
    generator: torch.Generator,
    validate: Callable[[ParametricGP], dict[str, float]] | None = None,
    on_epoch: Callable[[Epoch], object] | None = None,
) -> list[Epoch]:
    """Maximise the objective over all of the model's parameters, in place, and return the history.

    `validate(model)` is called after each epoch and its metrics go into the history; `on_epoch(record)` may
    show progress, and ends the training by returning True.

    >>> from paragp.gp.methods import METHODS
    >>> x = torch.linspace(-1, 1, 50)[:, None]
    >>> method = METHODS["ppgpr-mfd"]
    >>> model = method.model("matern52", Z=x[::10])
    >>> history = fit(model, method.objective, Data(x, x[:, 0].sin()), Config(epochs=3, batch_size=25, beta=0.05),
    ...               generator=torch.Generator().manual_seed(0))
    >>> history[-1].objective > history[0].objective
    True
    """
    data = _checked(data)
    num_data = len(data.y) if data.weights is None else float(data.weights.sum())
    if data.weights is not None:
        data = data._replace(weights=data.weights * (len(data.y) / num_data))  # mean one, as `estimate` expects
    optimizer = torch.optim.Adam(model.parameters(), lr=config.learning_rate)
    drops = [max(1, round(fraction * config.epochs)) for fraction in config.milestones]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, drops, gamma=config.decay)
    history: list[Epoch] = []
    start = time.perf_counter()

    model.train()
    with _Guard(model, history) as guard:
        for epoch in range(1, config.epochs + 1):
            total = 0.0
            for batch in batches(data, config.batch_size, generator):  # a random mini-batch D_mb
                optimizer.zero_grad()
                q, kl = model(batch.x)
                terms = objective(q, batch.y, model.noise)
                value = estimate(terms, kl, num_data=num_data, beta=config.beta, weights=batch.weights)
                loss = -value  # the only minus sign
                loss.backward()
                guard.check(loss)
                optimizer.step()  # m, S, Z, theta_ker <- optim(L^(D_mb))
                total += float(value.detach()) * len(batch.y)
            record = Epoch(
                epoch=epoch,
                objective=total / len(data.y),
                learning_rate=float(schedule.get_last_lr()[0]),
                seconds=time.perf_counter() - start,
                validation={} if validate is None else validate(model),
            )
            schedule.step()
            history.append(record)
            if on_epoch is not None and on_epoch(record) is True:
                break
    return history


def batches(data: Data, batch_size: int, generator: torch.Generator) -> Iterator[Data]:
    """All rows once in random order: permute, then slice into the fewest near-equal batches.

    >>> data = Data(torch.arange(10.0)[:, None], torch.arange(10.0))
    >>> [len(batch.y) for batch in batches(data, 4, torch.Generator().manual_seed(0))]
    [3, 3, 4]
    """
    N = len(data.y)
    order = torch.randperm(N, generator=generator).to(data.y.device)
    shuffled = data.take(order)
    count = math.ceil(N / batch_size)
    for i in range(count):
        yield shuffled.take(slice(i * N // count, (i + 1) * N // count))


class _Guard:
    """Keeps the last state whose loss and gradients were finite, and goes back to it when training diverges."""

    def __init__(self, model: nn.Module, history: list[Epoch]) -> None:
        self.model, self.history = model, history
        self.live = list(model.state_dict().values())  # views of the parameters, not copies
        self.good = [tensor.clone() for tensor in self.live]
        self.step = 1

    def check(self, loss: Tensor) -> None:
        """Call between backward and the optimizer's step."""
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        if not bool(torch.isfinite(loss) & torch.isfinite(nn.utils.get_total_norm(gradients))):
            raise FloatingPointError(f"the loss was {float(loss.detach())}")
        for kept, tensor in zip(self.good, self.live, strict=True):
            kept.copy_(tensor)
        self.step += 1

    def __enter__(self) -> "_Guard":
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not isinstance(error, FloatingPointError | NotPositiveDefiniteError):
            return
        parameter = self._first_not_finite()
        for tensor, kept in zip(self.live, self.good, strict=True):
            tensor.copy_(kept)
        where = "no parameter" if parameter is None else f"parameter {parameter}"
        raise TrainingDivergedError(
            f"Training stopped at step {self.step} (epoch {len(self.history) + 1}): {error}; first not finite: "
            f"{where}. The model holds the last good state, before step {max(self.step - 1, 1)}. Try a lower "
            "learning rate, float64, or look for extreme values in the inputs.",
            step=self.step,
            parameter=parameter,
            history=self.history,
        ) from error

    def _first_not_finite(self) -> str | None:
        for name, parameter in self.model.named_parameters():
            if not bool(torch.isfinite(parameter).all()):
                return name
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
                return f"{name} (its gradient)"
        return None


def _checked(data: Data) -> Data:
    """The data, or an error that says what is wrong with it."""
    x, y, weights = data
    if x.ndim != 2 or y.shape != x.shape[:1] or not len(y):
        raise ValueError(
            f"Expected x of shape (N, d) and one target per row, got x {tuple(x.shape)} and y {tuple(y.shape)}."
        )
    for name, column in (("x", x), ("y", y), ("weights", weights)):
        if column is not None and not bool(torch.isfinite(column).all()):
            raise ValueError(
                f"{name} holds {int((~torch.isfinite(column)).sum())} NaN or infinite values. Remove or impute them."
            )
    if weights is not None and (weights.shape != y.shape or bool((weights < 0).any()) or not weights.sum() > 0):
        raise ValueError("weights must be one non-negative number per row, not all zero.")
    return data
