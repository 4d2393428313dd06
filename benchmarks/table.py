"""The tables of README and docs/speed.md, from the files in benchmarks/results/.

python benchmarks/table.py
"""

import json
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
ORDER = ("map", "svgp", "gamma-robust", "od-svgp", "vfitc", "ppgpr-delta", "ppgpr-mf", "ppgpr-chol", "ppgpr-mfd")


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


if __name__ == "__main__":
    print(step_table(), predict_table(), growth_table(), precision_table(), sep="\n\n")
