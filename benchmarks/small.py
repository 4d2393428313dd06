"""The default on twenty small tables, public and made, beside SVGP, PPGPR-MFD and the constant normal.

    PARAGP_DATA=... python benchmarks/small.py --splits 0,1,2,3,4,5,6,7,8,9 --json

A split keeps 85 % of the rows for `fit`, which holds out its own validation rows, and scores the rest: in units of the
target's deviation among the rows to fit, deviations floored at .01. No setting is touched. Made tables have a known
truth. Methods are compared split by split: the mean of the differences in NLL, and its standard error. The default must
not be worse than the better of SVGP and PPGPR-MFD by more than .05, nor than the constant normal by more than .02, each
plus two standard errors. Runs are kept in results/small/, one file for each table and method, and not repeated.
"""

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import machine
import numpy as np
from sklearn.datasets import load_diabetes

from paragp import ParametricGPRegressor
from paragp.atomic import writing
from paragp.data.datasets import FLOOR, Table, load
from paragp.metrics import floored_scores
from paragp.predictive import PredictiveDistribution

FOLDER = Path(__file__).parent / "results" / "small"
PUBLIC = ("concrete", "energy", "airfoil", "wine", "yacht", "housing", "autompg", "sml", "solar")
NOISE_ROWS = 3000  # of tamielectric, whose target nothing predicts
SHARE = 0.85  # of the rows, to fit
DEFAULT, OTHERS, CONSTANT = "auto", ("svgp", "ppgpr-mfd"), "constant"
ALLOWED = {"others": 0.05, CONSTANT: 0.02}


# --- tables ---


def _wave(x: np.ndarray) -> np.ndarray:
    return np.sin(2 * x[:, 0]) + 0.5 * x[:, 1] * x[:, 2]


def _made(n: int, d: int, target: Callable[[np.ndarray, np.random.Generator], np.ndarray]) -> Table:
    rng = np.random.default_rng(n + d)
    x = rng.normal(size=(n, d))
    return Table(x, target(x, rng))


MADE: dict[str, Callable[[], Table]] = {
    "made-heteroscedastic": lambda: _made(
        1500, 5, lambda x, rng: _wave(x) + (0.05 + 0.5 / (1 + np.exp(-3 * x[:, 3]))) * rng.normal(size=len(x))
    ),
    "made-homoscedastic": lambda: _made(800, 4, lambda x, rng: _wave(x) + 0.3 * rng.normal(size=len(x))),
    "made-heavy-tailed": lambda: _made(1000, 4, lambda x, rng: _wave(x) + 0.2 * rng.standard_t(2.5, size=len(x))),
    "made-skewed": lambda: _made(1000, 4, lambda x, rng: _wave(x) + 0.3 * rng.exponential(size=len(x))),
    "made-bimodal": lambda: _made(
        1200, 3, lambda x, rng: _wave(x) + rng.choice([-1.0, 1.0], len(x)) + 0.1 * rng.normal(size=len(x))
    ),
    "made-noise-free": lambda: _made(600, 3, lambda x, rng: _wave(x)),
    "made-pure-noise": lambda: _made(1000, 6, lambda x, rng: rng.normal(size=len(x))),
    "made-linear-wide": lambda: _made(
        400, 40, lambda x, rng: x @ np.linspace(1, 0, 40) + 0.5 * rng.normal(size=len(x))
    ),
    "made-steps": lambda: _made(
        1500, 4, lambda x, rng: np.floor(2 * x[:, 0]) + np.sign(x[:, 1]) + 0.1 * rng.normal(size=len(x))
    ),
}


def tables() -> dict[str, Callable[[], Table]]:
    noise = load("tamielectric")
    return {
        **{name: lambda name=name: load(name) for name in PUBLIC},
        "diabetes": lambda: Table(*load_diabetes(return_X_y=True)),
        "tamielectric": lambda: Table(noise.x[:NOISE_ROWS], noise.y[:NOISE_ROWS]),
        **MADE,
    }


# --- runs ---


