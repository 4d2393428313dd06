"""The paper's first figure (Fig univariate): every method on one heteroscedastic curve.

`run` fits the nine methods of the registry and the two full-batch baselines to the same rows; `table` scores
them on fresh rows beside the truth; `picture` draws SVGP against PPGPR.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from paragp.atomic import writing
from paragp.data.rows import Data
from paragp.gp.exact import ExactGP, fit_exact, fit_fitc
from paragp.gp.methods import PAPER, Method
from paragp.gp.model import ParametricGP
from paragp.metrics import METRICS
from paragp.paper.colours import colour, tint
from paragp.predictive import Array, PredictiveDistribution
from paragp.training.inducing import starting_points
from paragp.training.loop import Config, fit

N_TRAIN, N_TEST, M = 500, 2000, 20
EPOCHS = 700
BASELINE_ITERATIONS = 100
COLUMNS = ("nll", "rmse", "crps", "noise_fraction")
LOW, HIGH = -2.0, 2.0
DRAWN = ("svgp", "ppgpr-mfd")


def true_mean(x: Array) -> Array:
    return np.sin(3 * x) + 0.3 * np.sin(9 * x)


def true_std(x: Array) -> Array:
    """Quiet on the left, loud on the right."""
    return 0.05 + 0.6 / (1 + np.exp(-4 * x))


@dataclass(frozen=True)
class Toy:
    """Training and test rows of the curve; targets standardised with the training rows' statistics."""

    train: Data
    test: Data
    shift: float
    scale: float

    def truth(self, x: torch.Tensor) -> PredictiveDistribution:
        """The distribution the rows were drawn from, in the same units."""
        curve = x[:, 0].numpy()
        mean = (true_mean(curve) - self.shift) / self.scale
        return PredictiveDistribution(mean, np.zeros_like(curve), (true_std(curve) / self.scale) ** 2)


def make_toy(seed: int = 0) -> Toy:
    rng = np.random.default_rng(seed)
    x = rng.uniform(LOW, HIGH, N_TRAIN + N_TEST)
    y = true_mean(x) + true_std(x) * rng.standard_normal(len(x))
    shift, scale = y[:N_TRAIN].mean(), y[:N_TRAIN].std()
    rows = Data(torch.from_numpy(x)[:, None], torch.from_numpy((y - shift) / scale))
    return Toy(rows.take(slice(N_TRAIN)), rows.take(slice(N_TRAIN, None)), float(shift), float(scale))


@dataclass(frozen=True)
class Fitted:
    label: str
    model: ParametricGP | ExactGP
    seconds: float


def run(toy: Toy, *, seed: int = 0, epochs: int = EPOCHS, show_progress: bool | None = None) -> dict[str, Fitted]:
    """Fit every method. `show_progress` None means: on a terminal."""
    Z, Z_variance = starting_points(toy.train.x, M, M, generator=_generator(seed))
    total = epochs * len(PAPER) + 2 * BASELINE_ITERATIONS
    fits: dict[str, Fitted] = {}
    with tqdm(total=total, disable=None if show_progress is None else not show_progress, unit="epoch") as bar:

        def tick(*_: object) -> None:
            bar.update()

        for job in _jobs(toy, Z, Z_variance, seed, epochs):
            bar.set_description(f"{job.label:<11}")
            before, start = bar.n, time.perf_counter()
            fits[job.name] = Fitted(job.label, job.train(tick), time.perf_counter() - start)
            bar.update(before + job.work - bar.n)  # L-BFGS may end early
    return fits


class Job(NamedTuple):
    name: str
    label: str
    work: int  # calls of the progress callback it is expected to make
    train: Callable[[Callable[..., None]], Any]  # progress callback -> fitted model


