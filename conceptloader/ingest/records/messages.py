"""What the fields of a message say besides who says what: whether it is trained on, and what a template omits."""

import re
from collections.abc import Callable, Sequence
from typing import Any

_FLAGS = "weight", "train", "training"  # of OpenAI, and of axolotl: 0 or false for what is not trained on
_RULE = re.compile(r"(?:^|_)(?:loss|weight|train|mask|unmask|supervis|learn)")
_KNOWN = 1000  # sequences of roles and fields whose rendering is remembered

Render = Callable[[Sequence[Any], Any], str]


def is_trained(message: dict[str, Any], where: str) -> bool:
    """Whether the assistant's message is trained on by its fields, which it is if they say nothing.

    Raises: ValueError for a flag that is neither, for one that asks for another role than the assistant, and for a
    field that looks like a rule which is not known here.
    """
    trained = True
    for name, value in message.items():
        if name not in _FLAGS:
            if _RULE.search(re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower()):
                raise ValueError(
                    f"{where}: found the field {name!r}, which looks like a rule of training, expected some of "
                    f"{', '.join(_FLAGS)}; {_omit(name, where)}"
                )
        elif type(value) not in (bool, int, float) or value not in (0, 1):
            raise ValueError(f"{where}: found {name} {value!r:.100}, expected 0 or 1; {_omit(name, where)}")
        elif not value:
            trained = False
        elif message["role"] != "assistant":
            raise ValueError(
                f"{where}: found {name} {value!r} of the role {message['role']!r}, expected 0 or none, since there is "
                f"a loss on what the assistant says only; {_omit(name, where)}"
            )
    return trained


def _omit(name: str, where: str) -> str:
    return f"omit it (--ignore-column {where.partition('[')[0]}.{name})"


class Unprinted:
    """Which fields of messages a template omits, by rendering conversations without them.

    What it prints depends on which roles have which fields one after the other: each such sequence is tried once.
    """

    def __init__(self, render: Render) -> None:
        self._render = render
        self._known: dict[Any, list[str]] = {}

    def names(self, messages: list[dict[str, Any]], tools: Any) -> list[str]:
        """`tools`, and ROLE.FIELD of each message, that are not in what the template makes of them."""
        shape = bool(tools), *((message["role"], *sorted(_fields(message))) for message in messages)
        found = self._known.get(shape)
        if found is None:
            text = self._render(messages, tools)
            found = ["tools"] if tools and self._is_same(text, messages, []) else []
            for k, message in enumerate(messages):
                for name in _fields(message):
                    others = [*messages[:k], _without(message, name), *messages[k + 1 :]]
                    if self._is_same(text, others, tools):
                        found.append(f"{message['role']}.{name}")
            if len(self._known) < _KNOWN:
                self._known[shape] = found
        return found

    def _is_same(self, text: str, messages: list[dict[str, Any]], tools: Any) -> bool:
        try:
            return self._render(messages, tools) == text
        except ValueError:
            return False


def _fields(message: dict[str, Any]) -> list[str]:
    """What a message says, but for its role and for what is no text of it."""
    return [
        name for name, value in message.items() if name not in ("role", *_FLAGS) and value not in (None, "", [], {})
    ]


def _without(message: dict[str, Any], name: str) -> dict[str, Any]:
    """A message without a field, or with another content: templates look for one, and may fail without."""
    if name != "content":
        return {key: value for key, value in message.items() if key != name}
    content, more = message[name], "\nand more"
    return {**message, name: content + more if isinstance(content, str) else [*content, {"type": "text", "text": more}]}
