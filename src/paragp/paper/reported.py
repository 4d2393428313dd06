"""What the paper printed: its table of all results, to stand beside ours.

`reported.csv` holds the table of the paper's appendix (ICML 2020) as printed: metric, data set, method, mean and
standard error over ten splits (three for the exact GP); empty where the paper has no number.
"""

import csv
from functools import cache
from importlib.resources import files
from typing import NamedTuple


class Printed(NamedTuple):
    mean: float
    stderr: float  # NaN where there was one split only


@cache
def reported() -> dict[tuple[str, str, str], Printed]:
    """By data set, method (as in `METHODS`, or "exact") and metric ("nll", "rmse", "crps").

    >>> reported()["pol", "ppgpr-mfd", "nll"]
    Printed(mean=-1.09, stderr=0.009)
    """
    text = (files("paragp.paper") / "reported.csv").read_text(encoding="utf-8")
    return {
        (row["dataset"], row["method"].lower(), row["metric"].lower()): Printed(
            float(row["mean"]), float(row["stderr"] or "nan")
        )
        for row in csv.DictReader(text.splitlines())
    }


# The paper does not say which inputs of these it used, nor in what units: its scores do not compare with ours.
OTHER_COPIES = frozenset({"houseelectric"})


def beside(dataset: str, method: str, metric: str) -> Printed | None:
    """What the paper printed, if it is there and our copy of the data set is the paper's.

    >>> beside("pol", "svgp", "nll"), beside("houseelectric", "svgp", "nll")
    (Printed(mean=-0.651, stderr=0.005), None)
    """
    return None if dataset in OTHER_COPIES else reported().get((dataset, method, metric))
