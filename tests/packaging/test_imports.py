"""What an import costs."""

import subprocess
import sys
from pathlib import Path


def modules_after(statement: str, checkout: Path) -> set[str]:
    script = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=checkout, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_brings_neither_torch_nor_numba(checkout: Path) -> None:
    loaded = modules_after("import conceptloader", checkout)
    assert "conceptloader" in loaded
    assert not loaded & {"torch", "numba", "llvmlite", "numpy"}


def test_every_public_name_can_be_imported() -> None:
    import conceptloader

    for name in conceptloader.__all__:
        assert getattr(conceptloader, name) is not None, name


def test_a_missing_torch_is_named_with_what_to_install(checkout: Path) -> None:
    script = """
import sys
sys.modules["torch"] = None  # as if it were not installed
import conceptloader as cl
assert cl.open_blend and cl.Mixture
for name in ("make_dataloader", "Loader", "SampleDataset", "collate_fn", "EpochSampler"):
    try:
        getattr(cl, name)
    except cl.errors.ConceptloaderError as error:
        assert isinstance(error, ImportError), error
        assert f"conceptloader.{name}: the torch package is not installed; pip install" in str(error), error
    else:
        raise SystemExit(name)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
