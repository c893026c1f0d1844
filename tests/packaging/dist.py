"""What is published, in dist/: the source distribution, and wheels that are built from it; `make dist`.

All of the last commit, twice, in different folders: equal bytes, whose times are that commit's or SOURCE_DATE_EPOCH.
Then twine checks the metadata, the contents are compared, and the README's lines run in an environment with nothing
but the wheel and its dependencies; the wheel for the other kind of processor under qemu where `make arm` has been.
"""

import gzip
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from platform import machine

from conceptloader.kernels.build import TARGET
from conceptloader.kernels.library import LEVELS, MACHINES, VARIABLE, machine_of, require_machine
from tests.arm.run import PYTHON, ROOT, SITE, run

DIST = ROOT / "dist"
LIB = "conceptloader/kernels/lib/"


def source(folder, commit, epoch):
    """The source distribution of a commit, packed so that nothing in it is of this machine or of now."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder / "commit", filter="data")
    run(sys.executable, "setup.py", "-q", "sdist", "--dist-dir", str(folder), cwd=folder / "commit")
    (made,) = folder.glob("*.tar.gz")
    packed = io.BytesIO()
    with tarfile.open(made) as before, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as after:
        for member in sorted(before, key=lambda each: each.name):
            member.mtime, member.pax_headers = epoch, {}
            member.uid, member.gid, member.uname, member.gname = 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            after.addfile(member, before.extractfile(member) if member.isfile() else None)
    made.write_bytes(gzip.compress(packed.getvalue(), mtime=epoch))
    return made


def build(folder, commit, epoch):
    """The source distribution and a wheel for each kind of processor."""
    folder.mkdir()
    made = [source(folder, commit, epoch)]
    for target in MACHINES:
        with tarfile.open(made[0]) as files:
            files.extractall(folder / target, filter="data")
        (unpacked,) = (folder / target).iterdir()
        # No build isolation: what builds are the pinned packages of the environment that runs this.
        pip = ["-m", "pip", "wheel", "-q", "--no-index", "--no-deps", "--no-build-isolation", "--no-cache-dir"]
        command = [sys.executable, *pip, "--wheel-dir", str(folder), str(unpacked)]
        run(*command, cwd=folder, SOURCE_DATE_EPOCH=str(epoch), **{TARGET: target, VARIABLE: "", "PYTHONPATH": path()})
        made += [wheel for wheel in folder.glob("*.whl") if wheel not in made]
    return made


def path():
    """PYTHONPATH without this checkout, which is not what is built."""
    return os.pathsep.join(set(os.environ.get("PYTHONPATH", "").split(os.pathsep)) - {str(ROOT), ""})


def check_contents(files, commit):
    """What has to be in them is there, and nothing else of this machine."""
    tracked = run("git", "ls-tree", "-r", "--name-only", commit, "conceptloader", "integrations").splitlines()
    with tarfile.open(files[0]) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    require(not (missing := {*tracked} - inside), f"{files[0].name} lacks {missing}")
    require(not (built := {name for name in inside if name.endswith((".so", ".pyc", ".o"))}), f"it has {built}")
    expected = {re.sub("^integrations/", "conceptloader/integrations/", name) for name in tracked}
    for target, wheel in zip(MACHINES, files[1:], strict=True):
        tag = f"-py3-none-manylinux_2_17_{target}.musllinux_1_1_{target}.whl"
        require(wheel.name.endswith(tag), f"{wheel.name} is not for {target}")
        with zipfile.ZipFile(wheel) as archive:
            names = {name for name in archive.namelist() if ".dist-info/" not in name}
            libraries = {name for name in names if name.endswith(".so")}
            for name in libraries:
                level = name.removeprefix(LIB).rpartition("-")[0]
                require(machine_of(level) == target, f"{wheel.name} has {name}")
                require_machine(archive.read(name), level, f"{wheel.name}: {name}")
        levels = sum(machine_of(level) == target for level in LEVELS)
        require(len(libraries) == levels, f"{wheel.name} has {libraries}, expected {levels} levels")
        differ = (names - libraries - {f"{LIB}kernels.json"}) ^ expected
        require(not differ, f"{wheel.name} differs from the commit by {differ}")


def run_readme(wheel, folder):
    """Its blocks of Python, one after another, with the wheel alone."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    (folder / "readme.py").write_text("\n".join(blocks) + "\nprint(loader.consumed_samples, cl.__file__)\n")
    extras = f"{wheel}[torch,ingest]"
    if machine() in wheel.name:
        run(sys.executable, "-m", "venv", str(folder / "venv"))
        python = str(folder / "venv/bin/python")
        pins = ROOT / f"constraints/py3{sys.version_info[1]}.txt"
        run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", str(pins), extras, PYTHONPATH="")
    else:  # its dependencies are in the environment of `make arm`
        python = str(PYTHON)
        pip = ["-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--no-index"]
        run(python, *pip, "--target", str(folder / "site"), str(wheel), PYTHONPATH="")
    said = run(python, "readme.py", cwd=folder, PYTHONPATH=str(folder / "site"), **{VARIABLE: ""})
    require(said.startswith("64 ") and str(folder) in said, f"{wheel.name}: the README's lines print {said}")


def require(good, otherwise):
    if not good:
        sys.exit(otherwise)


def main():
    if wheels := sys.argv[1:]:  # try these alone, where they were not built
        for wheel in wheels:
            with tempfile.TemporaryDirectory() as folder:
                run_readme(Path(wheel).resolve(), Path(folder))
        return
    os.umask(0o022)
    commit = run("git", "rev-parse", "HEAD")
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or run("git", "log", "-1", "--format=%ct", commit))
    if changed := run("git", "status", "--porcelain"):
        print(f"not committed, and so not in what is built:\n{changed}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as home:
        files, again = (build(Path(home) / name, commit, epoch) for name in ("once", "and_again"))
        for file, other in zip(files, again, strict=True):
            require(
                file.name == other.name and file.read_bytes() == other.read_bytes(),
                f"{file.name}: built twice, it differs",
            )
        print("built twice: equal")
        check_contents(files, commit)
        run(sys.executable, "-m", "twine", "check", "--strict", *map(str, files))
        print("contents and metadata: as they should be")
        for wheel in files[1:]:
            folder = Path(home) / wheel.stem
            folder.mkdir()
            if machine() in wheel.name or (SITE / "torch").exists():
                run_readme(wheel, folder)
                print(f"{wheel.name}: an environment with nothing else runs the README's lines")
            else:
                print(f"{wheel.name}: not run; `make arm` gets what runs it")
        shutil.rmtree(DIST, ignore_errors=True)
        DIST.mkdir()
        for file in files:
            shutil.copy2(file, DIST)
            print(f"{DIST / file.name}: {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
