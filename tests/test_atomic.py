from pathlib import Path

import pytest

from paragp.atomic import writing, writing_folder


def test_file_appears_whole(tmp_path):
    target = tmp_path / "deep" / "file.txt"
    with writing(target) as part:
        part.write_text("new")
        assert not target.exists()
    assert target.read_text() == "new"
    assert list(target.parent.iterdir()) == [target]


def test_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    target = tmp_path / "file.txt"
    target.write_text("old")

    def fail():
        with writing(target) as part:
            part.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_file_that_was_never_written_is_an_error_and_leaves_nothing(tmp_path):
    with pytest.raises(FileNotFoundError), writing(tmp_path / "file.txt"):
        pass
    assert not list(tmp_path.iterdir())


def test_a_folder_is_never_replaced_by_a_file(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"), writing(tmp_path / "folder") as part:
        part.write_text("new")
    assert list(tmp_path.iterdir()) == [tmp_path / "folder"]


def test_a_link_to_a_file_is_followed(tmp_path):
    (tmp_path / "file.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("file.txt")
    with writing(tmp_path / "link.txt") as part:
        part.write_text("new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "file.txt").read_text() == "new"


def save(path, text="new", error=None):
    with writing_folder(path) as part:
        (part / "file.txt").write_text(text)
        if error is not None:
            raise error


@pytest.fixture
def old(tmp_path):
    """A folder that stands in the way, with more in it than the new one."""
    folder = tmp_path / "folder"
    save(folder, "old")
    (folder / "more.txt").write_text("old")
    return folder


def test_a_folder_appears_whole(tmp_path):
    save(tmp_path / "deep" / "folder")
    assert (tmp_path / "deep" / "folder" / "file.txt").read_text() == "new"
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["folder"]


def test_a_new_folder_replaces_the_old_one_entirely(old):
    save(old)
    assert [(path.name, path.read_text()) for path in old.iterdir()] == [("file.txt", "new")]
    assert list(old.parent.iterdir()) == [old]


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt(), SystemExit(1)])
def test_a_failure_while_writing_leaves_the_old_folder_and_nothing_else(error, old):
    with pytest.raises(type(error)):
        save(old, "half", error)
    assert {path.name: path.read_text() for path in old.iterdir()} == {"file.txt": "old", "more.txt": "old"}
    assert list(old.parent.iterdir()) == [old]


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("after", [False, True])
def test_an_interrupt_while_folders_change_places_loses_neither(failing, after, old, monkeypatch):
    """Two renames: the old folder aside, the new one in its place. The interrupt comes before or after one of them."""
    calls, replace = [], Path.replace

    def interrupted(path, target):
        calls.append(path)
        if len(calls) - 1 != failing:
            return replace(path, target)
        if after:
            replace(path, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(old)
    assert (old / "file.txt").read_text() == ("new" if failing and after else "old")
    assert list(old.parent.iterdir()) == [old]


def test_a_link_to_a_folder_is_followed(old, tmp_path):
    (tmp_path / "link").symlink_to(old)
    save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (old / "file.txt").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link"]


def test_the_folder_may_be_where_one_stands(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    save(".")
    assert (tmp_path / "here" / "file.txt").read_text() == "new"
