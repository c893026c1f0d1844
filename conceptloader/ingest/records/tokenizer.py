"""Tokenizers: text to ids with the place of each token in the text, and back."""

import json
import logging
import os
from array import array
from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import chain
from typing import Annotated, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from conceptloader.base.packages import need
from conceptloader.base.strict import Reads
from conceptloader.errors import ConfigError, InputError
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.read.kept import is_own_name, kept_tokenizers, own_name
from conceptloader.format.spec.columns import Ints, offsets_of
from conceptloader.format.spec.manifest import Tokenizer
from conceptloader.ingest.hub import TOKENIZER_FILES, fetched
from conceptloader.ingest.records.batch import Ragged
from conceptloader.ingest.records.fast import Fast, fast_of
from conceptloader.ingest.records.tokenizer_folder import TokenizerFolder
from conceptloader.storage.reads import read_file

log = logging.getLogger(__name__)

EOS_NAMES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "<|eot|>", "<|end|>")


class TextTokenizer(Protocol):
    """name: equal for tokenizers that give equal ids.

    vocab_size: ids are below it. eos_id: the id that ends a document, or None. definition: the bytes of a
    tokenizer.json, or None.
    """

    name: str
    vocab_size: int
    eos_id: int | None
    definition: bytes | None

    def encode(self, texts: Sequence[str], places: Sequence[bool]) -> tuple[Ragged, Ints]:
        """(ids of each text, places).

        `places`: int64 [tokens, 2], the characters [start, end) of the text (code points) that each token stands for,
        whitespace included, in order; 0 in texts for which `places` is False.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str: ...


def _checked(value: Any, where: str) -> Any:
    if value is None or all(hasattr(value, name) for name in ("name", "vocab_size", "eos_id")):
        return value
    if isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    fix = f"pass {where}='bytes', the path of a tokenizer.json, or a transformers folder"
    raise ConfigError(where, value, "a tokenizer", fix)


AnyTokenizer = Annotated[Any, Reads(_checked, "a tokenizer")]
"""As commands take it, or one that is loaded."""


class BytesTokenizer:
    """Built in: the bytes of the text in UTF-8 are the ids; 256 is eos."""

    name = "bytes"
    vocab_size = 257
    eos_id: int | None = 256
    definition: bytes | None = None

    def encode(self, texts: Sequence[str], places: Sequence[bool]) -> tuple[Ragged, Ints]:
        parts = [text.encode("utf-8") for text in texts]
        values = np.frombuffer(b"".join(parts), np.uint8)
        tokens = Ragged(values, offsets_of([len(part) for part in parts]))
        if not any(places):
            return tokens, np.zeros((len(values), 2), np.int64)
        before = np.cumsum((values & 0xC0) != 0x80) - 1  # characters of the batch before each byte's own
        start = before - np.repeat(offsets_of([len(text) for text in texts])[:-1], np.diff(tokens.offsets))
        return tokens, np.stack([start, start + 1], axis=1)

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i for i in ids if i < 256).decode("utf-8", "replace")


class FileTokenizer:
    """A tokenizer.json of the `tokenizers` package. eos: name or id of the token that ends a document, None for none.

    guessed: the name of the eos if nothing but its name says that it is one.

    Truncation, padding, dropout and the post-processor are switched off: a build needs all of the text and nothing
    else, the same each time. The post-processor adds special tokens, or takes the whitespace out of tokens' offsets, so
    that those of whitespace alone would stand nowhere.
    """

    def __init__(self, definition: bytes, path: str, eos: str | int | None) -> None:
        tokenizers = need("tokenizers", f"tokenizer {path}: the tokenizers package is not installed")
        definition, self._path = definition.removeprefix(b"\xef\xbb\xbf"), path
        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_str(definition.decode("utf-8"))
        except Exception as error:  # the package raises plain Exception
            raise InputError(
                path,
                f"no tokenizer ({error})",
                "a tokenizer.json",
                "write it again with tokenizer.save_pretrained, or pass another --tokenizer",
            ) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        if getattr(self._tokenizer.model, "dropout", None):
            self._tokenizer.model.dropout = None
        self._tokenizer.post_processor = None
        self.definition: bytes | None = definition
        self.name = own_name(definition)
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        if not self.vocab_size:
            raise InputError(path, "an empty vocabulary", "a trained tokenizer", "pass another --tokenizer")
        self.eos_id = None if eos is None else find_eos(vocabulary, eos, path)
        self.guessed = ""
        self._sizes: NDArray[np.int64] | None = None  # by id, bytes of the text, if tokens are pieces of it as it is
        if _cuts_bytes(definition):
            added = {  # 0: of one that may take whitespace, too
                i: 0 if token.lstrip or token.rstrip else len(token.content.encode())
                for i, token in self._tokenizer.get_added_tokens_decoder().items()
            }
            self._sizes = np.zeros(self.vocab_size, np.int64)
            self._sizes[list(vocabulary.values())] = [added.get(i, len(name)) for name, i in vocabulary.items()]
        bytes_ = {vocabulary[name]: value for value in range(256) if (name := f"<0x{value:02X}>") in vocabulary}
        self._byte_of: NDArray[np.int16] | None = None  # by id, -1 for others; None if the model has no byte fallback
        if bytes_:
            self._byte_of = np.full(self.vocab_size, -1, np.int16)
            self._byte_of[list(bytes_)] = list(bytes_.values())

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (self.definition, "tokenizer", self.eos_id)

    @cached_property
    def fast(self) -> Fast | str:
        """What gives the same ids many times faster, or why there is nothing."""
        return fast_of(self._tokenizer, self._path)

    def encode(self, texts: Sequence[str], places: Sequence[bool], plain: bool = False) -> tuple[Ragged, Ints]:
        """See `TextTokenizer`. plain: names of special tokens are text as any other."""
        self._tokenizer.encode_special_tokens = plain
        fast = self.fast if not plain and (self._sizes is not None or not any(places)) else ""
        if isinstance(fast, Fast):
            each: Sequence[Any] = fast.encode(texts)
        else:
            encoded = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
            each = [array("I", one.ids) for one in encoded]  # a third of the time that NumPy takes for a list
        offsets = offsets_of([len(ids) for ids in each])
        values = np.concatenate([np.empty(0, np.uint32), *each])
        found = np.zeros((offsets[-1], 2), np.int64)
        for i in np.flatnonzero(places).tolist():
            part = slice(offsets[i], offsets[i + 1])
            if not self.place(values[part], texts[i], found[part]):
                one = fast.compare(texts[i], each[i]) if isinstance(fast, Fast) else encoded[i]
                found[part] = np.fromiter(chain.from_iterable(one.offsets), np.int64, 2 * len(one)).reshape(-1, 2)
                if self._byte_of is not None:
                    spread_bytes(self._byte_of[values[part]], found[part])
        return Ragged(values, offsets), found

    def place(self, ids: NDArray[Any], text: str, places: Ints) -> bool:
        """Fill in the places of byte-level tokens by their sizes, many times faster than to ask for them.

        Returns: whether the tokens are pieces of the text, which they are not if one of them swallows whitespace.
        """
        if self._sizes is None:
            return False
        sizes, data = self._sizes[ids], text.encode("utf-8")
        ends = np.cumsum(sizes)
        if not len(ids) or int(ends[-1]) != len(data) or not sizes.all():
            return False
        places[:, 0], places[:, 1] = ends - sizes, ends
        if len(data) > len(text):
            characters = np.cumsum((np.frombuffer(data, np.uint8) & 0xC0) != 0x80)  # up to that of each byte
            places[:, 0], places[:, 1] = characters[ends - sizes] - 1, characters[ends - 1]
        return True

    def guess_eos(self, path: str, ends: bool) -> None:
        """Take the usual name that the vocabulary has for the eos. Raises: ConfigError for several, if it `ends`."""
        usual = [name for name in EOS_NAMES if self.id_of(name) is not None]
        if len(usual) > 1 and ends:
            expected = "a single token for the end of a document"
            raise ConfigError(f"{path}: eos", ", ".join(usual), expected, "pass one of them as --eos")
        if len(usual) == 1:
            self.eos_id, self.guessed = self.id_of(usual[0]), usual[0]

    def unknown_id(self) -> int | None:
        """The id of characters that the model does not know, if it has one for them."""
        if (name := getattr(self._tokenizer.model, "unk_token", None)) is not None:
            return self.id_of(name)
        found: int | None = json.loads(self.definition or b"{}").get("model", {}).get("unk_id")
        return found

    def special_tokens(self) -> dict[int, Any]:
        """The tokens that are no text, by id: content (a name) and flags."""
        added = self._tokenizer.get_added_tokens_decoder()
        return {i: token for i, token in sorted(added.items()) if token.special}

    def id_of(self, token: str) -> int | None:
        """Of a token by its name; None if there is no such one."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def name_of(self, token: int | None) -> str | None:
        """Of a token by its id."""
        found: str | None = None if token is None else self._tokenizer.id_to_token(token)
        return found

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text


