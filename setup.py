"""Packaging. The adapters live in integrations/ and install as conceptloader.integrations.*.

Kernels are compiled here: a wheel carries machine code for one kind of processor, which any Python and any libc can
load.
"""

import re
import shutil
import sys
from pathlib import Path
from typing import Any, ClassVar

from setuptools import Command, Distribution, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build
from setuptools.command.editable_wheel import editable_wheel

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))  # a build frontend need not have it there

from conceptloader.base.tested import TESTED  # noqa: E402
from conceptloader.errors import KernelsError  # noqa: E402
from conceptloader.kernels import build as kernels  # noqa: E402

VERSION = re.search(
    r'^__version__ = "(.+)"$', (ROOT / "conceptloader/base/version.py").read_text(encoding="utf-8"), re.M
)
assert VERSION is not None

# Of the repository; pages repeat it, see tests/packaging/address.py.
ADDRESS = "https://example.org/conceptloader"


def long_description() -> str:
    """The README, whose links lead into this version of the repository."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    version = "main" if ".dev" in VERSION.group(1) else f"v{VERSION.group(1)}"
    text = re.sub(r"!\[([^]]*)\]\((?!https:)", rf"![\1]({ADDRESS}/raw/{version}/", text)
    return re.sub(r"(?<!!)\[([^]]*)\]\((?!https:)", rf"[\1]({ADDRESS}/blob/{version}/", text)


PACKAGES = find_packages(include=["conceptloader", "conceptloader.*"])
ADAPTERS = find_packages("integrations")


def ranged(package: str, extra: str = "") -> str:
    """From the oldest version on that is meant to work to the next major one. Newer minor ones are a warning."""
    oldest, newest = TESTED[package]
    return f"{package}{extra}>={oldest},<{int(newest.partition('.')[0]) + 1}"


TORCH = [ranged("torch")]
INGEST = ["tokenizers>=0.19", "pyarrow>=14", "zstandard>=0.22", "jinja2>=3.1", "duckdb>=2.0"]
FAST = [*INGEST, "gigatoken>=0.10,<0.11"]
MEGATRON = [*TORCH, ranged("megatron-core")]
NANOTRON = [*TORCH, ranged("nanotron")]
LIGHTNING = [*TORCH, ranged("lightning")]
TRANSFORMERS = [*TORCH, ranged("transformers", "[torch]")]
TRL = [*TORCH, ranged("trl"), ranged("transformers")]
ACCELERATE = [*TORCH, ranged("accelerate")]
TITAN = [*TORCH, ranged("torchtitan")]
OLMO = [*TORCH, ranged("ai2-olmo-core")]
DATATROVE = [*INGEST, "datatrove>=0.4"]
REMOTE = ["obstore>=0.7", "fsspec>=2023.5"]
HUB = [*INGEST, "huggingface_hub>=0.24"]
DOCS = [*TORCH, *INGEST, "mkdocs-material>=9.5", "mkdocstrings[python]>=0.29", "selenium"]
DEMO = [*TORCH, *INGEST]
TEST = [
    "torch==2.13.0",
    *REMOTE,
    *HUB,
    *FAST,
    "psutil",
    "transformers==5.23.0; python_version >= '3.11'",
    "accelerate==1.15.0",  # without which transformers has no Trainer
    "megatron-core==0.16.1",
    "boto3",  # by which megatron-core reads object stores
    "nanotron==0.4",
    "datatrove==0.10.1",
    "torchdata",
    "hypothesis",
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "ruff",
    "mypy",
    "types-PyYAML",
    "import-linter",
    "numba",
    "setuptools",
    "wheel",
]
# What the tests of these trainers need besides: see `make test-trainers`.
TEST_TRAINERS = [*TEST, *DEMO, "lightning==2.6.6", "datasets"]


def linkers_of_the_build() -> list[str]:
    """A linker from the package registry, where this machine has none."""
    try:
        kernels.linker()
    except KernelsError:
        return ["ziglang==0.17.1"]
    return []


class BuildKernels(Command):
    """Compile the kernels in the source tree, from where an editable install loads them; a wheel gets a copy."""

    description = "compile the kernels"
    user_options: ClassVar[list[Any]] = []

    def initialize_options(self) -> None:
        self.build_lib: str | None = None
        self.editable_mode = False

    def finalize_options(self) -> None:
        self.set_undefined_options("build_py", ("build_lib", "build_lib"))

    def run(self) -> None:
        kernels.build()
        if not self.editable_mode:
            # Of another target, or of sources before an edit: setuptools would pack what lies there.
            shutil.rmtree(Path(str(self.build_lib)) / kernels.LIBRARIES.relative_to(ROOT), ignore_errors=True)
            for made in self.get_output_mapping():
                self.mkpath(str(Path(made).parent))
                self.copy_file(self.get_output_mapping()[made], made)

    def get_output_mapping(self) -> dict[str, str]:
        folder = kernels.libraries()
        made = [name for name, _, _ in kernels.Description.read(folder).files.values()] if folder.exists() else []
        below = Path(str(self.build_lib)) / kernels.LIBRARIES.relative_to(ROOT)
        return {str(below / name): str(folder / name) for name in (*made, kernels.DESCRIPTION)}

    def get_outputs(self) -> list[str]:
        return list(self.get_output_mapping())

    def get_source_files(self) -> list[str]:
        return []


class Platform(Distribution):
    """With files that are for one kind of processor."""

    def has_ext_modules(self) -> bool:
        return True


class PlatformWheel(bdist_wheel):
    """For any Python 3 and any libc on the target's kind of processor: machine code names neither."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", f"manylinux_2_17_{kernels.target()}.musllinux_1_1_{kernels.target()}"


