"""What an import costs."""

import json
import re
import subprocess
import sys
from pathlib import Path

from conceptloader.cli import main
from conceptloader.testing import random_documents, write_dataset
from tests.raises import cells


def modules_after(statement, checkout):
    script = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=checkout, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_brings_neither_torch_nor_numba(checkout):
    loaded = modules_after("import conceptloader", checkout)
    assert "conceptloader" in loaded
    assert not loaded & {"torch", "numba", "llvmlite", "numpy"}


def test_every_public_name_can_be_imported():
    import conceptloader

    for name in conceptloader.__all__:
        assert getattr(conceptloader, name) is not None, name


READS = """
import sys
for name in ("pyarrow", "duckdb"):
    sys.modules[name] = None
import conceptloader as cl
with cl.make_dataloader({path!r}, micro_batch_size=4, num_samples=40) as loader:
    assert sum(bool(batch["concepts_counts"].any()) for batch in loader) == 10
assert cl.SampleDataset({path!r})[3]["input_ids"].shape == (16,)
"""


def test_training_needs_no_package_for_tables(tmp_path, checkout):
    """With an index and a view beside the dataset, too."""
    data, view, config = (str(tmp_path / name) for name in ("data", "view", "run.yaml"))
    write_dataset(data, random_documents(60, seed=1))
    assert main(["index", data, "--quiet"]) == 0
    assert main(["subset", data, "--where", "tokens > 3", "--out", view, "--quiet"]) == 0
    datasets = {"a": {"path": data, "weight": 1}, "b": {"path": view, "weight": 1}}
    Path(config).write_text(json.dumps({"seq_len": 16, "datasets": datasets, "tracks": {"concepts": {}}}))
    script = READS.format(path=config)
    done = subprocess.run([sys.executable, "-c", script], cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


INSTALLED_AS = {"olmo_core": "ai2-olmo-core", "pytorch_lightning": "lightning"}
# lightning is the other name of pytorch_lightning; batches as text need no torch.
WITHOUT = """
torch | import conceptloader; conceptloader.make_dataloader
torch | from conceptloader import EpochSampler
tokenizers | from conceptloader.ingest.records.tokenizer import load_tokenizer; load_tokenizer('setup.py')
pyarrow | from conceptloader.ingest.parquet import open_parquet; open_parquet('x.parquet')
zstandard | from conceptloader.ingest.records.lines import read_lines; [*read_lines('setup.py', 0, None, 'zst')]
obstore | from conceptloader.storage.remote.stores import store_of; store_of('s3://a/b')
fsspec | from conceptloader.storage.remote.stores import store_of; store_of('ftp://a/b')
pytorch_lightning | sys.modules['lightning'] = None; from conceptloader.integrations.lightning_lm import ConceptDataModule
transformers | from conceptloader.integrations.transformers_lm import ConceptTrainer
olmo_core | from conceptloader.integrations.olmo_lm import ConceptDataLoader
- | import os; os.name = 'nt'; import conceptloader
torch | import conceptloader; conceptloader.decode; raise Exception('fine')
"""  # noqa: E501 - a package that is missing, and what is run then

# Each statement runs in a fork of a process that has imported what none of them is about.
ALONE = """
import json, os, sys
import numpy, torch, yaml
for package, statement in json.loads(sys.argv[1]):
    sys.stdout.flush()
    if not os.fork():
        sys.modules.update({package: None} if package else {})
        try:
            exec(statement)
        except BaseException as error:
            print(json.dumps([type(error).__module__, str(error)]), flush=True)
        os._exit(0)
    os.wait()
"""


def test_what_is_missing_is_named_with_what_installs_it(checkout):
    command = [sys.executable, "-c", ALONE, json.dumps(cells(WITHOUT))]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True)
    *found, windows, fine = map(json.loads, done.stdout.splitlines())
    for (package, _), (module, message) in zip(cells(WITHOUT), found, strict=False):
        assert module == "conceptloader.errors", message
        assert re.search(rf"; pip install '?{INSTALLED_AS.get(package, package)}\b", message)
        assert "conceptloader[" not in message  # nobody owns that name on the index
    assert len(found) == len(cells(WITHOUT)) - 2
    assert "found the operating system 'nt', expected Linux" in windows[1]
    assert fine[1] == "fine"
