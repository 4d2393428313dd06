"""What the estimator refuses, in words: parameters, kernels, devices and targets that it cannot use."""

import math
import numbers
import warnings
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from sklearn.utils import column_or_1d

from paragp.data.tables import Array, absent
from paragp.gp.kernels import covariance, kernel_name, make_kernel

HEAVIEST = 1e15  # the largest weight lies below, and above one over it: float32 must hold sums of them
LONE = 0.9  # of a column's variance, from which on it is said
MANY_COPIES = 0.1  # of the rows, from which on it is said
LARGEST = 1e140  # spread of a target, and one over it the smallest: squares must stay in range


def check_number(
    name: str,
    value: Any,
    *,
    whole: bool = False,
    low: float = -math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    high: float = math.inf,
    auto: bool = False,
) -> None:
    """Refuse a parameter that is not a number in its range (or "auto", where allowed)."""
    if auto and isinstance(value, str) and value == "auto":
        return
    kind = numbers.Integral if whole else numbers.Real
    number: Any = value.item() if isinstance(value, np.generic) else value
    number = number if isinstance(number, kind) and not isinstance(number, bool) else math.nan
    if low <= number <= high and above < number < below and abs(number) < 1e300:
        return
    limits = [f"at least {low:g}"] * (low > -math.inf) + [f"above {above:g}"] * (above > -math.inf)
    limits += [f"below {below:g}"] * (below < math.inf) + [f"at most {high:g}"] * (high < math.inf)
    wanted = f"a {'whole ' if whole else ''}number {' and '.join(limits)}" + (' or "auto"' if auto else "")
    raise ValueError(f"{name} must be {wanted}, got {value!r}.")


def check_network(name: str, network: Any) -> None:
    """Refuse what is neither a module nor the sizes of layers."""
    if network is None or isinstance(network, torch.nn.Module):
        return
    sizes = network.tolist() if isinstance(network, np.ndarray) else network
    whole = isinstance(sizes, list | tuple) and all(
        isinstance(size, int | np.integer) and not isinstance(size, bool) and int(size) > 0 for size in sizes
    )
    if not whole or not sizes:
        raise ValueError(
            f"{name} must be None, a torch module, or the sizes of a network's layers as whole numbers above 0, such "
            f"as (256, 128, 64); got {network!r}."
        )


def check_kernel(kernel: Any, x: Array) -> None:
    """Refuse a gpytorch kernel that does not take these inputs."""
    if isinstance(kernel, str):
        return
    n, d = x[:2].shape
    try:
        with torch.no_grad():
            rows = torch.from_numpy(x[:2])
            shape = tuple(covariance(make_kernel(kernel, d).double(), rows, rows.clone()).shape)
    except Exception as error:  # a kernel is anyone's code
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"The kernel {kernel_name(kernel)} does not take {d} inputs: {reason}") from error
    if shape != (n, n):
        raise ValueError(
            f"The kernel {kernel_name(kernel)} gives a matrix of shape {shape} for {n} rows. Pass one without batches."
        )


def find_device(name: Any) -> torch.device:
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
        torch.zeros(1, device=device).item()  # whether it is there, and computes
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = (str(error).splitlines() or ["it is not there"])[0]
        raise ValueError(
            f'device must be "auto" or a torch device of this machine such as "cpu" or "cuda:0", got {name!r}: {reason}'
        ) from error
    return device


def target_name(y: Any) -> str:
    name = getattr(y, "name", None)
    return "y" if name is None or not isinstance(name, Hashable) else str(name)


