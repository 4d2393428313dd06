"""The README's tables of speed, from the files in benchmarks/results/.

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


if __name__ == "__main__":
    print(step_table(), predict_table(), sep="\n\n")
