"""The tables of README and docs/, from the files in benchmarks/results/ and results/lite/.

python benchmarks/table.py            # shows them
python benchmarks/table.py --write    # puts them into the pages, in place of the tables with the same heads
"""

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path

from candidates import LABELS as CANDIDATES
from gpytorch_curve import by_seconds, ours_by_seconds, place
from quality import FRESH, reached
from scale import step_seconds
from small import CONSTANT, DEFAULT, MADE, OTHERS, PUBLIC, verdict

from paragp.gp.methods import METHODS, PAPER
from paragp.metrics import COVERAGE_LEVELS
from paragp.paper.protocol import SMALLER as SETS
from paragp.paper.protocol import read, timing
from paragp.paper.reported import reported
from paragp.paper.tables import METRICS

RESULTS = Path(__file__).parent / "results"
LITE = Path(__file__).parents[1] / "results" / "lite"


def load(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def markdown(columns: list[str], rows: list[list[str]], *, words: int = 1) -> str:
    """A table whose first columns hold words, and the others numbers."""
    rule = ["---" if i < words else "---:" for i in range(len(columns))]
    return "\n".join(
        ["| " + " | ".join(columns) + " |", f"|{'|'.join(rule)}|", *(f"| {' | '.join(row)} |" for row in rows)]
    )


def step_table() -> str:
    rows = {(row["method"], row["B"]): row for row in load("step")["rows"]}
    columns = ["step, M = 1000", "B = 1000: ours", "GPyTorch", "ratio", "B = 10,000: ours", "GPyTorch", "ratio"]
    lines = []
    for name in PAPER:
        small, large = rows[name, 1000], rows[name, 10_000]
        note = " (its SVGP)" if small["note"] else ""
        lines.append([
            f"`{name}`", f"{small['ours_ms']:.0f} ms", f"{small['gpytorch_ms']:.0f} ms{note}", f"{small['ratio']:.1f}",
            f"{large['ours_ms'] / 1e3:.2f} s", f"{large['gpytorch_ms'] / 1e3:.2f} s", f"{large['ratio']:.1f}",
            f"{large['ours_peak_mb'] / 1e3:.1f} / {large['gpytorch_peak_mb'] / 1e3:.1f} GB",
        ])  # fmt: skip
    return markdown([*columns, "peak memory"], lines)


def predict_table() -> str:
    columns = {
        "ours, rows/s": "ours_rows_per_s", "GPyTorch, rows/s": "gpytorch_rows_per_s", "ratio": "ratio",
        "mean alone, rows/s": "mean_alone_rows_per_s", "onnxruntime, rows/s": "onnxruntime_rows_per_s",
    }  # fmt: skip
    lines = []
    for row in load("predict")["rows"]:
        cells = [f"{row[key]:.1f}" if key == "ratio" else f"{row[key] / 1e3:.0f} k" for key in columns.values()]
        lines.append([f"`{row['method']}`", *cells])
    return markdown(["prediction, M = 1000", *columns], lines)


def products_table() -> str:
    """What torch multiplies and factorises by, what we do, and what torch's would do."""
    lines = []
    for row in load("products")["rows"]:
        cells = [f"{row[key]:.1f}" if key in row else "as torch" for key in ("torch_ms", "ours_ms", "told_ms")]
        lines.append([row["operation"], *cells])
    return markdown(["1000 x 1000, one thread, ms", "torch", "ours", "torch, told that it may"], lines)


def growth_table() -> str:
    """Exponents of time and memory in M, B and d."""
    exponents = ("time_exponent", "paper_time_exponent", "memory_exponent", "paper_memory_exponent")
    columns = ["method", "in", "from, to", "time grows as", "the paper's", "memory grows as", "the paper's"]
    lines = []
    for row in load("../../results/growth")["growth"]:
        v, sizes = row["variable"], row["sizes"]
        between = f"{min(sizes):,}, {max(sizes):,}"
        lines.append([f"`{row['method']}`", v, between, *(f"{v}^{row[name]:.2f}" for name in exponents)])
    return markdown(columns, lines, words=3)


def precision_table() -> str:
    columns = ["data set", "NLL, float32", "float64", "gap, five seeds", "mean", "variance", "gradient, by rows'"]
    lines = []
    for row in load("precision")["rows"]:
        worst = row["worst_relative_error"]
        errors = (worst["mean"], max(worst["ktilde"], worst["svar"]), worst["gradient_of_rows"], worst["gradient"])
        gap = f"{row['nll_gap']:+.4f} ± {row['nll_gap_stderr']:.4f}"
        scores = [f"{row['nll_float32']:.3f}", f"{row['nll_float64']:.3f}"]
        lines.append([row["dataset"], *scores, gap, *(f"{error:.0e}" for error in errors)])
    return markdown([*columns, "by its own"], lines)


def quality_runs() -> dict[tuple[str, str], list[dict]]:
    """The stored runs with the default recipe, by data set and method: those of quality.py, and of `paragp paper run`
    where there are none (the two train alike)."""
    files = [file for file in sorted((RESULTS / "quality").glob("[!.]*.json")) if "=" not in file.name]  # the defaults
    runs = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    known = {(run["dataset"], run["method"], run["split"]) for run in runs}
    runs += [run for run in lite_runs() if (run["dataset"], run["method"], run["split"]) not in known]
    found: dict[tuple[str, str], list[dict]] = {}
    for run in runs:
        found.setdefault((run["dataset"], run["method"]), []).append(run)
    return found


def lite_runs() -> list[dict]:
    """The runs of `paragp paper run --profile lite` that searched their own grid, as quality.py would store them."""
    found = []
    for run in read(LITE):
        spec, seconds = run["spec"], timing(run["spec"], LITE)
        if spec["beta"] is None:
            machine = {key: seconds.get(key) for key in ("threads", "cores", "preloaded")}
            done = {"epochs": run.get("epochs"), "curve": [], "seconds": seconds["seconds"], "machine": machine}
            found.append({**spec, **run["scores"], **done})
    return found


def as_users_have_it(machine: dict) -> bool:
    """Whether a run had all cores, and nothing told MKL to be faster than it is."""
    return machine["threads"] == machine["cores"] and not machine.get("preloaded")


def whole_seconds(run: dict, timed: dict) -> float:
    """What a run takes by the seconds of an epoch or tree."""
    parts = timed["epoch_seconds"] * run["epochs"] if "epoch_seconds" in timed else timed["tree_seconds"] * run["trees"]
    return timed["start_seconds"] + parts


def quality_table(methods: tuple[str, ...] = ("ppgpr-mfd", "two-stage", "svgp", "catboost", "ngboost")) -> str:
    """NLL, RMSE, CRPS and seconds, means over the splits that were run, beside the paper's PPGPR-MFD.

    Seconds are of the runs that had the machine to themselves: those on all of its threads. Where there are none they
    are those of the epochs, or trees, that these runs took, each as timed alone.
    """
    runs, lines = quality_runs(), []
    timed = {(row["dataset"], row["method"]): row for row in load("seconds")}
    for name in SETS:
        paper = [f"{reported()[name, 'ppgpr-mfd', metric].mean:.3f}" for metric in METRICS]
        lines.append([name, "the paper's PPGPR-MFD", "10", *paper, ""])
        for method in methods:
            found = runs.get((name, method), [])
            if found:
                nll, rmse, crps = (statistics.mean(run[key] for run in found) for key in METRICS)
                alone = [run["seconds"] for run in found if as_users_have_it(run["machine"])]
                if not alone and (name, method) in timed:
                    alone = [whole_seconds(run, timed[name, method]) for run in found]
                seconds = f"{statistics.mean(alone):.0f}" if alone else "-"
                scores = [f"{nll:.3f}", f"{rmse:.4f}", f"{crps:.4f}", seconds]
                lines.append([name, f"`{method}`", str(len(found)), *scores])
    return markdown(["data set", "method", "splits", "NLL", "RMSE", "CRPS", "seconds"], lines, words=2)


def best_table(method: str = "two-stage") -> str:
    """The best of any scalable method in the paper, score by score, and ours of one fit, means over its splits."""
    runs, lines = quality_runs(), []
    for name in SETS:
        cells = []
        for metric in METRICS:
            best = min((reported()[name, other, metric].mean, METHODS[other].label) for other in PAPER)
            ours = statistics.mean(run[metric] for run in runs[name, method])
            cells += [f"{best[0]:.3f} ({best[1]})", f"{ours:.4f}"]
        lines.append([name, *cells])
    columns = [words for metric in METRICS for words in (f"best {metric.upper()} in the paper", "ours")]
    return markdown(["data set", *columns], lines)


def calibration_table(methods: tuple[str, ...] = ("two-stage", "catboost")) -> str:
    """Shares of test rows that central intervals hold, as they are predicted and (in brackets) with the floor; means
    over the splits whose runs kept them."""
    runs, lines = quality_runs(), []
    for name in SETS:
        for method in methods:
            found = [run for run in runs.get((name, method), []) if "ks" in run]
            if not found:
                continue
            cells = []
            for level in COVERAGE_LEVELS:
                own, floored = (
                    statistics.mean(run[f"{kind}coverage_{level}"] for run in found) for kind in ("", "floored_")
                )
                cells.append(f"{100 * own:.1f} ({100 * floored:.1f})")
            ks = statistics.mean(run["ks"] for run in found)
            lines.append([name, f"`{method}`", str(len(found)), *cells, f"{ks:.3f}"])
    levels = [f"{level} %" for level in COVERAGE_LEVELS]
    return markdown(["data set", "method", "splits", *levels, "distance of the PIT"], lines, words=2)


def in_order(folder: str) -> list[tuple[str, dict[str, dict]]]:
    """The rows of each data set that has a file in that folder, the five large ones first."""
    names = sorted(file.stem for file in (RESULTS / folder).glob("[!.]*.json"))
    names.sort(key=lambda name: SETS.index(name) if name in SETS else len(SETS))
    return [(name, load(f"{folder}/{name}")["rows"]) for name in names]


def scores_and_seconds(row: dict) -> list[str]:
    return [f"{row['nll']:.3f}", f"{row['rmse']:.4f}", f"{row['crps']:.4f}", f"{row['seconds']:.0f}"]


def ablation_table() -> str:
    """What each part of `two-stage` brings: NLL, RMSE and CRPS, and seconds, set by set."""
    lines = [
        [name, label, *scores_and_seconds(row)] for name, rows in in_order("ablation") for label, row in rows.items()
    ]
    return markdown(["data set, split 0", "with", "NLL", "RMSE", "CRPS", "seconds"], lines, words=2)


def candidates_table() -> str:
    """What the default could have beside what it has, on validation rows."""
    lines = [
        [name, CANDIDATES[label], *scores_and_seconds(row)]
        for name, rows in in_order("candidates")
        for label, row in rows.items()
    ]
    return markdown(["validation rows of split 3", "with", "NLL", "RMSE", "CRPS", "seconds"], lines, words=2)


def fresh_table(methods: tuple[str, ...] = ("two-stage", "ppgpr-mfd", "svgp", "catboost", "ngboost")) -> str:
    """Test scores on tables that nothing was chosen on, split 0, and coverage of the 50 and 90 % intervals."""
    runs, lines = quality_runs(), []
    for name in FRESH:
        for method in methods:
            for run in [
                run for run in runs.get((name, method), []) if run["split"] == 0 and "ks" in run
            ]:  # of the whole table, others
                scores = [f"{run['nll']:.3f}", f"{run['rmse']:.4f}", f"{run['crps']:.4f}"]
                covered = [f"{100 * run[f'coverage_{level}']:.1f}" for level in (50, 90)]
                lines.append([name, f"`{method}`", *scores, *covered])
    return markdown(["fresh table", "method", "NLL", "RMSE", "CRPS", "50 %", "90 %"], lines, words=2)


VARIANTS = {  # of each method of the paper, as their files are named: a method, and a setting where one is held
    "svgp": ("bb-alpha",),
    "vfitc": ("od-vfitc", "bb-alpha-u"),
    "ppgpr-chol": ("ppgpr-chol-2k",),
    "ppgpr-mfd": ("ppgpr-mfd renyi=0.5", "ppgpr-mfd renyi=2.0", "ppgpr-mfd-2k", "ppgpr-gamma", "ppgpr-log"),
}


def variants_table(sets: tuple[str, ...] = ("pol", "elevators"), split: int = 0) -> str:
    """The variants that the paper names, each below the method that it is one of; one split."""
    runs = quality_runs()

    def line(label: str, name: str) -> list[str]:
        method, _, setting = name.partition(" ")
        cells = []
        for dataset in sets:
            file = RESULTS / "quality" / f"{dataset}-{method}-{split}-{setting}.json"
            found = [run for run in runs.get((dataset, method), []) if run["split"] == split]
            if setting:
                found = [json.loads(file.read_text(encoding="utf-8"))] if file.exists() else []
            cells += [
                f"{found[0][metric]:.{digits}f}" if found else "-" for metric, digits in (("nll", 3), ("rmse", 4))
            ]
        return [label.format(f"`{method}`" + (f", {setting}" if setting else "")), *cells]

    lines = []
    for method, variants in VARIANTS.items():
        lines += [line("{}", method), *(line("its variant {}", variant) for variant in variants)]
    columns = [f"{dataset}: {metric}" for dataset in sets for metric in ("NLL", "RMSE")]
    return markdown([f"split {split}", *columns], lines)


def small_table() -> str:
    """NLL on the small tables, means over splits, and by how much the default is above the others."""
    lines = []
    for name in (*PUBLIC, "diabetes", "tamielectric", *MADE):
        row = verdict(RESULTS / "small", name)
        if row is not None:
            scores = [f"{row['means'][method]['nll']:.3f}" for method in (DEFAULT, *OTHERS, CONSTANT)]
            several = row["splits"] > 1
            gaps = [f"{gap:+.3f}" + (f" ± {error:.3f}" if several else "") for gap, error in row["gaps"].values()]
            lines.append([name, str(row["splits"]), *scores, gaps[0], f"`{row['better']}`", gaps[1]])
    columns = ["table", "splits", "the default", *(f"`{method}`" for method in OTHERS), "constant normal"]
    return markdown([*columns, "the default above the better", "which is", "above the constant"], lines)


def tradeoff_runs(name: str, method: str, split: int) -> list[tuple[str, dict]]:
    """The run with nothing held and those with one setting held, of one split."""
    stem = f"{name}-{method}-{split}"
    files = [
        RESULTS / "quality" / f"{stem}.json",
        *sorted(file for key in ("beta", "M_mean") for file in (RESULTS / "quality").glob(f"{stem}-{key}=*.json")),
    ]
    labels = ["as it is", *(file.stem.removeprefix(f"{stem}-").replace("=", " = ") for file in files[1:])]
    return [(label, json.loads(file.read_text(encoding="utf-8"))) for label, file in zip(labels, files, strict=True)]


def tradeoff_table(name: str = "pol", method: str = "ppgpr-mfd", split: int = 0) -> str:
    """The scores of the model that was kept, and the lowest RMSE and NLL that a run passed on its way."""
    lines = []
    for label, run in tradeoff_runs(name, method, split):
        passed = [min(point[key] for point in run["curve"]) for key in ("nll", "rmse")]
        scores = [f"{run['nll']:.3f}", f"{run['rmse']:.4f}", f"{run['crps']:.4f}"]
        lines.append([label, *scores, f"{passed[0]:.3f}", f"{passed[1]:.4f}", f"{run['noise_fraction']:.2f}"])
    columns = [f"{name}, split {split}", "NLL", "RMSE", "CRPS", "lowest NLL", "lowest RMSE", "noise share"]
    return markdown(columns, lines)


def soonest_table(method: str = "ppgpr-mfd") -> str:
    """When each side first reached the NLL at which GPyTorch ended; split 0, of the sets that both were run on.

    GPyTorch may pass that NLL early and get worse again, so its whole training stands beside, and both ratios. Seconds
    are those of epochs that the two sides took in turns.
    """
    lines = []
    for name in SETS:
        file = place(name, method)
        found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        runs = [run for run in quality_runs().get((name, method), []) if run["split"] == 0 and run["curve"]]
        if "timing" not in found or not runs:  # a curve without seconds is not finished
            continue
        peer = by_seconds(found)
        ended = peer[-1]
        ours = reached(ours_by_seconds(runs[0]["curve"], found), ended["nll"])
        theirs = [reached(peer, ended["nll"]), ended["seconds"]]
        after = (
            ["never", "", ""] if ours is None else [f"{ours:.0f} s", *(f"{seconds / ours:.0f}" for seconds in theirs)]
        )
        scores = [f"{scores[metric]:.3f}" for scores in (ended, runs[0]) for metric in METRICS]
        lines.append([name, str(ended["epoch"]), *scores[:3], *(f"{s:.0f} s" for s in theirs), *after, *scores[3:]])
    columns = ["data set", "GPyTorch's epochs", "its NLL", "RMSE", "CRPS"]
    times = ["first there after", "whole training", "ours there after", "ratio", "to the whole"]
    return markdown([*columns, *times, "our NLL", "RMSE", "CRPS"], lines)


def methods_table() -> str:
    """NLL of every method, means over the splits that were run, and the paper's in brackets."""
    runs, lines = lite_runs(), []
    for method in PAPER:
        cells = []
        for name in SETS:
            found = [run["nll"] for run in runs if (run["dataset"], run["method"]) == (name, method)]
            ours = f"{statistics.mean(found):.3f}" if found else "-"
            cells.append(f"{ours} ({reported()[name, method, 'nll'].mean:.3f})")
        lines.append([f"`{method}`", *cells])
    return markdown(["NLL (the paper's)", *SETS], lines)


def by_level(rows: list[dict], *keys: str) -> dict[tuple, list[dict]]:
    """Rows that share the values of these keys, one for each level."""
    found: dict[tuple, list[dict]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    return found


def levels(rows: list[dict]) -> list[str]:
    return [f"{level:.0%}" for level in sorted({row["level"] for row in rows})]


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


def coverage_table() -> str:
    """Mean coverage over divisions beside what the theory expects, and the share of divisions far off, in per cent."""
    rows, lines = load("coverage")["coverage"], []
    for (name, n), found in by_level(rows, "dataset", "calibration_rows").items():
        means = [
            f"{100 * row['mean']:.2f} ({100 * row['expected_mean']:.2f} ± {100 * row['standard_error']:.2f})"
            for row in found
        ]
        far, expected = (percent(statistics.mean(row[key] for row in found)) for key in ("outside", "expected_outside"))
        lines.append([name, f"{n:,}", *means, f"{far} ({expected})"])
    for (name,), found in by_level(rows, "dataset").items():
        normal = {row["level"]: percent(row["normal"]) for row in found}
        lines.append([f"{name}, the model's normal", "", *normal.values(), ""])
    return markdown(["data set", "calibration rows", *levels(rows), "far off"], lines)


def widths_table() -> str:
    """Mean widths at each level, in the target's deviations, and coverages at 90 %, in per cent."""
    rows, lines = load("coverage")["widths"], []
    for (name, label), found in by_level(rows, "dataset", "intervals").items():
        (at_90,) = (row for row in found if row["level"] == 0.9)
        covered = [percent(at_90[key]) for key in ("coverage", "coverage_widest_tenth")]
        lines.append([name, label, *(f"{row['width']:.3f}" for row in found), *covered])
    columns = ["data set", "intervals", *(f"width at {level}" for level in levels(rows))]
    return markdown([*columns, "covered at 90%", "of the tenth with the largest deviations"], lines, words=2)


def groups_table() -> str:
    """Coverage in each group of a made table, calibrated without and with `by`, in per cent."""
    rows = load("coverage")["groups"]
    lines = [
        [group, "by group" if by else "all rows together", *(percent(row["coverage"]) for row in found)]
        for (by, group), found in by_level(rows, "by", "group").items()
    ]
    return markdown(["group", "calibrated", *levels(rows)], lines, words=2)


def processes_table() -> str:
    """What the cost model says of a step, and what was measured."""
    found = load("scale")
    B, constants = found["constants"]["B"], found["constants"]
    lines = []
    for count, runs in zip((1, 2), found["processes"]["runs"].values(), strict=True):
        seconds = sorted(B / run["rows_per_s"] for run in runs)
        spread = f"{statistics.median(seconds):.2f} s ({seconds[0]:.2f} to {seconds[-1]:.2f})"
        lines.append([str(count), f"{step_seconds(constants, B, count):.2f} s", spread])
    return markdown(["processes of one thread", "the model's step", "measured: median (range)"], lines)


def billion_table(rows: float = 1e9) -> str:
    """Hours of a pass over a billion rows by the cost model."""
    constants, lines = load("scale")["constants"], []
    alone = rows / constants["B"] * step_seconds(constants, constants["B"], 1)
    for processes, B in ((1, 10_000), (8, 10_000), (8, 100_000), (64, 100_000), (512, 1_000_000)):
        seconds = rows / B * step_seconds(constants, B, processes)
        lines.append([f"{processes:,}", f"{B:,}", f"{seconds / 3600:.1f}", f"{alone / seconds / processes:.0%}"])
    return markdown(["processes", "rows of a batch", "hours a pass", "of the ideal speed-up"], lines, words=0)


# --- pages ---

PAGES: dict[str, tuple[Callable[[], str], ...]] = {
    "README.md": (step_table, predict_table),
    "docs/speed.md": (products_table, growth_table, precision_table),
    "docs/intervals.md": (coverage_table, widths_table, groups_table),
    "docs/quality.md": (
        quality_table, best_table, calibration_table, fresh_table, tradeoff_table, ablation_table, candidates_table,
        soonest_table, methods_table, small_table,
    ),
    "docs/choosing.md": (variants_table,),
    "docs/scale.md": (processes_table, billion_table),
}  # fmt: skip


def replaced(page: str, table: str) -> str:
    """The page with this table where one with the same head stands."""
    lines, head = page.split("\n"), table.split("\n")[0]
    if lines.count(head) != 1:
        raise ValueError(f"One table with this head is expected, and there are {lines.count(head)}: {head}")
    start = stop = lines.index(head)
    while stop < len(lines) and lines[stop].startswith("|"):
        stop += 1
    return "\n".join([*lines[:start], table, *lines[stop:]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put them into the pages")
    options = parser.parse_args()
    for name, tables in PAGES.items():
        file = Path(__file__).parents[1] / name
        page = file.read_text(encoding="utf-8")
        for table in tables:
            page = replaced(page, table())
            if not options.write:
                print(table(), end="\n\n")
        if options.write:
            file.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
