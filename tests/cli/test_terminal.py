"""No character of a corpus, a manifest or a file name that a terminal obeys gets through any command, JSON included."""

import json
import logging
import os
import subprocess
import sys

import pytest

from conceptloader.base.terminal import printable
from conceptloader.cli import main
from conceptloader.cli.output import Output, configure_logging
from conceptloader.errors import ConceptloaderError, ConfigError, ReadError
from tests.corpora.records import write_rows

EVIL = "\x1b[31m \x9b31m \x07 \r \x7f \u202e \u2066 \u200b \u2028 \U000e0041 \x00"
IN_NAMES = EVIL.replace("\x00", "") + "end"
SAFE = [" ", "\n"]


def check(text):
    assert all(c.isprintable() or c in SAFE for c in text), ascii(text)


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / IN_NAMES
    folder.mkdir()
    spans = [{"start": 0, "end": 3, "concepts": [IN_NAMES]}]
    records = [{"id": IN_NAMES, "text": "red " + EVIL, "spans": spans, "metadata": {IN_NAMES: IN_NAMES}}] * 9
    write_rows(folder / "in.jsonl", records)
    (folder / "names.txt").write_text(json.dumps([IN_NAMES]))
    more = ["--vocabulary", str(folder / "names.txt"), "--workers", "1"]
    assert main(["build", str(folder / "in.jsonl"), "--out", str(folder / "ds"), "--tokenizer", "bytes", *more]) == 0
    (folder / "run.yaml").write_text("seq_len: 16\ndatasets:\n  d: {path: ds}\ntracks: {concepts: {}}\n")
    return folder


COMMANDS = """
inspect DIR/ds
inspect DIR/ds --document-number 0
inspect DIR/ds --window 0 --seq-len 16
inspect DIR/ds --document EVIL
inspect DIR/nowhere
inspect DIR/ds EVIL
inspect DIR/ds --random 3 --documents
inspect DIR/ds --stats
verify DIR/ds
subset DIR/ds DIR/ds --out DIR/joined
trace DIR/run.yaml --sample 0
locate DIR/run.yaml --document EVIL
trace DIR/run.yaml --global-batch-size 4 --step 0
build DIR/in.jsonl --out DIR/other --tokenizer bytes
init DIR/in.jsonl --out DIR/found.yaml
init DIR/in.jsonl --out DIR/missing/found.yaml
trace DIR/no.yaml --sample 0
"""


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_no_command_lets_them_through(dataset, as_json, capfd, monkeypatch):
    for command in COMMANDS.strip().splitlines():
        words = [word.replace("DIR", str(dataset)).replace("EVIL", IN_NAMES) for word in command.split()]
        capfd.readouterr()
        try:
            main([*words, "--json"] if as_json else words)
        except SystemExit:
            assert "EVIL" in command
        printed = capfd.readouterr()
        check(printed.out)
        check(printed.err)
        assert "Traceback" not in printed.err, command
        if as_json and printed.out:
            json.loads(printed.out)
    main(["inspect", str(dataset / "ds"), "--document-number", "0", "--json"])
    (found,) = json.loads(capfd.readouterr().out)["samples"]
    assert found["text"] == "red " + EVIL, "JSON says the same"
    assert found["documents"][0]["id"] == IN_NAMES


def test_logs_and_errors(capsys):
    configure_logging(verbose=True, quiet=False)
    logging.getLogger("conceptloader.test").warning("%s", EVIL)
    Output(False).error(ConfigError(EVIL + "\nmore"))
    check(capsys.readouterr().err)
    for error in (ConceptloaderError(EVIL), ConfigError(EVIL), ReadError(EVIL, errno=5)):
        check(str(error))
        check("".join(__import__("traceback").format_exception(error)))


def test_a_defect_is_told_as_one(capsys, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError(EVIL)

    monkeypatch.setattr("conceptloader.cli.trace.open_run", broken)
    assert main(["trace", "x", "--step", "0"]) == 1
    printed = capsys.readouterr().err
    check(printed)
    assert "Traceback" in printed
    assert "ZeroDivisionError" in printed
    assert "this is a bug in conceptloader" in printed


def test_a_terminal_that_knows_no_umlauts(dataset):
    """And JSON stays JSON there."""
    command = [sys.executable, "-m", "conceptloader", "inspect", dataset / "ds", "--document-number", "0"]
    found = {}
    for encoding, more in (("ascii", ["--json"]), ("latin-1", [])):
        environment = {**os.environ, "PYTHONIOENCODING": encoding}
        done = subprocess.run([*command, *more], env=environment, capture_output=True, check=True)
        found[encoding] = done.stdout.decode(encoding)
    assert json.loads(found["ascii"])["samples"][0]["text"] == "red " + EVIL


def test_stdout_on_a_full_disk(dataset):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "conceptloader", "inspect", dataset / "ds"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "word",
    [
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        "\u0915\u094d\u200d\u0937",
        "\U0001f469\u200d\U0001f469",
        "\u2764\ufe0f\u200d\U0001f525",
    ],
)
def test_joiners_within_words_stay(word):
    assert printable(f"a {word} b") == f"a {word} b"
    for joiner in "\u200c\u200d":
        outside = f"{joiner}{word}", f"{word}{joiner}", f"a{joiner}b", f"{word}{joiner * 2}{word}", f"{word}{joiner} "
        for text in outside:
            assert joiner.encode("unicode_escape").decode() in printable(text)
