"""A fitted model as a folder: config.json, model.safetensors and a README.md for people. No pickle, no training rows.

`load` trusts nothing it reads: format and version, the checksums of both files, names, types, shapes and finiteness are
checked before a tensor reaches a model, and whatever is wrong is said in one sentence (`ModelFileError`).
"""

import copy
import hashlib
import json
import math
from dataclasses import asdict
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any

import safetensors
import torch
from gpytorch import constraints, kernels
from gpytorch.kernels import Kernel
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from paragp.atomic import writing_folder
from paragp.data.tables import Target, from_records, matrix_names, to_records
from paragp.fitted import Fitted
from paragp.gp.exact import ExactGP
from paragp.gp.kernels import covariance, kernel_name
from paragp.gp.methods import METHODS

FORMAT, VERSION = "paragp model", 1
CONFIG, TENSORS, CARD = "config.json", "model.safetensors", "README.md"
CONFIG_LIMIT = 100 * 2**20  # bytes: more is not a config


class ModelFileError(ValueError):
    """A folder that is not a whole, unaltered model of this library."""


def save(
    fitted: Fitted,
    path: str | PathLike[str],
    *,
    feature_names: list[str] | None = None,
    overwrite: bool = False,
    keep_rows: bool = False,
) -> None:
    """Write a fitted model to the folder `path`, whole or not at all."""
    path = Path(path)
    model = fitted.model
    if isinstance(model, ExactGP) and not keep_rows:
        raise ValueError(
            "An exact GP predicts from its training rows, and a saved model holds none. Pass keep_rows=True to store "
            "them, or fit another method."
        )
    _check_free(path, overwrite)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    config = {
        "format": FORMAT,
        "version": VERSION,
        "library": version("paragp"),
        "method": fitted.method,
        "kernel": describe(model.kernel, len(matrix_names(fitted.columns))),
        "noise_floor": model.likelihood.floor,
        "solver": model.solver if isinstance(model, ExactGP) else None,
        "columns": to_records(fitted.columns),
        "target": asdict(fitted.target),
        "feature_names": feature_names,
        "summary": _plain(fitted.summary),
        "tensors": {name: [str(tensor.dtype), list(tensor.shape)] for name, tensor in tensors.items()},
    }
    data = save_tensors(tensors)
    config["tensors_sha256"] = hashlib.sha256(data).hexdigest()
    config["config_sha256"] = _checksum(config)
    with writing_folder(path) as part:
        (part / TENSORS).write_bytes(data)
        (part / CONFIG).write_text(json.dumps(config, indent=1, ensure_ascii=False), encoding="utf-8")
        (part / CARD).write_text(card(fitted), encoding="utf-8")


