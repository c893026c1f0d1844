"""`conceptloader column`: columns out of .npy, finished and removed."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.columns.from_files import add_column
from conceptloader.errors import ConfigError, InputError
from tests.columns.teacher import Corpus
from tests.columns.test_writing import CORPUS, begun, config, stored, values, whole
from tests.raises import raises

K = 4
TOKENS = np.arange(CORPUS.starts[0], CORPUS.starts[-1])


@pytest.fixture
def path(tmp_path):
    return CORPUS.write(tmp_path / "web")


def items(dtype="u4", k=K):
    return CORPUS.values(TOKENS, k).astype(dtype)


def saved(tmp_path, array):
    np.save(tmp_path / "items.npy", array)
    return str(tmp_path / "items.npy")


def test_an_array(path, tmp_path, capsys):
    file = saved(tmp_path, items())
    assert main(["column", path, "t", file, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["dtype"], said["shape"], said["missing"]) == ("u4", [K], 0)
    assert said["bytes"] == items().nbytes
    assert main(["inspect", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"]["t.column"] == said["bytes"]
    assert cl.verify(path, full=True) == []
    assert (stored(path, k=K) == items()).all()
    loader = cl.batches(config(path, outputs={"columns": {"t": "labels"}}), micro_batch_size=4)
    for batch in whole(loader):
        kept = batch["loss_mask"] > 0
        assert (batch["t"] == CORPUS.values(batch["labels"], K))[kept].all()
    assert main(["column", path, "t", "--remove"]) == 0
    assert not [one for one in os.listdir(path) if ".t." in one or "t.column" in one]


def test_documents_in_any_order_by_id_or_number(path, tmp_path):
    fingerprint = add_column(path, "t", saved(tmp_path, items())).fingerprint
    borders = (CORPUS.starts - 1).tolist()
    with cl.column_writer(path, "u", "u4", K) as writer:
        for n in np.random.default_rng(0).permutation(120).tolist():
            writer.put(f"doc-{n}" if n % 2 else n, items()[borders[n] : borders[n + 1]])
        with raises(ConfigError, "document 5", "2 items", f"{CORPUS.lengths[5]}, one for each token"):
            writer.put(5, items()[:2])
        with raises(ConfigError, "'doc-999'", "0 documents"):
            writer.put("doc-999", items()[:2])
    assert writer.finish().fingerprint == fingerprint
    assert (stored(path, "u", k=K) == items()).all()
    assert cl.verify(path, full=True) == []


def test_what_does_not_fit_is_named(path, tmp_path):
    def refused(kind, where, found, file):
        with raises(kind, where, found):
            add_column(path, "t", file)
        assert not os.path.exists(f"{path}/t.column.json")

    refused(ConfigError, "items.npy", f"{len(TOKENS) - 1:,} items", saved(tmp_path, items()[:-1]))
    refused(InputError, "items.npy", "Fortran", saved(tmp_path, np.asfortranarray(items())))
    refused(InputError, "items.npy", ">u4", saved(tmp_path, items(">u4")))
    nan = items("f4")
    nan[700, 2] = np.nan
    refused(ConfigError, "items.npy, token 700", "nan", saved(tmp_path, nan))
    whole_file = Path(saved(tmp_path, items())).read_bytes()
    for damaged in (whole_file[:-1], b"no array"):
        (tmp_path / "items.npy").write_bytes(damaged)
        refused(InputError, "items.npy", "no whole .npy", str(tmp_path / "items.npy"))


def test_a_column_is_finished_and_removed_by_the_command(path, capsys):
    writer, batches = begun(path)
    for batch in batches[:4]:
        writer.write(batch, values(batch))
    writer.close()
    assert main(["column", path, "t", "--finish"]) == 2
    assert "tokens without a value" in capsys.readouterr().err
    assert main(["column", path, "t", "--finish", "--partial"]) == 0
    assert main(["column", path, "t", "--remove"]) == 0
    begun(path)
    assert main(["column", path, "t", "--remove"]) == 0
    for words in (["--remove"], ["--finish"], [], ["--remove", "--finish"], ["codes.npy", "--finish"]):
        assert main(["column", path, "t", *words]) == 2, words
    assert sorted(os.listdir(path)) == sorted(os.listdir(Corpus.write(CORPUS, Path(path).parent / "new")))
