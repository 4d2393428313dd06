"""The page: facts in sentences, tables and charts, put together by a template."""

import base64
import hashlib
import json
import math
import platform
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr
from scipy.stats import kstest

from paragp.fitted import Fitted
from paragp.gp.kernels import KERNELS
from paragp.metrics import METRICS
from paragp.predictive import PredictiveDistribution
from paragp.report import charts
from paragp.report.bins import Bin, by_deviation, by_input, expected_counts, margin
from paragp.report.gather import FAR, LEVELS, ColumnFacts, Facts
from paragp.report.words import FULL, count, number, percent, shown

MOST_RELEVANT = 20
MOST_DRAWN = 400  # rows in the picture of predictions
MOST_LISTED = 20  # columns that the summary of the data shows openly, where there are more than twice as many
MOST_COLUMNS = 1000  # that it shows at all
ENOUGH_ROWS = 30  # to call a coverage right
NEGLIGIBLE = 0.01  # of a coverage, however many rows there are
PARTS = {  # of the page, in order
    "verdict": "In short",
    "scores": "Scores",
    "calibration": "Calibration",
    "uncertainty": "Where the uncertainty is",
    "relevance": "Which inputs matter",
    "surprising": "The most surprising rows",
    "predictions": "Predicted and actual",
    "training": "Training",
    "data": "The data",
    "reproduce": "How to reproduce this",
}
MEANINGS = {
    "nll": "surprise per row, in nats: how little probability it gave to what came",
    "rmse": "size of the errors, large ones weighing more",
    "crps": "size of the errors, uncertainty taken into account",
    "mae": "mean size of the errors",
    "sharpness": "mean predicted deviation",
    "noise_fraction": "share of noise in the predicted variance",
}
HISTORY = {"nll": "NLL", "rmse": "RMSE", "crps": "CRPS", "learning_rate": "learning rate"}


class Table(NamedTuple):
    head: list[str]
    rows: list[list[str]]


class Figure(NamedTuple):
    title: str
    svg: str
    caption: str
    table: Table


class Score(NamedTuple):
    """A metric of the model and of the baseline, and which of them has the better one."""

    label: str
    meaning: str
    model: str
    baseline: str
    direction: str
    better: str  # "model", "baseline" or ""


