"""The paper's figures from the runs that are done: vector and PNG, one colour per method everywhere.

univariate  Fig univariate: what each method predicts on a curve whose noise grows
scores      Figs of NLL, RMSE, CRPS and noise share: a panel per data set, a dot per method with its standard error
in_sample   Fig exact_gp_in_sample: exact GP, SVGP and PPGPR on draws from a periodic and a Matérn prior
robustness  the effect of beta_reg between 0 and 1
cost        seconds and memory of a training step against M and B
"""

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from gpytorch.kernels import Kernel

from paragp.atomic import writing
from paragp.data.rows import Data
from paragp.gp.exact import fit_exact
from paragp.gp.kernels import covariance, make_kernel
from paragp.gp.linalg import cholesky
from paragp.gp.methods import METHODS
from paragp.paper import toy
from paragp.paper.colours import colour, tint
from paragp.paper.protocol import BASELINES, read
from paragp.paper.reported import beside
from paragp.paper.tables import (
    ABLATION,
    COMPARED,
    LABELS,
    METRICS,
    ByBeta,
    Results,
    of_beta,
    results_of,
    said_splits,
    standard_error,
)
from paragp.training.recipe import RECIPES, Settings
from paragp.training.train import train

TITLES = {"nll": "NLL", "rmse": "RMSE", "crps": "CRPS", "noise_fraction": "noise share of the variance"}
PANELS = 3  # in a row


def figure(rows: int, columns: int, *, width: float = 3.1, height: float = 2.5) -> tuple[Any, Any]:
    """An empty figure and its axes (rows, columns), in a style for print."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(width * columns, height * rows), layout="constrained")
    FigureCanvasAgg(made)
    axes = made.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
    return made, axes


def save(made: Any, folder: Path, name: str) -> list[Path]:
    """As PNG and SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{name}.{suffix}" for suffix in ("png", "svg")]
    for file in files:
        with writing(file) as part:
            made.savefig(part, dpi=150, format=file.suffix[1:])
    return files


def univariate() -> Any:
    """Fig univariate."""
    curve = toy.make_toy()
    return toy.draw(curve, toy.run(curve))


def scores(results: Results, methods: Sequence[str], metric: str, profile: str) -> Any:
    """A dot per method with its standard error, in a panel per data set; hollow: what the paper printed."""
    datasets = [name for name in results.datasets if any(results.splits(name, [method]) for method in methods)]
    columns = min(PANELS, len(datasets))
    made, axes = figure(math.ceil(len(datasets) / columns), columns)
    for axis in axes.flat[len(datasets) :]:
        axis.set_visible(False)
    for axis, dataset in zip(axes.flat, datasets, strict=False):
        for i, method in enumerate(methods):
            values = results.scores(dataset, method, metric)
            if values:
                error = standard_error(values) or 0.0
                axis.errorbar(i, statistics.mean(values), error, fmt="o", color=colour(method), capsize=3, markersize=5)
            printed = beside(dataset, method, metric)
            if printed is not None:
                axis.plot(i, printed.mean, "o", markerfacecolor="none", color=colour(method), markersize=8)
        axis.set_title(dataset, loc="left", fontsize=10)
        axis.set_xticks(range(len(methods)), [LABELS[method] for method in methods], rotation=45, ha="right")
        axis.set_xlim(-0.5, len(methods) - 0.5)
        if metric == "noise_fraction":
            axis.set_ylim(-0.03, 1.03)
        axis.grid(axis="y", alpha=0.3)
    hollow = " (hollow: the paper's)" if metric in METRICS else ""  # of noise shares it prints no numbers
    made.supylabel(TITLES[metric] + hollow, fontsize=9)
    made.supxlabel(f"profile {profile}, {results.said_splits()}; bars are standard errors", fontsize=8, color="#555555")
    return made


