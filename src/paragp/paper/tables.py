"""The paper's tables from the runs that are done, beside the numbers that it printed.

Ranks (Tables 1 and 2) are taken within each split and averaged; the paper's are recomputed from its printed means on
the same data sets, so that they compare. A method's run of a split is the one with the best validation NLL, where its
grid was searched by separate runs.
"""

import csv
import io
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy.stats import rankdata

from paragp.atomic import writing
from paragp.data.datasets import DATASETS, FLOOR
from paragp.gp.methods import METHODS
from paragp.paper.protocol import PROFILES, read
from paragp.paper.reported import beside, reported

METRICS = ("nll", "rmse", "crps")
COMPARED = ("map", "gamma-robust", "svgp", "od-svgp", "vfitc", "ppgpr-mfd")  # Table 1
ABLATION = ("map", "svgp", "ppgpr-delta", "ppgpr-mf", "ppgpr-chol", "ppgpr-mfd")  # Table 2
RAISSI_AS_PUBLISHED = "raissi-without-noise"  # its authors' predictive variance leaves the noise out
LABELS = {name: method.label for name, method in METHODS.items()} | {
    "exact": "Exact", "raissi": "Raissi et al.", RAISSI_AS_PUBLISHED: "Raissi et al., no noise",
}  # fmt: skip

ESCAPES = {"α": r"$\alpha$", "γ": r"$\gamma$", "δ": r"$\delta$", "±": r"$\pm$", "_": r"\_", "%": r"\%"}  # for LaTeX
WIDE = 40  # characters, beyond which a column of LaTeX breaks its lines

Value = tuple[float | None, float | None]  # of beta_reg and gamma, as asked for: None is searched within a run


class Results:
    """Test scores by data set, method and split.

    `values` are what the profile runs of a method: it counts once all of them are there, and other runs do not.
    """

    def __init__(
        self, runs: Iterable[dict[str, Any]], values: Callable[[str], Sequence[Value]] = lambda method: [(None, None)]
    ) -> None:
        found: dict[tuple[str, str, int], dict[Value, dict[str, Any]]] = {}
        for run in runs:
            spec = run["spec"]
            value = spec["beta"], spec["gamma"]
            if value in values(spec["method"]):
                found.setdefault((spec["dataset"], spec["method"], spec["split"]), {})[value] = run
                if "without_noise" in run:
                    key = spec["dataset"], RAISSI_AS_PUBLISHED, spec["split"]
                    found[key] = {value: run["without_noise"]}
        self.runs = {
            key: min(by_value.values(), key=lambda run: run["valid"]["nll"])
            for key, by_value in found.items()
            if len(by_value) == len(values(key[1]))
        }

    @property
    def datasets(self) -> list[str]:
        """In the paper's order, then others."""
        found = {dataset for dataset, _, _ in self.runs}
        return [name for name in DATASETS if name in found] + sorted(found - {*DATASETS})

    def splits(self, dataset: str, methods: Sequence[str]) -> list[int]:
        """The splits of a data set that all of these methods were run on."""
        found = [{k for name, other, k in self.runs if (name, other) == (dataset, method)} for method in methods]
        return sorted(set.intersection(*found)) if found else []

    def said_splits(self) -> str:
        """How many splits of each data set the methods were run on, in words."""
        return said_splits([len(self.splits(*key)) for key in {(name, (method,)) for name, method, _ in self.runs}])

    def score(self, dataset: str, method: str, k: int, metric: str) -> float:
        return float(self.runs[dataset, method, k]["scores"][metric])

    def scores(self, dataset: str, method: str, metric: str) -> list[float]:
        """Over the splits that were run."""
        return [self.score(dataset, method, k, metric) for k in self.splits(dataset, [method])]


def said_splits(counts: Sequence[int]) -> str:
    """How many splits of each data set there are, in words.

    >>> said_splits([1]), said_splits([2, 2]), said_splits([1, 2])
    ('1 split of each set', '2 splits of each set', '1 to 2 splits of each set')
    """
    low, high = min(counts, default=0), max(counts, default=0)
    return f"{low if low == high else f'{low} to {high}'} split{'' if high == 1 else 's'} of each set"


