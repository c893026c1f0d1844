"""Without a YAML of ours: the .bin/.idx files that Megatron's arguments name, read where they are."""

import multiprocessing
import os
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import torch
import yaml

import conceptloader as cl
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.ingest.adopt import in_place
from conceptloader.ingest.adopt.adopt import adopt
from conceptloader.integrations.megatron_lm import launch
from conceptloader.integrations.megatron_lm.options import take_options
from tests.corpora.blended import tokens_of
from tests.corpora.token_files import EOD, random_corpus, write_corpus
from tests.megatron.stock import adopted, assert_equal_samples, build_stock, data_of, dataset_config
from tests.raises import cells, raises

LENGTH, SIZES = 13, [60, 8, 0]


@pytest.fixture
def prefixes(tmp_path):
    return [random_corpus(tmp_path / f"{name}_text", seed) for seed, name in enumerate("ab")]


def made(blend, cache, **more):
    options = {"split": "90,10,0", "path_to_cache": cache and str(cache), **more.pop("options", {})}
    return data_of(None, dataset_config(LENGTH, blend=blend, **options), **{"sizes": SIZES, **more})


@pytest.mark.usefixtures("one_process")
def test_a_run_moves_to_a_yaml_of_the_same_files_adopted(tmp_path):
    """And back, from copies of other times: what identifies a file is in it. Files of a few KiB are read whole."""
    prefixes = [random_corpus(tmp_path / name, seed, documents=3000) for seed, name in enumerate("ab")]
    data = made((prefixes, [0.7, 0.3]), tmp_path / "cache")
    (tmp_path / "moved").mkdir()
    for prefix in prefixes:
        for suffix in (".bin", ".idx"):
            shutil.copyfile(prefix + suffix, tmp_path / "moved" / Path(prefix + suffix).name)
        adopt([tmp_path / "moved" / Path(prefix).name], tmp_path / "moved" / f"{Path(prefix).name}_adopted")
    datasets = {name: {"path": f"{name}_adopted", "weight": w} for name, w in (("a", 0.7), ("b", 0.3))}
    path = tmp_path / "moved/data.yaml"
    path.write_text(yaml.safe_dump({"datasets": datasets}))
    moved = data_of(path, dataset_config(LENGTH), SIZES, split="90,10,0", consumed=40, saved=data.state(40))
    assert moved.spec == data.spec
    assert made((prefixes, [0.7, 0.3]), tmp_path / "cache", consumed=48, saved=moved.state(48)).spec == data.spec


@pytest.mark.usefixtures("one_process")
def test_validation_sets_are_megatrons(tmp_path):
    """One for each path, in their sequence, by which it names losses; one of all where --split cuts it off."""
    flags = {"multiple_validation_sets": True, "full_validation": True, "path_to_cache": str(tmp_path / "cache")}
    paths = [write_corpus(tmp_path / f"{k}_text", [[*range(10 * k, 10 * k + 8), EOD] * 10]) for k in (5, 1, 3)]
    given = {**flags, "blend_per_split": [([paths[1]], None), (paths, None), None], "split": None}
    theirs = build_stock(dataset_config(LENGTH, **given), [60, None, 0])[1]
    ours = made(None, tmp_path / "cache", options=given, sizes=[60, None, 0]).datasets()[1]

    def windows(dataset):
        return sorted(dataset[k]["tokens"].tolist() for k in range(len(dataset)))

    assert [windows(one) for one in ours] == [windows(one) for one in theirs]
    paths = [random_corpus(tmp_path / f"{name}_text", seed) for seed, name in enumerate("cab")]
    given = {**flags, "split": "50,50,0"}
    theirs = build_stock(dataset_config(LENGTH, blend=(paths, None), **given), [60, None, 0])[1]
    (ours,) = made((paths, None), tmp_path / "cache", options=given, sizes=[60, None, 0]).datasets()[1]
    assert len(ours) == len(theirs)


