"""Options that do not go together, options in a file, help in two lengths."""
# ruff: noqa: F811

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import conceptloader as cl
from conceptloader.cli import main
from tests.cli.test_data_commands import Shell, dataset, shell, source  # noqa: F401 - fixtures
from tests.corpora.records import write_rows


def test_a_vocabulary_is_of_concepts_or_of_the_track_that_is_named(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    spans = [{"start": 0, "end": 1, "concepts": ["b"]}]
    Path("in.jsonl").write_text(json.dumps({"text": "A cat", "spans": spans, "spans_topic": spans}) + "\n")
    folder = tmp_path / "date=today"  # as Hive names folders
    folder.mkdir()
    (folder / "names.txt").write_text("a\nb\n")
    words = ["build", "in.jsonl", "--tokenizer", "bytes", "--workers", "1", "--out"]
    named = ["--vocabulary", folder / "names.txt", "--vocabulary", f"topic={folder / 'names.txt'}"]
    shell(*words, "out", *named)
    made = cl.open_dataset("out")
    assert [made.vocabulary(track) for track in ("concepts", "topic")] == [["a", "b"]] * 2
    for wrong in ("topic=", "=names.txt", ""):
        with pytest.raises(SystemExit, match=r"^2$"):
            main([*words, "other", "--vocabulary", wrong])
        assert "expected FILE or TRACK=FILE" in capsys.readouterr().err
    twice = "--vocabulary", named[1], "--vocabulary", f"concepts={named[1]}"
    assert main([*map(str, (*words, "other", *twice))]) == 2
    assert "--vocabulary: found 'concepts' twice" in capsys.readouterr().err


def test_the_list_of_commands_imports_little() -> None:
    heavy = ("numpy", "yaml", "tqdm", "dataclasses", "importlib.metadata", "torch")
    script = f"import sys, atexit; atexit.register(lambda: print({{*{heavy}}} & {{*sys.modules}})); " + (
        "from conceptloader.cli import main; main(['--help'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "annotate" in done.stdout
    assert done.stdout.endswith("set()\n"), done.stdout


@pytest.mark.parametrize(
    ("words", "code", "messages"),
    [
        ("help", 0, ["Datasets:", "docs/troubleshooting.md"]),
        ("help column", 0, ["--finish"]),
        ("help bogus", 2, ["unknown command 'bogus'"]),
        ("build", 2, ["no INPUT, no --out, no --tokenizer"]),
        ("build --recipe none.yaml", 2, ["none.yaml: cannot be read: No such file"]),
        ("adopt corpus.jsonl --out out", 2, ["of text: conceptloader build"]),
        ("trace --run-log nowhere --step 3", 2, ["found no directory nowhere"]),
        ("locate run.yaml", 2, ["--document --documents"]),
        ("doctor run.yaml", 2, ["line 2", "YAML allows no tab"]),
    ],
)
def test_mistakes_are_named(
    words: str,
    code: int,
    messages: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("corpus.jsonl").write_text('{"text": "a"}\n')
    Path("run.yaml").write_text("datasets:\n\ta: {path: a}\n")
    try:
        found = main(words.split())
    except SystemExit as error:
        found = int(str(error))
    shown = capsys.readouterr()
    text = shown.err if code else shown.out
    assert found == code
    assert all(message in text for message in messages), text
    assert not code or len(text.splitlines()) <= 2  # no list of options before it


@pytest.mark.parametrize("command", ["build", "annotate"])
def test_help_takes_two_screens(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert len(capsys.readouterr().out.splitlines()) <= 120


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspect", "DS", "--random", "2", "--documents", "--seq-len", "8"], "found 8 with whole documents"),
        (["inspect", "DS", "--random", "2", "--top", "3"], "--top without --stats"),
        (["inspect", "DS", "--seed", "3"], "--seed without --random"),
        (["inspect", "DS", "--window", "0", "--seq-len", "8", "--documents"], "--documents without --random"),
        (["inspect", "DS", "--stats", "--seq-len", "8"], "--stats and --seq-len"),
        (["inspect", "DS", "--track", "concepts"], "--track without --stats"),
        (["build", "--out", "OUT", "--tokenizer", "bytes"], "found no INPUT"),
    ],
)
def test_options_that_would_be_passed_over(
    dataset: Path, source: Path, tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = {"DS": dataset, "IN": source, "OUT": tmp_path / "out"}
    assert main([str(paths.get(word, word)) for word in arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_recipe_says_what_the_command_line_would(
    shell: Shell, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [
        {"doc": f"d{k}", "text": "A cat", "spans_topic": [{"start": 0, "end": 1, "concepts": [1]}]} for k in range(3)
    ]
    write_rows(Path("in.jsonl"), rows)
    Path("names.txt").write_text("a\nb\n")
    Path("build.yaml").write_text(
        "inputs: [in.jsonl]\nout: by-recipe\ntokenizer: bytes\ncolumn: {id: doc}\nno-eos: true\noverwrite: false\n"
        "vocabulary: {topic: names.txt}\nworkers: 1\n"
    )
    shell("build", "--recipe", "build.yaml")
    words = ["in.jsonl", "--tokenizer", "bytes", "--column", "id=doc", "--no-eos", "--vocabulary", "topic=names.txt"]
    shell("build", *words, "--workers", "1", "--out", "by-words")
    one, other = (cl.open_dataset(name) for name in ("by-recipe", "by-words"))
    assert (one.num_tokens, one.stream_fingerprint) == (15, other.stream_fingerprint)
    assert one.tracks_fingerprint == other.tracks_fingerprint
    shell("build", "--recipe", "build.yaml", "--out", "elsewhere", "--eos-span=none")  # the command line wins
    assert cl.open_dataset("elsewhere").stream_fingerprint == one.stream_fingerprint
    Path("second.jsonl").write_text('{"doc": "e", "text": "Two", "spans_topic": []}\n')
    for number, words in enumerate(
        [
            ["second.jsonl", "--recipe", "build.yaml", "--out", "second0"],
            ["--recipe", "build.yaml", "--out", "second1", "--quiet", "second.jsonl"],
            ["--recipe=build.yaml", "--out", "second2", "--no-eos", "--", "second.jsonl"],
        ]
    ):
        shell("build", *words)
        assert cl.open_dataset(f"second{number}").document_id(0) == "e"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tokeniser: bytes", "r.yaml: tokeniser: found an unknown option 'tokeniser'"),
        ("shard_input_bytes: 5", "did you mean shard-input-bytes?"),
        ("template-variable: {day: [2024-05-01]}", "r.yaml: template-variable: found Object of type date"),
        ("recipe: r.yaml", "unknown option 'recipe'"),
        ("no-eos: 1", "r.yaml: no-eos: found 1, expected true or false"),
        ("workers: [1, 2]", "r.yaml: workers: found [1, 2], expected a single value"),
        ("tokenizer: true", "r.yaml: tokenizer: found True, expected text"),
        ("tokenizer:", "r.yaml: tokenizer: found None, expected text"),
        ("ignore-column: [[a]]", "r.yaml: ignore-column: found ['a'], expected text"),
        ("column: {text: [a]}", "r.yaml: column: found ['a'], expected text"),
        ("inputs: a", "r.yaml: inputs: found 'a', expected a list"),
        ("- a", "r.yaml: found list, expected options"),
        ("out: a\nout: b", "found the key 'out' twice"),
        ("workers: 0", "r.yaml: workers: found '0', expected an integer of 1 or more"),
        ("align: odd", "r.yaml: align: found 'odd', expected one of first"),
        ("column: {text: ''}", "r.yaml: column: found 'text='"),
    ],
)
def test_a_wrong_recipe(
    tmp_path: Path, source: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["build", str(source), "--out", str(tmp_path / "out"), "--recipe", str(tmp_path / "r.yaml")])
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_two_recipes_and_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def told(*arguments: Any) -> str:
        with pytest.raises(SystemExit) as end:
            main(["build", "x", "--out", str(tmp_path / "out"), *map(str, arguments)])
        assert end.value.code in (1, 2)
        return capsys.readouterr().err

    (tmp_path / "r.yaml").write_text("workers: 1")
    assert "found 2 files, expected one file" in told("--recipe", tmp_path / "r.yaml", "--recipe", tmp_path / "r.yaml")
    assert "none.yaml" in told("--recipe", tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["biuld", "x"], "did you mean build?"),
        (["adopt", "a.bin"], "required: --out"),
        (["build", "x", "--out", "y", "--workers", "0"], "--workers: found '0', expected an integer of 1 or more"),
        (["inspect", "x", "--root", "nowhere"], "--root: found 'nowhere', expected a directory that is there"),
        (["locate", "x.yaml", "--docment", "a"], "--docment: did you mean --document?"),  # it is required
        (["inspect", "x", "--windw=3"], "unrecognized arguments: --windw=3; --windw: did you mean --window?"),
        (["inspect", "x", "--zzz", "--seq", "8"], "unrecognized arguments: --zzz\n"),
    ],
)
def test_wrong_words(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        main(words)
    assert said in capsys.readouterr().err
