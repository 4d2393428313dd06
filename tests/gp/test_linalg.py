"""The jitter policy, its warning and its error; precision in float32."""

import pytest
import torch

from paragp.gp.families import Coupled
from paragp.gp.kernels import make_kernel
from paragp.gp.linalg import (
    JITTER,
    JitterWarning,
    NotPositiveDefiniteError,
    cholesky,
    inverse_cholesky,
    lower_matmul,
    lower_of_product,
    lower_transposed_matmul,
    project,
    triangular_inverse,
    unwhitened_weights,
    whiten,
)
from paragp.gp.methods import METHODS

from cases import float64, generator, randn


def with_eigenvalues(values):
    Q, _ = torch.linalg.qr(randn(len(values), len(values)))
    return Q @ torch.tensor(values, dtype=float64).diag() @ Q.T


def test_jitter_is_relative_to_the_scale():
    K = 50 * torch.eye(3)
    torch.testing.assert_close(cholesky(K).square().diagonal(), torch.full((3,), 50 * (1 + JITTER[torch.float32])))


def test_jitter_grows_in_steps_with_one_warning_that_says_how_much():
    K = with_eigenvalues([1.0, 1.0, -1e-4])
    with pytest.warns(JitterWarning, match="tried 1e-06, 1e-05, 1e-04, 1e-03 of its scale and added the last") as seen:
        Lam = cholesky(K, name="K_MM of RBFKernel")
    assert len(seen) == 1
    assert "K_MM of RBFKernel" in str(seen[0].message)
    added = Lam @ Lam.T - K
    torch.testing.assert_close(added, 1e-3 * K.diagonal().mean() * torch.eye(3, dtype=float64))


def test_hopeless_matrix_names_kernel_eigenvalue_and_remedy():
    with pytest.raises(NotPositiveDefiniteError) as error:
        cholesky(with_eigenvalues([1.0, 1.0, -0.9]), name="K_MM of MyKernel")
    for words in ("K_MM of MyKernel", "-9.00e-01", "1e-06 to 1e-01", "Try float64", "fewer"):
        assert words in str(error.value)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_matrix_is_said_to_be_so(bad):
    K = torch.eye(3)
    K[1, 2] = K[2, 1] = bad
    with pytest.raises(NotPositiveDefiniteError, match="2 of its entries are NaN or infinite"):
        cholesky(K)


def test_a_model_names_its_kernel_when_it_fails():
    kernel = make_kernel("rbf", 1) + make_kernel("linear", 1)
    family = Coupled(torch.tensor([[0.0], [1.0]]), METHODS["map"].covariance)
    with torch.no_grad():
        family.Z[0] = float("nan")
    with pytest.raises(NotPositiveDefiniteError, match=r"ScaleKernel\(RBFKernel\) \+ ScaleKernel\(LinearKernel\)"):
        family.factorise(kernel)


def test_rounding_never_makes_a_variance_negative():
    """What the projection explains may exceed the prior in the last digit; nothing is left then, not less."""
    W, K_Mb = torch.eye(2), torch.tensor([[0.8, 0.1], [0.6, 0.2]])
    _, ktilde, _, _ = project(W, K_Mb, k_diag=torch.tensor([1.0 - 1e-6, 1.0]))
    torch.testing.assert_close(ktilde, torch.tensor([0.0, 0.95]))


# --- the hand-written backward against plain autograd through torch's own Cholesky and solves ---
def plain(K, K_Mb, m):
    Lam = torch.linalg.cholesky(K + 1e-6 * K.diagonal().mean() * torch.eye(len(K), dtype=K.dtype))
    A = torch.linalg.solve_triangular(Lam, K_Mb, upper=False)
    return A, torch.linalg.solve_triangular(Lam.T, m[:, None], upper=True)[:, 0]


def by_hand(K, K_Mb, m):
    return whiten(inverse_cholesky(K), K_Mb), unwhitened_weights(K, m)