@pytest.mark.usefixtures("one_process")
def test_a_run_of_megatrons_goes_on_with_its_samples_and_then_with_ours(tmp_path, prefixes):
    """No configuration and no adopted dataset: the samples are the stock builder's, whoever resumes next."""
    cache, blend = tmp_path / "cache", (prefixes, [0.7, 0.3])
    options = {"blend": blend, "split": "90,10,0", "path_to_cache": str(cache)}
    stock = build_stock(dataset_config(LENGTH, **options), SIZES)
    data = made(blend, cache, consumed=40)
    again = made(blend, cache, consumed=48, saved=data.state(48))
    for one in (data, again):
        ours = one.datasets()
        for theirs, mine in zip(stock[:2], ours[:2], strict=True):
            for t in range(len(mine)):
                assert_equal_samples(mine[t], theirs[t], ignore=["sample_index"])
    # Longer than Megatron's index files: on with ours, said so, and from then on as any run of ours.
    (tmp_path / "yaml").mkdir()
    yaml_file, _ = adopted(tmp_path / "yaml", "ab", weights="by_size")
    config = dataset_config(LENGTH)
    with pytest.raises(
        ResumeError, match=r"index files end, continue with sample 60 .* --conceptloader-allow-changed order"
    ):
        data_of(yaml_file, config, consumed=60, saved=again.state(60))
    longer = made(blend, cache, sizes=[200, 8, 0], consumed=60, saved=again.state(60), accept=["order"])
    assert longer.spec.order == "shuffled"
    assert len(longer.datasets()[0]) == 200
    later = made(blend, cache, consumed=80, saved=longer.state(80))
    assert later.spec == longer.spec
    with pytest.raises(ConfigError, match="--data-cache-path: found nothing"):
        made(blend, None, consumed=40)


# Name, what is asked, where, what is found, a word of the fix.
ERRORS = """
few documents | {split: '99,1,0'} | --split | no document | --split
long windows | {length: 100} | --seq-length | 100 | --seq-length
no weight | {weights: [0.0, 0.0]} | --data-path | 0.0 | above 0
less than nothing | {weights: [0.5, -0.5]} | --data-path | -0.5 | above 0
another split | {split: '80,20,0', consumed: 40} | - | --split (extra.split_documents): saved | -
another length | {length: 7, consumed: 40} | - | --seq-length (seq_len): saved 13, now 7 | -
no training | {blend_per_split: true} | --train-data-path | nothing to train on | --train-data-path
"""


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize(("name", "asked", "where", "found", "fix"), cells(ERRORS))
def test_errors_name_the_options_that_were_given(tmp_path, prefixes, name, asked, where, found, fix):
    """And no key of a configuration, which nobody wrote."""
    asked = {"split": "90,10,0", "length": LENGTH, "weights": [0.5, 0.5], **yaml.safe_load(asked)}
    small = random_corpus(tmp_path / "small", 1, documents=3)
    state = made((prefixes, [0.5, 0.5]), tmp_path / "c").state(40)
    blend = (prefixes if "consumed" in asked else [prefixes[0], small], asked["weights"])
    options = {"blend": blend, "split": asked["split"], "path_to_cache": str(tmp_path / "c")}
    if "blend_per_split" in asked:
        options |= {"blend": None, "blend_per_split": [None, blend, None], "split": None}
    saved = {"consumed": 40, "saved": state} if "consumed" in asked else {}
    with raises((ConfigError, ResumeError), where, found, fix=fix):
        data_of(None, dataset_config(asked["length"], **options), SIZES, **saved)


