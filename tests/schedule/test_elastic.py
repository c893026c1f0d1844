"""Random schedules: any world size, batch ramp, phases, members that join and leave, skips, sequence lengths, kills."""

import logging

import pytest

from tests.conftest import Tally
from tests.scale import scaled
from tests.schedule.simulation import Run, check, simulate

CHUNKS = 10


@pytest.mark.soak
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_sample_once_as_planned(chunk: int, tally: Tally, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)  # each new sequence length is a warning
    number = scaled(150, 10_000) // CHUNKS
    samples = restarts = 0
    for seed in range(chunk * number, (chunk + 1) * number):
        try:
            run = simulate(seed)
            check(run)
        except Exception as error:
            raise AssertionError(f"schedule {seed}: {error}") from error
        samples += run.consumed
        restarts += len(run.starts)
    tally("elastic schedules", {"schedules": number, "starts": restarts, "samples": samples})


def test_the_schedules_cover_what_can_happen() -> None:
    runs: list[Run] = [simulate(seed) for seed in range(80)]
    specs = [run.spec for run in runs if run.spec is not None]
    assert any(sum(bool(one.weights) for one in spec.segments) > 3 for spec in specs)
    assert any("@" in name for spec in specs for name in spec.members), "a new sequence length"
    assert any(sum(bool(one.skip) for one in spec.segments) > 1 for spec in specs)
    assert any(member.windows == 1 for spec in specs for member in spec.members.values())
    assert any(a.step >= b.step for run in runs for a, b in zip(run.starts, run.starts[1:], strict=False)), (
        "rolled back"
    )
    assert {start.dp_size for run in runs for start in run.starts} >= {1, 3, 16}
