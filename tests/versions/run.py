"""Makes the environments of environments.py, runs their tests, and writes a result of each beside this file.

    python -m tests.versions.run [NAME ...]     all, or those that are named
    python -m tests.versions.run --here NAME    in the interpreter that runs this, with the packages that it has

$CONCEPTLOADER_CHECKOUTS is a folder of checkouts, by the names of environments.py; an environment whose checkout or
interpreter is not there is left out. Then `python -m tests.versions.page --write`.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version
from xml.etree import ElementTree

import conceptloader as cl
from tests.versions.environments import READERS, TESTS, environments

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).parent / "results"
VENVS = ROOT / ".venv-trainers"


def made(environment):
    """Its interpreter, with all packages, and this checkout to import from."""
    found = shutil.which(f"python{environment.python}")
    if found is None or subprocess.run([found, "-V"], capture_output=True).returncode:  # pyenv, without that version
        return None
    venv = VENVS / environment.name
    python = venv / "bin" / "python"
    if not python.exists():
        subprocess.run([found, "-m", "venv", str(venv)], check=True)
    install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    basic = ("numpy>=1.26", "pyyaml>=6", "xxhash>=3.4", "tqdm>=4.66")
    subprocess.run([*install, *environment.packages, *basic, *READERS, *TESTS], check=True)
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "conceptloader.pth").write_text(f"{ROOT}\n")
    return python


def installed(package):
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def run(environment):
    """Run the tests here, and write the result. False if one has failed."""
    variables = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "CONCEPTLOADER_SOAK": "1" * environment.soak}
    if environment.checkout:
        checkout = checkout_of(environment)
        assert checkout is not None
        variables[environment.variable] = str(checkout)
        if environment.importable:
            paths = [str(checkout / environment.importable), os.environ.get("PYTHONPATH", "")]
            variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *environment.tests]
        subprocess.run(command, cwd=ROOT, env=variables)
        counts = count(report)
    known = {name: installed(name) for name in ("numpy", "torch", environment.package) if name}
    result = {
        "component": environment.component,
        "version": environment.version or installed(environment.package),
        "python": python_version(),
        "packages": {name: found for name, found in known.items() if found},
        "tests": list(environment.tests),
        **counts,
        "date": date.today().isoformat(),
        "conceptloader": cl.__version__,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{environment.name}.json").write_text(json.dumps(result, indent=2) + "\n")
    return not counts["failed"]


def count(report):
    """What a report of pytest says; a run that has written none is one failure."""
    if not report.exists():
        return {"passed": 0, "failed": 1, "skipped": 0}
    total = Counter()
    for suite in ElementTree.parse(report).getroot().iter("testsuite"):
        total.update({name: int(suite.get(name, 0)) for name in ("tests", "errors", "failures", "skipped")})
    failed = total["errors"] + total["failures"]
    return {"passed": total["tests"] - failed - total["skipped"], "failed": failed, "skipped": total["skipped"]}


def checkout_of(environment):
    folder = Path(os.environ.get("CONCEPTLOADER_CHECKOUTS", "")) / environment.checkout
    return folder.resolve() if "CONCEPTLOADER_CHECKOUTS" in os.environ and folder.is_dir() else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--here", action="store_true")
    given = parser.parse_args()
    known = {environment.name: environment for environment in environments()}
    if unknown := set(given.names) - set(known):
        parser.error(f"no such environment: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    good = True
    for name in given.names or known:
        environment = known[name]
        if environment.checkout and checkout_of(environment) is None:
            print(f"{name}: not run, $CONCEPTLOADER_CHECKOUTS has no {environment.checkout}")
        elif given.here:
            good &= run(environment)
        elif environment.arm:
            print(f"{name}: not run, `make arm` does that")
        elif (python := made(environment)) is None:
            print(f"{name}: not run, there is no python{environment.python}")
        else:
            here = [str(python), "-m", "tests.versions.run", "--here", name]
            good &= not subprocess.run(here, cwd=ROOT).returncode
    sys.exit(not good)


if __name__ == "__main__":
    main()
