"""What Megatron's arguments say of steps: batch sizes, and where a run resumes."""

from argparse import Namespace

from megatron.core import parallel_state

from conceptloader.errors import ConfigError
from conceptloader.order.partition import Partition, Plan
from conceptloader.order.schedule import BatchSchedule

UNITS = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def plan_of(args: Namespace, count_start: int) -> Plan:
    """Steps, micro batches and ranks from the step on that is trained now, or next.

    count_start: samples of the run before the first one that Megatron counts.
    """
    # args.data_parallel_size leaves out the ranks of --tensor-parallel-num-weight-shards, which read samples, too.
    dp_size = parallel_state.get_data_parallel_world_size()
    partition = Partition(micro_batch_size=args.micro_batch_size, dp_size=dp_size, scheme="contiguous")
    iteration = getattr(args, "curr_iteration", args.iteration)
    schedule = batch_schedule(args, partition.group).at(iteration, args.consumed_train_samples).after(count_start)
    return Plan(partition=partition, schedule=schedule)


def batch_schedule(args: Namespace, group: int) -> BatchSchedule:
    """Global batch size by consumed samples: --step-batch-size-schedule, --rampup-batch-size, or constant.

    group: samples of a micro batch on all data-parallel ranks.
    From core 0.18 on Megatron takes --rampup-batch-size and ignores it; so do we.
    """
    steps = getattr(args, "step_batch_size_schedule", None)
    if steps:
        return BatchSchedule(step_rule(steps, args.seq_length))
    ramp = args.rampup_batch_size
    if ramp and not hasattr(args, "step_batch_size_schedule"):
        start, increment, samples = (int(word) for word in ramp)
        schedule = BatchSchedule.ramp_up(start, increment, samples, args.global_batch_size)
    else:
        schedule = BatchSchedule.constant(args.global_batch_size)
    if args.decrease_batch_size_if_needed:
        schedule = schedule.rounded_down(group)
    return schedule


def step_rule(text: str, seq_length: int) -> tuple[tuple[int, int], ...]:
    """(from_consumed, batch size) pairs of "0:768 250B:1536": thresholds in tokens, K, M, B, T for powers of 1000."""

    def number(word: str) -> int:
        unit = UNITS.get(word[-1:].upper())
        try:
            return int(float(word[:-1]) * unit) if unit else int(float(word))
        except ValueError as error:
            raise ConfigError(
                f"--step-batch-size-schedule {text}",
                repr(word),
                "a number",
                f"correct {word!r} in --step-batch-size-schedule",
            ) from error

    pairs = (entry.partition(":") for entry in text.replace(",", " ").split())
    return tuple(sorted((number(threshold) // seq_length, number(size)) for threshold, _, size in pairs))


def last_sample(args: Namespace, plan: Plan, count_start: int, size: int | None) -> int | None:
    """Samples of the run when Megatron's training ends, which is at a step; None where it reads nothing.

    size: of the training data, as Megatron says: as if batches had always had the size that they have now.
    """
    if not size:
        return None
    if args.phase_transition_iterations or not args.train_iters:
        return first_sample(args) + count_start + size
    return plan.schedule.consumed_at(max(args.train_iters, plan.schedule.step))


def first_sample(args: Namespace) -> int:
    """The sample of the run at which Megatron's current phase begins: its count of samples restarts there.

    With --phase-transition-iterations Megatron computes positions from iterations times the batch size.

    Raises ConfigError if the batch size has not always been the same, which it does not notice.
    """
    if not args.phase_transition_iterations:
        return 0
    transition = max(step for step in (0, *args.phase_transition_iterations) if step <= args.iteration)
    counted = args.iteration * args.global_batch_size
    if counted != args.consumed_train_samples:
        raise ConfigError(
            "--phase-transition-iterations",
            f"{args.consumed_train_samples} consumed samples at iteration {args.iteration}",
            f"{counted}: Megatron would not resume where the checkpoint ended",
            "omit --phase-transition-iterations, and use `phases` in the configuration",
        )
    return int(transition * args.global_batch_size)
