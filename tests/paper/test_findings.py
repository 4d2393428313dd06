"""Each of the paper's findings holds on runs that show it, and does not on runs that show the contrary."""

import json

import pytest

from paragp.gp.methods import PAPER
from paragp.paper.findings import findings

NLL = {  # as the paper has it: the order of its ranks, and its gaps
    "ppgpr-mfd": 0.0, "vfitc": 0.2, "od-svgp": 0.4, "svgp": 0.5, "map": 0.55, "gamma-robust": 0.6,
    "ppgpr-delta": 0.3, "ppgpr-mf": 0.2, "ppgpr-chol": 0.1, "exact": 0.3, "raissi": 2.0,
}  # fmt: skip
RMSE = {"exact": 0.1, "ppgpr-mfd": 0.2, "ppgpr-delta": 0.3, "ppgpr-mf": 0.4, "ppgpr-chol": 0.5}
FUNCTION = ("vfitc", *(name for name in PAPER if name.startswith("ppgpr")))  # where the variance is the function's


def made(dataset, method, *, beta=None, chosen=0.01, without=20.0, **changes):
    rmse = RMSE.get(method, 0.7 if method == "raissi" else 0.6)
    scores = {
        "nll": NLL[method], "rmse": rmse, "crps": NLL[method] + 1, "noise_fraction": 0.2 if method in FUNCTION else 0.9
    } | changes  # fmt: skip
    run = {"spec": {"dataset": dataset, "method": method, "split": 0, "beta": beta, "gamma": None}, "beta": chosen}
    if method == "raissi":
        run["without_noise"] = {"scores": scores | {"nll": without}, "valid": {"nll": 0.0}}
    return run | {"scores": scores, "valid": {"nll": 0.0}}


def found(folder, **changed):
    """What holds by claim, on runs of two sets; `changed` has scores of methods on both of them, by name."""
    runs = [made(name, method, **changed.get(method, {})) for name in ("pol", "bike") for method in NLL]
    runs += [
        made("pol", "ppgpr-mfd", beta=beta, chosen=beta, **changed.get(f"beta={beta}", {})) for beta in (0, 0.2, 1)
    ]
    for i, run in enumerate(runs):
        (folder / f"{i}.json").write_text(json.dumps(run))
    table = findings(folder, "lite")
    assert table.columns == ["finding", "the paper's", "ours", "holds"]
    return {row[0]: row[3] for row in table.rows}


def test_all_hold_on_runs_like_the_papers(tmp_path):
    holds = found(tmp_path)
    assert set(holds.values()) == {"yes"}
    assert len(holds) == 19


@pytest.mark.parametrize(
    ("changed", "lost"),
    [
        ({"vfitc": {"nll": -0.1}}, "PPGPR has the best mean rank on NLL"),
        ({"vfitc": {"crps": 0.5}}, "PPGPR has the best mean rank on CRPS"),
        ({"od-svgp": {"nll": 0.25}}, "PPGPR is ahead of OD-SVGP"),
        ({"map": {"nll": 0.65}}, "SVGP is ahead of MAP"),
        ({"map": {"nll": 0.45}}, "SVGP is ahead of MAP"),
        ({"exact": {"nll": -0.1}}, "PPGPR is ahead of the exact GP on NLL"),
        ({"exact": {"rmse": 0.25}}, "The exact GP is ahead of PPGPR on RMSE"),
        ({"vfitc": {"nll": 0.45}}, "VFITC is ahead of all four baselines"),
        ({"map": {"noise_fraction": 0.7}}, "The baselines' variance is nearly all noise"),
        ({"ppgpr-mfd": {"noise_fraction": 0.7}}, "PPGPR's is not"),
        ({"ppgpr-mf": {"nll": 0.05}}, "NLL falls from δ to MF to Chol"),
        ({"ppgpr-mf": {"rmse": 0.25}}, "RMSE rises from δ to MF to Chol"),
        ({"ppgpr-delta": {"rmse": 0.15}}, "MFD mends it"),
        ({"od-svgp": {"rmse": 0.15}}, "PPGPR has the best mean rank on RMSE"),
        ({"ppgpr-mfd": {"chosen": 0.2}}, "PPGPR prefers small beta_reg"),
        ({"beta=0.2": {"nll": 0.1}}, "PPGPR is robust to beta_reg"),
        ({"beta=0.2": {"rmse": 0.3}}, "PPGPR is robust to beta_reg"),
        ({"raissi": {"rmse": 0.55}}, "Raissi et al.: behind every baseline on RMSE"),
        ({"raissi": {"nll": 0.55}}, "Raissi et al., with the noise at test"),
        ({"raissi": {"without": 0.5}}, "Raissi et al., without the noise at test"),
        ({"raissi": {"nll": 30.0}}, "The noise at test improves Raissi et al.'s NLL"),
        ({"map": {"nll": 0.51}}, "SVGP is ahead of MAP"),
    ],
)
def test_each_is_lost_on_runs_that_show_the_contrary(tmp_path, changed, lost):
    (verdict,) = (value for claim, value in found(tmp_path, **changed).items() if claim.startswith(lost))
    assert verdict == "no"


@pytest.mark.parametrize(
    ("methods", "betas", "claim"),
    [
        (("vfitc", "ppgpr-mfd"), (), "The baselines' variance is nearly all noise"),
        (("ppgpr-mfd",), (0.2, 1.0), "PPGPR is robust to beta_reg"),
    ],
)
def test_a_claim_is_not_told_by_runs_of_something_else(tmp_path, methods, betas, claim):
    runs = [made("pol", method) for method in methods] + [made("pol", "ppgpr-mfd", beta=beta) for beta in betas]
    for i, run in enumerate(runs):
        (tmp_path / f"{i}.json").write_text(json.dumps(run))
    (verdict,) = (row[3] for row in findings(tmp_path, "lite").rows if row[0].startswith(claim))
    assert verdict == "not run"


def test_what_was_not_run_is_said(tmp_path):
    (tmp_path / "map.json").write_text(json.dumps(made("pol", "map")))
    assert {row[3] for row in findings(tmp_path, "lite").rows} == {"not run"}
