"""What a writer refuses, and that nothing is lost by it: each says where, what was found and what to do."""

import os
import random
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.columns.finish import finish, remove
from conceptloader.errors import ConfigError, FormatError, ReadError
from conceptloader.ingest.adopt.adopt import adopt
from conceptloader.trace.subset import SubsetOptions, make_subsets
from tests.columns.teacher import Corpus
from tests.raises import raises

K, S = 3, 16
CORPUS = Corpus.random(120, seed=7, mean=20)


@pytest.fixture
def path(tmp_path):
    return CORPUS.write(tmp_path / "web")


def config(path, **more):
    return {"seq_len": S, "datasets": {"web": {"path": str(path)}}, "packing": {}, **more}


def whole(loader):
    """Batches that hold all samples once, and some twice."""
    size = sum(loader.blend.order.sizes)
    return [batch for batch, _ in zip(loader, range(-(-size // 4)), strict=False)]


def begun(path, name="t", dtype="u4", shape=K, **more):
    loader = cl.batches(config(path), micro_batch_size=4)
    return cl.column_writer(path, name, dtype, shape, loader=loader, **more), whole(loader)


def values(batch, k=K):
    return CORPUS.values(batch["labels"], k)


def stored(path, name="t", dtype="<u4", k=K):
    """All items, read as docs/format.md says."""
    shards = cl.open_dataset(path).num_shards
    return np.concatenate([np.fromfile(f"{path}/{n:05}.{name}.column", dtype).reshape(-1, k) for n in range(shards)])


def filled(path):
    writer, batches = begun(path)
    for batch in batches:
        writer.write(batch, values(batch))
    return writer


@pytest.mark.parametrize("kind", ["torch", "numpy"])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "bf16", "i1", "u8"])
def test_values_of_numpy_and_torch(path, dtype, kind):
    writer, batches = begun(path, dtype=dtype, shape=())
    rng = np.random.default_rng(0)
    for batch in batches:
        given = (batch["labels"] % 100 + 0.3) if dtype[0] in "fb" else batch["labels"] % 100
        if kind == "torch":
            given = torch.from_numpy(given)
            given = given.to(torch.bfloat16) if dtype == "bf16" and rng.integers(2) else given
        writer.write(batch, given)
    column = writer.finish()
    found = np.concatenate([np.fromfile(f"{path}/{n:05}.t.column", column.stored) for n in range(3)])
    tokens = np.arange(CORPUS.starts[0], CORPUS.starts[-1])
    wanted = tokens % 100 + 0.3 if dtype[0] in "fb" else tokens % 100
    wanted = (
        torch.from_numpy(wanted).to(torch.bfloat16).view(torch.int16).numpy().view("u2") if dtype == "bf16" else wanted
    )
    kept = ~np.isin(tokens, CORPUS.starts)
    assert (found == wanted.astype(column.stored))[kept].all()


def test_inputs_and_matrices_of_an_adopted_dataset_in_windows(tmp_path):
    tokens = np.arange(1, 1 + 40 * S + 5, dtype="<u4")
    for n, part in enumerate(np.split(tokens, [101])):
        np.save(tmp_path / f"{n}.npy", part)
    adopt([tmp_path / "0.npy", tmp_path / "1.npy"], tmp_path / "web")
    own = {"seq_len": S, "datasets": {"web": {"path": str(tmp_path / "web")}}}
    loader = cl.batches(own, micro_batch_size=5)
    with cl.column_writer(tmp_path / "web", "codes", "u2", (2, 2), loader=loader, at="inputs") as writer:
        for batch in [batch for batch, _ in zip(loader, range(8), strict=False)]:
            assert not writer.has(batch)
            writer.write(batch, (batch["input_ids"][..., None, None] * [[2, 3], [5, 7]]).astype(np.int32))
            writer.flush()
            assert writer.has(batch)
    with raises(ConfigError, "codes.column.unfinished", "5 of 645 tokens", fix="partial=True"):
        writer.finish()
    column = writer.finish(partial=True)
    assert (column.holes.tokens, column.holes.starts) == (5, 0)
    read = cl.batches(
        {**own, "seq_len": 7, "outputs": {"columns": {"codes": {"at": "inputs", "missing": 1}}}}, micro_batch_size=8
    )
    for batch, _ in zip(read, range(12), strict=False):
        wanted = np.where(batch["input_ids"] <= 40 * S, batch["input_ids"], 0)[..., None, None] * [[2, 3], [5, 7]]
        assert (batch["codes"] == np.where(wanted == 0, 1, wanted)).all()


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (lambda v: v[:, :-1], "shape [4, 15, 3]"),
        (lambda v: v[..., :2], "shape [4, 16, 2]"),
        (lambda v: v.transpose(1, 0, 2), "shape [16, 4, 3]"),
        (lambda v: v[0], "shape [16, 3]"),
        (lambda v: v.astype("f4"), "float32"),
        (lambda v: v > 3, "bool"),
        (lambda v: v.astype("i8") - (1 << 40), "-1099"),
        (lambda v: v.astype("i8") + (1 << 40), "1099"),
    ],
)
def test_another_shape_or_kind_is_refused(path, given, found):
    writer, batches = begun(path)
    with raises(ConfigError, "column t", found):
        writer.write(batches[0], given(values(batches[0])))
    assert writer.tokens == 0
    assert not writer.has(batches[0])


