"""What all ranks of a run have to agree on."""

from typing import Any

from conceptloader.base.version import __version__
from conceptloader.blend.blend import Blend

# What may differ between ranks: where files lie, and how they are read.
_LOCAL = ("loader", "allowed_roots", "megatron_cache", "quarantine", "exclude", "continue_from")


def start_facts(blend: Blend, **more: Any) -> dict[str, Any]:
    """What has to be equal on all ranks that read `blend`: the release, the order, and all that shapes a batch.

    Paths may differ, as copies on the nodes' own disks do: the order has fingerprints of what is there, also of what
    is quarantined and excluded. more: JSON values of the trainer, such as the global batch size.
    """
    config = blend.config.with_paths(lambda path, key: "-").to_dict()
    config = {key: value for key, value in config.items() if key not in _LOCAL}
    return {"conceptloader": __version__, "order": blend.spec.to_dict(), "configuration": config, **more}
