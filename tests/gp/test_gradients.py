"""Gradients in float64 against finite differences, and that every parameter gets one."""

import pytest
import torch
from torch.func import functional_call

from paragp.gp.kernels import KERNELS, covariance, make_kernel
from paragp.gp.methods import METHODS
from paragp.gp.objectives import estimate

from cases import STATIONARY, float64, randn, random_data, random_model


def value_of(model, data, objective, parameters):
    """The estimate as a function of the parameters alone."""

    class Value(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self):
            q, kl = self.model(data.x)
            terms = objective(q, data.y, self.model.noise)
            return estimate(terms, kl, num_data=len(data.y), beta=0.3)

    return functional_call(Value(), {f"model.{name}": value for name, value in parameters.items()}, ())


@pytest.mark.parametrize("kernel", ["matern52", "rq"])
@pytest.mark.parametrize("name", METHODS)
def test_gradcheck_through_every_row(name, kernel):
    model, data = random_model(name, M=3, kernel=kernel), random_data(5)
    names, start = zip(*model.named_parameters(), strict=True)
    objective = METHODS[name].objective_for()

    def value(*parameters):
        return value_of(model, data, objective, dict(zip(names, parameters, strict=True)))

    inputs = [parameter.detach().clone().requires_grad_() for parameter in start]
    assert torch.autograd.gradcheck(value, inputs, eps=1e-6, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("features", [None, "linear"])
@pytest.mark.parametrize("name", METHODS)
def test_every_parameter_receives_a_gradient(name, features):
    network = None if features is None else torch.nn.Linear(3, 2)
    model, data = random_model(name, features=network), random_data(d=2 if features is None else 3)
    q, kl = model(data.x)
    terms = METHODS[name].objective_for()(q, data.y, model.noise)
    estimate(terms, kl, num_data=len(data.y), beta=0.3).backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert torch.isfinite(parameter.grad).all(), parameter_name
        used = parameter.grad.tril() if parameter_name == "family.S.L" else parameter.grad
        assert used.abs().max() > 1e-8, parameter_name


@pytest.mark.parametrize("kernel", STATIONARY)
@pytest.mark.parametrize("symmetric", [False, True])
def test_hand_written_kernel_backward(kernel, symmetric):
    base = make_kernel(kernel, 2).double()
    names, start = zip(*base.named_parameters(), strict=True)

    class Matrix(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.kernel = base

        def forward(self, x, z):
            return covariance(self.kernel, x, x if symmetric else z)

    def value(x, z, *parameters):
        named = {f"kernel.{name}": p for name, p in zip(names, parameters, strict=True)}
        return functional_call(Matrix(), named, (x, z))

    inputs = [t.detach().clone().requires_grad_() for t in (randn(4, 2), randn(3, 2, seed=1), *start)]
    assert torch.autograd.gradcheck(value, inputs)


@pytest.mark.parametrize("kernel", STATIONARY)
def test_direct_path_equals_gpytorchs(kernel):
    """Values and gradients of the scaled kernel, against GPyTorch's own evaluation."""
    ours, x, z = make_kernel(kernel, 3).double(), randn(6, 3), randn(5, 3, seed=1)
    weights = randn(6, 5, seed=2)
    results = []
    for evaluate in (lambda: covariance(ours, x, z), lambda: ours(x, z).to_dense()):
        K = evaluate()
        results.append((K.detach(), *torch.autograd.grad((weights * K).sum(), list(ours.parameters()))))
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kernel", KERNELS)
def test_coinciding_points_have_finite_gradients(kernel):
    model = make_kernel(kernel, 2).double()
    x = torch.zeros(3, 2, dtype=float64, requires_grad=True)
    covariance(model, x, x).sum().backward()
    assert torch.isfinite(x.grad).all()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters())
