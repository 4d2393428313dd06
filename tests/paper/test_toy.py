import numpy as np
import pytest
import torch

from paragp.gp.methods import METHODS, PAPER
from paragp.metrics import nll
from paragp.paper import toy
from paragp.training.inducing import starting_points
from paragp.training.loop import Config, fit

from cases import generator

DATA = toy.make_toy()


def fitted(name):
    method = METHODS[name]
    Z, Z_variance = starting_points(DATA.train.x, toy.M, toy.M, generator=generator())
    model = method.model("matern52", Z, Z_variance if method.two_sets else None)
    config = Config(epochs=400, batch_size=250, learning_rate=0.03, beta=method.beta[0])
    fit(model, method.objective, DATA.train, config, generator=generator())
    return model


def test_svgps_band_is_constant_and_ppgprs_follows_the_noise():
    """What the paper's first figure shows, in numbers."""
    grid = torch.linspace(-1.9, 1.9, 200, dtype=torch.float64)[:, None]
    truth = DATA.truth(grid).std
    svgp, ppgpr = (fitted(name) for name in toy.DRAWN)
    flat, following = svgp.predict(grid), ppgpr.predict(grid)
    assert flat.std.max() / flat.std.min() < 1.3
    assert following.std.max() / following.std.min() > 5
    assert np.corrcoef(following.std, truth)[0, 1] > 0.9
    assert (flat.noise_var / flat.var).mean() > 0.85
    assert (following.noise_var / following.var).mean() < 0.4
    test = DATA.test
    assert nll(ppgpr.predict(test.x), test.y) < nll(svgp.predict(test.x), test.y) - 0.4


def test_truth_is_calibrated():
    z = DATA.truth(DATA.test.x).z_scores(DATA.test.y)
    assert abs(z.mean()) < 0.1
    assert z.std() == pytest.approx(1, abs=0.05)
    assert make_again().train.x.equal(DATA.train.x)


def make_again():
    return toy.make_toy()


def test_table_and_picture_hold_every_method(tmp_path):
    fits = toy.run(DATA, epochs=1, show_progress=False)
    assert list(fits) == [*PAPER, "fitc", "exact"]
    rows = toy.table(DATA, fits)
    text = toy.format_table(rows)
    for fit_ in fits.values():
        assert f"| {fit_.label} " in text
    assert len(text.splitlines()) == len(rows) + 2
    assert len({len(line) for line in text.splitlines()}) == 1
    toy.picture(DATA, fits, tmp_path / "new" / "figure.svg")
    svg = (tmp_path / "new" / "figure.svg").read_text(encoding="utf-8")
    assert svg.startswith("<?xml")
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["figure.svg"]


def test_the_picture_draws_the_two_methods_and_both_bands():
    fits = {name: toy.Fitted(METHODS[name].label, fitted_quickly(name), 0.0) for name in toy.DRAWN}
    figure = toy.draw(DATA, fits)
    assert [axis.get_title(loc="left").split(":")[0] for axis in figure.axes] == ["SVGP", "PPGPR-MFD"]
    for axis, name in zip(figure.axes, toy.DRAWN, strict=True):
        x = np.linspace(toy.LOW, toy.HIGH, 400)
        dist = fits[name].model.predict(torch.from_numpy(x)[:, None])
        for band, std in zip(axis.collections, (dist.std, dist.function_std), strict=True):
            drawn = band.get_paths()[0].vertices
            top = max(drawn[np.isclose(drawn[:, 0], x[200]), 1])
            assert top == pytest.approx(dist.mean[200] + 2 * std[200], abs=1e-6)


def fitted_quickly(name):
    method = METHODS[name]
    return method.model("matern52", DATA.train.x[:10])
