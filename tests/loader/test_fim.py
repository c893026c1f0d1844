"""Fill-in-the-middle against what it takes apart: the parts of each document are there, once.

Samples of loaders, on any ranks and after a resume, are compared in tests/oracle.
"""

import hashlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import conceptloader as cl
from conceptloader.errors import ConfigError
from conceptloader.testing import random_documents, write_dataset
from conceptloader.torch.fim import FillInMiddle
from tests.raises import raises

PREFIX, MIDDLE, SUFFIX, PAD, EOS = 1001, 1002, 1003, 1004, 9
TOKENS: dict[str, Any] = {"prefix": PREFIX, "middle": MIDDLE, "suffix": SUFFIX, "pad": PAD}


def undone(tokens: list[int]) -> tuple[list[int], str]:
    """The document before, and which way it stands now."""
    if PREFIX not in tokens:
        return tokens, "none"
    assert tokens[0] == PREFIX
    middle = tokens.index(MIDDLE)
    if tokens[1] == SUFFIX:  # <prefix> <suffix> suffix <middle> prefix middle: the seam is not marked
        return tokens[middle + 1 :] + tokens[2:middle], "spm"
    suffix = tokens.index(SUFFIX)
    return tokens[1:suffix] + tokens[middle + 1 :] + tokens[suffix + 1 : middle], "psm"


def row_of(lengths: list[int], pack: bool, seed: int, last: int = 0) -> tuple[np.ndarray, ...]:
    """inputs, labels, loss, borders of a sample of documents that end with EOS, the last one cut by `last` tokens."""
    inputs = 10 + (np.arange(sum(lengths)) * 7919 + seed * 104729) % 990
    borders = np.cumsum([0, *lengths])
    inputs[borders[1:] - 1] = EOS
    if last:
        inputs[-1] = 500
    labels, loss = np.append(inputs[1:], 77), np.ones(len(inputs), np.float32)
    if pack:
        labels[borders[1:] - 1], loss[borders[1:] - 1] = EOS, 0
        if last:
            labels[-1], loss[-1] = 77, 1
    return inputs, labels, loss, borders


def padded(document: list[int], room: int) -> tuple[np.ndarray, ...]:
    """A sample of one document and padding."""
    inputs, size = np.array(document + [0] * room), len(document)
    loss = np.append(np.ones(size - 1), np.zeros(room + 1)).astype(np.float32)
    return inputs, np.append(inputs[1:], 0), loss, np.array([0, size, size + room])


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=6),
    st.booleans(),
    st.integers(0, 1),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.integers(0, 1 << 40),
)
def test_parts_are_put_together_again(lengths: list[int], pack: bool, last: int, rate: float, sample: int) -> None:
    inputs, labels, loss, borders = row_of(lengths, pack, sample, last)
    fim = FillInMiddle(**TOKENS, rate=rate, eos=EOS, seed=3)
    before = [array.copy() for array in (inputs, labels, loss)]
    # With room for all that is added, so that nothing is cut off: padding, which is a sequence of its own.
    room = 3 * len(lengths) + 2
    whole = [np.concatenate([a, np.full(room, fill, a.dtype)]) for a, fill in ((inputs, PAD), (labels, PAD), (loss, 0))]
    found = fim.row(sample, whole[0], whole[1], whole[2], np.append(borders, borders[-1] + room))
    assert len(found.inputs) == len(found.labels) == len(found.loss) == len(whole[0])
    kinds = []
    for k, (a, b) in enumerate(pairwise(found.borders.tolist()[: len(lengths) + 1])):
        document = found.inputs[a:b].tolist()
        old = inputs[borders[k] : borders[k + 1]].tolist()
        end = [EOS] if old[-1] == EOS else []
        content = document[: len(document) - len(end)]
        assert document[len(content) :] == end
        now, kind = undone(content)
        kinds.append(kind)
        if kind == "spm":  # prefix + middle + suffix, which are a rotation of these
            assert now == old[: len(old) - len(end)]
        else:
            assert now + end == old
        assert found.labels[a : b - 1].tolist() == document[1:]
        assert found.loss[a : b - 1].all()
        # At the border, what was known before: a window's label is the next document's first token.
        kept_whole = kind == "none"
        edge = whole[2][borders[k + 1] - 1]
        if not pack and k + 1 < len(lengths):
            assert (found.labels[b - 1], found.loss[b - 1]) == (found.inputs[b], edge)
        elif kept_whole:
            assert found.loss[b - 1] == edge
        else:
            assert found.loss[b - 1] == 0
    changeable = [n - (inputs[b - 1] == EOS) > 1 for n, b in zip(lengths, borders[1:], strict=True)]
    assert rate != 0 or set(kinds) == {"none"}
    assert rate != 1 or [kind != "none" for kind in kinds] == changeable
    # Without the room, what is too long is cut off.
    short = fim.row(sample, inputs, labels, loss, borders)
    assert short.inputs.tolist() == found.inputs[: len(inputs)].tolist()
    assert all((old == new).all() for old, new in zip(before, (inputs, labels, loss), strict=True))


