"""The launcher: which framework a script belongs to, and how the script is run."""

import shlex
import sys
import types

import pytest

from conceptloader import launch
from conceptloader.errors import ConfigError
from tests.raises import cells

SCRIPTS = r"""
from nanotron.trainer import DistributedTrainer | nanotron
def main():\n    import nanotron.distributed as dist | nanotron
import torch, megatron.core | megatron
"""
DOUBTFUL = r"""
import torch\n# import nanotron | imports none of megatron, nanotron; name the framework
import nanotron\nimport megatron | imports megatron and nanotron; name the framework
from .nanotron import x | imports none of
def | cannot be read as a Python script
"""


@pytest.mark.parametrize(("text", "framework"), cells(SCRIPTS))
def test_a_framework_is_told_by_its_imports(text, framework, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(text.replace(r"\n", "\n"))
    assert launch.detect(script) == framework


@pytest.mark.parametrize(("text", "message"), cells(DOUBTFUL))
def test_a_doubtful_script_is_refused(text, message, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(text.replace(r"\n", "\n"))
    with pytest.raises(ConfigError, match=message):
        launch.detect(script)
    with pytest.raises(SystemExit) as stopped:
        launch.main([str(script)])
    assert stopped.value.code == 2


def test_the_script_runs_as_if_alone(tmp_path, monkeypatch):
    """Adapter, then imports, then the script with its own arguments and folder."""
    order = []
    adapter, mine = types.ModuleType("some_adapter"), tmp_path / "registers_a_model.py"
    adapter.install = lambda nanosets: order.append("adapter")
    adapter.order = order
    for name in ("some_adapter", "conceptloader.integrations.nanotron_lm"):
        monkeypatch.setitem(sys.modules, name, adapter)
    monkeypatch.setattr(sys, "argv", ["launch.py"])
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    mine.write_text("import some_adapter\nsome_adapter.order.append('import')")
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "beside.py").write_text("")
    (folder / "script.py").write_text(
        "import sys, beside, some_adapter\nif __name__ == '__main__':\n    some_adapter.order += sys.argv[1:]"
    )
    words = f"--framework nanotron --import registers_a_model {folder / 'script.py'} --config-file x --"
    launch.main(shlex.split(words))
    assert order == ["adapter", "import", "--config-file", "x", "--"]
