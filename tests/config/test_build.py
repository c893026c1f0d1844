import shutil

import numpy as np
import pytest
import yaml

import conceptloader as cl
from conceptloader.config import load_config, open_blend
from conceptloader.errors import ConfigError, ReadError
from tests.corpora.blended import tokens_of
from tests.corpora.small import written
from tests.raises import cells, raises

TOKENIZER = cl.writing.Tokenizer(name="bytes", vocab_size=1000, eos_id=0)


def write(path, documents, *, mode="stream-with-metadata", tokenizer=TOKENIZER, tracks=("concepts",), first=1):
    """Documents of the given lengths whose tokens count up from `first`; the whole document is one span per track."""
    given = []
    for size in documents:
        given.append((np.arange(first, first + size) % 1000, {track: [(0, size, [size])] for track in tracks if size}))
        first += size
    tracks = {track: {} for track in tracks}
    return written(path, given, mode=mode, tokenizer=tokenizer, tracks=tracks, token_type="u2")


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    root = tmp_path_factory.mktemp("corpora")
    write(root / "web", [40] * 25)
    write(root / "code", [7, 30, 0, 13] * 8, tracks=())
    write(root / "posts", [5, 0, 9, 3, 20, 1], mode="document", tracks=())
    write(root / "other", [100], tokenizer=cl.writing.Tokenizer(name="other", vocab_size=900), tracks=())
    return root


@pytest.fixture
def load(corpora):
    def load(**keys):
        datasets = {"web": {"path": "web", "weight": 0.7}, "code": {"path": "code", "weight": 0.3}}
        return load_config({"seq_len": 16, "datasets": datasets, **keys}, base_dir=corpora)

    return load


def test_nodes_with_copies_of_their_own_agree(corpora, tmp_path, monkeypatch):
    """Where a variable in a path has another value on each node; and a run moves from one to the other."""
    shutil.copytree(corpora / "web", tmp_path / "web")
    (tmp_path / "bad.txt").write_text("3 9\n")
    shutil.copy(tmp_path / "bad.txt", corpora)
    masks = {"exclude": [{"dataset": "web", "token_file": "${NODE}/bad.txt"}]}
    config, loaders = {"seq_len": 16, "datasets": {"web": {"path": "${NODE}/web"}}, **masks}, []
    for folder in (corpora, tmp_path):
        monkeypatch.setenv("NODE", str(folder))
        loaders.append(cl.make_dataloader(config, micro_batch_size=4))
    here, there = loaders
    assert here.blend.facts() == there.blend.facts()
    assert {one.blend.config.datasets["web"].path for one in loaders} == {f"{corpora}/web", f"{tmp_path}/web"}
    assert not [name for name in (str(corpora), str(tmp_path), "NODE") if name in str(here.state_dict())]
    there.load_state_dict(here.state_dict_at(12))
    assert next(iter(there))["sample_index"].tolist() == [12, 13, 14, 15]


@pytest.mark.parametrize("cut", [0.2, 0.4, 0.6, 0.8])
def test_empty_documents_at_a_cut_belong_to_the_share_before_it(tmp_path, cut):
    """So that two shares have each document once, in document mode, where an empty one is a sample too."""
    write(tmp_path / "posts", [3, 0, 0, 2, 4], mode="document", tracks=())
    config = {"datasets": {"posts": {"path": str(tmp_path / "posts")}}, "seq_len": 8, "order": "sequential"}
    found = []
    for share in ([0, cut], [cut, 1]):
        with cl.make_dataloader({**config, "split_documents": share}, micro_batch_size=1) as loader:
            (view,) = loader.blend.views
            found.append(list(range(view.start, view.start + view.count)))
    assert found == [[0, 1, 2], [3, 4]] if cut < 0.8 else [[0, 1, 2, 3], [4]]


def test_lines_of_a_file_of_ranges(load, tmp_path):
    file = tmp_path / "ranges.txt"
    file.write_text("# damaged\n10 20\n\n15 30 # overlaps\n500 510\n")
    read, given = (
        open_blend(load(exclude=[{"dataset": "web", **one} for one in entries])).spec
        for entries in ([{"token_file": str(file)}], [{"tokens": [500, 510]}, {"tokens": [10, 30]}])
    )
    assert read == given
    assert read.quarantine.keys() == {"web"}


def test_bad_files_of_ranges(load, tmp_path):
    file = tmp_path / "ranges.txt"
    entry = {"dataset": "web", "token_file": str(file)}
    with raises(ReadError, found="cannot read ranges to exclude"):
        open_blend(load(exclude=[entry]))
    for line, found in (
        ("1", "'1'"),
        ("1 -2", "'1 -2'"),
        ("5 5", "[5, 5]"),
        ("1 1001", "[1, 1001]"),
        ("1 " + "9" * 5000, "9"),
    ):
        file.write_text(line)
        with raises(ConfigError, f"{file}, line 1", found):
            open_blend(load(exclude=[entry]))