def robustness(results: ByBeta, profile: str) -> Any:
    """Scores of PPGPR-MFD against beta_reg, each less its mean over the values; by data set."""
    made, axes = figure(1, len(METRICS))
    markers = "os^Dv<>pP*XhH"  # of data sets: colours are methods'
    for axis, metric in zip(axes.flat, METRICS, strict=True):
        for i, (dataset, by_beta) in enumerate(results.items()):
            betas = sorted(by_beta)
            means = [statistics.mean(by_beta[beta][metric]) for beta in betas]
            base = statistics.mean(means)
            relative = [100 * (mean / base - 1) if metric != "nll" else mean - base for mean in means]
            shade = tint(colour("ppgpr-mfd"), 1 - 0.7 * i / len(results))
            style = {"color": shade, "markersize": 4, "linewidth": 1, "label": dataset}
            axis.plot(range(len(betas)), relative, f"{markers[i % len(markers)]}-", **style)
            axis.set_xticks(range(len(betas)), [f"{beta:g}" for beta in betas])
        axis.set_xlabel("$\\beta_{\\rm reg}$", fontsize=9)
        axis.set_title(f"{TITLES[metric]}, {'nats' if metric == 'nll' else '%'} from the mean", loc="left", fontsize=9)
        axis.grid(axis="y", alpha=0.3)
    axes[0, 0].legend(frameon=False, fontsize=7)
    counts = [len(scores["nll"]) for by_beta in results.values() for scores in by_beta.values()]
    made.supxlabel(f"PPGPR-MFD, profile {profile}, {said_splits(counts)}", fontsize=8, color="#555555")
    return made


def cost(growth: list[dict[str, Any]]) -> Any:
    """Seconds and memory of a training step, from benchmarks/step.py --growth."""
    from matplotlib.ticker import LogLocator

    shown = [row for row in growth if row["variable"] in ("M", "B")]
    held = {"M": "B", "B": "M"}
    made, axes = figure(2, 2)
    for row in shown:
        j = ("M", "B").index(row["variable"])
        for axis, key in zip(axes[:, j], ("seconds", "extra_mb"), strict=True):
            style = {"color": colour(row["method"]), "label": LABELS[row["method"]], "markersize": 4, "linewidth": 1}
            axis.loglog(row["sizes"], row[key], "o-", **style)
    for j, variable in enumerate(("M", "B")):
        sizes = sorted({size for row in shown if row["variable"] == variable for size in row["sizes"]})
        for axis in axes[:, j]:
            axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter("{x:g}")
            axis.minorticks_off()
            axis.grid(alpha=0.3)
        fixed = {row.get("held", {}).get(held[variable]) for row in shown if row["variable"] == variable} - {None}
        axes[1, j].set_xlabel(variable + "".join(f", at {held[variable]} = {size:,}" for size in sorted(fixed)))
        for line in axes:
            line[j].set_ylim(min(a.get_ylim()[0] for a in line), max(a.get_ylim()[1] for a in line))
        axes[0, j].set_ylabel("seconds a step", fontsize=8)
        axes[1, j].set_ylabel("MB beyond the model", fontsize=8)
    axes[0, 0].legend(frameon=False, fontsize=7)
    return made


# --- in-sample comparison ---

ROWS, POINTS, EPOCHS, EXACT_STEPS = 200, 50, 1000, 100
NOISE = 0.05  # deviation of the noise on the draws
SHOWN = 0.6  # of the range, for the periodic draw: beyond, it is extrapolated
COMPARED_IN_SAMPLE = ("exact", "svgp", "ppgpr-mfd")
PRIORS = {"periodic": "periodic", "matern52": "Matérn 5/2"}


def priors() -> dict[str, Kernel]:
    """The kernels of the draws: lengthscale .1, or period .2, and outputscale 1."""
    found = {name: make_kernel(name, 1).double() for name in PRIORS}
    found["periodic"].base_kernel.period_length = 0.2
    found["matern52"].base_kernel.lengthscale = 0.1
    for kernel in found.values():
        kernel.outputscale = 1.0
    return found


