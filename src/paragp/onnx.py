"""A fitted model as one ONNX graph: encoding, network, kernel, mean and deviations, by standard operators alone.

ONNX has no Cholesky factor and no triangular solve, so the graph holds Lam^-1 and the weights of the mean. It computes
in float64, as predictions of a few rows do here. `export` runs the graph beside the model and refuses to write one that
differs.
"""

import copy
import importlib.util
import json
import math
import os
from collections.abc import Callable, Collection
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gpytorch.kernels as gk
import numpy as np
import pyarrow as pa
import torch
from gpytorch.kernels import Kernel
from torch import Tensor, nn

from paragp.atomic import check_new_file, writing
from paragp.conformal import Calibration
from paragp.data.tables import FARTHEST, Column
from paragp.fitted import Fitted
from paragp.gp.covariances import LARGEST_LOG, LogLinear, LogPower, Rooted, Zero
from paragp.gp.exact import ExactGP
from paragp.gp.families import Coupled, Decoupled, NeuralMean, OrthogonallyDecoupled
from paragp.gp.features import sizes_of
from paragp.gp.kernels import kernel_name
from paragp.gp.linalg import JITTER
from paragp.predictive import Array, central, check_level

OPSET, ML_OPSET, IR_VERSION = 20, 3, 9  # what runtimes of the last years read
TOLERANCE = 1e-4  # largest difference from the model, of the target's scale
CHECKED_ROWS = 300
MOST_POINTS = 5000  # rows of an exact GP: the graph holds a matrix of their square
LARGEST = 2**31 - 2**20  # bytes of constants: one file holds no more
FAR = 1e300  # a value that is checked is no farther from zero
MATRIX = "X"
MOMENTS, BOUNDS = ("y_mean", "y_std", "function_std", "noise_std"), ("y_lower", "y_upper")


class ExportError(ValueError):
    """A model that cannot be written as ONNX."""


def export(
    fitted: Fitted, path: str | os.PathLike[str], *, interval: float | None = None, overwrite: bool = False
) -> float:
    """Write a model as an ONNX file; returns the largest difference from the model, of the target's scale.

    Inputs: one matrix "X" (n, d) in float64 where all columns are numbers, else each column by its name, (n, 1),
    numbers in float64 and categories as text ("" where missing). Outputs, (n,) each: y_mean, y_std, function_std,
    noise_std, and with `interval` y_lower and y_upper of that coverage, guaranteed where the model was calibrated
    (by group: in each group of calibration rows; for text that is missing or new, over all of them). y_std is the
    deviation whatever the shape of the distribution; one that is not normal is the metadata's "shape", as JSON: the
    degrees of freedom "dof" and the "parts", (weight, mean, deviation) each.
    """
    for name in ("onnx", "onnxruntime"):
        if importlib.util.find_spec(name) is None:
            raise ExportError(f'An export needs {name}. Install it with: pip install "paragp[onnx]"')
    path = Path(path)
    check_new_file(path, overwrite=overwrite)
    content = graph_of(fitted, interval)
    error = largest_difference(fitted, content, interval)
    if not error <= TOLERANCE:
        raise ExportError(
            f"The graph differs from the model by {error:.1e} of the target's scale, more than {TOLERANCE:g}; it "
            "was not written. A model trained with a larger noise, or in float64, may do."
        )
    with writing(path) as part:
        part.write_bytes(content)
    return error


# --- the graph ---


