"""Checkpoints in a folder and far away: whole or not there, whoever is killed."""

import os

import fsspec
import pytest
import torch

from wagmf.arguments import Refused
from wagmf.lab.checkpoints import Checkpoints

STATE = {"epoch": 3, "weights": torch.arange(4.0)}


@pytest.fixture(params=["{}", "file://{}", "memory://{}"])
def where(request, tmp_path):
    return request.param.format(tmp_path / "some" / "stacks")


def same(state):
    return state["epoch"] == 3 and torch.equal(state["weights"], STATE["weights"])


def test_what_is_saved_is_found_by_anybody_until_it_is_dropped(where):
    Checkpoints(where).save("one", {"epoch": 1})
    Checkpoints(where).save("one", STATE)
    Checkpoints(where).save("two", {"epoch": 2})
    other = Checkpoints(where)
    assert other.names() == {"one", "two"}
    assert same(other.load("one", "cpu"))
    assert other.load("three", "cpu") is None
    other.drop("one")
    other.drop("three")
    assert Checkpoints(where).names() == {"two"}
    other.drop("two")
    assert other.names() == set()


def test_half_a_checkpoint_is_none(where):
    """A process that was killed leaves a file beside, which nobody takes for one and the next one removes."""
    kept = Checkpoints(where)
    files, root = fsspec.core.url_to_fs(where)
    kept.save("one", STATE)
    for name in (".one-half.pt", ".two-half.pt"):
        files.pipe_file(f"{root}/{name}", b"half")
    assert kept.names() == {"one"}
    kept.clear("one")
    assert {place.rpartition("/")[2] for place in files.ls(root, detail=False)} == {"one.pt", ".two-half.pt"}
    assert same(kept.load("one", "cpu"))
    kept.drop("two")
    assert {place.rpartition("/")[2] for place in files.ls(root, detail=False)} == {"one.pt"}


def test_a_write_that_fails_leaves_what_was_there(where, monkeypatch):
    kept = Checkpoints(where)
    kept.save("one", STATE)

    def full(state, place):
        if isinstance(place, str | os.PathLike):
            with open(place, "wb") as file:
                file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(Refused, match=r"stacks: the checkpoint cannot be written: No space left on device .make room"):
        kept.save("one", {"epoch": 4})
    assert same(kept.load("one", "cpu"))


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("nowhere://there", "nowhere://there: is no place for checkpoints: Protocol not known: nowhere"),
        ("/dev/null/stacks", "/dev/null/stacks: is no place for checkpoints: Not a directory"),
        ("/sys/kernel", "/sys/kernel: is no place for checkpoints: "),
        ("http://127.0.0.1:1/stacks", "http://127.0.0.1:1/stacks: is no place for checkpoints: "),
        ("reference://there", "reference://there: is no place for checkpoints: "),
    ],
)
def test_a_place_where_nothing_can_be_kept_is_refused(where, message):
    with pytest.raises(Refused, match=message):
        Checkpoints(where)


def test_only_a_full_disk_wants_room(where, monkeypatch):
    kept = Checkpoints(where)
    monkeypatch.setattr(torch, "save", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    with pytest.raises(Refused, match=r"cannot be written: Permission denied .mend that and run the same command"):
        kept.save("one", STATE)


@pytest.mark.parametrize("name", ["runs [1]", "all*", "what?"])
def test_a_place_may_be_called_as_it_likes(tmp_path, name):
    kept, neighbour = Checkpoints(tmp_path / name), Checkpoints(tmp_path / "all of them")
    neighbour.save("other", STATE)
    kept.save("one", STATE)
    (tmp_path / name / ".one-half.pt").write_bytes(b"half")
    assert kept.names() == {"one"}
    kept.clear("one")
    assert [path.name for path in (tmp_path / name).iterdir()] == ["one.pt"]


def test_a_place_is_left_when_nothing_is_kept_there(where):
    kept = Checkpoints(where)
    files, root = fsspec.core.url_to_fs(where)
    kept.save("one", STATE)
    kept.leave()
    assert kept.names() == {"one"}
    kept.drop("one")
    kept.leave()
    assert not files.exists(root)
    assert kept.names() == set()
    kept.save("one", STATE)  # another process has given it up meanwhile
    assert kept.names() == {"one"}


def test_what_is_damaged_is_no_state(where):
    kept = Checkpoints(where)
    kept.save("one", STATE)
    files, root = fsspec.core.url_to_fs(where)
    files.pipe_file(f"{root}/one.pt", b"nonsense")
    with pytest.raises(Exception, match=r".") as error:
        kept.load("one", "cpu")
    assert not isinstance(error.value, OSError)


def test_a_place_is_told_so_that_any_process_finds_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for given, right in {"a b": "a b", "~/c": "home/c", f"file://{tmp_path}/d": "d"}.items():
        assert Checkpoints(given).where == str(tmp_path / right)
        assert (tmp_path / right).is_dir()
    assert Checkpoints("memory://there").where == "memory://there"
