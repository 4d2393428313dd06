"""Algorithm 1 of the paper: one loop for every method. It knows no family and no method.

`fit` takes a model (which gives moments and a regulariser), an objective (per-datum terms), data and a
config. Randomness comes from the generator passed in; nothing global is read or set.
"""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import islice, pairwise
from typing import Any

import torch
from torch import nn

from paragp.data.rows import Data, Rows, bounds, checked
from paragp.gp.linalg import NotPositiveDefiniteError
from paragp.gp.model import ParametricGP
from paragp.gp.objectives import Objective
from paragp.training.distributed import ALONE, Group
from paragp.training.step import backward

# Assumed: the paper says the rate is "progressively decimated"; its deep-kernel runs drop it tenfold at half
# and three quarters of the epochs, and so does `steps`.
MILESTONES = (0.5, 0.75)
DECAY = 0.1
SOLVED_RATE = 0.1  # of the learning rate, for parameters that are solved for between epochs


def steps(progress: float) -> float:
    """The paper's schedule: the share of the learning rate after that share of the training.

    >>> [steps(progress) for progress in (0.0, 0.5, 0.9)]
    [1.0, 0.1, 0.01]
    """
    return round(DECAY ** sum(progress >= milestone for milestone in MILESTONES), 9)


def cosine(progress: float) -> float:
    """Half a cosine wave from one to zero: a high rate for long, and time to settle."""
    return 0.5 * (1 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class Config:
    """Settings of the loop; the defaults are the paper's (appendix on univariate regression)."""

    epochs: int = 400
    batch_size: int = 1000
    learning_rate: float = 0.01
    beta: float = 1.0  # beta_reg
    schedule: Callable[[float], float] = steps  # the share of the learning rate by the share of the training done
    rates: dict[str, float] = field(default_factory=dict)  # its share by the start of a parameter's name
    memory: float = 0.999  # Adam's beta_2: of the squared gradients by which it scales its steps

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "learning_rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}.")
        if not self.beta >= 0:
            raise ValueError(f"beta must not be negative, got {self.beta}.")


@dataclass(frozen=True)
class Epoch:
    """One line of the history."""

    epoch: int  # from 1
    objective: float  # mean minibatch estimate, per datum; rises
    learning_rate: float  # at its start
    seconds: float  # since the start of `fit`
    validation: dict[str, float] = field(default_factory=dict)


Position = dict[str, Any]  # where a training stands, in what `torch.load(weights_only=True)` reads


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
    data: Rows,
    config: Config,
    *,
    generator: torch.Generator,
    group: Group = ALONE,
    solve: Callable[[ParametricGP], list[nn.Parameter]] | None = None,
    validate: Callable[[ParametricGP], dict[str, float]] | None = None,
    on_epoch: Callable[[Epoch], object] | None = None,
    on_step: Callable[["Standing"], object] | None = None,
    position: Position | None = None,
) -> list[Epoch]:
    """Maximise the objective over all of the model's parameters, in place, and return the history.

    `solve(model)` is called before the first epoch and after each. It may set some parameters to their optimum given
    the others, and returns which, so that the optimizer forgets their past.
    `validate(model)` is called after each epoch and its metrics go into the history; `on_epoch(record)` may show
    progress, and ends the training by returning True. Where a `group` of processes trains together, `data` gives each
    its part of every batch.
    `on_step(standing)` is called before the first step of an epoch and after each. A training that begins with the
    model and the `position()` of another's standing goes on as that one did, to the bit.

    >>> from paragp.gp.methods import METHODS
    >>> x = torch.linspace(-1, 1, 50)[:, None]
    >>> method = METHODS["ppgpr-mfd"]
    >>> model = method.model("matern52", Z=x[::10])
    >>> history = fit(model, method.objective, Data(x, x[:, 0].sin()), Config(epochs=3, batch_size=25, beta=0.05),
    ...               generator=torch.Generator().manual_seed(0))
    >>> history[-1].objective > history[0].objective
    True
    """
    if isinstance(data, Data):
        checked(data)  # a stream checks what it reads
    num_data, sizes = data.total, [stop - start for start, stop in pairwise(bounds(data.size, config.batch_size))]
    total_steps = config.epochs * len(sizes)
    history: list[Epoch] = []
    start = time.perf_counter()

    model.train()
    with _Guard(model, history) as guard:
        solved = _by_name(model, position["solved"]) if position else [] if solve is None else solve(model)
        at = Standing(model, solved, config, total_steps, generator, history, guard, group)
        if position is not None:
            at.restore(position)
        while len(history) < config.epochs:
            if on_step is not None and not at.step:
                on_step(at)
            batches = zip(data.batches(config.batch_size, generator), sizes, strict=True)
            for batch, rows in islice(batches, at.step, None):  # a random mini-batch D_mb
                if batch.weights is not None:  # mean one, as `estimate` expects
                    batch = batch._replace(weights=batch.weights * (data.size / num_data))
                at.optimizer.zero_grad()
                value = backward(model, objective, batch, num_data=num_data, beta=config.beta, rows=rows)  # L^(D_mb)
                value = _added(model, value, group)
                guard.check(value)
                at.optimizer.step()  # m, S, Z, theta_ker <- optim(L^(D_mb))
                model.confine()
                at.schedule.step()
                at.count(value * rows)
                if on_step is not None:
                    on_step(at)
            for parameter in [] if solve is None else solve(model):
                at.optimizer.state.pop(parameter, None)
            record = Epoch(
                epoch=len(history) + 1,
                objective=at.total / data.size,
                learning_rate=at.rate,
                seconds=time.perf_counter() - start,
                validation={} if validate is None else validate(model),
            )
            history.append(record)
            at.begin_epoch()
            if on_epoch is not None and on_epoch(record) is True:
                break
        guard.check_state()
    return history


