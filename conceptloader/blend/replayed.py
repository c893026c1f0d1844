"""`replay: DIRECTORY`: the weights of another run, by its log, as phases of this one."""

from dataclasses import replace

from conceptloader.blend.schema import Config
from conceptloader.errors import ConfigError
from conceptloader.order.phases import Phase
from conceptloader.order.progress.runlog import RunLog
from conceptloader.order.progress.spec import OrderSpec, link


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


def as_set_live(current: OrderSpec, saved: OrderSpec) -> OrderSpec:
    """`current` without the phases that `saved` has as weights set live, if all phases so far are the same.

    Release 0.2.0 set the weights of a run that it replayed while that lived; now they are phases of the configuration.
    """
    if current.live or (saved.origin is None and not saved.live):
        return current
    planned = {phase.start for phase in saved.phases} - set(saved.live)
    number = len(saved.deciding) + (0 if saved.origin is None else saved.origin.number)
    chain = ""
    for phase in current.phases[:number]:
        chain = link(chain, phase, phase.start not in planned)
    if chain != saved.chain:
        return current
    kept = [phase for k, phase in enumerate(current.phases) if k >= number or phase.start in planned]
    return replace(current, phases=tuple(kept))