class Editable(editable_wheel):
    """A path in a .pth file, which type checkers read too: the package itself finds integrations/ at run time."""

    def finalize_options(self) -> None:
        if self.mode != "strict":
            self.distribution.packages, self.distribution.package_dir = PACKAGES, {"": "."}
        super().finalize_options()


build.sub_commands = [*build.sub_commands, ("build_kernels", None)]

setup(
    name="conceptloader",
    version=VERSION.group(1),
    description="Pretraining data: token streams with concepts attached, shuffled and blended without index arrays",
    long_description=long_description(),
    long_description_content_type="text/markdown",
    url=ADDRESS,
    project_urls={
        "Source": ADDRESS,
        "Documentation": f"{ADDRESS}/blob/main/docs/README.md",
        "Changelog": f"{ADDRESS}/blob/main/CHANGELOG.md",
        "Issues": f"{ADDRESS}/issues",
    },
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.10,<3.15",  # the versions that were tested
    # Listed by name: a plain find_packages() would install a top-level package called `integrations`.
    packages=[
        *PACKAGES,
        *(f"conceptloader.integrations.{name}" for name in ADAPTERS),
    ],
    package_dir={f"conceptloader.integrations.{name}": f"integrations/{name.replace('.', '/')}" for name in ADAPTERS},
    package_data={"conceptloader": ["py.typed"], "conceptloader.cli": ["page.css", "page.js"]},
    install_requires=["numpy>=1.26,<3", "pyyaml>=6.0", "xxhash>=3.4", "tqdm>=4.66"],
    setup_requires=linkers_of_the_build(),
    distclass=Platform,
    cmdclass={"build_kernels": BuildKernels, "bdist_wheel": PlatformWheel, "editable_wheel": Editable},
    extras_require={
        "torch": TORCH,
        "ingest": INGEST,
        "fast": FAST,
        "megatron": MEGATRON,
        "nanotron": NANOTRON,
        "datatrove": DATATROVE,
        "lightning": LIGHTNING,
        "transformers": TRANSFORMERS,
        "trl": TRL,
        "accelerate": ACCELERATE,
        "torchtitan": TITAN,
        "olmo": OLMO,
        "remote": REMOTE,
        "hub": HUB,
        "docs": DOCS,
        "demo": DEMO,
        "test": TEST,
        "test-trainers": TEST_TRAINERS,
    },
    entry_points={"console_scripts": ["conceptloader = conceptloader.cli:main"]},
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Programming Language :: Python :: 3.14",
        "Operating System :: POSIX :: Linux",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
)
