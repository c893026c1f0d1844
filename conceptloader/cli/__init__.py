"""The command `conceptloader`: a table of commands, each a module of this folder.

That has

    DESCRIPTION                 what it does and an example, for `conceptloader <command> --help`
    add_arguments(parser)       its arguments
    USAGE                       optional: the usage in one line
    COMMON                      optional: the options that --help shows; --help-all shows the others, too
    run(arguments, output)      the work; returns the exit code, or nothing for 0

Results go to stdout, logs and progress to stderr. Exit codes: 0 success, 1 data error, 2 usage error.

Open verify.py first, which is short.
"""

import argparse
import contextlib
import os
import re
import sys
import traceback
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from itertools import takewhile
from typing import Any, NoReturn

from conceptloader.base.version import PAGES, __version__
from conceptloader.cli.output import Output, configure_logging, guarded_streams
from conceptloader.cli.recipe import use_recipe
from conceptloader.errors import ConceptloaderError, ConfigError

# Name -> a line for `conceptloader --help`. Only the module of the command that is given is imported.
GROUPS: dict[str, dict[str, str]] = {
    "Datasets": {
        "build": "build a dataset from JSONL or Parquet",
        "init": "write a recipe for raw files, or a configuration for datasets",
        "adopt": "use Megatron, datatrove or OLMo token files in place",
        "annotate": "add a track to a dataset",
        "column": "add or remove one value for each token",
        "subset": "select documents or spans, or concatenate datasets, by reference",
        "index": "build the concept index of a track",
        "verify": "check a dataset",
    },
    "Inspect": {
        "inspect": "show windows, documents or concepts; count them",
    },
    "Runs": {
        "trace": "show what a step contains, past or future",
        "locate": "find the steps that contain documents or a concept, or check that none does",
        "query": "ask in SQL what steps consist of, and what was seen of the data",
        "doctor": "check a configuration and the storage before a long run",
    },
}
COMMANDS = [name for group in GROUPS.values() for name in group]

_USAGE = "conceptloader <command> [options]"
_DESCRIPTION = "Build, inspect and trace tokenized datasets with span annotations."
_EPILOG = """\
examples:
  conceptloader build corpus.jsonl --out data/corpus --tokenizer bytes
  conceptloader inspect data/corpus --window 0 --seq-len 128

<command> --help shows examples and options. Errors are explained in docs/troubleshooting.md.
In bash: eval "$(conceptloader completion)" completes commands and options.
Exit codes: 0 success, 1 data error, 2 usage error.
"""

_COMPLETION = """\
_conceptloader() {
    local words="%s"
    ((COMP_CWORD > 1)) && words=$(conceptloader "${COMP_WORDS[1]}" --help-all 2>/dev/null | grep -oE -- "--[a-z-]+")
    COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _conceptloader conceptloader"""


@guarded_streams()
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: that of the process). Returns: the exit code."""
    given = [_with_home(argument) for argument in (sys.argv[1:] if argv is None else argv)]
    if given == ["completion"]:
        print(_COMPLETION % " ".join(COMMANDS))
        return 0
    chosen = next((argument for argument in given if argument in COMMANDS), "")
    parser = make_parser(chosen, everything="--help-all" in given)
    given = ["--help" if argument == "--help-all" else argument for argument in given]
    if sys.getfilesystemencoding() != "utf-8" and not all(map(str.isascii, given)):
        parser.error(f"found text beyond ASCII in a locale of {sys.getfilesystemencoding()}; run it with PYTHONUTF8=1")
    if not given:
        parser.print_help(sys.stderr)
        parser.exit(2)
    if given[0] == "help":
        given = [*given[1:], "--help"]
    if not given[0].startswith("-") and given[0] not in COMMANDS:
        from conceptloader.base.strict import unknown

        parser.error(str(unknown("", given[0], COMMANDS, "command")))
    try:
        use_recipe(given, parser)
        arguments, rest = parser.parse_known_args(given)
    except ConceptloaderError as error:
        parser.error(str(error))
    words = getattr(arguments, "words", None)
    if rest and words and not any(word.startswith("-") for word in rest):
        words += rest  # argparse takes only those that stand together
    elif rest:
        arguments.parser.error(f"unrecognized arguments: {' '.join(rest)}")
    from conceptloader.format.spec.codecs import unknown_as_bytes  # --help takes no numpy

    configure_logging(arguments.verbose, arguments.quiet)
    output = Output(arguments.json)

    try:
        with unknown_as_bytes():
            code: int = arguments.run(arguments, output) or 0
        sys.stdout.flush()
        return code
    except ConceptloaderError as error:
        output.error(error, explain=arguments.verbose)
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except OSError as error:  # stdout on a full disk, or its reader, `head` for instance, has left
        with contextlib.suppress(OSError, ValueError):  # what is buffered must not fail once more when the process ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 141
        print(f"conceptloader: {error}", file=sys.stderr)
        return 1
    except Exception:
        traceback.print_exc()
        remark = "this is a bug in conceptloader; please report it with the lines above"
        print(f"conceptloader: {remark}", file=sys.stderr)
        return 1


@cache
def _with_home(argument: str) -> str:
    """Expand ~/ at the start of an argument or of an option's value: shells do not in --out=~/data."""
    option, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
    return option + equals + (os.path.expanduser(value) if value.startswith("~/") else value)


