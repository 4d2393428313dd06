"""Files and folders that appear whole or not at all."""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path that becomes `path` when the block ends well, and vanishes when it does not.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with writing(Path(folder, "whole.txt")) as part:
    ...         _ = part.write_text("all of it")
    ...     Path(folder, "whole.txt").read_text()
    'all of it'
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.stem}-{secrets.token_hex(4)}{path.suffix}")
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def writing_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary folder that becomes `path` when the block ends well, and vanishes when it does not.

    What stood at `path` is put aside and goes only when the new folder is in its place.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part, old = (path.with_name(f".{path.name}-{secrets.token_hex(4)}") for _ in range(2))
    part.mkdir()
    try:
        yield part
        for file in part.iterdir():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
        replaced = path.exists()
        if replaced:
            path.replace(old)
        try:
            part.replace(path)
        except BaseException:
            if replaced:
                old.replace(path)
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
