"""Every codec there and back, refused where it has to be."""

import pickle

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.errors import ConfigError, FormatError, InputError
from conceptloader.format.spec import codecs
from conceptloader.format.spec.codecs import get_codec
from conceptloader.format.tools.verify import verify
from tests.corpora.small import written
from tests.raises import raises
from tests.registered import registered

ROUND_TRIPS = [
    ("concepts", {}, [0, 7, 2**32 - 1]),
    ("concepts", {}, []),
    ("numpy", {"dtype": "f4"}, [0.5, -1.0, np.inf]),
    ("numpy", {"dtype": "i8"}, [-(2**63), 2**63 - 1]),
    ("numpy", {"dtype": "i4"}, []),
    ("json", {}, {"url": "ü", "n": [1, None, 0.1]}),
    ("bytes", {}, b"\0\xff"),
    ("bytes", {}, b""),
]


@pytest.mark.parametrize(("codec", "parameters", "value"), ROUND_TRIPS)
def test_round_trip(tmp_path, codec, parameters, value):
    spans = [(0, 2, value)]
    if codec != "bytes":  # as an object, and as bytes
        spans = [(0, 1, value), (1, 2, get_codec(codec, parameters, "test").encode(value))]
    track = {"codec": codec, "parameters": parameters}
    ds = cl.open_dataset(written(tmp_path / "ds", [([1, 2], {"a": spans})], tracks={"a": track}))
    for decoded in ds.spans("a", 0, 2).decode():
        assert (decoded.tolist() if isinstance(decoded, np.ndarray) else decoded) == value
    assert verify(ds.path, full=True) == []


class Upper:
    """A codec of a user's."""

    def encode(self, value):
        return value.upper().encode()

    def decode(self, record):
        return bytes(record).decode()

    def check(self, record):
        if bytes(record) != bytes(record).upper():
            raise ValueError("found lower case, expected upper case")


def user_dataset(path):
    options = cl.writing.BuildOptions(tracks={"a": cl.writing.TrackOptions(codec="upper")})
    with registered("upper", Upper()), cl.writing.create_writer(path, options).shard(0) as writer:
        writer.add_document([1, 2], {"a": [(0, 2, "hello")]})
        with raises(InputError, found="lower case"):
            writer.add_document([1, 2], {"a": [(0, 2, b"hello")]})
    cl.writing.finalize(path)
    return path


def test_a_codec_of_the_users(tmp_path):
    path = user_dataset(tmp_path / "ds")
    assert verify(path, full=True) == []  # its records are bytes to whoever has not got the codec
    with registered("upper", Upper()):
        assert cl.open_dataset(path).windows(1)[0]["a"].decode() == ["HELLO"]
        cl.register_codec("upper", Upper())  # a cell of a notebook that runs again
        used, other = Upper(), Upper()
        used._read = 3
        cl.register_codec("upper", used)
        other.accents = True
        with raises(ConfigError, "register_codec: 'upper'", "Upper with {'accents': 'true'}", "{}, as"):
            cl.register_codec("upper", other)
        with raises(ConfigError, "register_codec: 'upper'", "Lower", "Upper, which is registered"):
            cl.register_codec("upper", type("Lower", (Upper,), {})())


def test_datasets_and_builds_take_their_codecs_along(tmp_path):
    """To processes that do not share the registry, as those of a DataLoader that spawns, and Ray's."""
    options = cl.writing.BuildOptions(tracks={"a": cl.writing.TrackOptions(codec="upper")})
    with registered("upper", Upper()):
        packed = pickle.dumps(cl.writing.create_writer(tmp_path / "ds", options))
    try:
        with pickle.loads(packed).shard(0) as writer:
            writer.add_document([1, 2], {"a": [(0, 2, "hello")]})
        cl.writing.finalize(tmp_path / "ds")
        packed = pickle.dumps(cl.open_dataset(tmp_path / "ds"))
        del codecs._REGISTERED["upper"]
        assert pickle.loads(packed).windows(1)[0]["a"].decode() == ["HELLO"]
    finally:
        codecs._REGISTERED.pop("upper", None)


@pytest.mark.parametrize(
    ("name", "codec", "found"),
    [
        ("json", Upper(), "a name that is built in"),
        ("", Upper(), "no name"),
        ("upper", Upper, "the class Upper"),
        ("upper", object(), "object"),
    ],
)
def test_what_cannot_be_registered(name, codec, found):
    with raises(ConfigError, f"register_codec: {name!r}", found):
        cl.register_codec(name, codec)
    assert codecs._REGISTERED.get(name) is not codec


def test_an_unknown_codec_is_never_imported(tmp_path):
    ds = cl.open_dataset(user_dataset(tmp_path / "ds"))
    for use in (lambda: ds.windows(1), lambda: ds.spans("a", 0, 1), lambda: ds.documents()):
        with raises(
            FormatError,
            "track 'a'",
            "codec 'upper'",
            fix="register_codec('upper', your_codec)",
        ):
            use()
    assert ds.windows(1, tracks=[])[0]["tokens"].tolist() == [1, 2]  # the rest can be read


def test_values_are_for_concepts_only(tmp_path):
    path = written(tmp_path / "ds", [([1, 2], {"a": [(0, 2, [1])]})], tracks={"a": {"codec": "json"}})
    with raises(ConfigError, expected="codec concepts", fix="use Values.decode()"):
        _ = cl.open_dataset(path).spans("a", 0, 2).values
