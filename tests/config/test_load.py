import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from conceptloader.blend import Config, DatasetConfig, load_config, open_blend
from conceptloader.errors import ConfigError, FormatError, ReadError
from conceptloader.order.mixture import Phase
from tests.raises import raises

ROOT = Path(__file__).resolve().parents[2]

SMALL = {"seq_len": 8, "datasets": {"web": {"path": "web", "weight": 0.7}, "code": {"path": "/data/code", "weight": 3}}}


def changed(**top):
    return {**SMALL, **top}


def web(**keys):
    return {**SMALL, "datasets": {**SMALL["datasets"], "web": {**SMALL["datasets"]["web"], **keys}}}


def test_defaults_and_paths(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        """
version: 1
seq_len: 4096
datasets:
  web: {path: data/web, weight: 0.7, split: [0.0, 0.98]}
  code: {path: ../code, weight: 3}
  remote: {path: "s3://bucket/x", weight: 1.0e-3}
quarantine:
  - {dataset: web, tokens: [5, 9]}
  - {dataset: code, file: bad/ranges.txt}
outputs: {position_ids: off}
"""
    )
    config = load_config(path)
    assert config.datasets["web"].path == str(tmp_path / "data/web")
    assert config.datasets["code"].path == str(tmp_path.parent / "code")
    assert config.datasets["remote"].path == "s3://bucket/x"
    assert config.quarantine[1].file == str(tmp_path / "bad/ranges.txt")
    assert config.datasets["web"].split == (0.0, 0.98)
    assert (config.seed, config.block, config.order, config.loader.timeout_s) == (1234, 64, "shuffled", 300)
    assert config.outputs.position_ids == "off"
    assert config.names == ["code", "remote", "web"]
    assert load_config(str(path)) == config


def test_round_trip_through_plain_data_and_yaml():
    config = load_config(
        changed(
            phases=[{"start": 100, "weights": {"web": 1}}],
            skip=[{"at": 7, "count": 3}],
            concepts={"concepts": {"layout": "ragged", "max_spans": 5}},
            outputs={"position_ids": "off"},
            roots=["/data"],
        )
    )
    plain = config.to_dict()
    assert load_config(plain) == config
    assert load_config(yaml.safe_load(yaml.safe_dump(plain))) == config
    assert "megatron_cache" not in plain


def test_plain_data_is_relative_to_base_dir_or_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_config(SMALL).datasets["web"].path == str(tmp_path / "web")
    assert load_config(SMALL, base_dir="/x").datasets["web"].path == "/x/web"
    assert load_config(SMALL, base_dir="/x").datasets["code"].path == "/data/code"


def test_defaults_fill_gaps_only():
    assert load_config(SMALL, defaults={"seed": 5, "seq_len": 99}).seq_len == 8
    assert load_config(SMALL, defaults={"seed": 5}).seed == 5
    assert load_config(changed(seed=None), defaults={"seed": 5}).seed == 5
    with raises(ConfigError, "sed", "an unknown key"):
        load_config(SMALL, defaults={"sed": 5})


def test_the_frameworks_sequence_length():
    config = load_config(changed(seq_len=None))
    assert config.with_seq_len(16).seq_len == 16
    assert config.with_seq_len(16).with_seq_len(16).seq_len == 16
    with raises(ConfigError, "seq_len", "found 16, but the framework's is 32"):
        config.with_seq_len(16).with_seq_len(32)


