"""ParametricGPRegressor: the scikit-learn face of the library."""

import copy
import hashlib
import math
import numbers
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from typing import Any, Self

import gpytorch
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import _check_sample_weight, check_consistent_length, check_is_fitted, validate_data
from torch import Tensor
from tqdm import tqdm

from paragp.artefact import load, plain, save
from paragp.checks import (
    check_kernel,
    check_network,
    check_number,
    check_spread,
    check_weight,
    find_device,
    numeric_target,
    target_name,
    warn_of_constants,
    warn_of_copies,
    warn_of_lone_rows,
)
from paragp.conformal import Calibration
from paragp.data.parquet import Source
from paragp.data.rows import Data, Rows, Share
from paragp.data.stream import Stream, plan, survey
from paragp.data.tables import (
    Array,
    Column,
    as_frame,
    column_names,
    distinct_rows,
    encode,
    fit_columns,
    fit_target,
    group_keys,
    matrix_names,
    n_rows,
    row_blocks,
    take_rows,
)
from paragp.fitted import BLOCK_ROWS, Fitted
from paragp.gp.exact import fit_exact, fit_fitc
from paragp.gp.features import check_module, warn_if_collapsed
from paragp.gp.kernels import KERNELS
from paragp.gp.methods import METHODS
from paragp.metrics import evaluate
from paragp.predictive import PredictiveDistribution
from paragp.report import check_free, write_report
from paragp.training.checkpoint import Checkpoint
from paragp.training.distributed import current
from paragp.training.inducing import KMEANS_ROWS, kmeans
from paragp.training.loop import Epoch
from paragp.training.recipe import RECIPES, Settings
from paragp.training.train import total_epochs, train

FULL_BATCH = ("exact", "fitc")  # methods outside the registry: no mini-batches, no grid
SPLIT_FROM = 30  # rows: below, none are spared for validation unless early_stopping=True asks for it
FEWEST_HELD_OUT = 20  # rows, up to a third of the table, unless early_stopping=True asks for fewer
MOST_VALIDATION = 20_000  # rows of a stream that are held out
PRECISE_ROWS = 1000  # rows up to which training is in float64 whatever `dtype` says: it costs little there
JOINT_ROWS = 10_000  # rows up to which a joint covariance (n x n numbers) is made
MOST_COPIES = 10**6  # rows that weights may make of a table for a full-batch method
# What a model is made by.
FORM = ("_method", "kernel", "features", "mean", "n_inducing", "n_inducing_variance", "categorical_features")
MLP = (256, 128, 64)  # what mean="mlp" stands for