def load(path: str | PathLike[str]) -> tuple[Fitted, list[str] | None]:
    """The fitted model of a folder written by `save`, and the feature names it was fitted with (None: an array)."""
    path = Path(path)
    config = read_config(path)
    try:
        data = (path / TENSORS).read_bytes()
    except FileNotFoundError:
        raise ModelFileError(f"{path} is not a whole model: {TENSORS} is missing.") from None
    if hashlib.sha256(data).hexdigest() != config.get("tensors_sha256"):
        raise ModelFileError(f"{path / TENSORS} is truncated or was altered: its checksum is not the one in {CONFIG}.")
    try:
        tensors = load_tensors(data)
        fitted = _assemble(config, tensors)
    except ModelFileError:
        raise
    except (safetensors.SafetensorError, ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        raise ModelFileError(f"{path} cannot be read as a model: {_sentence(error)}") from error
    names = config["feature_names"]
    return fitted, names


def read_config(path: Path) -> dict[str, Any]:
    """The config of a model folder, checked to be whole."""
    if not path.exists():
        raise FileNotFoundError(f"There is no model at {path}.")
    if not path.is_dir() or not (path / CONFIG).is_file():
        raise ModelFileError(f"{path} is not a model folder: it has no {CONFIG}.")
    if (path / CONFIG).stat().st_size > CONFIG_LIMIT:
        raise ModelFileError(f"{path / CONFIG} is larger than a config can be.")
    try:
        config = json.loads((path / CONFIG).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path / CONFIG} is truncated or not JSON: {_sentence(error)}") from error
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise ModelFileError(f"{path} is not a model of this library: {CONFIG} does not say it is a {FORMAT!r}.")
    if config.get("version") != VERSION:
        raise ModelFileError(
            f"{path} has format version {config.get('version')!r}; this paragp ({version('paragp')}) reads version "
            f"{VERSION}. Load it with the paragp that wrote it ({config.get('library')!r})."
        )
    if config.get("config_sha256") != _checksum(config):
        raise ModelFileError(f"{path / CONFIG} was altered after it was saved: its checksum does not fit.")
    return config


def _assemble(config: dict[str, Any], tensors: dict[str, Tensor]) -> Fitted:
    """A model from checked parts."""
    found = {name: [str(tensor.dtype), list(tensor.shape)] for name, tensor in tensors.items()}
    if found != config["tensors"]:
        raise ModelFileError("The tensors are not those that the config announces.")
    for name, tensor in tensors.items():
        if name.rpartition(".")[2] not in ("lower_bound", "upper_bound") and not bool(torch.isfinite(tensor).all()):
            raise ModelFileError(f"The tensor {name!r} holds NaN or infinite values.")
    columns, method = from_records(config["columns"]), config["method"]
    kernel = build(config["kernel"])
    if method == "exact":
        model: Any = ExactGP(kernel, tensors["X"], tensors["y"], solver=config["solver"])
        model.likelihood.floor = config["noise_floor"]
    else:
        row = METHODS["vfitc" if method == "fitc" else method]  # FITC is VFITC's family at its optimum
        Z_variance = tensors["family.Z_variance"] if row.two_sets else None
        model = row.model(kernel, tensors["family.Z"], Z_variance, noise_floor=config["noise_floor"])
    model.load_state_dict(tensors)
    target = Target(**config["target"])
    if not (math.isfinite(target.mean) and math.isfinite(target.deviation) and target.deviation > 0):
        raise ModelFileError("The target has no finite mean and positive deviation.")
    points = model.X if isinstance(model, ExactGP) else model.family.Z
    if points.shape[1] != len(matrix_names(columns)):
        raise ModelFileError(
            f"The columns give {len(matrix_names(columns))} inputs, the tensors are for {points.shape[1]}."
        )
    return Fitted(method, model, columns, target, config["summary"])


def _check_free(path: Path, overwrite: bool) -> None:
    """Refuse to write over anything, unless asked to replace a model."""
    if not path.exists():
        return
    if path.is_dir() and not any(path.iterdir()):
        return
    if not overwrite:
        raise FileExistsError(f"{path} exists. Choose another path, or allow it to be overwritten.")
    if not (path / CONFIG).is_file() or not (path / TENSORS).is_file():
        raise FileExistsError(f"{path} is not a model, so it is not overwritten. Choose another path.")


# --- kernels as JSON ---

PLAIN = ("RBFKernel", "MaternKernel", "RQKernel", "PeriodicKernel", "LinearKernel", "CosineKernel")
JOINT = ("AdditiveKernel", "ProductKernel")
CONSTRAINTS = ("Positive", "GreaterThan", "LessThan", "Interval")


def describe(kernel: Kernel, d: int) -> dict[str, Any]:
    """A kernel on d inputs as JSON, or a ValueError that says why it cannot be one."""
    description = _describe(kernel)
    twin = build(description).to(next(kernel.parameters()).dtype)
    try:
        twin.load_state_dict(kernel.state_dict())
    except RuntimeError as error:
        raise ValueError(f"The kernel {kernel_name(kernel)} cannot be stored: {_sentence(error)}") from error
    x = torch.linspace(-1, 1, 3 * d, dtype=torch.float64).reshape(3, d)
    with torch.no_grad():
        same = torch.equal(*(covariance(k.double(), x, x.clone()) for k in (copy.deepcopy(kernel), twin)))
    if not same:
        raise ValueError(
            f"The kernel {kernel_name(kernel)} cannot be stored: rebuilt from its parts it gives other values."
        )
    return description


def _describe(kernel: Kernel) -> dict[str, Any]:
    name = type(kernel).__name__
    known = type(kernel) is getattr(kernels, name, None) and name in ("ScaleKernel", *JOINT, *PLAIN)
    if not known or tuple(kernel.batch_shape):
        raise ValueError(
            f"The kernel {kernel_name(kernel)} cannot be stored: {name} is not one of ScaleKernel, {', '.join(JOINT)}, "
            f"{', '.join(PLAIN)} (without batches). Use a kernel by name, or one built of these."
        )
    description: dict[str, Any] = {
        "type": name,
        "constraints": {n.removesuffix("_constraint"): type(c).__name__ for n, c in kernel._constraints.items()},
    }
    for constraint in description["constraints"].values():
        if constraint not in CONSTRAINTS:
            raise ValueError(
                f"The kernel {kernel_name(kernel)} cannot be stored: its constraint {constraint} is unknown."
            )
    if name == "ScaleKernel":
        return description | {"base": _describe(kernel.base_kernel)}
    if name in JOINT:
        return description | {"parts": [_describe(part) for part in kernel.kernels]}
    description["active_dims"] = None if kernel.active_dims is None else kernel.active_dims.tolist()
    description["ard_num_dims"] = kernel.ard_num_dims
    return description | ({"nu": kernel.nu} if name == "MaternKernel" else {})


def build(description: Any) -> Kernel:
    """The kernel of a description, with parameters yet to be loaded."""
    if not isinstance(description, dict) or description.get("type") not in ("ScaleKernel", *JOINT, *PLAIN):
        raise ValueError("the kernel's description names no known kernel")
    name = description["type"]
    if name == "ScaleKernel":
        kernel = kernels.ScaleKernel(build(description["base"]))
    elif name in JOINT:
        kernel = getattr(kernels, name)(*(build(part) for part in description["parts"]))
    else:
        options = {key: description[key] for key in ("ard_num_dims", "nu") if key in description}
        active = description["active_dims"]
        kernel = getattr(kernels, name)(active_dims=None if active is None else tuple(active), **options)
    for parameter, constraint in description["constraints"].items():
        if constraint not in CONSTRAINTS or parameter not in dict(kernel.named_parameters(recurse=False)):
            raise ValueError(f"the constraint {constraint!r} of {parameter!r} is unknown")
        bounds = {"Positive": (), "GreaterThan": (0.0,), "LessThan": (0.0,), "Interval": (0.0, 1.0)}[constraint]
        kernel.register_constraint(parameter, getattr(constraints, constraint)(*bounds), replace=True)
    return kernel


# --- the card ---


def card(fitted: Fitted) -> str:
    """A page about the model, in Markdown."""
    label = {"exact": "Exact GP", "fitc": "FITC"}.get(fitted.method) or METHODS[fitted.method].label
    summary, scores = fitted.summary, fitted.summary.get("validation_scores") or {}
    lines = [
        f"# A model of {_cell(fitted.target.name)}",
        "",
        f"{label}, made by paragp {version('paragp')}. It predicts a normal distribution of "
        f"{_cell(fitted.target.name)} for each row: a mean, and a deviation with a part from the function and a part "
        "from noise.",
        "",
        "## Data",
        "",
        f"{summary['rows']} training rows, {summary['validation_rows']} validation rows. The target has mean "
        f"{fitted.target.mean:.6g} and deviation {fitted.target.deviation:.6g}. No row is stored here"
        + (", except those an exact GP needs." if fitted.method == "exact" else "."),
        "",
        "| input | kind | mean | deviation | missing values | categories |",
        "|---|---|---:|---:|---|---|",
    ]
    for column in fitted.columns:
        numeric = column.kind == "numeric"
        numbers = f"{column.mean:.6g} | {column.deviation:.6g}" if numeric else " | "
        count = "" if numeric else f"{len(column.categories)}{' and others' if column.other else ''}"
        seen = "yes" if column.missing else "no"
        lines.append(f"| {_cell(column.name)} | {column.kind} | {numbers} | {seen} | {count} |")
    if scores:
        lines += ["", "## On the validation rows, in the target's units", "", "| metric | value |", "|---|---:|"]
        lines += [f"| {name} | {value:.4g} |" for name, value in scores.items() if value is not None]
    lines += [
        "", "## Use", "", "```python", "from paragp import ParametricGPRegressor", "",
        'model = ParametricGPRegressor.load("path/to/this/folder")', "mean, std = model.predict(X, return_std=True)",
        "```", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _cell(text: str) -> str:
    """Text that may hold anything, as a cell of a Markdown table."""
    shown = " ".join(text.split())
    for sign in "\\`*_{}[]()#+!|<>":
        shown = shown.replace(sign, f"\\{sign}" if sign not in "<>" else {"<": "&lt;", ">": "&gt;"}[sign])
    return shown[:100]


def _checksum(config: dict[str, Any]) -> str:
    content = {key: value for key, value in config.items() if key != "config_sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """The value with None for numbers that JSON has no word for."""
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _sentence(error: BaseException) -> str:
    return " ".join(str(error).split())[:300].rstrip(".") + "."
