"""What sessions cannot show of the command: its help, pipes, the home folder, columns of tokens."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import conceptloader as cl
from conceptloader.cli import COMMANDS, main
from conceptloader.testing import random_documents, write_dataset


def test_help_teaches(checkout, capsys):
    """Each command shows an example; without one the list is shown, which the page has, too."""
    for words in (["--help"], *([name, "--help"] for name in COMMANDS)):
        with pytest.raises(SystemExit, match=r"^0$"):
            main(words)
        assert f"\n  conceptloader {words[0].removeprefix('--help')}" in capsys.readouterr().out, words
    with pytest.raises(SystemExit, match=r"^2$"):
        main([])
    shown = capsys.readouterr().err
    assert all(f"\n  {name} " in shown for name in COMMANDS)
    page = (checkout / "docs/cli.md").read_text()
    assert sorted(line.split("`")[1] for line in page.splitlines() if line.startswith("| `")) == sorted(COMMANDS)
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"conceptloader {cl.__version__}\n"


def test_help_is_short_and_completion_knows_all(capsys):
    """`build --help` shows ten options, --help-all each; bash completes commands and every option."""
    shown = []
    for words in ("build --help", "build --help-all", "help build"):
        with pytest.raises(SystemExit, match=r"^0$"):
            main(words.split())
        shown.append(set(re.findall(r"^  (--[a-z-]+)", capsys.readouterr().out, re.MULTILINE)))
    assert len(shown[0]) == 10
    assert shown[0] < shown[1]
    assert shown[2] == shown[0]
    assert main(["completion"]) == 0
    script = capsys.readouterr().out
    for words, found in (("conceptloader tra", "trace"), ("conceptloader build --pad", "--pad-to-multiple-of")):
        last = len(words.split()) - 1
        complete = f"{script}COMP_WORDS=({words}); COMP_CWORD={last}; _conceptloader; echo ${{COMPREPLY[@]}}"
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", complete], capture_output=True, text=True, env={**os.environ, "PATH": path}
        )
        assert done.stdout == f"{found}\n"


def test_the_list_of_commands_imports_little():
    heavy = ("numpy", "yaml", "tqdm", "dataclasses", "importlib.metadata", "torch")
    script = f"import sys, atexit; atexit.register(lambda: print({{*{heavy}}} & {{*sys.modules}})); " + (
        "from conceptloader.cli import main; main(['--help'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "annotate" in done.stdout
    assert done.stdout.endswith("set()\n"), done.stdout


def test_a_reader_that_leaves(tmp_path):
    data = write_dataset(tmp_path / "data", random_documents(12, seed=1, mean_length=40))
    command = f"{sys.executable} -m conceptloader inspect {data} --random 12 --documents --json | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, timeout=60, check=True)
    assert done.stdout == b"{\n"
    assert b"Traceback" not in done.stderr
