"""Runs over packs: everything that holds of windows holds of them."""

import pytest
import yaml

import conceptloader as cl
from conceptloader.base.hashing import fingerprint
from conceptloader.base.strict import plain as plain_of
from conceptloader.cli import main
from conceptloader.config import open_blend
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.loader.torch.loader import make_dataloader
from conceptloader.order.progress.spec import OrderSpec
from conceptloader.order.segments import Segment
from conceptloader.testing import random_documents, write_dataset
from tests.raises import raises

SIZE = 32


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    """Two datasets, a stream of two shards of which a split is read, and one of documents; two phases and a skip."""
    folder = tmp_path_factory.mktemp("packs")
    web = write_dataset(folder / "web", random_documents(150, seed=1, mean_length=25, prefix="web"), shards=2)
    raw = random_documents(120, seed=2, mean_length=20, prefix="chat")
    chat = write_dataset(folder / "chat", raw, mode="document")
    return {
        "seq_len": SIZE,
        "packing": {"bins": 8},
        "outputs": {"cu_seqlens": True, "document_ids": True},
        "datasets": {"web": {"path": web, "split": [0.1, 1]}, "chat": {"path": chat}},
        "phases": [{"at": 0, "weights": {"web": 3, "chat": 1}}, {"at": 60, "weights": {"web": 1, "chat": 1}}],
        "skip": [{"at": 40, "count": 5}],
        "tracks": {"concepts": {}},
    }


def rows(loader, micro_batches):
    found = []
    for _, batch in zip(range(micro_batches), loader, strict=False):
        columns = (batch[name].tolist() for name in ("sample_index", "dataset_id", "input_ids", "document_ids"))
        found += [(i, d, *t, *n) for i, d, t, n in zip(*columns, strict=True)]
    return found


def test_another_packing_is_another_order(content):
    loader = make_dataloader(content, micro_batch_size=4)
    rows(loader, 2)
    state = loader.state_dict()
    for packing, said in [({"bins": 9}, "'bins': 8"), ({"bins": 8, "overflow": "truncate"}, "'overflow': 'split'")]:
        other = make_dataloader({**content, "packing": packing}, micro_batch_size=4)
        with pytest.raises(ResumeError, match=rf"datasets\.chat\.packing: saved \{{.*{said}"):
            other.load_state_dict(state)
    windows = {**content, "datasets": {"web": content["datasets"]["web"]}, "phases": [], "skip": []}
    del windows["packing"]
    with pytest.raises(ResumeError, match=r"datasets\.web\.packing: saved \{.*now None"):
        make_dataloader(windows, micro_batch_size=4).load_state_dict(state)


def _saved(**more):
    windows = {"dataset": "web", "seq_len": 32, "windows": 40, "stream_fingerprint": "5" * 32, "token_range": [0, 1281]}
    member = {**windows, "packing": None, "tracks_fingerprint": "", **more.pop("member", {})}
    phases = [{"start": 0, "weights": {"web": 1}}, {"start": 9, "weights": {"web": 1}}]
    fixed = {"order": "shuffled", "order_version": 1, "seed": 7, "block": 256, "phases": phases, "skips": []}
    return {
        "spec_version": 1, **fixed, "quarantine": {}, "base": 0, "extra": {}, "live": [], "exclude": {},
        "members": {"web": member}, **more,
    }  # fmt: skip


_PACKED = {"packing": {"bins": 8, "overflow": "split"}}
_SAVED = {"48c03f29197d72dddeb63a7be3ce7e98": _saved(), "78ca38f1f533456be48002d979bf8797": _saved(member=_PACKED)}


