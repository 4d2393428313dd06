"""Tables that the tests of reports share: a plain one, and one whose every name is hostile."""

import numpy as np
import pandas as pd

from paragp import ParametricGPRegressor

HOSTILE = [
    "<script>window.hacked = 1</script>",
    "\"quotes\" and 'more' & </style>",
    "{{7*7}}",
    "two\nlines",
    "\u202eturned\u202c",
    "</title><img src=x onerror='window.hacked = 2'>",
    "long " * 100,
    "漢字" * 20,
    "W" * 60,
    " ",
]
HOSTILE_TARGET = "</script><script>window.hacked = 3</script>"
HOSTILE_CATEGORIES = ["</svg><script>window.hacked = 4</script>", '" onmouseover="window.hacked = 5', "{% raw %}", "ok"]


def quick(**options):
    return ParametricGPRegressor(**({"n_inducing": 10, "max_epochs": 3, "beta": 0.05, "random_state": 0} | options))


def table(n=300, seed=0):
    rng = np.random.default_rng(seed)
    size = rng.normal(size=n)
    frame = pd.DataFrame({
        "size": np.where(rng.random(n) < 0.1, np.nan, size), "rooms": rng.integers(1, 5, n), "age": rng.gamma(2, 10, n),
        "town": rng.choice(["Ulm", "Aix", "Bath"], n),
    })  # fmt: skip
    return frame, pd.Series(100 + 20 * size + 3 * rng.normal(size=n) * frame["rooms"], name="price")


def hostile_table(n=200, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({name: rng.normal(size=n) for name in HOSTILE})
    y = pd.Series(frame["{{7*7}}"] + 0.1 * rng.normal(size=n), name=HOSTILE_TARGET)
    frame["{{7*7}}"] = rng.choice(HOSTILE_CATEGORIES, n)
    return frame, y