ByBeta = dict[str, dict[float, dict[str, list[float]]]]  # data set, beta_reg, metric: scores of the splits


def of_beta(runs: Iterable[dict[str, Any]]) -> ByBeta:
    """Test scores of PPGPR-MFD by data set and beta_reg, over the splits that all values of it were run on."""
    found: dict[str, dict[float, dict[int, dict[str, float]]]] = {}
    for run in runs:
        spec = run["spec"]
        if spec["method"] == "ppgpr-mfd" and spec["beta"] is not None:
            found.setdefault(spec["dataset"], {}).setdefault(spec["beta"], {})[spec["split"]] = run["scores"]
    by_beta: ByBeta = {}
    for dataset, values in found.items():
        splits = sorted(set.intersection(*(set(scores) for scores in values.values())))
        if len(values) > 1 and splits:
            by_beta[dataset] = {
                beta: {metric: [scores[k][metric] for k in splits] for metric in METRICS}
                for beta, scores in values.items()
            }
    return by_beta


@dataclass(frozen=True)
class Table:
    """A caption, column heads and cells; `best` are the places of cells to be set in bold."""

    name: str
    caption: str
    columns: list[str]
    rows: list[list[str]]
    best: frozenset[tuple[int, int]] = frozenset()

    def markdown(self) -> str:
        rule = ["---", *["---:"] * (len(self.columns) - 1)]
        lines = [
            self.columns,
            rule,
            *([self._cell(i, j, "**{}**") for j in range(len(row))] for i, row in self._rows()),
        ]
        return "\n".join([self.caption, "", *(f"| {' | '.join(line)} |" for line in lines)])

    def latex(self) -> str:
        heads = " & ".join(_escaped(column) for column in self.columns)
        lines = [
            " & ".join(self._cell(i, j, r"\textbf{{{}}}", _escaped) for j in range(len(row))) + r" \\"
            for i, row in self._rows()
        ]
        head = rf"{heads} \\ \hline"
        return "\n".join([
            "% needs: \\usepackage{longtable}", r"\begingroup\footnotesize\setlength{\tabcolsep}{3pt}",
            rf"\begin{{longtable}}{{{self._widths()}}}", rf"\caption{{{_escaped(self.caption)}}} \\",
            head, r"\endfirsthead", head, r"\endhead", *lines, r"\end{longtable}", r"\endgroup",
        ])  # fmt: skip

    def _widths(self) -> str:
        """LaTeX's columns: numbers to the right, and what is longer than that in lines."""
        longest = [max(len(row[j]) for row in [self.columns, *self.rows]) for j in range(len(self.columns))]
        kinds = ["p{.26\\linewidth}" if size > WIDE else "r" if j else "l" for j, size in enumerate(longest)]
        return "".join(kinds)

    def csv(self) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.columns, *self.rows])
        return text.getvalue().rstrip("\n")

    def _rows(self) -> Iterable[tuple[int, list[str]]]:
        return enumerate(self.rows)

    def _cell(self, i: int, j: int, bold: str, escape: Any = str) -> str:
        text = escape(self.rows[i][j])
        return bold.format(text) if (i, j) in self.best else text


def _escaped(text: str) -> str:
    for letter, command in ESCAPES.items():
        text = text.replace(letter, command)
    return text


def ranks(results: Results, methods: Sequence[str], metric: str) -> dict[str, float]:
    """A method's mean rank, 1 is best, over all splits of all data sets that each of the methods was run on."""
    found = [
        rankdata([results.score(dataset, method, k, metric) for method in methods])
        for dataset in results.datasets
        for k in results.splits(dataset, methods)
    ]
    if not found:
        return {}
    return {method: statistics.mean(row[i] for row in found) for i, method in enumerate(methods)}


def papers_ranks(datasets: Iterable[str], methods: Sequence[str], metric: str) -> dict[str, float]:
    """The same from the paper's printed means, on these data sets."""
    printed = reported()
    found = [
        rankdata([printed[dataset, method, metric].mean for method in methods])
        for dataset in datasets
        if all((dataset, method, metric) in printed for method in methods)
    ]
    return {method: statistics.mean(row[i] for row in found) for i, method in enumerate(methods)} if found else {}


