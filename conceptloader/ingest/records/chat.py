"""Conversations to tokens, with a loss on what the assistant says, rendered as transformers' apply_chat_template does.

Its own mask of tokens is not taken: it ends at the first answer that begins without a token, and is shifted for a
template that marks answers within a macro. Its places of answers in the text are, which the answers are compared with.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from conceptloader.base.packages import need
from conceptloader.errors import ConfigError, InputError
from conceptloader.ingest.hub import TOKENIZER_FILES, fetched
from conceptloader.ingest.records.batch import RowBatch
from conceptloader.ingest.records.columns import Columns
from conceptloader.ingest.records.documents import each, plain
from conceptloader.ingest.records.messages import Unprinted, is_trained
from conceptloader.ingest.records.records import parse_value, read_record
from conceptloader.ingest.records.special_tokens import ERROR, SpecialTokens
from conceptloader.ingest.records.table import TableParser, objects_of
from conceptloader.ingest.records.tokenizer_folder import TokenizerFolder

CHAT_NAMES = "messages", "prompt", "completion", "tools"  # what a conversation consists of
# The columns that become of these, next to ids, metadata and numbers, as `Columns` has them.
MADE: dict[str, Any] = {"text": None, "tokens": "tokens", "tracks": {}, "fields": {"loss_mask": "u1"}}
_ROLES = "system", "developer", "user", "assistant", "tool"
_MARK = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclass(frozen=True, kw_only=True)
class ChatRules:
    """template: in Jinja, as transformers has them.

    specials: bos_token and others that it may name. max_tokens: of a conversation, None for any; whole turns at the end
    are dropped from a longer one. multiple: of which every document has a number of tokens, padded with eos that is
    not trained on, as context parallelism wants it. tools_template: for conversations with tools, where the folder has
    one of its own. variables: further names that the template knows. append_eos: end completions without a template
    with the tokenizer's eos. last_answer: no loss on earlier ones. names: of the columns of `CHAT_NAMES`, where they
    differ.
    """

    template: str
    specials: Mapping[str, str]
    max_tokens: int | None = None
    multiple: int = 1
    tools_template: str | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    append_eos: bool = True
    last_answer: bool = False
    names: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As a dataset keeps it."""
        return asdict(self)