class ParametricGPRegressor(RegressorMixin, BaseEstimator):
    """Regression with calibrated uncertainty on tables of any size.

    Inputs may be arrays or data frames (pandas, polars, pyarrow) with numbers, booleans, text and categories, and may
    have missing values; see `paragp.data.tables` for how they are encoded. Inputs and target are standardised inside;
    everything that comes out is in the units of `y`.

    Parameters
    ----------
    method : "auto", a name of `paragp.METHODS`, or "exact" or "fitc" (full batch)
        "auto" is "two-stage": an accurate mean first, then noise by the row fitted to what it leaves. Where something
        is set that only gradient steps have (`features`, `mean`, `recipe`, `max_epochs`, `batch_size`, `learning_rate`,
        `renyi`), it is "ppgpr-mfd", which trains the predictive distribution itself; `fitted_.method` says which.
    n_inducing : int
        Inducing points (of the mean, where mean and variance have sets of their own). Never more than distinct rows.
        For "two-stage", those of the noise: the mean has up to seven times as many.
    n_inducing_variance : int or None
        Inducing points of the variance, where they are not the mean's ("ppgpr-mfd", "od-svgp" and their variants);
        None: as many as `n_inducing`. With a number, "two-stage" has `n_inducing` for the mean.
    kernel : "auto", "matern12", "matern32", "matern52", "rbf", "rq", ... or a gpytorch kernel
        "auto" is "matern52", but for "two-stage" the best of the Matérns, "rbf" and "rq" on a sample of the rows.
    features : None, sizes such as (256, 128, 64), or a torch module
        A network before the kernel, trained with it: layers of these sizes with ReLU between them, or a module that
        takes the encoded, standardised inputs (b, d) to features (b, p) (it is copied, not changed). Inducing points
        then live among its outputs. Not for "exact" and "fitc".
    mean : None, "mlp", hidden sizes such as (256, 128), or a torch module
        For "ppgpr-mfd" and "ppgpr-gamma": a network for the mean, and inducing points for the variance alone. "mlp" is
        (256, 128, 64). A module takes what the kernel takes (the features, or the inputs, encoded and standardised) to
        (b,) or (b, 1), in units of the standardised target.
    beta : float or "auto"
        Weight beta_reg of the regulariser. "auto" searches the method's grid (the paper's, for its methods) on
        validation rows. For "two-stage" it is the weight of the mean's prior.
    gamma : float or "auto"
        For "gamma-robust" and "ppgpr-gamma" only, as `beta`.
    bb_alpha : float or "auto"
        For "bb-alpha" and "bb-alpha-u" only, as `beta`.
    renyi : float
        The order of the regulariser, Rényi's divergence; 1 is the KL divergence. It says nothing to methods whose q(u)
        is a point ("map", "ppgpr-delta"), nor to those whose regulariser is a weight decay ("ppgpr-log", "two-stage").
    recipe : "auto" or "adam"
        "auto" starts from the exact GP of a sample and solves for the mean between epochs; "adam" is the paper's
        training, 400 epochs of Adam at .01.
    max_epochs, batch_size, learning_rate : number or "auto"
        "auto" takes them by the number of rows: more steps, and smaller ones, for larger tables. "two-stage" takes no
        steps, and stops nothing early.
    early_stopping : bool or "auto"
        Stop when the validation NLL has not improved for `n_iter_no_change` epochs, and keep the model that had the
        best. "auto": from 30 rows on, with recipe="auto". Without it the last epoch's model is kept.
    validation_fraction : float
        Share of rows held out for validation where no `X_val` is passed, but at least 20 rows up to a third of them
        unless `early_stopping=True`. "exact" and "fitc" hold out none.
    n_iter_no_change : int
    categorical_features : "from_dtype", None, or names, positions or a mask of columns
        "from_dtype": text and categorical columns of a data frame, none of an array.
    dtype : "float32" or "float64"
        Precision of training. Up to 1000 rows are always trained in float64.
    device : "auto" or a torch device
    warm_start : bool
        Go on from the last `fit` (its encoding of the columns and its model), unless method, kernel, features, mean,
        inducing points or categorical features are others now.
    verbose : int
        1 shows a progress bar.
    random_state : int, RandomState or None

    Attributes
    ----------
    n_features_in_, feature_names_in_ : of the inputs, as in scikit-learn
    n_iter_ : epochs (for "exact" and "fitc": 1)
    history_ : one dict per epoch with objective, learning_rate, seconds, nll, rmse, crps (the last three on validation
        rows, in standardised units)
    validation_scores_ : dict or None, `paragp.metrics.evaluate` on the validation rows in the units of y
    beta_, gamma_, bb_alpha_ : the values used
    noise_std_ : deviation of the observation noise, in the units of y; None where it depends on the row ("ppgpr-log",
        "two-stage")
    lengthscales_ : dict or None, one lengthscale per encoded column, in standardised units (of the mean's kernel, where
        the variance has one of its own)
    feature_relevance_ : dict or None, each input's share of that kernel's sensitivity (from the lengthscales)
    fitted_ : `paragp.fitted.Fitted`, all that prediction needs

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = ParametricGPRegressor(max_epochs=20, random_state=0).fit(X[:400], y[:400])
    >>> mean, std = model.predict(X[400:], return_std=True)
    >>> model.predict_interval(X[400:], coverage=0.9).shape
    (42, 2)
    """

    def __init__(
        self,
        method: str = "auto",
        *,
        n_inducing: int = 1000,
        n_inducing_variance: int | None = None,
        kernel: Any = "auto",
        features: Any = None,
        mean: Any = None,
        beta: float | str = "auto",
        gamma: float | str = "auto",
        bb_alpha: float | str = "auto",
        renyi: float = 1.0,
        recipe: str = "auto",
        max_epochs: int | str = "auto",
        batch_size: int | str = "auto",
        learning_rate: float | str = "auto",
        early_stopping: bool | str = "auto",
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        categorical_features: Any = "from_dtype",
        dtype: str = "float32",
        device: str = "auto",
        warm_start: bool = False,
        verbose: int = 0,
        random_state: Any = None,
    ) -> None:
        self.method = method
        self.n_inducing = n_inducing
        self.n_inducing_variance = n_inducing_variance
        self.kernel = kernel
        self.features = features
        self.mean = mean
        self.beta = beta
        self.gamma = gamma
        self.bb_alpha = bb_alpha
        self.renyi = renyi
        self.recipe = recipe
        self.max_epochs = max_epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.categorical_features = categorical_features
        self.dtype = dtype
        self.device = device
        self.warm_start = warm_start
        self.verbose = verbose
        self.random_state = random_state

    fitted_: Fitted
    _form: dict[str, Any]  # the values of FORM that it was made by
    history_: list[dict[str, float]]
    n_iter_: int
    beta_: float
    gamma_: float | None
    bb_alpha_: float | None
    validation_scores_: dict[str, float] | None

    # --- fitting ---

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: ArrayLike | None = None,
        *,
        X_val: Any = None,
        y_val: Any = None,
        sample_weight_val: ArrayLike | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        resume: bool = False,
    ) -> Self:
        """Fit to a table X (n, d) and a target y (n,). A sample weight of w means w copies of the row
        ("two-stage" leaves all copies out at once where it asks what the mean makes of a row it has not seen).

        `X_val, y_val` are rows to validate on; without them `validation_fraction` of the rows is held out. "exact" and
        "fitc" choose nothing by them: there they are only scored.

        `checkpoint` is a folder where the training is kept as it goes: after each epoch ("two-stage" has none), every
        five minutes, and on SIGTERM, which then ends it with `StoppedError`. With `resume=True` a training that was
        stopped, or killed, goes on from there to the model it would have come to, to the bit.
        """
        start = time.perf_counter()
        self._check_parameters()
        if (X_val is None) != (y_val is None):
            raise ValueError("Pass both X_val and y_val, or neither.")
        self._check_checkpoint(checkpoint, resume)
        if X_val is None and sample_weight_val is not None:
            raise ValueError("sample_weight_val weighs the rows of X_val. Pass X_val and y_val, too.")
        device, name = find_device(self.device), target_name(y)
        again = self.warm_start and hasattr(self, "fitted_") and self._of_the_same_form()
        known = self.fitted_.columns if again else None
        X, y, weights = self._checked(X, y, sample_weight, known)
        total, small = len(y), len(y) <= PRECISE_ROWS
        counts: NDArray[Any] = np.ones(total)
        categorical = self.categorical_features if known is None else [column.kind == "categorical" for column in known]
        if small:  # whatever the order of the rows, and whether copies or weights: the same result to the bit
            rows, weights, counts = distinct_rows(X, y, weights, categorical)
            X, y = take_rows(X, rows), y[rows]
        generator = self._generator()
        columns = fit_columns(X, categorical, weights) if known is None else known
        target = self.fitted_.target if again else fit_target(y, name, weights)
        x = encode(columns, X)
        warn_of_constants(x, y.min(), y.max())
        warn_of_lone_rows(x, matrix_names(columns))
        if not small and self._method in METHODS and METHODS[self._method].stages:
            warn_of_copies(x, y)
        dtype = torch.float64 if small else getattr(torch, self.dtype)
        place: dict[str, Any] = {"dtype": dtype, "device": device}
        data = _rows(x, target.encode(y), weights, place)
        self._check_modules(data.x)
        validation, validation_rows = None, 0
        if X_val is not None:
            X_val, y_val, weights_val = self._checked(X_val, y_val, sample_weight_val, columns)
            validation = _rows(encode(columns, X_val), target.encode(y_val), weights_val, place)
            validation_rows = len(y_val)
        elif self._method not in FULL_BATCH:
            kept, held_out = self._split(len(y), generator)
            if len(held_out):
                data, validation = data.take(kept), data.take(held_out)
                validation_rows = int(counts[held_out.numpy()].sum())
                total -= validation_rows
        summary = {
            "rows": total, "validation_rows": validation_rows,
            "inputs": len(columns), "encoded_inputs": x.shape[1], "dtype": str(dtype).removeprefix("torch."),
        }  # fmt: skip
        if self._method in FULL_BATCH:
            model, found = self._fit_full_batch(data, generator)
        else:
            before = copy.deepcopy(self.fitted_.model).to(**place) if again else None
            checkpoints = self._checkpoint(checkpoint, resume, data, validation)
            model, found = self._fit_batches(data, validation, generator, before, checkpoints)
            if again:  # the points are where they were
                found["points_near_rows"] = self.fitted_.summary.get("points_near_rows", True)
        self._conclude(Fitted(self._method, model, columns, target, summary | found), validation, start)
        return self

    def fit_stream(
        self,
        source: str | os.PathLike[str],
        target: str,
        *,
        sample_weight: str | None = None,
        drop: Sequence[str] = (),
        checkpoint: str | os.PathLike[str] | None = None,
        resume: bool = False,
    ) -> Self:
        """Fit to Parquet files that need not fit into memory: a file, a folder (key=value/ folders are columns) or a
        glob. `target`, `sample_weight` and `drop` are names of columns; all others are inputs.

        All rows are read once for their statistics, and again for the solves or in each epoch. Memory is bounded
        whatever their number: up to 20,000 rows are held out for validation, and batches are drawn from a buffer that
        row groups fill in random order. `checkpoint` and `resume` are as in `fit`.
        """
        start = time.perf_counter()
        self._check_parameters()
        self._check_checkpoint(checkpoint, resume)
        if self._method in FULL_BATCH:
            raise ValueError(f"method={self.method!r} needs all rows at once. Choose a method of paragp.METHODS.")
        if self.warm_start:
            raise ValueError("A stream always starts anew. Leave warm_start at False.")
        device, files, group = find_device(self.device), Source(source), current()
        generator = self._generator()
        wanted = plan(files, target, sample_weight, drop, self.categorical_features)
        if files.rows < 2:
            raise ValueError(f"{type(self).__name__} needs at least 2 rows to learn a spread, {source} has one.")
        with tqdm(total=files.rows, unit="row", desc="read", disable=not self.verbose, dynamic_ncols=True) as bar:
            found = survey(
                files, wanted, start_rows=max(KMEANS_ROWS, 10 * self.n_inducing),
                validation_rows=min(self._held_out(files.rows), MOST_VALIDATION), generator=generator,
                progress=bar.update, rank=group.rank, count=group.count, gather=group.gather,
            )  # fmt: skip
        dtype = torch.float64 if files.rows <= PRECISE_ROWS else getattr(torch, self.dtype)
        if sample_weight is not None:
            check_weight(found.total / files.rows)
        stream = Stream(files, wanted, found, dtype, device, rank=group.rank, count=group.count)
        self._check_modules(stream.sample.x)
        self.n_features_in_, self.feature_names_in_ = len(wanted.names), np.asarray(wanted.names, dtype=object)
        check_spread(found.high - found.low)
        warn_of_constants(stream.sample.x.numpy(force=True), found.low, found.high)
        kept = self._checkpoint(checkpoint, resume, stream, stream.validation)
        model, about = self._fit_batches(stream, stream.validation, generator, None, kept)
        summary = {
            "rows": stream.size, "validation_rows": 0 if found.validation is None else len(found.held_out),
            "inputs": len(wanted.names), "encoded_inputs": stream.sample.x.shape[1],
            "dtype": str(dtype).removeprefix("torch."),
        }  # fmt: skip
        fitted = Fitted(self._method, model, found.columns, found.target, summary | about)
        self._conclude(fitted, stream.validation, start)
        return self

    @property
    def _method(self) -> str:
        """What was asked for; for "auto", what is best unless something is set that only gradient steps have."""
        if self.method != "auto":
            return self.method
        networks = self.features is not None or self.mean is not None
        steps = any(value != "auto" for value in (self.recipe, self.max_epochs, self.batch_size, self.learning_rate))
        return "ppgpr-mfd" if networks or steps or self.renyi != 1 else "two-stage"

    def _generator(self) -> torch.Generator:
        """Of all random numbers of a fit; processes that train together have the same."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        return torch.Generator().manual_seed(current().gather(seed)[0])

    def _check_modules(self, x: Tensor) -> None:
        """Refuse a kernel and modules that do not take these inputs."""
        seen = x[:2].double().numpy(force=True)
        if isinstance(self.features, torch.nn.Module):
            seen = np.zeros((2, check_module(self.features, x)))
        elif self.features is not None:
            seen = np.zeros((2, int(self.features[-1])))
        check_kernel(self.kernel, seen)
        if isinstance(self.mean, torch.nn.Module):
            check_module(self.mean, torch.zeros(2, seen.shape[1]).to(x), "mean")

    def _conclude(self, fitted: Fitted, validation: Data | None, start: float) -> None:
        """Keep what was fitted, with what is to be known of it."""
        self.fitted_ = fitted
        self.fitted_.history = self.history_
        self._form = {name: getattr(self, name) for name in FORM}
        self.validation_scores_ = None if validation is None else self._scores(validation)
        self.fitted_.summary |= {
            "kernel": self.kernel if isinstance(self.kernel, str) else type(self.kernel).__name__,
            "features": _described(self.features),
            "mean": _described(self._mean_network),
            "validation_scores": self.validation_scores_,
            "seconds": time.perf_counter() - start,
            "parameters": {
                name: plain(value) for name, value in self.get_params(deep=False).items() if _storable(value)
            },
        }

    @property
    def _mean_network(self) -> Any:
        """A module or hidden sizes."""
        return MLP if isinstance(self.mean, str) else self.mean

    def _of_the_same_form(self) -> bool:
        return all(plain(self._form[name]) == plain(getattr(self, name)) for name in FORM)

    def _check_checkpoint(self, folder: Any, resume: bool) -> None:
        if folder is None and resume:
            raise ValueError("resume=True goes on from a checkpoint: pass its folder.")
        if folder is not None and self._method in FULL_BATCH:
            raise ValueError(f"method={self.method!r} has no checkpoints. Choose a method of paragp.METHODS.")
        if folder is not None and not isinstance(self.random_state, numbers.Integral):
            raise ValueError(
                "A training that goes on from a checkpoint must draw the same random numbers: set random_state to a "
                f"whole number, it is {self.random_state!r}."
            )

    def _checkpoint(self, folder: Any, resume: bool, data: Rows, validation: Data | None) -> Checkpoint | None:
        """Checkpoints of this training: of these parameters, on these rows."""
        if folder is None:
            return None
        parameters = {
            name: plain(value) if _storable(value) else str(value)
            for name, value in self.get_params(deep=False).items()
            if name not in ("verbose", "warm_start")
        }
        files = [str(data.source.files), str(data.source.stamps)] if isinstance(data, Stream) else []
        identity = parameters | {
            "number of rows": data.size,
            "files" if files else "rows": "".join(files) if files else _digest(data.sample),
            "validation rows": None if validation is None else len(validation.y) if files else _digest(validation),
        }
        return Checkpoint(folder, identity, resume=resume, group=current())

    def _fit_batches(
        self,
        data: Rows,
        validation: Data | None,
        generator: torch.Generator,
        start: Any,
        checkpoint: Checkpoint | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        settings = Settings(
            METHODS[self._method],
            self.kernel,
            self.n_inducing,
            self.n_inducing_variance,
            features=self.features,
            mean=self._mean_network,
            beta=_given(self.beta, float),
            gamma=_given(self.gamma, float),
            bb_alpha=_given(self.bb_alpha, float),
            renyi=float(self.renyi),
            epochs=_given(self.max_epochs, int),
            batch_size=_given(self.batch_size, int),
            learning_rate=_given(self.learning_rate, float),
            early_stopping=None if isinstance(self.early_stopping, str) else bool(self.early_stopping),
            patience=self.n_iter_no_change,
            recipe=RECIPES[self.recipe],
        )
        group = current()
        if isinstance(data, Data) and group.count > 1:
            data = Share(data, group.rank, group.count)
        most = total_epochs(settings, data.size, validation is not None)
        minding = nullcontext() if checkpoint is None else checkpoint.minding_signals()
        with _progress(most, "epoch", self.verbose) as show, minding:
            trained = train(
                settings, data, validation, generator=generator, start=start, on_epoch=show, group=group,
                checkpoint=checkpoint,
            )  # fmt: skip
        self.history_ = [_flat(record) for record in trained.history]
        self.n_iter_ = len(self.history_)
        self.beta_, self.gamma_, self.bb_alpha_ = trained.beta, trained.gamma, trained.bb_alpha
        family = trained.model.family
        if self.features is not None:
            warn_if_collapsed(trained.model.features, data.sample.x)
        return trained.model, {
            "epochs": self.n_iter_, "best_epoch": trained.best_epoch, "beta": trained.beta, "gamma": trained.gamma,
            "bb_alpha": trained.bb_alpha,
            "inducing_points": len(family.Z), "inducing_points_of_the_variance": len(family.variance_points),
            "points_near_rows": any(
                self._near_rows(len(points), data.size, wanted)
                for points, wanted in zip((family.Z, family.variance_points), settings.points(data.size), strict=False)
            ),
        }  # fmt: skip

    def _fit_full_batch(self, data: Data, generator: torch.Generator) -> tuple[Any, dict[str, Any]]:
        x, y, weights = data
        if weights is not None:
            if not bool((weights.round() == weights).all()):
                raise ValueError(
                    f"method={self.method!r} takes whole-number sample weights (copies of a row) only. Choose a method "
                    "of paragp.METHODS for other weights."
                )
            if weights.sum() > MOST_COPIES:
                raise ValueError(
                    f"The sample weights make {float(weights.sum()):.0f} rows; method={self.method!r} takes up to "
                    f"{MOST_COPIES}. Choose a method of paragp.METHODS for more."
                )
            copies = weights.long()
            x, y = x.repeat_interleave(copies, 0), y.repeat_interleave(copies)
        iterations: dict[str, Any] = {} if self.max_epochs == "auto" else {"iterations": self.max_epochs}
        found: dict[str, Any] = {"epochs": 1}
        with _progress(iterations.get("iterations"), "step", self.verbose) as show:
            if self._method == "exact":
                model: Any = fit_exact(
                    self.kernel, x, y, generator=generator, progress=lambda: show(None), **iterations
                )
            else:
                Z = kmeans(x, self.n_inducing, generator=generator)
                model = fit_fitc(self.kernel, x, y, Z, progress=lambda: show(None), **iterations)
                near = self._near_rows(len(Z), len(data.y), self.n_inducing)
                found |= {"inducing_points": len(Z), "points_near_rows": near}
        self.history_, self.n_iter_, self.beta_, self.gamma_, self.bb_alpha_ = [], 1, 1.0, None, None
        return model, found

    @staticmethod
    def _near_rows(points: int, rows: int, wanted: int) -> bool:
        """Whether inducing points started at rows themselves: at all of them, or at many that were a group of one."""
        return points < wanted or 2 * points >= rows

    def _split(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Positions of the rows to train on, and of those to validate on where that is wanted and affordable."""
        held_out = self._held_out(n)
        if not held_out:
            return torch.arange(n), torch.arange(0)
        order = torch.randperm(n, generator=generator)
        return order[held_out:], order[:held_out]

    def _held_out(self, n: int) -> int:
        """How many of n rows are held out for validation."""
        searching = any(
            getattr(self, name) == "auto" and len(getattr(METHODS[self._method], name)) > 1
            for name in ("beta", "gamma", "bb_alpha")
        )
        automatic = isinstance(self.early_stopping, str)
        asked = bool(self.early_stopping) and not automatic
        stopping = automatic and RECIPES[self.recipe].stops
        wanted = asked or (n >= SPLIT_FROM and (stopping or searching))
        held_out = round(self.validation_fraction * n) if wanted else 0
        if not asked and wanted:
            held_out = max(held_out, min(n // 3, FEWEST_HELD_OUT))
        return held_out if 0 < held_out < n else 0

    def _scores(self, validation: Data) -> dict[str, float]:
        model, target = self.fitted_.model, self.fitted_.target
        dist = model.predict(validation.x).rescaled(target.mean, target.deviation)
        y = validation.y.double().numpy(force=True) * target.deviation + target.mean
        return evaluate(dist, y, None if validation.weights is None else validation.weights.numpy(force=True))

    # --- predicting ---

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False) -> Any:
        """The mean of y for each row; with `return_std` also the deviation of y (function and noise together), with
        `return_cov` also the covariance of y over the rows (n, n): both are y's own, also where its tails are not a
        normal's."""
        if return_std and return_cov:
            raise ValueError("Choose one of return_std and return_cov.")
        X = self._table(X)
        if return_cov:
            if n_rows(X) > JOINT_ROWS:
                raise ValueError(
                    f"A covariance over {n_rows(X)} rows would hold {n_rows(X)}^2 numbers; up to {JOINT_ROWS} rows are "
                    "possible. Use return_std=True, or fewer rows."
                )
            return self.fitted_.predict(X).mean, self.fitted_.covariance(X)
        if return_std:
            dist = self.fitted_.predict(X)
            return dist.mean, dist.std
        return self.fitted_.predict_mean(X)

    def predict_dist(self, X: Any) -> PredictiveDistribution:
        """The distribution of y for each row, with its function and noise parts."""
        return self.fitted_.predict(self._table(X))

    def predict_interval(self, X: Any, coverage: float = 0.9, guaranteed: bool | None = None) -> Array:
        """The central interval that holds y with probability `coverage`, (n, 2).

        After `calibrate` the coverage is guaranteed, whatever the model's faults; `guaranteed=False` gives the interval
        of the model's own distribution all the same, `guaranteed=True` insists.
        """
        return self.fitted_.interval(self._table(X), coverage, guaranteed)

    def calibrate(self, X_cal: Any, y_cal: Any, *, by: str | None = None) -> Self:
        """Guarantee the coverage of `predict_interval` by rows that the model has not seen (split conformal).

        Of n rows, an interval at level c then covers the next row with a probability of at least c, and of at most
        c + 1 / (n + 1) where no two of them are equally far off, if rows are exchangeable. `by` names an input whose
        values are groups with a guarantee of their own; a group that was not seen has that of all rows. The rows are
        not kept, only how far out they were in their distributions.
        """
        check_is_fitted(self)
        X, y, _ = self._checked(X_cal, y_cal, None, self.fitted_.columns)
        names = [column.name for column in self.fitted_.columns]
        if by is not None and by not in names:
            raise ValueError(f"by must name one of the inputs {', '.join(map(repr, names[:10]))}; got {by!r}.")
        reach = self.fitted_.predict(X).reach(y)
        keys = () if by is None else group_keys(X, names.index(by))
        self.fitted_.calibration = Calibration.of(reach, by, keys)
        return self

    def predict_quantiles(self, X: Any, alpha: ArrayLike = (0.05, 0.5, 0.95)) -> Array:
        """Quantiles of y at the levels alpha, (n, k)."""
        return self.predict_dist(X).ppf(np.atleast_1d(alpha))

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Joint draws of y over the rows, (n, n_samples). For independent draws: `predict_dist(X).sample(...)`.

        They have the covariance of `predict(X, return_cov=True)` and are normal or, where the model's distributions
        are, Student-t: a draw that lies far out then does so in all rows. Where those are mixtures, each row has its
        distribution, and it is the draws' normal scores that are correlated as the covariance says.
        """
        mean, covariance = self.predict(X, return_cov=True)
        rng = check_random_state(random_state)
        values, vectors = np.linalg.eigh(covariance)
        root = vectors * np.sqrt(values.clip(min=0))
        draws = root @ rng.standard_normal((len(mean), n_samples))
        shape = self.fitted_.shape
        if len(shape.parts) > 1:
            std = np.sqrt(covariance.diagonal())[:, None]
            return mean[:, None] + std * shape.from_normal(draws / std)
        if math.isfinite(shape.dof):  # a multivariate t: a draw's rows share the scale, sqrt(dof / chi^2) in deviations
            draws *= np.sqrt((shape.dof - 2) / rng.chisquare(shape.dof, n_samples))
        return mean[:, None] + draws

    def report(self, X: Any, y: Any, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write one HTML file that shows how good the model is on rows X with targets y, and where it is unsure.

        It needs jinja2 (`pip install "paragp[report]"`) to be written, and a browser without a network to be read.
        """
        check_is_fitted(self)
        check_free(path, overwrite=overwrite)
        X, y, _ = self._checked(X, y, None, self.fitted_.columns)
        starts = range(0, len(y), BLOCK_ROWS)
        targets = (y[start : start + BLOCK_ROWS] for start in starts)
        write_report(self.fitted_, zip(row_blocks(X, BLOCK_ROWS), targets, strict=True), path, overwrite=overwrite)

    # --- what was learned ---

    @property
    def noise_std_(self) -> float | None:
        """Deviation of the observation noise, in the units of y; None where it depends on the row."""
        return self._of_fitted("noise_std")

    @property
    def lengthscales_(self) -> dict[str, float] | None:
        """One lengthscale per encoded column, in standardised units."""
        return self._of_fitted("lengthscales")

    @property
    def feature_relevance_(self) -> dict[str, float] | None:
        """Each input's share of the kernel's sensitivity."""
        return self._of_fitted("feature_relevance")

    def _of_fitted(self, name: str) -> Any:
        if "fitted_" not in self.__dict__:  # hasattr() of an unfitted estimator must say no
            raise AttributeError(f"{name}_ is known after fit.")
        return getattr(self.fitted_, name)

    # --- saving ---

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False, keep_rows: bool = False) -> None:
        """Write the fitted model as a folder (config.json, model.safetensors, README.md), without the training rows.

        method="exact" cannot predict without its rows: `keep_rows=True` allows them into the folder. Inducing points
        start at means of similar rows, at the rows themselves where these are few, and may lie close to them: the card
        says so, and method="fitc" asks for `keep_rows=True`.
        """
        check_is_fitted(self)
        names = self.feature_names_in_.tolist() if hasattr(self, "feature_names_in_") else None
        save(self.fitted_, path, feature_names=names, overwrite=overwrite, keep_rows=keep_rows)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        features: torch.nn.Module | None = None,
        mean: torch.nn.Module | None = None,
    ) -> Self:
        """The estimator of a folder written by `save`; it predicts as the saved one did, to the bit.

        A folder holds values and no code: a model with a module of your own before its kernel, or for its mean, asks
        for a module of that form in `features` or `mean`.
        """
        fitted, names = load(path, features=features, mean=mean)
        kernel, stored = fitted.summary["kernel"], fitted.summary["parameters"]
        parameters = {name: stored[name] for name in cls._get_param_names() if name in stored}
        parameters |= {"method": fitted.method, "kernel": kernel if kernel in KERNELS else fitted.model.kernel}
        if isinstance(fitted.summary.get("features"), str):
            parameters["features"] = fitted.model.features
        if isinstance(fitted.summary.get("mean"), str):
            parameters["mean"] = fitted.model.family.mean
        estimator = cls(**parameters)
        estimator.fitted_ = fitted
        estimator._form = {name: getattr(estimator, name) for name in FORM}
        estimator.n_features_in_ = len(fitted.columns)
        if names is not None:
            estimator.feature_names_in_ = np.asarray(names, dtype=object)
        estimator.validation_scores_ = fitted.summary.get("validation_scores")
        estimator.history_, estimator.n_iter_ = fitted.history, fitted.summary["epochs"]
        estimator.beta_ = fitted.summary.get("beta", 1.0)
        estimator.gamma_, estimator.bb_alpha_ = fitted.summary.get("gamma"), fitted.summary.get("bb_alpha")
        return estimator

    # --- checks ---

    def _checked(
        self, X: Any, y: Any, sample_weight: Any, columns: tuple[Column, ...] | None
    ) -> tuple[Any, Array, Array | None]:
        """X as a frame or an array, y and weights as float64, rows of weight zero left out."""
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        X = self._validated(X, columns)
        y = numeric_target(y)
        check_consistent_length(X, y)
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
            if not weights.any():
                raise ValueError("All sample weights are zero. At least one row must count.")
            check_weight(weights.max())
            kept = np.flatnonzero(weights)
            if len(kept) < len(weights):
                X, y, weights = take_rows(X, kept), y[kept], weights[kept]
        if columns is None and len(y) < 2:
            raise ValueError(
                f"{type(self).__name__} needs at least 2 rows to learn a spread, got n_samples = {len(y)}. Pass more."
            )
        return X, y, weights

    def _table(self, X: Any) -> Any:
        """X to predict on, checked against what was fitted."""
        check_is_fitted(self)
        return self._validated(X, self.fitted_.columns)

    def _validated(self, X: Any, columns: tuple[Column, ...] | None) -> Any:
        """X as a frame or an array with these columns; None: they are yet to be learned."""
        frame = as_frame(X)
        if frame is None:
            return self._array(X, columns)
        names = column_names(X)
        if not names or not len(frame):
            raise ValueError(
                f"Found a table with {len(frame)} row(s) and {len(names)} column(s) (shape={frame.shape}) while a "
                "minimum of 1 is required."
            )
        validate_data(self, X, reset=columns is None, skip_check_array=True)
        return X

    def _array(self, X: Any, columns: tuple[Column, ...] | None) -> Any:
        """X as an array: of numbers, or of anything where some columns are categories."""
        like_an_array = any(hasattr(X, name) for name in ("shape", "__array__"))  # sparse matrices are mappings, too
        if not like_an_array and (isinstance(X, Mapping) or not hasattr(X, "__len__")):
            hint = (
                "collect() it first"
                if hasattr(X, "collect")
                else "pass an array or a frame of pandas, polars or pyarrow"
            )
            raise ValueError(f"X is a {type(X).__name__}, which is not a table: {hint}.")
        text = self._explicit_categories() if columns is None else any(c.kind == "categorical" for c in columns)
        if text and isinstance(X, list | tuple):
            X = np.array(X, dtype=object)  # so that 1 beside "u" stays a number
        try:
            kind = None if text else "numeric"
            found = validate_data(self, X, reset=columns is None, dtype=kind, ensure_all_finite=False)
        except OverflowError as error:
            raise ValueError(f"X holds a number too large for float64: {error}.") from error
        except RuntimeError as error:  # a torch tensor with a gradient, say
            raise ValueError(f"X cannot be read as an array: {error}") from error
        if found.dtype.kind in "mM":
            raise ValueError("X holds dates or durations. Turn them into numbers (days since a start, say).")
        return found

    def _explicit_categories(self) -> bool:
        asked = self.categorical_features
        return asked is not None and not (isinstance(asked, str) and asked == "from_dtype")

    def _check_parameters(self) -> None:
        known = ["auto", *METHODS, *FULL_BATCH]
        if self.method not in known:
            raise ValueError(f"method must be one of {', '.join(known)}; got {self.method!r}.")
        if isinstance(self.kernel, str):
            if self.kernel not in KERNELS:
                raise ValueError(
                    f"kernel must be one of {', '.join(KERNELS)} or a gpytorch kernel; got {self.kernel!r}."
                )
        elif not isinstance(self.kernel, gpytorch.kernels.Kernel):
            raise ValueError(f"kernel must be a name or a gpytorch kernel, got {type(self.kernel).__name__}.")
        check_network("features", self.features)
        if self.features is not None and self._method in FULL_BATCH:
            raise ValueError(f"method={self.method!r} takes no features. Choose a method of paragp.METHODS.")
        if isinstance(self.mean, str) and self.mean != "mlp":
            raise ValueError(f'mean must be None, "mlp", hidden sizes or a torch module; got {self.mean!r}.')
        check_network("mean", self._mean_network)
        if self.mean is not None and not (self._method in METHODS and METHODS[self._method].takes_mean):
            takers = ", ".join(repr(name) for name, row in METHODS.items() if row.takes_mean)
            raise ValueError(f"method={self.method!r} makes its mean of inducing points. A mean is for {takers}.")
        if self.recipe not in RECIPES:
            raise ValueError(f"recipe must be one of {', '.join(RECIPES)}; got {self.recipe!r}.")
        if self.dtype not in ("float32", "float64"):
            raise ValueError(f'dtype must be "float32" or "float64", got {self.dtype!r}.')
        check_number("n_inducing", self.n_inducing, whole=True, low=1)
        if self.n_inducing_variance is not None:
            check_number("n_inducing_variance", self.n_inducing_variance, whole=True, low=1)
        for name, low, whole in (("max_epochs", 1, True), ("batch_size", 1, True), ("n_iter_no_change", 1, True)):
            check_number(name, getattr(self, name), whole=whole, low=low, auto=name != "n_iter_no_change")
        check_number("learning_rate", self.learning_rate, above=0, auto=True)
        check_number("beta", self.beta, low=0, auto=True)
        check_number("gamma", self.gamma, above=1, auto=True)
        check_number("bb_alpha", self.bb_alpha, above=0, high=1, auto=True)
        check_number("renyi", self.renyi, above=0)
        check_number("validation_fraction", self.validation_fraction, above=0, below=1)
        if self.early_stopping not in (True, False, "auto"):
            raise ValueError(f'early_stopping must be True, False or "auto", got {self.early_stopping!r}.')
        for name in ("gamma", "bb_alpha"):
            if getattr(self, name) != "auto" and not (self._method in METHODS and getattr(METHODS[self._method], name)):
                raise ValueError(f'method={self.method!r} has no {name}. Leave it at "auto".')
        if self.renyi != 1 and self._method in FULL_BATCH:
            raise ValueError(f"method={self.method!r} has no regulariser. Leave renyi at 1.")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        return tags


