"""Options of adopting: a field is a flag of the command and a keyword in Python."""

from dataclasses import dataclass

from conceptloader.base.arguments import positive
from conceptloader.base.options import Options, option
from conceptloader.base.strict import Count
from conceptloader.errors import ConfigError
from conceptloader.format.spec.manifest import Tokenizer
from conceptloader.ingest.records.tokenizer import AnyTokenizer, load_tokenizer, unnamed

_FLAT = "flat files"
_TOKENIZER = "tokenizer (recorded in the manifest, so that datasets of different tokenizers are not mixed)"


@dataclass(frozen=True, kw_only=True)
class AdoptOptions(Options):
    """Options of `adopt`, as `conceptloader adopt --help` describes them.

    Attributes:
        dtype: Of flat files' tokens, see `flat_file`.
        document_end: Token that ends a document in flat files, which are read once to find it.
        tokenizer: What the token ids mean: as the command takes it, of which a copy is kept next to the manifest, for
            text to be shown and annotated; or a `Tokenizer` of the format.
    """

    dtype: str | None = option("uint8, uint16, uint32, int32 or int64", form="TYPE", group=_FLAT)
    document_end: int | None = option("the token that ends each document", None, "ID", int, group=_FLAT)
    tokenizer: AnyTokenizer = option(
        "`bytes`, a tokenizer.json, or a transformers folder; a copy is kept", form="bytes|PATH", group=_TOKENIZER
    )
    vocab_size: Count | None = option(
        "number of token ids, instead of --tokenizer", None, "N", positive, group=_TOKENIZER
    )
    eos: str | int | None = option(
        "token that ends documents (default: the tokenizer's)", form="TOKEN|ID", group=_TOKENIZER
    )
    allow_mixed_tokenizers: bool = option("accept files that name different tokenizers", False, group=_TOKENIZER)
    ignore_loss_mask: bool = option("accept .ds files with a .ds.loss, which is not read", False)

    def facts(self) -> tuple[Tokenizer | None, bytes | None]:
        """What the manifest says of the tokenizer, and the bytes of its file. Raises: ConfigError, InputError."""
        if isinstance(self.tokenizer, str) and self.vocab_size is None:
            found = load_tokenizer(self.tokenizer, self.eos)
            return Tokenizer(name=found.name, vocab_size=found.vocab_size, eos_id=found.eos_id), found.definition
        if self.tokenizer is None and self.vocab_size is not None:
            return unnamed(self.vocab_size, self.eos), None
        if (self.vocab_size, self.eos) != (None, None):
            with_one = self.tokenizer is not None
            raise ConfigError(
                "adopt",
                "--tokenizer with --vocab-size" if with_one else "--eos without a tokenizer",
                "either --tokenizer or --vocab-size",
                "omit --vocab-size" if with_one else "add --tokenizer or --vocab-size, or omit --eos",
            )
        return self.tokenizer, None
