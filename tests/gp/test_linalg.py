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
    dense_form,
    dense_moments,
    inverse_cholesky,
    moments,
    rooted_moments,
    unwhiten,
    unwhitened_weights,
    whiten,
)
from paragp.gp.methods import METHODS
from paragp.gp.moments import Moments

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
    W, K_Mb, k_diag = torch.eye(2), torch.tensor([[0.8, 0.1], [0.6, 0.2]]), torch.tensor([1.0 - 1e-6, 1.0])
    L = 1e-4 * torch.eye(2)
    for q in (
        moments(W, K_Mb, k_diag),
        dense_moments(W, dense_form(W, L), K_Mb, k_diag),
        dense_moments(W, (1 + 1e-6) * dense_form(W, L), K_Mb, k_diag),  # rounded the wrong way
        rooted_moments(W, L, K_Mb, k_diag),
    ):
        torch.testing.assert_close(q.ktilde, torch.tensor([0.0, 0.95]))
        assert (q.svar >= 0).all()


# --- the hand-written backward against plain autograd through torch's own Cholesky and solves ---
def plain(K, K_Mb, m):
    Lam = torch.linalg.cholesky(K + 1e-6 * K.diagonal().mean() * torch.eye(len(K), dtype=K.dtype))
    A = torch.linalg.solve_triangular(Lam, K_Mb, upper=False)
    w = torch.linalg.solve_triangular(Lam.T, m[:, None], upper=True)[:, 0]
    return A, w, w


def by_hand(K, K_Mb, m):
    W = inverse_cholesky(K)
    return whiten(W, K_Mb), unwhitened_weights(K, m), unwhiten(W, m)


@pytest.mark.parametrize("M", [1, 3, 11, 150])
def test_whitening_equals_its_plain_twin_in_value_and_gradient(M):
    root = randn(M, M + 5)
    inputs = [t.requires_grad_() for t in (root @ root.T / M, randn(M, 7, seed=1), randn(M, seed=2))]
    weights = randn(M, 7, seed=3), randn(M, seed=4), randn(M, seed=5)
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


def plain_moments(form, K, K_Mb, k_diag, m, S):
    Lam = torch.linalg.cholesky(K + 1e-6 * K.diagonal().mean() * torch.eye(len(K), dtype=K.dtype))
    A = torch.linalg.solve_triangular(Lam, K_Mb, upper=False)
    root = {"zero": lambda: 0 * A, "diagonal": lambda: S.diagonal()[:, None] * A, "dense": lambda: S.tril().T @ A}
    return A.T @ m, k_diag - A.square().sum(0), root[form]().square().sum(0)


def moments_by_hand(form, K, K_Mb, k_diag, m, S):
    W = inverse_cholesky(K)
    w = unwhiten(W, m)
    if form == "dense":
        return dense_moments(W, dense_form(W, S.tril()), K_Mb, k_diag, w=w)
    return moments(W, K_Mb, k_diag, w=w, s=S.diagonal() if form == "diagonal" else None)


# Either the objective sees ktilde and svar apart, or their sum alone: then dense moments take a shorter way back.
LOSSES = {
    "apart": lambda mean, ktilde, svar: (torch.sin(mean) + ktilde * svar.cos() + torch.sin(svar)).sum(),
    "sum": lambda mean, ktilde, svar: (torch.sin(mean) + (ktilde + svar).cos()).sum(),
}


def moments_inputs(M, b=7):
    root = randn(M, M + 5)
    K_Mb, k_diag, m = 0.1 * randn(M, b, seed=1), 200 + randn(b, seed=2), randn(M, seed=3)
    return [t.requires_grad_() for t in (root @ root.T / M, K_Mb, k_diag, m, randn(M, M, seed=4) / M**0.5)]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("form", ["zero", "diagonal", "dense"])
@pytest.mark.parametrize("M", [1, 3, 11, 150])
def test_moments_equal_their_plain_twin_in_value_and_gradient(M, form, loss):
    inputs = moments_inputs(M)
    results = []
    for twin in (plain_moments, moments_by_hand):
        outputs = twin(form, *inputs)
        g_K, *others = torch.autograd.grad(LOSSES[loss](*outputs), inputs, materialize_grads=True)
        results.append([*outputs, g_K + g_K.T, *others])
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("frozen", range(5))
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("form", ["diagonal", "dense"])
def test_freezing_one_input_leaves_the_gradient_of_the_others(form, loss, frozen):
    inputs = moments_inputs(6)
    whole = torch.autograd.grad(LOSSES[loss](*moments_by_hand(form, *inputs)), inputs)
    inputs[frozen].requires_grad_(False)
    others = [t for t in inputs if t.requires_grad]
    partial = torch.autograd.grad(LOSSES[loss](*moments_by_hand(form, *inputs)), others)
    for ours, expected in zip(partial, [g for i, g in enumerate(whole) if i != frozen], strict=True):
        torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("form", ["zero", "diagonal", "dense"])
def test_moments_gradcheck(form):
    R = randn(4, 6)
    _, K_Mb, k_diag, m, S = moments_inputs(4, b=3)

    def value(R, *inputs):
        return tuple(moments_by_hand(form, R @ R.T, *inputs))

    assert torch.autograd.gradcheck(value, [R.requires_grad_(), K_Mb, k_diag, m, S])


def test_moments_of_a_prediction_equal_those_of_training():
    _, K_Mb, k_diag, m, S = (t.detach() for t in moments_inputs(9))
    W, L = randn(9, 9, seed=5).tril() / 9 + torch.eye(9, dtype=float64), S.tril()
    for ours, expected in zip(
        rooted_moments(W, L, K_Mb, k_diag, w=m), dense_moments(W, dense_form(W, L), K_Mb, k_diag, w=m), strict=True
    ):
        torch.testing.assert_close(ours, expected)


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
                parameter.copy_(randn(*parameter.shape, seed=i) / max((1, *parameter.shape)) ** 0.5)
            results[dtype], _ = model(x.to(dtype))
        results[dtype, "training"] = Moments(*(part.detach() for part in model(x.to(dtype))[0]))
    for single, double in (
        (results[torch.float32], results[torch.float64]),
        (results[torch.float32, "training"], results[torch.float64, "training"]),
        (results[torch.float64, "training"], results[torch.float64]),
    ):
        for part in ("mean", "ktilde", "svar"):
            error = (getattr(single, part).double() - getattr(double, part)).abs().max()
            assert error <= 1e-3 * max(1.0, float(getattr(double, part).abs().max())), part
        assert (single.ktilde >= 0).all()
        assert (single.svar >= 0).all()
