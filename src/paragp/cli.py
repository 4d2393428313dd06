"""The command line: `paragp COMMAND`, also `python -m paragp COMMAND`."""

import importlib.util
import json
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import typer
from typer.core import TyperGroup

from paragp import METHODS, METRICS, ParametricGPRegressor, PredictiveDistribution, __version__
from paragp.artefact import check_destination, load, plain, read_config
from paragp.atomic import check_place, writing
from paragp.data.files import check_columns, even_blocks, read_table, writing_table
from paragp.data.parquet import is_many, names_of, rows_of, too_large
from paragp.data.tables import some
from paragp.estimator import FULL_BATCH
from paragp.fitted import BLOCK_ROWS
from paragp.gp.methods import PAPER
from paragp.metrics import Scores
from paragp.onnx import export as export_onnx
from paragp.paper import commands, toy
from paragp.report import check_free, write_report
from paragp.training.checkpoint import StoppedError
from paragp.training.distributed import joined

ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
UsageError: Any = typer.BadParameter.__base__  # click's, which typer may bring along under another name


class _Sentences(TyperGroup):
    """All commands together: what the user can mend is said in one line, whoever finds it."""

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> Any:
        if not args:  # help
            return super().make_context(info_name, args, *more, **extra)
        with _in_a_sentence():
            return super().make_context(info_name, args, *more, **extra)

    def invoke(self, ctx: Any) -> Any:
        with _ended_by_signals(), _in_a_sentence():
            return super().invoke(ctx)


app = typer.Typer(
    cls=_Sentences,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Calibrated uncertainty for regression on large tables.",
)


app.add_typer(commands.app, name="paper")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"paragp {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Calibrated uncertainty for regression on large tables."""


# --- fit, predict, evaluate ---

