"""What the folder of a tokenizer says besides its tokenizer.json, and whether transformers gives the same ids."""

import json
import logging
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from conceptloader.base.hashing import fingerprint
from conceptloader.errors import InputError

log = logging.getLogger(__name__)

_PLAIN_CLASSES = "PreTrainedTokenizerFast", "TokenizersBackend"  # which take tokenizer.json as it is
_FLAGS = "single_word", "lstrip", "rstrip", "normalized", "special"
# What tokenizers cut differently: white space, digits, contractions, forms of Unicode, scripts, bytes without a letter.
_HARD = (
    "red", " red", "  two  spaces ", "a\tb\n\n\nc\r\nd \n e", "I'll DON'T we'Ve it\u2019s", "0 12 345 6789 3.14 1,000",
    "caf\u00e9 cafe\u0301 \u1e9b\u0323 \ufb01ne \u212b \u2460", "Größe ÑANDÚ İstanbul ǅ", "日本語テキスト。 中文测试",
    "한국어 테스트", "العربية ١٢٣", "हिन्दी ครับ", "😀👩‍👩‍👧 🇩🇪", "\u00a0\u2003\u200b\u3000\ufeffx", "\x00\x7f\ufffd",
    "def f(x):\n        return x**2  # y\n", "https://a.b/c?d=e&f", "▁red Ġred ##red <0x41>", "", "!?...---'\"``",
)  # fmt: skip
_same: set[str] = set()  # fingerprints of the folders that were compared