class Standing:
    """Where a training stands beside its model: all that the steps to come depend on."""

    def __init__(
        self,
        model: ParametricGP,
        solved: list[nn.Parameter],
        config: Config,
        total_steps: int,
        generator: torch.Generator,
        history: list[Epoch],
        guard: "_Guard",
        group: Group,
    ) -> None:
        self.guard, self.group = guard, group
        self.optimizer = torch.optim.Adam(_groups(model, solved, config), betas=(0.9, config.memory), fused=True)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: config.schedule(step / total_steps)
        )
        self.solved, self.generator, self.history = _names(model, solved), generator, history
        self.draws = bool(model.networks)  # modules may draw from torch's own generator
        self.begin_epoch()

    def begin_epoch(self) -> None:
        self.step, self.total, self.rate = 0, 0.0, float(self.schedule.get_last_lr()[0])
        self.drawn_from = self.generator.get_state()  # what the epoch's order of rows is drawn from

    def count(self, value: float) -> None:
        self.step, self.total = self.step + 1, self.total + value

    def position(self) -> Position:
        """Where it stands between two steps; all processes of the group ask together."""
        return {
            "step": self.step, "total": self.total, "rate": self.rate, "solved": self.solved,
            "optimizer": self.optimizer.state_dict(), "schedule": self.schedule.state_dict(),
            "generator": self.drawn_from, "good": self.guard.good, "steps": self.guard.step,
            "random": self.group.gather(torch.random.get_rng_state()) if self.draws else None,
            "history": [asdict(record) for record in self.history],
        }  # fmt: skip

    def restore(self, position: Position) -> None:
        """Stand where another training stood."""
        self.optimizer.load_state_dict(position["optimizer"])
        self.schedule.load_state_dict(position["schedule"])
        self.generator.set_state(position["generator"])
        if self.draws:
            torch.random.set_rng_state(position["random"][self.group.rank])
        self.guard.good, self.guard.step = position["good"], position["steps"]
        self.history[:] = [Epoch(**record) for record in position["history"]]
        self.begin_epoch()
        self.step, self.total, self.rate = position["step"], position["total"], position["rate"]


def _names(model: nn.Module, parameters: list[nn.Parameter]) -> list[str]:
    known = {id(parameter) for parameter in parameters}
    return [name for name, parameter in model.named_parameters() if id(parameter) in known]


def _by_name(model: nn.Module, names: list[str]) -> list[nn.Parameter]:
    return [parameter for name, parameter in model.named_parameters() if name in names]


def _added(model: nn.Module, value: float, group: Group) -> float:
    """The processes' parts of gradient and estimate, added up."""
    if group.count == 1:
        return value
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    whole = torch.tensor([value]).to(parameters[0])
    group.add([*(parameter.grad for parameter in parameters if parameter.grad is not None), whole])
    return float(whole)


def _groups(model: nn.Module, solved: list[nn.Parameter], config: Config) -> list[dict[str, Any]]:
    """Adam's groups. Parameters that are solved for need only follow the others until the next solve."""
    known = {id(parameter) for parameter in solved}

    def share(name: str, parameter: nn.Parameter) -> float:
        if id(parameter) in known:
            return SOLVED_RATE
        return next((rate for start, rate in config.rates.items() if name.startswith(start)), 1.0)

    shares = [(share(name, parameter), parameter) for name, parameter in model.named_parameters()]
    return [
        {"params": [parameter for found, parameter in shares if found == rate], "lr": config.learning_rate * rate}
        for rate in sorted({rate for rate, _ in shares}, reverse=True)
    ]


class _Guard:
    """Keeps the last state whose loss and gradients were finite, and goes back to it when training diverges."""

    def __init__(self, model: nn.Module, history: list[Epoch]) -> None:
        self.model, self.history = model, history
        self.live = list(model.state_dict().values())  # views of the parameters, not copies
        self.good = [tensor.clone() for tensor in self.live]
        self.step = 1

    def check(self, value: float) -> None:
        """Call between backward and the optimizer's step."""
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        if not (math.isfinite(value) and bool(torch.isfinite(nn.utils.get_total_norm(gradients, math.inf)))):
            raise FloatingPointError(f"the objective was {value}")
        for kept, tensor in zip(self.good, self.live, strict=True):
            kept.copy_(tensor)
        self.step += 1

    def check_state(self) -> None:
        """Call after the last step, which no further loss would show to have been bad."""
        if not all(bool(torch.isfinite(parameter).all()) for parameter in self.model.parameters()):
            raise FloatingPointError("the last step left a parameter that is not finite")

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
