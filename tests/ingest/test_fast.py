"""gigatoken's ids are those of tokenizers, or it is not used."""

import random
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from conceptloader.errors import InputError
from conceptloader.ingest.records import fast
from conceptloader.ingest.records.fast import HARD, PATTERNS, fast_of

TEXTS = [path.read_text() for path in sorted(Path(fast.__file__).parent.glob("*.py"))]
SPECIAL = ["<|endoftext|>", "<|im_end|>"]
POOL = [
    *map(chr, [*range(32, 127), *range(0xA0, 0x250), *range(0x300, 0x340), *range(0x600, 0x640), *range(0xE00, 0xE40)]),
    *map(chr, [*range(0x4E00, 0x4E80), *range(0x1F600, 0x1F640), 0x200D, 0x200B, 0xFE0F, 0x2028, 0x85, 0x3000]),
    *"\n\r\t    ", *SPECIAL, "'s", "'LL", "hello world", "bar",
]  # fmt: skip


def trained(tokenizer, alphabet=True, **options):
    letters = pre_tokenizers.ByteLevel.alphabet() if alphabet else []
    tokenizer.train_from_iterator(TEXTS, trainers.BpeTrainer(
        vocab_size=2000, special_tokens=SPECIAL + options.pop("names", []), initial_alphabet=letters))  # fmt: skip
    return tokenizer


def levels(pattern="", text=None, prefix=False, **model):
    made = Tokenizer(models.BPE(**model))
    if text is not None:
        made.normalizer = text
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    if pattern:
        split = pre_tokenizers.Split(Regex(PATTERNS[pattern]), "isolated")
        made.pre_tokenizer = pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    made.decoder = decoders.ByteLevel()
    return trained(made)


def pieces():
    made = Tokenizer(models.BPE(byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return trained(made, alphabet=False, names=[f"<0x{value:02X}>" for value in range(256)])


def with_added():
    made = levels()
    made.add_tokens([AddedToken("hello world", normalized=False), AddedToken("bar", lstrip=True, rstrip=True)])
    return made


KINDS = {
    "GPT-2": levels, "a space in front": lambda: levels(prefix=True), "added tokens": with_added, "pieces": pieces,
    "Llama 3": lambda: levels("Llama 3", ignore_merges=True), "Qwen": lambda: levels("Qwen", normalizers.NFC()),
    "Llama 3, NFC": lambda: levels("Llama 3", normalizers.NFC()), "Qwen, as it is": lambda: levels("Qwen"),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_equal(kind, monkeypatch):
    tokenizer = KINDS[kind]()
    made = fast_of(tokenizer, kind)
    monkeypatch.setattr(fast, "RENEWED", 20_000)
    draw = random.Random(kind)
    texts = [*HARD, *TEXTS, *("".join(draw.choices(POOL, k=draw.randint(1, 80))) for _ in range(3000))]
    found = made.encode(texts)
    for text, ids in zip(texts, found, strict=True):
        assert ids.tolist() == tokenizer.encode(text, add_special_tokens=False).ids, text
    assert made.compared <= 32 + len(range(1000, len(texts), 1000))
    assert made.slowed <= 1 or kind == "added tokens"  # letters of mathematics, with NFC


NEW = ["\U00010941\U00010957", "\U000323b1!", "\ua7ce", "!\ua7d2 \u0c5c", "a\u0897\u0315", "\u0f74\U000105d2\u0307"]


@pytest.mark.parametrize("kind", ["GPT-2", "Llama 3", "Qwen", "Qwen, as it is"])
def test_characters_that_a_table_of_unicode_lacks(kind):
    """By a vocabulary in which each way to cut them has ids of its own."""
    tokenizer = KINDS[kind]()
    again = [f"{a}{text}{b}" for text in NEW for a in ("", "!", "a", " ") for b in ("", "!", " ")] * 9
    tokenizer.train_from_iterator(
        [" ".join(again), *(one.replace("!", "! ") for one in again)],
        trainers.BpeTrainer(vocab_size=2000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()),
    )
    made = fast_of(tokenizer, kind)
    draw = random.Random(1)
    texts = ["plain"] * 40 + ["".join(draw.choices([*"! a1\u00e9", *NEW], k=9)) for _ in range(500)]
    for text, ids in zip(texts, made.encode(texts), strict=True):
        assert ids.tolist() == tokenizer.encode(text, add_special_tokens=False).ids, text
    assert 0 < made.slowed <= 500


def test_what_gigatoken_cannot_encode_is_encoded_by_tokenizers(monkeypatch):
    class Panic(BaseException):
        pass

    lacking = Tokenizer(models.BPE())
    lacking.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    lacking.train_from_iterator(["the rain in spain " * 5], trainers.BpeTrainer(vocab_size=60))
    found = fast_of(lacking, "t")
    assert found.startswith("gigatoken ")
    made = fast_of(levels(), "t")
    good = made._fast

    class Wrong:
        @staticmethod
        def encode(text):
            if "dies" in text:
                raise Panic("in Rust")
            return good.encode(text)

    monkeypatch.setattr(fast, "_load", lambda definition: Wrong)
    made._fast = Wrong
    texts = ["plain words", "it dies here", "more"]
    for text, ids in zip(texts, made.encode(texts), strict=True):
        assert ids.tolist() == made._tokenizer.encode(text, add_special_tokens=False).ids
    assert made.slowed == 1


def single_word():
    made = levels()
    made.add_tokens([AddedToken("bar", single_word=True)])
    return made


@pytest.mark.parametrize(
    ("tokenizer", "why"),
    [
        (single_word, "added token 'bar' is for single words only"),
        (lambda: Tokenizer(models.WordPiece(unk_token="[UNK]")), "its model is WordPiece, not BPE"),
        (lambda: levels(dropout=0.1), "its model has dropout"),
        (lambda: levels(text=normalizers.NFKC()), r"with normalizer NFKC was never compared"),
        (lambda: levels(text=normalizers.Lowercase()), r"with normalizer Lowercase was never compared"),
    ],
)
def test_what_nobody_has_compared_is_not_used(tokenizer, why):
    found = fast_of(tokenizer(), "t")
    assert why in found


def test_another_version_is_not_used(monkeypatch):
    monkeypatch.setattr(fast.metadata, "version", lambda name: "0.11.0")
    assert fast_of(levels(), "t") == (
        "gigatoken is 0.11.0, of which nobody knows whether it gives the same ids (known: 0.10.*)"
    )


@pytest.mark.parametrize("at", [0, 31, 2000])
def test_a_difference_ends_it_with_both_ids(at):
    made = fast_of(levels(), "t")
    texts = ["plain words"] * at + ["differs here"] + ["plain words"] * 10
    good = made._fast

    class Wrong:
        @staticmethod
        def encode(text):
            ids = good.encode(text)
            return ids[:-1] if "differs" in text else ids

    made._fast = Wrong
    with pytest.raises(InputError, match=r"ids \[.*by gigatoken from token .* of 'differs here' on, expected \["):
        made.encode(texts)


def test_a_difference_of_a_hard_text_is_found_at_load(monkeypatch):
    monkeypatch.setattr(fast, "unproven", lambda definition: "")
    found = fast_of(single_word(), "t")
    assert "gigatoken gives other ids" in found
