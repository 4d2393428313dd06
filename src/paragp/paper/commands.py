"""`paragp paper`: the paper's comparison from the command line."""

import importlib.util
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from paragp.data.datasets import DATASETS, fault, load, present
from paragp.gp.methods import METHODS, PAPER
from paragp.paper import protocol, trips, uci
from paragp.paper.figures import figures as make_figures
from paragp.paper.figures import save as save_figure
from paragp.paper.findings import findings
from paragp.paper.protocol import BASELINES, PROFILES
from paragp.paper.tables import tables as make_tables
from paragp.paper.tables import write as write_tables

app = typer.Typer(no_args_is_help=True, help="Rebuild the paper: its runs, tables and figures beside its numbers.")

EXPERIMENTS = ("univariate", "trips")
Experiment = Annotated[str, typer.Option(help="univariate: the tables of numbers; trips: calibrated networks.")]
ProfileName = Annotated[str, typer.Option(help=f"How far to go: {', '.join(PROFILES)}.")]
Folder = Annotated[Path, typer.Option(help="Where the runs are kept.", file_okay=False)]


@app.command()
def run(
    profile: ProfileName = "smoke",
    experiment: Experiment = "univariate",
    datasets: Annotated[str | None, typer.Option(help="Comma-separated; the profile's if left out.")] = None,
    methods: Annotated[str | None, typer.Option(help="Comma-separated; all if left out.")] = None,
    splits: Annotated[str | None, typer.Option(help="Comma-separated; the profile's if left out.")] = None,
    betas: Annotated[
        str | None,
        typer.Option(help="Values of beta_reg, comma-separated, each held in a run of its own; else it is searched."),
    ] = None,
    shard: Annotated[str, typer.Option(help="Part i of k of the grid, such as 2/4.")] = "1/1",
    results: Folder = Path("results"),
) -> None:
    """Do the runs that are missing; stop and start it as you like.

    `smoke` takes a minute on data that comes with scikit-learn; `lite` is the paper's comparison with our default
    recipe; `full` is the paper's protocol to the letter: months of two cores, so
    give it a cluster, and shards. Example: paragp paper run --profile smoke
    """
    deep = _is_trips(experiment)
    chosen = trips.PROFILES[_profile(profile)] if deep else PROFILES[_profile(profile)]
    wanted = range(chosen.splits) if splits is None else _numbers(splits)
    held = None if betas is None else _values(betas)
    if isinstance(chosen, trips.Profile):
        if held is not None:
            raise ValueError("The trips have no --betas: beta_reg is searched on validation rows.")
        names = _words(methods, tuple(trips.DEEP), "method")
        cities = _words(datasets, chosen.cities, "city", (*trips.CITIES, *chosen.cities))
        specs = trips.specs(profile, cities, names, wanted)
    else:
        names = _words(methods, (*PAPER, *BASELINES), "method", (*METHODS, *BASELINES))
        tables = _words(datasets, chosen.datasets, "data set", (*DATASETS, *chosen.datasets))
        if held is not None:
            asked, names = names, tuple(name for name in names if name in METHODS)
            if not names:
                raise ValueError(f"There is no beta_reg in {' and '.join(asked)}. Leave --betas out.")
        specs = chosen.specs(profile, tables, names, wanted, held)
    specs = protocol.sharded(specs, shard)
    if not specs:
        raise ValueError("That leaves nothing to run. Ask for other methods, splits or a smaller number of shards.")
    folder = _folder(results, profile, deep)
    left = protocol.missing(specs, folder)
    typer.echo(f"{len(specs)} runs, {len(specs) - len(left)} of them done before; results in {folder}.")
    load_table, execute = (trips.city, trips.execute) if deep else (uci.table, uci.execute)
    for name in dict.fromkeys(spec.dataset for spec in left):
        load_table(name)  # fetched, or found to be missing, before anything is trained
    failures = protocol.run(left, folder, execute, work=trips.work if deep else uci.work)
    if failures:
        typer.echo(f"{len(failures)} of {len(left)} runs failed: {', '.join(failures)}.", err=True)
        raise typer.Exit(1)
    typer.echo(f"{len(left)} runs done.")


