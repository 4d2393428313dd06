"""One mini-batch of Algorithm 1: the estimate and its gradient."""

import torch
from torch import Tensor

from paragp.data.rows import Data
from paragp.gp.linalg import keep_freed_memory
from paragp.gp.model import ParametricGP
from paragp.gp.objectives import Objective, estimate

CHUNK = 1000  # rows taken through forward and backward together: their M x b matrices stay near the processor


def backward(
    model: ParametricGP,
    objective: Objective,
    batch: Data,
    *,
    num_data: float,
    beta: float,
    rows: int | None = None,
    chunk: int = CHUNK,
) -> float:
    """The estimate of the objective per datum on a batch; the gradient of the loss is added to `.grad`.

    Where the batch is one of several processes' parts of a batch of `rows` rows, it is that part of the estimate: the
    parts, and their gradients, add up.

        h -> K_MM, K_Mb, k_diag -> W, A -> moments; kl -> terms -> estimate -> loss

    What all rows share (features, factorisation, regulariser) is computed once and cut out of the graph, the rows
    go forward and backward chunk by chunk, and what they sent to the shared parts goes backward once at the end.
    Size-weighted chunk estimates add up to the batch's, so a chunk changes memory and time but not the result.
    """
    if not len(batch.y):
        model.factorise()  # fails where it fails for those that have rows
        return 0.0
    rows = len(batch.y) if rows is None else rows
    keep_freed_memory()
    h = model.embed(batch.x)
    factor = model.factorise()
    kl = model.family.kl(factor)
    h_leaf, kl_leaf = _leaf(h), _leaf(kl)
    factor_leaf = type(factor)(*(part if part is None else _leaf(part) for part in factor))
    total = 0.0
    for start in range(0, len(batch.y), chunk):
        taken = slice(start, start + chunk)
        part = batch.take(taken)
        q = model.family.moments(factor_leaf, model.kernel, h_leaf[taken])
        terms = objective(q, part.y, model.noise)
        value = estimate(terms, kl_leaf, num_data=num_data, beta=beta, weights=part.weights)
        loss = -value * (len(part.y) / rows)  # the only minus sign
        loss.backward()
        total -= float(loss.detach())
    shared = zip((h, kl, *factor), (h_leaf, kl_leaf, *factor_leaf), strict=True)
    reached = [(tensor, leaf.grad) for tensor, leaf in shared if leaf is not None and leaf.grad is not None]
    torch.autograd.backward([tensor for tensor, _ in reached], [gradient for _, gradient in reached])
    return total


def _leaf(tensor: Tensor) -> Tensor:
    """The same values cut out of the graph; their gradient collects in `.grad`."""
    return tensor.detach().requires_grad_(tensor.requires_grad)
