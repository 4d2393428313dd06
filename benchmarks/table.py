"""The tables of README and docs/speed.md, from the files in benchmarks/results/.

python benchmarks/table.py
"""

import json
import statistics
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
ORDER = ("map", "svgp", "gamma-robust", "od-svgp", "vfitc", "ppgpr-delta", "ppgpr-mf", "ppgpr-chol", "ppgpr-mfd")
SETS = ("pol", "elevators", "bike", "kin40k", "keggdirected")
PAPER = {  # PPGPR-MFD in the paper's table of all results
    "pol": {"nll": -1.090, "rmse": 0.077, "crps": 0.040},
    "elevators": {"nll": 0.368, "rmse": 0.361, "crps": 0.195},
    "bike": {"nll": -1.426, "rmse": 0.060, "crps": 0.028},
    "kin40k": {"nll": -1.284, "rmse": 0.126, "crps": 0.050},
    "keggdirected": {"nll": -1.575, "rmse": 0.087, "crps": 0.031},
}


def load(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def step_table() -> str:
    rows = {(row["method"], row["B"]): row for row in load("step")["rows"]}
    lines = [
        "| step, M = 1000 | B = 1000: ours | GPyTorch | ratio | B = 10,000: ours | GPyTorch | ratio | peak memory |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name in ORDER:
        small, large = rows[name, 1000], rows[name, 10_000]
        note = " (its SVGP)" if small["note"] else ""
        lines.append(
            f"| `{name}` | {small['ours_ms']:.0f} ms | {small['gpytorch_ms']:.0f} ms{note} | {small['ratio']:.1f} | "
            f"{large['ours_ms'] / 1e3:.2f} s | {large['gpytorch_ms'] / 1e3:.2f} s | {large['ratio']:.1f} | "
            f"{large['ours_peak_mb'] / 1e3:.1f} / {large['gpytorch_peak_mb'] / 1e3:.1f} GB |"
        )
    return "\n".join(lines)


def predict_table() -> str:
    lines = [
        "| prediction, M = 1000 | ours, rows/s | GPyTorch, rows/s | ratio | mean alone, rows/s |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in load("predict")["rows"]:
        lines.append(
            f"| `{row['method']}` | {row['ours_rows_per_s'] / 1e3:.0f} k | {row['gpytorch_rows_per_s'] / 1e3:.0f} k | "
            f"{row['ratio']:.1f} | {row['mean_alone_rows_per_s'] / 1e3:.0f} k |"
        )
    return "\n".join(lines)


def growth_table() -> str:
    """Exponents of time and memory: halves and doubles of M, B and d around the sizes of the step table."""
    lines = [
        "| method | in | from, to | time grows as | the paper's | memory grows as | the paper's |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    for row in load("growth")["growth"]:
        v, low, high = row["variable"], min(row["sizes"]), max(row["sizes"])
        lines.append(
            f"| `{row['method']}` | {v} | {low:,}, {high:,} | {v}^{row['time_exponent']:.2f} | "
            f"{v}^{row['paper_time_exponent']:.2f} | {v}^{row['memory_exponent']:.2f} | "
            f"{v}^{row['paper_memory_exponent']:.2f} |"
        )
    return "\n".join(lines)


def precision_table() -> str:
    lines = [
        "| data set | NLL, float32 | float64 | gap, five seeds | mean | variance | gradient, by rows' | by its own |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in load("precision")["rows"]:
        worst = row["worst_relative_error"]
        lines.append(
            f"| {row['dataset']} | {row['nll_float32']:.3f} | {row['nll_float64']:.3f} | {row['nll_gap']:+.4f} ± "
            f"{row['nll_gap_stderr']:.4f} | {worst['mean']:.0e} | {max(worst['ktilde'], worst['svar']):.0e} | "
            f"{worst['gradient_of_rows']:.0e} | {worst['gradient']:.0e} |"
        )
    return "\n".join(lines)


def quality_runs() -> dict[tuple[str, str], list[dict]]:
    """The stored runs of quality.py by data set and method."""
    found: dict[tuple[str, str], list[dict]] = {}
    for file in sorted((RESULTS / "quality").glob("*.json")):
        run = json.loads(file.read_text(encoding="utf-8"))
        found.setdefault((run["dataset"], run["method"]), []).append(run)
    return found


def quality_table(methods: tuple[str, ...] = ("ppgpr-mfd", "svgp", "catboost", "ngboost")) -> str:
    """NLL, RMSE, CRPS and seconds, means over the splits that were run, beside the paper's PPGPR-MFD."""
    runs = quality_runs()
    lines = ["| data set | method | splits | NLL | RMSE | CRPS | seconds |", "|---|---|---:|---:|---:|---:|---:|"]
    for name in SETS:
        paper = " | ".join(f"{PAPER[name][metric]:.3f}" for metric in ("nll", "rmse", "crps"))
        lines.append(f"| {name} | the paper's PPGPR-MFD | 10 | {paper} | |")
        for method in methods:
            if (name, method) in runs:
                lines.append(_quality_row(name, method, runs[name, method]))
    return "\n".join(lines)


def _quality_row(name: str, method: str, runs: list[dict]) -> str:
    means = {key: statistics.mean(run[key] for run in runs) for key in ("nll", "rmse", "crps", "seconds")}
    return (
        f"| {name} | `{method}` | {len(runs)} | {means['nll']:.3f} | {means['rmse']:.4f} | {means['crps']:.4f} | "
        f"{means['seconds']:.0f} |"
    )


if __name__ == "__main__":
    print(step_table(), predict_table(), growth_table(), precision_table(), quality_table(), sep="\n\n")
