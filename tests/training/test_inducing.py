import pytest
import torch

from paragp.training.inducing import kmeans, starting_points

from cases import generator, randn


def test_centres_are_as_many_as_asked_and_repeatable():
    X = randn(500, 3, dtype=torch.float32)
    Z = kmeans(X, 20, generator=generator())
    assert Z.shape == (20, 3)
    assert Z.dtype == X.dtype
    assert torch.equal(Z, kmeans(X, 20, generator=generator()))
    assert not torch.equal(Z, kmeans(X, 20, generator=generator(1)))


def test_centres_are_nearer_than_random_rows():
    X = randn(2000, 2)
    near = torch.cdist(X, kmeans(X, 30, generator=generator())).min(1).values.square().mean()
    random_rows = torch.cdist(X, X[:30]).min(1).values.square().mean()
    assert near < 0.7 * random_rows


@pytest.mark.parametrize("copies", [1, 50])
def test_few_distinct_rows_are_the_points_themselves(copies):
    distinct = torch.tensor([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
    Z = kmeans(distinct.repeat(copies, 1), 10, generator=generator())
    assert torch.equal(Z.unique(dim=0), distinct)
    assert len(Z) == 3


def test_a_weight_counts_as_copies():
    X = torch.tensor([[0.0], [1.0], [10.0], [11.0], [12.0]])
    weights = torch.tensor([3.0, 1.0, 0.0, 1.0, 1.0])
    Z = kmeans(X, 2, generator=generator(), weights=weights)
    torch.testing.assert_close(Z.sort(0).values, torch.tensor([[0.25], [11.5]]))


def test_rare_rows_outside_the_sample_do_not_break_it(monkeypatch):
    monkeypatch.setattr("paragp.training.inducing.KMEANS_ROWS", 20)
    X = torch.zeros(5000, 1)
    X[:3, 0] = torch.tensor([1.0, 2.0, 3.0])
    weights = torch.ones(5000)
    weights[0], weights[1:3] = 1000, 1e-3
    Z = kmeans(X, 2, generator=generator(), weights=weights)
    torch.testing.assert_close(Z.sort(0).values, torch.tensor([[0.0], [1.0]]), atol=1e-3, rtol=0)


def test_two_sets_differ():
    Z, Z_variance = starting_points(randn(500, 3), 20, 30, generator=generator())
    assert (len(Z), len(Z_variance)) == (20, 30)
    assert torch.cdist(Z, Z_variance).min() > 1e-3


def test_no_points_is_an_error():
    with pytest.raises(ValueError, match="at least 1"):
        kmeans(randn(5, 2), 0, generator=generator())
