"""Every way to install conceptloader brings the same packages and nothing else."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from conceptloader.kernels.library import LIBRARIES, Description

ADAPTERS = [
    f"conceptloader.integrations.{name}" for name in ("accelerate_lm", "datatrove_lib", "megatron_lm", "nanotron_lm")
]
OFFLINE = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--no-cache-dir"]


def run(*command, cwd, **environment):
    """Standard output of a command that must succeed. PYTHONPATH is only what the caller gives."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environment
    done = subprocess.run([str(c) for c in command], cwd=cwd, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def imported_from(python, cwd, **environment):
    """Module name -> file, as a fresh interpreter without the current directory on its path finds them."""
    names = ["conceptloader", *ADAPTERS]
    script = f"from importlib import import_module as i\nfor n in {names}: print(i(n).__file__)"
    files = run(python, "-c", script, cwd=cwd, PYTHONSAFEPATH="1", **environment).splitlines()
    return dict(zip(names, map(Path, files), strict=True))


@pytest.fixture(scope="session")
def wheel(source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", *OFFLINE, "--wheel-dir", folder, source, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture
def empty_venv(tmp_path):
    """Python of a venv that borrows every package of the tests' venv, but not an editable conceptloader."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    (site_packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    # A path named in a .pth file is searched last, and its own .pth files (the editable installs) are not read.
    (site_packages / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    return str(tmp_path / "venv" / "bin" / "python")


def test_what_a_wheel_holds(wheel, source):
    """One package at the top with all of its files and the type marker, its licence, kernels; for any Python."""
    assert re.search(r"-py3-none-manylinux_2_17_(\w+)\.musllinux_1_1_\1\.whl$", wheel.name)
    files = set(zipfile.ZipFile(wheel).namelist())
    kinds = ".py", ".js", ".css"
    sources = [f for f in source.glob("conceptloader/**/*") if f.suffix in kinds or f.name == "py.typed"]
    expected = {str(f.relative_to(source)) for f in sources}
    expected |= {f"conceptloader/{f.relative_to(source)}" for f in source.glob("integrations/**/*.py")}
    made = [name for name, _, _ in Description.read(LIBRARIES).files.values()]
    expected |= {f"conceptloader/kernels/lib/{name}" for name in (*made, "kernels.json")}
    assert {f for f in files if ".dist-info/" not in f} == expected
    assert {"conceptloader/py.typed", "conceptloader/integrations/megatron_lm/__init__.py"} < expected
    assert any(f.endswith("LICENSE") for f in files - expected)


def test_normal_install(wheel, empty_venv, tmp_path):
    run(empty_venv, "-m", "pip", "install", "--ignore-installed", *OFFLINE, wheel, cwd=tmp_path)
    for name, file in imported_from(empty_venv, tmp_path).items():
        assert file.is_relative_to(tmp_path / "venv"), name


@pytest.mark.parametrize("mode", ["default", "strict"])
def test_editable_install(mode, source, empty_venv, tmp_path):
    option = [] if mode == "default" else ["--config-settings", f"editable_mode={mode}"]
    pip = [empty_venv, "-m", "pip", "install", "--ignore-installed", *OFFLINE, *option]
    run(*pip, "--editable", source, cwd=tmp_path)
    for name, file in imported_from(empty_venv, tmp_path).items():
        assert file.is_relative_to(source), name
    # Type checkers read .pth files, but run no code of these. The adapters are elsewhere in a checkout.
    names = ["conceptloader", *(ADAPTERS if mode == "strict" else [])]
    script = "".join(f"import {name}\n" for name in names)
    (tmp_path / "mypy.ini").write_text("[mypy]\n[mypy-conceptloader.*]\nfollow_imports = skip\n")
    how = ["--config-file", tmp_path / "mypy.ini", "--python-executable", empty_venv, "--cache-dir", tmp_path / "cache"]
    assert "Success" in run(sys.executable, "-m", "mypy", *how, "-c", script, cwd=tmp_path)


def test_checkout_without_an_install(source, empty_venv, tmp_path):
    for name, file in imported_from(empty_venv, tmp_path, PYTHONPATH=str(source)).items():
        assert file.is_relative_to(source), name


def test_shim_ignores_a_foreign_integrations_folder(wheel, empty_venv, tmp_path):
    """Another distribution's top-level `integrations`, beside ours in site-packages, must not leak into ours."""
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    (site / "integrations").mkdir()
    script = "import conceptloader.integrations as i; print(len(i.__path__))"
    assert run(empty_venv, "-c", script, cwd=tmp_path, PYTHONPATH=str(site)).strip() == "1"


@pytest.mark.slow
def test_the_source_distribution_builds_the_same_wheel(wheel, source, tmp_path):
    """With kernels that are there: they are compiled again for another digest of their sources, tests/kernels."""
    run(sys.executable, "setup.py", "-q", "sdist", "--dist-dir", tmp_path, cwd=source)
    (archive,) = tmp_path.glob("conceptloader-*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(tmp_path, filter="data")
    unpacked = archive.with_name(archive.name.removesuffix(".tar.gz"))
    shutil.copytree(LIBRARIES, unpacked / "conceptloader/kernels/lib")
    # What an earlier build left, of other sources or for another kind of processor, is not packed.
    folder = f"build/lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}/conceptloader/kernels/lib"
    (unpacked / folder).mkdir(parents=True)
    (unpacked / folder / "aarch64-0123456789ab.so").write_bytes(b"old")
    command = [sys.executable, "-m", "pip", "wheel", *OFFLINE, "--wheel-dir", tmp_path / "again", unpacked]
    run(*command, cwd=tmp_path)
    (again,) = (tmp_path / "again").glob("*.whl")
    assert again.name == wheel.name
    found, built = ({f.filename: f.CRC for f in zipfile.ZipFile(file).infolist()} for file in (wheel, again))
    assert found == built


def test_without_extras_it_reads_and_says_what_is_missing(wheel, empty_venv, tmp_path):
    """Installed into a venv in which nothing is but what setup.py requires."""
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site / "borrowed.pth").unlink()
    for pattern in ("numpy", "numpy.libs", "yaml", "_yaml*", "xxhash", "tqdm"):
        for found in Path(sysconfig.get_path("purelib")).glob(pattern):
            (site / found.name).symlink_to(found)
    zipfile.ZipFile(wheel).extractall(site)
    script = """
import conceptloader as cl
build = cl.writing.create_writer("data", cl.writing.BuildOptions())
with build.shard(0) as writer:
    writer.add_document([1, 2, 3])
cl.writing.finalize("data")
print(cl.__version__, cl.open_dataset("data").num_tokens, cl.Mixture([9]).sample(3)[0])
try:
    cl.make_dataloader
except cl.errors.MissingPackageError as error:
    print(error)
"""
    found = run(empty_venv, "-c", script, cwd=tmp_path).splitlines()
    assert found[0] == f"{wheel.name.split('-')[1]} 3 0"
    assert "pip install torch" in found[1]
    assert "tokens: 3" in run(empty_venv, "-m", "conceptloader", "inspect", "data", cwd=tmp_path)
