"""Errors keep their parts, whoever hands them on."""

import copy
import pickle

import pytest

from conceptloader import errors
from conceptloader.errors import ConceptloaderError, ReadError

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ConceptloaderError)]


def parts(error):
    return type(error), error.path, error.found, error.expected, error.fix, error.code, error.args, str(error)


@pytest.mark.parametrize("kind", KINDS)
def test_copies_are_equal(kind):
    for error in (kind("a.yaml: x", 3, "a text", "quote it", code="own"), kind("a", "gone"), kind()):
        assert parts(copy.copy(error)) == parts(pickle.loads(pickle.dumps(error))) == parts(error)
    error = ReadError("file", "gone", errno=5)
    assert pickle.loads(pickle.dumps(error)).errno == copy.copy(error).errno == error.within("sample 3").errno == 5


@pytest.mark.parametrize("kind", KINDS)
def test_another_place_leads_the_path_in(kind):
    error = kind("x", 3, "a text", "quote it")
    assert str(error.within("a.yaml")) == "a.yaml: x: found 3, expected a text; quote it"
    assert str(error) == "x: found 3, expected a text; quote it"
    assert error.within("a", ".").path == "a.x"
    assert kind("", "gone").within("a.yaml").path == "a.yaml"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("found 3; 4, expected a text; quote it", ("a.yaml", "3; 4", "a text", "quote it")),
        ("x: found 3, expected 4, expected a text", ("a.yaml: x", "3, expected 4", "a text", "")),
        ("the disk is full; make room", ("a.yaml", "the disk is full; make room", "", "")),
    ],
)
def test_a_sentence_has_the_same_parts(text, found):
    error = ReadError.saying("a.yaml", text)
    assert (type(error), str(error)) == (ReadError, f"a.yaml: {text}")
    assert (error.path, error.found, error.expected, error.fix) == found
