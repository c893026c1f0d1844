"""Options of a build: a field is a flag of the command, a key of its recipe and a keyword in Python."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from conceptloader.base.arguments import positive, size, track_file
from conceptloader.base.options import File, option
from conceptloader.base.strict import Count, Reads, unknown
from conceptloader.errors import ConfigError
from conceptloader.format.spec.layout import MODES
from conceptloader.ingest.align.rules import SpanAlignment
from conceptloader.ingest.hub import TOKENIZER_FILES, fetched
from conceptloader.ingest.records.chat import CHAT_NAMES, MADE, ChatRules, load_rules, read_variable
from conceptloader.ingest.records.columns import Columns
from conceptloader.ingest.records.detect import detect_columns
from conceptloader.ingest.records.inputs import Source
from conceptloader.ingest.records.special_tokens import CONTROL, ERROR, RULES, TEXT
from conceptloader.ingest.records.tokenizer import AnyTokenizer, FileTokenizer, find_token, load_tokenizer
from conceptloader.ingest.records.vocabulary import Names, load_vocabulary

_TOKENS, _CHAT, _BUILD = "tokens", "conversations", "the build"
_COLUMNS = "columns (others: detected in the first records)"
_RESOLVED = Reads(lambda value, _: value, "")  # as it is


@dataclass(frozen=True, kw_only=True)
class Options(SpanAlignment):
    """Options of a build, as `conceptloader build --help` describes them.

    Attributes:
        tokenizer: As the command takes it, or one that is loaded; None for tokens with a `vocab_size`.
        vocabulary: By track a file, or names of the concepts, index = concept id.
        columns: Which columns mean what, if that is known; `resolved` looks at the first records.
        rules: How conversations are rendered, which `resolved` finds out.
    """

    tokenizer: AnyTokenizer = option(
        "`bytes`, a tokenizer.json, a transformers folder, or hub:OWNER/NAME", form="bytes|PATH", group=_TOKENS
    )
    vocab_size: Count | None = option("for tokens as input, instead of --tokenizer", None, "N", positive, group=_TOKENS)
    eos: str | int | None = option("ends each document (default: the tokenizer's)", form="TOKEN|ID", group=_TOKENS)
    no_eos: bool = option("do not append an eos token to each document", False, group=_TOKENS)
    bos: Any = option("starts each document (default: none)", form="TOKEN|ID", group=_TOKENS)
    special_tokens: str | None = option("what text is that spells one (default: text)", choices=RULES, group=_TOKENS)
    vocabulary: Mapping[str, Names] = option(
        "concept names of a track (default: concepts), one per line or a JSON list",
        dict, "[TRACK=]FILE", track_file, group="spans",
    )  # fmt: skip
    scores: Mapping[str, str] = option(
        "spans of this track have `scores`, one per concept; store them as f2 or f4, such as concepts=f2",
        dict, "TRACK=TYPE", group="spans",
    )  # fmt: skip
    column: Mapping[str, str] = option(
        "name of text, tokens, id, metadata, spans[_TRACK] (also one that the first records lack); in spans of start, "
        "end, concepts, scores or surface: text=body or concepts=label",
        dict, "OURS=THEIRS", group=_COLUMNS,
    )  # fmt: skip
    metadata_column: Sequence[str] = option("add this column to the metadata", list, "NAME", group=_COLUMNS)
    field: Mapping[str, str] = option("a column of numbers per token: loss_mask:u1", dict, "NAME:TYPE", group=_COLUMNS)
    number: Mapping[str, str] = option(
        "a track, a number per document: quality:f4 or quality:f4=none", dict, "NAME:TYPE", group=_COLUMNS
    )
    ignore_column: Sequence[str] = option("do not read it; of spans COLUMN.FIELD", list, "NAME", group=_COLUMNS)
    chat: bool = option("records are conversations", False, group=_CHAT)
    chat_template: File | None = option(
        "Jinja template (default: that of the --tokenizer directory)", form="FILE", group=_CHAT
    )
    max_tokens: Count | None = option("drop the last turns of longer conversations", None, "N", positive, group=_CHAT)
    pad_to_multiple_of: Count | None = option(
        "pad to a multiple of N tokens, for context parallelism", None, "N", positive, group=_CHAT
    )
    last_answer: bool = option("a loss on the last answer of a conversation only", False, group=_CHAT)
    template_variable: Mapping[str, str] = option("such as enable_thinking=false", dict, "NAME=VALUE", group=_CHAT)
    mode: str | None = option("default: from the columns", choices=MODES, group=_BUILD)
    shard_input_bytes: Count | None = option(
        "input bytes per shard (default: about 64 shards of 64M to 16G)", None, "SIZE", size, group=_BUILD
    )

    columns: Annotated[Columns, _RESOLVED] = None  # type: ignore[assignment]  # none before `resolved`
    rules: Annotated[ChatRules | None, _RESOLVED] = None

    def resolved(self, sources: Sequence[Source], strict: bool) -> "Options":
        """The same for these inputs, with ids, names, columns and a tokenizer, as workers need them.

        strict: the first records have no column that nobody names.

        Raises: ConfigError, InputError.
        """
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # parallel over documents of a shard; workers decide
        if (self.tokenizer is None) == (self.vocab_size is None):
            raise ConfigError(
                "build",
                f"{'neither' if self.tokenizer is None else 'both'} of --tokenizer and --vocab-size",
                "either --tokenizer or, for tokens as input, --vocab-size",
                "pass --tokenizer for text, --vocab-size for tokens",
            )
        given = self.tokenizer
        if isinstance(given, str):
            given = fetched(given, "model", TOKENIZER_FILES)  # once for all
        rules = self._chat(given)
        columns = self.columns or detect_columns(
            sources,
            {ours: name for ours, name in self.column.items() if rules is None or ours not in CHAT_NAMES},
            metadata_columns=self.metadata_column,
            fields=self.field,
            numbers=self.number,
            ignored=self.ignore_column,
            strict=strict and rules is None,
        )
        vocabulary = {
            track: load_vocabulary(names) if isinstance(names, str) else names
            for track, names in self.vocabulary.items()
        }
        tokenizer = load_tokenizer(given, self.eos, ends=not self.no_eos) if isinstance(given, str) else given
        rule = self.special_tokens
        if rules is not None:
            if rule == TEXT:
                fix = "omit --special-tokens, or pass control, which makes it these tokens"
                raise ConfigError("special_tokens", f"{TEXT!r} for conversations", f"{ERROR!r} or {CONTROL!r}", fix)
            columns, rule = replace(columns, **MADE), rule or ERROR
            specials = dict(rules.specials)  # the template ends turns, by the eos that the tokenizer has
            if "eos_token" in specials and isinstance(tokenizer, FileTokenizer):
                specials["eos_token"] = tokenizer.name_of(tokenizer.eos_id) or specials["eos_token"]
            rules = replace(rules, specials=specials)
        return replace(
            self,
            tokenizer=tokenizer,
            bos=find_token(tokenizer, None if self.bos is None else str(self.bos), "--bos"),
            special_tokens=rule,
            vocabulary=vocabulary,
            columns=columns,
            rules=rules,
            mode=self.mode or ("document" if rules else None),
        )

    def _chat(self, tokenizer: Any) -> ChatRules | None:
        """How conversations are rendered, None for documents."""
        of_chat = "chat_template", "max_tokens", "pad_to_multiple_of", "last_answer", "template_variable"
        names = ("field",) if self.chat else of_chat
        if wrong := next((name for name in names if getattr(self, name)), None):
            flag, what = "--" + wrong.replace("_", "-"), "and" if self.chat else "without"
            expected = "only one of the two" if self.chat else "the two together"
            raise ConfigError("build", f"{flag} {what} --chat", expected, f"add --chat, or omit {flag}")
        if not self.chat:
            return None
        if not isinstance(tokenizer, str):
            raise ConfigError("build", "--chat without --tokenizer", "the tokenizer of the model", "add --tokenizer")
        for ours in self.column:
            if ours not in (known := (*CHAT_NAMES, "id", "metadata")):
                raise unknown(f"--column {ours}", ours, known, "column of a conversation")
        return load_rules(
            tokenizer,
            self.chat_template,
            variables={name: read_variable(text) for name, text in self.template_variable.items()},
            max_tokens=self.max_tokens,
            multiple=self.pad_to_multiple_of or 1,
            append_eos=not self.no_eos,
            last_answer=self.last_answer,
            names={ours: theirs for ours, theirs in self.column.items() if ours in CHAT_NAMES},
        )

    @property
    def spelled(self) -> str:
        """The rule for text that spells a special token."""
        return TEXT if self.special_tokens is None else self.special_tokens

    @property
    def known_eos(self) -> int | None:
        """The id that ends documents by the tokenizer, whether or not it is appended."""
        if self.tokenizer is None:
            return None if self.eos is None else int(self.eos)
        found: int | None = self.tokenizer.eos_id
        return found

    @property
    def appended(self) -> int | None:
        """The id that is appended to each document. Raises: ConfigError if there is none to append."""
        if self.no_eos or self.rules is not None:
            return None
        if (found := self.known_eos) is None:
            raise ConfigError(
                "eos",
                "a tokenizer without a known end-of-document token",
                "a token to append to each document",
                "pass --eos TOKEN, or --no-eos to append none",
            )
        return found