WEB = {"path": "web", "weight": 1}


UNFIT = r"""
{seq_len: null} | datasets\.code: seq_len: found nothing
{seq_len: 1000} | datasets\.code: seq_len: found 1000, expected at most
{datasets: {web: {path: web, weight: 1, tracks: [concept]}}} | web\.tracks: found an unknown track of .*: 'concept', .*; did you mean concepts
{tracks: {quality: {}}} | tracks\.quality: found an unknown track
{datasets: {web: {path: web, weight: 1}, other: {path: other, weight: 1}}} | different tokenizers .*allow_mixed_tokenizers: true
{datasets: {web: {path: web, weight: 1}, posts: {path: posts, weight: 1}}} | set packing, by which documents and windows can be blended
{datasets: {web: {path: web, weight: 1, split: [0.5, 0.5001]}}} | datasets\.web: split: .* no start of a document
{exclude: [{dataset: web, tokens: [0, 1001]}]} | exclude\[0\]\.tokens: found \[0, 1001\]
{order: {megatron: x}, datasets: {web: {path: web}}} | order: found megatron, which takes over .* with the adapter
{datasets: {web: {path: web, weight: 1}, code: {path: code, weight: 1.0e-13}}} | datasets\.code\.weight: found 1e-13, below 2
{datasets: {web: {path: web}, code: {path: code}}, phases: [{at: 0, weights: {web: 1, code: 1.0e-13}}]} | phases\[0\]\.weights\.code: found 1e-13, below 2
{phases: [{at: 9, weights: {web: 1, code: 1.0e-13}}]} | phases\[0\]\.weights\.code: found 1e-13, below 2
"""  # noqa: E501


@pytest.mark.parametrize(("keys", "text"), cells(UNFIT))
def test_what_does_not_fit_is_refused(load, keys, text):
    keys = yaml.safe_load(keys)
    with pytest.raises(ConfigError, match=text):
        open_blend(load(**keys))


def test_more_weights_than_states_have_room_for(load, monkeypatch):
    """2 before a ramp, 2 in each of its 63 steps, 1 after it."""
    ramped = load(phases=[{"at": 40, "weights": {"web": 1}, "ramp": {"samples": 120}}])
    monkeypatch.setattr("conceptloader.config.blend.MAX_WEIGHTS", 129)
    open_blend(ramped)
    monkeypatch.setattr("conceptloader.config.blend.MAX_WEIGHTS", 128)
    with raises(ConfigError, "phases", "129 weights in all", "at most 128"):
        open_blend(ramped)


def test_the_odd_tokenizer_is_named_and_no_others(load, corpora):
    web = {f"web{k}": {"path": "web", "split": [0.04 * k, 0.04 * k + 0.04]} for k in range(25)}
    with raises(ConfigError, found="other: other with 900 tokens") as caught:
        open_blend(load(weights="by_size", datasets={**web, "other": {"path": "other"}}))
    assert "against bytes with 1000 tokens and eos 0 in 25 datasets, such as web0" in str(caught.value)
    assert "web1" not in str(caught.value)


def test_a_concept_id_is_one_concept_in_all_datasets(tmp_path):
    datasets = {}
    for name, names in {"a": "cat dog", "b": "dog cat", "more": "cat dog emu", "none": ""}.items():
        tracks = {"animals": {"vocabulary": names.split() or None}}
        path = written(
            tmp_path / name, [(range(1, 40), {"animals": [(0, 9, [1])]})], tokenizer=TOKENIZER, tracks=tracks
        )
        datasets[name] = {"path": str(path), "weight": 1}

    def blend(chosen, **keys):
        return open_blend({"seq_len": 8, "datasets": {name: datasets[name] for name in chosen.split()}, **keys})

    read = {"tracks": {"animals": {}}}
    with raises(
        ConfigError, "tracks.animals", "id 0 as 'dog' in dataset b, but as 'cat' in a", fix="mixed_vocabularies"
    ):
        blend("a b none", **read)
    for accepted in (blend("a more none", **read), blend("a b"), blend("a b", allow_mixed_vocabularies=True, **read)):
        assert None not in accepted.views
    datasets["b"]["tracks"] = []
    blend("a b", **read)


def test_given_datasets_must_be_those_of_the_configuration(load):
    config = load()
    datasets = open_blend(config).datasets
    with raises(ConfigError, found="['web'] open"):
        open_blend(config, {"web": datasets["web"]})


def test_a_dataset_that_left_is_known_but_not_read(load):
    blend = open_blend(load())
    run = open_blend(load(datasets={"web": WEB})).resume(blend.spec, 50, new_stage=True)
    assert run.order.names == ["code", "web"]
    assert [view and view.name for view in run.views] == [None, "web"]
    gone = next(t for t in range(50) if run.order.sample(t)[0] == 0)
    with raises(ConfigError, found="before member 0 of the order was removed"):
        tokens_of(run, gone)
    assert {run.order.sample(t)[0] for t in range(50, 90)} == {1}