class TokenizerFolder:
    """A folder as transformers saves it; anything else is one that says nothing.

    Attributes:
        path: Of the folder.
        config: tokenizer_config.json, with what an old special_tokens_map.json says.
        tokens: Names of the special tokens by role, as templates know them: eos_token, bos_token and others.

    Raises: InputError for files that cannot be read.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        config, old = self._read("tokenizer_config.json"), self._read("special_tokens_map.json")
        self.config = config if "added_tokens_decoder" in config else {**config, **old}  # as transformers reads them
        extra = self.config.get("extra_special_tokens") or self.config.get("additional_special_tokens") or []
        named = extra if isinstance(extra, dict) else {}
        roles = {**old, **{name: one for name, one in self.config.items() if name.endswith("_token")}, **named}
        self.tokens = {name: text for name, one in roles.items() if (text := _content(one)) is not None}
        self._named = [*self.tokens.values(), *([] if named else map(_content, extra))]

    @property
    def says(self) -> bool:
        """Whether a file next to tokenizer.json may change what it means."""
        names = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json"
        return any(os.path.exists(os.path.join(self.path, name)) for name in names)

    def check(self, definition: bytes) -> None:
        """Raise InputError if the other files name a token that tokenizer.json has not, or has otherwise."""
        try:
            there = {token["content"]: token for token in json.loads(definition).get("added_tokens", [])}
            named: dict[Any, tuple[int | None, Any]] = {name: (None, {}) for name in self._named}
            decoder = self.config.get("added_tokens_decoder")
            if decoder is not None:
                named |= {token["content"]: (int(number), token) for number, token in decoder.items()}
            else:
                named |= {name: (int(number), {}) for name, number in self._read("added_tokens.json").items()}
            for name, (number, token) in named.items():
                found = there.get(name)
                flags = {flag: bool(token[flag]) for flag in _FLAGS if flag in token}
                if found is None or number not in (None, found["id"]) or not flags.items() <= found.items():
                    said = f"the token {name!r}{'' if number is None else f' with id {number}'} {flags or ''}".strip()
                    expected = f"what its tokenizer.json has: {found or 'no such token'!s:.200}"
                    raise InputError(f"tokenizer {self.path}", said, expected, self._remedy)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            fix = "write the folder again with tokenizer.save_pretrained"
            raise InputError(self.path, f"added tokens that cannot be read ({error!r})", "tokens by id", fix) from error

    def compare(self, definition: bytes) -> None:
        """Raise InputError if AutoTokenizer gives other ids than this tokenizer.json; without transformers, warn."""
        if not self.says:
            return
        if find_spec("transformers") is None:
            if (kind := self.config.get("tokenizer_class", _PLAIN_CLASSES[0])) not in _PLAIN_CLASSES:
                what = "tokenizer %s: its class %s may give other ids than tokenizer.json: `pip install transformers`"
                log.warning(f"{what}, and they are compared", self.path, kind)
            return
        files = {entry.name: entry.stat().st_mtime_ns for entry in os.scandir(self.path)}
        key = fingerprint([self.path, files, definition.decode("utf-8")])
        if key in _same:
            return
        # With the options of this one, as multiprocessing does, and imports from where this one does.
        options: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        path = [str(each) for each in sys.path]
        code = f"import sys; sys.path[:] = {path!r}; from {__name__} import difference; difference()"
        environment = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}
        given = json.dumps([self.path, definition.decode("utf-8")])
        # Another process, since transformers imports torch, which workers that are forked should not inherit.
        done = subprocess.run(
            [sys.executable or "python3", *options, "-c", code], input=given, capture_output=True, text=True,
            encoding="utf-8", env={**os.environ, **environment, "PYTHONUTF8": "1"}, check=False,
        )  # fmt: skip
        found = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"failed": done.stderr}
        if "failed" in found:
            why = found["failed"].strip().rpartition("\n")[2]
            log.warning("tokenizer %s: not compared with transformers, which cannot load it (%.300s)", self.path, why)
        elif "text" in found:
            raise InputError(
                f"tokenizer {self.path}",
                f"ids {found['ours']} of {found['text']!r} by tokenizer.json",
                f"{found['theirs']}, those of transformers' AutoTokenizer",
                self._remedy,
            )
        _same.add(key)

    @property
    def _remedy(self) -> str:
        return (
            f"save what transformers makes of it, AutoTokenizer.from_pretrained({self.path!r}).save_pretrained(NEW), "
            f"and give NEW; or give {self.path}/tokenizer.json to take that file as it is"
        )

    def templates(self) -> dict[str, str]:
        """Chat templates by name: `default`, and others such as `tool_use`."""
        given = self.config.get("chat_template") or {}
        if isinstance(given, list):
            given = {one["name"]: one["template"] for one in given}
        found: dict[str, str] = {"default": given} if isinstance(given, str) else dict(given)
        beside = Path(self.path)
        for file in (beside / "chat_template.jinja", *sorted(beside.glob("additional_chat_templates/*.jinja"))):
            if file.exists():
                found["default" if file.parent == beside else file.stem] = file.read_text("utf-8-sig")
        return found

    def _read(self, name: str) -> dict[str, Any]:
        path = os.path.join(self.path, name)
        if not os.path.exists(path):
            return {}
        try:
            with open(path, encoding="utf-8-sig") as file:
                found = json.load(file)
            if not isinstance(found, dict):
                raise ValueError(type(found).__name__)
        except (OSError, ValueError) as error:
            raise InputError(
                path,
                f"no configuration ({error})",
                "a JSON object",
                f"write {path} again with tokenizer.save_pretrained",
            ) from error
        return found


def _content(token: Any) -> str | None:
    """The text of a token, which is text or an object with its flags."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else None


def difference() -> None:
    """Of a folder and a tokenizer.json on stdin: what AutoTokenizer cuts differently, as JSON; runs alone."""
    path, definition = json.loads(sys.stdin.read())
    sys.modules["torch"] = None  # type: ignore[assignment]  # which transformers then does without: seconds less
    try:
        import tokenizers
        import transformers

        theirs: Any = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever its many classes raise
        print("\n" + json.dumps({"failed": f"{type(error).__name__}: {error}"}))
        return
    ours = tokenizers.Tokenizer.from_str(definition)
    ours.no_truncation()
    ours.no_padding()
    models: list[Any] = [ours.model, getattr(getattr(theirs, "backend_tokenizer", None), "model", None)]
    for model in models:
        if getattr(model, "dropout", None):
            model.dropout = None
    added = {**{token.content: i for i, token in ours.get_added_tokens_decoder().items()}, **theirs.get_added_vocab()}
    for text in (*_HARD, *(form.format(token) for token in added for form in ("a{}b", "a {} b"))):
        found = ours.encode(text, add_special_tokens=False).ids
        wanted = theirs(text, add_special_tokens=False, split_special_tokens=False)["input_ids"]
        if found != list(wanted):
            print("\n" + json.dumps({"text": text, "ours": found, "theirs": list(wanted)}))
            return
    print("\n{}")
