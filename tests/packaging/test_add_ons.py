"""An add-on can be deleted: a copy of the package without its folder reads, trains and resumes as before."""

import subprocess
import sys
from pathlib import Path

import pytest

from conceptloader.blend.add_ons import ADD_ONS
from conceptloader.testing import random_documents, write_dataset

CORE = "tests/loader/test_loader.py"
OTHERS = {"remote": ["tests/storage/test_schemes.py"]}  # of what the add-on has, for an add-on of somebody else
WITHOUT = """
import importlib.util, itertools
import pytest
import conceptloader as cl
from conceptloader.errors import ConfigError

CONFIG = {{"seq_len": 16, "datasets": {{"a": {{"path": {data!r}}}}}}}

def test_it_is_gone():
    assert importlib.util.find_spec({name!r}) is None

def test_a_run_that_is_logged_and_resumed(tmp_path):
    loader = cl.batches(CONFIG, micro_batch_size=2)
    loader.log_start(tmp_path, 0)
    whole = [batch["sample_index"].tolist() for batch in itertools.islice(loader, 6)]
    loader.load_state_dict(loader.state_dict_at(6))
    assert [batch["sample_index"].tolist() for batch in itertools.islice(loader, 3)] == whole[3:]

@pytest.mark.parametrize(("section", "key"), {keys!r})
def test_its_key_says_what_is_missing(section, key):
    given = {{"odm": {{}}}} if key == "mixing" else True
    asked = {{key: given}} if section is None else {{section: {{key: given}}}}
    with pytest.raises(ConfigError) as raised:
        cl.batches({{**CONFIG, **asked}}, micro_batch_size=2)
    assert str(raised.value).startswith(f"{{section}}.{{key}}:" if section else f"{{key}}:")
    assert {name!r} in str(raised.value)
"""


@pytest.mark.parametrize("name", ["metrics", "batch_log", "mixing", "receipts", "remote"])
def test_the_core_works_without(name: str, tmp_path: Path, checkout: Path) -> None:
    tree, package = tmp_path / "tree", f"conceptloader.{name}"
    (tree / "conceptloader").mkdir(parents=True)
    links = [*(checkout / "conceptloader").iterdir(), *(checkout / each for each in ("tests", "setup.cfg"))]
    for original in links:
        if original != checkout / "conceptloader" / name:
            (tree / original.relative_to(checkout)).symlink_to(original)
    write_dataset(tmp_path / "data", random_documents(60, seed=1))
    keys = [(None, *key.split("."))[-2:] for key, module in ADD_ONS.items() if module.startswith(package)]
    text = WITHOUT.format(data=str(tmp_path / "data"), name=package, keys=keys)
    (tree / "test_without.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_without.py", CORE]
    command += OTHERS.get(name, [])
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