def test_rates_are_kept_and_results_are_frozen() -> None:
    fim = FillInMiddle(**TOKENS, rate=0.4, spm_rate=0.25, eos=EOS, seed=7)
    kinds, digest, cuts = [], hashlib.sha256(), []
    for sample in range(2000):
        inputs, labels, loss, borders = row_of([40, 30], False, sample)
        found = fim.row(sample, inputs, labels, loss, borders)
        digest.update(found.inputs.tobytes() + found.labels.tobytes() + found.loss.tobytes())
        first = found.inputs[: found.borders[1] - 1].tolist()
        kinds.append(undone(first)[1])
        cuts += [first.index(SUFFIX) - 1] if kinds[-1] == "psm" else []
    counts = {kind: kinds.count(kind) / len(kinds) for kind in ("none", "psm", "spm")}
    assert abs(counts["none"] - 0.6) < 0.03
    assert abs(counts["spm"] - 0.1) < 0.02
    assert min(cuts) == 1  # an empty prefix looks like SPM
    assert max(cuts) > 30
    # Trainings that resume depend on it.
    assert digest.hexdigest() == "c1614283497883d5c711d040f28e5c591fffda7cb4025f59213362b3d26b56d3"


def test_characters_and_fragments() -> None:
    text = "def f(x):\n    return 'häß'\n"
    fim = FillInMiddle(
        **TOKENS,
        rate=1,
        decode=lambda ids: bytes(ids).decode("utf-8", "replace"),
        encode=lambda part: list(part.encode()),
        no_prefix="#!",
    )
    tokens = np.array(list(text.encode()))
    seen = set()
    for sample in range(200):
        found = fim.row(sample, *padded(tokens.tolist(), 3))
        document, kind = undone(found.inputs[: found.borders[1]].tolist())
        seen.add(kind)
        assert bytes(document).decode() == text  # never within a character
    assert seen == {"psm", "spm"}
    for left in (b"#! no", "häß".encode()[:2] + b"xx"):
        found = fim.row(0, *padded(list(left), 3))
        assert found.inputs[: len(left)].tolist() == list(left)
    split = FillInMiddle(**TOKENS, rate=1, split=8, fragment_rate=0.5)
    changed = set()
    for sample in range(50):
        found = split.row(sample, *padded([11, 12, 13, 14, 8, 21, 22, 23, 24, 8, 8, 31, 32, 33], 12))
        document = found.inputs[: found.borders[1]].tolist()
        pieces, here = [], []
        for token in [*document, 8]:
            if token == 8:
                pieces.append(undone(here))
                here = []
            else:
                here.append(token)
        assert [piece for piece, _ in pieces] == [[11, 12, 13, 14], [21, 22, 23, 24], [], [31, 32, 33]]
        changed.add(tuple(kind != "none" for _, kind in pieces if _))
    assert len(changed) > 4


def test_masked_documents_stay_and_bad_input_is_refused() -> None:
    fim = FillInMiddle(**TOKENS, rate=1, eos=EOS)
    inputs, labels, loss, borders = row_of([10, 10], True, 0)
    loss[3] = 0
    found = fim.row(0, inputs, labels, loss, borders)
    assert found.inputs[:10].tolist() == inputs[:10].tolist()
    assert found.loss[:10].tolist() == loss[:10].tolist()
    assert found.inputs[10] == PREFIX
    for wrong, said in [
        ({"rate": 1.5}, "fim rate: found 1.5, expected a number from 0 to 1"),
        ({"no_prefix": "x"}, "no_prefix alone"),
        ({"decode": str}, "decode alone"),
        ({"split": 3}, "one of split and fragment_rate"),
    ]:
        with pytest.raises(ConfigError, match=said):
            FillInMiddle(**TOKENS, **wrong)
    batch = {"input_ids": torch.zeros(1, 4), "cu_seqlens": torch.tensor([0, 4]), "loss_mask": torch.ones(1, 4)}
    with raises(ConfigError, found="without sample_index"):
        fim(batch)
    with raises(ConfigError, found="with topics_span_index"):
        fim({**batch, "sample_index": torch.zeros(1), "topics_span_index": torch.zeros(1, 4)})


def test_labels_that_are_ignored(tmp_path: Path) -> None:
    """Where there is no loss, and nowhere else, also in places that only the new sequence has."""
    write_dataset(tmp_path / "ds", random_documents(40, seed=3, mean_length=12))
    config = {"seq_len": 32, "packing": {"bins": 2}, "datasets": {"ds": {"path": str(tmp_path / "ds")}}}
    found = []
    for ignored in (None, -100):
        outputs = {"cu_seqlens": True, "ignore_index": ignored}
        fim = FillInMiddle(**TOKENS, eos=0, rate=1.0, ignore_index=ignored)
        with cl.make_dataloader({**config, "outputs": outputs}, micro_batch_size=8) as loader:
            batch = next(iter(loader))
        found.append(fim(batch))
    plain, masked = found
    assert (plain["loss_mask"] == 0).any()
    assert torch.equal(masked["labels"], plain["labels"].masked_fill(plain["loss_mask"] == 0, -100))
    assert all(torch.equal(masked[name], plain[name]) for name in ("input_ids", "loss_mask", "cu_seqlens"))
    with raises(ConfigError, "fim", "labels of -100,", fix="pass FillInMiddle the same ignore_index"):
        FillInMiddle(**TOKENS)(batch)


def test_a_rank_without_rows(tmp_path: Path) -> None:
    """As in the last batch of an evaluation."""
    write_dataset(tmp_path / "ds", random_documents(20, seed=3, mean_length=40))
    config = {"seq_len": 16, "order": "sequential", "datasets": {"ds": {"path": str(tmp_path / "ds")}}}
    fim = FillInMiddle(**TOKENS, eos=0, rate=1.0)
    options = {"micro_batch_size": 1000, "dp_size": 2, "scheme": "contiguous"}
    with cl.make_dataloader({**config, "outputs": {"cu_seqlens": True}}, dp_rank=1, **options) as loader:
        [batch] = map(fim, loader)
    assert batch["input_ids"].shape == (0, 16)
    assert (batch["cu_seqlens"].tolist(), batch["max_seqlen"]) == ([0], 0)
