"""Weights of tokens, fields, numbers and records that do not fit: what is refused, and when."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import yaml

import conceptloader as cl
from conceptloader.config import ConceptOptions, Outputs
from conceptloader.errors import ConfigError, FormatError
from conceptloader.loader.batch.open import decide_layout
from conceptloader.loader.batch.reader import BatchReader
from tests.batch.cases import make_view, read
from tests.corpora.small import written
from tests.hostile.test_attacks import edit
from tests.raises import cells, raises


def build(path, fields, number):
    """Three windows of nine tokens with fields, half of them with a number, half with a record."""
    tracks = {"quality": {"codec": "numpy", "parameters": {"dtype": number}}, "notes": {"codec": "json"}, "topics": {}}
    types = {"xu1": "u1", "w": "f2", **fields}
    spans = {"quality": [(0, 14, np.array([3], number))], "notes": [(14, 28, {"at": 14})]}
    written(path, [([1] * 28, spans, "", dict.fromkeys(types, range(28)))], tracks=tracks, fields=types)
    return make_view(path, 9, int(path.name == "b"))


@pytest.mark.parametrize("name", ["own", "quality"])
def test_a_dataset_without_weights_needs_one_that_is_given(tmp_path, name):
    """Nothing is guessed, neither 1 nor 0: one of the two would train with other weights than its user thinks."""
    views = [build(tmp_path / "a", {"own": "f4"}, "f4"), replace(build(tmp_path / "b", {}, "f4"), tracks=())]
    message = rf"outputs\.loss_weight: found no (field|track that is read) called '{name}' in b .* missing: 1"
    with pytest.raises(ConfigError, match=message):
        decide_layout(views, 9, Outputs(loss_weight={"name": name, "outside": 2}))


def test_a_product_that_is_no_number_is_an_error(tmp_path):
    view = build(tmp_path / "a", {"own": "f4"}, "f4")
    large = {"name": "quality", "outside": 3e38}
    layout = decide_layout([view], 9, Outputs(loss_weight=("own", large)))
    with raises(FormatError, "sample 1: loss_weight", "above float32"):
        read(BatchReader(None, [view], layout), 0, 1)
    with raises(ConfigError, found="the track 'quality' alone"):
        decide_layout([view], 9, Outputs(loss_weight="quality"))


WRONG = r"""
outputs\.fields\.own: found no field 'own' in dataset b, expected one of its fields: \['changing' | {outputs: {fields: {own: inputs}}}
outputs\.fields\.changing: found type f4 in dataset a, but f2 in b | {outputs: {fields: {changing: inputs}}}
loss_weight: found no field and no track .* 'nil' in a, b .*correct the name | {outputs: {loss_weight: nil}}
outputs\.loss_weight: found 'xu1' of type u1, u1, expected f2 or f4 | {outputs: {loss_weight: xu1}}
outputs\.loss_weight: found 'notes' of type json, json, expected f2 or f4 | {outputs: {loss_weight: notes}}
outputs\.loss_weight: found 'topics' of type concepts, .*annotate DATASET ROWS | {outputs: {loss_weight: topics}}
outputs\.loss_weight: found 'quality' of type f4, f8, expected f2 or f4 | {outputs: {loss_weight: quality}}
two arrays of a batch would be called max_seqlen | {outputs: {fields: {max_seqlen: inputs}}}
two arrays of a batch would be called loss_weight | {outputs: {fields: {loss_weight: inputs}}}
tracks\.quality: found type f4 in dataset a, but f8 in b | {tracks: {quality: {}}}
tracks\.quality: found layout ragged .* with one number a span | {tracks: {quality: {layout: ragged}}}
tracks\.quality: found layout padded and max_concepts 2 | {tracks: {quality: {max_concepts: 2}}}
tracks\.notes: found codec json in dataset a, .* set tracks.notes.layout: records | {tracks: {notes: {}}}
tracks\.notes\.max_concepts: found | {tracks: {notes: {layout: records, max_concepts: 1}}}
"""  # noqa: E501


def test_what_does_not_fit_is_an_error_before_training(tmp_path):
    first = build(tmp_path / "a", {"own": "f4", "changing": "f4", "max_seqlen": "u1", "loss_weight": "u1"}, "f4")
    views = [first, build(tmp_path / "b", {"changing": "f2"}, "f8")]
    for message, text in cells(WRONG):
        given = {"outputs": {}, "tracks": {}, **yaml.safe_load(text)}
        tracks = {name: ConceptOptions(**how) for name, how in given["tracks"].items()}
        with pytest.raises(ConfigError, match=message):
            decide_layout(views, 9, Outputs(**given["outputs"]), tracks)
    with raises(ConfigError, "fields.own", "'both'"):
        Outputs(fields={"own": "both"})


NUMBER = {"codec": "numpy", "parameters": {"dtype": "f4"}}


@pytest.mark.parametrize(("kind", "value"), [*product(["f2", "f4"], [np.nan, -np.inf])])
def test_a_weight_that_is_no_number_is_an_error(tmp_path, kind, value):
    spans = {"t": [(0, 10, np.array([3.0])), (10, 12, np.array([value]))]}
    fields = {"v": [1.0] * 20, "w": [1.0] * 15 + [value] + [0.5] * 4}
    kinds = dict.fromkeys(fields, kind)
    path = written(tmp_path / "ds", [([1] * 20, spans, "", fields)], tracks={"t": NUMBER}, fields=kinds)
    view = make_view(path, 9)
    of_field = rf"00000\.stream\.bin: found {value} in field w as the weight of token 15 of shard 0"
    of_track = "sample 7: track t: found a weight that is NaN or Inf"
    track = {"name": "t", "outside": 1}
    for weight, good, said in [("w", 1, of_field), (("v", "w"), 1, of_field), (track, 3, of_track)]:
        reader = BatchReader(None, [view], decide_layout([view], 9, Outputs(loss_weight=weight)))
        assert (read(reader, 0)["loss_weight"] == good).all()
        with pytest.raises(FormatError, match=said):
            read(reader, 1, first=6)


@pytest.mark.parametrize("wrong", [[], [1.0, 2.0]])
def test_a_span_with_no_single_number_is_an_error(tmp_path, wrong):
    spans = {"t": [(0, 5, np.array([3.0])), (5, 9, np.array(wrong))]}
    path = written(tmp_path / "ds", [([1] * 20, spans)], tracks={"t": NUMBER})
    edit(path, "tracks", "t", "max_items", value=None)  # not counted
    assert cl.verify(path, full=True) == []
    view = make_view(path, 9)
    layout = decide_layout([view], 9, Outputs(), {"t": ConceptOptions()})
    said = (
        rf"00000\.t\.index: found {4 * len(wrong)} bytes as record 1 of track t, expected a single number of 4 bytes; "
        ".*, or set layout: records"
    )
    with pytest.raises(FormatError, match=said):
        read(BatchReader(None, [view], layout), 0)
