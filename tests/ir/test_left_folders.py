"""What a killed process left beside a file is told from what others put there under such a name, which stays."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ir.files import identity, staged
from ir.lock_files import LOCK
from ir.temporary import TemporaryFolder, sweep

pytestmark = pytest.mark.skipif(not hasattr(os, "getuid"), reason="whether a process lives cannot be told")


def side(place: Path, name: str) -> bool:
    return name == f"{place.name}.data"


def write(folder: Path) -> None:
    with staged(folder / "m", is_side=side) as temporary:
        temporary.write_text("new")
    assert (folder / "m").read_text() == "new"


def planted(folder: Path, lock: bytes | None = None) -> Path:
    made = folder / ".m.0123456789abcdef.partial"
    made.mkdir()
    if lock is not None:
        (made / LOCK).write_bytes(lock)
    return made


JOURNALS = {
    "a file of others": lambda place: f"- {identity(place)} {place.name}\0.".encode(),
    "the folder above": lambda place: b"- 1:2:3 ..\0.",
    "a path": lambda place: b"- x a/b\0.",
    "a word": lambda place: b"xx\0.",
    "another sign": lambda place: f"* {identity(place)} m.data\0.".encode(),
    "no UTF-8": lambda place: b"\xff\xfe\0.",
    "a file without end": lambda place: b"- 1:2:3 m.data\0" * 1_300_000 + b".",
}


@pytest.mark.parametrize("journal", JOURNALS.values(), ids=JOURNALS)
def test_a_journal_that_is_none_of_ours_moves_nothing(tmp_path: Path, journal: Callable[[Path], bytes]) -> None:
    victim = tmp_path / "victim.txt"
    victim.write_text("precious")
    folder = planted(tmp_path, journal(victim))
    write(tmp_path)
    assert victim.read_text() == "precious" and sorted(p.name for p in folder.iterdir()) == [LOCK]


@pytest.mark.parametrize("kind", ["device", "file", "pipe", "folder"])
def test_a_lock_that_is_no_plain_file_is_not_read(tmp_path: Path, kind: str) -> None:
    victim = tmp_path / "victim.txt"
    victim.write_bytes(JOURNALS["a file of others"](tmp_path / "m.data"))
    lock = planted(tmp_path) / LOCK
    if kind == "pipe":
        os.mkfifo(lock)
    elif kind == "folder":
        lock.mkdir()
    else:
        lock.symlink_to("/dev/zero" if kind == "device" else victim)
    write(tmp_path)
    assert os.path.lexists(lock) and victim.exists()


def test_what_lies_behind_a_link_is_not_moved(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "m.data").write_text("precious")
    folder = planted(tmp_path, b"")
    (folder / ".ir.left").symlink_to(other)
    (folder / ".ir.old").symlink_to(other)
    write(tmp_path)
    assert (other / "m.data").read_text() == "precious" and not folder.exists()


def test_a_folder_of_another_user_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, own = planted(tmp_path, b""), os.getuid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: own + 1)
        write(tmp_path)
    assert folder.exists()
    write(tmp_path)
    assert not folder.exists()


def test_side_files_of_a_killed_process_go(tmp_path: Path) -> None:
    (tmp_path / "m").write_text("old")
    data = tmp_path / "m.data"
    data.write_text("moved already")
    folder = planted(tmp_path, f"+ {identity(data)} m.data\0.".encode())
    (folder / "m").write_text("new, not moved yet")
    write(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["m"]


def test_a_temporary_folder_whose_lock_is_a_link_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    left = tmp_path / "kind-0123456789abcdef"
    left.mkdir()
    (left / LOCK).symlink_to("/dev/zero")
    sweep.cache_clear()
    made = TemporaryFolder("kind")
    assert left.exists() and made.path.exists()


@pytest.mark.parametrize("name", ["mydata", "n", "m.data.old", ".ir.other"])
def test_a_folder_with_what_no_export_writes_stays_whole(tmp_path: Path, name: str) -> None:
    folder = planted(tmp_path, b"")
    (folder / name).write_text("precious")
    (folder / "m.data").write_text("a side file")
    write(tmp_path)
    assert (folder / name).read_text() == "precious"
    assert (folder / "m.data").exists() and (folder / LOCK).exists()
    (folder / name).unlink()
    write(tmp_path)
    assert not folder.exists()
