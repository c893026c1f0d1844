"""What all ranks of a run have to agree on."""

from typing import Any

from conceptloader.base.version import __version__
from conceptloader.blend.blend import Blend
from conceptloader.mixing.kinds import PATHS

# What may differ between ranks: where files lie, and how they are read.
_LOCAL = ("loader", "allowed_roots", "exclude", "continue_from")


def start_facts(blend: Blend, **more: Any) -> dict[str, Any]:
    """What has to be equal on all ranks that read `blend`: the release, the order, and all that shapes a batch.

    Paths may differ, as copies on the nodes' own disks do: the order has fingerprints of what is there, also of what
    is excluded. more: JSON values of the trainer, such as the global batch size.
    """
    config: dict[str, Any] = {key: value for key, value in blend.config.to_dict().items() if key not in _LOCAL}
    for dataset in config["datasets"].values():
        del dataset["path"]
    if blend.config.taken_over:
        config["order"] = "megatron"
    if "mixing" in config:
        config["mixing"] = {kind: "" if kind in PATHS else options for kind, options in config["mixing"].items()}
    return {"conceptloader": __version__, "order": blend.spec.to_dict(), "configuration": config, **more}