@pytest.mark.parametrize("outputs", [{"shared_labels": True}, {"loss_mask": False}, {"ignore_index": -100}])
def test_outputs_that_no_framework_takes(outputs):
    with pytest.raises(ConfigError, match=f"^outputs.{next(iter(outputs))}: expected .* with a framework"):
        load_config(changed(outputs=outputs)).with_seq_len(4)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        # unknown and missing keys
        (changed(seqlen=8), "^seqlen: found an unknown key .*; did you mean seq_len"),
        (web(wieght=1), r"^datasets\.web\.wieght: found an unknown key .*; did you mean weight\?"),
        (changed(loader={"thread": 1}), r"^loader\.thread: found an unknown key .*; did you mean threads"),
        (
            changed(zzz=1),
            "^zzz: found an unknown key 'zzz', expected one of allow_mixed_tokenizers, ",
        ),
        (
            changed(phases=[{"strat": 0, "weights": {}}]),
            r"^phases\[0\]\.strat: found an unknown key .*; did you mean start",
        ),
        (
            changed(concepts={"t": {"layuot": "x"}}),
            r"^concepts\.t\.layuot: found an unknown key .*; did you mean layout",
        ),
        ({"seed": 1}, "^datasets: found nothing, expected a mapping"),
        (web(path=None), r"^datasets\.web\.path: found None, expected text"),
        ({"datasets": {"web": {}}}, r"^datasets\.web\.path: found nothing, expected text"),
        (changed(skip=[{"at": 1}]), r"^skip\[0\]\.count: found nothing, expected an integer of 1 or more"),
        # types
        (5, "^configuration: found 5, expected a path or a mapping"),
        ([], r"^configuration: found \[\], expected a path or a mapping"),
        ({"datasets": []}, r"^datasets: found \[\], expected a mapping"),
        ({"datasets": {1: {"path": "x"}}}, "^datasets: found the name 1, expected text; put it in quotes"),
        ({"datasets": {True: {"path": "x"}}}, "^datasets: found the name True"),
        (changed(seed="1"), "^seed: found '1', expected an integer; no quotes"),
        (changed(seed=1.0), "^seed: found 1.0, expected an integer"),
        (changed(seed=True), "^seed: found True, expected an integer"),
        (changed(seq_len="4e3"), "found '4e3', expected an integer; no quotes, and in YAML an exponent needs a point"),
        (changed(version="1"), "^version: found '1', expected 1"),
        (changed(version=2), "^version: found 2, expected 1"),
        (changed(version=True), "^version: found True, expected 1"),
        (changed(order="random"), "^order: found 'random', expected one of shuffled, sequential, megatron"),
        (
            changed(outputs={"position_ids": True}),
            "^outputs.position_ids: found True, expected one of window, document",
        ),
        (changed(outputs={"cu_seqlens": "yes"}), "^outputs.cu_seqlens: found 'yes', expected true or false"),
        (changed(outputs={"cu_seqlens": 1}), "^outputs.cu_seqlens: found 1, expected true or false"),
        (web(tracks="concepts"), r"^datasets\.web\.tracks: found 'concepts', expected a list"),
        (web(tracks=[1]), r"^datasets\.web\.tracks\[0\]: found 1, expected text"),
        (web(split=[0, 1, 2]), r"^datasets\.web\.split: found \[0, 1, 2\], expected a list of 2: a number, a number"),
        (web(split=[0, "1"]), r"^datasets\.web\.split\[1\]: found '1', expected a number"),
        (changed(phases={"start": 0}), r"^phases: found {'start': 0}, expected a list"),
        # values
        (web(weight=0), r"^datasets\.web\.weight: found 0, expected a number above 0"),
        (web(weight=-0.5), r"^datasets\.web\.weight: found -0.5, expected a number above 0"),
        (web(weight=float("nan")), r"^datasets\.web\.weight: found nan, expected a finite number"),
        (web(weight=float("inf")), r"^datasets\.web\.weight: found inf, expected a finite number"),
        (web(max_epochs=0), r"^datasets\.web\.max_epochs: found 0, expected a number above 0"),
        (web(split=[0.5, 0.5]), r"^datasets\.web\.split: found \[0.5, 0.5\], expected \[from, to\]"),
        (web(split=[-0.1, 0.5]), r"^datasets\.web\.split"),
        (web(split=[0.5, 1.1]), r"^datasets\.web\.split"),
        ({**web(), "split_documents": [0.5, 0.5]}, r"^split_documents: found \[0.5, 0.5\], expected \[from, to\]"),
        (web(path=""), r"^datasets\.web\.path: found ''"),
        (web(path="${HOME}/x"), r"^datasets\.web\.path: .*environment variables are not replaced"),
        (changed(seq_len=0), "^seq_len: found 0, expected an integer of 1 or more"),
        (changed(seq_len=1 << 63), "^seq_len: found 9223372036854775808"),
        (changed(block=0), "^block: found 0, expected an integer from 1 to 65536"),
        (changed(block=65537), "^block: found 65537"),
        (changed(order_version=1), "^order_version: found an unknown key"),
        (changed(order={"lanes": 8}), "^order: found {'lanes': 8}, expected one of shuffled, sequential, megatron"),
        (changed(order=5), "^order: found 5, expected one of shuffled, sequential, megatron"),
        (web(lanes=False), r"^datasets\.web\.lanes: found an unknown key"),
        (changed(temperature=0), "^temperature: found 0, expected a number above 0"),
        (changed(loader={"threads": 0}), r"^loader\.threads: found 0, expected an integer of 1 or more"),
        (
            changed(loader={"prefetch": 10**12}),
            r"^loader\.prefetch: found 1000000000000, expected an integer from 0 to 65536",
        ),
        (web(path="a\0b"), r"^datasets\.web\.path: found 'a\\x00b', expected a path, which holds no byte 0"),
        (changed(loader={"timeout_s": 0}), r"^loader\.timeout_s: found 0, expected a number above 0"),
        (changed(concepts={"t": {"max_spans": 0}}), r"^concepts\.t\.max_spans: found 0"),
        ({"datasets": {}}, "^datasets: found none, expected at least one"),
        ({"datasets": {"a@b": {"path": "x"}}}, "^datasets.a@b: found @ in a name"),
        ({"datasets": {"": {"path": "x"}}}, "^datasets: found the name ''"),
        # phases
        (changed(phases=[{"start": -1, "weights": {"web": 1}}]), r"^phases\[0\]\.start: found -1"),
        (
            changed(phases=[{"start": 5, "weights": {"wbe": 1}}]),
            r"^phases\[0\]\.weights\.wbe: found an unknown dataset 'wbe', .* mean web",
        ),
        (changed(phases=[{"start": 5, "weights": {"web": 0}}]), r"^phases\[0\]\.weights\.web: found 0, expected"),
        (changed(phases=[{"start": 5, "weights": {}}]), r"^phases\[0\]\.weights: found none"),
        (
            changed(phases=[{"start": 5, "weights": {"web": 1}}, {"start": 5, "weights": {"web": 1}}]),
            r"^phases\[1\]\.start: found 5, expected more than 5",
        ),
        (changed(phases=[{"start": 0, "weights": {"web": 1}}]), r"^datasets\.web\.weight: found phases\[0\]"),
        # weights
        (web(weight=None), r"^datasets\.web\.weight: missing, and no phase names it"),
        (changed(weights="sizes"), r"^datasets\.web\.weight: found weights: sizes as well"),
        (
            {
                "datasets": {"a": {"path": "a"}, "b": {"path": "b"}},
                "phases": [{"start": 9, "weights": {"a": 1, "b": 1}}],
            },
            "^datasets: none has a weight for the samples before the first phase",
        ),
        (
            {"datasets": {"a": {"path": "a"}}, "weights": "sizes", "phases": [{"start": 0, "weights": {"a": 1}}]},
            r"^phases\[0\]\.start: found 0 with weights: sizes",
        ),
        # other orders
        (changed(order="sequential"), r"^datasets\.web\.weight: found with order sequential"),
        (
            {"datasets": {"a": {"path": "a"}}, "order": "sequential", "skip": [{"at": 1, "count": 1}]},
            "^skip: found with order sequential",
        ),
        ({"datasets": {"a": {"path": "a"}}, "order": "megatron"}, "^megatron_cache: found None with order megatron"),
        (changed(megatron_cache="x"), "^megatron_cache: found 'x' with order shuffled"),
        # quarantine
        (
            changed(quarantine=[{"dataset": "wbe", "tokens": [0, 1]}]),
            r"^quarantine\[0\]\.dataset: wbe: found an unknown dataset 'wbe'",
        ),
        (changed(outputs={"loss_mask": False, "eos_loss": False}), r"^outputs\.loss_mask: found false, but"),
        (changed(quarantine=[{"dataset": "web"}]), r"^quarantine\[0\]: found nothing, expected one of tokens, file"),
        (
            changed(quarantine=[{"dataset": "web", "tokens": [0, 1], "file": "x"}]),
            r"^quarantine\[0\]: found tokens, file",
        ),
        (changed(quarantine=[{"dataset": "web", "tokens": [5, 5]}]), r"^quarantine\[0\]\.tokens: found \[5, 5\]"),
        (changed(quarantine=[{"dataset": "web", "tokens": [-1, 5]}]), r"^quarantine\[0\]\.tokens\[0\]: found -1"),
    ],
)
def test_bad_configurations_are_refused_with_the_path_of_the_key(data, text):
    with pytest.raises(ConfigError, match=text):
        load_config(data)


