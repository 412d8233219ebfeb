"""Files that someone asked for: what stands in their place, and what becomes of it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from regard.console import Results
from regard.files import OutputError, output_to_its_end
from regard.view.page import write_page
from tests.cli.running import run


def page(path: Path) -> None:
    write_page({"text": "hello"}, path)


def picture(path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra view")
    from matplotlib.figure import Figure

    from regard.view.pictures import write_figure

    write_figure(Figure(figsize=(1, 1)), path)


def matrix(path: Path) -> None:
    with Results(path) as results:
        results.numbers([1.0, 2.0])


WRITERS = {"a.html": page, "a.svg": picture, "a.png": picture, "a.npy": matrix}
EACH = pytest.mark.parametrize(("name", "write"), WRITERS.items(), ids=WRITERS)
Writer = Callable[[Path], None]


@EACH
def test_a_link_stays_and_its_target_is_replaced_in_its_own_mode(name: str, write: Writer, tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / name
    target.write_text("before")
    target.chmod(0o600)
    link.symlink_to(target)
    write(link)
    assert link.is_symlink()
    assert len(target.read_bytes()) > 50
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "target"])


@EACH
def test_a_link_to_what_is_not_there_yet(name: str, write: Writer, tmp_path: Path) -> None:
    (tmp_path / name).symlink_to(tmp_path / "target")
    write(tmp_path / name)
    assert (tmp_path / "target").stat().st_size > 50
    (tmp_path / f"to-{name}").symlink_to(tmp_path / "nowhere" / "target")
    with pytest.raises(OutputError, match=r"there is no folder .*nowhere; make it first"):
        write(tmp_path / f"to-{name}")
    (tmp_path / f"round-{name}").symlink_to(tmp_path / f"round-{name}")
    with pytest.raises(OutputError, match=r"could not write .*round-"):
        write(tmp_path / f"round-{name}")


@pytest.mark.parametrize(("name", "write"), list(WRITERS.items())[:3], ids=list(WRITERS)[:3])
def test_a_pipe_is_written_into(name: str, write: Writer, tmp_path: Path) -> None:
    path, read = tmp_path / name, list[bytes]()
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()), daemon=True)
    reader.start()
    write(path)
    reader.join(10)
    assert len(read[0]) > 50
    assert path.is_fifo()
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_a_matrix_does_not_fit_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    os.mkfifo(path)
    reader = threading.Thread(target=path.read_bytes, daemon=True)
    reader.start()
    with pytest.raises(OutputError, match=r"a\.npy is a pipe, and how many rows"):
        matrix(path)
    assert path.is_fifo()


@EACH
def test_a_device_stays_one(name: str, write: Writer, tmp_path: Path) -> None:
    for minor in (3, 7):  # as /dev/null and /dev/full are; not those themselves, which others need
        path = tmp_path / f"{minor}-{name}"
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, minor))
            path.open("rb").close()
        except OSError:
            pytest.skip("only root may make a device, and not everywhere")
        if minor == 3:
            write(path)
        else:
            with pytest.raises(OutputError, match="No space left on device; free some space, or choose another place"):
                write(path)
        assert path.is_char_device()


@EACH
def test_a_file_that_may_not_be_written_to_is_left_alone(name: str, write: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, access = tmp_path / name, os.access
    path.write_text("before")
    path.chmod(0o444)
    # Root may write to everything, and tests may be root's.
    monkeypatch.setattr(os, "access", lambda file, mode: access(file, mode) and not (Path(file) == path and mode & os.W_OK))
    with pytest.raises(OutputError, match=r"may not be written to; choose another file, or change its permissions"):
        write(path)
    assert path.read_text() == "before"


@EACH
def test_no_folder_is_made_in_silence(name: str, write: Writer, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"there is no folder .*nowhere; make it first, or choose another"):
        write(tmp_path / "nowhere" / name)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / name).mkdir()
    with pytest.raises(OutputError, match="is a folder; name a file in it"):
        write(tmp_path / "folder" / name)
    with pytest.raises(OutputError, match="File name too long"):
        write(tmp_path / ("a" * 300 + name))
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@EACH
def test_whole_or_not_at_all(name: str, write: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / name).write_text("before")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=r"could not write .*: No space left on device; free some space"):
        write(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "before"


def test_a_file_given_to_root_stays_its_owners(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may give files away")
    path = tmp_path / "a.html"
    path.write_text("before")
    os.chown(path, 12345, 12345)
    page(path)
    assert (path.stat().st_uid, path.stat().st_gid) == (12345, 12345)


def test_the_verbs_say_so_before_they_work(tmp_path: Path) -> None:
    """No model is read for a page or picture that has no place: this one is not even there."""
    nowhere, model = tmp_path / "nowhere", ("--model", tmp_path / "none")
    for place in (("--out", nowhere / "a.html"), ("--png", nowhere / "plots")):
        done = run("view", "hello", *model, *place)
        assert (done.code, done.err.count("\n")) == (1, 1), done.err
        assert f"there is no folder {nowhere}; make it first" in done.err
    done = run("lengths", "--data", "none.tsv", *model, "--plot", nowhere / "a.svg")
    assert f"there is no folder {nowhere}; make it first" in done.err
    done = run("lengths", "--data", "none.tsv", *model, "--plot", tmp_path / "a.doc")
    assert "a picture ends in .png, .svg or .pdf" in done.err
    assert list(tmp_path.iterdir()) == []


def test_pictures_go_into_a_folder_that_was_asked_for(tmp_path: Path) -> None:
    from regard.view.pictures import make_folder

    make_folder(tmp_path / "plots")
    make_folder(tmp_path / "plots")
    assert (tmp_path / "plots").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="is a file; name a folder for the pictures"):
        make_folder(tmp_path / "file")


# Standard output


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("verb", ["--version", "--help", "models", "info gpt2 --format json", "demo"])
def test_a_full_disk_behind_what_is_printed_is_one_sentence(verb: str, unbuffered: str) -> None:
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "regard", *verb.split()]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=environment)
    assert done.returncode == 1
    assert done.stderr == "regard: could not write to standard output: No space left on device; free some space, or choose another place\n"


def test_another_error_is_not_taken_for_one_of_the_output() -> None:
    for error in (OSError(28, "No space left on device"), FileNotFoundError(2, "No such file", "a")):
        with pytest.raises(OSError, match=error.strerror) as raised, output_to_its_end():
            raise error
        assert raised.value is error
    with pytest.raises(SystemExit), output_to_its_end():
        sys.exit(3)