@pytest.mark.parametrize(
    ("dtype", "bad"), [("f2", np.nan), ("f4", np.nan), ("bf16", np.nan), ("f2", 1e6), ("bf16", 3.4e38)]
)
def test_nan_and_what_overflows_is_named(path, dtype, bad):
    writer, batches = begun(path, dtype=dtype, shape=())
    batch = batches[0]
    given = np.full(batch["labels"].shape, -np.inf)  # which a probability of 0 has
    given[batch["loss_mask"] == 0] = np.nan  # padding
    writer.write(batches[1], np.zeros(batch["labels"].shape, "f4"))
    row, place = np.argwhere(batch["loss_mask"] > 0)[5].tolist()
    given[row, place] = bad
    with np.errstate(over="ignore"):
        narrow = given.astype("f2" if bad == 1e6 else "f4")
    for kind in (given, torch.from_numpy(given), narrow):
        if not (bad == 1e6 and kind.dtype == np.float16):  # infinite already
            with raises(ConfigError, f"sample {batch['sample_index'][row]}, position {place}", expected=dtype):
                writer.write(batch, kind)
    if np.isnan(bad):
        with raises(ConfigError, f"position {place}"):
            writer.write(batch, torch.from_numpy(given).to(torch.bfloat16))
    given[row, place] = 0
    assert writer.write(batch, given) > 0


def test_tokens_of_another_dataset_are_refused(path, tmp_path):
    Corpus.random(120, seed=8, mean=20).write(tmp_path / "other")
    loader = cl.batches(config(tmp_path / "other"), micro_batch_size=4)
    with raises(ConfigError, "column t: loader", f"web ({tmp_path}/other)", "reads this dataset"):
        cl.column_writer(path, "t", "u4", K, loader=loader)
    with raises(ConfigError, "column t", "no loader"):
        cl.column_writer(path, "t", "u4", K).write(next(iter(loader)), np.zeros((4, S, K), int))


