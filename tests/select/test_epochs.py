"""Repetition by quality: `datasets.NAME.epochs`, and buckets of a column by a curve of epochs."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.errors import ConfigError
from conceptloader.testing import random_documents, write_dataset
from conceptloader.trace.curve import Curve, bucketed
from tests.raises import cells

SEQ_LEN = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("epochs")
    for seed, name in enumerate(("web", "code")):
        write_dataset(folder / name, random_documents(600, seed=seed, mean_length=40, prefix=name), shards=3)
    rng = np.random.default_rng(0)
    quality = rng.choice(np.linspace(0, 1, 400), 600)  # some of one value
    table = pa.table({"id": [f"web-{k}" for k in range(600)], "quality": quality})
    pq.write_table(table, folder / "quality.parquet")
    return folder


def of(folder, weights=None, **datasets):
    found = {name: {"path": str(folder / name), **entry} for name, entry in datasets.items()}
    return {"seq_len": SEQ_LEN, "datasets": found, **(weights or {})}


def test_epochs_are_how_often_a_dataset_is_read(folder):
    order = cl.open_blend(of(folder, web={"epochs": 2.5}, code={"epochs": 0.5})).order
    web, code = (order.sizes[order.names.index(name)] for name in ("web", "code"))
    total = int(2.5 * web + 0.5 * code)
    counts = dict(zip(order.names, order.counts(total), strict=True))
    assert abs(counts["web"] - 2.5 * web) <= 2
    assert abs(counts["code"] - 0.5 * code) <= 2
    by_size = cl.open_blend(of(folder, {"weights": "by_size"}, web={"epochs": 3}, code={})).order
    counts = by_size.counts(3 * web + code)
    assert abs(counts[by_size.names.index("web")] - 3 * web) <= 2
    same = cl.open_blend(of(folder, web={"weight": 3 * web}, code={"weight": code}))
    assert same.spec.hash == cl.open_blend(of(folder, web={"epochs": 3}, code={"epochs": 1})).spec.hash


BESIDE = """
{} | {weight: 1}
{temperature: 2.0} | {epochs: 1}
{phases: [{at: 0, weights: {web: 1}}]} | {epochs: 1}
{order: sequential} | {epochs: 1}
"""


@pytest.mark.parametrize(("weights", "code"), cells(BESIDE))
def test_epochs_beside_other_proportions_are_refused(folder, weights, code):
    weights, code = yaml.safe_load(weights), yaml.safe_load(code)
    with pytest.raises(ConfigError, match=r"datasets\.(web|code)\.epochs"):
        cl.open_blend(of(folder, weights, web={"epochs": 2}, code=code))


def test_exposure_of_a_run_is_the_curve(folder, capsys):
    """By the documents that a run reads: those above a quantile of the tokens ever more often, those below never."""
    out = folder / "by-quality"
    table = f"q={folder / 'quality.parquet'}"
    command = [
        "subset",
        str(folder / "web"),
        "--by",
        "(select quality from q where q.id = documents.id)",
        "--table",
        table,
    ]
    assert main([*command, "--buckets", "10", "--epochs", "0.4:0, 1:6", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    config = yaml.safe_load(printed[printed.index("datasets:") :])
    assert all(name.startswith("by-quality-") for name in config["datasets"])
    blend = cl.open_blend({**config, "seq_len": SEQ_LEN})
    web, order = cl.open_dataset(folder / "web"), blend.order
    lengths = np.diff([web.document_range(k) for k in range(web.num_documents)], axis=1).ravel()
    quality = pq.read_table(folder / "quality.parquet")["quality"].to_numpy()
    total = round(
        sum(size * config["datasets"][name]["epochs"] for name, size in zip(order.names, order.sizes, strict=True))
    )
    read = dict(zip(order.names, order.counts(total), strict=True))
    found = np.zeros(web.num_documents)
    for name, size in zip(order.names, order.sizes, strict=True):
        members = cl.open_dataset(config["datasets"][name]["path"])
        found[members.sources(np.arange(members.num_documents))] = read[name] / size
    by = np.argsort(quality, kind="stable")
    middle = (np.cumsum(lengths[by]) - lengths[by] / 2) / lengths.sum()
    wanted = np.maximum(0, (middle - 0.4) / 0.6 * 6)
    assert np.abs(found[by] - wanted).max() < 0.75  # half a bucket of a tenth rises by 0.5
    assert abs((found[by] * lengths[by]).sum() / lengths.sum() - (wanted * lengths[by]).sum() / lengths.sum()) < 0.05
    assert not found[by][middle < 0.35].any()


def test_equal_values_stay_together():
    names, epochs = bucketed(np.array(["1", "1", "1", "2"]), np.array([1, 1, 1, 5]), 4, Curve.read("0:1"))
    assert [*names] == ["1", "1", "1", "3"]
    assert epochs == [1, 1]
    curve = Curve.read("0.5:0, 1:4")
    assert (curve.mean(0, 0.5), curve.mean(0.5, 1), curve.mean(0, 1)) == (0, 2, 1)
    names, _ = bucketed(np.array(["inf", "inf", "1"]), np.array([4, 4, 4]), 3, Curve.read("0:1"))
    assert names[0] == names[1]
