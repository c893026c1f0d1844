"""One build at a time in a directory; the lock ends with its process; tasks of one build share it."""

import errno
import fcntl
import json
import logging
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conceptloader.cli import main
from conceptloader.errors import ConfigError
from conceptloader.format.tools.derived import new_directory
from conceptloader.storage.lock import LOCK, build_lock
from tests.raises import raises

SLOW = """
import sys, time
from conceptloader.ingest.build.builder import build_dataset
from conceptloader.ingest.build.options import Options
from conceptloader.ingest.records.inputs import find_sources
def wait(progress):
    print("running", flush=True)
    time.sleep(600)
sources = find_sources(sys.argv[1:2])
build_dataset(sources, sys.argv[2], Options(tokenizer="bytes"), watch=lambda total, done: wait)
"""


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"text": f"document {i}"}) + "\n" for i in range(100)))
    return path


def command(source, out):
    return ["build", str(source), "--out", str(out), "--tokenizer", "bytes", "--workers", "1"]


def test_another_build_is_running(tmp_path, source, capsys):
    out = tmp_path / "out"
    first = subprocess.Popen([sys.executable, "-c", SLOW, source, out], stdout=subprocess.PIPE)
    try:
        assert first.stdout.readline() == b"running\n"
        assert main(command(source, out)) == 2
        assert f"{out}: another build is running there (process {first.pid} on " in capsys.readouterr().err
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
        first.stdout.close()
    assert (out / LOCK).exists(), "the file stays behind, and nothing else of the lock"
    assert main(command(source, out)) == 0
    assert not (out / LOCK).exists()


def test_tasks_of_one_build_share_it(tmp_path):
    with (
        build_lock(tmp_path, shared=True),
        build_lock(tmp_path, shared=True),
        raises(ConfigError, found="another build is running there"),
        build_lock(tmp_path),
    ):
        pass
    with (
        build_lock(tmp_path),
        raises(ConfigError, found="another build is running there"),
        build_lock(tmp_path, shared=True),
    ):
        pass
    assert not os.listdir(tmp_path)


def test_a_lock_whose_file_was_removed_meanwhile_is_none(tmp_path, monkeypatch):
    """The holder removes the file between our opening and our locking it."""
    real, calls = fcntl.flock, 0

    def flock(descriptor, kind):
        nonlocal calls
        calls += 1
        if calls == 1:
            os.unlink(tmp_path / LOCK)
        real(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", flock)
    with build_lock(tmp_path):
        assert calls == 2
        assert (tmp_path / LOCK).exists()


def test_a_file_system_without_locks(tmp_path, source, monkeypatch, caplog):
    def flock(descriptor, kind):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    with caplog.at_level(logging.WARNING, "conceptloader"), build_lock(tmp_path / "out"):
        pass
    assert "has no locks" in caplog.text
    assert main(command(source, tmp_path / "out")) == 0


def test_a_complete_dataset_needs_no_lock(tmp_path, source, monkeypatch):
    out = tmp_path / "out"
    assert main(command(source, out)) == 0
    monkeypatch.setattr(fcntl, "flock", lambda *_: pytest.fail("it may be on a read-only file system"))
    assert main(command(source, out)) == 0


COMMANDS = """
build {source} --tokenizer bytes
annotate {ds} {source} --track new
adopt {tokens} --dtype uint16
subset {ds} {ds}
"""


@pytest.mark.parametrize("kind", ["a file", "a link to nowhere", "below a file"])
@pytest.mark.parametrize("words", COMMANDS.strip().splitlines())
def test_out_is_taken(tmp_path, source, capsys, words, kind):
    taken = tmp_path / "taken"
    if kind == "a link to nowhere":
        taken.symlink_to(tmp_path / "nowhere")
    else:
        taken.write_text("precious")
    out = taken / "deeper" if kind == "below a file" else taken
    ds, tokens = tmp_path / "ds", tmp_path / "tokens.bin"
    assert main(command(source, ds)) == 0
    tokens.write_bytes(bytes(100))
    words = shlex.split(words.format(source=source, ds=ds, tokens=tokens))
    assert main([*words, "--out", str(out)]) in (1, 2)
    assert str(taken) in capsys.readouterr().err
    assert taken.is_symlink() or taken.read_text() == "precious"


def test_what_a_killed_process_worked_on_is_removed_by_the_next(tmp_path):
    """As of `annotate`; what a living one works on, or what others have there under such a name, stays."""
    code = """
import sys, time
from conceptloader.format.tools.derived import new_directory
with new_directory(sys.argv[1]) as working:
    open(f"{working}/large", "w").write("x")
    print(working, flush=True)
    time.sleep(600)
"""
    alike = tmp_path / ".ds.0123456789abcdef.tmp"
    alike.write_text("a file")
    process = subprocess.Popen([sys.executable, "-c", code, tmp_path / "ds"], stdout=subprocess.PIPE, text=True)
    abandoned = Path(process.stdout.readline().strip())
    with new_directory(tmp_path / "ds") as working:
        assert {entry.name for entry in tmp_path.iterdir()} == {alike.name, abandoned.name, Path(working).name}
        assert (abandoned / "large").exists()
    (tmp_path / "ds").rmdir()
    process.kill()
    process.wait()
    with new_directory(tmp_path / "ds"):
        pass
    assert {entry.name for entry in tmp_path.iterdir()} == {alike.name, "ds"}
