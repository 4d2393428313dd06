"""Products of matrices are the plain ones, by whichever library and in whatever blocks."""

import pytest
import torch

from paragp.gp import products
from paragp.gp.products import (
    lower_matmul,
    lower_of_product,
    lower_transposed_matmul,
    onednn_is_faster,
    product,
    triangular_inverse,
)

from cases import float64, randn

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")


@pytest.mark.parametrize("M", [1, 2, 3, 5, 130, 257])
def test_triangular_products_and_inverse(M, monkeypatch):
    L, X = randn(M, M).tril() / M + torch.eye(M, dtype=float64), randn(M, 6, seed=1)
    torch.testing.assert_close(lower_matmul(L, X), L @ X)
    torch.testing.assert_close(lower_matmul(L, L, lower=True), L @ L)
    torch.testing.assert_close(lower_transposed_matmul(L, X), L.T @ X)
    torch.testing.assert_close(lower_of_product(X, X.T), (X @ X.T).tril())
    torch.testing.assert_close(lower_of_product(L, L.T, triangular=True), (L @ L.T).tril())
    torch.testing.assert_close(triangular_inverse(L) @ L, torch.eye(M, dtype=float64))
    monkeypatch.setattr(products, "LARGE", 0)
    torch.testing.assert_close(triangular_inverse(L) @ L, torch.eye(M, dtype=float64))


FORMS = {
    "plain": lambda X: X,
    "transposed": lambda X: X.T.contiguous().T,
    "part": lambda X: torch.cat([X, X], 1)[:, : X.shape[1]],
}


@needs_onednn
@pytest.mark.parametrize("left", FORMS)
@pytest.mark.parametrize("right", FORMS)
@pytest.mark.parametrize("k", [30, products.RUN, 3 * products.RUN + 1])
def test_onednns_product_is_torchs(left, right, k, monkeypatch):
    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(products, "WORTH_ONEDNN", 0)
    X, Y = randn(70, k).float(), randn(k, 41, seed=1).float()
    expected = (X.double() @ Y.double()).float()
    torch.testing.assert_close(product(FORMS[left](X), FORMS[right](Y)), expected, rtol=0, atol=1e-4)
    out = torch.zeros(80, 60)
    place = out[5:75, 10:51]
    assert product(FORMS[left](X), FORMS[right](Y), out=place) is place
    torch.testing.assert_close(place, expected, rtol=0, atol=1e-4)
    assert out.count_nonzero() == place.count_nonzero()


@needs_onednn
def test_onednn_takes_large_products_in_single_precision_only(monkeypatch):
    """Where it is called, and with what comes out of it; other products are torch's, to the bit."""
    taken = []
    monkeypatch.setattr(products, "onednn_is_faster", lambda: bool(taken.append(1)) or True)
    for rows, dtype, by_onednn in ((200, torch.float32, True), (200, float64, False), (20, torch.float32, False)):
        X = randn(rows, rows).to(dtype)
        taken.clear()
        found = product(X, X)
        assert bool(taken) == by_onednn
        torch.testing.assert_close(found, X @ X, rtol=0, atol=1e-4 if by_onednn else 0)


@needs_onednn
def test_onednn_rounds_no_more_off_than_torch(monkeypatch):
    """Where points nearly coincide, twice the rounding of the features spoils a mean."""
    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)
    X, Y = randn(200, 2000).float(), randn(2000, 200, seed=1).float()
    ours, torchs = ((found.double() - X.double() @ Y.double()).std() for found in (product(X, Y), X @ Y))
    assert ours < 1.2 * torchs


@needs_onednn
def test_what_is_differentiated_is_torchs(monkeypatch):
    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)
    X = randn(200, 200).float().requires_grad_()
    product(X, X.detach()).sum().backward()
    torch.testing.assert_close(X.grad, X.detach().sum(1).expand(200, 200), rtol=1e-4, atol=1e-4)
    with pytest.raises(RuntimeError, match="out="):
        lower_matmul(X, X)


@needs_onednn
def test_a_product_may_take_the_place_of_a_factor(monkeypatch):
    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)
    X, Y = randn(600, 600).float(), randn(600, 600, seed=1).float()
    expected = product(X, Y)
    torch.testing.assert_close(product(X, Y, out=X), expected)


@pytest.fixture
def vendor_of(monkeypatch, tmp_path):
    """Makes this processor someone's."""
    monkeypatch.setattr(products, "Path", lambda _: tmp_path / "cpuinfo")

    def change(vendor):
        (tmp_path / "cpuinfo").write_text(f"vendor_id\t: {vendor}\n")
        onednn_is_faster.cache_clear()

    yield change
    onednn_is_faster.cache_clear()


def test_onednn_is_for_amds_processors(vendor_of):
    vendor_of("GenuineIntel")
    assert not onednn_is_faster()
    vendor_of("AuthenticAMD")
    assert onednn_is_faster() == torch.backends.mkldnn.is_available()
