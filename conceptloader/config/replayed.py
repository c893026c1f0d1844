"""`replay: DIRECTORY`: the weights of another run, by its log, as segments of this one."""

from conceptloader.config.schema import Config
from conceptloader.errors import ConfigError, FormatError
from conceptloader.order.progress.runlog import EARLIER, RunLog
from conceptloader.order.segments import Segment, in_force


def replayed_segments(config: Config) -> tuple[Segment, ...]:
    """The weights of the run that a configuration replays, the first at sample 0; () if it replays none.

    Raises:
        ConfigError: There is no run, or it has other datasets than here.
        FormatError: The log is corrupt, or lacks some of its weights.
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
    spec = log.spec_at(log.starts[-1])
    if spec.forgotten:
        raise FormatError(log.path, f"weights that were set live before sample {spec.begins} are missing", fix=EARLIER)
    # A member of the order is named "dataset@seq_len" after a change of the sequence length.
    segments = {
        one.at: Segment(at=one.at, weights={name.partition("@")[0]: weight for name, weight in one.weights.items()})
        for one in in_force(spec.segments)
        if one.weights
    }
    drawn = sorted({name for one in segments.values() for name in one.weights})
    if drawn != config.names:
        raise ConfigError(
            where,
            f"a run of the datasets {', '.join(drawn)} in {log.path}",
            f"a run of the datasets of this configuration: {', '.join(config.names)}",
            "rename the datasets as in that run, or set replay to another run",
        )
    return tuple(segments.values())
