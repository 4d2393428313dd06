import subprocess
import sys

import pytest
from typer.testing import CliRunner

from paragp import __version__
from paragp.cli import app

run = CliRunner().invoke


def test_demo_writes_table_and_pictures(tmp_path, monkeypatch):
    monkeypatch.setattr("paragp.paper.toy.BASELINE_ITERATIONS", 1)
    result = run(app, ["demo", "--out", str(tmp_path / "demo"), "--epochs", "1"])
    assert result.exit_code == 0, result.output
    assert sorted(p.name for p in (tmp_path / "demo").iterdir()) == ["table.md", "univariate.png", "univariate.svg"]
    assert (tmp_path / "demo" / "table.md").read_text(encoding="utf-8").strip() in result.output
    assert "PPGPR-MFD" in result.output


def test_demo_without_matplotlib_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("paragp.paper.toy.BASELINE_ITERATIONS", 1)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = run(app, ["demo", "--out", str(tmp_path), "--epochs", "1"])
    assert result.exit_code == 0
    assert 'pip install "paragp[report]"' in result.output
    assert [p.name for p in tmp_path.iterdir()] == ["table.md"]


@pytest.mark.parametrize("words", [["--epochs", "0"], ["--seed", "-1"], ["--out", __file__]])
def test_bad_use_exits_with_2(words):
    assert run(app, ["demo", *words]).exit_code == 2


def test_version_and_help():
    assert run(app, ["--version"]).output == f"paragp {__version__}\n"
    assert "demo" in run(app, ["--help"]).output


def test_module_runs_as_the_command():
    done = subprocess.run([sys.executable, "-m", "paragp", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"paragp {__version__}\n"