def test_built_in_python_it_is_checked_as_well():
    with raises(ConfigError, "weight", "-1"):
        DatasetConfig(path="x", weight=-1)
    with raises(ConfigError, "seed", "'1'"):
        Config(datasets={"a": DatasetConfig(path="x")}, seed="1")
    assert Config(datasets={"a": {"path": "x"}}).datasets["a"] == DatasetConfig(path="x")
    with raises(ConfigError, "phases[0].weights.a", "-1", "a number above 0"):
        Config(datasets={"a": {"path": "x"}}, temperature=2, phases=[Phase(start=0, weights={"a": -1})])
    with pytest.raises(dataclasses.FrozenInstanceError):
        DatasetConfig(path="x").path = "y"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found an empty file"),
        ("# nothing\n", "found an empty file"),
        ("seed: 1\nseq_len: 8\nseed: 2\n", "line 3: key 'seed' stands twice, first on line 1"),
        ("datasets:\n  web: {path: a}\n  code: {path: b}\n  web: {path: c}\n", "line 4: key 'web' stands twice"),
        ("datasets: {web: {path: a, path: b}}", "line 1: key 'path' stands twice"),
        ("seed: 1\nskip: [{at: 0120000, count: 1}]\n", "line 2: found 0120000, which YAML reads to the base 8"),
        ("datasets: {web: {path: a, weight: 1:30}}", "line 1: found 1:30, which YAML reads to the base 60"),
        ("datasets: {web: {path: a, weight: 1:30.5}}", "line 1: found 1:30.5, which YAML reads to the base 60"),
        ("- seed: 1\n", r"configuration: found \[{'seed': 1}\], expected a mapping"),
        ("seed: [1\n", "not valid YAML: .* line 2"),
        ("seed: 1\n---\nseed: 2\n", "not valid YAML: expected a single document"),
        ("seed: !!python/object/apply:os.getcwd []\n", "not valid YAML: could not determine a constructor"),
        ("a: &a [*a]\n", "line 1: found an alias to a value that holds it"),
        ("[" * 2000, "nested too deeply"),
        ("seed: *nothing\n", "not valid YAML: found undefined alias"),
        ("seq_len: 1e3\ndatasets: {a: {path: x}}", "seq_len: found '1e3', expected an integer"),
        ("datasets: {on: {path: x}}", "found the name True, expected text; put it in quotes"),
    ],
)
def test_bad_yaml_is_refused_with_file_and_line(tmp_path, text, message):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"(?s)^{path}: .*{message}"):
        load_config(path)


