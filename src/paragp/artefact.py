"""A fitted model as a folder: config.json, model.safetensors and a README.md for people. No pickle, and no
training rows (but inducing points may lie close to some: the card says when).

`load` trusts nothing it reads: format and version, the checksums of both files, names, types, shapes and finiteness are
checked before a model is handed out, and whatever is wrong is said in one sentence (`ModelFileError`).
"""

import copy
import hashlib
import json
import math
import numbers
import os
import reprlib
from dataclasses import asdict
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpytorch.kernels import Kernel
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from paragp.atomic import check_place, writing_folder
from paragp.card import card
from paragp.conformal import Calibration
from paragp.data.tables import Target, encode, from_records, matrix_names, to_records
from paragp.fitted import Fitted
from paragp.gp.covariances import Dense
from paragp.gp.exact import ExactGP
from paragp.gp.families import NeuralMean
from paragp.gp.features import embedded, layers, sizes_of
from paragp.gp.kernels import covariance, kernel_name
from paragp.gp.methods import METHODS
from paragp.gp.model import ParametricGP
from paragp.kernel_record import build, describe

FORMAT, VERSION = "paragp model", 1
CONFIG, TENSORS, CARD = "config.json", "model.safetensors", "README.md"
TAILS, PARTS = "likelihood.tails", "likelihood.parts"
LEADING = "family.S.leading"
REACH = "reach"  # what a calibration's scores are: `PredictiveDistribution.reach`
SCORES = "calibration."  # how the names of a calibration's tensors begin
CONFIG_LIMIT = 100 * 2**20  # bytes: more is not a config


class ModelFileError(ValueError):
    """A folder that is not a whole, unaltered model of this library."""


# --- writing ---


def save(
    fitted: Fitted,
    path: str | os.PathLike[str],
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
    if fitted.holds_rows and not keep_rows:
        raise ValueError(
            "FITC's inducing points started at the training rows and may lie close to them, and a saved model holds no "
            "rows. Pass keep_rows=True to store them, or fit with fewer inducing points than half the rows."
        )
    check_destination(path, overwrite=overwrite)
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()}
    tensors |= _scores(fitted.calibration)
    config = {
        "format": FORMAT,
        "version": VERSION,
        "library": version("paragp"),
        "method": fitted.method,
        "kernel": describe(model.kernel),
        "noise_floor": model.likelihood.floor,
        "solver": model.solver if isinstance(model, ExactGP) else None,
        "features": _described(getattr(model, "features", None)),
        "mean": _described(_mean_of(model)),
        "columns": to_records(fitted.columns),
        "target": asdict(fitted.target),
        "feature_names": feature_names,
        "calibration": _calibrated(fitted.calibration),
        "summary": plain(fitted.summary),
        "history": plain(fitted.history),
        "tensors": _announced(tensors),
    }
    _check_twin(model, config, tensors)
    data = save_tensors(tensors)
    config["tensors_sha256"] = hashlib.sha256(data).hexdigest()
    config["config_sha256"] = _checksum(config)
    try:
        with writing_folder(path) as part:
            (part / TENSORS).write_bytes(data)
            (part / CONFIG).write_bytes(json.dumps(config, indent=1).encode())
            (part / CARD).write_bytes(card(fitted, _asked(fitted)).encode())
    except OSError as error:
        raise OSError(error.errno, f"The model cannot be written to {path}: {error.strerror or error}") from error


def check_destination(path: Path, *, overwrite: bool) -> None:
    """Refuse to write where it is not possible, and over anything, unless asked to replace a model."""
    check_place(path)
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not overwrite:
        raise FileExistsError(f"{path} exists. Choose another path, or overwrite it (overwrite=True, or --force).")
    try:
        _parsed(path)
        others = sorted({file.name for file in path.iterdir()} - {CONFIG, TENSORS, CARD})
    except ModelFileError:
        raise FileExistsError(f"{path} is not a model, so it is not overwritten. Choose another path.") from None
    if others:
        raise FileExistsError(
            f"{path} holds more than a model ({others[0]!r}), so it is not overwritten. Choose another path."
        )