def test_specs_of_packs(content):
    packed = open_blend(content).spec
    assert packed.to_dict()["members"]["web"]["packing"] == {"bins": 8, "overflow": "split"}
    assert OrderSpec.from_dict(packed.to_dict()) == packed
    web = {"web": {"path": content["datasets"]["web"]["path"]}}
    plain = open_blend({"seq_len": SIZE, "datasets": web}).spec.to_dict()
    assert plain["members"]["web"]["packing"] is None
    changed = packed.with_live(Segment(at=70, weights={"web": 1}), packed.build())
    assert changed.to_dict()["segments"][-1]["at"] == 70
    assert OrderSpec.from_dict(changed.to_dict()) == changed
    # Hashes stay so for ever, whatever the form of specs.
    for expected, hashed in _SAVED.items():
        segments = [plain_of(Segment(at=at, weights={"web": 1})) for at in (0, 9)]
        saved = {**hashed, "segments": segments, "forgotten": ""}
        for key in ("phases", "skips", "live"):
            del saved[key]
        assert OrderSpec.from_dict(saved).hash == fingerprint(hashed) == expected


def test_bad_packing_is_said_with_its_key(content):
    for packing, said in [
        ({"bins": 1}, r"packing\.bins: found 1, expected an integer from 2"),
        ({"bins": 5000}, r"packing\.bins: found 5000, expected an integer from 2 to 4096"),
        ({"overflow": "drop"}, r"packing\.overflow: found 'drop', expected one of split, truncate, error"),
        ({"bin": 8}, r"packing\.bin: found an unknown key 'bin', .*; did you mean bins"),
    ]:
        with pytest.raises(ConfigError, match=said):
            open_blend({**content, "packing": packing})
    with raises(ConfigError, "outputs.shared_labels", "true with packing"):
        make_dataloader({**content, "outputs": {"shared_labels": True}}, micro_batch_size=1)
    with raises(ConfigError, "outputs.loss_mask", "false, but dataset chat has packs"):
        make_dataloader({**content, "outputs": {"loss_mask": False}}, micro_batch_size=1)
    with raises(ConfigError, "seq_len", "nothing"):
        open_blend({key: value for key, value in content.items() if key != "seq_len"})


def test_doctor_counts_the_packs_that_a_whole_shard_empties(tmp_path, capsys):
    """Those of documents beside the shard too: its table of documents, which says where they lie, is not opened."""
    web = write_dataset(tmp_path / "web", random_documents(150, seed=1, mean_length=25, prefix="web"), shards=3)
    dataset = cl.open_dataset(web)
    first, end = dataset.shard_starts[1], dataset.shard_starts[2]
    config = {
        "seq_len": SIZE,
        "packing": {"bins": 8},
        "order": "sequential",
        "datasets": {"web": {"path": str(web)}},
        "exclude": [{"dataset": "web", "tokens": [first, end]}],
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    with cl.make_dataloader(config, micro_batch_size=1) as loader:
        empty = {number for number, batch in enumerate(loader) if not batch["loss_mask"].any()}
        packs = len(loader)
    blocks = [(7 * SIZE * k, 7 * SIZE * (k + 1), 8 * k) for k in range(-(-packs // 8))]  # tokens, first pack
    closed = {b + k for a, z, b in blocks if a < end and first < z for k in range(8) if b + k < packs}
    assert closed <= empty
    assert len(closed) * 7 * SIZE > 8 * (end - first)
    main(["doctor", str(tmp_path / "run.yaml"), "--seconds", "0.05"])
    text = f"web: {end - first:,} of {dataset.num_tokens:,} tokens"
    assert f", and {len(closed)} of {packs} packs are empty" in capsys.readouterr().out.partition(text)[2]


def test_samples_in_which_nothing_is_learnt_are_counted(content, caplog):
    chat = content["datasets"]["chat"]
    tokens = cl.open_dataset(chat["path"]).num_tokens
    one = {**content, "phases": [], "skip": [], "datasets": {"chat": chat}, "order": "sequential"}
    one["exclude"] = [{"dataset": "chat", "tokens": [0, tokens // 2]}]
    loader = make_dataloader(one, micro_batch_size=2)
    empty = sum(int((~batch["loss_mask"].any(1)).sum()) for batch in loader)
    assert loader.samples_without_loss == empty > 10
    assert "10 samples so far have a loss mask that is all 0" in caplog.text