def changes_text(definition: bytes | None) -> str | None:
    """What makes a tokenizer lose or change characters, or None if nothing does. definition: None for bytes."""
    if definition is None:
        return None
    found: dict[str, Any] = json.loads(definition)
    if found.get("normalizer"):
        return f"the normalizer {found['normalizer'].get('type')}"
    if (found.get("decoder") or {}).get("type") != "ByteLevel":
        return f"the decoder {(found.get('decoder') or {}).get('type')}"
    before = found.get("pre_tokenizer") or {}
    parts = before.get("pretokenizers", [before])
    if any(part.get("add_prefix_space") for part in parts):
        return "a space put in front of texts (add_prefix_space)"
    if any(part.get("behavior") == "Removed" for part in parts):
        return "a pre-tokenizer that removes characters"
    return None


def _cuts_bytes(definition: bytes) -> bool:
    """The characters of tokens' names stand for the bytes of the text; bytes without one are skipped."""
    found: dict[str, Any] = json.loads(definition)
    model, before = found["model"], found.get("pre_tokenizer") or {}
    odd = (model.get(name) for name in ("unk_token", "continuing_subword_prefix", "end_of_word_suffix"))
    kinds = [part.get("type") for part in before.get("pretokenizers", [before])]
    return changes_text(definition) is None and "ByteLevel" in kinds and model["type"] == "BPE" and not any(odd)