class _Graph:
    """Nodes and constants as they are added; each operation gives the name of its result, which is none of `taken`."""

    def __init__(self, taken: Collection[str] = ()) -> None:
        self.taken = frozenset(taken)
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.size = 0  # of the constants, in bytes

    def const(self, values: Any, dtype: Any = np.float64) -> str:
        from onnx import numpy_helper

        if isinstance(values, Tensor):
            values = values.detach().cpu().numpy()
        array = np.asarray(values, dtype=dtype)
        self.size += array.nbytes
        if self.size > LARGEST:
            raise ExportError(
                f"The graph would hold more than {LARGEST / 2**30:.1f} GB, the most that one file can. Fit fewer "
                "inducing points."
            )
        name = self._fresh(f"c{len(self.constants)}")
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def op(self, kind: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        from onnx import helper

        name = output or self._fresh(f"n{len(self.nodes)}")
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def add(self, one: str, other: Any) -> str:
        return self.op("Add", one, self._named(other))

    def times(self, one: str, other: Any) -> str:
        return self.op("Mul", one, self._named(other))

    def matmul(self, one: str, other: Any) -> str:
        return self.op("MatMul", one, self._named(other))

    def total(self, value: str, *, keep: bool = False) -> str:
        """Sums over columns, (n,) or (n, 1)."""
        return self.op("ReduceSum", value, self.const([1], np.int64), keepdims=int(keep))

    def _named(self, value: Any) -> str:
        return value if isinstance(value, str) else self.const(value)

    def _fresh(self, name: str) -> str:
        while name in self.taken:
            name += "_"
        return name


def graph_of(fitted: Fitted, interval: float | None = None) -> bytes:
    """The model as the bytes of an ONNX file."""
    from onnx import TensorProto, checker, helper

    matrix = all(column.kind == "numeric" for column in fitted.columns)
    outputs = MOMENTS if interval is None else MOMENTS + BOUNDS
    if not matrix:
        _check_columns(fitted.columns, outputs)
    g = _Graph([MATRIX] if matrix else [column.name for column in fitted.columns])
    x, inputs = _encoded(g, fitted.columns, matrix)
    mean, function_var, noise = _moments(g, fitted.model, x)
    target = fitted.target
    g.op("Add", g.times(mean, target.deviation), g.const(target.mean), output="y_mean")
    function_var = g.op("Max", function_var, g.const(0.0))
    g.op("Mul", g.op("Sqrt", function_var), g.const(target.deviation), output="function_std")
    g.op("Mul", g.op("Sqrt", g.add(function_var, noise)), g.const(target.deviation), output="y_std")
    g.op("Mul", g.op("Sqrt", noise), g.const(target.deviation), output="noise_std")
    if interval is not None:
        for name, reach in zip(("y_lower", "y_upper"), _reaches(g, fitted, interval, matrix), strict=True):
            g.op("Add", "y_mean", g.op("Mul", "y_std", reach), output=name)
    made = helper.make_graph(
        g.nodes, "paragp", inputs, [helper.make_tensor_value_info(name, TensorProto.DOUBLE, ["n"]) for name in outputs],
        initializer=g.constants,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
    model = helper.make_model(made, opset_imports=opsets, ir_version=IR_VERSION, producer_name="paragp")
    model.producer_version = version("paragp")
    properties = {"method": fitted.method, "target": target.name}
    if not fitted.shape.is_normal:
        properties["shape"] = json.dumps(asdict(fitted.shape))
    helper.set_model_props(model, properties)
    checker.check_model(model)
    return bytes(model.SerializeToString())


def _check_columns(columns: tuple[Column, ...], outputs: Collection[str]) -> None:
    """Refuse columns that cannot be a graph's inputs."""
    for column in columns:
        if column.name in ("", *outputs):
            raise ExportError(
                f"A column is called {column.name!r}, which no input of a graph with the outputs {', '.join(outputs)} "
                "can be. Rename it, and fit again."
            )
        if "" in column.categories:
            raise ExportError(
                f"Column {column.name!r} has the empty text as a category, which a graph takes for a missing value. "
                "Replace it by another word, or by a missing value, and fit again."
            )


def _encoded(g: _Graph, columns: tuple[Column, ...], matrix: bool) -> tuple[str, list[Any]]:
    """The encoded, standardised rows (n, p), and the graph's inputs."""
    from onnx import TensorProto, helper

    if matrix:
        inputs = [helper.make_tensor_value_info(MATRIX, TensorProto.DOUBLE, ["n", len(columns)])]
        pieces = [g.op("Gather", MATRIX, g.const([i], np.int64), axis=1) for i in range(len(columns))]
    else:
        kinds = [TensorProto.DOUBLE if column.kind == "numeric" else TensorProto.STRING for column in columns]
        pieces = [column.name for column in columns]
        inputs = [helper.make_tensor_value_info(name, kind, ["n", 1]) for name, kind in zip(pieces, kinds, strict=True)]
    parts = [
        part
        for column, piece in zip(columns, pieces, strict=True)
        for part in (_number if column.kind == "numeric" else _category)(g, column, piece)
    ]
    return g.op("Concat", *parts, axis=1), inputs


def _number(g: _Graph, column: Column, piece: str) -> list[str]:
    absent = g.op("IsNaN", piece)
    scaled = g.op("Div", g.op("Sub", piece, g.const(column.mean)), g.const(column.deviation))
    near = g.op("Min", g.op("Max", scaled, g.const(-FARTHEST)), g.const(FARTHEST))
    known = g.op("Where", absent, g.const(0.0), near)
    return [known, *([_double(g, absent)] if column.missing else [])]


def _category(g: _Graph, column: Column, piece: str) -> list[str]:
    count = len(column.categories) + column.other
    others = len(column.categories) if column.other else -1
    keys, codes = [*column.categories, ""], [*range(len(column.categories)), -1]  # "": missing
    code = g.op(
        "LabelEncoder", piece, keys_strings=keys, values_int64s=codes, default_int64=others, domain="ai.onnx.ml"
    )
    parts = [_double(g, g.op("Equal", code, g.const([range(count)], np.int64)))] if count else []
    if column.missing:
        parts.append(_double(g, g.op("Equal", piece, g.const([[""]], object))))
    return parts


def _double(g: _Graph, value: str) -> str:
    from onnx import TensorProto

    return g.op("Cast", value, to=TensorProto.DOUBLE)


def _reaches(g: _Graph, fitted: Fitted, level: float, matrix: bool) -> tuple[str, str]:
    """Where the interval ends below and above the mean, in deviations: numbers, or one for each row by its group."""
    check_level(level)
    if fitted.calibration is None:
        low, high = fitted.shape.ppf(np.array(central(level))).tolist()
        return g.const(low), g.const(high)
    low, high = (_guaranteed(g, fitted, fitted.calibration, level, matrix, side) for side in (-1.0, 1.0))
    return low, high


def _guaranteed(g: _Graph, fitted: Fitted, calibration: Calibration, level: float, matrix: bool, side: float) -> str:
    """Where a guaranteed interval ends on that side, in deviations."""

    def end(factor: Array) -> Array:
        return fitted.shape.at_reach(side * factor)

    if calibration.by is None:
        return g.const(float(end(calibration.factor(level))))
    if matrix or not _is_category(fitted, calibration):
        raise ExportError(
            f"Guarantees by {calibration.by!r}, which is a column of numbers, cannot be exported. Calibrate without by."
        )
    whole = float(end(Calibration(calibration.scores).factor(level)))
    groups = [key for key in calibration.groups if key]  # "" is a missing value here, with the factor of all rows
    if not groups:
        return g.const(whole)
    ends = g.const([*end(calibration.factor(level, groups)).tolist(), whole])
    which = g.op(
        "LabelEncoder", calibration.by, keys_strings=groups, values_int64s=list(range(len(groups))),
        default_int64=len(groups), domain="ai.onnx.ml",
    )  # fmt: skip
    return g.op("Gather", ends, g.op("Squeeze", which, g.const([1], np.int64)))


def _is_category(fitted: Fitted, calibration: Calibration) -> bool:
    return any(column.name == calibration.by and column.kind == "categorical" for column in fitted.columns)


# --- the model ---


def _moments(g: _Graph, model: Any, x: str) -> tuple[str, str, str]:
    """The mean and variance of the function at x (n, p), and the noise's variance, each (n,)."""
    with torch.no_grad():
        if isinstance(model, ExactGP):
            return _exact(g, model, x)
        model = _in_float64(model)
        family, kernel, h = model.family, model.kernel, _layers(g, model.features, x)
        factor = model.factorise()
        other = family.variance_kernel(kernel)
        K = _kernel(g, other, h, family.variance_points)  # (n, M)
        known_by = factor.W[: int(family.S.leading)] if isinstance(family.S, LogPower) else factor.W
        A = g.matmul(K, known_by.T)  # (n, M)
        prior, known = _prior(g, other, h), g.total(g.op("Mul", A, A))
        var = g.op("Max", g.op("Sub", prior, known), g.const(0.0))
        if isinstance(family.S, LogPower):
            share = g.op("Div", var, g.op("Max", prior, g.const(np.finfo(np.float64).tiny)))
            var = g.op("Mul", prior, g.op("Pow", share, g.const(family.S.power)))
        noise = g.add(g.times(var, 0.0), model.noise)
        if isinstance(family.S, LogLinear):
            weighed = (
                g.matmul(K, factor.E[:, None]) if isinstance(family.S, LogPower) else g.matmul(A, family.S.a[:, None])
            )
            logarithm = g.add(g.total(weighed), family.S.b)
            noise = g.add(noise, g.op("Exp", g.op("Min", logarithm, g.const(LARGEST_LOG))))
        elif isinstance(family.S, Rooted) and not isinstance(family.S, Zero):
            rooted = g.matmul(A, family.S.factor())
            var = g.op("Add", var, g.total(g.op("Mul", rooted, rooted)))
        return _mean(g, family, factor, kernel, h), var, noise


def _in_float64(model: Any) -> Any:
    """A copy in float64 with the jitter that it was trained with."""
    own = next(model.parameters()).dtype
    model = copy.deepcopy(model).cpu().double().eval()
    if model.family.jitter is None:
        model.family.jitter = JITTER[own]
    return model


def _mean(g: _Graph, family: Any, factor: Any, kernel: Kernel, h: str) -> str:
    if isinstance(family, NeuralMean):
        return g.total(_layers(g, family.mean, h))  # one column
    if isinstance(family, OrthogonallyDecoupled):
        points, weights = torch.cat([family.Z_variance, family.Z]), torch.cat([factor.w, family.a])
    elif isinstance(family, Decoupled):
        points, weights = family.Z, factor.alpha
    elif isinstance(family, Coupled):
        points, weights = family.Z, factor.w
    else:
        raise ExportError(f"The family {type(family).__name__} cannot be exported.")
    return g.total(g.matmul(_kernel(g, kernel, h, points), weights[:, None]))


def _exact(g: _Graph, model: ExactGP, x: str) -> tuple[str, str, str]:
    if len(model.X) > MOST_POINTS:
        raise ExportError(
            f"An exact GP of {len(model.X)} distinct rows would make a graph of that number squared; up to "
            f"{MOST_POINTS} can be exported. Fit another method."
        )
    model = copy.deepcopy(model).cpu().double()
    model.solver = "cholesky"
    factor = model.factorise()
    K = _kernel(g, model.kernel, x, model.X)
    W = torch.linalg.solve_triangular(factor.L, torch.eye(len(model.X), dtype=torch.float64), upper=False)
    A = g.matmul(K, W.T)
    var = g.op("Sub", _prior(g, model.kernel, x), g.total(g.op("Mul", A, A)))
    weights = factor[0]
    return g.total(g.matmul(K, weights[:, None])), var, g.add(g.times(var, 0.0), model.noise)


def _layers(g: _Graph, module: nn.Module, h: str) -> str:
    if isinstance(module, nn.Identity):
        return h
    if sizes_of(module) is None:
        raise ExportError(
            f"The module {type(module).__name__} cannot be exported: only layers with ReLU between them (features or "
            "mean by their sizes, or such a Sequential) can."
        )
    for part in module.children():
        h = g.add(g.matmul(h, part.weight.T), part.bias) if isinstance(part, nn.Linear) else g.op("Relu", h)
    return h


# --- kernels ---


def _kernel(g: _Graph, kernel: Kernel, h: str, Z: Tensor) -> str:
    """k(h, Z), (n, M)."""
    kind = type(kernel)
    if kind is gk.ScaleKernel:
        return g.times(_kernel(g, kernel.base_kernel, h, Z), float(kernel.outputscale))
    if kind in (gk.AdditiveKernel, gk.ProductKernel):
        made = [_kernel(g, part, h, Z) for part in kernel.kernels]
        return _folded(g, "Add" if kind is gk.AdditiveKernel else "Mul", made)
    if kernel.active_dims is not None:
        h = g.op("Gather", h, g.const(kernel.active_dims.tolist(), np.int64), axis=1)
        Z = Z[:, kernel.active_dims]
    make = FORMS.get(kind)
    if make is None:
        raise ExportError(
            f"The kernel {kernel_name(kernel)} cannot be exported: {kind.__name__} is none of "
            f"{', '.join(form.__name__ for form in FORMS)}, their sums, products and multiples."
        )
    return make(g, kernel, h, Z.double())


def _folded(g: _Graph, kind: str, made: list[str]) -> str:
    first, *others = made
    for other in others:
        first = g.op(kind, first, other)
    return first


def _squared(g: _Graph, kernel: Kernel, h: str, Z: Tensor) -> str:
    """Squared distances in lengthscales, (n, M), never negative; around the points' middle, so that digits stay."""
    scale = kernel.lengthscale.detach().double().cpu().reshape(-1).expand(Z.shape[1])
    middle = Z.mean(0)
    z = (Z - middle) / scale
    a = g.op("Div", g.op("Sub", h, g.const(middle)), g.const(scale))
    squares = g.add(g.total(g.op("Mul", a, a), keep=True), z.square().sum(1)[None])
    return g.op("Max", g.op("Sub", squares, g.times(g.matmul(a, z.T), 2.0)), g.const(0.0))


def _rbf(g: _Graph, kernel: Kernel, h: str, Z: Tensor) -> str:
    return g.op("Exp", g.times(_squared(g, kernel, h, Z), -0.5))


def _matern(g: _Graph, kernel: Kernel, h: str, Z: Tensor) -> str:
    r = g.times(g.op("Sqrt", _squared(g, kernel, h, Z)), math.sqrt(2 * kernel.nu))
    decay = g.op("Exp", g.op("Neg", r))
    if kernel.nu == 0.5:
        return decay
    front = g.add(r, 1.0)
    if kernel.nu == 2.5:
        front = g.op("Add", front, g.times(g.op("Mul", r, r), 1 / 3))
    return g.op("Mul", front, decay)


def _rq(g: _Graph, kernel: Kernel, h: str, Z: Tensor) -> str:
    alpha = float(kernel.alpha)
    base = g.add(g.times(_squared(g, kernel, h, Z), 1 / (2 * alpha)), 1.0)
    return g.op("Exp", g.times(g.op("Log", base), -alpha))


def _periodic(g: _Graph, kernel: Kernel, h: str, Z: Tensor) -> str:
    """exp(-2 sum sin(pi (x - z) / p)^2 / l), with 2 sin(a - b)^2 = 1 - cos 2a cos 2b - sin 2a sin 2b."""
    scale = kernel.lengthscale.detach().double().reshape(-1).expand(Z.shape[1])
    turn = 2 * math.pi / kernel.period_length.detach().double().reshape(-1).expand(Z.shape[1])
    angle, fixed = g.times(h, turn), Z * turn
    total = g.matmul(g.op("Sin", angle), (fixed.sin() / scale).T)
    cosine = g.op("Sin", g.add(angle, math.pi / 2))
    total = g.op("Add", total, g.matmul(cosine, (fixed.cos() / scale).T))
    return g.op("Exp", g.add(total, -float((1 / scale).sum())))


def _linear(g: _Graph, kernel: Kernel, h: str, Z: Tensor) -> str:
    variance = kernel.variance.detach().double().reshape(-1).expand(Z.shape[1])
    return g.matmul(h, (Z * variance).T)


FORMS: dict[type[Kernel], Callable[[_Graph, Kernel, str, Tensor], str]] = {
    gk.RBFKernel: _rbf, gk.MaternKernel: _matern, gk.RQKernel: _rq, gk.PeriodicKernel: _periodic,
    gk.LinearKernel: _linear,
}  # fmt: skip


def _prior(g: _Graph, kernel: Kernel, h: str) -> str:
    """k(h, h) of each row, (n,)."""
    kind = type(kernel)
    if kind is gk.ScaleKernel:
        return g.times(_prior(g, kernel.base_kernel, h), float(kernel.outputscale))
    if kind in (gk.AdditiveKernel, gk.ProductKernel):
        made = [_prior(g, part, h) for part in kernel.kernels]
        return _folded(g, "Add" if kind is gk.AdditiveKernel else "Mul", made)
    if kind is gk.LinearKernel:
        if kernel.active_dims is not None:
            h = g.op("Gather", h, g.const(kernel.active_dims.tolist(), np.int64), axis=1)
        return g.total(g.times(g.op("Mul", h, h), kernel.variance.detach().double().reshape(1, -1)))
    return g.const(1.0)


# --- whether it is the model ---


def feeds(fitted: Fitted, X: pa.Table) -> dict[str, np.ndarray]:
    """A table as the graph's inputs."""
    if all(column.kind == "numeric" for column in fitted.columns):
        return {MATRIX: np.column_stack([X[column.name].to_numpy() for column in fitted.columns])}
    found = {}
    for column in fitted.columns:
        if column.kind == "numeric":
            found[column.name] = X[column.name].to_numpy()[:, None]
        else:
            words = ["" if value is None else value for value in X[column.name].to_pylist()]
            found[column.name] = np.array(words, dtype=object)[:, None]
    return found


def largest_difference(fitted: Fitted, content: bytes, interval: float | None = None) -> float:
    """Between graph and model, over random and extreme rows, of the target's deviation and what is predicted."""
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    X = rows_to_check(fitted.columns)
    found = dict(
        zip([output.name for output in session.get_outputs()], session.run(None, feeds(fitted, X)), strict=True)
    )
    dist = fitted.predict(X)
    expected: dict[str, Array] = {
        "y_mean": dist.mean, "y_std": dist.std, "function_std": dist.function_std, "noise_std": dist.noise_std,
    }  # fmt: skip
    if interval is not None:
        expected["y_lower"], expected["y_upper"] = fitted.interval(X, interval, dist=dist).T
    scale = fitted.target.deviation + np.abs(dist.mean - fitted.target.mean) + dist.std  # a line may lead far away
    differences = [np.abs(found[name] - expected[name]) / scale for name in expected]
    return float(np.max(differences))  # NaN if any is


def rows_to_check(columns: tuple[Column, ...]) -> pa.Table:
    """Random rows, some of them far away, with missing values and categories that were never seen."""
    rng = np.random.default_rng(0)
    made: dict[str, Any] = {}
    for column in columns:
        if column.kind == "numeric":
            far = rng.choice([1.0, 3.0, 1e3, 1e7], CHECKED_ROWS, p=[0.7, 0.2, 0.05, 0.05])
            z = far * rng.standard_normal(CHECKED_ROWS)
            with np.errstate(over="ignore"):
                values = np.clip(column.mean + column.deviation * z, -FAR, FAR)
            made[column.name] = np.where(rng.random(CHECKED_ROWS) < 0.05, np.nan, values)
        else:
            words = rng.choice([*column.categories, "never seen"], CHECKED_ROWS).tolist()
            made[column.name] = pa.array([None if rng.random() < 0.05 else word for word in words], pa.string())
    return pa.table(made)
