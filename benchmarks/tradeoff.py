"""NLL against RMSE on one data set: what beta_reg, the moment training stops and the points of the mean trade.

    PARAGP_DATA=... python benchmarks/tradeoff.py pol --plot docs/tradeoff.png

Runs of quality.py on one split with `--beta` held at each value of the grid, and with other `--M-mean`; each with its
curve over the epochs. Runs that are there are not repeated.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from quality import FOLDER
from table import tradeoff_runs, tradeoff_table

from paragp.gp.methods import METHODS

METHOD = "ppgpr-mfd"
POINTS = (500, 2000)  # of the mean, beside 1000


def make(name: str, split: int) -> None:
    """The runs, that with nothing held first."""
    settings = [[], *(["--beta", str(value)] for value in METHODS[METHOD].beta)]
    for setting in [*settings, *(["--M-mean", str(value)] for value in POINTS)]:
        words = ["--datasets", name, "--splits", str(split), "--curve", *setting]
        subprocess.run([sys.executable, str(Path(__file__).with_name("quality.py")), *words], check=True)


def draw(name: str, split: int, file: str) -> None:
    """Each run's way through the plane from its tenth epoch on, its end marked."""
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(6, 4), constrained_layout=True)
    for label, run in tradeoff_runs(name, METHOD, split):
        (line,) = axis.plot(
            [point["rmse"] for point in run["curve"][9:]], [point["nll"] for point in run["curve"][9:]], linewidth=0.8
        )
        axis.plot(run["rmse"], run["nll"], "o", color=line.get_color(), label=label)
    axis.set(
        xlabel="test RMSE", ylabel="test NLL", title=f"{name}, split {split}: epochs from the tenth, and the model kept"
    )
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    figure.savefig(file, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--plot", help="a picture of the curves")
    options = parser.parse_args()
    make(options.dataset, options.split)
    print(f"From {FOLDER}:\n\n{tradeoff_table(options.dataset, METHOD, options.split)}")
    if options.plot:
        draw(options.dataset, options.split, options.plot)


if __name__ == "__main__":
    main()
