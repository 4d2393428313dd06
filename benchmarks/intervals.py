"""How often guaranteed intervals hold their rows, how wide they are, and what guarantees by group change.

    PARAGP_DATA=... python benchmarks/intervals.py
    python benchmarks/intervals.py --datasets diabetes --divisions 100 --json

A small model is fitted once to each set. Rows that it has not seen are divided many times at random into n calibration
and m test rows. Without ties the number of test rows covered depends on the ranks of the scores alone, so given these
rows it is beta-binomial, BetaBin(m; k, n + 1 - k) with k = ceil((n + 1) level), and independent from one division to
the next, although divisions share rows: the standard error of the mean coverage over divisions is exact. It follows
that this checks the calibration and not the model, of which it would hold whatever its faults. Coverages of the model's
normal intervals, widths and coverages in a part of the rows are of these rows, and have no such error.

MAPIE's intervals are made around the same model from the same rows: of constant width (absolute residuals), by a
linear regression of the log residuals on a quarter of the calibration rows (its residual-normalised score), and by the
model's own deviations, which is what ours are. Widths are in the target's deviations among the training rows.

The groups are of a made table with fresh rows for every calibration and test.
"""

import argparse
import importlib.metadata
import json
import math
import pathlib
import sys
from collections.abc import Iterator
from typing import NamedTuple

import machine
import numpy as np
import pandas as pd
from scipy.stats import betabinom
from sklearn.datasets import load_diabetes

from paragp import ParametricGPRegressor
from paragp.atomic import writing
from paragp.conformal import Calibration
from paragp.data.datasets import Table, load

OUT = pathlib.Path(__file__).parent / "results" / "coverage.json"
LEVELS = (0.5, 0.8, 0.9, 0.95)
CALIBRATION_ROWS = (100, 1000)
HELD_OUT = 4000  # rows at most, and at most half of the set
CENTRAL = 0.99  # of the beta-binomial
WIDEST = 0.1  # of the rows: those with the largest predicted deviations
NOISE = {"quiet": 0.1, "noisy": 2.0}  # deviations of a made table's groups
NOISY_SHARE = 0.1


class HeldOut(NamedTuple):
    """A model, and rows that it has not seen."""

    model: ParametricGPRegressor
    x: np.ndarray
    y: np.ndarray


class Division(NamedTuple):
    calibration: np.ndarray
    test: np.ndarray


