"""`replay: DIRECTORY`: the weights of another run, by its log, as phases of this one."""

from conceptloader.blend.schema import Config
from conceptloader.errors import ConfigError
from conceptloader.order.phases import Phase
from conceptloader.order.progress.runlog import RunLog


def replayed_phases(config: Config) -> tuple[Phase, ...]:
    """The phases of the run that a configuration replays, the first at sample 0; () if it replays none.

    Raises:
        ConfigError: There is no run, or it has other datasets than here.
        FormatError: The log is corrupt, or lacks a phase.
        ReadError: The log cannot be read.
    """
    if config.replay is None:
        return ()
    log, where = RunLog(config.replay), "replay"
    if not log.starts:
        raise ConfigError(
            where,
            f"no run in {log.path}",
            "the directory of a run's checkpoints",
            "set replay to the directory of a run's checkpoints",
        )
    found = [one.phase for one in log.phases(log.spec_at(log.starts[-1]))]
    # A member of the order is named "dataset@seq_len" after a change of the sequence length.
    phases = tuple(
        Phase(start=one.start, weights={name.partition("@")[0]: weight for name, weight in one.weights.items()})
        for one in found
    )
    drawn = sorted({name for phase in phases for name in phase.weights})
    if drawn != config.names:
        raise ConfigError(
            where,
            f"a run of the datasets {', '.join(drawn)} in {log.path}",
            f"a run of the datasets of this configuration: {', '.join(config.names)}",
            "rename the datasets as in that run, or set replay to another run",
        )
    return phases