def load_rules(
    tokenizer: str, template: str | None = None, *, variables: Mapping[str, Any] | None = None, **rules: Any
) -> ChatRules:
    """The rules of a transformers folder, or of a template file.

    variables: `strftime_now` is the date that the template may ask for. rules: others of `ChatRules`.

    Raises: ConfigError, InputError if there are none.
    """
    variables = dict(variables or {})
    folder = TokenizerFolder(fetched(tokenizer, "model", TOKENIZER_FILES))
    try:
        templates = folder.templates() if template is None else {"default": Path(template).read_text("utf-8-sig")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        fix = "pass a file that can be read: --chat-template FILE"
        raise InputError("--chat", f"no template that can be read ({error})", "Jinja in UTF-8", fix) from error
    text, known = "".join(templates.values()), {*folder.tokens, *variables}
    if not templates.get("default"):
        raise ConfigError("--chat", f"no chat template in {tokenizer}", "a chat template", "pass --chat-template FILE")
    for name in ("bos_token", "eos_token"):
        if name in text and name not in known:
            fix = f"pass a transformers folder as --tokenizer, or --template-variable {name}=TOKEN"
            raise ConfigError("--chat", f"{name} in the template", "a tokenizer that has it", fix)
    for name in variables:
        if name in (*CHAT_NAMES, "add_generation_prompt") or not re.search(rf"\b{re.escape(name)}\b", text):
            fix = "correct --template-variable NAME=VALUE, or omit it"
            raise ConfigError(f"--template-variable {name}", "no variable of the template", "one of it", fix)
    multiple, limit = rules.get("multiple", 1), rules.get("max_tokens") or 0
    if limit % multiple:
        wanted = f"a multiple of {multiple} (--pad-to-multiple-of)"
        raise ConfigError("--max-tokens", str(limit), wanted, f"pass --max-tokens {limit // multiple * multiple}")
    day = variables.pop("strftime_now", None)
    dated = {name: _dated(one, day) for name, one in templates.items()}
    return ChatRules(
        template=dated["default"], tools_template=dated.get("tool_use"), specials=folder.tokens, variables=variables,
        **rules,
    )  # fmt: skip


def _dated(template: str, day: Any) -> str:
    """A template without the date of the day, which makes every build another dataset: with this one, or with none."""
    if day is None:
        return template.replace("strftime_now", "no_date")
    try:
        given = date.fromisoformat(str(day))
    except ValueError as error:
        fix = "pass --template-variable strftime_now=YYYY-MM-DD"
        raise ConfigError("--template-variable strftime_now", repr(day), "a date, YYYY-MM-DD", fix) from error
    calls = re.compile(r"""strftime_now\(\s*(["'])(.*?)\1\s*\)""")
    return calls.sub(lambda found: json.dumps(given.strftime(found[2])), template).replace("strftime_now", "true")


def read_variable(text: str) -> Any:
    """The value of a template's variable, from a command line or a recipe: true, false, null, JSON, or text."""
    words = {"true": True, "false": False, "none": None, "null": None}
    try:
        return words[text.lower()] if text.lower() in words else parse_value(text)
    except ValueError:
        return text


def _without_null(value: Any) -> Any:
    """Objects without the keys that have no value, which is how rows of a table lack one."""
    if isinstance(value, dict):
        return {key: _without_null(item) for key, item in value.items() if item is not None}
    return [_without_null(item) for item in value] if isinstance(value, list) else value


class ChatParser:
    """Rows of conversations: {"messages": [{"role", "content"}, ...], "tools"?}, or {"prompt", "completion", "tools"?}.

    The last two are messages, or both are text without a template. columns: with `MADE`; the ids, metadata and numbers
    of other documents.
    """

    def __init__(self, rules: ChatRules, tokenizer: SpecialTokens, columns: Columns) -> None:
        module = "transformers.utils.chat_template_utils"
        self._theirs = need(module, "--chat: the transformers package is not installed").render_jinja_template
        self._rules, self._tokenizer, self._columns = rules, tokenizer, columns
        self._records, self._kept = TableParser(columns, {}), {*columns.wanted()} - {"tokens", "loss_mask"}
        self._names = {theirs: ours for ours, theirs in rules.names.items()}
        self._given = {**rules.specials, **rules.variables}
        self._ends, self._batch = tokenizer.ends, RowBatch([], None, None, {})
        self._unprinted = Unprinted(lambda messages, tools: self._render(messages, tools)[0])

    def parse(self, rows: Any) -> RowBatch:
        """rows: lines of JSON, or a pyarrow table. Raises: BadRow."""
        documents: list[dict[str, Any]] = []
        self._batch = found = RowBatch([], None, None, {})
        self._tokenizer.spelled.clear()
        if not isinstance(rows, list):
            rows = rows.select([name for name in rows.schema.names if name not in self._columns.ignored])
            rows = objects_of(rows.to_struct_array(), "")
        each(rows, lambda row: documents.append(self._document(len(documents), row)))
        batch = self._records.parse_records(documents)
        batch.truncated, batch.answers, batch.unended = found.truncated, found.answers, found.unended
        batch.spelled, batch.unprinted = dict(self._tokenizer.spelled), found.unprinted
        return batch

    def _row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A record whose conversation has values of JSON only."""
        return {name: one if name in self._kept else _without_null(plain(one)) for name, one in row.items()}

    def _document(self, number: int, row: Any) -> dict[str, Any]:
        record = self._row(row if isinstance(row, dict) else read_record(row))
        record = {self._names.get(name, name): one for name, one in record.items() if name not in self._columns.ignored}
        kept = {name: record.pop(name) for name in self._kept & record.keys()}
        wanted = ("prompt", "completion") if "completion" in record else ("messages",)
        if unknown := sorted(record.keys() - {*wanted, "tools"}):
            raise ValueError(
                f"found column {unknown[0]!r}, expected {' and '.join(wanted)}, and tools; name the conversation "
                "(--column messages=NAME), keep others (--metadata-column) or omit them (--ignore-column)"
            )
        given = [record.get(name) for name in wanted]
        if len(given) == 2 and all(isinstance(one, str) for one in given):
            found = self._plain(*map(str, given))
        else:
            *before, last = ([*self._messages(record, name)] for name in wanted)
            found = self._chat(number, [*before, last], _tools(record.get("tools")), wanted[-1])
        return {**kept, **self._filled(found)}

    def _messages(self, record: Mapping[str, Any], column: str) -> Iterator[tuple[dict[str, Any], bool]]:
        """The messages of a column, and whether each is trained on, without the fields that are ignored."""
        given = record.get(column)
        if not isinstance(given, list) or not given:
            expected = "messages, each with role and content"
            raise ValueError(f"{column}: found {given!r:.100}, expected {expected}")
        for k, message in enumerate(given):
            where = f"{column}[{k}]"
            if not isinstance(message, dict) or message.get("role") not in _ROLES:
                expected = f"an object with content and a role, one of {', '.join(_ROLES)}"
                raise ValueError(f"{where}: found {message!r:.100}, expected {expected}")
            message = {name: one for name, one in message.items() if f"{column}.{name}" not in self._columns.ignored}
            content = message.get("content")
            if isinstance(content, list):
                texts = [isinstance(one, dict) and one.get("type") == "text" and one.get("text") for one in content]
                whole = all(isinstance(text, str) for text in texts)
                content = message["content"] = "".join(map(str, texts)) if whole else 0
            if not isinstance(content, (str, type(None))):
                raise ValueError(f"{where}: found other content than text, expected text, or parts of type text")
            if not content and not message.get("tool_calls"):
                raise ValueError(f"{where}: found no content, expected some, or tool_calls")
            yield message, is_trained(message, where) and message["role"] == "assistant"

    def _filled(self, document: dict[str, Any]) -> dict[str, Any]:
        room = -len(document["tokens"]) % self._rules.multiple
        if not room:
            return document
        if (eos := self._tokenizer.tokenizer.eos_id) is None:
            fix = "pass --eos TOKEN"
            raise ConfigError("--pad-to-multiple-of", "a tokenizer without eos", "an eos token to pad with", fix)
        tokens = np.append(document["tokens"], np.full(room, eos, np.int64))
        return {"tokens": tokens, "loss_mask": document["loss_mask"] + [0] * room}

    def _plain(self, prompt: str, completion: str) -> dict[str, Any]:
        """Without a template: both as they are, and eos unless it is there already."""
        eos = [self._tokenizer.tokenizer.eos_id] if self._rules.append_eos else []
        if None in eos:
            fix = "pass --eos TOKEN, or --no-eos to end them with none"
            raise ConfigError("--chat", "a tokenizer without a known eos", "a token to end completions with", fix)
        self._tokenizer.spelled.update(self._spelled([prompt, completion], "prompt and completion"))
        encode = self._tokenizer.tokenizer.encode
        first, second = (encode([one], [False])[0].values.tolist() for one in (prompt, completion))
        if not second:
            raise ValueError("completion: found no token, expected what is to be trained on")
        eos = [] if second[-1:] == eos else eos
        tokens, limit = [*first, *second, *eos], self._rules.max_tokens
        if limit and len(tokens) > limit:
            raise ValueError(f"found {len(tokens)} tokens without turns, expected at most {limit} (--max-tokens)")
        return {"tokens": np.array(tokens), "loss_mask": [0] * len(first) + [1] * (len(second) + len(eos))}

    def _spelled(self, content: Any, where: str) -> list[str]:
        """The special tokens that a conversation spells. Raises: ValueError, unless they become these tokens."""
        names = self._tokenizer.names_in(content)
        if names and self._tokenizer.rule == ERROR:
            fix = "skip such records (--bad-records FILE), or make it the token (--special-tokens control)"
            raise ValueError(f"found the special token {names[0]!r} in {where}, expected text without any; {fix}")
        return names

    def _chat(
        self, number: int, given: Sequence[list[tuple[dict[str, Any], bool]]], tools: Any, where: str
    ) -> dict[str, Any]:
        """A conversation, cut to whole turns. given: the lists of messages, of which only the last is trained on."""
        messages = [message for one in given for message, _ in one]
        trained = [flag and one is given[-1] for one in given for _, flag in one]
        since = len(messages) - len(given[-1])
        ends = [k + 1 for k in range(since, len(messages)) if messages[k]["role"] == "assistant"]
        if not ends or ends[-1] != len(messages):
            raise ValueError(f"{where}: found {messages[-1]['role']!r} as the last role, expected assistant")
        names, size = self._spelled([messages, tools], where), 0
        for end in reversed(ends):
            flags = [flag and (k == end - 1 or not self._rules.last_answer) for k, flag in enumerate(trained[:end])]
            found, unended = self._rendered(messages[:end], tools, flags, where)
            size = len(found["tokens"])
            if size <= (self._rules.max_tokens or size):
                batch = self._batch
                batch.truncated += end < len(messages)
                batch.answers += sum(flags)
                batch.unended += [{"row": number, **one} for one in unended]
                self._tokenizer.spelled.update(names)
                batch.unprinted.update(self._unprinted.names(messages[:end], tools))
                return found
        raise ValueError(f"{where}: found {size} tokens in the first turn, expected at most {self._rules.max_tokens}")

    def _rendered(
        self, messages: list[dict[str, Any]], tools: Any, trained: Sequence[bool], where: str
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """(tokens and loss_mask; answers without a trained end) of messages. trained: which ones have a loss."""
        text, marks = self._render(messages, tools)
        answers = [k for k, message in enumerate(messages) if message["role"] == "assistant"]
        if marks is None:
            spans = [self._added(messages, k, tools, text, where) for k in answers if trained[k]]
        elif len(marks) != len(answers):
            raise ValueError(f"{where}: the template marks {len(marks)} generations, expected one for each answer")
        else:
            for k, (start, end) in zip(answers, marks, strict=True):
                said = str(messages[k].get("content") or "").strip().rpartition("\n")[2]
                if said not in text[start:end]:
                    fix = "write {% generation %} outside of macros and of set, filter and call blocks"
                    raise ValueError(f"{where}[{k}]: the template marks {text[start:end]!r:.50} for it; {fix}")
            spans = [span for k, span in zip(answers, marks, strict=True) if trained[k]]
        ragged, places = self._tokenizer.tokenizer.encode([text], [True])
        tokens, mask = ragged.values.astype(np.int64), np.zeros(len(ragged.values), np.int64)
        unended = []
        for start, end in spans:
            inside = np.flatnonzero((places[:, 0] >= start) & (places[:, 0] < end))
            mask[inside] = 1
            last = next((i for i in reversed(inside.tolist()) if text[slice(*places[i])].strip()), None)
            if self._ends and (last is None or tokens[last] not in self._ends):
                unended.append({"start": start, "end": end, "text": text[start:end][-40:]})
        if not mask.any():
            raise ValueError(f"{where}: no token of the assistant is left after rendering, expected some to learn")
        return {"tokens": tokens, "loss_mask": mask.tolist()}, unended

    def _added(self, messages: list[dict[str, Any]], k: int, tools: Any, text: str, where: str) -> tuple[int, int]:
        """Where the answer `k` is in the text of all messages: what it adds to those before it and their prompt."""
        before = self._render(messages[:k], tools, prompt=True)[0]
        after = text if k + 1 == len(messages) else self._render(messages[: k + 1], tools)[0]
        if not (after.startswith(before) and text.startswith(after)):
            raise ValueError(
                f"{where}[{k}]: the template renders earlier turns in another way once later ones follow, so that what "
                "the assistant says cannot be distinguished; mark it with {% generation %} (--chat-template FILE), or "
                "train on the last answers only (--last-answer)"
            )
        return len(before), len(after)

    def _render(
        self, messages: Sequence[Any], tools: Any, prompt: bool = False
    ) -> tuple[str, Sequence[tuple[int, int]] | None]:
        """(text, places of what the template marks as generated; None if it marks nothing)."""
        rules = self._rules
        template = rules.template if tools is None else rules.tools_template or rules.template
        marked = _MARK.search(template) is not None
        try:
            texts, marks = self._theirs(
                [messages], tools=tools, chat_template=template, return_assistant_tokens_mask=marked,
                add_generation_prompt=prompt, **self._given,
            )  # fmt: skip
        except Exception as error:  # whatever a template does
            raise ValueError(f"the chat template fails: {type(error).__name__}: {error}") from error
        return texts[0], marks[0] if marked else None


def _tools(found: Any) -> Any:
    """Tools as a list; files of tables often have them as JSON. Raises: ValueError for anything else."""
    try:
        value = parse_value(found) if isinstance(found, str) and found else found
    except ValueError as error:
        raise ValueError(f"tools: found {found!r:.100} ({error}), expected a list of objects") from error
    if value is not None and not isinstance(value, list):
        raise ValueError(f"tools: found {found!r:.100}, expected a list of objects")
    return value
