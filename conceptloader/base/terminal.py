"""Text that others wrote (corpora, manifests, names of files), made fit for a terminal: the one place for it.

A terminal obeys control characters (C0, DEL, C1 such as U+009B), and marks of direction (U+202E) reorder what is seen.
Messages of errors, all that the command prints, and its JSON go through here.
"""

import json
import re

_JOINERS = "\u200c\u200d"  # zero width: not to be joined, and to be joined
# Of URLs, but for an environment variable that stands in for it.
_PASSWORD = re.compile(r"(://[^/\s:@]*):(?!\$\{\w+\}@)[^/\s]*@")
_QUERY = re.compile(r"(?<=[?&])([\w.~%-]+)=(?!\$\{\w+\})[^&\s'\",;]+")


def printable(text: str, width: int | None = None, keep: str = "") -> str:
    """Text cut to `width`, with everything that is not plainly visible shown as an escape.

    Escaped are control characters and line feeds, marks of direction and of zero width, and halves of surrogate pairs,
    except the characters of `keep`, and joiners within what they join: words of Persian or Hindi, and emoji.
    """
    shown = text
    if not text.isprintable():
        shown = "".join(
            c if c.isprintable() or c in keep or _joins(text, at) else c.encode("unicode_escape").decode("ascii")
            for at, c in enumerate(text)
        )
    return shown if width is None or len(shown) <= width else shown[: max(0, width - 3)] + "..."


def _joins(text: str, at: int) -> bool:
    """Whether there is a joiner between two characters of scripts that have a use for it."""
    around = text[at - 1 : at] + text[at + 1 : at + 2]
    return text[at] in _JOINERS and len(around) == 2 and all(c > "\x7f" and c.isprintable() for c in around)


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 shard, 1,024 shards."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def masked(text: str) -> str:
    """Text without the passwords of URLs, scheme://user:password@host/path?key=password, for messages and logs."""
    return _QUERY.sub(r"\1=***", _PASSWORD.sub(r"\1:***@", text)) if "://" in text else text


def printable_json(text: str) -> str:
    """JSON that says the same, by escapes of JSON. Outside of its strings there are only spaces and line feeds."""
    return "\n".join(
        line if line.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line)
        for line in text.split("\n")
    )