def numeric_target(y: Any) -> Array:
    """y as float64 (n,), or an error that counts what is missing."""
    try:
        if isinstance(y, pa.Array):
            values = y.to_numpy(zero_copy_only=False)
        else:
            values = y.to_numpy() if hasattr(y, "to_numpy") else np.asarray(y)
    except RuntimeError as error:  # a torch tensor with a gradient, say
        raise ValueError(f"The target y cannot be read as an array: {error}") from error
    values = column_or_1d(values, warn=True)
    if values.dtype.kind in "mM":
        raise ValueError("The target y must hold numbers, not dates or durations. Turn it into days, say.")
    try:
        cells = [math.nan if absent(value) else value for value in values] if values.dtype == object else values
        found = np.array(cells, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"The target y must hold numbers: {error}.") from error
    check_spread(np.ptp(found) if np.isfinite(found).all() else 1.0)
    for what, bad in (("missing (NaN)", np.isnan(found)), ("infinite (inf)", np.isinf(found))):
        if bad.any():
            raise ValueError(
                f"Input y contains {what} values in {int(bad.sum())} of {len(found)} rows, the first in row "
                f"{int(np.flatnonzero(bad)[0])}. Leave those rows out."
            )
    return found


def check_spread(spread: float) -> None:
    """Refuse a target whose squares are not numbers."""
    if spread and not 1 / LARGEST < spread < LARGEST:
        raise ValueError(f"The target y spreads over {spread:.0e}; squares of that are not numbers. Rescale y.")


def check_weight(largest: float) -> None:
    """Refuse weights of which float32 cannot hold sums."""
    if not 1 / HEAVIEST < largest < HEAVIEST:
        raise ValueError(
            f"The largest sample weight is {largest:.0e}; as copies of a row it must lie between "
            f"{1 / HEAVIEST:.0e} and {HEAVIEST:.0e}. Rescale the weights."
        )


def warn_of_constants(x: Array, low: float, high: float) -> None:
    """Inputs x (n, d), and the range of the target."""
    if low == high:
        warnings.warn(
            f"The target is constant ({low:g}). The model will predict that value; is it the column you meant?",
            UserWarning,
            stacklevel=3,
        )
    elif not np.ptp(x, axis=0).any():
        warnings.warn(
            "All inputs are constant. The model can only predict the target's mean and deviation.",
            UserWarning,
            stacklevel=3,
        )


def warn_of_copies(x: Array, y: Array) -> None:
    """Say where many rows of x (n, d), y (n,) are copies: who leaves one of them out has still seen it."""
    weights = np.random.default_rng(0).normal(size=x.shape[1] + 1)
    sums = np.einsum("ij,j->i", x, weights[:-1]) + weights[-1] * y  # equal rows have equal sums, to the bit
    distinct = len(np.unique(sums))
    copies, chance = len(y) - distinct, len(np.unique(y)) < 0.5 * distinct  # few values repeat without being copied
    if copies >= MANY_COPIES * len(y) and not chance:
        warnings.warn(
            f"{copies} of {len(y)} rows are copies of others: the same inputs and the same target. They count as rows "
            "of their own, so that new rows are expected to be copies as often. If they will not be, the intervals "
            "come out far too narrow: pass each row once.",
            UserWarning,
            stacklevel=3,
        )


def warn_of_lone_rows(x: Array, names: Sequence[str]) -> None:
    """Say where one row of x (n, d) has nearly all the variance of a column whose values else differ."""
    found = [name for name, values in zip(names, x.T, strict=True) if _has_a_lone_row(values)]
    if found:
        warnings.warn(
            f"One row lies so far out in {', '.join(map(repr, found[:5]))}{' and others' * (len(found) > 5)} that all "
            "others look alike there. If its value is an error, mend it or leave the row out; if it is not, pass the "
            "logarithm or the ranks of the column.",
            UserWarning,
            stacklevel=3,
        )


def _has_a_lone_row(values: Array) -> bool:
    squares = (values - values.mean()) ** 2
    if len(values) < 3 or not squares.max() > LONE * squares.sum():
        return False
    others = np.delete(values, squares.argmax())
    return bool(np.median(np.abs(others - np.median(others))) > 0)  # a column that is mostly one value tells its rest