def test_aliases_are_fine_within_bounds(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(
        "x: &x {path: p, weight: 1}\n" * 0 + "datasets:\n  a: &d {path: p, weight: 1}\n  b: {<<: *d, weight: 2}\n"
    )
    assert load_config(path).datasets["b"].weight == 2


@pytest.mark.parametrize("kind", ["lists", "merges"])
def test_alias_bombs_are_refused_before_they_are_expanded(tmp_path, kind):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]" if kind == "lists" else "a0: &a0 {k: v}"]
    for k in range(1, 40):
        many = ", ".join([f"*a{k - 1}"] * 9)
        lines.append(f"a{k}: &a{k} [{many}]" if kind == "lists" else f"a{k}: &a{k} {{<<: [{many}]}}")
    path = tmp_path / "bomb.yaml"
    path.write_text("\n".join(lines))
    with raises(ConfigError, found="found more than 200000 values, aliases counted"):
        load_config(path)


def test_unreadable_files(tmp_path):
    with raises(ReadError, "none.yaml: cannot read the configuration: No such file"):
        load_config(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"seed: \xff\n")
    with raises(ConfigError, found="not UTF-8 at offset 6"):
        load_config(tmp_path / "latin.yaml")
    with (tmp_path / "big.yaml").open("wb") as file:
        file.truncate(17 << 20)
    with raises(ConfigError, found="more than 16 MiB"):
        load_config(tmp_path / "big.yaml")


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.name)
def test_the_examples_are_valid(path):
    load_config(path)


