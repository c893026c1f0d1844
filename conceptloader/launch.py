"""Run an unmodified training script, with the adapter of its framework installed first.

    torchrun --nproc_per_node 8 -m conceptloader.launch run_train.py --config-file config.yaml
    torchrun --nproc_per_node 8 -m conceptloader.launch --import my_model run_train.py --config-file config.yaml

The framework is detected from the imports of the script, unless --framework names it. An adapter is a module with a
function install(); only that of the framework is imported. --import names further modules to import after it and before
the script, such as one that registers a model.
"""

import argparse
import ast
import runpy
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from conceptloader.base.version import PAGES
from conceptloader.errors import ConfigError

FRAMEWORKS: dict[str, dict[str, Any]] = {"nanotron": {"nanosets": True}, "megatron": {}}
"""By the package that scripts of a framework import: the options for install() of its adapter."""

MEGATRON = f"""\
options among those of a Megatron-LM script:
  --conceptloader-config FILE           the data, as YAML; without it those of --data-path
  --conceptloader-valid-config FILE     for validation
  --conceptloader-test-config FILE      for the test
  --conceptloader-concept-stage STAGE   pipeline stages that get concepts: first, last (default), all, none or a number
  --conceptloader-allow-changed NAME [NAME ...]
                                        differences from the checkpoint to accept
nanotron has its own in the YAML file of the run. Pages: {PAGES}/megatron.md, {PAGES}/nanotron.md
"""


def detect(script: Path) -> str:
    """Name of the one framework that `script` imports, anywhere in its text.

    Raises ConfigError if the script cannot be read as Python or imports none, or more than one, of FRAMEWORKS.
    """
    try:
        tree = ast.parse(script.read_bytes(), filename=str(script))
    except (OSError, SyntaxError) as error:
        raise ConfigError(
            script,
            f"cannot be read as a Python script: {error}",
            fix="pass the path of a Python script to conceptloader.launch",
        ) from error
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imported.add(node.module.split(".")[0])
    found = sorted(FRAMEWORKS.keys() & imported)
    if len(found) != 1:
        what = f"imports {' and '.join(found)}" if found else f"imports none of {', '.join(sorted(FRAMEWORKS))}"
        raise ConfigError(script, str(what), fix="name the framework: --framework NAME")
    return found[0]


def install(framework: str) -> None:
    """Import the adapter of `framework` and let it prepare this process."""
    import_module(f"conceptloader.integrations.{framework}_lm").install(**FRAMEWORKS[framework])


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of `python -m conceptloader.launch`; the script sees sys.argv as if it had been started alone."""
    parser = argparse.ArgumentParser(
        prog="python -m conceptloader.launch",
        description=(__doc__ or "").split("\n")[0],
        epilog=MEGATRON,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--framework", choices=sorted(FRAMEWORKS), help="default: the one that the script imports")
    meaning = "import this module first; may be repeated"
    add("--import", dest="imports", action="append", default=[], metavar="MODULE", help=meaning)
    add("script", type=Path, help="the training script")
    add("args", nargs=argparse.REMAINDER, help="its arguments, passed on as they are")
    options = parser.parse_args(argv)
    try:
        framework = options.framework or detect(options.script)
    except ConfigError as error:
        parser.error(str(error))
    sys.argv = [str(options.script), *options.args]
    sys.path.insert(0, str(options.script.resolve().parent))  # as `python script` does
    install(framework)
    for module in options.imports:
        import_module(module)
    runpy.run_path(str(options.script), run_name="__main__")


if __name__ == "__main__":
    main()
