"""Ranks and scores from runs, and the paper's beside them."""

import csv
import io
import json

import pytest

from paragp.data.datasets import DATASETS
from paragp.paper.protocol import PROFILES
from paragp.paper.tables import (
    ABLATION,
    COMPARED,
    Results,
    Table,
    complete_table,
    papers_ranks,
    rank_table,
    ranks,
    tables,
    write,
)


def made(dataset, method, split, nll, valid=0.0, beta=None):
    spec = {"dataset": dataset, "method": method, "split": split, "beta": beta, "gamma": None}
    scores = {"nll": nll, "rmse": 2 * nll, "crps": -nll}
    return {"spec": spec, "scores": scores, "valid": {"nll": valid}}


RUNS = [
    made("pol", "map", 0, 3.0), made("pol", "svgp", 0, 2.0), made("pol", "exact", 0, 1.0),
    made("pol", "map", 1, 1.0), made("pol", "svgp", 1, 2.0), made("pol", "exact", 1, 3.0),
    made("bike", "map", 0, 3.0), made("bike", "svgp", 0, 2.5), made("bike", "exact", 0, 2.0),
    made("bike", "map", 1, 7.0),
]  # fmt: skip


def test_ranks_are_taken_within_splits_that_all_methods_have():
    found = ranks(Results(RUNS), ["map", "svgp", "exact"], "nll")
    assert found == pytest.approx({"map": (3 + 1 + 3) / 3, "svgp": 2.0, "exact": (1 + 3 + 1) / 3})
    assert ranks(Results(RUNS), ["map", "vfitc"], "nll") == {}


def test_the_run_with_the_best_validation_score_counts():
    runs = [made("pol", "svgp", 0, 9.0, valid=1.0, beta=0.1), made("pol", "svgp", 0, 5.0, valid=0.5, beta=1.0)]
    values = lambda method: [(0.1, None), (1.0, None)]  # noqa: E731
    for found in (Results(runs, values), Results(runs[::-1], values)):
        assert found.scores("pol", "svgp", "nll") == [5.0]


def test_a_method_counts_once_all_values_of_its_grid_are_there():
    runs = [made("pol", "svgp", 0, 5.0, beta=beta) for beta in (1.0, 0.5, 0.3)]
    values = PROFILES["full"].values
    assert Results(runs, values).datasets == []
    assert Results([*runs, made("pol", "svgp", 0, 5.0, beta=0.1)], values).datasets == ["pol"]


def test_a_run_at_a_held_value_does_not_count_where_the_profile_searches():
    runs = [made("pol", "svgp", 0, 5.0), made("pol", "svgp", 0, 1.0, valid=-9.0, beta=0.1)]
    assert Results(runs, PROFILES["lite"].values).scores("pol", "svgp", "nll") == [5.0]


def test_raissi_is_scored_with_and_without_the_noise():
    run = made("pol", "raissi", 0, 2.0) | {"without_noise": {"scores": {"nll": 6.0, "rmse": 1.0, "crps": 1.0}}}
    run["without_noise"]["valid"] = {"nll": 6.0}
    table = complete_table(Results([run], PROFILES["lite"].values), "lite")
    assert [row[1:4:2] for row in table.rows] == [["Raissi et al.", "2.000"], ["Raissi et al., no noise", "6.000"]]


@pytest.mark.parametrize(
    ("methods", "metric", "method", "printed"),
    [
        (COMPARED, "nll", "ppgpr-mfd", 1.17),
        (COMPARED, "crps", "ppgpr-mfd", 1.02),
        (ABLATION, "nll", "ppgpr-chol", 1.59),
    ],
)
def test_the_papers_ranks_are_near_those_it_printed(methods, metric, method, printed):
    """Its ranks are per split, these are of its means: a few tenths apart."""
    assert papers_ranks(DATASETS, methods, metric)[method] == pytest.approx(printed, abs=0.35)


def test_the_best_is_bold_and_standard_errors_are_of_splits():
    table = complete_table(Results(RUNS), "lite")
    first = dict(zip(table.columns[:4], table.rows[0][:4], strict=True))
    assert first == {"data set": "pol", "method": "MAP", "splits": "2", "NLL": "2.000 ± 1.000"}
    assert table.rows[0][4] == "-0.615 ± 0.007"  # the paper's
    assert "(profile lite, 1 to 2 splits of each set)" in table.caption
    bold = {(table.rows[i][0], table.rows[i][1], table.columns[j]) for i, j in table.best}
    assert ("pol", "MAP", "NLL") in bold
    assert ("bike", "Exact", "NLL") in bold  # by the split that all have; MAP, with one more, does not win by that
    assert ("bike", "MAP", "CRPS") in bold
    assert len(bold) == 6


def test_formats_say_the_same():
    table = rank_table("table1", Results(RUNS), ["map", "svgp", "exact"], "lite")
    assert "on pol, bike (profile lite, 1 to 2 splits of each set)" in table.caption
    cells = list(csv.reader(io.StringIO(table.csv())))
    assert cells == [table.columns, *table.rows]
    assert table.markdown().count("\n| ") == len(cells) + 1
    assert "**1.67**" in table.markdown()
    assert r"\textbf{1.67}" in table.latex()
    assert r"$\gamma$-Robust" in rank_table("table1", Results(RUNS), ["gamma-robust"], "lite").latex()


def test_latex_breaks_long_cells_over_lines_and_long_tables_over_pages():
    text = Table("t", "c", ["method", "what", "score"], [["BB-α", "words " * 20, "1.0"]]).latex()
    assert r"\begin{longtable}{lp{.26\linewidth}r}" in text
    assert r"BB-$\alpha$" in text


def test_what_the_paper_has_of_another_copy_is_left_out():
    table = complete_table(Results([made("houseelectric", "svgp", 0, 2.0)]), "lite")
    assert table.rows[0][3:5] == ["2.000", ""]


def test_tables_of_a_folder(tmp_path):
    with pytest.raises(ValueError, match="There are no runs in"):
        tables(tmp_path, "lite")
    for i, run in enumerate(RUNS):
        (tmp_path / f"{i}.json").write_text(json.dumps(run))
    found = tables(tmp_path, "lite")
    files = write(found, tmp_path / "tables")
    assert {file.name for file in files} == {
        f"{name}.{end}" for name in ("table1", "table2", "complete") for end in ("md", "csv", "tex")
    }
    assert (tmp_path / "tables" / "complete.md").read_text() == found[2].markdown() + "\n"