def _jobs(toy: Toy, Z: torch.Tensor, Z_variance: torch.Tensor, seed: int, epochs: int) -> Iterator[Job]:
    X, y, _ = toy.train

    def scalable(method: Method, tick: Callable[..., None]) -> ParametricGP:
        model = method.model("matern52", Z, Z_variance if method.two_sets else None)
        config = Config(epochs=epochs, batch_size=N_TRAIN // 2, beta=method.beta[0])
        fit(model, method.objective_for(), toy.train, config, generator=_generator(seed), on_epoch=tick)
        return model

    def fitc(tick: Callable[..., None]) -> ParametricGP:
        return fit_fitc("matern52", X, y, Z, iterations=BASELINE_ITERATIONS, progress=tick)

    def exact(tick: Callable[..., None]) -> ExactGP:
        generator = _generator(seed)
        return fit_exact("matern52", X, y, generator=generator, iterations=BASELINE_ITERATIONS, progress=tick)

    for name, method in PAPER.items():
        yield Job(name, method.label, epochs, partial(scalable, method))
    yield Job("fitc", "FITC", BASELINE_ITERATIONS, fitc)
    yield Job("exact", "Exact", BASELINE_ITERATIONS, exact)


def table(toy: Toy, fits: dict[str, Fitted]) -> list[dict[str, Any]]:
    """One row per method, scored on the test rows in standardised units; last the truth itself."""
    rows: list[dict[str, Any]] = []
    for fitted in fits.values():
        dist = fitted.model.predict(toy.test.x)
        row = _scores(fitted.label, dist, toy)
        row["sigma_obs"] = float(fitted.model.noise.detach()) ** 0.5
        row["sigma_k"] = fitted.model.kernel_scale
        row["seconds"] = fitted.seconds
        rows.append(row)
    return [*rows, _scores("the truth", toy.truth(toy.test.x), toy)]


def _scores(label: str, dist: PredictiveDistribution, toy: Toy) -> dict[str, Any]:
    return {"method": label} | {name: METRICS[name](dist, toy.test.y.numpy()) for name in COLUMNS}


FORMATS = {  # column: heading, format
    "method": ("method", "{}"), "nll": ("NLL", "{:.3f}"), "rmse": ("RMSE", "{:.3f}"), "crps": ("CRPS", "{:.3f}"),
    "noise_fraction": ("noise fraction", "{:.3f}"), "sigma_obs": ("sigma_obs", "{:.3f}"),
    "sigma_k": ("sigma_k", "{:.3f}"), "seconds": ("seconds", "{:.1f}"),
}  # fmt: skip


def format_table(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table that also reads well on a terminal."""
    cells = [[heading for heading, _ in FORMATS.values()]]
    cells += [[form.format(row[key]) if key in row else "" for key, (_, form) in FORMATS.items()] for row in rows]
    widths = [max(len(text) for text in column) for column in zip(*cells, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = [
        [texts[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(texts[1:], widths[1:], strict=True))]
        for texts in (cells[0], rule, *cells[1:])
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def picture(toy: Toy, fits: dict[str, Fitted], path: Path) -> None:
    """Fig univariate as a file, in the format that the path's ending names."""
    with writing(path) as part:
        draw(toy, fits).savefig(part, dpi=150)


def draw(toy: Toy, fits: dict[str, Fitted]) -> Any:
    """Fig univariate: mean, two deviations of function uncertainty (dark) and of noise on top (light)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    grid = torch.linspace(LOW, HIGH, 400, dtype=toy.train.x.dtype)[:, None]
    x = grid[:, 0].numpy()
    figure = Figure(figsize=(8, 2.9 * len(DRAWN)), layout="constrained")
    FigureCanvasAgg(figure)
    for axis, name in zip(figure.subplots(len(DRAWN), sharex=True), DRAWN, strict=True):
        fitted = fits[name]
        dist = fitted.model.predict(grid)
        for std, color, label in (
            (dist.std, tint(colour(name), 0.3), "function and noise, 2σ"),
            (dist.function_std, tint(colour(name), 0.75), "function alone, 2σ"),
        ):
            axis.fill_between(x, dist.mean - 2 * std, dist.mean + 2 * std, color=color, linewidth=0, label=label)
        axis.plot(x, dist.mean, color="black", linewidth=1.5, label="mean")
        axis.plot(toy.train.x[:, 0], toy.train.y, ".", color="black", markersize=2.5, alpha=0.5, label="data")
        noise = float(fitted.model.noise.detach()) ** 0.5
        axis.set_title(
            rf"{fitted.label}:  $\sigma_{{\rm obs}}$ = {noise:.2f},  $\sigma_k$ = {fitted.model.kernel_scale:.2f}",
            loc="left",
            fontsize=11,
        )
        axis.set(xlim=(LOW, HIGH), ylim=(-3.2, 3.2), ylabel="y")
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(loc="lower left", frameon=False, fontsize=8, ncols=2)
    figure.axes[-1].set_xlabel("x")
    return figure


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