def fitted(name: str, points: int, epochs: int) -> HeldOut:
    x, y = Table(*load_diabetes(return_X_y=True)) if name == "diabetes" else load(name)
    order = np.random.default_rng(0).permutation(len(y))
    held = min(HELD_OUT, len(y) // 2)
    train, rest = order[held:], order[:held]
    y = (y - y[train].mean()) / y[train].std()
    model = ParametricGPRegressor(n_inducing=points, max_epochs=epochs, beta=0.05, random_state=0)
    model.fit(x[train], y[train])
    return HeldOut(model, x[rest], y[rest])


def divisions(rows: int, n: int, count: int) -> Iterator[Division]:
    rng = np.random.default_rng(n)
    for _ in range(count):
        order = rng.permutation(rows)
        yield Division(order[:n], order[n:])


# --- coverage over divisions, beside the theory's ---


class Theory(NamedTuple):
    """The share of m test rows covered, given n calibration rows: its mean and deviation, and a central part."""

    mean: float
    deviation: float
    low: float
    high: float
    outside: float  # the probability of less than low or more than high


def theory(n: int, m: int, level: float) -> Theory:
    """Of the beta-binomial.

    >>> theory(9, 100, 0.9).mean
    0.9
    """
    k = math.ceil(round((n + 1) * level, 9))
    counts = betabinom(m, k, n + 1 - k)
    low, high = counts.ppf((1 - CENTRAL) / 2), counts.ppf((1 + CENTRAL) / 2)
    outside = counts.cdf(low - 1) + counts.sf(high)
    return Theory(k / (n + 1), counts.std() / m, low / m, high / m, float(outside))


def coverage(name: str, held: HeldOut, n: int, count: int) -> list[dict]:
    dist = held.model.predict_dist(held.x)
    z = dist.z_scores(held.y)
    m = len(z) - n
    shares = np.empty((count, len(LEVELS)))
    for i, (calibration, test) in enumerate(divisions(len(z), n, count)):
        known = Calibration.of(z[calibration])
        shares[i] = [np.mean(np.abs(z[test]) <= known.factor(level)) for level in LEVELS]
    rows = []
    for level, found in zip(LEVELS, shares.T, strict=True):
        expected = theory(n, m, level)
        stderr = expected.deviation / math.sqrt(count)
        low, high = dist.interval(level).T
        rows.append({
            "dataset": name, "level": level, "calibration_rows": n, "test_rows": m, "divisions": count,
            "tied_scores": len(z) - len(np.unique(np.abs(z))), "mean": found.mean(), "expected_mean": expected.mean,
            "standard_error": stderr, "standard_errors_off": (found.mean() - expected.mean) / stderr,
            "deviation": found.std(ddof=1), "expected_deviation": expected.deviation,
            "outside": np.mean((found < expected.low - 1e-9) | (found > expected.high + 1e-9)),
            "expected_outside": expected.outside, "normal": np.mean((low <= held.y) & (held.y <= high)),
        })  # fmt: skip
    return rows


# --- widths, beside MAPIE's ---


def intervals(held: HeldOut, division: Division) -> dict[str, np.ndarray]:
    """The intervals of the test rows by each maker, (m, 2, levels)."""
    from mapie.conformity_scores import AbsoluteConformityScore, ResidualNormalisedScore, StdConformityScore
    from mapie.regression import SplitConformalRegressor

    model, x = held.model, held.x[division.test]
    x_cal, y_cal = held.x[division.calibration], held.y[division.calibration]
    model.calibrate(x_cal, y_cal)
    made = {
        label: np.stack([model.predict_interval(x, level, guaranteed) for level in LEVELS], -1)
        for label, guaranteed in (("paragp, guaranteed", True), ("paragp, normal", False))
    }
    scores = {
        "MAPIE, absolute": AbsoluteConformityScore(),
        "MAPIE, residual-normalised": ResidualNormalisedScore(random_state=0),
        "MAPIE, by our deviations": StdConformityScore(),
    }
    for label, score in scores.items():
        peer = SplitConformalRegressor(model, confidence_level=list(LEVELS), conformity_score=score, prefit=True)
        made[label] = peer.conformalize(x_cal, y_cal).predict_interval(x)[1]
    return made


def widths(name: str, held: HeldOut, n: int, count: int) -> list[dict]:
    """Mean widths and coverages over some divisions, of all test rows and of those with the largest deviations."""
    std = held.model.predict_dist(held.x).std
    found: dict[str, list[np.ndarray]] = {}
    for division in divisions(len(held.y), n, count):
        y, test_std = held.y[division.test][:, None], std[division.test]
        uncertain = test_std >= np.quantile(test_std, 1 - WIDEST)
        for label, made in intervals(held, division).items():
            low, high = made[:, 0], made[:, 1]
            inside = (low <= y) & (y <= high)
            found.setdefault(label, []).append(
                np.stack([(high - low).mean(0), inside.mean(0), inside[uncertain].mean(0)])
            )
    return [
        {"dataset": name, "intervals": label, "calibration_rows": n, "divisions": count, "level": level,
         "width": width, "coverage": covered, "coverage_widest_tenth": uncertain}
        for label, parts in found.items()
        for level, width, covered, uncertain in zip(LEVELS, *np.mean(parts, 0).tolist(), strict=True)
    ]  # fmt: skip


# --- groups ---


def grouped(n: int, rng: np.random.Generator) -> tuple[pd.DataFrame, np.ndarray]:
    """A made table in which one row of ten is of a group with far larger noise."""
    kind = np.where(rng.random(n) < NOISY_SHARE, "noisy", "quiet")
    rows = pd.DataFrame({"x": rng.uniform(-2, 2, n), "kind": kind})
    return rows, np.sin(2 * rows["x"].to_numpy()) + rows["kind"].map(NOISE).to_numpy() * rng.standard_normal(n)


def groups(count: int, n: int = 1000, m: int = 4000) -> list[dict]:
    """Coverage in each group, calibrated on all rows together and by group."""
    rng = np.random.default_rng(0)
    model = ParametricGPRegressor(n_inducing=30, max_epochs=10, random_state=0).fit(*grouped(2000, rng))
    shares: dict[tuple[str | None, str], list[list[float]]] = {}
    for _ in range(count):
        calibration, (x, y) = grouped(n, rng), grouped(m, rng)
        for by in (None, "kind"):
            model.calibrate(*calibration, by=by)
            made = np.stack([model.predict_interval(x, level) for level in LEVELS], -1)
            inside = (made[:, 0] <= y[:, None]) & (y[:, None] <= made[:, 1])
            for kind in NOISE:
                shares.setdefault((by, kind), []).append(inside[x["kind"] == kind].mean(0).tolist())
    return [
        {"by": by, "group": kind, "calibration_rows": n, "tables": count, "level": level, "coverage": mean,
         "standard_error": deviation / math.sqrt(count)}
        for (by, kind), found in shares.items()
        for level, mean, deviation in zip(LEVELS, np.mean(found, 0), np.std(found, 0, ddof=1), strict=True)
    ]  # fmt: skip


def show_coverage(rows: list[dict]) -> None:
    for row in rows:
        print(
            f"{row['dataset']:<10} n {row['calibration_rows']:5d}   {row['level']:4.0%}: covered {row['mean']:.4f}, "
            f"expected {row['expected_mean']:.4f} ± {row['standard_error']:.4f}   outside the central {CENTRAL:.0%}: "
            f"{row['outside']:.3f} (expected {row['expected_outside']:.3f})   the model's normal {row['normal']:.4f}",
            flush=True,
        )


def show_widths(rows: list[dict]) -> None:
    for row in rows:
        print(
            f"{row['dataset']:<10} {row['intervals']:<27} {row['level']:4.0%}: width {row['width']:.3f}   covered "
            f"{row['coverage']:.3f}, of the widest tenth {row['coverage_widest_tenth']:.3f}",
            flush=True,
        )


def show_groups(rows: list[dict]) -> None:
    for row in rows:
        by = "by group" if row["by"] else "together"
        print(f"{row['group']:<10} calibrated {by}   {row['level']:4.0%}: covered {row['coverage']:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", default="diabetes,pol,elevators,bike", help="comma-separated names")
    parser.add_argument("--divisions", type=int, default=500)
    parser.add_argument("--compared", type=int, default=20, help="divisions of which widths are compared with MAPIE's")
    parser.add_argument("--tables", type=int, default=100, help="made tables with groups")
    parser.add_argument("--points", type=int, default=200, help="inducing points")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--out", default=str(OUT), help="where the report is kept")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    report: dict = {"command": " ".join(["python", "benchmarks/intervals.py", *sys.argv[1:]])}
    report |= {
        "machine": machine.describe(),
        "mapie": importlib.metadata.version("mapie"),
        "coverage": [],
        "widths": [],
    }
    for name in options.datasets.split(","):
        held = fitted(name, options.points, options.epochs)
        sizes = [n for n in CALIBRATION_ROWS if 2 * n <= len(held.y)]
        for n in sizes:
            found = coverage(name, held, n, options.divisions)
            show_coverage(found)
            report["coverage"] += found
        compared = widths(name, held, sizes[-1], options.compared)
        show_widths(compared)
        report["widths"] += compared
    report["groups"] = groups(options.tables)
    show_groups(report["groups"])
    with writing(pathlib.Path(options.out)) as part:
        part.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if options.json:
        print(json.dumps(report))


if __name__ == "__main__":
    main()
