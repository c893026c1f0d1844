import dataclasses
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

import pytest
import yaml

from conceptloader import build
from conceptloader.config import Config, DatasetConfig, load_config, open_blend, schema
from conceptloader.config.phases import Phase, Ramp, Skip
from conceptloader.errors import ConfigError, FormatError, ReadError
from conceptloader.kernels.arrays import ColumnOptions
from conceptloader.run.mixing.doremi import DoReMiOptions
from conceptloader.run.mixing.odm import ODMOptions
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
exclude:
  - {dataset: web, tokens: [5, 9]}
  - {dataset: code, token_file: bad/ranges.txt}
outputs: {position_ids: off}
"""
    )
    config = load_config(path)
    assert config.datasets["web"].path == str(tmp_path / "data/web")
    assert config.datasets["code"].path == str(tmp_path.parent / "code")
    assert config.datasets["remote"].path == "s3://bucket/x"
    assert config.exclude[1].token_file == str(tmp_path / "bad/ranges.txt")
    assert config.datasets["web"].split == (0.0, 0.98)
    assert (config.seed, config.block, config.order, config.loader.timeout_s) == (1234, 64, "shuffled", 300)
    assert config.outputs.position_ids == "off"
    assert config.names == ["code", "remote", "web"]
    assert load_config(str(path)) == config


def test_round_trip_through_plain_data_and_yaml():
    config = load_config(
        changed(
            phases=[{"at": 100, "weights": {"web": 1}, "ramp": {"samples": 20, "shape": "cosine"}}],
            skip=[{"at": 7, "count": 3}],
            tracks={"concepts": {"layout": "ragged", "max_spans": 5}},
            outputs={"position_ids": "off"},
            allowed_roots=["/data"],
        )
    )
    plain = config.to_dict()
    assert load_config(plain) == config
    assert load_config(yaml.safe_load(yaml.safe_dump(plain))) == config
    assert "mixing" not in plain


def test_plain_data_is_relative_to_base_dir_or_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_config(SMALL).datasets["web"].path == str(tmp_path / "web")
    assert load_config(SMALL, base_dir="/x").datasets["web"].path == "/x/web"
    assert load_config(SMALL, base_dir="/x").datasets["code"].path == "/data/code"


def test_variables_in_paths(tmp_path, monkeypatch):
    """Those of this process; they may hold anything, and $${ stands for ${, also on the way to plain data and back."""
    monkeypatch.chdir(tmp_path)
    for name, value in {"DISK": "/node-7", "BUCKET": "s3://logs", "ODD": "${DISK}", "EMPTY": ""}.items():
        monkeypatch.setenv(name, value)
    for path, found in {
        "${DISK}/${DISK}/web": "/node-7/node-7/web",
        "${BUCKET}/web": "s3://logs/web",
        "gs://x/${DISK}": "gs://x//node-7",
        "x/${ODD}": str(tmp_path / "x/${DISK}"),  # what a variable holds is not expanded again
        "/a/$${DISK}$$${DISK}": "/a/${DISK}$${DISK}",
        "/a/$DISK$/$${": "/a/$DISK$/${",
    }.items():
        masks = {"exclude": [{"dataset": "web", "token_file": path}, {"at": 1, "file": path}]}
        config = load_config({**web(path=path), "allowed_roots": [path], **masks})
        assert {config.datasets["web"].path, config.exclude[0].token_file, config.exclude[1].file} == {found}
        assert config.allowed_roots == (found,)
        assert load_config(config.to_dict()) == config
    with raises(ConfigError, "datasets.web.path", "${EMPTY}, an environment variable that is empty"):
        load_config(web(path="${EMPTY}/web"))
    with raises(ConfigError, "datasets.web.path", "${LOST}, an environment variable that is unset"):
        load_config(web(path="${LOST}/web"))


@pytest.mark.parametrize(
    "path",
    [
        "${STORE}/web",
        "${STORE}/${NAME}/$${x}",
        "http://bob:${NAME}@host/a?sig=${NAME}",
        "${DISK}/a",
        "${NAME}/a",
        "~/${NAME}",
    ],
)
def test_plain_data_has_variables_by_their_names(path, tmp_path, monkeypatch):
    """Their values, such as passwords of stores, are not in a run log, which travels with checkpoints."""
    monkeypatch.chdir(tmp_path)
    for name, value in {"STORE": "http://bob:s3cret@host", "DISK": "/s3cret", "NAME": "s3cret"}.items():
        monkeypatch.setenv(name, value)
    config = load_config({**web(path=path), "allowed_roots": [path], "replay": path}, base_dir=tmp_path / "${x}")
    assert "s3cret" in config.datasets["web"].path
    plain = config.to_dict()
    assert "s3cret" not in json.dumps(plain)
    assert "${" in plain["datasets"]["web"]["path"]
    assert load_config(yaml.safe_load(yaml.safe_dump(plain))) == config
    assert pickle.loads(pickle.dumps(config)).to_dict() == plain == load_config(plain).to_dict()


@pytest.mark.parametrize("url", ["http://bob:s3cret@host/web", "https://host/web?sig=s3cret&x=1", "s3://id:s3cret@b/w"])
def test_plain_data_has_no_passwords_of_urls(url):
    said = load_config(web(path=url)).to_dict()["datasets"]["web"]["path"]
    assert "s3cret" not in said
    assert "***" in said


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
    with raises(ConfigError, "seq_len", "16", "32, the sequence length of the trainer"):
        config.with_seq_len(16).with_seq_len(32)


@pytest.mark.parametrize("outputs", [{"shared_labels": True}, {"loss_mask": False}, {"ignore_index": -100}])
def test_outputs_that_no_framework_takes(outputs):
    with pytest.raises(ConfigError, match=f"^outputs.{next(iter(outputs))}: found .* with a framework"):
        load_config(changed(outputs=outputs)).with_seq_len(4)


@pytest.mark.parametrize("row", yaml.safe_load((ROOT / "tests/config/refused.yaml").read_text()), ids=str)
def test_bad_configurations_are_refused_with_the_path_of_the_key(row):
    data = row["alone"] if "alone" in row else web(**row["web"]) if "web" in row else changed(**row["beside"])
    with pytest.raises(ConfigError) as caught:
        load_config(data)
    assert caught.value.path == row["path"]


def test_built_in_python_it_is_checked_as_well():
    with raises(ConfigError, "weight", "-1"):
        DatasetConfig(path="x", weight=-1)
    with raises(ConfigError, "seed", "'1'"):
        Config(datasets={"a": DatasetConfig(path="x")}, seed="1")
    assert Config(datasets={"a": {"path": "x"}}).datasets["a"] == DatasetConfig(path="x")
    with raises(ConfigError, "phases[0].weights.a", "-1", "a number above 0"):
        Config(datasets={"a": {"path": "x"}}, temperature=2, phases=[{"at": 0, "weights": {"a": -1}}])
    with pytest.raises(dataclasses.FrozenInstanceError):
        DatasetConfig(path="x").path = "y"


VALUE = r"exclude\[0\]\.ids\[0\]"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found an empty file"),
        ("seed: 1\nseq_len: 8\nseed: 2\n", "line 3: found the key 'seed' twice, first on line 1"),
        ("datasets:\n  web: {path: a}\n  code: {path: b}\n  web: {path: c}\n", "line 4: found the key 'web' twice"),
        ("seed: 1\nskip: [{at: 0120000, count: 1}]\n", "line 2: found 0120000, which YAML reads to the base 8"),
        ("datasets: {web: {path: a, weight: 1:30}}", "line 1: found 1:30, which YAML reads to the base 60"),
        ("- seed: 1\n", r"configuration: found \[{'seed': 1}\], expected a mapping"),
        ("seed: [1\n", "not valid YAML: .* line 2"),
        ("datasets: {web: {path: ${DATA}/web}}\n", "not valid YAML: .* line 1.* in quotes: YAML reads its braces"),
        ("seed: 1\n---\nseed: 2\n", "not valid YAML: expected a single document"),
        ("seed: !!python/object/apply:os.getcwd []\n", "not valid YAML: could not determine a constructor"),
        ("a: &a [*a]\n", "line 1: found an alias to a value that holds it"),
        ("[" * 2000, "nested too deeply"),
        ("seed: *nothing\n", "not valid YAML: found undefined alias"),
        ("seq_len: 1e3\ndatasets: {a: {path: x}}", "seq_len: found '1e3', expected an integer"),
        ("datasets: {on: {path: x}}", "found the name True, expected text; put the key True under datasets in quotes"),
        ("datasets: {web: data/web}", "datasets.web: found 'data/web', expected a mapping .*; write {path: data/web}$"),
        (
            "shuffle: false\ndatasets: {a: {path: x}}",
            "shuffle: found an unknown key .*; write `order: shuffled`, which is the default, or `order: sequential`",
        ),
        (
            "seq_len: 2k\ndatasets: {a: {path: x}}",
            "seq_len: found '2k', expected an integer.*; write the number out: seq_len: 2048, or 2000$",
        ),
        ("seq_len: '2048'\ndatasets: {a: {path: x}}", "; write seq_len without quotes; "),
        (
            "sequence_length: 2048\ndatasets: {a: {path: x}}",
            "sequence_length: found an unknown key 'sequence_length', .*; write `seq_len`",
        ),
        (
            "exclude: [{at: 3, ids: [2024-01-01]}]\ndatasets: {a: {path: x}}",
            f"{VALUE}: found .*, expected text; put the value of {VALUE} in quotes$",
        ),
        (
            "exclude: [{at: 3, ids: [7]}]\ndatasets: {a: {path: x}}",
            f"{VALUE}: found 7, expected text; put the value of {VALUE} in quotes$",
        ),
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
    with raises(ConfigError, found="more than 200,000 values, aliases counted"):
        load_config(path)


def test_unreadable_files(tmp_path):
    with raises(ReadError, "none.yaml", "cannot be read: No such file"):
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


REFERENCE = ROOT / "configs/reference.yaml"
SECTIONS = {
    schema.Config, schema.DatasetConfig, schema.MegatronOrder, schema.ExcludeConfig,
    schema.PackingConfig, schema.ConceptOptions, schema.LoaderConfig, schema.Outputs, schema.LossWeight, ColumnOptions,
    Phase, Ramp, Skip, ODMOptions, DoReMiOptions,
}  # fmt: skip
# What the file shows with a value because it is off by default, or one of several.
EXAMPLES = {
    (schema.Config, "seq_len"), (schema.Config, "tracks"), (Phase, "ramp"),
    *((schema.ExcludeConfig, f.name) for f in dataclasses.fields(schema.ExcludeConfig) if f.name not in ("at", "take")),
}  # fmt: skip


def commented_out():
    """The blocks of the reference configuration that stand in comments, each a mapping."""
    blocks = re.findall(r"^# \w+:.*\n(?:^#   .*\n)+", REFERENCE.read_text(), re.M)
    return [yaml.safe_load(re.sub("^# ", "", block, flags=re.M)) for block in blocks]


def described(given, hint):
    """(section, data) of all sections in what was read from YAML, by the types of their fields."""
    if get_origin(hint) is not None:
        for one in get_args(hint):
            yield from described(given, one)
        return
    for one in given if isinstance(given, list) else [given]:
        if not isinstance(one, dict):
            continue
        names = {f.name for f in dataclasses.fields(hint)} if dataclasses.is_dataclass(hint) else set()
        if names and set(one) <= names:
            yield hint, one
            hints = get_type_hints(hint)
            for name, value in one.items():
                yield from described(value, hints[name])
        elif hint in SECTIONS:  # a dict of sections
            for value in one.values():
                yield from described(value, hint)


def test_the_reference_configuration_has_every_key_with_its_default():
    """configs/reference.yaml is where users look keys up. Whoever copies it gets the defaults, and nothing else."""
    given = yaml.safe_load(REFERENCE.read_text())
    config = load_config(REFERENCE)
    (path,) = (dataset.path for dataset in config.datasets.values())
    plain = Config(
        seq_len=4096, datasets={"web": DatasetConfig(path=path)}, tracks={"concepts": schema.ConceptOptions()}
    )
    assert config == plain

    found = list(described(given, Config))
    for block in commented_out():
        found += described(block, Config)
        found += described(block.get("mixing", {}).get("odm"), ODMOptions)
        found += described(block.get("mixing", {}).get("doremi"), DoReMiOptions)
    for section in SECTIONS:
        shown = [data for kind, data in found if kind is section]
        for field in dataclasses.fields(section):
            values = [data[field.name] for data in shown if field.name in data]
            assert values, f"{section.__name__}.{field.name} is not there"
            default = field.default_factory() if callable(field.default_factory) else field.default
            if default not in (dataclasses.MISSING, ()) and (section, field.name) not in EXAMPLES:
                assert default in values or dataclasses.is_dataclass(default), f"{section.__name__}.{field.name}"


@pytest.mark.parametrize("number", range(len(commented_out())))
def test_the_examples_of_the_reference_configuration_are_valid(tmp_path, number):
    config = {**yaml.safe_load(REFERENCE.read_text()), **commented_out()[number]}
    config["datasets"] = {name: {"path": name} for name in ("web", "code")}
    if config["order"] == "shuffled":
        config["datasets"] = {name: {"path": name, "weight": 1} for name in config["datasets"]}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    assert load_config(tmp_path / "run.yaml") != load_config(REFERENCE)


def test_reading_a_configuration_needs_no_torch():
    code = "import sys, conceptloader; conceptloader.load_config; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize("kind", ["file", "folder", "nothing"])
@pytest.mark.parametrize("check", [True, False])
def test_a_path_that_is_no_dataset(tmp_path, kind, check):
    """Neither `Not a directory` of the system, nor only that the path is wrong: how to make a dataset of it."""
    path = tmp_path / "x.jsonl"
    if kind == "folder":
        path.mkdir()
    elif kind == "file":
        path.write_text('{"text": "a"}\n')
    config = {"seq_len": 8, "datasets": {"web": {"path": str(path)}}, "loader": {"verify_files": check}}
    found = {"file": "a file", "folder": r"no manifest\.json", "nothing": "no directory"}[kind]
    with pytest.raises(
        (ConfigError, FormatError), match=f"{path}: found {found}, expected .*`conceptloader build` of text"
    ):
        open_blend(config)


@pytest.mark.parametrize(
    ("more", "where"), [({}, "datasets.web: {}/web"), ({"tracks": {"none": {}}, "datasets": {}}, "tracks.none")]
)
def test_what_does_not_fit_the_data_is_said_with_the_file(tmp_path, more, where):
    (tmp_path / "in.jsonl").write_text('{"text": "a cat and a dog"}')
    build(tmp_path / "in.jsonl", tmp_path / "code", tokenizer="bytes")
    data = {"datasets": {"code": {"path": "code"}, **more.get("datasets", {"web": {"path": "web"}})}, "seq_len": 4}
    data = {"weights": "by_size", **more, **data}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(data))
    where = where.format(tmp_path)
    with raises(ConfigError, f"{tmp_path}/run.yaml: {where}"):
        open_blend(load_config(tmp_path / "run.yaml").with_seq_len(4))
    with pytest.raises(ConfigError, match=f"^{re.escape(where)}: "):
        open_blend(load_config(data, base_dir=tmp_path))