def load_tokenizer(source: str, eos: str | int | None = None, *, ends: bool = True) -> TextTokenizer:
    """`bytes`, a tokenizer.json, a folder as transformers saves it, or `hub:OWNER/NAME` (see `fetched`).

    eos: name or id of the token that ends a document. By default what the folder's configuration names, then the one
    of the usual names that the vocabulary has, else None. ends: whether the vocabulary must be clear about that token.

    Raises: ConfigError if there is no such tokenizer or eos, InputError if its files are corrupt or say something else
    to transformers, ReadError.
    """
    if source == "bytes":
        if eos is not None and str(eos) != "256":
            raise ConfigError("eos", repr(eos), "256, which is the eos of the bytes tokenizer", "omit --eos")
        return BytesTokenizer()
    path = source = fetched(source, "model", TOKENIZER_FILES)
    folder = TokenizerFolder(source) if os.path.isdir(source) else None
    if folder is not None:
        path = os.path.join(source, "tokenizer.json")
        eos = eos if eos is not None else folder.tokens.get("eos_token")
    elif not os.path.exists(source):
        raise ConfigError(
            f"tokenizer {source}",
            "no such file or folder",
            "bytes, a tokenizer.json, a transformers folder, or hub:OWNER/NAME",
            "pass --tokenizer bytes, the path of a tokenizer.json, or hub:OWNER/NAME",
        )
    if not os.path.exists(path):
        raise ConfigError(
            f"tokenizer {source}",
            "a folder without tokenizer.json",
            "a folder that transformers saved",
            f"save what it makes of it: AutoTokenizer.from_pretrained({source!r}).save_pretrained(NEW), and pass NEW",
        )
    definition = read_file(path, 1 << 30).removeprefix(b"\xef\xbb\xbf")
    found = FileTokenizer(_without_dropout(definition, path), path, eos)
    if folder is not None:
        folder.check(definition)
        folder.compare(definition)
    elif os.path.basename(path) == "tokenizer.json":
        try:
            TokenizerFolder(os.path.dirname(path)).check(definition)
        except InputError as error:
            log.warning("%s is taken as it is, which its folder is not: %s", path, error)
    if eos is None and folder is not None and folder.says and ends:
        fix = "pass --eos TOKEN, or --no-eos to append none"
        raise ConfigError(f"{source}: eos", "a folder that names no eos_token", "the token that ends documents", fix)
    if eos is None and not (folder is not None and folder.says):
        found.guess_eos(path, ends)
    return found


def unnamed(vocab_size: int, eos: str | int | None) -> Tokenizer:
    """What a manifest says of a tokenizer of a known size and eos. Raises: ConfigError for an eos that is no id."""
    if eos is not None and not str(eos).isdecimal():
        fix = "pass --eos ID, or --tokenizer"
        raise ConfigError("--eos", repr(eos), "an id, since no --tokenizer is given to look it up", fix)
    return Tokenizer(name=f"unnamed-{vocab_size}", vocab_size=vocab_size, eos_id=None if eos is None else int(eos))


