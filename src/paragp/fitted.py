"""Fitted: a trained model with the records that turn tables into its inputs and its outputs into the user's units."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paragp.conformal import Calibration
from paragp.data.tables import Array, Column, Target, encode, group_keys, matrix_names, n_rows, owners, row_blocks
from paragp.gp.exact import ExactGP
from paragp.gp.kernels import lengthscales
from paragp.gp.linalg import JITTER
from paragp.gp.methods import METHODS
from paragp.gp.model import ParametricGP
from paragp.predictive import PredictiveDistribution, check_level
from paragp.shape import Shape

PRECISE_ROWS = 1000  # predicted in float64: one row alone and among others then agree to a few 1e-12
BLOCK_ROWS = 20_000  # rows encoded at once: what a prediction allocates does not grow with the table


@dataclass
class Fitted:
    """All that prediction needs, and nothing of the estimator: what is saved, exported and reported on."""

    method: str  # a name of METHODS, "exact" or "fitc"
    model: ParametricGP | ExactGP  # in standardised units
    columns: tuple[Column, ...]
    target: Target
    summary: dict[str, Any]  # of the training: rows, settings found, validation scores; plain JSON values
    calibration: Calibration | None = None  # what guaranteed intervals are made of
    history: list[dict[str, float]] = field(default_factory=list)  # of the training, a record per epoch; plain numbers
    _ready: dict[torch.dtype, tuple[Any, Any]] = field(
        default_factory=dict, repr=False
    )  # model and factor by precision

    def __post_init__(self) -> None:
        self.model.eval()  # for good: threads that predict at once share it

    @property
    def label(self) -> str:
        """The method's name as people write it."""
        return {"exact": "Exact GP", "fitc": "FITC"}.get(self.method) or METHODS[self.method].label

    @property
    def holds_rows(self) -> bool:
        """Whether it predicts from its training rows, or from points that the method leaves close to them."""
        return self.method == "exact" or (self.method == "fitc" and bool(self.summary.get("points_near_rows")))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ready": {}}

    def predict(self, X: Any) -> PredictiveDistribution:
        """p(y | x) for each row of a table, in the user's units."""
        n = n_rows(X)
        mean, function_var, noise_var = np.empty(n), np.empty(n), np.empty(n)
        start = 0
        for x in self._inputs(X):
            model, factor = self._prepared(x.dtype)
            dist = model.predict(x, factor=factor)
            rows = slice(start, start + len(x))
            mean[rows], function_var[rows], noise_var[rows] = dist.mean, dist.function_var, dist.noise_var
            start = rows.stop
        dist = PredictiveDistribution(mean, function_var, noise_var, self.shape)
        return dist.rescaled(self.target.mean, self.target.deviation)

    def predict_mean(self, X: Any) -> Array:
        """The mean alone: O(M) a row instead of O(M^2)."""
        parts = []
        for x in self._inputs(X):
            model, factor = self._prepared(x.dtype)
            if isinstance(model, ExactGP):
                parts.append(model.predict(x, factor=factor).mean)
            else:
                parts.append(model.predict_mean(x, factor=factor))
        return np.concatenate(parts) * self.target.deviation + self.target.mean

    def interval(
        self, X: Any, coverage: float, guaranteed: bool | None = None, dist: PredictiveDistribution | None = None
    ) -> Array:
        """The central interval of y for each row, (n, 2): with a guarantee, or as the model's own
        distribution has it.

        None: with a guarantee where the model was calibrated. `dist` is what `predict(X)` gave, if it is known.
        """
        check_level(coverage)
        if guaranteed and self.calibration is None:
            raise ValueError(
                "This model was not calibrated, so no coverage is guaranteed. Call calibrate(X_cal, y_cal) with rows "
                "that it has not seen (or fit with --calibrate .1), or leave out guaranteed=True."
            )
        dist = self.predict(X) if dist is None else dist
        if self.calibration is None or guaranteed is False:
            return dist.interval(coverage)
        return dist.within_reach(self.calibration.factor(coverage, self.groups(X)))

    def groups(self, X: Any) -> list[str | None] | None:
        """The rows' groups, where the calibration is by group."""
        by = None if self.calibration is None else self.calibration.by
        return None if by is None else group_keys(X, [column.name for column in self.columns].index(by))

    def covariance(self, X: Any) -> Array:
        """The covariance of y over all rows of a table, (n, n), in the user's units, whatever the shape."""
        x = torch.cat([part.double() for part in self._inputs(X)])
        model, factor = self._prepared(torch.float64)
        return model.predict_covariance(x, factor=factor) * self.target.deviation**2

    @property
    def shape(self) -> Shape:
        """The predictive distributions' shape."""
        return self.model.shape

    @property
    def noise_std(self) -> float | None:
        """The deviation of the observation noise, in the user's units; None where it depends on the row."""
        if self.model.noise_by_row:
            return None
        return float(self.model.noise.detach().sqrt()) * self.target.deviation

    @property
    def lengthscales(self) -> dict[str, float] | None:
        """One per column of the matrix, in its standardised units; None for a kernel without, or behind a network."""
        names = matrix_names(self.columns)
        found = self._lengthscales(len(names))
        return None if found is None else dict(zip(names, found.tolist(), strict=True))

    @property
    def feature_relevance(self) -> dict[str, float] | None:
        """Each input's share of the kernel's sensitivity: 1 / lengthscale^2, summed over its columns, of the whole.

        An indicator varies less than a standardised number; its part is scaled by the variance of a fair coin, 1/4.
        """
        found = self._lengthscales(len(matrix_names(self.columns)))
        if found is None:
            return None
        spread = [1.0 if name == c.name else 0.25 for c in self.columns for name in c.outputs]
        totals = np.zeros(len(self.columns))
        np.add.at(totals, owners(self.columns), np.array(spread) / found**2)
        return dict(zip((c.name for c in self.columns), (totals / totals.sum()).tolist(), strict=True))

    def _lengthscales(self, d: int) -> Array | None:
        """Of the d inputs, where the kernel sees them as they are."""
        behind_a_network = isinstance(self.model, ParametricGP) and not isinstance(self.model.features, nn.Identity)
        return None if behind_a_network else lengthscales(self.model.kernel, d)

    def _inputs(self, X: Any) -> Iterator[Tensor]:
        """The rows in blocks, in the precision they are predicted in."""
        parameter = next(self.model.parameters())
        dtype = torch.float64 if n_rows(X) <= PRECISE_ROWS else parameter.dtype
        for block in row_blocks(X, BLOCK_ROWS):
            yield torch.from_numpy(encode(self.columns, block)).to(parameter.device, dtype)

    def _prepared(self, dtype: torch.dtype) -> tuple[Any, Any]:
        """The model in a precision, and its factorisation, made once."""
        if dtype not in self._ready:
            own = next(self.model.parameters()).dtype
            model = self.model
            if dtype != own:
                model = copy.deepcopy(model).to(dtype)
                if isinstance(model, ParametricGP) and model.family.jitter is None:
                    model.family.jitter = JITTER[own]  # the jitter belongs to what was trained
            with torch.no_grad():
                self._ready[dtype] = model, model.factorise()
        return self._ready[dtype]