def test_files_are_adopted_once_and_again_when_they_change(tmp_path, prefixes):
    """Processes that come at the same time make one dataset; beside the files without a cache. An index is read whole:
    where a document begins counts."""
    documents = [[*range(1, 20), EOD] for _ in range(40)]
    write_corpus(prefixes[0], documents)
    with multiprocessing.get_context("fork").Pool(4) as pool:
        found = pool.starmap(in_place.datasets_in_place, [((prefixes, [1, 2]), None)] * 4)
    home = tmp_path / ".conceptloader"
    assert all(one == found[0] for one in found)
    assert len([place for place in home.iterdir() if place.is_dir()]) == 2
    assert found[0]["allowed_roots"] == [str(tmp_path)]
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*")}
    assert in_place.datasets_in_place((prefixes, [1, 2]), None) == found[0]
    assert {path: path.stat().st_mtime_ns for path in home.rglob("*")} == before

    def stream():
        return cl.open_dataset(found[0]["datasets"]["b_text"]["path"], roots=[tmp_path]).stream_fingerprint

    first = stream()
    os.utime(prefixes[1] + ".bin", ns=(1, 1))
    shutil.rmtree(home)  # where tables are made again, content counts, and not its time
    assert in_place.datasets_in_place((prefixes, [1, 2]), None) == found[0]
    assert stream() == first
    places = {found[0]["datasets"]["a_text"]["path"]}
    for changed in ([documents[0][:-1], [EOD, *documents[1]]], [[2, *documents[0][1:]], documents[1]]):
        write_corpus(prefixes[0], [*changed, *documents[2:]])  # files of the same sizes
        again = in_place.datasets_in_place((prefixes, [1, 2]), None)["datasets"]
        places.add(again["a_text"]["path"])
        assert again["b_text"] == found[0]["datasets"]["b_text"]
    assert len(places) == 3