def _without_dropout(definition: bytes, path: str) -> bytes:
    """The same where nothing is left to chance: each build of a text gives the same tokens."""
    try:
        found = json.loads(definition.removeprefix(b"\xef\xbb\xbf"))
        dropout = found["model"].get("dropout")
    except (ValueError, KeyError, TypeError, AttributeError):
        return definition  # no tokenizer, which `FileTokenizer` says
    if not dropout:
        return definition
    log.warning("%s: dropout %s is switched off: a build gives the same tokens each time", path, dropout)
    found["model"]["dropout"] = None
    return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def is_of(tokenizer: TextTokenizer, facts: Tokenizer | None) -> bool:
    """Whether a tokenizer that the user gives may be the one of a dataset.

    Names that a tokenizer has by itself say which one it is, and a size at least something; any other name is one that
    somebody chose, as is none.
    """
    if facts is None or not (facts.name == "bytes" or is_own_name(facts.name)):
        return facts is None or not facts.name.startswith("unnamed-") or tokenizer.vocab_size == facts.vocab_size
    return tokenizer.name == facts.name


@lru_cache(maxsize=1)
def _made(definition: bytes, path: str, eos: int | None) -> FileTokenizer:
    """One that a process has already is not loaded again, which takes seconds for large vocabularies."""
    return FileTokenizer(definition, path, eos)


def kept_tokenizer(ds: Dataset) -> TextTokenizer | None:
    """The tokenizer of a dataset: the built-in one, or the one that a build left next to it or next to its tokens."""
    facts = ds.manifest.tokenizer
    if facts is None or facts.name == "bytes":
        return BytesTokenizer() if facts else None
    for path, definition in kept_tokenizers(ds.files):
        tokenizer = _made(definition, path, facts.eos_id)
        if tokenizer.name == facts.name:
            return tokenizer
    return None


def find_tokenizer(ds: Dataset, given: str | None) -> TextTokenizer | None:
    """The tokenizer of a dataset: `given` (checked by `is_of`), the built-in one, or the copy that was kept.

    Raises: ConfigError if the given tokenizer is another one.
    """
    if given is None:
        return kept_tokenizer(ds)
    facts = ds.manifest.tokenizer
    tokenizer = load_tokenizer(given, None if facts is None or given == "bytes" else facts.eos_id, ends=False)
    if facts is not None and not is_of(tokenizer, facts):
        raise ConfigError(
            f"--tokenizer {given}",
            f"{tokenizer.name} of {tokenizer.vocab_size} tokens",
            f"that of {ds.path}: {facts.name} of {facts.vocab_size}",
            f"pass the --tokenizer that {ds.path} was built with",
        )
    return tokenizer


def spread_bytes(byte: NDArray[np.int16], places: Ints) -> None:
    """Give each byte of a run of byte tokens the place of its own character, where all of them have that of the run.

    So they have if a model looks up unknown characters in a row as one (Unigram). byte: of each token of a text, or -1;
    places: int64 [tokens, 2], changed here.
    """
    at = np.flatnonzero((byte >= 0) & (places[:, 1] - places[:, 0] > 1))
    if not len(at):
        return
    start, end = places[at, 0], places[at, 1]
    new = np.ones(len(at), bool)
    new[1:] = (np.diff(at) > 1) | (np.diff(start) > 0) | (np.diff(end) > 0)
    run = np.cumsum(new) - 1
    leads = (byte[at] & 0xC0) != 0x80  # begins a character
    before = np.cumsum(leads) - leads
    character = before + leads - 1 - before[new][run]
    fits = (np.bincount(run, leads) == (end - start)[new])[run]  # else a normalizer has changed their number
    places[at[fits], 0] = (start + character)[fits]
    places[at[fits], 1] = (start + character)[fits] + 1


def find_eos(vocabulary: dict[str, int], eos: str | int, path: str) -> int:
    """The id of the token that ends a document. Raises: ConfigError if it is not in the vocabulary."""
    if isinstance(eos, int) or (eos not in vocabulary and eos.isdecimal()):
        if int(eos) not in set(vocabulary.values()):
            raise ConfigError(
                f"{path}: eos",
                f"id {eos}",
                f"an id below {len(vocabulary):,}, the size of the vocabulary",
                "pass another --eos ID",
            )
        return int(eos)
    if eos not in vocabulary:
        raise ConfigError(
            f"{path}: eos",
            f"{eos!r}, which is not in the vocabulary",
            "a token of the vocabulary",
            "pass another --eos TOKEN",
        )
    return vocabulary[eos]


def find_token(tokenizer: TextTokenizer | None, token: str | None, option: str) -> int | None:
    """The id of a token by its name, or its id in digits; None for None. Raises: ConfigError if it has none."""
    if token is None or token.isdecimal():
        return None if token is None else int(token)
    found = tokenizer.id_of(token) if isinstance(tokenizer, FileTokenizer) else None
    if found is None:
        raise ConfigError(
            option,
            repr(token),
            "a token of the tokenizer, or the id of one",
            f"pass {option} with a token or id of the tokenizer",
        )
    return found
