"""The jitter policy, its warning and its error; precision in float32."""

import pytest
import torch

from paragp.gp.families import Coupled
from paragp.gp.kernels import make_kernel
from paragp.gp.linalg import JITTER, JitterWarning, NotPositiveDefiniteError, cholesky
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
    with pytest.warns(
        JitterWarning, match=r"tried 1e-06, 1e-05, 1e-04, 1e-03 of its scale and added 6\.\de-04"
    ) as seen:
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


def ill_conditioned_points(M=300, d=3):
    """A third of the points exactly repeated, a third nearly."""
    Z = torch.rand(M // 3, d, generator=generator(), dtype=float64)
    return torch.cat([Z, Z, Z + 1e-6 * randn(M // 3, d, seed=1)])


@pytest.mark.parametrize("lengthscale", [1e-2, 1e-1, 1.0, 1e1, 1e2])
@pytest.mark.parametrize("kernel", ["matern12", "matern32", "matern52", "rbf"])
@pytest.mark.parametrize("name", METHODS)
def test_float32_moments_agree_with_float64(name, kernel, lengthscale):
    """On 300 coinciding and nearly coinciding inducing points, with the same jitter in both."""
    method, Z = METHODS[name], ill_conditioned_points()
    x = torch.cat([torch.rand(200, 3, generator=generator(2), dtype=float64), Z[:20]])
    results = {}
    for dtype in (torch.float32, torch.float64):
        model = method.model(kernel, Z.to(dtype))
        model.kernel.base_kernel.lengthscale = lengthscale
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