def test_rows_that_are_not_those_of_the_loader_are_refused(path):
    writer, batches = begun(path)
    batch = batches[0]
    other = next(iter(cl.batches(config(path, seed=1), micro_batch_size=4)))
    with raises(ConfigError, " of labels", "token", path):
        writer.write(other, values(other))
    for name in ("labels", "sample_index"):
        with raises(ConfigError, "batch", f"no {name}"):
            writer.write({key: value for key, value in batch.items() if key != name}, values(batch))
    turned = {**batch, "labels": batch["labels"][::-1]}
    with raises(ConfigError, " of labels"):
        writer.write(turned, values(turned))
    cut = {key: value[:, : S // 2] if value.shape[1:] == (S,) else value for key, value in batch.items()}
    with raises(ConfigError, "batch"):  # as a rank of context parallelism has it
        writer.write(cut, values(cut))
    assert writer.write({**batch, "labels": np.where(batch["loss_mask"] > 0, batch["labels"], -100)}, values(batch))


def test_rows_of_other_datasets_are_passed_over(path, tmp_path):
    Corpus.random(50, seed=8, mean=20).write(tmp_path / "other")
    mixed = config(path, weights="by_size")
    mixed["datasets"]["other"] = {"path": str(tmp_path / "other")}
    loader = cl.batches(mixed, micro_batch_size=4)
    with cl.column_writer(path, "t", "u4", K, loader=mixed) as writer:
        for batch, _ in zip(loader, range(20), strict=False):
            writer.write(batch, values(batch))
        assert writer.tokens > 0


@pytest.mark.parametrize("seed", range(6))
def test_any_history_of_writers(path, seed):
    """Other sequence lengths, packings, ranks, values and kills: what was flushed is there, and the last holds."""
    draw, expected = random.Random(seed), {}
    for session in range(8):
        ranks = draw.randrange(1, 4)
        own = config(path, seed=seed, seq_len=draw.choice([7, 16, 40])) | draw.choice([{}, {"packing": None}])
        size = sum(cl.open_blend(own).order.sizes) // ranks * ranks  # of an epoch, where no rank has what others have
        loaders = [
            cl.batches(own, micro_batch_size=1, dp_rank=k, dp_size=ranks, num_samples=size) for k in range(ranks)
        ]
        writers = [cl.column_writer(path, "t", "u4", (), loader=loader) for loader in loaders]
        begun = set(expected)
        for loader, writer in zip(loaders, writers, strict=True):
            known, new = set(begun), {}
            for number, batch in zip(range(draw.randrange(30)), loader, strict=False):
                places = [(t, 1000 * session + number + t) for t in batch["labels"][batch["loss_mask"] > 0].tolist()]
                assert writer.has(batch) == all(token in known for token, _ in places)
                count = writer.write(batch, 1000 * session + number + batch["labels"])
                assert count == len(places)
                new |= dict(places)
                if draw.random() < 0.3:
                    writer.flush()
                    known, expected, new = known | set(new), expected | new, {}
            if draw.random() < 0.5:  # or it is killed
                writer.close()
                expected |= new
    cl.column_writer(path, "t", "u4").finish(partial=True)
    found, known = cl.open_dataset(path).column_values("t", 0, int(CORPUS.starts[-1]) - 1)
    assert dict(zip((np.flatnonzero(known) + 1).tolist(), found[known].tolist(), strict=True)) == expected
    assert cl.verify(path, full=True) == []


def test_half_a_column(path):
    writer, batches = begun(path)
    for batch in batches[:3]:
        writer.write(batch, values(batch))
    with raises(ConfigError, "t.column.unfinished", "begin documents", fix="has") as caught:
        writer.finish()
    missing = CORPUS.starts[-1] - 1 - writer.tokens
    assert f"{missing:,} of {CORPUS.starts[-1] - 1:,}" in caught.value.found
    with raises(ConfigError, "outputs.columns.t"):  # students cannot take what is not finished
        cl.batches(config(path, outputs={"columns": {"t": "labels"}}), micro_batch_size=4)
    again, _ = begun(path)  # and it can be gone on with
    for batch in batches[3:]:
        again.write(batch, values(batch))
    assert again.finish().holes is not None
    with raises(ConfigError, "t.column.json", "a column", fix="--remove"):
        begun(path)


def test_a_dataset_that_is_built_again_meanwhile(path, tmp_path):
    filled(path).close()
    other = Path(Corpus.random(120, seed=8, mean=20).write(tmp_path / "other"))
    os.rename(f"{path}/t.column.unfinished", other / "t.column.unfinished")
    for use in (lambda: begun(str(other)), lambda: finish(other, "t")):
        with raises(FormatError, "column.json: stream_fingerprint"):
            use()


def test_items_that_are_damaged_are_found(path):
    writer = filled(path)
    writer.close()
    (file,) = Path(path, "t.column.unfinished").glob("*.values")
    whole_file = file.read_bytes()
    for at in (-5, 5, 40):  # an item, the number of runs, a run
        damaged = bytearray(whole_file)
        damaged[at] ^= 0xFF
        file.write_bytes(damaged)
        with raises(FormatError, file, "corrupt", fix=f"rm {file}"):
            writer.finish()
        with raises(FormatError, file) if at > 0 else nullcontext():
            begun(path)
    file.write_bytes(whole_file)
    writer.finish()


def interrupt(writer, monkeypatch, **how):
    rename, calls = os.rename, []

    def failing(source, target):
        calls.append(target)
        if target.endswith("00001.t.column"):
            raise OSError(5, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(os, "rename", failing)
    with raises(ReadError, "00001.t.column"):
        writer.finish(**how)
    monkeypatch.undo()
    assert len(calls) >= 2


def test_it_is_finished_after_an_interruption(path, monkeypatch):
    writer = filled(path)
    interrupt(writer, monkeypatch)
    assert not os.path.exists(f"{path}/t.column.json")
    writer.finish()
    assert cl.verify(path, full=True) == []


def test_a_finished_column_is_not_finished_again(path, monkeypatch):
    """Of a process that was killed before it removed the folder."""
    writer = filled(path)
    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", lambda *_, **__: None)
        column = writer.finish()
    assert main(["column", path, "t", "--finish", "--partial"]) == 0
    assert not os.path.exists(f"{path}/t.column.unfinished")
    assert cl.open_dataset(path).columns["t"].fingerprint == column.fingerprint
    with raises(ConfigError, "t.column.json", "a column", fix="--remove"):
        writer.finish()


def test_what_a_killed_removal_left_is_removed(path):
    writer = filled(path)
    writer.finish()
    os.unlink(f"{path}/t.column.json")
    assert len(remove(path, "t")) == 6, "items and holes of three shards"
    with raises(ConfigError, found="no column 't'"):
        remove(path, "t")


def test_what_cannot_get_a_column(path, tmp_path):
    make_subsets(path, tmp_path / "some", SubsetOptions(ids=["doc-3", "doc-4"]))
    with raises(ConfigError, tmp_path / "some", "a subset", fix=path):
        cl.column_writer(tmp_path / "some", "t", "u4", K)
    with raises(ConfigError, "dtype", "u3"):
        cl.column_writer(path, "t", "u3", K)
    for name in ("T", "tokens", "labels"):
        with raises(ConfigError, found=name):
            cl.column_writer(path, name, "u4", K)
    with raises(ConfigError, "shape"):
        cl.column_writer(path, "t", "u4", (2, 2, 2))
    begun(path)
    for key, more in {"dtype": {"dtype": "u2"}, "shape": {"shape": 4}, "extra": {"at": "inputs"}}.items():
        with raises(ConfigError, f"t.column.unfinished: {key}", fix="--remove"):
            begun(path, **more)


def test_documents_in_any_order_by_id_or_number(path, tmp_path):
    items = CORPUS.values(np.arange(CORPUS.starts[0], CORPUS.starts[-1]), K).astype("u4")
    np.save(tmp_path / "items.npy", items)
    assert main(["column", path, "t", str(tmp_path / "items.npy")]) == 0
    borders = (CORPUS.starts - 1).tolist()
    with cl.column_writer(path, "u", "u4", K) as writer:
        for n in np.random.default_rng(0).permutation(120).tolist():
            writer.put(f"doc-{n}" if n % 2 else n, items[borders[n] : borders[n + 1]])
        with raises(ConfigError, "document 5", "2 items", f"{CORPUS.lengths[5]}, one for each token"):
            writer.put(5, items[:2])
        with raises(ConfigError, "'doc-999'", "0 documents"):
            writer.put("doc-999", items[:2])
    assert writer.finish().fingerprint == cl.open_dataset(path).columns["t"].fingerprint
    assert (stored(path, "u") == items).all()
    assert cl.verify(path, full=True) == []


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
    assert not list(Path(path).glob("*column*"))
