"""The paper's printed numbers are all there, under our names."""

import itertools
import math

from paragp.gp.methods import PAPER
from paragp.paper.reported import reported


def test_every_method_of_the_registry_has_its_numbers_on_every_set():
    found = reported()
    sets = {dataset for dataset, _, _ in found}
    assert len(sets) == 12
    for key in itertools.product(sets, PAPER, ("nll", "rmse", "crps")):
        assert math.isfinite(found[key].mean), key
    assert {method for _, method, _ in found} == {*PAPER, "exact"}
