"""One HTML file about a model on a table: how good it is, where it is unsure, and what is odd about the data.

`gather` turns batches of rows into plain facts, `bins` groups them, `charts` draws them as SVG, and `page` puts them
together. The file needs no network, and the same rows give the same bytes.
"""

import importlib.util
import os
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm

from paragp.atomic import check_new_file, writing
from paragp.data.tables import Array
from paragp.fitted import Fitted
from paragp.report.gather import Gathering
from paragp.report.page import commands, render


def check_free(path: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Refuse, before the work is done, a report that could not be made or written."""
    if importlib.util.find_spec("jinja2") is None:
        raise ValueError('A report needs jinja2. Install it with: pip install "paragp[report]"')
    check_new_file(path, overwrite=overwrite)


def write_report(
    fitted: Fitted,
    blocks: Iterable[tuple[Any, Array]],
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    target: str | None = None,
    model: str = "model/",
    data: str = "data.parquet",
) -> None:
    """Write a report on rows that come in blocks: tables with the model's columns, and their targets.

    `target` is the target's name if it is not the model's own; `model` and `data` are where they came from.
    """
    check_free(path, overwrite=overwrite)
    gathering = Gathering(fitted)
    with tqdm(unit="row", desc="report", disable=None, delay=1, dynamic_ncols=True) as bar:
        for X, y in blocks:
            gathering.add(X, y)
            bar.update(len(y))
    name = fitted.target.name if target is None else target
    page = render(fitted, gathering.facts(), name, commands(fitted, name, model, data))
    with writing(path) as part:
        part.write_text(page, encoding="utf-8", newline="\n")
