"""Conversations to tokens, with a loss on what the assistant says: a chat template, rendered in a sandbox."""

import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import compress, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conceptloader.base.packages import need
from conceptloader.errors import ConfigError, InputError
from conceptloader.format.spec.columns import Ints
from conceptloader.ingest.hub import TOKENIZER_FILES, fetched
from conceptloader.ingest.records.batch import BadRow, RowBatch
from conceptloader.ingest.records.columns import Columns
from conceptloader.ingest.records.documents import check_id, each, plain
from conceptloader.ingest.records.messages import Unprinted, is_trained
from conceptloader.ingest.records.records import RecordParser, parse_value, read_record
from conceptloader.ingest.records.special_tokens import ERROR, TEXT, SpecialTokens, refuse
from conceptloader.ingest.records.table import objects_of
from conceptloader.ingest.records.tokenizer_folder import TokenizerFolder

log = logging.getLogger(__name__)

_OWN = "messages", "tools", "add_generation_prompt"  # what a conversation gives to its template
_BEGIN, _END = "\ufdd0", "\ufdd1"  # around what the assistant says; no characters, so in no text
_AFTER = {
    "system": {""}, "developer": {""}, "user": {"", "system", "developer", "assistant"},
    "assistant": {"user", "tool"}, "tool": {"assistant", "tool"},
}  # fmt: skip
_CONTENT = {"messages", "prompt", "completion", "chosen", "rejected", "tools", "id"}
_CONVERTED = {
    "conversations": 'each {"from": "human" or "gpt", "value": TEXT} becomes {"role": "user" or "assistant", '
    '"content": TEXT} of messages',
    "system": 'it becomes the first of messages, {"role": "system", "content": TEXT}; or omit it (--ignore-column)',
}  # columns of other formats
CHAT_COLUMNS = Columns(text=None, tokens="tokens", tracks={}, fields={"loss_mask": "u1"})


@dataclass(frozen=True, kw_only=True)
class ChatRules:
    """template: in Jinja, as transformers has them.

    specials: bos_token and others that it may name. max_tokens: of a conversation, None for any; whole turns at the end
    are dropped from a longer one. multiple: of which every document has a number of tokens, padded with eos that is
    not trained on, as context parallelism wants it. tools_template: for conversations with tools, where the folder has
    one of its own. variables: further names that the template knows; `strftime_now` is the date that it may ask for.
    append_eos: end completions without a template with the tokenizer's eos.
    """

    template: str
    specials: Mapping[str, str]
    max_tokens: int | None = None
    multiple: int = 1
    tools_template: str | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    append_eos: bool = True

    def to_json(self) -> dict[str, Any]:
        """As a dataset keeps it; what came later only where it is used."""
        later: dict[str, Any] = {"tools_template": None, "variables": {}, "append_eos": True}
        return {name: value for name, value in asdict(self).items() if name not in later or value != later[name]}


def load_rules(
    tokenizer: str,
    template: str | None,
    max_tokens: int | None,
    multiple: int = 1,
    variables: Mapping[str, Any] | None = None,
) -> ChatRules:
    """The rules of a transformers folder, or of a template file. Raises: ConfigError, InputError if there are none."""
    try:
        templates = {} if template is None else {"default": Path(template).read_text("utf-8-sig")}
    except (OSError, ValueError) as error:
        found = f"a file that cannot be read ({getattr(error, 'strerror', None) or error})"
        where, fix = f"--chat-template {template}", f"run `ls -l {template}`, and save it as UTF-8"
        raise ConfigError(where, found, "a Jinja template in UTF-8", fix) from error
    try:
        folder = TokenizerFolder(fetched(tokenizer, "model", TOKENIZER_FILES))
        templates = templates or folder.templates()
        text = templates.get("default", "")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            "--chat", f"cannot read the template: {error}", fix="pass a file that can be read: --chat-template FILE"
        ) from error
    if not text:
        raise ConfigError("--chat", f"no chat template in {tokenizer}", "a chat template", "pass --chat-template FILE")
    if (max_tokens or 0) % multiple:
        raise ConfigError(
            "--max-tokens",
            str(max_tokens),
            f"a multiple of {multiple} (--pad-to-multiple-of)",
            f"pass --max-tokens with a multiple of {multiple}",
        )
    rules = ChatRules(
        template=text,
        specials=folder.tokens,
        max_tokens=max_tokens,
        multiple=multiple,
        tools_template=templates.get("tool_use"),
        variables=dict(variables or {}),
    )
    named = [_compiled(rules, one)[1] for one in (rules.template, rules.tools_template) if one is not None]
    for name in rules.variables:
        if name in _OWN or not any(name in one for one in named):
            known = ", ".join(sorted(set[str]().union(*named) - {*_OWN, *rules.specials}))
            raise ConfigError(
                f"--template-variable {name}",
                "no variable of the template",
                f"the name of one of its variables: {known or 'none'}",
                "correct --template-variable NAME=VALUE, or omit it",
            )
    if "strftime_now" in rules.variables:
        _today(rules.variables["strftime_now"])
    elif any("strftime_now" in one for one in named):
        log.warning(
            "--chat: the template asks for the date of the day, which would make every build another dataset: it gets "
            "none, or that of --template-variable strftime_now=YYYY-MM-DD"
        )
    return rules


