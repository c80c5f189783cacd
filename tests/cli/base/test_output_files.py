"""Files that a command writes at its end."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from cli.base.errors import BadInput, CliError
from cli.base.output_files import check_writable, write


def test_what_was_there_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    report.write_bytes(b"old")
    before = report.stat().st_ino
    write(report, b"new")
    assert report.read_bytes() == b"new"
    assert report.stat().st_ino != before, "another file took its place"
    assert list(tmp_path.iterdir()) == [report]


def test_a_link_stays_one_and_the_mode_of_a_file_too(tmp_path: Path) -> None:
    report, latest = tmp_path / "report.html", tmp_path / "latest.html"
    report.write_bytes(b"old")
    report.chmod(0o600)
    write(report, b"new")
    assert report.stat().st_mode & 0o777 == 0o600
    latest.symlink_to(report)
    write(latest, b"newer")
    assert latest.is_symlink()
    assert report.read_bytes() == b"newer"


def test_a_file_of_a_folder_that_must_not_be_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may change any folder, so the refusal is raised here."""
    report = tmp_path / "report.html"
    report.write_bytes(b"old")

    def refused(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "replace", refused)
    write(report, b"new")
    assert report.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [report]


def test_a_device_is_written_to_and_stays_one() -> None:
    full = Path("/dev/full")
    with pytest.raises(CliError, match="/dev/full: No space left on device: make room there"):
        write(full, b"new")
    assert full.is_char_device()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CliError, match=r"none/report\.html: No such file"):
        write(tmp_path / "none" / "report.html", b"new")


def test_a_file_that_is_read_is_not_written_under_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source, hard, soft = Path("r.csv"), Path("hard.csv"), Path("soft.csv")
    source.write_text("a\nx\n", encoding="utf-8")
    hard.hardlink_to(source)
    soft.symlink_to(source)
    for name, other in (("r.csv", ""), ("./r.csv", ""), ("hard.csv", " as r.csv"), ("soft.csv", " as r.csv")):
        with pytest.raises(BadInput) as refused:
            check_writable("-o", Path(name), [None, "user/heads", "r.csv"])
        assert str(refused.value) == f"-o: {Path(name)} is in use{other}: name another file to write"
    with source.open(encoding="utf-8") as stdin, monkeypatch.context() as patch:
        patch.setattr("sys.stdin", stdin)
        with pytest.raises(BadInput, match=r"-o: r.csv is in use as standard input: name another"):
            check_writable("-o", source, ["-"])
    with pytest.raises(BadInput, match=r"--errors: new.csv is in use: name another"):
        check_writable("--errors", Path("new.csv"), ["new.csv"])
    check_writable("-o", Path("copy.csv"), ["r.csv", "-", tmp_path])
    check_writable("-o", Path("/dev/null"), ["/dev/null"])
