"""The library of kernels: which one is loaded, what is refused before it is, how it is built."""

import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from conceptloader.kernels import library
from conceptloader.kernels.library import LIBRARIES, VARIABLE, Description, digest_of
from tests.scale import SOAK

# In processes of their own: a process loads one library. On failure the error's text, as its user sees it.
LOAD = """
import sys
try:
    import conceptloader as cl
    cl.Mixture([10**9]).sample(5)
    from conceptloader.kernels.library import load_library
    print(load_library().level)
except cl.errors.KernelsError as error:
    print(error)
"""


@pytest.fixture
def load(checkout):
    def call(given="", path=checkout, script=LOAD):
        environment = {**os.environ, VARIABLE: str(given), "PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run([sys.executable, "-c", script], cwd=path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return call


@pytest.fixture
def copy(tmp_path):
    """The libraries, in another folder."""
    return Path(shutil.copytree(LIBRARIES, tmp_path / "lib"))


def of_this_processor():
    return [level for level in library.supported() if level in Description.read(LIBRARIES).files]


def test_the_best_level_is_chosen_and_any_can_be_forced(load, copy):
    levels = of_this_processor()
    assert load() == load(copy) == levels[0]
    for level in levels:
        assert load(level) == level


# As where neither numba nor llvmlite is installed, which nothing needs at run time.
DIGEST = """
import sys
sys.modules["numba"] = sys.modules["llvmlite"] = None
from tests.kernels.everything import everything
print(everything())
"""


def test_all_levels_give_equal_bits(load):
    """Orders and batches of many kinds; that they are right is what all other tests are about."""
    digests = {level: load(level, script=DIGEST) for level in of_this_processor()}
    assert len(digests) >= 2 or platform.machine() == "aarch64", "one level alone shows nothing"
    assert len(set(digests.values())) == 1, digests


def test_a_library_that_is_cut_off_or_changed_is_not_loaded(load, copy):
    name, size, _ = Description.read(copy).files[of_this_processor()[0]]
    whole = (copy / name).read_bytes()
    for wrong in (whole[:12000], whole[:-1], b"", whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:]):
        (copy / name).write_bytes(wrong)
        said = load(copy)
        assert f"{name}: found {len(wrong)} bytes of another content, expected the {size} that were compiled" in said
        assert "make kernels" in said
    (copy / name).unlink()
    assert f"{name}: cannot be read (No such file or directory)" in load(copy)


def test_a_library_of_another_version_or_of_other_sources_is_not_loaded(load, copy):
    known = Description.read(copy)
    for wrong in (replace(known, version="0.1.0"), replace(known, sources="0" * 32)):
        wrong.write(copy)
        assert f"found kernels of {wrong.version} or of other sources" in load(copy)


def test_an_edited_kernel_is_not_run_as_it_was(load, checkout, tmp_path):
    shutil.copytree(checkout / "conceptloader", tmp_path / "conceptloader")
    assert load(path=tmp_path) == of_this_processor()[0]
    path = tmp_path / "conceptloader/kernels/order.py"
    path.write_text(path.read_text().replace("U64(27)", "U64(28)"))
    assert "or of other sources" in load(path=tmp_path)


def test_no_libraries_at_all_name_the_command(load, tmp_path):
    said = load(tmp_path)
    assert f"{tmp_path}: found no compiled kernels (No such file or directory)" in said
    assert "run `make kernels`" in said
    (tmp_path / "kernels.json").write_text("{}")
    assert "kernels.json: found no description of compiled kernels" in load(tmp_path)


def other_machine():
    return next(machine for machine in library.MACHINES if machine != platform.machine())


def test_a_library_for_another_processor_names_both(load, copy):
    known, level = Description.read(copy), of_this_processor()[0]
    other = next(name for name in library.LEVELS if library.machine_of(name) == other_machine())
    replace(known, files={other: known.files[level]}).write(copy)
    assert f"found kernels for {other}, but this processor ({platform.machine()}) has {library.supported()[0]}" in load(
        copy
    )
    assert f"{VARIABLE}: found '{other}', expected a level that was built and that this processor has" in load(other)
    assert f"{VARIABLE}: found 'v3', expected" in load("v3")


def test_a_library_whose_code_is_for_another_machine_is_not_loaded(load, copy):
    """Its level is this processor's, and its digest right."""
    known, level = Description.read(copy), of_this_processor()[0]
    name, size, _ = known.files[level]
    whole, machine = (copy / name).read_bytes(), library.MACHINES[other_machine()]
    for wrong in (whole[:18] + machine.to_bytes(2, "little") + whole[20:], bytes(size)):
        (copy / name).write_bytes(wrong)
        replace(known, files={level: (name, size, digest_of(wrong))}).write(copy)
        found, expected = int.from_bytes(wrong[18:20], "little"), library.MACHINES[platform.machine()]
        assert f"{name}: found no library, or of ELF machine {found}, expected one for" in load(copy)
        assert f"(machine {expected}), for level {level}" in load(copy)


@pytest.mark.soak
@pytest.mark.skipif(not SOAK, reason="of `make soak`: it compiles a level once more")
@pytest.mark.timeout(300)
def test_a_build_replaces_what_is_there_and_is_the_same_again(load, tmp_path):
    """By `python -m conceptloader.kernels.build`; old libraries go, and what is built twice is equal."""
    level, folder = of_this_processor()[0], tmp_path / "lib"
    folder.mkdir()
    (folder / "old.so").write_bytes(b"old")
    command = [sys.executable, "-m", "conceptloader.kernels.build", "--output", str(folder), "--levels", level]
    subprocess.run(command, check=True)
    known = json.loads((folder / "kernels.json").read_text())
    assert sorted(path.name for path in folder.iterdir()) == sorted(["kernels.json", known["files"][level][0]])
    assert known["files"][level] == list(Description.read(LIBRARIES).files[level])
    assert load(folder) == level


def test_no_library_names_python_or_a_version_of_libc():
    """So that one serves every Python, and every libc of Linux."""
    for name, _, digest in Description.read(LIBRARIES).files.values():
        data = (LIBRARIES / name).read_bytes()
        assert digest == digest_of(data)
        assert b"Py_" not in data
        assert b"GLIBC_" not in data
        assert b"libc.so" not in data