def render(fitted: Fitted, facts: Facts, target: str, commands: Sequence[str]) -> str:
    """The whole page; the same facts give the same text."""
    from jinja2 import Environment, StrictUndefined

    own = files("paragp.report")
    style, script = (own.joinpath(name).read_text(encoding="utf-8") for name in ("style.css", "hover.js"))
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    environment.filters["shown"] = shown
    template = environment.from_string(own.joinpath("page.html.j2").read_text(encoding="utf-8"))
    return template.render(
        style=style,
        script=script,
        policy=f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'",
        method=fitted.label,
        shape=None if fitted.shape.is_normal else str(fitted.shape),
        parts=PARTS,
        target=target,
        facts=facts,
        count=count,
        verdict=verdict(fitted, facts, target),
        figures=_figures(fitted, facts),
        noise_by_row=fitted.model.noise_by_row,
        sampled=_sampled(facts),
        scores=compare(facts),
        calibration=_calibration(facts),
        guaranteed=_guaranteed(fitted, facts),
        uncertainty=_uncertainty(fitted, facts),
        relevance=_relevance(fitted),
        inputs=[fitted.columns[i].name for i in facts.important],
        surprising=facts.surprising,
        number=number,
        predictions=_predictions(facts),
        history=_history(fitted),
        best_epoch=_best_epoch(fitted),
        epoch=_epoch(fitted),
        data=_data(facts),
        settings=_settings(fitted),
        versions=_versions(),
        commands=commands,
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# --- how good it is ---


def verdict(fitted: Fitted, facts: Facts, target: str) -> list[str]:
    """What the model is and how good it is, in plain sentences."""
    summary, ours, same = fitted.summary, facts.scores["mae"], facts.baseline["mae"]
    inputs, rows = count(len(fitted.columns), "input"), count(summary["rows"])
    here = "this row" if facts.rows == 1 else f"these {count(facts.rows)}"
    better = (
        f"where always saying the training mean would be off by {number(same, 3)}"
        if ours < same
        else f"no better than always saying the training mean, which would be off by {number(same, 3)}"
    )
    held = facts.scores["coverage_90"]
    sentences = [
        f"This model predicts {shown(target, 60)} from {inputs}, learned from {rows}.",
        f"On {here} it is typically off by {number(ours, 3)}, {better}.",
        f"Its 90 % intervals hold {percent(held)} of the rows: {judged(held, 0.9, facts.rows)}",
    ]
    if facts.guaranteed:
        found = min(facts.guaranteed, key=lambda each: abs(each.level - 0.9))
        sentences.append(
            f"Its guaranteed {percent(found.level)} intervals hold {percent(found.coverage)} of the rows: "
            f"{judged(found.coverage, found.level, facts.rows)}"
        )
    return sentences


def _figures(fitted: Fitted, facts: Facts) -> list[tuple[str, str, str]]:
    """The three numbers to remember: what, how much, and beside what."""
    ours, same = facts.scores, facts.baseline
    rest = "what too few rows leave open is part of it" if fitted.model.noise_by_row else "the rest is of the function"
    return [
        ("typical error", number(ours["mae"], 3), f"{number(same['mae'], 3)} by always saying the mean"),
        ("inside 90 % intervals", percent(ours["coverage_90"]), "90\u00a0% if calibrated"),
        ("of the variance is noise", percent(ours["noise_fraction"]), rest),
    ]


def judged(coverage: float, level: float, rows: int) -> str:
    """Whether intervals are as wide as they should be, as far as so many rows can tell.

    >>> judged(0.85, 0.9, 2000)
    'they are too narrow (chance alone moves this share by 1.3\\xa0points).'
    """
    spread = margin(level, rows)
    chance = f"(chance alone moves this share by {_points(spread)})"
    if abs(coverage - level) > max(spread, NEGLIGIBLE):
        return f"they are too {'narrow' if coverage < level else 'wide'} {chance}."
    if rows < ENOUGH_ROWS:
        return f"too few rows to tell {chance}."
    return f"their width is about right {chance}."


def _points(share: float) -> str:
    text = number(100 * share, 2)
    return f"{text}\u00a0point{'' if text == '1' else 's'}"


def compare(facts: Facts) -> list[Score]:
    """The metrics beside the baseline's."""
    scores = []
    for name, metric in METRICS.items():
        ours, other = facts.scores[name], facts.baseline[name]
        if name.startswith("coverage_"):
            level = int(name.removeprefix("coverage_")) / 100
            meaning, direction = f"share of rows in {percent(level)} intervals", f"nearer to {percent(level)} is better"
            gaps = round(abs(ours - level), 12), round(abs(other - level), 12)
            texts = percent(ours), percent(other)
        else:
            meaning, gaps = MEANINGS[name], (ours, other)
            direction = "" if metric.better == "neither" else f"{metric.better} is better"
            texts = (percent(ours), percent(other)) if name == "noise_fraction" else (number(ours), number(other))
            if metric.better == "neither":
                gaps = 0.0, 0.0
        better = "model" if gaps[0] < gaps[1] else "baseline" if gaps[1] < gaps[0] else ""
        scores.append(Score(metric.label, meaning, *texts, direction, better))
    return scores


def _sampled(facts: Facts) -> str:
    drawn = len(facts.sample.y)
    return "" if drawn == facts.rows else f"Made of a uniform sample of {count(drawn)} out of {facts.rows:,}."


# --- calibration ---


def _calibration(facts: Facts) -> list[Figure]:
    z, (name, meaning) = facts.sample.normal_scores, _scores_in_words(facts.sample.dist)
    distance, chance = float(kstest(z, "norm", method="asymp").statistic), 1.36 / math.sqrt(len(z))
    steps = charts.CDF_STEPS
    found = zip(steps.tolist(), charts.shares_below(z, steps).tolist(), ndtr(steps).tolist(), strict=True)
    band = expected_counts(facts.rows, len(facts.pit))
    bins = len(facts.pit)
    return [
        Figure(
            f"{name}s beside the normal distribution", charts.normal_cdf(z, distance, name),
            f"Solid: the model's {name}s{meaning}; dashed: the normal distribution. Kolmogorov-Smirnov distance "
            f"{number(distance, 3)}; up to {number(chance, 2)} comes by chance in 95 % of all cases. "
            + _sampled(facts),
            Table(
                [name, "share of rows below", "expected"],
                [[f"{at:g}", percent(share), percent(normal)] for at, share, normal in found],
            ),
        ),
        Figure(
            "Probability integral transform (PIT)", charts.pit_histogram(facts.pit, band),
            "Where targets fall in their distributions: level for a calibrated model. High ends: too narrow; a hump: "
            "too wide; a slope: biased. The band holds 95 % of what chance does; bars with an outline lie outside it.",
            Table(
                ["predicted probability", "rows", "expected"],
                [
                    [f"{i / bins:.2f} to {(i + 1) / bins:.2f}", f"{rows:,}", f"{band[0]:,.0f} to {band[1]:,.0f}"]
                    for i, rows in enumerate(facts.pit.tolist())
                ],
            ),
        ),
        Figure(
            "Coverage against level", charts.coverage(LEVELS, facts.covered, facts.rows),
            "Below the dashed line intervals are too narrow, above it too wide. The band is what chance does to a "
            "calibrated model.",
            Table(
                ["level", "rows inside"],
                [[percent(a), percent(b)] for a, b in zip(LEVELS.tolist(), facts.covered.tolist(), strict=True)],
            ),
        ),
    ]  # fmt: skip


def _scores_in_words(dist: PredictiveDistribution) -> tuple[str, str]:
    """What the scores are called that are standard normal if the model is right, and how they come about."""
    if dist.shape.is_normal:
        return "z-score", ""
    return "normal score", " (where each target's predicted probability lies in a standard normal distribution)"


def _guaranteed(fitted: Fitted, facts: Facts) -> dict[str, Any] | None:
    """Intervals with a guarantee beside the model's own, where the model was calibrated."""
    if fitted.calibration is None:
        return None
    rows = [
        [*map(percent, (found.level, found.coverage, found.own_coverage)), number(found.width), number(found.own_width)]
        for found in facts.guaranteed
    ]
    head = ["level", "inside: guaranteed", "inside: model's own", "mean width: guaranteed", "mean width: model's own"]
    return {"rows": len(fitted.calibration.scores), "by": fitted.calibration.by, "table": Table(head, rows)}


# --- where the uncertainty is ---


def _uncertainty(fitted: Fitted, facts: Facts) -> list[Figure]:
    sample, bins = facts.sample, by_deviation(facts.sample)
    noise, spread = facts.scores["noise_fraction"], facts.scores["sharpness"]
    whole = Bin("all rows", facts.rows, spread, facts.scores["mae"], 0.0, noise)
    slope = fitted.shape.expected_error
    found = [
        Figure(
            "Predicted deviation and error", charts.deviation_and_error(bins, slope),
            "Rows by deciles of their predicted deviation, with two standard errors. Dashed: the mean error of a "
            f"calibrated model, {number(slope, 2)} deviations. " + _sampled(facts),
            Table(
                ["predicted deviation", "rows", "mean deviation", "mean error", "expected error"],
                [
                    [b.label, f"{b.rows:,}", number(b.deviation), number(b.error), number(slope * b.deviation)]
                    for b in bins
                ],
            ),
        ),
        _shares("By predicted deviation", [whole, *bins], "predicted deviation", "deviation"),
    ]  # fmt: skip
    for i, position in enumerate(facts.important):
        column = fitted.columns[position]
        groups = by_input(sample, column, sample.inputs[:, i])
        name = shown(column.name)
        found.append(_shares(f"By {shown(column.name, 40)}", groups, name, f"input{i}"))
    return found


def _shares(title: str, bins: Sequence[Bin], about: str, key: str) -> Figure:
    rows = [
        [b.label, f"{b.rows:,}", number(b.deviation), percent(1 - b.noise), percent(b.noise), number(b.error)]
        for b in bins
    ]
    head = [about, "rows", "mean deviation", "function", "noise", "mean error"]
    return Figure(title, charts.shares(bins, about, key), "", Table(head, rows))


def _relevance(fitted: Fitted) -> Figure | None:
    found = fitted.feature_relevance
    if found is None:
        return None
    order = sorted(found.items(), key=lambda item: -item[1])
    top, rest = order[:MOST_RELEVANT], order[MOST_RELEVANT:]
    table = Table(["input", "share of the kernel's sensitivity"], [[name, percent(share)] for name, share in top])
    more = f"and {len(rest):,} more, with {percent(sum(share for _, share in rest))} together" if rest else ""
    return Figure("Relevance of the inputs", charts.relevance(top), more, table)


# --- rows, training, data ---


def _predictions(facts: Facts) -> Figure:
    sample = facts.sample
    chosen = np.sort(sample.order[:MOST_DRAWN])
    parts = {name: getattr(sample.dist, name)[chosen] for name in ("mean", "function_var", "noise_var")}
    dist = replace(sample.dist, **parts)
    row, y, bounds = sample.row[chosen], sample.y[chosen], dist.interval(0.9)
    drawn = "" if len(chosen) == facts.rows else f" A uniform sample of {count(len(chosen))} out of {facts.rows:,}."
    table = Table(
        ["row", "actual", "predicted", "90 % from", "to", "inside"],
        [
            [f"{i:,}", number(a), number(m), number(low), number(high), "yes" if low <= a <= high else "no"]
            for i, a, m, (low, high) in zip(row.tolist(), y.tolist(), dist.mean.tolist(), bounds.tolist(), strict=True)
        ],
    )
    caption = (
        "Each line is a row's 90 % interval (the model's own) at its predicted value; the dot is what came, a cross if "
        f"it lies outside. Dashed: predicted equals actual.{drawn}"
    )
    return Figure("Actual against predicted", charts.predictions(row, y, dist.mean, bounds), caption, table)


def _best_epoch(fitted: Fitted) -> int | None:
    best = fitted.summary.get("best_epoch")
    return best if type(best) is int and 1 <= best <= len(fitted.history) else None


def _epoch(fitted: Fitted) -> str:
    """What the history has a record of each: a method without gradient steps has fits."""
    return "epoch" if any(record.get("learning_rate") for record in fitted.history) else "fit"


def _history(fitted: Fitted) -> list[Figure]:
    """A chart for each number that was kept of the epochs; of a learning rate, where there is one."""
    best, figures, epoch = _best_epoch(fitted), [], _epoch(fitted)
    for key, name in HISTORY.items():
        values = [float(record.get(key, math.nan)) for record in fitted.history]
        if not any(map(math.isfinite, values)) or (key == "learning_rate" and epoch == "fit"):
            continue
        every = math.ceil(len(values) / charts.MOST_EPOCHS)
        rows = [
            [f"{i + 1}{' (best)' if i + 1 == best else ''}", number(value)]
            for i, value in enumerate(values)
            if i % every == 0 or i + 1 == best
        ]
        title = name if key == "learning_rate" else f"Validation {name}"
        figures.append(
            Figure(
                title[0].upper() + title[1:], charts.history(values, name, best, epoch), "", Table([epoch, name], rows)
            )
        )
    return figures


def _data(facts: Facts) -> dict[str, Any]:
    """What the columns hold: some of them openly, those with something to mend and the most relevant ones first."""
    relevant = {position: i for i, position in enumerate(facts.important)}
    order = sorted(
        range(len(facts.columns)),
        key=lambda i: (not facts.columns[i].unknown, not facts.columns[i].missing, relevant.get(i, len(relevant)), i),
    )
    few = len(order) <= 2 * MOST_LISTED
    first = sorted(order) if few else order[:MOST_LISTED]
    rest = [] if few else sorted(order[MOST_LISTED:MOST_COLUMNS])
    return {
        "rows": [_column(facts.columns[i], facts.rows) for i in first],
        "rest": [_column(facts.columns[i], facts.rows) for i in rest],
        "more": len(order) - len(first) - len(rest),
        "far": FAR,
    }


def _column(facts: ColumnFacts, rows: int) -> dict[str, str]:
    column, known = facts.column, rows - facts.missing
    missing = "none" if not facts.missing else f"{facts.missing:,} ({percent(facts.missing / rows)})"
    if facts.missing and not column.missing:
        missing += ", none in training"
    if column.kind == "numeric":
        holds = f"{number(facts.low)} to {number(facts.high)}" if known else "–"
        return _as_row(
            column.name, "numbers", missing, holds, f"{facts.unknown:,} far outside" if facts.unknown else "none"
        )
    top = sorted(facts.counts.items(), key=lambda item: (-item[1], item[0]))
    names = ", ".join(f"{shown(key, 24)} ({total:,})" for key, total in top[:3])
    holds = f"{len(top):,} known categor{'y' if len(top) == 1 else 'ies'}" + (f": {names}" if names else "")
    holds += ", …" if len(top) > 3 else ""
    unknown = "none"
    if facts.unknown:
        what = "rare or never seen" if column.other else "never seen"
        some = ", ".join(shown(key, 24) for key in facts.examples)
        unknown = f"{facts.unknown:,} {what}: {some}{', …' if len(facts.examples) > 4 else ''}"
    return _as_row(column.name, "categories", missing, holds, unknown)


def _as_row(name: str, kind: str, missing: str, holds: str, unknown: str) -> dict[str, str]:
    return {"name": name, "kind": kind, "missing": missing, "holds": holds, "unknown": unknown}


# --- how to reproduce ---


def _settings(fitted: Fitted) -> list[tuple[str, str]]:
    summary = {"method": fitted.method, **fitted.summary}
    parameters = summary.pop("parameters", {})
    summary.pop("validation_scores", None)
    summary["shape"] = str(fitted.shape)
    found = {name.replace("_", " "): value for name, value in summary.items()}
    found |= {f"parameter {name}": value for name, value in parameters.items()}
    return [(shown(name, 60), _value(value)) for name, value in found.items()]


def _value(value: Any) -> str:
    if isinstance(value, float):
        return number(value, 6)
    return shown(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), FULL)


