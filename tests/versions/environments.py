"""The environments that the adapters are tested in: one each, since their pins contradict each other."""

from collections.abc import Iterator
from dataclasses import dataclass

READERS = ("tokenizers>=0.19", "pyarrow>=14", "zstandard>=0.22", "jinja2>=3.1", "duckdb>=1.2")
TESTS = ("pytest", "pytest-timeout", "hypothesis", "torchdata")

NO_BUILD = ("-k", "not kernels_stay_in_their_arrays")  # which compiles
ORDER = ("tests/order/test_golden.py", "tests/order/test_permutation.py", "tests/order/test_mixture.py")
LOADER = (
    *ORDER,
    "tests/loader/test_loader.py",
    "tests/loader/test_state.py",
    "tests/trainers/test_values.py",
    *NO_BUILD,
)
KERNELS = ("tests/kernels/test_calls.py", "tests/kernels/test_library.py")
ARM = (*ORDER, "tests/format/test_golden.py", *NO_BUILD)
MATRIX = "tests/trainers/test_matrix.py"
MEGATRON = (
    "tests/megatron/test_iterators.py",
    "tests/megatron/test_pretrain_gpt.py",
    "-k",
    "iterators or dp2 or changed_past",
)


@dataclass(frozen=True, kw_only=True)
class Environment:
    """An interpreter, packages and tests.

    group, component, version: as the page names them; version "": what was found installed as `package`. tests:
    arguments of pytest. checkout: the folder that `variable` gives the tests, below $CONCEPTLOADER_CHECKOUTS;
    importable: the folder in it that goes on PYTHONPATH, "" for none. arm: for tests/arm alone. soak: in the long form
    of `make soak`. note: for the page.
    """

    name: str
    group: str
    component: str
    version: str = ""
    package: str = ""
    python: str = "3.11"
    packages: tuple[str, ...] = ("torch==2.13.0",)
    tests: tuple[str, ...] = LOADER
    arm: bool = False
    soak: bool = False
    checkout: str = ""
    variable: str = ""
    importable: str = "."
    note: str = ""


