"""Starting points for the inducing points."""

import numpy as np
import torch
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits
from torch import Tensor

KMEANS_ROWS = 50_000  # a random sample of this size places the centres of any larger table
KMEANS_ITERATIONS = 20


def kmeans(X: Tensor, M: int, *, generator: torch.Generator, weights: Tensor | None = None) -> Tensor:
    """M cluster centres of the rows of X (N, d), as in the paper's appendix; shape (M, d).

    With at most M distinct rows (of positive weight) those rows themselves are returned.

    >>> X = torch.tensor([[0.0], [0.1], [5.0], [5.1]])
    >>> kmeans(X, 2, generator=torch.Generator().manual_seed(0)).sort(0).values
    tensor([[0.0500],
            [5.0500]])
    """
    if M < 1:
        raise ValueError(f"The number of inducing points must be at least 1, got {M}.")
    kept = torch.arange(len(X)) if weights is None else (weights.cpu() > 0).nonzero()[:, 0]
    distinct = X.cpu()[kept].unique(dim=0)
    if len(distinct) <= M:
        return distinct.to(X)
    sample = kept[torch.randperm(len(kept), generator=generator)[: max(KMEANS_ROWS, 10 * M)]]
    rows = X.cpu()[sample].double().numpy()
    row_weights = None if weights is None else weights.cpu()[sample].double().numpy()
    if len(np.unique(rows, axis=0)) <= M:  # the sample missed some of the few distinct rows
        rows, row_weights = distinct.double().numpy(), None
    seed = int(torch.randint(2**31 - 1, (), generator=generator))
    clustering = KMeans(M, n_init=1, max_iter=KMEANS_ITERATIONS, random_state=seed)
    with threadpool_limits(1, user_api="openmp"):  # sums over threads are not reproducible to the bit
        clustering.fit(rows, sample_weight=row_weights)
    return torch.from_numpy(clustering.cluster_centers_).to(X)
