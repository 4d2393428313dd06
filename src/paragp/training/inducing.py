"""Starting points for the inducing points."""

from concurrent.futures import ThreadPoolExecutor

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
    (found,) = starting_points(X, M, generator=generator, weights=weights)
    return found


def starting_points(X: Tensor, *sizes: int, generator: torch.Generator, weights: Tensor | None = None) -> list[Tensor]:
    """A k-means set (M, d) for each size M, all at once; no two are the same, as mean and variance want it."""
    rows = X.detach().double().cpu()
    row_weights = torch.ones(len(X)).double() if weights is None else weights.detach().double().cpu()
    rows, row_weights = rows[row_weights > 0], row_weights[row_weights > 0]
    drawn = []  # in turn, so that each set depends on those before it alone
    for M in sizes:
        if M < 1:
            raise ValueError(f"The number of inducing points must be at least 1, got {M}.")
        sample = torch.randperm(len(rows), generator=generator)[: max(KMEANS_ROWS, 10 * M)]
        drawn.append((M, sample, int(torch.randint(2**31 - 1, (), generator=generator))))

    def centres(M: int, sample: Tensor, seed: int) -> Tensor:
        distinct, total = _distinct(rows[sample], row_weights[sample])
        if len(distinct) <= M:  # the sample may have missed some of few distinct rows
            distinct, total = _distinct(rows, row_weights)
        if len(distinct) <= M:
            return distinct.to(X)
        clustering = KMeans(M, n_init=1, max_iter=KMEANS_ITERATIONS, random_state=seed)
        with threadpool_limits(1, user_api="openmp"):  # of this thread: sums over several would not be reproducible
            clustering.fit(distinct.numpy(), sample_weight=total.numpy())
        return torch.from_numpy(clustering.cluster_centers_).to(X)

    # BLAS has one setting for all threads, which clusterings that run at once would not restore in order.
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(torch.get_num_threads()) as pool:
        return list(pool.map(lambda of: centres(*of), drawn))


def _distinct(rows: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct rows, and the total weight of each."""
    distinct, where = rows.unique(dim=0, return_inverse=True)
    return distinct, torch.zeros(len(distinct), dtype=weights.dtype).index_add_(0, where, weights)
