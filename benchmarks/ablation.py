"""What each part of `two-stage` brings: the parts taken away, or put on, one at a time; test scores of split 0.

    PARAGP_DATA=... python benchmarks/ablation.py --datasets pol,bike --plot docs/ablation.png --json

The protocol is that of quality.py. Of the mean: fewer points, or one kernel in place of five to choose from. Of the
noise, with the mean as it is: one level for all rows; noise by the row, fitted to the residuals of rows that the mean
has seen, or to those left out; then Student's tails. The default's last parts are a mixture and a level by validation
rows. A set's rows are kept in results/ablation/ and not made again while they are there. Seconds of a mean are of all
of it, noise included; of a noise, of it alone.
"""

import argparse
import json
import math
import pathlib
import time
from dataclasses import replace

import machine
import torch
from quality import calibration

from paragp.atomic import writing
from paragp.data.datasets import load, split
from paragp.data.rows import Data
from paragp.gp.kernels import evened
from paragp.gp.methods import METHODS
from paragp.gp.model import ParametricGP
from paragp.paper.protocol import SMALLER
from paragp.paper.uci import scores, tensors
from paragp.predictive import PredictiveDistribution
from paragp.training.best import Best, Trial
from paragp.training.distributed import ALONE
from paragp.training.noise import SHAPE_UNKNOWNS, Head
from paragp.training.recipe import Settings
from paragp.training.ridge import NOISE_ROWS, Ridge
from paragp.training.stages import Validation, fit_noise, some
from paragp.training.start import new_model

FOLDER = pathlib.Path(__file__).parent / "results" / "ablation"
DEFAULT = Settings(METHODS["two-stage"])
WHOLE = "the default's mean"
MEANS = {
    "1000 points": replace(DEFAULT, n_inducing_variance=1000),
    "Matérn 5/2 alone": replace(DEFAULT, kernel="matern52"),
    WHOLE: DEFAULT,
}


class Solved:
    """A mean, and its values and residuals wherever they are needed."""

    def __init__(self, settings: Settings, train: Data, valid: Data, test: Data) -> None:
        start = time.perf_counter()
        self.model: ParametricGP = new_model(settings, train, torch.Generator().manual_seed(0))
        self.train, self.valid, self.test = some(train, NOISE_ROWS), valid, test
        with torch.no_grad():
            self._solve(train, settings)
        self.seconds = time.perf_counter() - start

    def _solve(self, train: Data, settings: Settings) -> None:
        valid, test = self.valid, self.test
        ridge = Ridge(self.model, train, float(self.model.noise), ALONE, keep=True)
        self.mean, self.at_valid = ridge.choose(settings.ridges, valid)
        self.left_out = ridge.left_out(self.mean, self.train)
        self.at_test, self.seen = ridge.mean(self.mean, test.x), self.train.y - ridge.mean(self.mean, self.train.x)


def of(dist: PredictiveDistribution, test: Data, seconds: float) -> dict:
    y = test.y.double().numpy()
    return {**scores(dist, y), **calibration(dist, y), "seconds": seconds}


def constant(solved: Solved) -> dict:
    """One level of normal noise for all rows."""
    level = float(solved.left_out.double().square().mean())
    return of(PredictiveDistribution(solved.at_test.numpy(), 0.0, level), solved.test, 0.0)


@torch.no_grad()
def by_row(solved: Solved, residuals: torch.Tensor, *, tails: bool = False, shape: bool = False) -> dict:
    """Noise by the row, as `solve_in_stages` fits it, up to one of its parts."""
    start, best = time.perf_counter(), Best(solved.model, solved.valid, 10, None, ALONE)
    best.begin(Trial(solved.mean.beta))
    check, chosen, least = Validation(best, solved.valid, solved.at_valid, ALONE), None, math.inf
    for kernel in (solved.model.kernel, evened(solved.model.kernel, solved.train.x.shape[1])):
        head = Head(solved.model, kernel, solved.train, residuals, solved.valid.x)
        nll = fit_noise(head, check, tails=tails)
        if nll < least:
            chosen, least = head, nll
    assert chosen is not None
    if shape:
        check.attempt(chosen, lambda: chosen.fit(chosen.penalty, tails=True, mixture=True))
        check.attempt(chosen, lambda: check.level(chosen), fitted=1)
        check.attempt(chosen, lambda: check.shape(chosen), fitted=SHAPE_UNKNOWNS)
    chosen.write()
    seconds = time.perf_counter() - start
    chosen.held_out = chosen.inputs(solved.test.x)
    return of(chosen.predict(solved.at_test), solved.test, seconds)


def ablation(name: str) -> dict[str, dict]:
    train, test, valid = (tensors(part) for part in split(load(name), 0))
    found = {}
    for label, settings in MEANS.items():
        solved = Solved(settings, train, valid, test)
        whole = by_row(solved, solved.left_out, tails=True, shape=True)
        found[label] = whole | {"seconds": solved.seconds + whole["seconds"], "points": len(solved.model.family.Z)}
    found["one level of noise"] = constant(solved)
    found["by the row, rows that were seen"] = by_row(solved, solved.seen)
    found["by the row, rows left out"] = by_row(solved, solved.left_out)
    found["Student's tails"] = by_row(solved, solved.left_out, tails=True)
    return found


def draw(results: dict[str, dict[str, dict]], file: str) -> None:
    """How far each row is from the default's, a panel per score and a colour per set."""
    from matplotlib import pyplot as plt

    labels = [label for label in next(iter(results.values())) if label != WHOLE]
    figure, axes = plt.subplots(1, 3, figsize=(10, 3), sharey=True, constrained_layout=True)
    for axis, metric in zip(axes, ("nll", "rmse", "crps"), strict=True):
        for i, (name, rows) in enumerate(results.items()):
            whole = rows[WHOLE][metric]
            far = [
                rows[label][metric] - whole if metric == "nll" else 100 * (rows[label][metric] / whole - 1)
                for label in labels
            ]
            height = [place + 0.1 * (i - (len(results) - 1) / 2) for place in range(len(labels))]
            axis.plot(far, height, "o", markersize=4, label=name)
        axis.axvline(0, color="black", linewidth=0.8)
        axis.set(yticks=range(len(labels)), yticklabels=labels)
        if metric != "nll":
            axis.set_xscale("symlog", linthresh=3)
            axis.set_xticks([-10, 0, 10, 100], ["-10", "0", "10", "100"])
            axis.set_xlim(-30, 1500)
        axis.set_xlabel(f"{metric.upper()}, {'nats' if metric == 'nll' else '%'} above the default's", fontsize=9)
        axis.grid(axis="x", alpha=0.3)
    axes[0].invert_yaxis()
    axes[0].legend(fontsize=7)
    figure.savefig(file, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", default=",".join(SMALLER))
    parser.add_argument("--folder", default=str(FOLDER), help="where the rows are kept")
    parser.add_argument("--plot", help="a picture of what the parts bring")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    results = {}
    for name in options.datasets.split(","):
        file = pathlib.Path(options.folder) / f"{name}.json"
        if not file.exists():
            content = {"dataset": name, "rows": ablation(name), "machine": machine.describe()}
            with writing(file) as part:
                part.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        results[name] = json.loads(file.read_text(encoding="utf-8"))["rows"]
        for label, row in results[name].items():
            shown = "   ".join(f"{key.upper()} {row[key]:8.4f}" for key in ("nll", "rmse", "crps"))
            print(f"{name:<13} {label:<32} {shown}   {row['seconds']:6.1f} s", flush=True)
    if options.plot:
        draw(results, options.plot)
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