def test_names_are_what_tells_paths_apart(tmp_path):
    for name in ("x/web", "y/web", "y/code"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        random_corpus(tmp_path / name, 1)
    paths = [str(tmp_path / name) for name in ("x/web", "y/web", "y/code")]
    (tmp_path / "x/text").write_text("no tokens")
    whole = in_place.datasets_in_place((paths, None), str(tmp_path / "c"))["datasets"]
    assert [*whole] == ["x-web", "y-web", "code"]
    suffixed = [path + suffix for path, suffix in zip(paths, (".bin", ".idx", ""), strict=True)]
    assert in_place.datasets_in_place((suffixed, None), str(tmp_path / "c"))["datasets"] == whole
    for blend, message in (
        (([paths[0], paths[0]], None), "found twice, expected each path once; .* weights of one path are added"),
        ((["s3://bucket/web"], None), "found a URL, expected files on a disk"),
        (([str(tmp_path / "nothing")], None), "found nothing there, expected a folder of token files"),
        (([str(tmp_path / "x/text")], None), "found neither PREFIX.bin with PREFIX.idx .* --dtype "),
    ):
        with pytest.raises(ConfigError, match=message):
            in_place.datasets_in_place(blend, None)


@pytest.mark.usefixtures("one_process")
def test_weights_of_a_path_that_is_given_twice_are_added(tmp_path, prefixes):
    a, b = prefixes
    ours = made(([a, b, a], [0.25, 0.5, 0.25]), tmp_path / "cache")
    assert ours.spec == made(([a, b], [0.5, 0.5]), tmp_path / "cache").spec


@pytest.mark.usefixtures("one_process")
def test_a_folder_of_megatrons_indices_beside_the_files(tmp_path, prefixes):
    """Without --data-cache-path Megatron leaves PREFIX/cache/GPTDataset_indices, beside PREFIX.idx."""
    options = {"blend": ([prefixes[0]], None), "split": "90,10,0"}
    stock = build_stock(dataset_config(LENGTH, **options), SIZES)
    assert Path(prefixes[0], "cache", "GPTDataset_indices").is_dir()
    assert made(options["blend"], None).spec.order == "shuffled"
    mine = made(options["blend"], None, consumed=40).datasets()[0]
    for t in range(len(mine)):
        assert_equal_samples(mine[t], stock[0][t], ignore=["sample_index", "dataset_id"])
    shutil.rmtree(prefixes[0])
    with pytest.raises(ConfigError, match="--data-cache-path: found nothing"):
        made(options["blend"], None, consumed=40)


def test_linked_files_are_allowed(tmp_path, prefixes):
    (tmp_path / "links").mkdir()
    for suffix in (".bin", ".idx"):
        (tmp_path / f"links/a{suffix}").symlink_to(prefixes[0] + suffix)
    found = in_place.datasets_in_place(([str(tmp_path / "links/a")], None), str(tmp_path / "cache"))
    blend = cl.open_blend({"seq_len": 8, **found})
    assert len(tokens_of(blend, 0)) == 9


CONFIG = "--conceptloader-config"


MISSPELT = """
--conceptloder-config x | - | --conceptloder-config | --conceptloader-config
--concept-loader-config=x | - | --concept-loader-config | --conceptloader-config
--conceptloader-alow-changed x | - | --conceptloader-alow-changed | --conceptloader-allow-changed
--conceptloader-verbosity 1 | - | --conceptloader-verbosity | -
--conceptloader-allow-changed order | --conceptloader-allow-changed | --conceptloader-config | -
--data-path x --conceptloader-valid-config y | --conceptloader-valid-config | --conceptloader-config | -
"""


@pytest.mark.parametrize(("words", "place", "found", "fix"), cells(MISSPELT))
def test_options_that_are_misspelt_or_alone(words, place, found, fix):
    words = shlex.split(words)
    with raises(ConfigError, place, found, fix=fix):
        take_options(words)


def test_scripts_of_other_data_are_refused(monkeypatch):
    """Datasets that are none of GPTDataset, and those that no builder has built; mock data stay."""
    monkeypatch.setattr(sys, "argv", ["pretrain_other.py"])
    options, _ = take_options(["--data-path", "x"])
    run = launch.Run(options)

    class Builder:
        cls = type("T5MaskedWordPieceDataset", (), {})
        config = dataset_config(LENGTH)

    with pytest.raises(ConfigError, match=r"^pretrain_other.py: found datasets of class T5MaskedWordPieceDataset"):
        launch.config_of(Builder())
    with pytest.raises(ConfigError, match=r"found data that BlendedMegatronDatasetBuilder has not built"):
        run.iterator(None, iter([]))
    config = dataset_config(LENGTH)
    config.fim_rate = 0.5  # as a GPTFIMDatasetConfig has it
    with raises(ConfigError, "--fim-data", "samples are as the dataset has them"):
        data_of("run.yaml", config)
    Builder.cls = launch.MockGPTDataset
    assert run.build(lambda builder: "stock", Builder()) == "stock"
    run.iterator(None, iter([]))


@pytest.mark.usefixtures("one_process")
def test_a_middle_stage_with_mtp_layers_gets_tokens(tmp_path, prefixes, monkeypatch):
    from megatron.core import parallel_state
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

    layout = PipelineParallelLayerLayout("Et|tm|L", 3)
    expected = {"tokens", "labels", "loss_mask", "position_ids", "attention_mask"}
    monkeypatch.setattr(parallel_state, "get_pipeline_model_parallel_world_size", lambda: 3)
    monkeypatch.setattr(parallel_state, "is_pipeline_first_stage", lambda **_: False)
    monkeypatch.setattr(parallel_state, "is_pipeline_last_stage", lambda **_: False)
    for rank, given, keys in ((1, layout, expected), (1, None, set()), (0, layout, set())):
        monkeypatch.setattr(parallel_state, "get_pipeline_model_parallel_rank", lambda rank=rank: rank)
        data = made((prefixes, None), tmp_path / "cache", pipeline_layout=given, stage="none")
        dataset = data.datasets()[0]
        batch = data.get_batch(data.iterator(dataset)) if keys else data.get_batch(None)
        assert (dataset is None) == (not keys)
        assert set(batch) == keys
        assert all(isinstance(tensor, torch.Tensor) for tensor in batch.values())