Data = Annotated[
    Path,
    typer.Argument(
        help="A table: .csv, .csv.gz, .parquet, .arrow or .feather; or a folder or glob of Parquet files.",
        show_default=False,
    ),
]
Model = Annotated[Path, typer.Argument(help="A folder made by `paragp fit`.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Truth = Annotated[str | None, typer.Option("--target", help="The column with the truth; the model's own if left out.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")]


@app.command()
def fit(
    data: Data,
    target: Annotated[str, typer.Option(help="The column to predict.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder for the model.", show_default=False)],
    method: Annotated[str, typer.Option(help="A name that `paragp methods` lists.")] = "auto",
    inducing: Annotated[int, typer.Option(help="Inducing points: more is finer and slower.", min=1)] = 1000,
    kernel: Annotated[str, typer.Option(help="The covariance function; auto: one that suits the data.")] = "auto",
    features: Annotated[
        str | None, typer.Option(help="Sizes of a network before the kernel, such as 256,128,64; none if left out.")
    ] = None,
    mean: Annotated[
        str | None,
        typer.Option(help="For ppgpr-mfd, ppgpr-gamma: mlp, or sizes of a network for the mean, such as 256,128."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="At most so many passes; by the rows if left out.", min=1)] = None,
    recipe: Annotated[str, typer.Option(help="auto, or adam: the paper's 400 epochs.")] = "auto",
    beta: Annotated[float | None, typer.Option(help="Weight of the regulariser; searched if left out.", min=0)] = None,
    weights: Annotated[str | None, typer.Option(help="A column with the weight of each row.")] = None,
    calibrate: Annotated[
        float | None, typer.Option(help="Share of the rows kept aside to guarantee the coverage of intervals, .1 say.")
    ] = None,
    drop: Annotated[list[str] | None, typer.Option(help="A column to leave out; may be repeated.")] = None,
    valid: Annotated[Path | None, typer.Option(help="Rows to validate on; a tenth is held out if left out.")] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Read Parquet in parts, as is done beyond a quarter of memory.")
    ] = False,
    checkpoint: Annotated[Path | None, typer.Option(help="A folder to keep the training in as it goes.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of everything random.", min=0)] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace a model that stands in the way.")] = False,
    keep_rows: Annotated[bool, typer.Option("--keep-rows", help="Let exact and fitc store rows.")] = False,
    as_json: AsJson = False,
) -> None:
    """Fit a model to a table and write it to a folder.

    Example: paragp fit train.parquet --target price --out model/
    """
    check_destination(out, overwrite=force)
    if method == "exact" and not keep_rows:
        raise ValueError("An exact GP predicts from its training rows: --keep-rows lets the model store them.")
    estimator = ParametricGPRegressor(
        method,
        n_inducing=inducing,
        kernel=kernel,
        features=None if features is None else _sizes(features),
        mean=mean if mean in (None, "mlp") else _sizes(mean),
        max_epochs="auto" if epochs is None else epochs,
        recipe=recipe,
        beta="auto" if beta is None else beta,
        random_state=seed,
    )
    with joined() as group:  # the processes that torchrun started, if it did: the first one reports and writes
        estimator.set_params(verbose=int(sys.stderr.isatty() and not group.rank))
        if stream or is_many(data) or too_large(data):
            if calibrate is not None:
                raise ValueError("A stream has no --calibrate: keep rows aside, and call calibrate in Python.")
            if valid is not None:
                raise ValueError("A stream holds out rows of its own to validate on: leave out --valid.")
            estimator.fit_stream(
                data, target, sample_weight=weights, drop=drop or [], checkpoint=checkpoint, resume=resume
            )
        else:
            kept = {"checkpoint": checkpoint, "resume": resume}
            _fit_table(estimator, data, target, weights, drop or [], valid, keep_rows, calibrate, kept)
    if group.rank:
        return
    fitted = estimator.fitted_
    estimator.save(out, overwrite=force, keep_rows=keep_rows)
    summary = fitted.summary
    if as_json:
        _echo_json({"model": str(out), "method": fitted.method, "target": target, **summary})
        return
    typer.echo(
        f"Fitted {fitted.method} to {summary['rows']} rows of {data} in {summary['seconds']:.1f} s; the model is in "
        f"{out}."
    )
    if summary["validation_scores"]:
        typer.echo(f"\nOn {summary['validation_rows']} validation rows:\n\n{_table(summary['validation_scores'])}")


def _fit_table(
    estimator: ParametricGPRegressor,
    data: Path,
    target: str,
    weights: str | None,
    drop: list[str],
    valid: Path | None,
    keep_rows: bool,
    calibrate: float | None,
    kept: dict[str, Any],
) -> None:
    """Fit to a table in memory."""
    X, y, w = _rows(read_table(data), data, target, weights, drop)
    aside: np.ndarray = np.empty(0, dtype=np.int64)
    if calibrate is not None:
        if not 0 < calibrate < 1:
            raise ValueError(f"--calibrate must lie between 0 and 1 (.1 for a tenth of the rows), got {calibrate}.")
        order = np.random.default_rng(estimator.random_state).permutation(len(y))
        aside, rest = np.sort(order[: round(calibrate * len(y))]), np.sort(order[round(calibrate * len(y)) :])
        if not len(aside) or not len(rest):
            raise ValueError(f"--calibrate {calibrate:g} of {len(y)} rows leaves none on one side.")
        X_aside, y_aside = X.take(aside), y[aside]
        X, y, w = X.take(rest), y[rest], None if w is None else w[rest]
    if estimator.method == "fitc" and len(y) <= 2 * estimator.n_inducing and not keep_rows:
        raise ValueError(
            "FITC's inducing points start at the training rows here: --keep-rows lets the model store them, or choose "
            f"--inducing below half of the {len(y)} rows."
        )
    validation = {}
    if valid is not None:
        words = [f.name for f in X.schema if not _is_numeric(f.type) and not pa.types.is_boolean(f.type)]
        held_out = read_table(valid, words)
        check_columns(held_out.column_names, X.column_names, valid)
        X_val, y_val, w_val = _rows(held_out, valid, target, weights, [])
        validation = {"X_val": X_val.select(X.column_names), "y_val": y_val, "sample_weight_val": w_val}
    estimator.fit(X, y, w, **validation, **kept)
    if len(aside):
        estimator.calibrate(X_aside, y_aside)
    estimator.fitted_.target = replace(estimator.fitted_.target, name=target)


@app.command()
def predict(
    model: Model,
    data: Data,
    out: Annotated[Path, typer.Option(help="File for the predictions: .parquet or .csv.", show_default=False)],
    interval: Annotated[float | None, typer.Option(help="Also the central interval, .9 for 90 %.")] = None,
    quantiles: Annotated[str | None, typer.Option(help="Also these quantiles: .05,.5,.95")] = None,
    force: Force = False,
) -> None:
    """Predict each row of a table: y_mean, y_std, function_std, noise_std, in the order of the rows.

    Example: paragp predict model/ new.parquet --out predictions.parquet --interval .9
    """
    levels = [] if quantiles is None else _levels(quantiles)
    if interval is not None and not 0 < interval < 1:
        raise ValueError(f"--interval must lie between 0 and 1 (.9 for 90 %), got {interval}.")
    if out.is_dir() or (out.exists() and not force):
        raise FileExistsError(f"{out} exists. Choose another --out{'' if out.is_dir() else ', or --force'}.")
    if out.exists() and data.exists() and out.samefile(data):
        raise FileExistsError(f"{out} is the table to predict, so it is not overwritten. Choose another --out.")
    check_place(out)
    fitted, _ = load(model)
    extra = _extra(data, [column.name for column in fitted.columns], fitted.target.name)
    count = 0
    with writing_table(out) as write:
        for batch in rows_of(data, fitted.columns):
            dist = fitted.predict(batch)
            bounds = None if interval is None else fitted.interval(batch, interval, dist=dist)
            write(_predictions(dist, bounds, levels))
            count += batch.num_rows
    _mention(extra)
    typer.echo(f"Wrote {count} predictions to {out}.")


@app.command(name="evaluate")
def evaluate_command(
    model: Model,
    data: Data,
    target: Truth = None,
    weights: Annotated[str | None, typer.Option(help="A column with the weight of each row.")] = None,
    as_json: AsJson = False,
) -> None:
    """Score a model on a table, beside a normal distribution that is the same for every row.

    Example: paragp evaluate model/ test.parquet
    """
    fitted, _ = load(model)
    inputs = [column.name for column in fitted.columns]
    truth = target or fitted.target.name
    also = [truth, weights] if weights else [truth]
    ours, baseline, variance = Scores(), Scores(), np.array(fitted.target.deviation**2)
    for batch in rows_of(data, fitted.columns, also):
        y, *w = (_numbers(batch, name, data) for name in also)
        _check_truth(y, *w)
        ours.add(fitted.predict(batch.select(inputs)), y, *w)
        same = np.full(len(y), fitted.target.mean)
        baseline.add(PredictiveDistribution(same, np.zeros(len(y)), variance), y, *w)
    if not ours.weight:
        raise ValueError(f"The weights {weights!r} are all zero. At least one row must count.")
    _mention(_extra(data, inputs, *also))
    if as_json:
        _echo_json({"rows": ours.rows, "scores": ours.total(), "constant_normal": baseline.total()})
        return
    typer.echo(f"{ours.rows} rows, {truth} in its own units:\n\n{_table(ours.total(), baseline.total())}")


@app.command()
def report(
    model: Model,
    data: Data,
    out: Annotated[Path, typer.Option(help="File for the report, such as report.html.", show_default=False)],
    target: Truth = None,
    force: Force = False,
) -> None:
    """Write one HTML page about a model on a table: how good it is, where it is unsure, which rows surprise it.

    The table is read in batches, so it may be larger than memory, and the page needs no network.

    Example: paragp report model/ test.parquet --out report.html
    """
    check_free(out, overwrite=force)
    if out.exists() and data.exists() and out.samefile(data):
        raise FileExistsError(f"{out} is the table to report on, so it is not overwritten. Choose another --out.")
    fitted, _ = load(model)
    inputs = [column.name for column in fitted.columns]
    truth = target or fitted.target.name
    rows = even_blocks(rows_of(data, fitted.columns, [truth]), BLOCK_ROWS)
    blocks = ((block.select(inputs), _numbers(block, truth, data)) for block in rows)
    write_report(fitted, blocks, out, overwrite=force, target=truth, model=str(model), data=str(data))
    _mention(_extra(data, inputs, truth))
    typer.echo(f"Wrote {out}.")


@app.command()
def export(
    model: Model,
    onnx: Annotated[Path, typer.Option(help="File for the ONNX graph.", show_default=False)],
    interval: Annotated[float | None, typer.Option(help="Also the bounds of this coverage, .9 for 90 %.")] = None,
    force: Force = False,
) -> None:
    """Write a model as one ONNX graph, checked against the model, for engines without Python.

    Example: paragp export model/ --onnx model.onnx --interval .9
    """
    fitted, _ = load(model)
    error = export_onnx(fitted, onnx, interval=interval, overwrite=force)
    typer.echo(f"Wrote {onnx}; it differs from the model by at most {error:.0e} of the target's scale.")


@app.command()
def info(model: Model, as_json: AsJson = False) -> None:
    """Say what a model is.

    Example: paragp info model/
    """
    config = read_config(model)
    fitted, _ = load(model)
    relevance, summary, target = fitted.feature_relevance, fitted.summary, fitted.target
    if as_json:
        _echo_json({
            "method": fitted.method, "target": config["target"], "library": config["library"], "summary": summary,
            "noise_std": fitted.noise_std, "shape": asdict(fitted.shape), "feature_relevance": relevance,
            "columns": config["columns"],
        })  # fmt: skip
        return
    typer.echo(f"{fitted.method} model of {target.name!r}, made by paragp {config['library']}")
    typer.echo(f"rows: {summary['rows']} for training, {summary['validation_rows']} for validation")
    typer.echo(f"inputs: {summary['inputs']}, encoded as {summary['encoded_inputs']} numbers")
    if summary.get("features"):
        typer.echo(f"network before the kernel: {summary['features']}")
    if fitted.calibration is not None:
        by = f", by {fitted.calibration.by}" if fitted.calibration.by else ""
        typer.echo(f"intervals: guaranteed by {len(fitted.calibration.scores)} calibration rows{by}")
    if summary.get("mean"):
        typer.echo(f"network for the mean: {summary['mean']}")
    typer.echo(f"target: mean {target.mean:.6g}, deviation {target.deviation:.6g}")
    noise = fitted.noise_std
    typer.echo("noise: depends on the row" if noise is None else f"noise: deviation {noise:.6g}")
    if not fitted.shape.is_normal:
        typer.echo(f"shape: {fitted.shape}")
    if relevance:
        typer.echo("relevance of the inputs:")
        for name, share in sorted(relevance.items(), key=lambda item: -item[1])[:20]:
            typer.echo(f"  {share:6.1%}  {name!r}")


@app.command()
def methods(as_json: AsJson = False) -> None:
    """List the methods that `fit --method` takes.

    Example: paragp methods
    """
    rows = {
        name: {"label": row.label, "family": row.family.__name__, "covariance": row.covariance.__name__,
               "objective": row.objective.__name__, "beta": row.beta, "gamma": row.gamma, "bb_alpha": row.bb_alpha}
        for name, row in METHODS.items()
    }  # fmt: skip
    if as_json:
        _echo_json(rows | {name: {"label": name, "full_batch": True} for name in FULL_BATCH})
        return
    shown = ("label", "family", "covariance", "objective")
    lines = [("name", *shown), *((name, *(str(row[part]) for part in shown)) for name, row in rows.items())]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    typer.echo(f"{', '.join(FULL_BATCH):<{widths[0]}}  full batch: for up to some thousand rows")
    typer.echo(f"{'auto':<{widths[0]}}  two-stage, or ppgpr-mfd where gradient steps are asked for")


@contextmanager
def _in_a_sentence() -> Iterator[None]:
    """What the user can mend, as one line on standard error and exit code 2; warnings as one line each."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: _say(f"Note: {message}")
        try:
            yield
        except BrokenPipeError:  # whoever reads our output has enough
            raise
        except UsageError as error:
            hint = f" See {error.ctx.command_path} --help." if error.ctx else ""
            _say(f"Error: {error.format_message().rstrip('.')}.{hint}")
            raise typer.Exit(2) from error
        except (ValueError, OSError) as error:
            _say(f"Error: {_reason(error)}")
            raise typer.Exit(2) from error
        except StoppedError as error:
            _say(str(error))
            raise typer.Exit(128 + signal.SIGTERM) from error


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP, where they are not ignored, end the process by an exception: nothing half written stays."""
    found = [number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL]
    for number in found:
        signal.signal(number, _leave)
    try:
        yield
    finally:
        for number in found:
            signal.signal(number, signal.SIG_DFL)


def _leave(number: int, _: Any) -> None:
    raise SystemExit(128 + number)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:  # without "[Errno 28]"
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def _say(text: str) -> None:
    """One line on standard error, whatever the text holds."""
    typer.echo(" ".join("".join(sign if sign.isprintable() else " " for sign in text).split()), err=True)


def _echo_json(content: dict[str, Any]) -> None:
    typer.echo(json.dumps(plain(content)))


def _rows(
    table: pa.Table, path: Path, target: str, weights: str | None, drop: list[str]
) -> tuple[pa.Table, np.ndarray, np.ndarray | None]:
    """Inputs, target and weights of a table."""
    others = list(dict.fromkeys([target, *([weights] if weights else []), *drop]))
    check_columns(table.column_names, others, path)
    X = table.drop_columns(others)
    if not X.num_columns:
        raise ValueError(f"{path} has no input columns beside the target {target!r}.")
    return X, _numbers(table, target, path), None if weights is None else _numbers(table, weights, path)


def _numbers(table: pa.Table, name: str, path: Path) -> np.ndarray:
    """A column as float64, with NaN where it is missing."""
    column = table[name]
    if not _is_numeric(column.type) and column.null_count < len(column):
        raise ValueError(f"The column {name!r} of {path} must hold numbers; it is of type {column.type}.")
    return column.cast(pa.float64(), safe=False).to_numpy().copy()  # Arrow's own memory is not writable


def _is_numeric(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _check_truth(y: np.ndarray, weights: np.ndarray | None = None) -> None:
    """Refuse a target and weights that no score can be made of."""
    if not np.isfinite(y).all():
        raise ValueError(f"The target is missing in {int((~np.isfinite(y)).sum())} of {len(y)} rows. Leave those out.")
    unsound = 0 if weights is None else int((~(np.isfinite(weights) & (weights >= 0))).sum())
    if unsound:
        raise ValueError(
            f"The weights must be known and not negative, and {unsound} of {len(y)} are not. Leave those rows out."
        )


def _extra(path: Path, inputs: list[str], *others: str) -> list[str]:
    return [name for name in names_of(path) if name not in inputs and name not in others]


def _mention(extra: list[str]) -> None:
    if extra:
        _say(f"Note: columns the model does not know are left out: {some(extra, 10)}.")


def _sizes(text: str) -> list[int]:
    if not all(word.strip().isdecimal() for word in text.split(",")):
        raise ValueError(f"Sizes are whole numbers with commas between, such as 256,128,64; got {text!r}.")
    return [int(word) for word in text.split(",")]


def _levels(text: str) -> list[float]:
    try:
        levels = [float(word) for word in text.split(",")]
    except ValueError:
        raise ValueError(f"--quantiles must be numbers between 0 and 1, such as .05,.5,.95; got {text!r}.") from None
    if not all(0 < level < 1 for level in levels):
        raise ValueError(f"--quantiles must lie between 0 and 1, got {text!r}.")
    if len(set(levels)) < len(levels):
        raise ValueError(f"--quantiles must differ from each other, got {text!r}.")
    return levels


def _predictions(dist: PredictiveDistribution, bounds: np.ndarray | None, levels: list[float]) -> dict[str, np.ndarray]:
    columns = {"y_mean": dist.mean, "y_std": dist.std, "function_std": dist.function_std, "noise_std": dist.noise_std}
    if bounds is not None:
        columns["y_lower"], columns["y_upper"] = bounds.T
    for level in levels:
        columns[f"y_q{level}"] = dist.ppf(level)
    return columns


def _table(scores: dict[str, float], baseline: dict[str, float] | None = None) -> str:
    """Scores in lines, beside those of the baseline."""
    lines = [f"{'':<18}{'model':>12}" + (f"{'constant normal':>18}" if baseline else "")]
    for name, value in scores.items():
        other = "" if baseline is None else f"{baseline[name]:>18.4g}"
        lines.append(f"{METRICS[name].label:<18}{value:>12.4g}{other}")
    return "\n".join(lines)


# --- the demonstration ---


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture and the table.", file_okay=False)] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Seed of the data and of every fit.", min=0)] = 0,
    epochs: Annotated[int, typer.Option(help="Epochs per method.", min=1)] = toy.EPOCHS,
) -> None:
    """Fit every method of the paper to one noisy curve: a table, and the paper's first figure.

    Takes a minute or two on two cores. Example: paragp demo --out demo
    """
    typer.echo(
        f"Fitting {len(PAPER)} methods, FITC and the exact GP to {toy.N_TRAIN} rows of a curve whose noise "
        "grows from left to right.",
    )
    out.mkdir(parents=True, exist_ok=True)
    data = toy.make_toy(seed)
    fits = toy.run(data, seed=seed, epochs=epochs)
    table = toy.format_table(toy.table(data, fits))
    typer.echo(f"\n{table}\n\nOn {toy.N_TEST} fresh rows, standardised units. The truth is what generated the data.")
    with writing(out / "table.md") as part:
        part.write_text(table + "\n", encoding="utf-8")
    if importlib.util.find_spec("matplotlib") is None:
        typer.echo('No picture: matplotlib is missing. Install it with: pip install "paragp[report]"')
        return
    for suffix in ("png", "svg"):
        toy.picture(data, fits, out / f"univariate.{suffix}")
    typer.echo(f"Picture: {out / 'univariate.png'} (and .svg)  Table: {out / 'table.md'}")
