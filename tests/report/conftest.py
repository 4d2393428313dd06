"""Models that the tests of reports share."""

import pytest

from report_cases import hostile_table, quick, table


@pytest.fixture(scope="session")
def model():
    return quick().fit(*table())


@pytest.fixture(scope="session")
def calibrated():
    return quick(max_epochs=2).fit(*table()).calibrate(*table(100, seed=5))


@pytest.fixture(scope="session")
def hostile():
    return quick(max_epochs=2).fit(*hostile_table())


@pytest.fixture(scope="session")
def heavy():
    """A model whose tails are those of a Student-t."""
    model = quick(max_epochs=2).fit(*table())
    model.fitted_.model.likelihood.tails.fill_(0.4)
    return model


@pytest.fixture(scope="session")
def default():
    """The default, which takes no steps and has noise by the row."""
    return quick(max_epochs="auto", beta="auto").fit(*table())