def rank_table(name: str, results: Results, methods: Sequence[str], profile: str) -> Table:
    """Table 1 or 2: mean ranks by metric, ours and the paper's on the same sets."""
    datasets = [dataset for dataset in results.datasets if results.splits(dataset, methods)]
    splits = [len(results.splits(dataset, methods)) for dataset in datasets]
    ours = {metric: ranks(results, methods, metric) for metric in METRICS}
    papers = {metric: papers_ranks(datasets, methods, metric) for metric in METRICS}
    rows = [
        [
            LABELS[method],
            *(_number(found.get(method), 2) for metric in METRICS for found in (ours[metric], papers[metric])),
        ]
        for method in methods
    ]
    best = frozenset(
        (methods.index(min(found, key=found.__getitem__)), 1 + 2 * i) for i, found in enumerate(ours.values()) if found
    )
    caption = (
        f"Mean ranks on {', '.join(datasets) or 'no data set'} (profile {profile}, {said_splits(splits)}); 1 is best. "
        "Beside ours the paper's, recomputed from its printed means on the same data sets as far as it has them."
    )
    columns = ["method", *(head for metric in METRICS for head in (metric.upper(), "paper"))]
    return Table(name, caption, columns, rows, best)


def complete_table(results: Results, profile: str) -> Table:
    """Every score with its standard error over splits, best in bold, and the paper's mean."""
    methods = [method for method in LABELS if any(key[1] == method for key in results.runs)]
    rows: list[list[str]] = []
    best: set[tuple[int, int]] = set()
    for dataset in results.datasets:
        present = [method for method in methods if results.splits(dataset, [method])]
        common = results.splits(dataset, present)
        for method in present:
            row = [dataset, LABELS[method], str(len(results.splits(dataset, [method])))]
            for metric in METRICS:
                totals = {m: sum(results.score(dataset, m, k, metric) for k in common) for m in present}
                if common and method == min(totals, key=totals.__getitem__):
                    best.add((len(rows), len(row)))
                ours, printed = results.scores(dataset, method, metric), beside(dataset, method, metric)
                row += [
                    _score(statistics.mean(ours), standard_error(ours)),
                    "" if printed is None else _score(printed.mean, printed.stderr),
                ]
            rows.append(row)
    caption = (
        f"Test scores (profile {profile}, {results.said_splits()}), standardised, deviations floored at {FLOOR:g}: "
        "mean ± standard error over splits, and the paper's, of ten splits (Exact: three) without a floor; of "
        "houseelectric it had another copy. Bold: the best over those splits of a data set that all its methods were "
        "run on."
    )
    columns = ["data set", "method", "splits", *(head for metric in METRICS for head in (metric.upper(), "paper"))]
    return Table("complete", caption, columns, rows, frozenset(best))


def results_of(folder: Path, profile: str) -> Results:
    """What is done of a profile."""
    results = Results(read(folder), PROFILES[profile].values)
    if not results.runs:
        raise ValueError(f"There are no runs in {folder}. Make some with: paragp paper run --profile {profile}")
    return results


def tables(folder: Path, profile: str) -> list[Table]:
    """All tables of a folder of runs."""
    results = results_of(folder, profile)
    return [
        rank_table("table1", results, COMPARED, profile),
        rank_table("table2", results, ABLATION, profile),
        complete_table(results, profile),
    ]


def write(found: Iterable[Table], folder: Path) -> list[Path]:
    """Each table as Markdown, CSV and LaTeX."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for table in found:
        for suffix, text in (("md", table.markdown()), ("csv", table.csv()), ("tex", table.latex())):
            files.append(folder / f"{table.name}.{suffix}")
            with writing(files[-1]) as part:
                part.write_text(text + "\n", encoding="utf-8")
    return files


def _score(mean: float, error: float | None) -> str:
    return f"{mean:.3f}" if error is None or math.isnan(error) else f"{mean:.3f} ± {error:.3f}"


def standard_error(values: list[float]) -> float | None:
    """Of the mean; None for a single value."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
