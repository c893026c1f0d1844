"""conceptloader for nanotron.

With nanotron main and its run_train.py, started by conceptloader.launch, or with two lines at the top of a script:

    from conceptloader.integrations import nanotron_lm
    nanotron_lm.install()

a data stage may say `dataset: {type: conceptloader, ...}`. With any other version, build_dataloader() makes the loader
for a script of one's own. See docs/nanotron.md.

Open own_script.py first: the loader without the launcher.
"""

from typing import Any

__all__ = ["build_dataloader", "install", "save_state"]


def install() -> None:
    """Add the dataset type to nanotron in this process. To be called before DistributedTrainer is made.

    Raises ConfigError if nanotron has no longer what this adapter hooks into; nothing is copied from it.
    """
    from . import logs, patches

    logs.forward()
    patches.install()


def __getattr__(name: str) -> Any:
    if name in ("build_dataloader", "save_state"):
        from . import own_script

        return getattr(own_script, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