@pytest.mark.parametrize("M", [1, 3, 11, 150])
def test_whitening_equals_its_plain_twin_in_value_and_gradient(M):
    root = randn(M, M + 5)
    inputs = [t.requires_grad_() for t in (root @ root.T / M, randn(M, 7, seed=1), randn(M, seed=2))]
    weights = randn(M, 7, seed=3), randn(M, seed=4)
    results = []
    for twin in (plain, by_hand):
        outputs = twin(*inputs)
        loss = sum((w * torch.sin(out)).sum() for w, out in zip(weights, outputs, strict=True))
        g_K, *others = torch.autograd.grad(loss, inputs)
        results.append([*outputs, g_K + g_K.T, *others])  # a symmetric matrix's gradient is one up to its split
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_whitening_gradcheck():
    root = randn(4, 6)

    def value(R, K_Mb, m):
        return by_hand(R @ R.T, K_Mb, m)

    assert torch.autograd.gradcheck(value, [t.requires_grad_() for t in (root, randn(4, 3, seed=1), randn(4, seed=2))])


def test_projections_sums_equal_their_plain_twin_in_value_and_gradient():
    inputs = [t.requires_grad_() for t in (randn(4, 4).tril(), randn(4, 6, seed=1), randn(4, seed=2), randn(4, seed=3))]
    k_diag, weights = 50 + randn(6, seed=4), [randn(6, seed=i) for i in (5, 6, 7)]
    W, K_Mb, m, s = inputs
    A = W.detach() @ K_Mb
    plainly = k_diag - A.square().sum(0), m @ A, (s[:, None] * A).square().sum(0)
    _, *ours = project(W.detach(), K_Mb, k_diag, m=m, s=s)
    gradients = []
    for outputs in (plainly, ours):
        loss = sum((w * torch.sin(out)).sum() for w, out in zip(weights, outputs, strict=True))
        gradients.append(torch.autograd.grad(loss, [K_Mb, m, s]))
    for theirs, mine in zip([*plainly, *gradients[0]], [*ours, *gradients[1]], strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("M", [1, 2, 3, 5, 130, 257])
def test_triangular_products_and_inverse(M):
    L, X = randn(M, M).tril() / M + torch.eye(M, dtype=float64), randn(M, 6, seed=1)
    torch.testing.assert_close(lower_matmul(L, X), L @ X)
    torch.testing.assert_close(lower_matmul(L, L, lower=True), L @ L)
    torch.testing.assert_close(lower_transposed_matmul(L, X), L.T @ X)
    torch.testing.assert_close(lower_of_product(X, X.T), (X @ X.T).tril())
    torch.testing.assert_close(triangular_inverse(L) @ L, torch.eye(M, dtype=float64))


def ill_conditioned_points(M=300, d=3):
    """A third of the points exactly repeated, a third nearly."""
    Z = torch.rand(M // 3, d, generator=generator(), dtype=float64)
    return torch.cat([Z, Z, Z + 1e-6 * randn(M // 3, d, seed=1)])


@pytest.mark.parametrize("lengthscale", [1e-2, 1e-1, 1.0, 1e1, 1e2])
@pytest.mark.parametrize("kernel", ["matern12", "matern32", "matern52", "rbf", "rq", "matern52 + rbf"])
@pytest.mark.parametrize("name", METHODS)
def test_float32_moments_agree_with_float64(name, kernel, lengthscale):
    """On 300 coinciding and nearly coinciding inducing points, with the same jitter in both."""
    method, Z = METHODS[name], ill_conditioned_points()
    x = torch.cat([torch.rand(200, 3, generator=generator(2), dtype=float64), Z[:20]])
    results = {}
    for dtype in (torch.float32, torch.float64):
        parts = [make_kernel(part, 3) for part in kernel.split(" + ")]
        for part in parts:
            part.base_kernel.lengthscale = lengthscale
        model = method.model(parts[0] if len(parts) == 1 else parts[0] + parts[1], Z.to(dtype))
        model.family.jitter = JITTER[torch.float32]
        with torch.no_grad():
            for i, parameter in enumerate([model.family.m, *model.family.S.parameters()]):
                parameter.copy_(randn(*parameter.shape, seed=i) / parameter.shape[-1] ** 0.5)
            results[dtype], _ = model(x.to(dtype))
    single, double = results[torch.float32], results[torch.float64]
    for part in ("mean", "ktilde", "svar"):
        error = (getattr(single, part).double() - getattr(double, part)).abs().max()
        assert error <= 1e-3 * max(1.0, float(getattr(double, part).abs().max())), part
    assert (single.ktilde >= 0).all()
    assert (single.svar >= 0).all()
