"""The command line: `paragp COMMAND`, also `python -m paragp COMMAND`."""

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from paragp import __version__
from paragp.atomic import writing
from paragp.gp.methods import METHODS
from paragp.paper import toy

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Calibrated uncertainty for regression on large tables.",
)


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
        f"Fitting {len(METHODS)} methods, FITC and the exact GP to {toy.N_TRAIN} rows of a curve whose noise "
        "grows from left to right.",
    )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"cannot make the folder {out}: {error.strerror}", param_hint="--out") from error
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
