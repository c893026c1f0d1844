"""Tokenizers of each family, made by the `tokenizers` package: small, but cut as those of real models are."""

from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "the red cat sat on the mat,  and the blue bird saw it .",
    "größer als die Katze 😀 naïve café\u0301 ﬁne",
    "日本語 テキスト\u3000です <tag> done\n\n\tend",
] * 4  # fmt: skip
END = "<|endoftext|>"


def byte_level(trim=None, prefix=False, normalizer=None, regex=True):
    """As GPT-2 and most later ones. trim: trim_offsets of the post-processor, None for no post-processor."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)
    made.decoder = decoders.ByteLevel()
    if normalizer is not None:
        made.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(vocab_size=400, special_tokens=[END], initial_alphabet=alphabet, show_progress=False),
    )
    if trim is not None:
        made.post_processor = processors.ByteLevel(trim_offsets=trim, add_prefix_space=prefix)
    return made


def with_template():
    """A post-processor that would add a token in front, after one that trims."""
    made = byte_level()
    template = processors.TemplateProcessing(single=f"{END} $A", special_tokens=[(END, made.token_to_id(END))])
    made.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), template])
    return made


def unigram(scheme):
    """SentencePiece's unigram model with byte fallback: unknown characters in a row are one to the model."""
    pieces = [("<unk>", 0.0), (END, 0.0), ("▁", -2.0), ("▁red", -1.0), ("▁the", -1.0), ("cat", -1.5), ("ir", -3.0)]
    letters = [(letter, -5.0) for letter in "abcdefghijklmnopqrstuvwxyzß,."]
    pieces += letters + [(f"<0x{value:02X}>", -9.0) for value in range(256)]
    made = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme=scheme)])
    return made


def unknowing():
    """The same without bytes: a run of unknown characters is one token."""
    made = Tokenizer(models.Unigram([("<unk>", 0.0), (END, 0.0), ("▁", -2.0), ("▁red", -1.0), ("e", -3.0)], unk_id=0))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    return made


def llama():
    """SentencePiece's BPE as Llama has it: the marker by a normalizer, bytes for single characters, an added token."""
    merges = [("r", "e"), ("re", "d"), ("▁", "red"), ("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "▁")]
    names = ["<unk>", END, *(f"<0x{value:02X}>" for value in range(256)), "▁", *"abcdefghijklmnopqrstuvwxyz"]
    names += [first + second for first, second in merges]
    vocabulary = {name: number for number, name in enumerate(names)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.add_special_tokens([AddedToken("<tag>", normalized=False)])
    return made


def word_piece():
    """BERT's, with an added token that takes the white space around it."""
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=140, special_tokens=["[UNK]", END], show_progress=False)
    made.train_from_iterator(CORPUS, trainer)
    made.add_tokens([AddedToken("<tag>", lstrip=True, rstrip=True)])
    return made


FAMILIES = {
    "byte-level": byte_level,
    "byte-level, offsets not trimmed": lambda: byte_level(False),
    "byte-level, offsets trimmed": lambda: byte_level(True),
    "byte-level, prefix space": lambda: byte_level(False, prefix=True),
    "byte-level, prefix space, trimmed": lambda: byte_level(True, prefix=True),
    "byte-level, white space within tokens": lambda: byte_level(regex=False),
    "byte-level, template": with_template,
    "byte-level, NFC": lambda: byte_level(normalizer=normalizers.NFC()),
    "byte-level, NFD": lambda: byte_level(normalizer=normalizers.NFD()),
    "byte-level, NFKC lowercase strip": lambda: byte_level(
        normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(), normalizers.Strip()])
    ),
    "byte-level, words replaced": lambda: byte_level(normalizer=normalizers.Replace("red", "crimson")),
    "unigram, always": lambda: unigram("always"),
    "unigram, first": lambda: unigram("first"),
    "unigram, never": lambda: unigram("never"),
    "unigram without bytes": unknowing,
    "llama": llama,
    "word piece": word_piece,
}


@cache
def definition(family):
    """The tokenizer.json of a family."""
    return FAMILIES[family]().to_str().encode()