def test_the_reference_configuration_names_every_key():
    """configs/reference.yaml is where users look keys up: it must have them all, with their defaults."""
    given = yaml.safe_load((ROOT / "configs/reference.yaml").read_text())
    config = load_config(ROOT / "configs/reference.yaml")
    only_elsewhere = {"megatron_cache"}
    assert set(given) == {f.name for f in dataclasses.fields(Config)} - only_elsewhere
    for name in ("outputs", "loader"):
        section = getattr(config, name)
        assert set(given[name]) == {f.name for f in dataclasses.fields(section)}
        assert section == type(section)()
    assert set(next(iter(given["datasets"].values()))) == {f.name for f in dataclasses.fields(DatasetConfig)}
    plain = Config(datasets={"a": DatasetConfig(path="x")})
    for name in ("version", "seed", "block", "order", "weights", "temperature", "on_new_seq_len"):
        assert getattr(config, name) == getattr(plain, name)


def test_reading_a_configuration_needs_no_torch():
    code = "import sys, conceptloader; conceptloader.load_config; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("datasets: {web: data/web}", "datasets.web: found 'data/web', expected a mapping .*; write {path: data/web}$"),
        (
            "shuffle: false",
            "shuffle: found an unknown key .*; write `order: shuffled`, which is the default, or `order: sequential`",
        ),
        ("seq_len: 2k", "seq_len: found '2k', expected an integer.*; write the number out: 2048, or 2000$"),
        ("seq_len: 1MiB", "; write the number out: 1048576, or 1000000$"),
        ("seq_len: '2048'", "; no quotes, "),
        ("sequence_length: 2048", "sequence_length: found an unknown key 'sequence_length', .*; write `seq_len`"),
        (
            "exclude: [{at: 3, ids: [2024-01-01]}]",
            r"exclude\[0\]\.ids\[0\]: found .*, expected text; put it in quotes$",
        ),
        ("exclude: [{at: 3, ids: [7]}]", r"exclude\[0\]\.ids\[0\]: found 7, expected text; put it in quotes$"),
    ],
)
def test_what_strangers_write(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f"{text}\n" + ("" if text.startswith("datasets") else "datasets: {web: {path: data/web}}\n"))
    with pytest.raises(ConfigError, match=message):
        load_config(path)


@pytest.mark.parametrize("kind", ["file", "folder", "nothing"])
@pytest.mark.parametrize("check", [True, False])
def test_a_path_that_is_no_dataset(tmp_path: Path, kind: str, check: bool) -> None:
    """Neither `Not a directory` of the system, nor only that the path is wrong: how to make a dataset of it."""
    path = tmp_path / "x.jsonl"
    if kind == "folder":
        path.mkdir()
    elif kind == "file":
        path.write_text('{"text": "a"}\n')
    config = {"seq_len": 8, "datasets": {"web": {"path": str(path)}}, "loader": {"check_files": check}}
    found = {"file": "a file", "folder": r"no manifest\.json", "nothing": "no directory"}[kind]
    with pytest.raises(
        (ConfigError, FormatError), match=f"{path}: found {found}, expected .*`conceptloader build` of text"
    ):
        open_blend(config)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"ignore_index": 0}, "^outputs.ignore_index: found 0, expected an integer below 0"),
        ({"ignore_index": -100, "shared_labels": True}, "labels are the memory of the inputs"),
        ({"ignore_index": -100, "loss_mask": False}, "loss_mask: found false, but .* ignore_index need it"),
    ],
)
def test_labels_cannot_be_ignored(outputs, message):
    with pytest.raises(ConfigError, match=message):
        load_config({"datasets": {"a": {"path": "x"}}, "outputs": outputs})
