"""The figures show what the runs hold."""

import json

import numpy as np
import pytest

from paragp.paper import figures
from paragp.paper.colours import COLOURS, colour
from paragp.paper.figures import cost, figure, in_sample, robustness, save, scores
from paragp.paper.tables import COMPARED, LABELS, Results, of_beta


def made(dataset, method, split, nll, beta=None):
    spec = {"dataset": dataset, "method": method, "split": split, "beta": beta, "gamma": None}
    values = {"nll": nll, "rmse": 1 + nll, "crps": 2 + nll, "noise_fraction": 0.5}
    return {"spec": spec, "scores": values, "valid": {"nll": nll}}


RUNS = [
    made(dataset, method, k, i + k) for dataset in ("pol", "bike") for i, method in enumerate(COMPARED) for k in (0, 1)
]


def test_every_method_has_a_colour_of_its_own():
    assert set(COLOURS) <= set(LABELS)
    assert len({colour(method) for method in (*LABELS, "a new one", "another")}) == len(LABELS) + 2


def test_dots_are_means_over_splits_beside_the_papers():
    drawn = scores(Results(RUNS), COMPARED, "nll", "lite")
    panels = [axis for axis in drawn.axes if axis.get_visible()]
    assert [panel.get_title(loc="left") for panel in panels] == ["pol", "bike"]
    means = [container.lines[0].get_ydata()[0] for container in panels[0].containers]
    np.testing.assert_allclose(means, [i + 0.5 for i in range(len(COMPARED))])
    hollow = [line.get_ydata()[0] for line in panels[0].lines if line.get_markerfacecolor() == "none"]
    assert hollow[-1] == -1.09  # PPGPR-MFD on pol in the paper
    assert [label.get_text() for label in panels[0].get_xticklabels()] == [LABELS[method] for method in COMPARED]
    assert drawn.get_supylabel() == "NLL (hollow: the paper's)"
    assert drawn.get_supxlabel() == "profile lite, 2 splits of each set; bars are standard errors"
    shares = scores(Results(RUNS), COMPARED, "noise_fraction", "lite")
    assert shares.get_supylabel() == "noise share of the variance"
    assert shares.axes[0].get_ylim() == shares.axes[1].get_ylim() == (-0.03, 1.03)


def test_what_the_paper_printed_of_another_copy_does_not_stand_beside_ours():
    drawn = scores(Results([made("houseelectric", "svgp", 0, -2.0)]), COMPARED, "nll", "lite")
    assert not [line for line in drawn.axes[0].lines if line.get_markerfacecolor() == "none"]


def test_robustness_is_told_by_beta():
    runs = [made("pol", "ppgpr-mfd", k, beta + k, beta) for beta in (0.0, 0.05, 1.0) for k in (0, 1)]
    found = of_beta(
        [
            *runs,
            made("pol", "ppgpr-mfd", 2, 9.0, 0.05),
            made("bike", "ppgpr-mfd", 0, 1.0, 0.05),
            made("pol", "svgp", 0, 1.0, 0.1),
        ]
    )
    assert {dataset: sorted(by_beta) for dataset, by_beta in found.items()} == {"pol": [0.0, 0.05, 1.0]}
    assert found["pol"][0.05]["nll"] == [0.05, 1.05]
    many = {f"set {i}": found["pol"] for i in range(14)}
    assert len({line.get_color() for line in robustness(many, "full").axes[0].lines}) == 14
    line = robustness(found, "lite").axes[0].lines[0]
    np.testing.assert_allclose(line.get_ydata(), np.array([0.0, 0.05, 1.0]) - 0.35, atol=1e-12)


def test_cost_is_drawn_against_points_and_rows():
    rows = [
        {
            "method": "ppgpr-mfd", "variable": variable, "sizes": [10, 20], "seconds": [1.0, 2.0],
            "extra_mb": [3.0, 4.0], "held": {"M": 1000, "B": 1000},
        }
        for variable in ("M", "B", "d")
    ]  # fmt: skip
    axes = cost(rows).axes
    assert [list(axis.lines[0].get_ydata()) for axis in axes] == [[1.0, 2.0], [1.0, 2.0], [3.0, 4.0], [3.0, 4.0]]
    assert [axis.get_xlabel() for axis in axes[2:]] == ["M, at B = 1,000", "B, at M = 1,000"]


def test_in_sample_has_a_panel_per_prior_and_model():
    drawn = in_sample(epochs=2)
    titles = [axis.get_title(loc="left") for axis in drawn.axes]
    assert titles == [
        f"{LABELS[method]}, {prior}"
        for prior in ("periodic", "Matérn 5/2")
        for method in ("exact", "svgp", "ppgpr-mfd")
    ]
    seen = [len(axis.lines[-1].get_xdata()) for axis in drawn.axes]
    assert seen == [120] * 3 + [200] * 3  # the periodic draw is extrapolated


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_files_are_whole(suffix, tmp_path):
    (file,) = [file for file in save(figure(1, 1)[0], tmp_path, "empty") if file.suffix == f".{suffix}"]
    content = file.read_bytes()
    assert content.startswith(b"\x89PNG" if suffix == "png" else b"<?xml")
    assert b"IEND" in content or content.rstrip().endswith(b"</svg>")


def test_all_figures_of_a_folder(tmp_path, monkeypatch):
    for slow in ("in_sample", "univariate"):
        monkeypatch.setattr(figures, slow, lambda: figure(1, 1)[0])
    for i, run in enumerate([*RUNS, made("pol", "ppgpr-mfd", 0, 1.0, 0.0), made("pol", "ppgpr-mfd", 0, 1.0, 1.0)]):
        (tmp_path / f"{i}.json").write_text(json.dumps(run))
    names = {file.stem for file in figures.figures(tmp_path, "lite")}
    metrics = ("nll", "rmse", "crps", "noise-fraction")
    assert names == {"univariate", "in-sample", "robustness", *metrics, *(f"ablation-{metric}" for metric in metrics)}
