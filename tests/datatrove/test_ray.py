"""The same build by Ray on this machine."""

import pytest

import conceptloader as cl
from tests.datatrove import steps
from tests.datatrove.test_build import content
from tests.scale import scaled


@pytest.mark.soak
@pytest.mark.skipif(not scaled(0, 1), reason="as by the local executor; part of make soak")
def test_ray_gives_the_same_bytes(tmp_path):
    import ray
    from datatrove.executor import RayPipelineExecutor

    from conceptloader.integrations.datatrove_lib import ConceptBuild, ConceptBuildFinish

    corpus = steps.write_corpus(tmp_path / "corpus")
    cl.build(corpus, tmp_path / "own", **steps.OPTIONS)
    out, logs = tmp_path / "ray" / "ds", tmp_path / "ray" / "logs"
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        first = RayPipelineExecutor(
            [ConceptBuild(corpus, out, **steps.OPTIONS)], tasks=steps.TASKS, workers=2, logging_dir=str(logs / "build"),
            mem_per_cpu_gb=0.2,
        )  # fmt: skip
        last = RayPipelineExecutor(
            [ConceptBuildFinish(corpus, out, **steps.OPTIONS)], tasks=1, logging_dir=str(logs / "finish"),
            depends=first, mem_per_cpu_gb=0.2,
        )  # fmt: skip
        last.run()
    finally:
        ray.shutdown()
    assert content(out) == content(tmp_path / "own")
