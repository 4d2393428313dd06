"""The map from the paper to the code holds: labels stand in docstrings, tests exist."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from paragp import ParametricGPRegressor
from paragp.cli import app
from paragp.gp.methods import METHODS

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "paper_to_code.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(\w+)` \|[^|]*\| `([\w.]+)` \| `([\w./]+)::(\w+)` \|$", TEXT, flags=re.M)
OTHERS = re.findall(r"^\|[^|`]*\| `([\w.]+)` \| `([\w./]+)::(\w+)` \|$", TEXT, flags=re.M)


def resolve(name):
    """The object behind a dotted name: the longest importable module, then attributes."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise AssertionError(f"nothing is called {name}")


@pytest.mark.parametrize(("label", "function"), [(row[0], row[1]) for row in ROWS])
def test_label_stands_in_the_docstring(label, function):
    assert re.search(rf"\bEqn {label}\b", resolve(function).__doc__)


@pytest.mark.parametrize("function", [row[0] for row in OTHERS])
def test_other_entries_resolve(function):
    assert resolve(function).__doc__


@pytest.mark.parametrize(("path", "test"), sorted({row[-2:] for row in ROWS + OTHERS}))
def test_named_test_exists(path, test):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_whole_table_was_read():
    lines = [line for line in TEXT.splitlines() if "::test_" in line]
    assert len(ROWS) + len(OTHERS) == len(lines) > 15


def test_no_docstring_cites_a_label_that_the_map_lacks():
    known = {row[0] for row in ROWS}
    for path in (ROOT / "src").rglob("*.py"):
        cited = set(re.findall(r"\bEqn (\w+)", path.read_text(encoding="utf-8")))
        assert cited <= known, f"{path.name} cites {cited - known}"


def test_the_readmes_figures_come_from_the_demos_table():
    readme, table = ((ROOT / p).read_text(encoding="utf-8") for p in ("README.md", "results/demo/table.md"))
    scores = {line.split("|")[1].strip(): line.split("|")[2].strip() for line in table.splitlines()[2:]}
    quoted = re.search(
        r"SVGP scores an NLL of ([\d.-]+) and PPGPR-MFD ([\d.-]+);.*?scores\s+([\d.-]+) \(", readme, re.S
    )
    assert quoted.groups() == (scores["SVGP"], scores["PPGPR-MFD"], scores["the truth"])


def test_the_readme_lists_every_method():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name, method in METHODS.items():
        assert f"| `{name}` | {method.label} |" in readme


def test_the_commands_that_print_json_are_those_that_the_readme_names():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    named = re.search(r"methods\. ((?:`\w+`(?:, | and )?)+)\s+take `--json`", readme)[1]
    takes = [
        command.name or command.callback.__name__
        for command in app.registered_commands
        if "as_json" in inspect.signature(command.callback).parameters
    ]
    assert re.findall(r"\w+(?=`)", named) == takes


def test_the_readmes_example_runs(tmp_path, monkeypatch):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    example = readme.partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(example, names)
    assert names["model"].score(names["X_test"], names["y_test"]) > 0.2
    assert ((names["low"] < names["y_test"]) & (names["y_test"] < names["high"])).mean() > 0.7
    assert (tmp_path / "diabetes-model" / "config.json").exists()


def run_example(page, name):
    """The names that an example of docs/ leaves behind."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    code = re.search(rf"<!-- test: {name} -->\n```python\n(.*?)```", text, re.S)[1]
    seen: dict = {}
    exec(compile(code, page, "exec"), seen)
    return seen


def test_the_example_of_a_calibrated_network_runs_and_helps(capsys):
    seen = run_example("deep.md", "before and after")
    assert "before" in capsys.readouterr().out
    assert seen["after"]["nll"] < seen["before"]["nll"]
    assert seen["after"]["crps"] < seen["before"]["crps"]
    assert abs(seen["after"]["coverage_90"] - 0.9) < abs(seen["before"]["coverage_90"] - 0.9)


def test_the_example_of_guaranteed_intervals_holds_about_what_it_promises(capsys):
    seen = run_example("intervals.md", "guaranteed intervals")
    assert "of the new rows are in their intervals" in capsys.readouterr().out
    covered = ((seen["low"] <= seen["y_new"]) & (seen["y_new"] <= seen["high"])).mean()
    assert 0.8 < covered < 0.98  # of 100 rows, after 100 for calibration


def test_the_recipe_for_ray_scores_as_the_model_does(tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"a": rng.uniform(-1, 1, 200), "b": rng.uniform(-1, 1, 200)})
    model = ParametricGPRegressor(n_inducing=10, max_epochs=2, random_state=0).fit(rows, np.sin(3 * rows["a"]))
    model.save(tmp_path / "model")
    (tmp_path / "trips").mkdir()
    rows.to_parquet(tmp_path / "trips" / "part.parquet")
    text = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    code = re.search(r"<!-- test: ray -->\n```python\n(.*?)```", text, re.S)[1]
    monkeypatch.chdir(tmp_path)
    for place in ("trips", "scored", "model"):  # Ray wants whole paths
        code = code.replace(f'"{place}"', repr(str(tmp_path / place)))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    scored = pd.read_parquet(tmp_path / "scored").sort_values(["a", "b"])
    expected = rows.sort_values(["a", "b"])
    mean, std = model.predict(expected, return_std=True)
    np.testing.assert_allclose(scored["y_mean"], mean, rtol=1e-9)
    np.testing.assert_allclose(scored["y_std"], std, rtol=1e-9)
    assert ray.__version__