@app.command()
def tables(
    profile: ProfileName = "smoke", experiment: Experiment = "univariate", results: Folder = Path("results")
) -> None:
    """Ranks, scores and findings of the runs that are done, beside the paper's: Markdown, CSV and LaTeX.

    Example: paragp paper tables --profile lite
    """
    deep = _is_trips(experiment)
    folder = _folder(results, _profile(profile), deep) / "tables"
    found = [trips.table(folder.parent, profile)] if deep else make_tables(folder.parent, profile)
    if not deep:
        found.append(findings(folder.parent, profile))
    write_tables(found, folder)
    typer.echo("\n\n".join(table.markdown() for table in found))
    typer.echo(f"\nAlso as CSV and LaTeX in {folder}.")


@app.command()
def figures(
    profile: ProfileName = "smoke",
    experiment: Experiment = "univariate",
    results: Folder = Path("results"),
    growth: Annotated[
        Path | None,
        typer.Option(
            help="What benchmarks/step.py --growth --json printed last; growth.json among the results if left out."
        ),
    ] = None,
) -> None:
    """The paper's figures from the runs that are done, as PNG and SVG.

    Example: paragp paper figures --profile lite
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError('Figures need matplotlib. Install it with: pip install "paragp[report]"')
    deep = _is_trips(experiment)
    folder = _folder(results, _profile(profile), deep)
    costs = results / "growth.json" if growth is None else growth
    if deep:
        made = save_figure(trips.figure(folder), folder / "figures", "trips")
    else:
        made = make_figures(folder, profile, costs if growth or costs.exists() else None)
    for file in made:
        typer.echo(str(file))
    if not deep and not growth and not costs.exists():
        typer.echo(
            f"No picture of time and memory: there is no {costs}. It holds what "
            "`python benchmarks/step.py --growth --json` printed last."
        )


@app.command()
def datasets(
    check: Annotated[bool, typer.Option("--check", help="Read those that are here, and compare.")] = False,
) -> None:
    """The paper's data sets: how large, what is predicted, and where each is.

    A set that is nowhere is downloaded by the first run that needs it. Example: paragp paper datasets --check
    """
    faults = 0
    for dataset, place in present():
        where = f"downloaded when needed from {dataset.urls[0]}" if place is None else str(place)
        typer.echo(f"{dataset.name:<15} {dataset.rows:>9,} x {dataset.inputs:<3}  {dataset.target}")
        typer.echo(f"{'':<15} {where}")
        if check and place is not None:
            found = fault(dataset, np.column_stack(load(dataset.name)))
            right = "as expected" if dataset.digest else "of the expected size (its values are not known)"
            typer.echo(f"{'':<15} {right if found is None else f'NOT the same: {found}'}")
            faults += found is not None
    if faults:
        raise typer.Exit(1)


def _is_trips(experiment: str) -> bool:
    if experiment not in EXPERIMENTS:
        raise ValueError(f"There is no experiment {experiment!r}. Experiments: {', '.join(EXPERIMENTS)}.")
    return experiment == "trips"


def _folder(results: Path, profile: str, deep: bool) -> Path:
    return results / "trips" / profile if deep else results / profile


def _profile(name: str) -> str:
    if name not in PROFILES:
        raise ValueError(f"There is no profile {name!r}. Profiles: {', '.join(PROFILES)}.")
    return name


def _words(text: str | None, default: tuple[str, ...], what: str, known: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Each of the words once."""
    if text is None:
        return default
    found = tuple(dict.fromkeys(text.split(",")))
    unknown = [word for word in found if word not in (known or default)]
    if unknown:
        raise ValueError(f"There is no {what} {unknown[0]!r}. Known: {', '.join(dict.fromkeys(known or default))}.")
    return found


def _values(text: str) -> list[float]:
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        found = [-1.0]
    if not all(0 <= value < float("inf") for value in found):
        raise ValueError(f"Values of beta_reg are numbers from 0 with commas between, such as 0,.05,1; got {text!r}.")
    return list(dict.fromkeys(found))


def _numbers(text: str) -> list[int]:
    if not all(word.isdecimal() for word in text.split(",")):
        raise ValueError(f"Splits are whole numbers from 0 with commas between, such as 0,1; got {text!r}.")
    return list(dict.fromkeys(int(word) for word in text.split(",")))
