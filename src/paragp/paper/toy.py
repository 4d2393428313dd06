"""The paper's first figure (Fig univariate): every method on one heteroscedastic curve.

`run` fits the nine methods of the registry and the two full-batch baselines to the same rows; `table` scores
them on fresh rows beside the truth; `picture` draws SVGP against PPGPR.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from paragp.atomic import writing
from paragp.gp.exact import ExactGP, fit_exact, fit_fitc
from paragp.gp.methods import METHODS
from paragp.gp.model import ParametricGP
from paragp.metrics import METRICS
from paragp.predictive import Array, PredictiveDistribution
from paragp.training.inducing import kmeans
from paragp.training.loop import Config, Data, fit

N_TRAIN, N_TEST, M = 500, 2000, 20
EPOCHS = 700
BASELINE_ITERATIONS = 100
COLUMNS = ("nll", "rmse", "crps", "noise_fraction")
LOW, HIGH = -2.0, 2.0


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
    Z = kmeans(toy.train.x, M, generator=_generator(seed))
    total = epochs * len(METHODS) + 2 * BASELINE_ITERATIONS
    fits: dict[str, Fitted] = {}
    with tqdm(total=total, disable=None if show_progress is None else not show_progress, unit="epoch") as bar:
        for name, label, work, train in _jobs(toy, Z, seed, epochs):
            bar.set_description(f"{label:<11}")
            before, start = bar.n, time.perf_counter()
            fits[name] = Fitted(label, train(lambda *_: bar.update() and None), time.perf_counter() - start)
            bar.update(before + work - bar.n)
    return fits


Job = tuple[str, str, int, Callable[[Callable[..., None]], Any]]


def _jobs(toy: Toy, Z: torch.Tensor, seed: int, epochs: int) -> Iterator[Job]:
    """(name, label, units of work, function of a progress callback that gives the fitted model)."""
    X, y, _ = toy.train
    for name, method in METHODS.items():

        def train(tick: Callable[..., None], method: Any = method) -> ParametricGP:
            model = method.model("matern52", Z)
            config = Config(epochs=epochs, batch_size=N_TRAIN // 2, beta=method.beta[0])
            fit(model, method.objective_for(), toy.train, config, generator=_generator(seed), on_epoch=tick)
            return model

        yield name, method.label, epochs, train
    work = BASELINE_ITERATIONS
    yield "fitc", "FITC", work, lambda tick: fit_fitc("matern52", X, y, Z, iterations=work, progress=tick)
    yield (
        "exact",
        "Exact",
        work,
        lambda tick: fit_exact("matern52", X, y, generator=_generator(seed), iterations=work, progress=tick),
    )


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


def format_table(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table that also reads well on a terminal."""
    headings = {
        "method": "method", "nll": "NLL", "rmse": "RMSE", "crps": "CRPS", "noise_fraction": "noise fraction",
        "sigma_obs": "sigma_obs", "sigma_k": "sigma_k", "seconds": "seconds",
    }  # fmt: skip
    cells = [list(headings.values())]
    for row in rows:
        values = (row.get(key, "") for key in headings)
        cells.append(
            [v if isinstance(v, str) else f"{v:.1f}" if v is row.get("seconds") else f"{v:.3f}" for v in values]
        )
    widths = [max(len(line[i]) for line in cells) for i in range(len(headings))]

    def line(texts: list[str]) -> str:
        first, *rest = (
            f"{t:<{w}}" if i == 0 else f"{t:>{w}}" for i, (t, w) in enumerate(zip(texts, widths, strict=True))
        )
        return "| " + " | ".join([first, *rest]) + " |"

    rule = "|" + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths)) + "|"
    return "\n".join([line(cells[0]), rule, *(line(c) for c in cells[1:])])


def picture(toy: Toy, fits: dict[str, Fitted], path: Path, names: tuple[str, ...] = ("svgp", "ppgpr-mfd")) -> None:
    """Fig univariate: mean, two deviations of function uncertainty (dark) and of noise on top (light)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    grid = torch.linspace(LOW, HIGH, 400, dtype=toy.train.x.dtype)[:, None]
    x = grid[:, 0].numpy()
    figure = Figure(figsize=(8, 2.9 * len(names)), layout="constrained")
    FigureCanvasAgg(figure)
    for axis, name in zip(figure.subplots(len(names), sharex=True), names, strict=True):
        fitted = fits[name]
        dist = fitted.model.predict(grid)
        for std, color, label in (
            (dist.std, "#bcd9ee", "function and noise, 2σ"),
            (dist.function_std, "#3d7eb4", "function alone, 2σ"),
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
    figure.axes[0].legend(loc="lower left", frameon=False, fontsize=8, ncols=2)
    figure.axes[-1].set_xlabel("x")
    with writing(path) as part:
        figure.savefig(part, dpi=150)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
