"""Conversations to tokens, with a loss on what the assistant says: a chat template, rendered in a sandbox."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from conceptloader.base.packages import need
from conceptloader.errors import ConfigError, InputError
from conceptloader.ingest.hub import TOKENIZER_FILES, fetched
from conceptloader.ingest.records.batch import RowBatch
from conceptloader.ingest.records.columns import Columns
from conceptloader.ingest.records.documents import check_id, each, plain
from conceptloader.ingest.records.records import RecordParser, read_record
from conceptloader.ingest.records.table import objects_of
from conceptloader.ingest.records.tokenizer import TextTokenizer
from conceptloader.ingest.template import sandbox, without_null

_BEGIN, _END = "\ufdd0", "\ufdd1"  # around what the assistant says; no characters, so in no text
_AFTER = {
    "system": {""}, "developer": {""}, "user": {"", "system", "developer", "assistant"},
    "assistant": {"user", "tool"}, "tool": {"assistant", "tool"},
}  # fmt: skip
_CONTENT = {"messages", "prompt", "completion", "chosen", "rejected", "tools", "id"}
CHAT_COLUMNS = Columns(text=None, tokens="tokens", tracks={}, fields={"loss_mask": "u1"})


@dataclass(frozen=True, kw_only=True)
class ChatRules:
    """template: in Jinja, as transformers has them.

    specials: bos_token and others that it may name. max_tokens: of a conversation, None for any; whole turns at the end
    are dropped from a longer one. multiple: of which every document has a number of tokens, padded with eos that is
    not trained on, as context parallelism wants it.
    """

    template: str
    specials: Mapping[str, str]
    max_tokens: int | None = None
    multiple: int = 1


def load_rules(tokenizer: str, template: str | None, max_tokens: int | None, multiple: int = 1) -> ChatRules:
    """The rules of a transformers folder, or of a template file. Raises: ConfigError, InputError if there are none."""
    config: dict[str, Any] = {}
    folder = Path(fetched(tokenizer, "model", TOKENIZER_FILES))
    try:
        if (folder / "tokenizer_config.json").exists():
            config = json.loads((folder / "tokenizer_config.json").read_text("utf-8-sig"))
        beside = folder / "chat_template.jinja"
        if template is not None or beside.exists():
            text: Any = Path(template or beside).read_text("utf-8-sig")
        else:
            text = config.get("chat_template") or ""
    except (OSError, ValueError) as error:
        raise InputError(
            "--chat", f"cannot read the template: {error}", fix="name a file of it (--chat-template)"
        ) from error
    if isinstance(text, list):
        text = {one["name"]: one["template"] for one in text}.get("default", "")
    if not text:
        raise ConfigError("--chat", f"no chat template in {tokenizer}", "one", "name a file (--chat-template)")
    specials = {name: value for name, value in config.items() if name.endswith("_token")}
    specials = {name: v["content"] if isinstance(v, dict) else v for name, v in specials.items() if v is not None}
    if (max_tokens or 0) % multiple:
        raise ConfigError("--max-tokens", str(max_tokens), f"a multiple of {multiple} (--pad-to-multiple-of)")
    rules = ChatRules(template=text, specials=specials, max_tokens=max_tokens, multiple=multiple)
    _compiled(rules)
    return rules


def _compiled(rules: ChatRules) -> Any:
    """The template, ready to be rendered. Raises: ConfigError for one that is none, or names a token nobody knows."""
    environment = sandbox("--chat", trim_blocks=True, lstrip_blocks=True)
    jinja, meta = need("jinja2", "--chat"), need("jinja2.meta", "--chat")
    # {% generation %}, by which transformers knows what the assistant says, becomes a pair of marks.
    text = re.sub(r"\{%(-?)\s*(end)?generation\s*(-?)%\}", _mark, rules.template)
    environment.globals["raise_exception"] = _refuse
    try:
        named = meta.find_undeclared_variables(environment.parse(text))
        unknown = sorted(name for name in named - {*rules.specials} if name in ("bos_token", "eos_token"))
        if unknown:
            raise ConfigError(
                "--chat", f"the template names {unknown[0]}", fix="give a transformers folder as --tokenizer"
            )
        return environment.from_string(text)
    except jinja.TemplateError as error:
        raise ConfigError(
            "--chat", f"found a template that is no Jinja ({error})", fix="fix it, or name another"
        ) from error


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

    def __init__(self, rules: ChatRules, tokenizer: TextTokenizer, columns: Columns) -> None:
        self._records = RecordParser(columns, {}, dict)
        self._rules, self._tokenizer, self._template = rules, tokenizer, _compiled(rules)
        self._ignored = frozenset(columns.ignored)
        self._truncated = 0

    def parse(self, rows: Any) -> RowBatch:
        """rows: lines of JSON, rows of CSV, or a pyarrow table."""
        documents: list[dict[str, Any]] = []
        self._truncated = 0
        if not isinstance(rows, list):
            rows = rows.select([name for name in rows.schema.names if name not in self._ignored])
            rows = objects_of(rows.to_struct_array())

        def add(row: Any) -> None:
            found = self._documents(without_null(plain(row)) if isinstance(row, dict) else read_record(row))
            documents.extend(map(self._filled, found) if self._rules.multiple > 1 else found)

        each(rows, add)
        batch = self._records.parse(documents)
        batch.truncated = self._truncated
        return batch

    def _documents(self, record: dict[str, Any]) -> list[dict[str, Any]]:
        unknown = sorted(record.keys() - _CONTENT - self._ignored)
        if unknown:
            known = ", ".join(sorted(_CONTENT))
            raise ValueError(f"found column {unknown[0]!r}, expected some of {known}; omit it (--ignore-column)")
        tools, prompt, name = record.get("tools"), record.get("prompt"), check_id(record.get("id"))
        if "chosen" in record and "rejected" in record:
            start = prompt if isinstance(prompt, list) else []
            return [
                {**self._chat([*start, *_list(record[side], side)], tools, 0, side), "id": f"{name}/{side}"}
                for side in ("chosen", "rejected")
            ]
        if isinstance(prompt, str) and isinstance(record.get("completion"), str):
            return [{**self._plain(prompt, record["completion"]), "id": name}]
        if "completion" in record:
            start = _list(prompt, "prompt")
            messages = [*start, *_list(record["completion"], "completion")]
            return [{**self._chat(messages, tools, len(start), "completion"), "id": name}]
        return [{**self._chat(_list(record.get("messages"), "messages"), tools, 0, "messages"), "id": name}]

    def _filled(self, document: dict[str, Any]) -> dict[str, Any]:
        eos, room = self._tokenizer.eos_id, -len(document["tokens"]) % self._rules.multiple
        if eos is None:
            raise ConfigError(
                "--pad-to-multiple-of", "a tokenizer without eos", "one to fill documents up", "see --eos"
            )
        tokens = np.append(document["tokens"], np.full(room, eos, np.int64))
        return {**document, "tokens": tokens, "loss_mask": document["loss_mask"] + [0] * room}

    def _plain(self, prompt: str, completion: str) -> dict[str, Any]:
        """Without a template: both as they are, and eos."""
        eos = [] if self._tokenizer.eos_id is None else [self._tokenizer.eos_id]
        first, second = (self._tokenizer.encode([text], [False])[0].values.tolist() for text in (prompt, completion))
        if not second:
            raise ValueError("completion: found no token, expected what is to be trained on")
        tokens, limit = [*first, *second, *eos], self._rules.max_tokens or len(first) + len(second) + 1
        if len(tokens) > limit:
            raise ValueError(f"found {len(tokens)} tokens without turns, expected at most {limit} (--max-tokens)")
        return {"tokens": np.array(tokens), "loss_mask": [0] * len(first) + [1] * (len(second) + len(eos))}

    def _chat(self, messages: list[Any], tools: Any, learnt: int, where: str) -> dict[str, Any]:
        """A conversation, cut to whole turns. `learnt`: the first message that may be trained on."""
        _check(messages, where)
        ends = [k + 1 for k, message in enumerate(messages) if message["role"] == "assistant" and k >= learnt]
        if not ends or ends[-1] != len(messages):
            raise ValueError(f"{where}: found {messages[-1]['role']!r} as the last role, expected assistant")
        for end in reversed(ends):
            found = self._rendered(messages[:end], tools, learnt, where)
            if self._rules.max_tokens is None or len(found["tokens"]) <= self._rules.max_tokens:
                self._truncated += end < len(messages)
                return found
        found_tokens, limit = len(found["tokens"]), self._rules.max_tokens
        raise ValueError(f"{where}: found {found_tokens} tokens in the first turn, expected at most {limit}")

    def _rendered(self, messages: list[Any], tools: Any, learnt: int, where: str) -> dict[str, Any]:
        text = self._render(messages, tools)
        marks = [m.start() for m in re.finditer(f"[{_BEGIN}{_END}]", text)]
        if marks:
            places = [at - k for k, at in enumerate(marks)]  # as if no mark were there
            spans = list(zip(places[::2], places[1::2], strict=True))
            if len(spans) != sum(message["role"] == "assistant" for message in messages):
                raise ValueError(f"{where}: the template marks {len(spans)} generations, expected one for each answer")
            earlier = sum(message["role"] == "assistant" for message in messages[:learnt])
            spans, text = spans[earlier:], re.sub(f"[{_BEGIN}{_END}]", "", text)
        else:
            spans = list(self._by_increments(messages, tools, text, learnt, where))
        tokens, found = self._tokenizer.encode([text], [True])
        mask = np.zeros(len(tokens.values), np.int64)
        for start, end in spans:
            mask[(found[:, 0] >= start) & (found[:, 0] < end)] = 1
        if not mask.any():
            raise ValueError(f"{where}: no token of the assistant is left after rendering, expected some to learn")
        return {"tokens": np.asarray(tokens.values, np.int64), "loss_mask": mask.tolist()}

    def _by_increments(
        self, messages: list[Any], tools: Any, text: str, learnt: int, where: str
    ) -> list[tuple[int, int]]:
        """What each answer adds to the text of the messages before it, with the prompt for one."""
        spans = []
        for k, message in enumerate(messages):
            if message["role"] == "assistant" and k >= learnt:
                before = self._render(messages[:k], tools, add_generation_prompt=True)
                after = self._render(messages[: k + 1], tools)
                if not (after.startswith(before) and text.startswith(after)):
                    raise ValueError(
                        f"{where}[{k}]: the template renders earlier turns in another way once later ones follow, so "
                        "that what the assistant says cannot be distinguished; mark it with {% generation %}"
                    )
                spans.append((len(before), len(after)))
        return spans

    def _render(self, messages: Sequence[Any], tools: Any, add_generation_prompt: bool = False) -> str:
        try:
            text: str = self._template.render(
                messages=messages, tools=tools, add_generation_prompt=add_generation_prompt, **self._rules.specials
            )
        except ValueError:
            raise
        except Exception as error:  # whatever a template does
            raise ValueError(f"the chat template fails: {type(error).__name__}: {error}") from error
        return text


def _list(found: Any, where: str) -> list[Any]:
    if not isinstance(found, list) or not found:
        raise ValueError(
            f"{where}: found {found!r:.100}, expected messages, each with role and content (CSV, which has no lists, "
            "may have texts: prompt and completion)"
        )
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
