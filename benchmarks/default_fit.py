"""What a user gets who touches no setting: ten thousand rows of Friedman's function with noise that grows.

    python benchmarks/default_fit.py --json
    python benchmarks/default_fit.py --method ppgpr-mfd --json                    # PPGPR-MFD with our training
    python benchmarks/default_fit.py --method ppgpr-mfd --recipe adam --json      # and with the paper's 400 epochs

A seeded table of 20 inputs, 14 of which say nothing; scores are on fresh rows, in units of the target's deviation,
beside those of the distribution that made them.
"""

import argparse
import json
import time

import machine
import numpy as np

from paragp import ParametricGPRegressor
from paragp.metrics import crps, nll, rmse
from paragp.predictive import PredictiveDistribution


def friedman(n: int, d: int, seed: int) -> tuple[np.ndarray, np.ndarray, PredictiveDistribution]:
    """Inputs, target, and the distribution that the target was drawn from."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(size=(n, d))
    mean = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    std = 0.2 + 2 * x[:, 5] ** 2
    return x, mean + std * rng.normal(size=n), PredictiveDistribution(mean, np.zeros(n), std**2)


def scores(dist: PredictiveDistribution, y: np.ndarray, scale: float) -> dict[str, float]:
    dist = dist.rescaled(0.0, 1 / scale)
    return {metric.__name__: metric(dist, y / scale) for metric in (nll, rmse, crps)}


def run(options: argparse.Namespace) -> dict:
    x, y, truth = friedman(options.rows + 10_000, 20, options.seed)
    n, scale = options.rows, y[: options.rows].std()
    start = time.perf_counter()
    model = ParametricGPRegressor(options.method, recipe=options.recipe, random_state=options.seed).fit(x[:n], y[:n])
    seconds = time.perf_counter() - start
    fresh = PredictiveDistribution(truth.mean[n:], truth.function_var[n:], truth.noise_var[n:])
    return {
        "method": model.fitted_.method, "recipe": options.recipe, "rows": n, "seconds": seconds,
        "epochs": model.n_iter_, "beta": model.beta_,
        **scores(model.predict_dist(x[n:]), y[n:], scale), "truth": scores(fresh, y[n:], scale),
        "machine": machine.describe(),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--method", default="auto")
    parser.add_argument("--recipe", default="auto", choices=["auto", "adam"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    row = run(options)
    print(f"NLL {row['nll']:.3f} RMSE {row['rmse']:.4f} CRPS {row['crps']:.4f}, truth {row['truth']['nll']:.3f}, "
          f"{row['seconds']:.1f} s, {row['epochs']} epochs")  # fmt: skip
    if options.json:
        print(json.dumps(row))


if __name__ == "__main__":
    main()
