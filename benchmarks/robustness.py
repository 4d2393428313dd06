"""The default fit on fifty random small tables of every kind: it must end, be finite, and find nothing in noise.

    python benchmarks/robustness.py --json

Seeded tables of 30 to 3000 rows and 1 to 60 inputs: smooth functions, heavy tails, repeated rows, constant inputs,
categorical codes, pure noise, targets without noise. Scores are on fresh rows of the same kind, beside the constant
normal's. On pure noise the NLL must stay within .05 of the constant normal's (.2 below 500 rows).
"""

import argparse
import json
import time
import warnings

import machine
import numpy as np

from paragp import ParametricGPRegressor
from paragp.metrics import nll
from paragp.predictive import PredictiveDistribution

KINDS = ("smooth", "heavy tails", "repeated rows", "constant inputs", "categorical codes", "pure noise", "no noise")
TEST = 1000
GAPS = (0.05, 0.2)  # allowed on pure noise, from 500 rows on and below


def table(seed: int) -> tuple[str, np.ndarray, np.ndarray, int]:
    """Kind, inputs and target of table `seed`, and how many of its rows are for training."""
    rng = np.random.default_rng(seed)
    kind = KINDS[seed % len(KINDS)]
    n, d = int(np.exp(rng.uniform(np.log(30), np.log(3000)))), int(rng.integers(1, 61))
    x = rng.normal(size=(n + TEST, d))
    if kind == "repeated rows":
        x = x[rng.integers(0, max(2, n // 5), size=len(x))]
    if kind == "constant inputs":
        x[:, rng.random(d) < 0.5] = 7.0
    if kind == "categorical codes":
        x = rng.integers(0, 5, size=x.shape).astype(float)
    y = np.sin(2 * x[:, 0]) + 0.5 * x[:, d // 2] * x[:, -1]
    noise = rng.standard_t(2, size=len(x)) if kind == "heavy tails" else rng.normal(size=len(x))
    if kind == "pure noise":
        y = noise
    elif kind != "no noise":
        y = y + 0.3 * (1 + np.abs(x[:, 0])) * noise
    return kind, x, y, n


def score(seed: int) -> dict:
    kind, x, y, n = table(seed)
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            model = ParametricGPRegressor(random_state=0).fit(x[:n], y[:n])
        except Exception as error:
            found = {"seed": seed, "kind": kind, "rows": n, "inputs": x.shape[1], "error": str(error), "passed": False}
            return found | {
                "nll": np.nan,
                "constant_nll": np.nan,
                "epochs": 0,
                "seconds": 0.0,
                "warnings": [str(error)],
            }
    seconds = time.perf_counter() - start
    dist = model.predict_dist(x[n:])
    constant = PredictiveDistribution(np.full(TEST, y[:n].mean()), 0.0, y[:n].var())
    found = {
        "seed": seed, "kind": kind, "rows": n, "inputs": x.shape[1], "seconds": seconds, "epochs": model.n_iter_,
        "nll": nll(dist, y[n:]), "constant_nll": nll(constant, y[n:]),
        "finite": bool(np.isfinite(dist.mean).all() and np.isfinite(dist.std).all()),
        "warnings": sorted({str(warning.message)[:80] for warning in said}),
    }  # fmt: skip
    gap = found["nll"] - found["constant_nll"]
    found["passed"] = found["finite"] and (kind != "pure noise" or gap <= GAPS[n < 500])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=50)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    rows = []
    for seed in range(options.first, options.first + options.tables):
        row = score(seed)
        rows.append(row)
        print(
            f"{seed:2d} {row['kind']:<18} {row['rows']:4d} x {row['inputs']:2d}   NLL {row['nll']:8.3f}   constant "
            f"{row['constant_nll']:7.3f}   {row['seconds']:5.1f} s {row['epochs']:4d} epochs"
            f"{'' if row['passed'] else '   FAILED'}   {' | '.join(row['warnings'])}",
            flush=True,
        )
    passed = sum(row["passed"] for row in rows)
    print(f"{passed} of {len(rows)} passed")
    if options.json:
        print(json.dumps({"machine": machine.describe(), "rows": rows}))
    if passed < len(rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
