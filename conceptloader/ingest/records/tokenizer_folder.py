"""What a tokenizer's folder says, as transformers reads it: tokenizer.json, and what the files next to it change."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from conceptloader.base.hashing import fingerprint
from conceptloader.errors import InputError
from conceptloader.storage.reads import read_file

log = logging.getLogger(__name__)

_NAMED = "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"
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
        roles = {
            name: one for name, one in {**self.config, **named}.items() if name.endswith("_token") or name in named
        }
        self.tokens = {name: text for name, one in {**old, **roles}.items() if (text := _content(one)) is not None}
        self._special = [
            roles[name] for name in dict.fromkeys([*_NAMED, *roles]) if _content(roles.get(name)) is not None
        ]
        self._special += [] if named else list(extra)

    @property
    def says(self) -> bool:
        """Whether a file next to tokenizer.json may change what it means."""
        names = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json"
        return any(os.path.exists(os.path.join(self.path, name)) for name in names)

    def definition(self) -> bytes | None:
        """tokenizer.json with the tokens that the other files add, its bytes as they are if they add none.

        None if there is no tokenizer.json. Raises: InputError.
        """
        path = os.path.join(self.path, "tokenizer.json")
        if not os.path.exists(path):
            return None
        definition = read_file(path, 1 << 30).removeprefix(b"\xef\xbb\xbf")
        if not self.says:
            return definition
        try:
            found = json.loads(definition)
            added, vocabulary = found.setdefault("added_tokens", []), found["model"].get("vocab", {})
        except (ValueError, KeyError, TypeError, AttributeError):
            return definition  # no tokenizer, which whoever loads it says
        try:
            changed = self._merge(added, vocabulary)
        except InputError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                self.path,
                f"added tokens that cannot be read ({error!r})",
                "tokens by id",
                "write the folder again with tokenizer.save_pretrained",
            ) from error
        return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode("utf-8") if changed else definition

    def _merge(self, added: list[dict[str, Any]], vocabulary: Any) -> bool:
        """Complete the added tokens of a tokenizer.json, in the order of transformers. Returns: whether they change."""
        pieces = vocabulary if isinstance(vocabulary, dict) else {piece: i for i, (piece, _) in enumerate(vocabulary)}
        known, special = {token["content"]: token for token in added}, {_content(one) for one in self._special}
        changed = False
        for number, token in self._additions(known, special):
            content, there = token["content"], known.get(token["content"])
            highest = max((one["id"] for one in known.values()), default=-1)
            next_id = highest + 1 if highest >= len(pieces) else len(pieces)
            given = there["id"] if there is not None else pieces.get(content, next_id)
            if number is not None and number != given:
                raise InputError(
                    self.path,
                    f"token {content!r} with id {number}",
                    f"{given}, which is its id by tokenizer.json",
                    self._remedy,
                )
            if there is None:
                known[content] = {"id": given, **token, "special": token["special"] or content in special}
                added.append(known[content])
                changed = True
            elif any(there.get(flag) != token[flag] for flag in _FLAGS):
                there.update(token, special=token["special"] or content in self.tokens.values())
                changed = True
        return changed

    def _additions(
        self, known: dict[str, Any], special: set[str | None]
    ) -> Iterator[tuple[int | None, dict[str, Any]]]:
        """(id, token) of what the other files say of added tokens; the id is None where they say none."""
        decoder = self.config.get("added_tokens_decoder")
        if decoder is not None:
            given = {int(number): _token(token, False) for number, token in decoder.items()}
        else:
            named = self._read("added_tokens.json").items()
            given = {int(i): _token(name, name in special) for name, i in named if name not in known}
        yield from sorted(given.items(), key=lambda one: one[0])
        for one in self._special:
            if _content(one) not in known:
                yield None, _token(one, True)

    def complete(self, template: tuple[list[str], list[str]]) -> None:
        """Change what stands before and after a text as add_bos_token and add_eos_token say, which overrule it."""
        for added, role in zip(template, ("bos_token", "eos_token"), strict=True):
            if f"add_{role}" in self.config and role in self.tokens:
                added[:] = [self.tokens[role]] if self.config[f"add_{role}"] else []

    def compare(self, definition: bytes, eos: str | None) -> None:
        """Raise InputError if AutoTokenizer gives other ids than this tokenizer.json, or has another eos.

        eos: its name, None for any. Without transformers, raise for what only it knows how to read, and warn where it
        might read another tokenizer.
        """
        if not self.says:
            return
        if find_spec("transformers") is None:
            self._judge(definition)
            return
        files = {entry.name: entry.stat().st_mtime_ns for entry in os.scandir(self.path)}
        key = fingerprint([self.path, files, eos, definition.decode("utf-8")])
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
        elif None not in (eos, found["eos"]) and eos != found["eos"]:
            raise InputError(
                f"tokenizer {self.path}",
                f"eos {eos!r}, since the folder names none",
                f"{found['eos']!r}, that of transformers' AutoTokenizer",
                "pass --eos TOKEN",
            )
        _same.add(key)

    def _judge(self, definition: bytes) -> None:
        kind = str(self.config.get("tokenizer_class", _PLAIN_CLASSES[0]))
        before = json.loads(definition).get("pre_tokenizer") or {}
        parts = [part for part in before.get("pretokenizers", [before]) if "add_prefix_space" in part]
        wanted = self.config.get("add_prefix_space")
        if wanted is not None and any(part["add_prefix_space"] != wanted for part in parts):
            raise InputError(
                f"tokenizer {self.path}",
                f"add_prefix_space {wanted} in tokenizer_config.json, and {not wanted} in tokenizer.json",
                "the same, or transformers to say what it makes of them",
                f"pip install transformers; or give {self.path}/tokenizer.json to take that file as it is",
            )
        if kind not in _PLAIN_CLASSES:
            log.warning(
                "tokenizer %s: its class %s may read it differently than its tokenizer.json says; with transformers "
                "installed, this is compared",
                self.path,
                kind,
            )

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


def adds_to(path: str, definition: bytes) -> bool:
    """Whether files next to a tokenizer.json change what it means."""
    if os.path.basename(path) != "tokenizer.json":
        return False
    try:
        found = TokenizerFolder(os.path.dirname(path)).definition()
    except InputError:
        return True
    return found is not None and json.loads(found).get("added_tokens") != json.loads(definition).get("added_tokens")


def _content(token: Any) -> str | None:
    """The text of a token, which is text or an object with its flags."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else None


def _token(token: Any, special: bool) -> dict[str, Any]:
    """An added token as tokenizer.json has it, with the flags that transformers gives it by default."""
    given = token if isinstance(token, dict) else {}
    flags = {flag: bool(given.get(flag)) for flag in _FLAGS}
    flags["special"] |= special
    return {"content": _content(token), **flags, "normalized": bool(given.get("normalized", not flags["special"]))}


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
    print("\n" + json.dumps({"eos": theirs.eos_token}))
