import pytest

from paragp.atomic import writing


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