def drawn(kernel: Kernel, generator: torch.Generator) -> Data:
    """Noisy rows of a function from a GP prior on [0, 1]."""
    x = torch.linspace(0, 1, ROWS, dtype=torch.float64)[:, None]
    with torch.no_grad():
        f = cholesky(covariance(kernel, x, x)) @ torch.randn(ROWS, generator=generator, dtype=torch.float64)
    return Data(x, f + NOISE * torch.randn(ROWS, generator=generator, dtype=torch.float64))


def fitted(kernel: str, rows: Data, *, epochs: int, seed: int) -> dict[str, Any]:
    """Models of these rows by name, each from default hyper-parameters on, as in the paper."""
    generator = torch.Generator().manual_seed(seed)
    models: dict[str, Any] = {"exact": fit_exact(kernel, rows.x, rows.y, generator=generator, iterations=EXACT_STEPS)}
    for method in COMPARED_IN_SAMPLE[1:]:
        settings = Settings(METHODS[method], kernel, n_inducing=POINTS, epochs=epochs, recipe=RECIPES["adam"])
        models[method] = train(settings, rows, generator=generator).model
    return models


def in_sample(*, seed: int = 0, epochs: int = EPOCHS) -> Any:
    """Fig exact_gp_in_sample: rows are priors, columns are models; two deviations of y shaded."""
    kernels = priors()
    made, axes = figure(len(kernels), len(COMPARED_IN_SAMPLE), height=2.2)
    for line, (name, kernel) in zip(axes, kernels.items(), strict=True):
        rows = drawn(kernel, torch.Generator().manual_seed(seed))
        seen = rows.take(slice(round(SHOWN * ROWS) if name == "periodic" else ROWS))
        models = fitted(name, seen, epochs=epochs, seed=seed)
        for axis, method in zip(line, COMPARED_IN_SAMPLE, strict=True):
            dist = models[method].predict(rows.x)
            x = rows.x[:, 0].numpy()
            low, high = dist.mean - 2 * dist.std, dist.mean + 2 * dist.std
            axis.fill_between(x, low, high, color=tint(colour(method), 0.3), linewidth=0, label="two deviations")
            axis.plot(x, dist.mean, color=colour(method), linewidth=1.2, label="mean")
            new = slice(seen.size, None)
            if seen.size < rows.size:
                axis.axvline(x[seen.size], color="#555555", linestyle=":", linewidth=1)
                axis.plot(x[new], rows.y[new], "x", color="#555555", markersize=2.5, label="not seen")
            axis.plot(seen.x[:, 0], seen.y, ".", color="#555555", markersize=2.5, label="seen")
            axis.set_title(f"{LABELS[method]}, {PRIORS[name]}", loc="left", fontsize=9)
            axis.set_xlabel("x", fontsize=8)
        line[0].set_ylabel("y", fontsize=8)
    made.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return made


# --- all of them ---


def figures(folder: Path, profile: str, growth: Path | None = None) -> list[Path]:
    """Every figure that the runs in a folder allow, under `figures/`."""
    results, place = results_of(folder, profile), folder / "figures"
    files: list[Path] = []
    for metric in TITLES:
        for name, methods in (("", (*COMPARED, *BASELINES)), ("ablation-", ABLATION)):
            if any(results.scores(dataset, method, metric) for dataset in results.datasets for method in methods):
                files += save(scores(results, methods, metric, profile), place, f"{name}{metric.replace('_', '-')}")
    files += save(univariate(), place, "univariate")
    files += save(in_sample(), place, "in-sample")
    by_beta = of_beta(read(folder))
    if by_beta:
        files += save(robustness(by_beta, profile), place, "robustness")
    if growth is not None:
        files += save(cost(json.loads(growth.read_text(encoding="utf-8"))["growth"]), place, "cost")
    return files
