"""ONNX graphs: every method and kernel, tables of all kinds, and what is refused."""

import importlib.util
import json

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pyarrow as pa
import pytest
import torch
from gpytorch.kernels import CosineKernel, LinearKernel, MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel
from torch import nn
from typer.testing import CliRunner

from paragp import METHODS, ParametricGPRegressor
from paragp import onnx as export_module
from paragp.cli import app
from paragp.gp.kernels import KERNELS
from paragp.onnx import ExportError, export, feeds, graph_of
from paragp.shape import Shape

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (120, 3))
Y = 50 + 10 * np.sin(2 * X[:, 0]) + X[:, 1] + RNG.standard_normal(120)
MIXED = pd.DataFrame({
    "size": np.where(RNG.random(120) < 0.1, np.nan, 1e5 + X[:, 0]), "flag": X[:, 1] > 0,
    "colour": RNG.choice(["red", "green", "blue", None], 120), "same": 3.0,
})  # fmt: skip


def fitted(X=X, **options):
    return ParametricGPRegressor(**({"n_inducing": 15, "max_epochs": 3, "random_state": 0} | options)).fit(X, Y)


def run(content, inputs):
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, inputs), strict=True))


@pytest.mark.parametrize("method", [*METHODS, "exact", "fitc"])
def test_every_method(method, tmp_path):
    model = fitted(method=method)
    assert export(model.fitted_, tmp_path / "model.onnx") < 1e-5
    new = RNG.uniform(-3, 3, (50, 3))
    found, dist = run((tmp_path / "model.onnx").read_bytes(), {"X": new}), model.predict_dist(new)
    for name in ("mean", "std"):
        np.testing.assert_allclose(found[f"y_{name}"], getattr(dist, name), rtol=1e-6)
    np.testing.assert_allclose(found["function_std"], dist.function_std, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["noise_std"], np.broadcast_to(dist.noise_std, 50), rtol=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_by_name(kernel, tmp_path):
    assert export(fitted(kernel=kernel).fitted_, tmp_path / "model.onnx") < 1e-5


def test_sums_and_products_of_kernels(tmp_path):
    product = ScaleKernel(MaternKernel(nu=0.5) * PeriodicKernel(active_dims=[1]))
    kernel = ScaleKernel(RBFKernel(active_dims=[0, 2])) + product + LinearKernel(active_dims=[2])
    assert export(fitted(kernel=kernel).fitted_, tmp_path / "model.onnx") < 1e-5


@pytest.mark.parametrize("options", [{"features": (8, 2)}, {"mean": (8,)}, {"features": (8, 2), "mean": "mlp"}])
def test_networks_of_layers(options, tmp_path):
    assert export(fitted(**options).fitted_, tmp_path / "model.onnx") < 1e-6


def test_a_mixed_table_has_an_input_for_each_column(tmp_path):
    model = fitted(MIXED)
    assert export(model.fitted_, tmp_path / "model.onnx") < 1e-5
    content = (tmp_path / "model.onnx").read_bytes()
    made = onnx.load_model_from_string(content)
    assert [value.name for value in made.graph.input] == list(MIXED)
    assert {node.domain for node in made.graph.node} <= {"", "ai.onnx.ml"}
    new = MIXED.head(5).assign(colour=["red", None, "", "never seen", "blue"])
    expected = model.predict(new.assign(colour=["red", None, None, "never seen", "blue"]))
    table = pa.Table.from_pandas(new.astype({"flag": float}), preserve_index=False)
    np.testing.assert_allclose(run(content, feeds(model.fitted_, table))["y_mean"], expected, rtol=1e-6)


def test_rows_far_away_and_missing_are_as_in_the_model(tmp_path):
    model = fitted(np.where(RNG.random(X.shape) < 0.1, np.nan, X))
    content = graph_of(model.fitted_)
    far = np.array([[1e300, 0, 0], [-1e9, np.nan, 1], [np.nan, np.nan, np.nan], [0, 1e-300, 1e6]])
    found, dist = run(content, {"X": far}), model.predict_dist(far)
    np.testing.assert_allclose(found["y_mean"], dist.mean, rtol=1e-7)
    np.testing.assert_allclose(found["y_std"], dist.std, rtol=1e-7)


def test_intervals_of_the_normal_and_with_a_guarantee(tmp_path):
    model = fitted(MIXED.assign(colour=MIXED["colour"].fillna("red")))
    rows = MIXED.assign(colour=MIXED["colour"].fillna("blue"))
    table = pa.Table.from_pandas(rows.astype({"flag": float}), preserve_index=False)
    for by in (None, "colour"):
        for calibrated in (False, True):
            if calibrated:
                model.calibrate(rows, Y, by=by)
            export(model.fitted_, tmp_path / "model.onnx", interval=0.8, overwrite=True)
            found = run((tmp_path / "model.onnx").read_bytes(), feeds(model.fitted_, table))
            expected = model.predict_interval(rows, 0.8)
            np.testing.assert_allclose(np.stack([found["y_lower"], found["y_upper"]], 1), expected, rtol=1e-5)
    model.calibrate(rows, Y, by="size")
    with pytest.raises(ExportError, match="a column of numbers, cannot be exported"):
        graph_of(model.fitted_, 0.8)


def test_intervals_of_a_mixture_and_with_a_guarantee(tmp_path):
    model, new = fitted(), RNG.uniform(-3, 3, (50, 3))
    normal = onnx.load_from_string(graph_of(model.fitted_, 0.99))
    assert "shape" not in {prop.key for prop in normal.metadata_props}
    model.fitted_.model.likelihood.tails.fill_(0.4)
    model.fitted_.model.likelihood.parts[:2] = torch.tensor([[0.9, 0.0, 1.0], [0.1, 2.0, 3.0]])
    for calibrated in (False, True):
        if calibrated:
            model.calibrate(X, Y)
        export(model.fitted_, tmp_path / "model.onnx", interval=0.99, overwrite=True)
        content = (tmp_path / "model.onnx").read_bytes()
        found = run(content, {"X": new})
        np.testing.assert_allclose(found["y_std"], model.predict_dist(new).std, rtol=1e-6)
        expected = model.predict_interval(new, 0.99)
        np.testing.assert_allclose(np.stack([found["y_lower"], found["y_upper"]], 1), expected, rtol=1e-5)
    properties = {prop.key: prop.value for prop in onnx.load_from_string(content).metadata_props}
    found = json.loads(properties["shape"])
    assert Shape(found["dof"], tuple(map(tuple, found["parts"]))) == model.fitted_.shape
    assert found["dof"] == pytest.approx(2.5)


def small(**columns):
    rows = pd.DataFrame({"size": X[:, 0], "colour": RNG.choice(["red", "blue"], 120)} | columns)
    return fitted(rows, n_inducing=5, max_epochs=1), rows


@pytest.mark.parametrize("interval", [None, 0.8])
@pytest.mark.parametrize("rows", [0, 1])
def test_no_row_and_one_row(rows, interval):
    model, table = small()
    model.calibrate(table, Y, by="colour")
    inputs = {"size": np.zeros((rows, 1)), "colour": np.full((rows, 1), "red", dtype=object)}
    assert {found.shape for found in run(graph_of(model.fitted_, interval), inputs).values()} == {(rows,)}
    assert {found.shape for found in run(graph_of(fitted().fitted_), {"X": np.zeros((rows, 3))}).values()} == {(rows,)}


def test_columns_may_be_called_as_the_graphs_own_parts(tmp_path):
    model, _ = small(**dict.fromkeys(["c0", "n0", "n1_", "X", "a b/é:%", "y_lower"], X[:, 1]))
    assert export(model.fitted_, tmp_path / "model.onnx") < 1e-5
    with pytest.raises(ExportError, match=r"A column is called 'y_lower'.*Rename it"):
        graph_of(model.fitted_, 0.9)
    for name in ("y_mean", ""):
        with pytest.raises(ExportError, match=f"A column is called '{name}'"):
            graph_of(small(**{name: X[:, 1]})[0].fitted_)


def test_empty_text_is_a_missing_value_and_nothing_else(tmp_path):
    model, table = small()
    for colours in (["", "red", None], [None]):  # groups that the graph does not tell apart, and none at all
        model.calibrate(table.assign(colour=pd.Series(colours * 120, dtype=object)[:120]), Y, by="colour")
        export(model.fitted_, tmp_path / "model.onnx", interval=0.8, overwrite=True)
        content = (tmp_path / "model.onnx").read_bytes()
        inputs = {"size": X[:3, :1], "colour": np.array([["red"], [""], ["new"]], dtype=object)}
        found = run(content, inputs)
        expected = model.predict_interval(pd.DataFrame({"size": X[:3, 0], "colour": ["red", None, "new"]}), 0.8)
        np.testing.assert_allclose(np.stack([found["y_lower"], found["y_upper"]], 1), expected, rtol=1e-7)
    with pytest.raises(ExportError, match="'colour' has the empty text as a category"):
        graph_of(small(colour=["", "red"] * 60)[0].fitted_)


def test_values_near_the_largest_number(tmp_path):
    assert export(small(size=1e302 * X[:, 0])[0].fitted_, tmp_path / "model.onnx") < 1e-5


def test_a_graph_that_differs_is_not_written(tmp_path, monkeypatch):
    model = fitted()
    monkeypatch.setattr(export_module, "FARTHEST", 1.0)  # as an error in the encoding would
    with pytest.raises(ExportError, match=r"differs from the model by .* the target's scale"):
        export(model.fitted_, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_nor_one_that_gives_no_number(tmp_path, monkeypatch):
    model = fitted()
    moments = export_module._moments

    def without_variance(g, *given):
        mean, function_var, noise = moments(g, *given)
        return mean, g.times(function_var, np.nan), noise

    monkeypatch.setattr(export_module, "_moments", without_variance)
    with pytest.raises(ExportError, match="differs from the model by nan"):
        export(model.fitted_, tmp_path / "model.onnx")


def test_what_cannot_be_exported_is_said(tmp_path, monkeypatch):
    with pytest.raises(ExportError, match="CosineKernel is none of RBFKernel"):
        export_module._kernel(export_module._Graph(), CosineKernel(), "h", torch.zeros(2, 1))
    with pytest.raises(ExportError, match="The module Tanhs cannot be exported"):
        graph_of(fitted(features=Tanhs()).fitted_)
    monkeypatch.setattr(export_module, "MOST_POINTS", 10)
    with pytest.raises(ExportError, match="120 distinct rows"):
        graph_of(fitted(method="exact").fitted_)
    model = fitted().fitted_
    with monkeypatch.context() as patch:
        patch.setattr(export_module, "LARGEST", 1000)
        with pytest.raises(ExportError, match=r"more than .* GB.* fewer inducing points"):
            graph_of(model)
    with pytest.raises(FileNotFoundError, match="There is no folder"):
        export(model, tmp_path / "nowhere" / "model.onnx")
    (tmp_path / "model.onnx").write_text("mine")
    with pytest.raises(FileExistsError, match="exists"):
        export(model, tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").read_text() == "mine"
    for interval in (1.5, "0.9"):
        with pytest.raises(ValueError, match="between 0 and 1"):
            graph_of(model, interval)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnx" else find(name))
    with pytest.raises(ExportError, match=r"pip install \"paragp\[onnx\]\""):
        export(model, tmp_path / "other.onnx")


class Tanhs(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return torch.tanh(self.layer(x))


def test_the_command(tmp_path):
    fitted().save(tmp_path / "model")
    words = ["export", str(tmp_path / "model"), "--onnx", str(tmp_path / "model.onnx"), "--interval", ".9"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "it differs from the model by at most" in done.output
    assert set(run((tmp_path / "model.onnx").read_bytes(), {"X": X})) == {
        "y_mean", "y_std", "function_std", "noise_std", "y_lower", "y_upper",
    }  # fmt: skip
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert "exists. Choose another path" in done.stderr
    assert CliRunner().invoke(app, [*words, "--force"]).exit_code == 0
