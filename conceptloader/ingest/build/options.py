"""Options of a build, by the command line, a recipe or Python: a field is its flag, its key and its keyword."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from conceptloader.base.arguments import eos_id, positive, size, track_file
from conceptloader.base.options import option
from conceptloader.base.strict import unknown
from conceptloader.errors import ConfigError
from conceptloader.format.spec.layout import MODES
from conceptloader.ingest.align.rules import SpanAlignment
from conceptloader.ingest.build.shard import IngestOptions
from conceptloader.ingest.hub import TOKENIZER_FILES, fetched
from conceptloader.ingest.records.chat import CHAT_NAMES, MADE, ChatRules, load_rules, read_variable
from conceptloader.ingest.records.detect import detect_columns, with_labels
from conceptloader.ingest.records.inputs import Source
from conceptloader.ingest.records.special_tokens import CONTROL, ERROR, RULES, TEXT
from conceptloader.ingest.records.tokenizer import FileTokenizer, find_token, load_tokenizer
from conceptloader.ingest.records.vocabulary import load_vocabulary

_TOKENS, _CHAT, _BUILD = "tokens", "conversations", "the build"
_COLUMNS = "columns (others: detected in the first records)"


@dataclass(frozen=True, kw_only=True)
class Options(SpanAlignment):
    """Options of a build, as `conceptloader build --help` describes them."""

    tokenizer: str | None = option(
        "`bytes`, a tokenizer.json, a transformers folder, or hub:OWNER/NAME", form="bytes|PATH", group=_TOKENS
    )
    vocab_size: int | None = option("for tokens as input, instead of --tokenizer", None, "N", positive, group=_TOKENS)
    eos: str | int | None = option("ends each document (default: the tokenizer's)", form="TOKEN|ID", group=_TOKENS)
    no_eos: bool = option("do not append an eos token to each document", False, group=_TOKENS)
    bos: str | int | None = option("starts each document (default: none)", form="TOKEN|ID", group=_TOKENS)
    special_tokens: str | None = option("what text is that spells one (default: text)", choices=RULES, group=_TOKENS)
    vocabulary: Mapping[str, str | os.PathLike[str] | Sequence[str]] = option(
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
    chat_template: str | None = option(
        "Jinja template (default: that of the --tokenizer directory)", form="FILE", group=_CHAT
    )
    max_tokens: int | None = option("drop the last turns of longer conversations", None, "N", positive, group=_CHAT)
    pad_to_multiple_of: int | None = option(
        "pad to a multiple of N tokens, for context parallelism", None, "N", positive, group=_CHAT
    )
    last_answer: bool = option("a loss on the last answer of a conversation only", False, group=_CHAT)
    template_variable: Mapping[str, str] = option("such as enable_thinking=false", dict, "NAME=VALUE", group=_CHAT)
    mode: str | None = option("default: from the columns", choices=MODES, group=_BUILD)
    shard_input_bytes: int | None = option(
        "input bytes per shard (default: about 64 shards of 64M to 16G)", None, "SIZE", size, group=_BUILD
    )
    unique_ids: bool = option("raise for missing and repeated ids", False, group=_BUILD)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "Options":
        """Raises: ConfigError for a name that is none."""
        for name in options.keys() - cls.__dataclass_fields__.keys():
            raise unknown(f"build: {name}", name, cls.__dataclass_fields__, "option")
        return cls(**options)

    def resolve(self, sources: Sequence[Source], strict: bool) -> IngestOptions:
        """What they are for these inputs. strict: the first records have no column that nobody names.

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
        given = None if self.tokenizer is None else fetched(self.tokenizer, "model", TOKENIZER_FILES)  # once for all
        chat = self._chat(given)
        columns = detect_columns(
            sources,
            {ours: name for ours, name in self.column.items() if chat is None or ours not in CHAT_NAMES},
            metadata_columns=self.metadata_column,
            fields=self.field,
            numbers=self.number,
            ignored=self.ignore_column,
            strict=strict and chat is None,
        )
        vocabularies = {
            track: load_vocabulary(names) if isinstance(names, (str, os.PathLike)) else list(names)
            for track, names in self.vocabulary.items()
        }
        tokenizer = None if given is None else load_tokenizer(given, self.eos, ends=not self.no_eos)
        options = IngestOptions(
            columns=columns,
            tokenizer=tokenizer,
            vocab_size=self.vocab_size,
            eos_id=eos_id("build", None if self.eos is None else str(self.eos)) if tokenizer is None else None,
            append_eos=not self.no_eos,
            eos_twice=self.eos is not None,
            bos=find_token(tokenizer, None if self.bos is None else str(self.bos), "--bos"),
            special_tokens=self.special_tokens,
            scores=self.scores,
            mode=self.mode,
            shard_input_bytes=self.shard_input_bytes,
            unique_ids=self.unique_ids,
            **vars(self.rules),
        )
        options = _with_chat(options, chat)
        return replace(options, vocabularies=with_labels(vocabularies, sources, options.columns))

    def _chat(self, tokenizer: str | None) -> ChatRules | None:
        """How conversations are rendered, None for documents."""
        of_chat = "chat_template", "max_tokens", "pad_to_multiple_of", "last_answer", "template_variable"
        names = ("field",) if self.chat else of_chat
        if wrong := next((name for name in names if getattr(self, name)), None):
            flag, what = "--" + wrong.replace("_", "-"), "and" if self.chat else "without"
            expected = "only one of the two" if self.chat else "the two together"
            raise ConfigError("build", f"{flag} {what} --chat", expected, f"add --chat, or omit {flag}")
        if not self.chat:
            return None
        if tokenizer is None:
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
            last_answer=self.last_answer,
            names={ours: theirs for ours, theirs in self.column.items() if ours in CHAT_NAMES},
        )


def _with_chat(options: IngestOptions, chat: ChatRules | None) -> IngestOptions:
    """The same for conversations, if these are any: their template ends turns, by the eos that the tokenizer has."""
    if chat is None:
        return options
    if options.special_tokens == TEXT:
        fix = "omit --special-tokens, or pass control, which makes it these tokens"
        raise ConfigError("special_tokens", f"{TEXT!r} for conversations", f"{ERROR!r} or {CONTROL!r}", fix)
    columns = replace(options.columns, **MADE, labels=None, attention_mask=None)
    tokenizer, specials = options.tokenizer, dict(chat.specials)
    if "eos_token" in specials and isinstance(tokenizer, FileTokenizer):
        specials["eos_token"] = tokenizer.name_of(tokenizer.eos_id) or specials["eos_token"]
    chat = replace(chat, specials=specials, append_eos=options.append_eos)
    rule = options.special_tokens or ERROR
    return replace(options, columns=columns, chat=chat, special_tokens=rule, mode=options.mode or "document")
