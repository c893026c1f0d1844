"""What an import costs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conceptloader.cli import main
from conceptloader.testing import random_documents, write_dataset


def modules_after(statement: str, checkout: Path) -> set[str]:
    script = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=checkout, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_brings_neither_torch_nor_numba(checkout: Path) -> None:
    loaded = modules_after("import conceptloader", checkout)
    assert "conceptloader" in loaded
    assert not loaded & {"torch", "numba", "llvmlite", "numpy"}


def test_batches_are_text_without_torch(checkout: Path) -> None:
    script = "import sys\nsys.modules['torch'] = None\nimport conceptloader\nconceptloader.decode"
    subprocess.run([sys.executable, "-c", script], cwd=checkout, check=True)


def test_every_public_name_can_be_imported() -> None:
    import conceptloader

    for name in conceptloader.__all__:
        assert getattr(conceptloader, name) is not None, name


READS = """
import sys
for name in ("pyarrow", "duckdb", "pandas"):
    sys.modules[name] = None
import conceptloader as cl
with cl.make_dataloader({path!r}, micro_batch_size=4, num_samples=40) as loader:
    assert sum(bool(batch["concepts_counts"].any()) for batch in loader) == 10
assert cl.SampleDataset({path!r})[3]["input_ids"].shape == (16,)
"""


def test_training_needs_no_package_for_tables(tmp_path: Path, checkout: Path) -> None:
    """With an index and a view beside the dataset, too."""
    data, view, config = (str(tmp_path / name) for name in ("data", "view", "run.yaml"))
    write_dataset(data, random_documents(60, seed=1))
    assert main(["index", data, "--quiet"]) == 0
    assert main(["select", data, "--where", "tokens > 3", "--out", view, "--quiet"]) == 0
    datasets = {"a": {"path": data, "weight": 1}, "b": {"path": view, "weight": 1}}
    Path(config).write_text(json.dumps({"seq_len": 16, "datasets": datasets, "concepts": {"concepts": {}}}))
    script = READS.format(path=config)
    done = subprocess.run([sys.executable, "-c", script], cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


INSTALLED_AS = {"olmo_core": "ai2-olmo-core"}


@pytest.mark.parametrize(
    ("package", "statement"),
    [
        ("torch", "import conceptloader; conceptloader.make_dataloader"),
        ("torch", "from conceptloader import EpochSampler"),
        ("tokenizers", "from conceptloader.ingest.rows.tokenizer import load_tokenizer; load_tokenizer('setup.py')"),
        ("pyarrow", "from conceptloader.ingest.rows.table import open_parquet; open_parquet('x.parquet')"),
        ("zstandard", "from conceptloader.ingest.rows.lines import read_lines; [*read_lines('setup.py', 0, None, 'zst')]"),  # noqa: E501
        ("msgpack", "from conceptloader.format.spec.codecs import MsgpackCodec; MsgpackCodec()"),
        ("obstore", "from conceptloader.storage.stores import read_range; read_range('s3://a/b', 0, 1, bool)"),
        ("fsspec", "from conceptloader.storage.stores import read_range; read_range('ftp://a/b', 0, 1, bool)"),
        ("lightning", "from conceptloader.integrations.lightning_lm import ConceptDataModule"),
        ("transformers", "from conceptloader.integrations.transformers_lm import ConceptTrainer"),
        ("olmo_core", "from conceptloader.integrations.olmo_lm import ConceptDataLoader"),
        (
            "matplotlib",
            "from conceptloader.view.plots import figure_of; figure_of({'tracks': {}}, 1)",
        ),
        ("pandas", "from conceptloader.format.read.tables import Tabular; Tabular().to_pandas()"),
        ("pyarrow", "from conceptloader.format.read.tables import Tabular; Tabular().to_arrow()"),
    ],
)  # fmt: skip
def test_a_missing_package_is_named_with_what_installs_it(package: str, statement: str, checkout: Path) -> None:
    script = f"import sys\nsys.modules[{package!r}] = None\n{statement}"
    done = subprocess.run([sys.executable, "-c", script], cwd=checkout, capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("conceptloader.errors."), done.stderr
    assert re.search(rf"; pip install '?{INSTALLED_AS.get(package, package)}\b", last)
    assert "conceptloader[" not in last  # nobody owns that name on the index


def test_windows_is_named(checkout: Path) -> None:
    script = "import os\nos.name = 'nt'\nimport conceptloader"
    done = subprocess.run([sys.executable, "-c", script], cwd=checkout, capture_output=True, text=True)
    assert "ImportError: conceptloader: found the operating system 'nt', expected Linux" in done.stderr