def environments() -> Iterator[Environment]:
    """All of them, in the order of the page."""
    for minor in (10, 11, 12, 13, 14):
        python = f"3.{minor}"
        packages = ("torch==2.13.0",) if minor == 11 else ("torch",)
        yield Environment(
            name=f"python{python}", group="Python", component="CPython", version=python, python=python,
            packages=packages,
        )  # fmt: skip
    yield Environment(
        name="python3.15", group="Python", component="CPython", version="3.15", python="3.15", packages=(),
        tests=(*ORDER, *NO_BUILD), note="no torch yet; pip refuses conceptloader there (`python_requires`)",
    )  # fmt: skip
    for pages in ("4k", "64k"):
        yield Environment(
            name=f"aarch64-{pages}", group="Python", component=f"CPython for aarch64, pages of {pages[:-1]} KiB",
            version="3.11", packages=(), tests=ARM, arm=True, note="by qemu on x86-64: `make arm`",
        )  # fmt: skip
    yield Environment(
        name="aarch64-torch", group="Python", component="torch for aarch64", package="torch",
        packages=("torch==2.6.0",), tests=("tests/loader/test_loader.py", "tests/loader/test_state.py"), arm=True,
        note="by qemu on x86-64, pages of 64 KiB: `make arm`",
    )  # fmt: skip
    yield Environment(
        name="numba", group="Python", component="numba", package="numba", packages=("torch==2.13.0", "numba==0.68.1"),
        tests=KERNELS, soak=True, note="needed only to build the package",
    )  # fmt: skip
    for name, pins in {
        "numpy1.26": ("numpy==1.26.4", "torch==2.6.0"), "numpy2": ("numpy", "torch==2.13.0"),
    }.items():  # fmt: skip
        yield Environment(name=name, group="Python", component="numpy", package="numpy", packages=pins)
    for torch in ("2.6.0", "2.13.0", ""):
        pin = f"torch=={torch}" if torch else "torch"
        yield Environment(
            name=f"torch{torch or '-newest'}", group="Python", component="torch", package="torch", packages=(pin,)
        )
    extra = ("six", "regex", "pydantic")  # what the training of core_v0.16.1 imports of its extra mlm
    core = ("torch==2.13.0", "triton", "psutil", "einops", "datasets", "megatron-core==0.16.1", *extra)
    for tag in ("core_v0.16.1", "core_v0.17.1", "core_v0.18.2", "core_v0.19.0", "main", "dev"):
        yield Environment(
            name=f"megatron-{tag}", group="Megatron-LM", component="Megatron-LM", version=tag, packages=core,
            tests=MEGATRON, checkout=f"megatron-{tag}", variable="MEGATRON_SRC",
        )  # fmt: skip
    yield Environment(
        name="megatron-core-0.16.1", group="Megatron-LM", component="megatron-core", package="megatron-core",
        packages=(*core, "nanotron==0.4"),
        tests=("tests/megatron/test_train_wheel.py", "tests/megatron/test_iterators.py"),
    )  # fmt: skip
    yield Environment(
        name="megatron-core-0.19.2", group="Megatron-LM", component="megatron-core", package="megatron-core",
        python="3.12", packages=("torch==2.13.0", "psutil", "einops", "megatron-core==0.19.2", "triton"),
        tests=("tests/megatron/test_iterators.py",),
        note="needs Python 3.12, and imports triton: with a CPU build of torch, `pip install triton`",
    )  # fmt: skip
    yield Environment(
        name="nanotron-0.4", group="nanotron", component="nanotron", package="nanotron",
        packages=("torch==2.13.0", "nanotron==0.4"), tests=("tests/nanotron/test_wheel.py",),
    )  # fmt: skip
    yield Environment(
        name="nanotron-main", group="nanotron", component="nanotron", version="main (2411b022)",
        packages=(
            "torch==2.13.0", "datasets", "transformers", "datatrove==0.10.1", "dacite", "einops", "numba", "psutil",
        ),
        checkout="nanotron", variable="NANOTRON_SRC", importable="src",
        tests=("tests/nanotron/test_yaml.py", "tests/nanotron/test_run_train.py", "-k", "yaml or one_rank_instead"),
    )  # fmt: skip
    trainers = ("torch==2.13.0", "lightning==2.6.6", "accelerate==1.15.0", "transformers==5.23.0")
    for key, component, package in (
        ("lightning", "Lightning", "lightning"),
        ("pytorch_lightning", "Lightning, as pytorch_lightning", "pytorch-lightning"),
        ("transformers", "Hugging Face Trainer", "transformers"),
        ("accelerate", "Accelerate", "accelerate"),
    ):
        yield Environment(
            name=key, group="Trainers", component=component, package=package, packages=trainers,
            tests=(MATRIX, "-k", "lightning and not pytorch" if key == "lightning" else key),
        )  # fmt: skip
    yield Environment(
        name="fabric", group="Trainers", component="Lightning Fabric", package="lightning", packages=trainers,
        tests=("tests/trainers/test_fabric.py",),
    )  # fmt: skip
    yield Environment(
        name="trl", group="Trainers", component="TRL's SFTTrainer", package="trl",
        packages=("torch==2.13.0", "trl==1.16.0", "transformers==5.23.0", "peft==0.21.2"),
        tests=("tests/trainers/test_sft.py", "tests/entries/test_entries.py", "-k", "test_sft or TRL"),
    )  # fmt: skip
    yield Environment(
        name="moves", group="Trainers", component="a run that moves through Lightning, Trainer and Accelerate",
        package="transformers", packages=trainers, tests=("tests/trainers/test_moves.py",),
    )  # fmt: skip
    yield Environment(
        name="grain", group="Trainers", component="grain, with JAX", package="grain",
        packages=("torch==2.13.0", "grain==0.2.18", "jax==0.10.2"),
        tests=("tests/trainers/test_grain.py", "tests/docs/test_code_blocks.py", "-k", "grain or jax"),
    )  # fmt: skip
    yield Environment(
        name="olmo-core", group="Trainers", component="OLMo-core", package="ai2-olmo-core",
        packages=("torch==2.13.0", "ai2-olmo-core==3.0.0"),
        tests=(
            MATRIX, "tests/trainers/test_olmo.py", "tests/trainers/test_moves.py", "tests/docs/test_code_blocks.py",
            "-k", "olmo or moves",
        ),
    )  # fmt: skip
    yield Environment(
        name="torchtitan-0.3.0", group="Trainers", component="torchtitan", package="torchtitan",
        packages=("torch==2.13.0", "torchtitan==0.3.0"),
        tests=(MATRIX, "tests/trainers/test_moves.py", "-k", "torchtitan or moves"),
    )  # fmt: skip
    yield Environment(
        name="torchtitan-main", group="Trainers", component="torchtitan", version="main (b5bcd76c)",
        packages=(
            "torch==2.13.0", "grain==0.2.18", "torch_checkpointing==0.1.1", "datasets==4.7.0", "spmd_types==0.2.3",
            "tyro", "tensorboard", "einops", "pillow",
        ),
        checkout="torchtitan", variable="CONCEPTLOADER_TORCHTITAN", importable="",
        tests=(MATRIX, "tests/trainers/test_moves.py", "-k", "torchtitan or moves"),
    )  # fmt: skip