class _Help(argparse.RawDescriptionHelpFormatter):
    """Leave room for long options next to their help."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32)

    def format_help(self) -> str:
        """With pages at their address."""
        return re.sub(r"\bdocs/(?=[\w-]+\.md)", f"{PAGES}/", super().format_help())


class _Parser(argparse.ArgumentParser):
    """Names the option that a misspelt one resembles, as for keys of YAML.

    Here, in `error`, since a required option that is misspelt is missing as well, which argparse says first.
    """

    _given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._given = [*args] if args is not None else sys.argv[1:]
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        known = [option for option in self._option_string_actions if option.startswith("--")]
        words = takewhile(lambda word: word != "--", self._given)
        names = [word.partition("=")[0] for word in words if word.startswith("--")]
        for name in names:
            if not any(option.startswith(name) for option in known):  # argparse takes the start of a name
                from difflib import get_close_matches

                message += "".join(f"; {name}: did you mean {near}?" for near in get_close_matches(name, known, 1))
        self.exit(2, f"{self.prog}: error: {message}\n{self.prog} --help shows the options\n")


def make_parser(chosen: str | None = None, everything: bool = True) -> argparse.ArgumentParser:
    """Return the parser. chosen: the only command whose options it needs; by default all. everything: in --help."""
    listed = "\n\n".join(
        "\n".join([f"{title}:", *(f"  {name:10} {summary}" for name, summary in group.items())])
        for title, group in GROUPS.items()
    )
    parser = _Parser(
        "conceptloader",
        usage=_USAGE,
        description=f"{_DESCRIPTION}\n\n{listed}",
        epilog=_EPILOG,
        formatter_class=_Help,
    )
    parser.add_argument("--version", action="version", version=f"conceptloader {__version__}")
    commands = parser.add_subparsers(prog="conceptloader", metavar="<command>", required=True, help=argparse.SUPPRESS)
    for name in COMMANDS:
        command = commands.add_parser(name, formatter_class=_Help)
        if chosen not in (None, name):
            continue
        module = import_module(f"conceptloader.cli.{name}")
        command.description = module.DESCRIPTION
        module.add_arguments(command)
        general = command.add_argument_group("output").add_argument
        general("--json", action="store_true", help="one JSON object on stdout instead of text")
        general("--verbose", "-v", action="store_true", help="log more to stderr")
        general("--quiet", "-q", action="store_true", help="log errors only, show no progress")
        command.set_defaults(run=module.run, parser=command)
        if not everything and hasattr(module, "COMMON"):
            command.epilog = f"conceptloader {name} --help-all shows all options."
            for action in command._actions:
                if action.option_strings and not {*action.option_strings} & {*module.COMMON}:
                    action.help = argparse.SUPPRESS
        if hasattr(module, "USAGE"):
            command.usage = f"conceptloader {name} {module.USAGE}"
    return parser
