"""Which state of a training is kept, by the validation rows."""

import copy
import math
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from paragp.data.rows import Data
from paragp.gp.model import ParametricGP
from paragp.metrics import crps, nll, rmse
from paragp.predictive import Array, PredictiveDistribution
from paragp.training.distributed import ALONE, Group
from paragp.training.loop import Epoch

KEPT = ("nll", "crps", "before", "epoch", "searching", "since", "ran_out", "limit")  # of Best, in a checkpoint


class Trial(NamedTuple):
    """One value of the method's grid."""

    beta: float
    gamma: float | None = None
    bb_alpha: float | None = None


def scored(dist: PredictiveDistribution, rows: Data, group: Group) -> dict[str, float]:
    """How well the rows' targets were predicted; all processes of a group have the first one's scores."""
    y, weights = rows.y.double().numpy(force=True), None if rows.weights is None else rows.weights.numpy(force=True)
    scores = torch.tensor([metric(dist, y, weights) for metric in (nll, rmse, crps)], dtype=torch.float64)
    group.agree([scores])
    return dict(zip(("nll", "rmse", "crps"), scores.tolist(), strict=True))


def in_errors(gain: Array, rows: Data) -> float:
    """The mean of what the rows gain, by weight, in standard errors; infinite for a single row."""
    copies = np.ones(len(gain)) if rows.weights is None else rows.weights.double().numpy(force=True)
    mean = np.average(gain, weights=copies)
    if copies.sum() <= 1:
        return math.inf
    error = np.sqrt(np.average((gain - mean) ** 2, weights=copies) / (copies.sum() - 1))
    return float(mean / error) if error else math.copysign(math.inf, mean or -1)


class Best:
    """Scores each epoch on the validation rows, keeps the best state, and says when to stop.

    Without patience it keeps the best of the trials' last states. Without validation rows there is one trial, and the
    model stays as it is.
    """

    def __init__(
        self,
        model: ParametricGP,
        validation: Data | None,
        patience: int | None,
        on_epoch: Callable[[Epoch], object] | None,
        group: Group = ALONE,
    ) -> None:
        self.model, self.validation, self.patience, self.on_epoch = model, validation, patience, on_epoch
        self.group = group
        self.history: list[Epoch] = []
        self.first = self.state = copy.deepcopy(model.state_dict())
        self.nll, self.crps, self.epoch = math.inf, math.inf, 0
        self.before = math.inf  # the best NLL before the current trial
        self.searching = False  # beyond the first value, which sharper spikes would win by a mean that gives up
        self.trial = self.current = Trial(1.0, None)
        self.since, self.limit, self.ran_out, self.clock = 0, patience, False, time.perf_counter()

    def standing(self) -> dict[str, Any]:
        """All that it knows, for a checkpoint."""
        return {name: getattr(self, name) for name in KEPT} | {
            "history": [asdict(record) for record in self.history], "first": self.first, "state": self.state,
            "trial": tuple(self.trial), "current": tuple(self.current), "elapsed": time.perf_counter() - self.clock,
        }  # fmt: skip

    def load(self, standing: dict[str, Any]) -> None:
        """What `standing` gave."""
        for name in (*KEPT, "first", "state"):
            setattr(self, name, standing[name])
        self.history = [Epoch(**record) for record in standing["history"]]
        self.clock = time.perf_counter() - standing["elapsed"]
        self.trial, self.current = Trial(*standing["trial"]), Trial(*standing["current"])

    def begin(self, trial: Trial, patience: int | None = None) -> None:
        """Before a trial, which may have less patience than the first one."""
        self.current, self.since, self.before = trial, 0, self.nll
        if self.patience is not None:
            self.limit = self.patience if patience is None else min(patience, self.patience)
        if not self.history:
            self.trial = trial
            if self.patience is not None:  # the start is a candidate, too
                self._consider(self.validate(self.model))

    def validate(self, model: ParametricGP) -> dict[str, float]:
        """Scores on the validation rows; processes that train together go on with the first one's model and scores."""
        self.group.agree(list(model.state_dict().values()))
        if self.validation is None:
            return {}
        return scored(model.predict(self.validation.x), self.validation, self.group)

    def after(self, record: Epoch) -> bool:
        """Takes note of an epoch; whether it was the last."""
        record = replace(record, epoch=len(self.history) + 1, seconds=time.perf_counter() - self.clock)
        self.history.append(record)
        self.since += 1
        if self.patience is not None:
            self._consider(record.validation)
        stop = self.on_epoch is not None and self.on_epoch(record) is True
        self.ran_out = self.limit is not None and self.validation is not None and self.since >= self.limit
        return stop or self.ran_out

    def end(self) -> bool:
        """After a trial: go back to the best state; whether the trial made it better."""
        if self.validation is None:
            self.epoch = len(self.history)
            return False
        if self.patience is None:
            self._consider(self.history[-1].validation)
        self.restore()
        return self.nll < self.before

    def restore(self) -> None:
        self.model.load_state_dict(self.state)

    def _consider(self, scores: dict[str, float]) -> None:
        better = scores.get("nll", math.inf) < self.nll
        if better and not (self.searching and scores["crps"] > self.crps):
            self.nll, self.crps = scores["nll"], scores["crps"]
            self.epoch, self.trial, self.since = len(self.history), self.current, 0
            self.state = copy.deepcopy(self.model.state_dict())

    def settle(self) -> None:
        """Go back to the start unless the best state beats it by a standard error of the rows' differences.

        Few validation rows choose among many states, and on pure noise one of them looks good. Where S' starts as the
        identity, the start is a constant.
        """
        if self.validation is None or self.patience is None or self.epoch == 0:
            return
        ended = self._log_densities()
        self.model.load_state_dict(self.first)
        if in_errors(ended - self._log_densities(), self.validation) > 1:
            self.restore()
        else:
            self.epoch = 0

    def _log_densities(self) -> Array:
        assert self.validation is not None
        x, y, _ = self.validation
        return self.model.predict(x).logpdf(y.numpy(force=True))
