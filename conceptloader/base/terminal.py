"""Text that others wrote (corpora, manifests, names of files), made fit for a terminal: the one place for it.

A terminal obeys control characters (C0, DEL, C1 such as U+009B), and marks of direction (U+202E) reorder what is seen.
Messages of errors, all that the command prints, and its JSON go through here.
"""

import json
import re

_PASSWORD = re.compile(r"(://[^/\s:@]*):[^/\s]*@")


def printable(text: str, width: int | None = None, keep: str = "") -> str:
    """Text cut to `width`, with everything that is not plainly visible shown as an escape.

    Escaped are control characters and line feeds, marks of direction and of zero width, and halves of surrogate pairs,
    except the characters of `keep`.
    """
    shown = text
    if not text.isprintable():
        plain = (c if c.isprintable() or c in keep else c.encode("unicode_escape").decode("ascii") for c in text)
        shown = "".join(plain)
    return shown if width is None or len(shown) <= width else shown[: max(0, width - 3)] + "..."


def masked(text: str) -> str:
    """Text without the passwords of URLs, scheme://user:password@host, for messages and logs."""
    return _PASSWORD.sub(r"\1:***@", text) if "://" in text else text


def printable_json(text: str) -> str:
    """JSON that says the same, by escapes of JSON. Outside of its strings there are only spaces and line feeds."""
    return "\n".join(
        line if line.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line)
        for line in text.split("\n")
    )
