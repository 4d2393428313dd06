"""What the paper found, one claim after the other, with its numbers and ours on the same data sets.

A claim is checked by the runs that are done: a comparison of two methods by the splits that both have, a comparison of
more by mean ranks. What it takes to hold is the claim's own number where it has one, else the smallest reading of its
words, and stands in the claim's text.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from paragp.gp.methods import METHODS
from paragp.paper.protocol import read
from paragp.paper.reported import beside
from paragp.paper.tables import (
    COMPARED,
    LABELS,
    METRICS,
    RAISSI_AS_PUBLISHED,
    Results,
    Table,
    of_beta,
    papers_ranks,
    ranks,
    results_of,
)

BASELINES = ("map", "gamma-robust", "svgp", "od-svgp")  # the scalable ones
PPGPR, VARIANCES = "ppgpr-mfd", ("ppgpr-delta", "ppgpr-mf", "ppgpr-chol")  # ever more flexible variances
PRINTED_RAISSI = {"elevators": 26.0, "pol": 6.0}  # NLL, by its authors' code
NEARLY, SMALL = 0.8, 0.5  # of the variance
SMALL_BETA = 0.05
ROBUST_NLL, ROBUST_RMSE = 0.05, 0.05  # nats, share

Gap = Callable[[str, str, str, str], float | None]  # data set, one method, another, metric: how much more one has


class Finding(NamedTuple):
    claim: str
    paper: str
    ours: str
    holds: bool | None  # None: there are no runs to tell


def findings(folder: Path, profile: str) -> Table:
    """All claims, those that do not hold among them, by the runs in a folder."""
    runs, results = list(read(folder)), results_of(folder, profile)
    found = [
        *(_best(results, metric) for metric in METRICS),
        _ahead(results, PPGPR, "od-svgp", "PPGPR is ahead of OD-SVGP by about .35 nats (.3 or more)", at_least=0.3),
        _ahead(results, "svgp", "map", "SVGP is ahead of MAP by about .05 nats (.02 to .1)", at_least=0.02, most=0.1),
        _on_most(results, PPGPR, ["exact"], "nll", "PPGPR is ahead of the exact GP on NLL, on most sets"),
        _on_most(results, "exact", [PPGPR], "rmse", "The exact GP is ahead of PPGPR on RMSE, on most sets"),
        _on_most(results, "vfitc", BASELINES, "nll", "VFITC is ahead of all four baselines on NLL, on most sets"),
        *_noise_share(results),
        *_variances(results),
        _small_beta(results),
        _robust(runs),
        *(_raissi(results, *row) for row in (("raissi", "rmse"), ("raissi", "nll"), (RAISSI_AS_PUBLISHED, "nll"))),
        _on_most(results, "raissi", [RAISSI_AS_PUBLISHED], "nll", "The noise at test improves Raissi et al.'s NLL"),
    ]  # fmt: skip
    holds = {True: "yes", False: "no", None: "not run"}
    caption = (
        f"The paper's findings beside our runs (profile {profile}). The paper's numbers are of its printed means on "
        "the same data sets, as far as it has them; ours compare methods on the splits that both have."
    )
    rows = [[row.claim, row.paper, row.ours, holds[row.holds]] for row in found]
    return Table("findings", caption, ["finding", "the paper's", "ours", "holds"], rows)


def _best(results: Results, metric: str) -> Finding:
    ours = ranks(results, COMPARED, metric)
    datasets = [dataset for dataset in results.datasets if results.splits(dataset, COMPARED)]
    papers = papers_ranks(datasets, COMPARED, metric)

    def said(found: dict[str, float]) -> str:
        first, second = sorted(found, key=found.__getitem__)[:2]
        return f"{LABELS[first]} {found[first]:.2f}, then {LABELS[second]} {found[second]:.2f}"

    claim = f"PPGPR has the best mean rank on {metric.upper()}"
    if not ours:
        return Finding(claim, "", "", None)
    return Finding(claim, said(papers) if papers else "", said(ours), min(ours, key=ours.__getitem__) == PPGPR)


def _gap(results: Results) -> Gap:
    def gap(dataset: str, one: str, other: str, metric: str) -> float | None:
        splits = results.splits(dataset, [one, other])
        gaps = [results.score(dataset, one, k, metric) - results.score(dataset, other, k, metric) for k in splits]
        return statistics.mean(gaps) if gaps else None

    return gap


def _papers_gap(dataset: str, one: str, other: str, metric: str) -> float | None:
    """The same of the printed means."""
    found = [beside(dataset, method, metric) for method in (one, other)]
    return None if None in found else found[0].mean - found[1].mean  # type: ignore[union-attr]


def _gaps(gap: Gap, datasets: Sequence[str], one: str, others: Sequence[str], metric: str) -> dict[str, float]:
    """By data set, to the best of the others; sets that lack one of them are left out."""
    found = {dataset: [gap(dataset, one, other, metric) for other in others] for dataset in datasets}
    return {
        dataset: max(value for value in gaps if value is not None)
        for dataset, gaps in found.items()
        if gaps and None not in gaps
    }


def _each(values: dict[str, float], form: str = "+.2f") -> str:
    return ", ".join(f"{dataset} {value:{form}}" for dataset, value in values.items())


def _ahead(results: Results, one: str, other: str, claim: str, *, at_least: float, most: float = 1e9) -> Finding:
    """The mean gap in NLL."""
    ours = _gaps(_gap(results), results.datasets, one, [other], "nll")
    papers = _gaps(_papers_gap, list(ours), one, [other], "nll")
    if not ours:
        return Finding(claim, "", "", None)
    mean = -statistics.mean(ours.values())

    def said(gaps: dict[str, float]) -> str:
        return f"{-statistics.mean(gaps.values()):.2f} ({_each({k: -v for k, v in gaps.items()})})" if gaps else ""

    return Finding(claim, said(papers), said(ours), at_least <= mean <= most)


def _on_most(results: Results, one: str, others: Sequence[str], metric: str, claim: str) -> Finding:
    ours = _gaps(_gap(results), results.datasets, one, others, metric)
    papers = _gaps(_papers_gap, list(ours), one, others, metric)

    def said(gaps: dict[str, float]) -> str:
        ahead = sum(value < 0 for value in gaps.values())
        return f"{ahead} of {len(gaps)} ({_each(gaps, '+.3f')})" if gaps else ""

    if not ours:
        return Finding(claim, "", "", None)
    return Finding(claim, said(papers), said(ours), _most(value < 0 for value in ours.values()))


def _noise_share(results: Results) -> list[Finding]:
    """Printed as a figure only: near one for the baselines, small for PPGPR."""
    methods = [
        method for method in (*BASELINES, PPGPR) if any(results.splits(name, [method]) for name in results.datasets)
    ]
    splits = {name: found for name in results.datasets if (found := results.splits(name, methods))}
    baselines = [method for method in BASELINES if method in methods]
    if PPGPR not in methods or not splits or not baselines:
        splits = {}

    def share(name: str, method: str) -> float:
        return statistics.mean(results.score(name, method, k, "noise_fraction") for k in splits[name])

    least = {name: min(share(name, method) for method in baselines) for name in splits}
    largest = {name: max(share(name, method) for method in baselines) for name in splits}
    of_baselines = ", ".join(f"{name} {least[name]:.2f} to {largest[name]:.2f}" for name in splits)
    of_ppgpr = {name: share(name, PPGPR) for name in splits}
    near, small = (
        f"The baselines' variance is nearly all noise (share of {NEARLY:g} or more), on most sets",
        f"PPGPR's is not: its share is small ({SMALL:g} or less), on most sets",
    )
    return [
        Finding(near, "a figure", of_baselines, _most(value >= NEARLY for value in least.values())),
        Finding(small, "a figure", _each(of_ppgpr, ".2f"), _most(value <= SMALL for value in of_ppgpr.values())),
    ] if splits else [Finding(near, "", "", None), Finding(small, "", "", None)]  # fmt: skip


def _variances(results: Results) -> list[Finding]:
    """The ablation: NLL falls and RMSE rises with the capacity of the variance; MFD has the better of both."""
    methods = (*VARIANCES, PPGPR)
    splits = {name: found for name in results.datasets if (found := results.splits(name, methods))}

    def ours(metric: str) -> dict[str, list[float]]:
        return {
            name: [statistics.mean(results.score(name, method, k, metric) for k in found) for method in methods]
            for name, found in splits.items()
        }

    def finding(claim: str, metric: str, rule: Callable[[list[float]], bool]) -> Finding:
        found = ours(metric)
        printed = {name: [beside(name, method, metric) for method in methods] for name in found}
        papers = {name: [each.mean for each in row if each] for name, row in printed.items() if None not in row}
        if not found:
            return Finding(claim, "", "", None)
        return Finding(claim, _rows(papers), _rows(found), _most(rule(row) for row in found.values()))

    return [
        finding("NLL falls from δ to MF to Chol, on most sets", "nll", lambda row: row[0] > row[1] > row[2]),
        finding("RMSE rises from δ to MF to Chol, on most sets", "rmse", lambda row: row[0] < row[1] < row[2]),
        finding(
            "MFD mends it: its RMSE is the lowest of the four, on most sets", "rmse", lambda row: row[3] == min(row)
        ),
    ]


def _rows(found: dict[str, list[float]]) -> str:
    return "; ".join(f"{name} {' '.join(f'{value:.3f}' for value in row)}" for name, row in found.items())


def _most(holds: Iterable[bool]) -> bool:
    held = list(holds)
    return 2 * sum(held) > len(held)


def _small_beta(results: Results) -> Finding:
    """Where a run searched its grid, it set out from a value near 300 over the rows, or from .05."""
    claim = f"PPGPR prefers small beta_reg: {SMALL_BETA:g} or less in most runs (of its grid {_grid()})"
    chosen = [run["beta"] for (_, method, _), run in results.runs.items() if method == PPGPR]
    if not chosen:
        return Finding(claim, "", "", None)
    small = sum(beta <= SMALL_BETA for beta in chosen)
    counts = ", ".join(f"{beta:g}: {chosen.count(beta)}" for beta in sorted(set(chosen)))
    return Finding(
        claim, "most sets", f"{small} of {len(chosen)} ({counts})", _most(beta <= SMALL_BETA for beta in chosen)
    )


def _grid() -> str:
    return ", ".join(f"{beta:g}" for beta in METHODS[PPGPR].beta)


def _robust(runs: Sequence[dict[str, Any]]) -> Finding:
    claim = "PPGPR is robust to beta_reg from 0 to 1: NLL varies by .05 nats at most, RMSE by 5 %"
    found = {name: by_beta for name, by_beta in of_beta(runs).items() if {0, 1} <= set(by_beta)}
    if not found:
        return Finding(claim, "", "", None)
    spans = {}
    for dataset, by_beta in found.items():
        nlls, rmses = ([statistics.mean(scores[metric]) for scores in by_beta.values()] for metric in ("nll", "rmse"))
        spans[dataset] = max(nlls) - min(nlls), max(rmses) / min(rmses) - 1
    said = ", ".join(f"{name} {nats:.2f} and {share:.0%}" for name, (nats, share) in spans.items())
    held = all(nats <= ROBUST_NLL and share <= ROBUST_RMSE for nats, share in spans.values())
    return Finding(claim, "0.05 and 5% at most", said, held)


def _raissi(results: Results, method: str, metric: str) -> Finding:
    as_published = method == RAISSI_AS_PUBLISHED
    noise = {"rmse": "", "nll": ", without the noise at test" if as_published else ", with the noise at test"}
    claim = f"Raissi et al.{noise[metric]}: behind every baseline on {metric.upper()}, on most sets"
    gap = _gap(results)
    behind = {
        name: min(value for value in values if value is not None)
        for name in results.datasets
        if None not in (values := [gap(name, method, other, metric) for other in BASELINES])
    }
    if not behind:
        return Finding(claim, "", "", None)
    scores = {name: statistics.mean(results.scores(name, method, metric)) for name in behind}
    said = ", ".join(f"{name} {value:.2f} ({behind[name]:+.2f})" for name, value in scores.items())
    printed = ", ".join(f"{name} {value:g}" for name, value in PRINTED_RAISSI.items()) + " (its authors' code)"
    return Finding(claim, printed if as_published else "in words", said, _most(value > 0 for value in behind.values()))