def _versions() -> list[tuple[str, str]]:
    libraries = ("paragp", "torch", "gpytorch", "numpy", "scipy", "scikit-learn", "pyarrow")
    return [*((name, version(name)) for name in libraries), ("Python", platform.python_version())]


def commands(fitted: Fitted, target: str, model: str, data: str) -> list[str]:
    """What to type at a shell to fit such a model, and to make this page again."""
    parameters = fitted.summary["parameters"]
    words = ["paragp", "fit", "train.parquet", "--target", target, "--out", model, "--method", fitted.method]
    options: dict[str, tuple[str, Callable[[Any], bool]]] = {
        "n_inducing": ("--inducing", _is_whole), "kernel": ("--kernel", lambda value: value in KERNELS),
        "features": ("--features", _are_sizes), "mean": ("--mean", lambda value: value == "mlp" or _are_sizes(value)),
        "max_epochs": ("--epochs", _is_whole), "recipe": ("--recipe", lambda value: isinstance(value, str)),
        "beta": ("--beta", lambda value: isinstance(value, float | int)), "random_state": ("--seed", _is_whole),
    }  # fmt: skip
    for name, (option, is_sound) in options.items():
        value = parameters.get(name)
        if value is not None and value != "auto" and _sound(is_sound, value):
            words += [option, ",".join(map(str, value)) if isinstance(value, list) else str(value)]
    words += ["--keep-rows"] if fitted.holds_rows else []
    check = ["paragp", "evaluate", model, data, "--target", target]
    again = ["paragp", "report", model, data, "--target", target, "--out", "report.html"]
    return [" ".join(shlex.quote(shown(word)) for word in line) for line in (words, check, again)]


def _sound(check: Callable[[Any], bool], value: Any) -> bool:
    try:
        return check(value)
    except TypeError:  # a list where a name is expected: anyone may have written the folder
        return False


def _is_whole(value: Any) -> bool:
    return type(value) is int


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_whole, value))