def run(table: Table, method: str, k: int) -> dict:
    order = np.random.default_rng(k).permutation(len(table.y))
    rows, test = np.split(order, [int(SHARE * len(order))])
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # constant and repeated columns are what some of these tables have
        dist = predicted(table, method, rows, test)
    seconds = time.perf_counter() - start
    scale = table.y[rows].std()
    found = floored_scores(dist.rescaled(0.0, 1 / scale), table.y[test] / scale, FLOOR)
    return {name: found[name] for name in ("nll", "rmse", "crps", "coverage_90")} | {"seconds": seconds}


def predicted(table: Table, method: str, rows: np.ndarray, test: np.ndarray) -> PredictiveDistribution:
    y = table.y[rows]
    if method == CONSTANT:
        return PredictiveDistribution(np.full(len(test), y.mean()), 0.0, y.var())
    return ParametricGPRegressor(method, random_state=0).fit(table.x[rows], y).predict_dist(table.x[test])


def kept(folder: Path, name: str, method: str) -> dict[str, dict]:
    file = folder / f"{name}-{method}.json"
    return json.loads(file.read_text(encoding="utf-8"))["splits"] if file.exists() else {}


def store(folder: Path, name: str, method: str, splits: dict[str, dict]) -> None:
    with writing(folder / f"{name}-{method}.json") as part:
        content = {"table": name, "method": method, "machine": machine.describe(), "splits": splits}
        part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


# --- comparison ---


def difference(one: dict[str, dict], other: dict[str, dict]) -> tuple[float, float]:
    """The mean over splits of how much more NLL one has, and its standard error."""
    gaps = [one[k]["nll"] - other[k]["nll"] for k in one if k in other]
    return statistics.mean(gaps), statistics.stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else 0.0


def verdict(folder: Path, name: str) -> dict | None:
    """How the default compares on a table, if the same splits of all methods are there."""
    found = {method: kept(folder, name, method) for method in (DEFAULT, *OTHERS, CONSTANT)}
    both = set.intersection(*(set(splits) for splits in found.values()))
    if not both:
        return None
    found = {method: {k: splits[k] for k in sorted(both)} for method, splits in found.items()}
    means = {method: {key: statistics.mean(row[key] for row in splits.values()) for key in ("nll", "rmse", "crps")}
             for method, splits in found.items()}  # fmt: skip
    better = min(OTHERS, key=lambda method: means[method]["nll"])
    gaps = {"others": difference(found[DEFAULT], found[better]), CONSTANT: difference(found[DEFAULT], found[CONSTANT])}
    passed = all(gap <= ALLOWED[side] + 2 * error for side, (gap, error) in gaps.items())
    return {"table": name, "splits": len(both), "means": means, "better": better, "gaps": gaps, "passed": passed}


def line(row: dict) -> str:
    scores = "   ".join(f"{method} {row['means'][method]['nll']:7.3f}" for method in (DEFAULT, *OTHERS, CONSTANT))
    (gap, error), (above, constant_error) = row["gaps"]["others"], row["gaps"][CONSTANT]
    return (
        f"{row['table']:<22} {row['splits']:2d} splits   {scores}   beside {row['better']} {gap:+.3f} ± {error:.3f}"
        f", the constant {above:+.3f} ± {constant_error:.3f}{'' if row['passed'] else '   WORSE'}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", help="comma-separated; all twenty if left out")
    parser.add_argument("--methods", default=",".join((DEFAULT, *OTHERS, CONSTANT)))
    parser.add_argument("--splits", default="0,1,2,3,4,5,6,7,8,9")
    parser.add_argument("--folder", default=str(FOLDER), help="where the runs are kept")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    known, folder = tables(), Path(options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    names = options.tables.split(",") if options.tables else list(known)
    for k in options.splits.split(","):
        for name in names:
            for method in options.methods.split(","):
                splits = kept(folder, name, method)
                if k not in splits:
                    store(folder, name, method, splits | {k: run(known[name](), method, int(k))})
    rows = [row for name in names if (row := verdict(folder, name))]
    for row in rows:
        print(line(row))
    print(f"{sum(row['passed'] for row in rows)} of {len(rows)} passed")
    if options.json:
        print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