def _without_null(value: Any) -> Any:
    """Objects without the keys that have no value, which is how rows of a table lack one."""
    if isinstance(value, dict):
        return {key: _without_null(item) for key, item in value.items() if item is not None}
    return [_without_null(item) for item in value] if isinstance(value, list) else value


def _compiled(rules: ChatRules, template: str) -> tuple[Any, set[str]]:
    """(the template, ready to be rendered; variables that it names).

    Raises: ConfigError for one that is none, or names a token nobody knows.
    """
    jinja, meta = need("jinja2", "--chat: the jinja2 package is not installed"), need("jinja2.meta", "--chat")
    environment = need("jinja2.sandbox", "--chat").ImmutableSandboxedEnvironment(
        extensions=["jinja2.ext.loopcontrols"], trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    # {% generation %}, by which transformers knows what the assistant says, becomes a pair of marks.
    text = re.sub(r"\{%(-?)\s*(end)?generation\s*(-?)%\}", _mark, template)
    environment.globals["raise_exception"] = _refuse
    try:
        named = meta.find_undeclared_variables(environment.parse(text))
        given = {*rules.specials, *rules.variables}
        unknown = sorted(name for name in named - given if name in ("bos_token", "eos_token"))
        if unknown:
            raise ConfigError(
                "--chat",
                f"{unknown[0]} in the template",
                "a tokenizer that has it",
                "pass a transformers folder as --tokenizer",
            )
        return environment.from_string(text), named
    except jinja.TemplateError as error:
        raise ConfigError(
            "--chat",
            f"a template that is not Jinja ({error})",
            "a Jinja template",
            "correct the template, or pass another --chat-template FILE",
        ) from error


def read_variable(text: str) -> Any:
    """The value of a template's variable, from a command line or a recipe: true, false, null, JSON, or text."""
    words = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return parse_value(text)
    except ValueError:
        return text


def _today(date: Any) -> Callable[[str], str]:
    """strftime_now of a template, on that date."""
    try:
        found = datetime.fromisoformat(str(date))
    except ValueError as error:
        raise ConfigError(
            "--template-variable strftime_now",
            repr(date),
            "a date, YYYY-MM-DD",
            "pass --template-variable strftime_now=YYYY-MM-DD",
        ) from error
    return found.strftime


def _mark(found: "re.Match[str]") -> str:
    return f"{{{{{found[1]} '{_END if found[2] else _BEGIN}' {found[3]}}}}}"


def _refuse(message: str) -> None:
    raise ValueError(f"the chat template refuses it: {message}")


class ChatParser:
    """Rows of conversations: {"messages": [{"role", "content"}, ...], "tools"?, "id"?}.

    Or {"prompt", "completion"}, both messages, or both text without a template; or {"chosen", "rejected", "prompt"?},
    of which each becomes a document, with the ids ID/chosen and ID/rejected. Further columns are ignored if `ignored`
    has them.
    """

    def __init__(self, rules: ChatRules, tokenizer: SpecialTokens, columns: Columns) -> None:
        self._records = RecordParser(columns, {}, dict)
        self._rules, self._tokenizer = rules, tokenizer
        self._template = _compiled(rules, rules.template)[0]
        self._of_tools = self._template if rules.tools_template is None else _compiled(rules, rules.tools_template)[0]
        self._given = {**rules.specials, **rules.variables}
        if "strftime_now" in rules.variables:
            self._given["strftime_now"] = _today(rules.variables["strftime_now"])
        self._ignored = frozenset(columns.ignored)
        self._truncated = 0
        self._unprinted, self._left_out = Unprinted(self._render), Counter[str]()

    def parse(self, rows: Any) -> RowBatch:
        """rows: lines of JSON, rows of CSV, or a pyarrow table."""
        documents: list[dict[str, Any]] = []
        self._truncated = 0
        self._tokenizer.spelled.clear()
        self._left_out.clear()
        self._tokenizer.framed.clear()
        of_table = not isinstance(rows, list)
        if of_table:
            rows = rows.select([name for name in rows.schema.names if name not in self._ignored])
            rows = objects_of(rows.to_struct_array(), "", lambda row: _without_null(plain(row)))

        def add(row: Any) -> None:
            # A table cannot say whether a key is null or not there: so neither may JSON, but in a column of Json.
            if not of_table:
                row = _without_null(plain(row) if isinstance(row, dict) else read_record(row))
            found = self._documents(row)
            documents.extend(map(self._filled, found) if self._rules.multiple > 1 else found)

        each(rows, add)
        batch = self._records.parse(documents)
        batch.truncated, batch.spelled = self._truncated, dict(self._tokenizer.spelled)
        batch.unprinted, batch.framed = dict(self._left_out), dict(self._tokenizer.framed)
        return batch

    def _documents(self, record: dict[str, Any]) -> list[dict[str, Any]]:
        unknown = sorted(record.keys() - _CONTENT - self._ignored)
        if unknown:
            for name in _CONVERTED.keys() & unknown:
                raise ValueError(f"found column {name!r}, expected messages; convert it first: {_CONVERTED[name]}")
            known = ", ".join(sorted(_CONTENT))
            raise ValueError(f"found column {unknown[0]!r}, expected some of {known}; omit it (--ignore-column)")
        record = {column: value for column, value in record.items() if column not in self._ignored}
        tools, prompt, name = _tools(record.get("tools")), record.get("prompt"), check_id(record.get("id"))
        if "chosen" in record and "rejected" in record:
            start = self._list(record, "prompt") if isinstance(prompt, list) else []
            return [
                {**self._chat([*start, *self._list(record, side)], tools, 0, side), "id": name and f"{name}/{side}"}
                for side in ("chosen", "rejected")
            ]
        if isinstance(prompt, str) and isinstance(record.get("completion"), str):
            return [{**self._plain(prompt, record["completion"]), "id": name}]
        if "completion" in record:
            start = self._list(record, "prompt")
            messages = [*start, *self._list(record, "completion")]
            return [{**self._chat(messages, tools, len(start), "completion"), "id": name}]
        return [{**self._chat(self._list(record, "messages"), tools, 0, "messages"), "id": name}]

    def _list(self, record: dict[str, Any], column: str) -> list[tuple[str, Any]]:
        """The messages of a column, each with its place, without the fields that are ignored."""
        found = record.get(column)
        if not isinstance(found, list) or not found:
            raise ValueError(
                f"{column}: found {found!r:.100}, expected messages, each with role and content (CSV, which has no "
                "lists, may have texts: prompt and completion)"
            )
        unwanted = {name for name in self._ignored if name.startswith(f"{column}.")}
        if unwanted:
            found = [
                {name: value for name, value in message.items() if f"{column}.{name}" not in unwanted}
                if isinstance(message, dict)
                else message
                for message in found
            ]
        return [(f"{column}[{k}]", message) for k, message in enumerate(found)]

    def _filled(self, document: dict[str, Any]) -> dict[str, Any]:
        eos, room = self._tokenizer.tokenizer.eos_id, -len(document["tokens"]) % self._rules.multiple
        if eos is None:
            raise ConfigError(
                "--pad-to-multiple-of",
                "a tokenizer without eos",
                "an eos token to pad documents with",
                "pass --eos TOKEN",
            )
        tokens = np.append(document["tokens"], np.full(room, eos, np.int64))
        return {**document, "tokens": tokens, "loss_mask": document["loss_mask"] + [0] * room}

    def _plain(self, prompt: str, completion: str) -> dict[str, Any]:
        """Without a template: both as they are, and eos unless it is there already."""
        eos = [self._tokenizer.tokenizer.eos_id] if self._rules.append_eos else []
        if None in eos:
            problem = "a tokenizer without a known end-of-document token"
            fix = "pass --eos TOKEN, or --no-eos to end them with none"
            raise ConfigError("--chat", problem, "a token to end completions with", fix)
        try:
            first, second = (
                self._tokenizer.encode([text], [False])[0].values.tolist() for text in (prompt, completion)
            )
        except BadRow as error:
            raise ValueError(error.problem) from error
        if not second:
            raise ValueError("completion: found no token, expected what is to be trained on")
        self._tokenizer.look([prompt, completion])
        eos = [] if second[-1:] == eos else eos
        tokens, limit = [*first, *second, *eos], self._rules.max_tokens or len(first) + len(second) + 1
        if len(tokens) > limit:
            raise ValueError(f"found {len(tokens)} tokens without turns, expected at most {limit} (--max-tokens)")
        return {"tokens": np.array(tokens), "loss_mask": [0] * len(first) + [1] * (len(second) + len(eos))}

    def _chat(self, given: list[tuple[str, Any]], tools: Any, since: int, where: str) -> dict[str, Any]:
        """A conversation, cut to whole turns. given: (place, message); since: the first that may be trained on."""
        messages = [_joined(message, place, self._takes_parts) for place, message in given]
        _check(messages, where)
        said = [message["role"] == "assistant" and k >= since for k, message in enumerate(messages)]
        ends = [k + 1 for k, is_said in enumerate(said) if is_said]
        if not ends or ends[-1] != len(messages):
            raise ValueError(f"{where}: found {messages[-1]['role']!r} as the last role, expected assistant")
        flags = [is_trained(message, place) for (place, _), message in zip(given, messages, strict=True)]
        trained = [is_said and flag for is_said, flag in zip(said, flags, strict=True)]
        for end in reversed(ends):
            found = self._rendered(messages[:end], tools, trained[:end], where)
            spelled = found.pop("spelled")
            if self._rules.max_tokens is None or len(found["tokens"]) <= self._rules.max_tokens:
                self._truncated += end < len(messages)
                self._tokenizer.spelled.update(spelled)
                if spelled:
                    texts = [message.get("content") for message in messages]
                    self._tokenizer.look([text for text in texts if isinstance(text, str)])
                self._left_out.update(self._unprinted.names(messages[:end], tools))
                return found
        found_tokens, limit = len(found["tokens"]), self._rules.max_tokens
        raise ValueError(f"{where}: found {found_tokens} tokens in the first turn, expected at most {limit}")

    def _rendered(self, messages: list[Any], tools: Any, trained: list[bool], where: str) -> dict[str, Any]:
        render, encode = self._render, self._encode
        if spelled := self._tokenizer.names_in([messages, tools]):
            if self._tokenizer.rule == ERROR:
                refuse(spelled[0], where)
            if self._tokenizer.rule == TEXT:
                render, encode = self._render_marked, self._tokenizer.encode_marked
                self._check_guard(messages, tools, where)
        text = render(messages, tools)
        marks = [m.start() for m in re.finditer(f"[{_BEGIN}{_END}]", text)]
        if marks:
            places = [at - k for k, at in enumerate(marks)]  # as if no mark were there
            spans = list(zip(places[::2], places[1::2], strict=True))
            if len(spans) != sum(message["role"] == "assistant" for message in messages):
                raise ValueError(f"{where}: the template marks {len(spans)} generations, expected one for each answer")
            of_answers = [
                flag for flag, message in zip(trained, messages, strict=True) if message["role"] == "assistant"
            ]
            spans, text = list(compress(spans, of_answers)), re.sub(f"[{_BEGIN}{_END}]", "", text)
        else:
            spans = self._by_increments(render, messages, tools, text, trained, where)
        tokens, found = encode(text)
        mask = np.zeros(len(tokens), np.int64)
        for start, end in spans:
            mask[(found[:, 0] >= start) & (found[:, 0] < end)] = 1
        if not mask.any():
            raise ValueError(f"{where}: no token of the assistant is left after rendering, expected some to learn")
        return {"tokens": np.asarray(tokens, np.int64), "loss_mask": mask.tolist(), "spelled": spelled}

    def _encode(self, text: str) -> tuple[NDArray[Any], Ints]:
        tokens, places = self._tokenizer.tokenizer.encode([text], [True])
        return tokens.values, places

    def _by_increments(
        self, render: Callable[..., str], messages: list[Any], tools: Any, text: str, trained: list[bool], where: str
    ) -> list[tuple[int, int]]:
        """What each answer that is trained on adds to the text of the messages before it, with the prompt for one."""
        spans = []
        for k, is_trained_on in enumerate(trained):
            if is_trained_on:
                before = render(messages[:k], tools, add_generation_prompt=True)
                after = render(messages[: k + 1], tools)
                if not (after.startswith(before) and text.startswith(after)):
                    raise ValueError(
                        f"{where}[{k}]: the template renders earlier turns in another way once later ones follow, so "
                        "that what the assistant says cannot be distinguished; mark it with {% generation %}"
                    )
                spans.append((len(before), len(after)))
        return spans

    def _render(self, messages: Sequence[Any], tools: Any, add_generation_prompt: bool = False) -> str:
        template = self._template if tools is None else self._of_tools
        try:
            text: str = template.render(
                messages=messages, tools=tools, add_generation_prompt=add_generation_prompt, **self._given
            )
        except ValueError:
            raise
        except Exception as error:  # whatever a template does
            raise ValueError(f"the chat template fails: {type(error).__name__}: {error}") from error
        return text

    def _render_marked(self, messages: Sequence[Any], tools: Any, add_generation_prompt: bool = False) -> str:
        """The text with placeholders for the special tokens of the template; those of messages are text."""
        guard = self._tokenizer.guard
        return self._tokenizer.marked(self._render(guard(list(messages)), guard(tools), add_generation_prompt))

    def _check_guard(self, messages: list[Any], tools: Any, where: str) -> None:
        """Raise ValueError for a template that looks at the names of special tokens in messages."""
        guard = self._tokenizer.guard
        if self._tokenizer.unguard(self._render(guard(messages), guard(tools))) != self._render(messages, tools):
            raise ValueError(
                f"{where}: the template looks for special tokens in messages, so that they cannot be text; choose "
                "--special-tokens control or error"
            )

    @cached_property
    def _takes_parts(self) -> bool:
        """Whether the template itself reads contents that are lists of parts, and does not print them as they are."""
        part, content = "one part of two", "type"
        parts = [{"type": "text", "text": part}]
        try:
            text = self._render([{"role": "user", "content": parts}, {"role": "assistant", "content": parts}], None)
        except ValueError:
            return False
        return part in text and f"'{content}'" not in text and f'"{content}"' not in text


def _joined(message: Any, where: str, keep: bool) -> Any:
    """A message with its parts of text as one. keep: as a list, for a template that reads parts.

    Raises: ValueError for contents that are neither text nor parts of text.
    """
    content = message.get("content") if isinstance(message, dict) else None
    if content is None or isinstance(content, str):
        return message
    parts = content if isinstance(content, list) else [content]
    for part in parts:
        if not (isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)):
            raise ValueError(f"{where}: found {part!r:.100} in the content, expected text, or parts of type text")
    texts = [part["text"] for part in parts]
    return {**message, "content": [{"type": "text", "text": text} for text in texts] if keep else "".join(texts)}


