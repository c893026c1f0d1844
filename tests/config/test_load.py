import dataclasses
import json
import pickle
import re
from pathlib import Path

import pytest
import yaml

from conceptloader.config import Config, DatasetConfig, load_config, open_blend
from conceptloader.errors import ConfigError, FormatError, ReadError
from conceptloader.run.mixing.doremi import DoReMiOptions
from conceptloader.run.mixing.odm import ODMOptions
from conceptloader.testing import random_documents, write_dataset
from tests.entries.test_entries import leaves
from tests.raises import cells, raises

ROOT = Path(__file__).resolve().parents[2]

SMALL = {"seq_len": 8, "datasets": {"web": {"path": "web", "weight": 0.7}, "code": {"path": "/data/code", "weight": 3}}}


def changed(**top):
    return {**SMALL, **top}


def web(**keys):
    return {**SMALL, "datasets": {**SMALL["datasets"], "web": {**SMALL["datasets"]["web"], **keys}}}


def test_paths_are_relative_to_the_file(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        """
version: 1
datasets:
  web: {path: data/web, weight: 0.7}
  code: {path: ../code, weight: 3}
  remote: {path: "s3://bucket/x", weight: 1.0e-3}
exclude: [{dataset: code, token_file: bad/ranges.txt}]
outputs: {position_ids: off}
"""
    )
    config = load_config(path)
    paths = {"web": f"{tmp_path}/data/web", "code": f"{tmp_path.parent}/code", "remote": "s3://bucket/x"}
    assert {name: dataset.path for name, dataset in config.datasets.items()} == paths
    assert config.exclude[0].token_file == f"{tmp_path}/bad/ranges.txt"
    assert config.outputs.position_ids == "off"
    assert load_config(str(path)) == config


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
    with raises(ConfigError, "phases[0].weights.a", "-1", "a number above 0"):
        Config(datasets={"a": {"path": "x"}}, temperature=2, phases=[{"at": 0, "weights": {"a": -1}}])
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config(datasets={"a": {"path": "x"}}).datasets["a"].path = "y"


BAD = r"""
- | found an empty file
seed: 1 / seq_len: 8 / seed: 2 | line 3: found the key 'seed' twice, first on line 1
datasets: /   web: {path: a} /   code: {path: b} /   web: {path: c} | line 4: found the key 'web' twice
seed: 1 / skip: [{at: 0120000, count: 1}] | line 2: found 0120000, which YAML reads to the base 8
datasets: {web: {path: a, weight: 1:30}} | line 1: found 1:30, which YAML reads to the base 60
- seed: 1 | configuration: found \[{'seed': 1}\], expected a mapping
seed: [1 | not valid YAML: .* line 2
datasets: {web: {path: ${DATA}/web}} | not valid YAML: .* line 1.* in quotes: YAML reads its braces
seed: 1 / --- / seed: 2 | not valid YAML: expected a single document
seed: !!python/object/apply:os.getcwd [] | not valid YAML: could not determine a constructor
a: &a [*a] | line 1: found an alias to a value that holds it
seed: *nothing | not valid YAML: found undefined alias
seq_len: 1e3 / datasets: {a: {path: x}} | seq_len: found '1e3', expected an integer
datasets: {on: {path: x}} | found the name True, expected text; put the key True under datasets in quotes
datasets: {web: data/web} | datasets.web: found 'data/web', expected a mapping .*; write {path: data/web}$
shuffle: false / datasets: {a: {path: x}} | shuffle: found an unknown key .*; write `order: shuffled`, which is the default, or `order: sequential`
seq_len: 2k / datasets: {a: {path: x}} | seq_len: found '2k', expected an integer.*; write the number out: seq_len: 2048, or 2000$
seq_len: '2048' / datasets: {a: {path: x}} | ; write seq_len without quotes
sequence_length: 2048 / datasets: {a: {path: x}} | sequence_length: found an unknown key 'sequence_length', .*; write `seq_len`
exclude: [{at: 3, ids: [2024-01-01]}] / datasets: {a: {path: x}} | exclude\[0\]\.ids\[0\]: found .*, expected text; put the value of exclude\[0\]\.ids\[0\] in quotes$
exclude: [{at: 3, ids: [7]}] / datasets: {a: {path: x}} | exclude\[0\]\.ids\[0\]: found 7, expected text; put the value of exclude\[0\]\.ids\[0\] in quotes$
"""  # noqa: E501
"""Lines of YAML, which ` / ` separates, and what is said of them."""


@pytest.mark.parametrize(("text", "message"), [*cells(BAD), ("[" * 2000, "nested too deeply")])
def test_bad_yaml_is_refused_with_file_and_line(tmp_path, text, message):
    path = tmp_path / "bad.yaml"
    path.write_text(text.replace(" / ", "\n"))
    with pytest.raises(ConfigError, match=f"(?s)^{path}: .*{message}"):
        load_config(path)


def test_aliases_are_fine_within_bounds(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("datasets:\n  a: &d {path: p, weight: 1}\n  b: {<<: *d, weight: 2}\n")
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


def commented_out():
    """The blocks of the reference configuration that stand in comments, each a mapping."""
    blocks = re.findall(r"^# \w+:.*\n(?:^#   .*\n)+", REFERENCE.read_text(), re.M)
    return [yaml.safe_load(re.sub("^# ", "", block, flags=re.M)) for block in blocks]


def test_the_reference_configuration_has_every_key():
    """configs/reference.yaml is where users look keys up. Whoever copies it gets the defaults, and nothing else."""
    config = load_config(REFERENCE)
    assert config == Config(
        seq_len=4096, datasets={"web": {"path": config.datasets["web"].path}}, tracks={"concepts": {}}
    )
    shown = set(re.findall(r"(\w+):", REFERENCE.read_text()))
    options = {one.name for kind in (ODMOptions, DoReMiOptions) for one in dataclasses.fields(kind)}
    assert {key.rpartition(".")[2] for key in leaves(Config)} | options <= shown


@pytest.mark.parametrize("number", range(len(commented_out())))
def test_the_examples_of_the_reference_configuration_are_valid(tmp_path, number):
    config = {**yaml.safe_load(REFERENCE.read_text()), **commented_out()[number]}
    config["datasets"] = {name: {"path": name} for name in ("web", "code")}
    if config["order"] == "shuffled":
        config["datasets"] = {name: {"path": name, "weight": 1} for name in config["datasets"]}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    assert load_config(tmp_path / "run.yaml") != load_config(REFERENCE)


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
    write_dataset(tmp_path / "code", random_documents(5))
    data = {"datasets": {"code": {"path": "code"}, **more.get("datasets", {"web": {"path": "web"}})}, "seq_len": 4}
    data = {"weights": "by_size", **more, **data}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(data))
    where = where.format(tmp_path)
    with raises(ConfigError, f"{tmp_path}/run.yaml: {where}"):
        open_blend(load_config(tmp_path / "run.yaml").with_seq_len(4))
    with pytest.raises(ConfigError, match=f"^{re.escape(where)}: "):
        open_blend(load_config(data, base_dir=tmp_path))
