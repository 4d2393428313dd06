"""The card of a saved model: a page for people, of which nothing is read again."""

import html
from importlib.metadata import version

from paragp.fitted import Fitted

MARKUP = "\\`*_{}[]()#+!|~$"


def card(fitted: Fitted, asked: str) -> str:
    """A page about the model, in Markdown; `asked` are words that `load` wants beside the path."""
    summary, scores = fitted.summary, fitted.summary.get("validation_scores") or {}
    kind = "normal distribution" if fitted.shape.is_normal else f"distribution ({fitted.shape})"
    lines = [
        f"# A model of {_cell(fitted.target.name)}",
        "",
        f"{fitted.label}, made by paragp {version('paragp')}. It predicts a {kind} of "
        f"{_cell(fitted.target.name)} for each row: a mean, and a deviation with a part from the function and a part "
        "from noise.",
        "",
        "## Data",
        "",
        f"{summary['rows']} training rows, {summary['validation_rows']} validation rows. The target has mean "
        f"{fitted.target.mean:.6g} and deviation {fitted.target.deviation:.6g}. " + _rows_stored(fitted),
        "",
        "| input | kind | mean | deviation | missing values | categories |",
        "|---|---|---:|---:|---|---|",
    ]
    for column in fitted.columns:
        numeric = column.kind == "numeric"
        numbers = f"{column.mean:.6g} | {column.deviation:.6g}" if numeric else " | "
        count = "" if numeric else f"{len(column.categories)}{' and others' if column.other else ''}"
        seen = "yes" if column.missing else "no"
        lines.append(f"| {_cell(column.name)} | {column.kind} | {numbers} | {seen} | {count} |")
    if scores:
        lines += ["", "## On the validation rows, in the target's units", "", "| metric | value |", "|---|---:|"]
        lines += [f"| {name} | {value:.4g} |" for name, value in scores.items() if value is not None]
    if fitted.calibration is not None:
        by = f", within each {_cell(fitted.calibration.by)}" if fitted.calibration.by else ""
        lines += [
            "", f"The coverage of its intervals is guaranteed by {len(fitted.calibration.scores)} calibration rows{by} "
            "(split conformal prediction), as long as new rows are like them.",
        ]  # fmt: skip
    lines += [
        "", "## Use", "", "```python", "from paragp import ParametricGPRegressor", "",
        f'model = ParametricGPRegressor.load("path/to/this/folder"{asked})',
        "mean, std = model.predict(X, return_std=True)", "```", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _rows_stored(fitted: Fitted) -> str:
    if fitted.method == "exact":
        return "The training rows are stored here."
    if fitted.summary.get("points_near_rows"):
        return (
            "No table of rows is stored here, but the inducing points started at the training rows and may lie close "
            "to them."
        )
    return (
        "No row is stored here; the inducing points started at means of similar rows, where a row unlike all others "
        "may have been alone."
    )


def _cell(text: str) -> str:
    """Text that may hold anything, as plain words in Markdown."""
    shown = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())[:100]
    return "".join(f"\\{sign}" if sign in MARKUP else html.escape(sign, quote=False) for sign in shown)