def _given(value: Any, kind: type) -> Any:
    """The value as a plain number, None for "auto"."""
    return None if isinstance(value, str) else kind(value)


def _digest(data: Data) -> str:
    """What tells these rows from others."""
    found = hashlib.sha256()
    for part in data:
        if part is not None:
            found.update(part.contiguous().numpy(force=True).tobytes())
    return found.hexdigest()[:16]


def _described(network: Any) -> Any:
    """A network in words: its sizes, or the name of a module's class."""
    return plain(network) if _storable(network) else type(network).__name__


def _storable(value: Any) -> bool:
    """Whether a parameter can be written as JSON."""
    return value is None or isinstance(value, str | numbers.Real | list | tuple | np.generic | np.ndarray)


def _rows(x: Array, y: Array, weights: Array | None, place: dict[str, Any]) -> Data:
    tensors = [None if part is None else torch.from_numpy(part).to(**place) for part in (x, y, weights)]
    return Data(*tensors)  # type: ignore[arg-type]


def _flat(record: Epoch) -> dict[str, float]:
    values = asdict(record)
    return values | values.pop("validation")


@contextmanager
def _progress(total: int | None, unit: str, verbose: int) -> Any:
    """A bar with the validation NLL; a function to call after each epoch."""
    with tqdm(total=total, unit=unit, desc="fit", disable=not verbose, dynamic_ncols=True) as bar:

        def show(record: Epoch | None) -> None:
            if record is not None and record.validation:
                bar.set_postfix_str(f"validation NLL {record.validation['nll']:.3f}")
            bar.update()

        yield show