def _check_twin(model: ParametricGP | ExactGP, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Refuse a model that would not come back as it is."""
    own = {"features": getattr(model, "features", None), "mean": _mean_of(model)}
    twin = _assemble(config, tensors, **copy.deepcopy(own)).model
    p = tensors["X" if isinstance(model, ExactGP) else "family.Z"].shape[1]
    for kernel, rebuilt_kernel in zip(_kernels(model), _kernels(twin), strict=True):
        if not torch.equal(_kernel_values(kernel, p), _kernel_values(rebuilt_kernel, p)):
            raise ValueError(
                f"The kernel {kernel_name(kernel)} cannot be stored: rebuilt from its parts it gives other values."
            )
    for name, rebuilt in (("features", getattr(twin, "features", None)), ("mean", _mean_of(twin))):
        original = own[name]
        if not isinstance(config[name], list) or not isinstance(rebuilt, nn.Sequential) or original is None:
            continue
        width = tensors[f"{'family.' * (name == 'mean')}{name}.0.weight"].shape[1]
        x = torch.linspace(-1, 1, 2 * width).reshape(2, width).to(tensors["family.Z"])
        if not torch.equal(embedded(copy.deepcopy(original).cpu(), x), embedded(rebuilt, x)):
            raise ValueError(f"The {name} cannot be stored: layers rebuilt from their sizes give other values.")


# --- reading ---


def load(
    path: str | os.PathLike[str], *, features: nn.Module | None = None, mean: nn.Module | None = None
) -> tuple[Fitted, list[str] | None]:
    """The fitted model of a folder written by `save`, and the feature names it was fitted with (None: an array).

    A folder holds no code: where the kernel stands behind a module that is more than layers with ReLU between them,
    `features` is a module of that form, whose values are then those that were saved; `mean` likewise.
    """
    path = Path(path)
    config = read_config(path)
    for name, module in (("features", features), ("mean", mean)):
        stored = config.get(name)
        if isinstance(stored, str) and module is None:
            raise ModelFileError(
                f"{path} holds the values of a {name} module ({reprlib.repr(stored)}) and, as no code is stored, not "
                f"the module. Pass one of the same form: load(path, {name}=module)."
            )
        if module is not None and not isinstance(stored, str):
            raise ValueError(f"{path} does not ask for a module: leave out {name}.")
    data = _tensor_bytes(path, config)
    if hashlib.sha256(data).hexdigest() != config.get("tensors_sha256"):
        raise ModelFileError(f"{path / TENSORS} is truncated or was altered: its checksum is not the one in {CONFIG}.")
    try:
        found = _assemble(config, load_tensors(data), copy.deepcopy(features), copy.deepcopy(mean))
        return found, config["feature_names"]
    except Exception as error:  # anyone may have written the folder: whatever goes wrong here is wrong there
        raise ModelFileError(f"{path} cannot be read as a model: {_sentence(error)}") from error


def read_config(path: Path) -> dict[str, Any]:
    """The config of a model folder, checked to be whole."""
    config = _parsed(path)
    if config.get("version") != VERSION:
        raise ModelFileError(
            f"{path} has format version {reprlib.repr(config.get('version'))}; this paragp ({version('paragp')}) reads "
            f"version {VERSION}. Load it with the paragp that wrote it ({reprlib.repr(config.get('library'))})."
        )
    try:
        whole = config.get("config_sha256") == _checksum(config)
    except RecursionError:
        whole = False
    if not whole:
        raise ModelFileError(f"{path / CONFIG} was altered after it was saved: its checksum does not fit.")
    return config


def _parsed(path: Path) -> dict[str, Any]:
    """The config of a folder that says it is a model."""
    if not path.exists():
        raise FileNotFoundError(f"There is no model at {path}.")
    if not (path / CONFIG).is_file():
        raise ModelFileError(f"{path} is not a model folder: it has no {CONFIG}.")
    if (path / CONFIG).stat().st_size > CONFIG_LIMIT:
        raise ModelFileError(f"{path / CONFIG} is larger than a config can be.")
    try:
        config = json.loads(_bytes(path / CONFIG))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path / CONFIG} is truncated or not JSON: {_sentence(error)}") from error
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise ModelFileError(f"{path} is not a model of this library: {CONFIG} does not say it is a {FORMAT!r}.")
    return config


def _bytes(file: Path) -> bytes:
    if not file.is_file():
        raise ModelFileError(f"{file.parent} is not a whole model: {file.name} is missing.")
    return file.read_bytes()


def _tensor_bytes(path: Path, config: dict[str, Any]) -> bytes:
    """The file with the tensors, if it is about as large as the config announces."""
    try:
        kinds = config["tensors"].values()
        size = sum(math.prod(shape) * getattr(torch, kind.removeprefix("torch.")).itemsize for kind, shape in kinds)
        too_large = (path / TENSORS).is_file() and (path / TENSORS).stat().st_size > size + CONFIG_LIMIT
    except Exception as error:  # anyone may have written it
        raise ModelFileError(f"{path / CONFIG} does not announce the tensors.") from error
    if too_large:
        raise ModelFileError(f"{path / TENSORS} was altered: it is larger than the tensors that {CONFIG} announces.")
    return _bytes(path / TENSORS)


def _assemble(
    config: dict[str, Any], tensors: dict[str, Tensor], features: nn.Module | None = None, mean: nn.Module | None = None
) -> Fitted:
    """A model from its parts, of which nothing is taken for granted."""
    if config["tensors"] != _announced(tensors):
        raise ValueError("the tensors are not those that the config announces")
    columns, target, summary = from_records(config["columns"]), _target(config["target"]), config["summary"]
    names = [column.name for column in columns]
    d = encode(columns, np.empty((0, len(columns)))).shape[1]
    if d != len(matrix_names(columns)) or len(set(names)) < len(names):
        raise ValueError("the columns contradict each other")
    if config["feature_names"] not in (None, names):
        raise ValueError("the feature names are not those of the columns")
    if not isinstance(config["library"], str) or not config["library"].isprintable():
        raise ValueError("the config does not name the library that wrote it")
    _check_summary(summary)
    history = _history(config.get("history", []))  # older folders have none
    calibration = _calibration(config["calibration"], tensors, names)
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(SCORES)}
    model = _model(config, tensors, d, features, mean)
    for name, tensor in model.state_dict().items():
        if name in (TAILS, PARTS):
            tensors.setdefault(name, tensor.clone())  # older folders have none: they are normal
        elif name == LEADING:
            tensors.setdefault(name, torch.full_like(tensor, len(model.family.S.a)))  # older ones: all of them
    found, expected = _announced(tensors), _announced(model.state_dict())
    for name in sorted(found | expected):
        if found.get(name) != expected.get(name):
            raise ValueError(
                f"the tensor {name!r} is {found.get(name, 'missing')}, not {expected.get(name, 'expected')}"
            )
    model.load_state_dict(tensors)
    for name, tensor in tensors.items():
        if tensor.isnan().any() or (not name.endswith("_bound") and tensor.isinf().any()):  # a bound may be infinite
            raise ValueError(f"the tensor {name!r} holds NaN or infinite values")
    if not 0 <= float(tensors[TAILS]) < 0.5:  # 1 / dof: a Student-t has a variance from 2 degrees of freedom on
        raise ValueError(f"the tensor {TAILS!r} is {float(tensors[TAILS]):g}, not a number from 0 to below 1/2")
    if LEADING in tensors and not 1 <= int(tensors[LEADING]) <= len(model.family.S.a):
        raise ValueError(f"the tensor {LEADING!r} is {int(tensors[LEADING])}, not a number of the inducing points")
    try:
        shape = model.likelihood.shape
    except ValueError as error:
        raise ValueError(f"the tensor {PARTS!r} is no distribution's: {error}") from error
    if calibration is not None and config["calibration"].get("scores") != REACH and not shape.is_normal:
        raise ValueError(
            "the calibration is of z-scores, as before there were shapes: fit and calibrate the model again"
        )
    p = model.X.shape[1] if isinstance(model, ExactGP) else model.family.Z.shape[1]
    if not all(bool(_kernel_values(kernel, p).isfinite().all()) for kernel in _kernels(model)):
        raise ValueError("the kernel gives NaN or infinite values")
    return Fitted(config["method"], model, columns, target, summary, calibration, history)


def _scores(calibration: Calibration | None) -> dict[str, Tensor]:
    """A calibration's scores: of all rows, and of each group in the order of their names."""
    if calibration is None:
        return {}
    parts = [calibration.scores, *calibration.groups.values()]
    return {f"{SCORES}{i}": torch.from_numpy(part.copy()) for i, part in enumerate(parts)}


def _calibrated(calibration: Calibration | None) -> dict[str, Any] | None:
    if calibration is None:
        return None
    return {"by": calibration.by, "groups": list(calibration.groups), "scores": REACH}


def _calibration(record: Any, tensors: dict[str, Tensor], names: list[str]) -> Calibration | None:
    if record is None:
        return None
    by, groups = record["by"], record["groups"]
    named = isinstance(groups, list) and all(isinstance(key, str) for key in groups)
    if not named or by not in (None, *names) or len(set(groups)) < len(groups) or (by is None and groups):
        raise ValueError("the calibration's groups are not of a column")
    if sum(name.startswith(SCORES) for name in tensors) != 1 + len(groups):
        raise ValueError("the calibration's scores are not those of its groups")
    parts = [tensors[f"{SCORES}{i}"].numpy() for i in range(1 + len(groups))]
    for part in parts:
        rising = part.ndim == 1 and len(part) > 0 and part.dtype == np.float64 and bool((np.diff(part) >= 0).all())
        if not rising or not np.isfinite(part).all() or part[0] < 0:
            raise ValueError("the calibration's scores are not rising numbers from 0")
    return Calibration(parts[0], by, dict(zip(groups, parts[1:], strict=True)))


def _mean_of(model: ParametricGP | ExactGP) -> nn.Module | None:
    """The network of the mean, where there is one."""
    family = model.family if isinstance(model, ParametricGP) else None
    return family.mean if isinstance(family, NeuralMean) else None


def _described(network: nn.Module | None) -> list[int] | str | None:
    """A network as sizes of layers, or by the name of its class; None where there is none."""
    if network is None or isinstance(network, nn.Identity):
        return None
    return sizes_of(network) or type(network).__name__


def _rebuilt(
    stored: Any, tensors: dict[str, Tensor], start: str, module: nn.Module | None, d: int
) -> tuple[nn.Module | None, int]:
    """The network whose tensors' names `start` so, still without its values, and the number of its outputs."""
    if stored is None:
        return None, d
    if isinstance(stored, str):
        if module is None or not any(True for _ in module.parameters()):
            raise ValueError("the network is of a module with parameters")
        return module, embedded(module, torch.zeros(1, d).to(next(module.parameters()))).reshape(1, -1).shape[1]
    if not isinstance(stored, list) or not stored or not all(type(size) is int and size > 0 for size in stored):
        raise ValueError("the sizes of the network are not whole numbers above 0")
    for i, (width, size) in enumerate(pairwise([d, *stored])):  # before that much memory is taken
        for name, shape in (("weight", (size, width)), ("bias", (size,))):
            tensor = tensors.get(f"{start}.{2 * i}.{name}")
            if not width or tensor is None or tensor.shape != shape:
                raise ValueError("the layers of the network are of other sizes")
    return layers(d, stored), stored[-1]


def _model(
    config: dict[str, Any], tensors: dict[str, Tensor], d: int, features: nn.Module | None, mean: nn.Module | None
) -> Any:
    """A model of the right shape; its values are loaded next."""
    features, d = _rebuilt(config["features"], tensors, "features", features, d)
    mean, outputs = _rebuilt(config["mean"], tensors, "family.mean", mean, d)
    if mean is not None and outputs != 1:
        raise ValueError("the network of the mean gives more than one number")
    method, floor, kernel = config["method"], config["noise_floor"], build(config["kernel"], d)
    if not _is_number(floor) or not 0 <= floor < 0.1:
        raise ValueError("the noise floor is not a small number")
    exact = method == "exact"
    points = tensors["X" if exact else "family.Z"]
    if points.dtype not in (torch.float32, torch.float64) or points.ndim != 2 or points.shape[1] != d:
        raise ValueError(f"the columns give {d} inputs, the tensors are {points.dtype} of shape {list(points.shape)}")
    if exact:
        if tensors["y"].shape != points.shape[:1] or not len(points):
            raise ValueError("X and y are not as many rows")
        if not bool((tensors["copies"] >= 1).all() and (tensors["spread"] >= 0).all()):
            raise ValueError("rows stand for fewer than one, or their targets deviate by less than nothing")
        model = ExactGP(kernel, points, tensors["y"], solver=config["solver"])
        model.likelihood.floor = floor
        return model
    row = METHODS["vfitc" if method == "fitc" else method]  # FITC is VFITC's family at its optimum
    Z_variance = tensors["family.Z_variance"] if row.two_sets and mean is None else None
    M = len(points if Z_variance is None else Z_variance)
    if row.covariance is Dense and tensors["family.S.L"].shape != (M, M):  # before that much memory is taken
        raise ValueError(f"the covariance of {M} inducing points is of another size")
    return row.model(kernel, points, Z_variance, mean=mean, noise_floor=floor, features=features)


def _target(record: Any) -> Target:
    target = Target(**record)
    if not isinstance(target.name, str) or not _is_number(target.mean) or not _is_number(target.deviation):
        raise ValueError("the target has no name, mean and deviation")
    if not target.deviation > 0:
        raise ValueError("the target's deviation is not positive")
    return target


def _check_summary(summary: Any) -> None:
    counts = ("rows", "validation_rows", "inputs", "encoded_inputs", "epochs")
    if not isinstance(summary, dict) or not all(type(summary.get(name)) is int for name in counts):
        raise ValueError(f"the summary of the training does not hold {', '.join(counts)}")
    if summary.get("dtype") not in ("float32", "float64") or not isinstance(summary.get("kernel"), str):
        raise ValueError("the summary of the training does not name the precision and the kernel")
    if not isinstance(summary.get("parameters"), dict):
        raise ValueError("the summary of the training does not hold the parameters")
    scores = summary.get("validation_scores") or {}
    if not isinstance(scores, dict) or not all(score is None or _is_number(score) for score in scores.values()):
        raise ValueError("the validation scores are not numbers")


def _history(records: Any) -> list[dict[str, float]]:
    """The records of the epochs, in which a missing number is NaN again."""
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise ValueError("the history of the training is not a list of records")
    if [record.get("epoch") for record in records] != list(range(1, len(records) + 1)):
        raise ValueError("the history of the training does not count its epochs from 1")
    if not all(value is None or _is_number(value) for record in records for value in record.values()):
        raise ValueError("the history of the training holds more than numbers")
    return [{name: math.nan if value is None else value for name, value in record.items()} for record in records]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e308


def _announced(tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {name: [str(tensor.dtype), list(tensor.shape)] for name, tensor in tensors.items()}


def _checksum(config: dict[str, Any]) -> str:
    content = {key: value for key, value in config.items() if key != "config_sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def plain(value: Any) -> Any:
    """The value in JSON's terms, with None for numbers that it has no word for."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, numbers.Real) and not isinstance(value, int):
        value = float(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _sentence(error: BaseException) -> str:
    text = f"{error} is missing" if isinstance(error, KeyError) else str(error)
    return " ".join(text.split())[:300].rstrip(".") + "."


def _kernels(model: ParametricGP | ExactGP) -> list[Kernel]:
    """The kernel, and that of the variance where it is another."""
    others = [] if isinstance(model, ExactGP) else [model.family.variance_kernel(model.kernel)]
    return [model.kernel, *(kernel for kernel in others if kernel is not model.kernel)]


def _kernel_values(kernel: Kernel, d: int) -> Tensor:
    """What a kernel says about a few points, (3, 3)."""
    x = torch.linspace(-1, 1, 3 * d, dtype=torch.float64).reshape(3, d)
    with torch.no_grad():
        return covariance(copy.deepcopy(kernel).cpu().double(), x, x.clone())


def _asked(fitted: Fitted) -> str:
    """What else `load` wants."""
    modules = {"features": getattr(fitted.model, "features", None), "mean": _mean_of(fitted.model)}
    return "".join(f", {name}=module" for name, module in modules.items() if isinstance(_described(module), str))
