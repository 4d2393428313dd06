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
    path, part = _beside(path)
    try:
        yield part
        _flush(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def writing_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary folder that becomes `path` when the block ends well, and vanishes when it does not.

    A folder that stood at `path` is put aside, and goes only when the new one is in its place.
    """
    path, part = _beside(path)
    old = part.with_name(f"{part.name}-old")
    part.mkdir()
    try:
        yield part
        for file in part.iterdir():
            _flush(file)
        if path.exists():
            path.replace(old)
        part.replace(path)
    finally:
        if old.exists() and not path.exists():
            old.replace(path)
        shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def check_place(path: str | os.PathLike[str]) -> None:
    """Refuse, before the work is done, a path whose folder cannot be made or written to."""
    path = Path(path)
    folder = next((parent for parent in path.absolute().parents if parent.exists()), path)
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{path} cannot be written: {folder} is not a folder that may be written to.")


def check_new_file(path: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Refuse, before the work is done, a file that stands in the way, or has no folder to be written to."""
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"There is no folder {path.parent} to write {path.name} to.")
    if path.is_dir():
        raise FileExistsError(f"{path} exists and is a folder. Choose a name for the file.")
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists. Choose another path, or overwrite it (overwrite=True, or --force).")
    check_place(path)


def _beside(path: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Where `path` leads (through links, too), and a free hidden name in the same folder, which is made."""
    path = Path(path).resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    return path, path.with_name(f".{path.stem}-{secrets.token_hex(4)}{path.suffix}")


def _flush(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