def _tools(found: Any) -> Any:
    """Tools as a list; files of tables often have them as JSON. Raises: ValueError for anything else."""
    if isinstance(found, str) and found:
        try:
            found = parse_value(found)
        except ValueError as error:
            raise ValueError(f"tools: found {found!r:.100} ({error}), expected a list of objects") from error
    if found is not None and not isinstance(found, list):
        raise ValueError(f"tools: found {found!r:.100}, expected a list of objects")
    return found


def _check(messages: list[Any], where: str) -> None:
    """Roles in their place, and something said."""
    for k, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ValueError(f"{where}[{k}]: found {message!r:.100}, expected an object with role and content")
        if not content and not message.get("tool_calls"):
            raise ValueError(f"{where}[{k}]: found no content, expected some, or tool_calls")
        if re.search(f"[{_BEGIN}{_END}]", json.dumps(message, ensure_ascii=False, default=str)):
            raise ValueError(f"{where}[{k}]: found U+FDD0 or U+FDD1, which stand for no character; take it out")
    for before, role in pairwise(["", *(message["role"] for message in messages)]):
        if role not in _AFTER:
            raise ValueError(f"{where}: found role {role!r}, expected one of {', '.join(_AFTER)}")
        if before not in _AFTER[role]:
            raise ValueError(
                f"{where}: found role {role!r} {f'after {before!r}' if before else 'at the beginning'}, expected it "
                f"after {' or '.join(sorted(filter(None, _AFTER[role]))) or 'nothing'}"
            )
