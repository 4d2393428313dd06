"""paragp: calibrated uncertainty for regression on large tables.

The library of the paper *Parametric Gaussian Process Regressors* (Jankowiak, Pleiss, Gardner, ICML 2020).

Map, from the mathematics up:

- `paragp.gp`: `Moments`, objectives, covariances, families, `ParametricGP`, the registry `METHODS`, and the
  full-batch baselines `fit_exact` and `fit_fitc`;
- `paragp.training`: Algorithm 1 as `fit`, one mini-batch of it as `step.backward`, k-means starting points, and
  `train.train`, which puts them together (`stages` for the default);
- `paragp.predictive` and its `shape`, `paragp.metrics`: what a model says about y, and how good that is;
  `paragp.conformal` guarantees its intervals;
- `paragp.data`: tables to matrices (`tables`), tables in files (`files`), rows to mini-batches (`rows`);
- `paragp.estimator`: `ParametricGPRegressor`, the scikit-learn face; `paragp.checks` is what it asks of its settings
  and targets, `paragp.fitted` what it learns, and `paragp.artefact` writes that to a folder and reads it back
  (`card` is its page for people, `kernel_record` the kernel in it); `paragp.onnx` and `paragp.report` export and
  show it;
- `paragp.paper`: what regenerates the paper, its runs, tables and figures; `paragp.cli`: the command line.
"""

from paragp.data.rows import Data
from paragp.estimator import ParametricGPRegressor
from paragp.gp.exact import ExactGP, fit_exact, fit_fitc
from paragp.gp.methods import METHODS, Method
from paragp.gp.model import ParametricGP
from paragp.gp.moments import Moments
from paragp.metrics import METRICS, evaluate
from paragp.predictive import PredictiveDistribution
from paragp.training.inducing import kmeans
from paragp.training.loop import Config, fit

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "METRICS",
    "Config",
    "Data",
    "ExactGP",
    "Method",
    "Moments",
    "ParametricGP",
    "ParametricGPRegressor",
    "PredictiveDistribution",
    "evaluate",
    "fit",
    "fit_exact",
    "fit_fitc",
    "kmeans",
]
