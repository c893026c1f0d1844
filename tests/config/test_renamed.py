"""Names of earlier checkouts answer with the ones that took their place."""

from importlib import import_module

import pytest

import conceptloader as cl
from conceptloader import trace
from conceptloader.cli import RENAMED, main, make_parser
from conceptloader.cli.recipe import RENAMED_OPTIONS
from conceptloader.errors import ConfigError
from tests.raises import raises

DATASETS = "datasets: {a: {path: x}}"


@pytest.mark.parametrize(
    ("text", "path", "now"),
    [
        ("concepts: {}", "concepts", "tracks"),
        ("roots: []", "roots", "allowed_roots"),
        ("on_new_seq_len: restart", "on_new_seq_len", "on_seq_len_change"),
        ("exclude: [{at: 0, view: x}]", "exclude[0].view", "subset"),
        *(
            (f"outputs: {{{old}: true}}", f"outputs.{old}", now)
            for old, now in [
                ("loss_mask_borders", "mask_document_boundaries"),
                ("eos_loss", "loss_on_eos"),
                ("random", "sample_seed"),
            ]
        ),
        *(
            (f"loader: {{{old}: 1}}", f"loader.{old}", now)
            for old, now in [
                ("threads", "num_threads"),
                ("prefetch", "prefetch_batches"),
                ("check_files", "verify_files"),
            ]
        ),
    ],
)
def test_keys_of_configurations(text: str, path: str, now: str, tmp_path) -> None:
    (tmp_path / "run.yaml").write_text(f"{DATASETS}\n{text}\n")
    with raises(ConfigError, path=path) as raised:
        cl.load_config(tmp_path / "run.yaml")
    assert f"`{now}`" in raised.value.fix


@pytest.mark.parametrize("text", ["weights: given", "weights: sizes", "packing: {overflow: crop}"])
def test_values_of_configurations(text: str, tmp_path) -> None:
    (tmp_path / "run.yaml").write_text(f"{DATASETS}\n{text}\n")
    with pytest.raises(ConfigError, match=r"expected .*(manual|by_size|truncate)"):
        cl.load_config(tmp_path / "run.yaml")


@pytest.mark.parametrize(
    ("module", "old", "now"),
    [
        (cl, "join", "concat"),
        (cl, "convert", "reencode"),
        (cl, "create_build", "create_writer"),
        (cl, "SpanRules", "SpanAlignment"),
        (cl, "EndlessError", "UnboundedLoaderError"),
        (cl, "soft_or", "noisy_or"),
        (trace, "when_concept", "locate_concept"),
        (trace, "Recorder", "BatchRecorder"),
        (trace, "left_out_since", "excluded_since"),
    ],
)
def test_names_in_python(module: object, old: str, now: str) -> None:
    assert hasattr(module, now)
    with pytest.raises(AttributeError, match=f"'{old}'; it is now '{now}'"):
        getattr(module, old)


@pytest.mark.parametrize("old", RENAMED)
def test_commands(old: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([old, "x"])
    message = f"{old!r} is now {RENAMED[old][0]!r}, for example: conceptloader {RENAMED[old][1]}"
    assert message in capsys.readouterr().err


def test_options(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = next(action.choices for action in make_parser()._actions if isinstance(action.choices, dict))
    options = {option for command in commands.values() for option in command._option_string_actions}
    assert not options & RENAMED_OPTIONS.keys()
    assert {now.split()[0] for now in RENAMED_OPTIONS.values()} <= options
    for old, now in RENAMED_OPTIONS.items():
        with pytest.raises(SystemExit, match="2"):
            main(["build", "x", f"{old}=3"])
        assert f"{old!r} is now {now!r}" in capsys.readouterr().err
    (tmp_path / "recipe.yaml").write_text("max-lost-spans: 3\n")
    with pytest.raises(SystemExit, match="2"):
        main(["build", "x", "--recipe", str(tmp_path / "recipe.yaml")])
    assert "max-unaligned-spans" in capsys.readouterr().err


def test_keys_of_nanotron() -> None:
    options = import_module("conceptloader.integrations.nanotron_lm.options")
    with raises(ConfigError, path="dataset.nanotron.consume", fix="`model_inputs`"):
        options.NanotronOptions.parse({"consume": {"concepts_ids": "last"}}, "dataset.nanotron")


def test_two_vocabularies_of_one_track(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.jsonl").write_text('{"id": "a", "text": "a b"}\n')
    (tmp_path / "names.txt").write_text("x\n")
    names = str(tmp_path / "names.txt")
    given = ["--tokenizer", "bytes", "--vocabulary", names, "--vocabulary", f"concepts={names}"]
    assert main(["build", str(tmp_path / "in.jsonl"), "--out", str(tmp_path / "out"), *given]) == 2
    assert "--vocabulary: found two files for track 'concepts'" in capsys.readouterr().err
