"""The same build by Ray on this machine."""

from pathlib import Path

import pytest

from tests.datatrove import steps
from tests.datatrove.test_writer import content
from tests.scale import scaled


@pytest.mark.soak
@pytest.mark.skipif(not scaled(0, 1), reason="as by the local executor; part of make soak")
def test_ray_gives_the_same_bytes(tmp_path: Path) -> None:
    import ray
    from datatrove.executor import RayPipelineExecutor

    from conceptloader.integrations.datatrove_lib import ConceptStreamFinalize

    expected = steps.build(tmp_path / "local", workers=1)
    out = tmp_path / "ray" / "ds"
    logs = tmp_path / "ray" / "logs"
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        first = RayPipelineExecutor(
            [steps.Reader(), steps.writer(out)], tasks=steps.TASKS, workers=2, logging_dir=str(logs / "write"),
            mem_per_cpu_gb=0.2,
        )  # fmt: skip
        last = RayPipelineExecutor(
            [ConceptStreamFinalize(out)], tasks=1, logging_dir=str(logs / "finalize"), depends=first, mem_per_cpu_gb=0.2
        )
        last.run()
    finally:
        ray.shutdown()
    assert content(out) == content(expected)
