"""Targets that go on from a checkpoint: whatever it holds, it is taken up or refused in our words."""

import json
from tempfile import TemporaryDirectory

import conceptloader as cl
from conceptloader.integrations.nanotron_lm.state import NAME, State
from conceptloader.order.progress.runlog import RunLog
from conceptloader.order.progress.state import OrderState, sealed


class States:
    """Loaders and samplers over a small dataset, and the states that they save."""

    def __init__(self, dataset):
        self._config = {"seq_len": 4, "datasets": {"a": {"path": str(dataset)}}, "skip": [{"at": 3, "count": 2}]}
        self._blend = cl.open_blend(cl.load_config(self._config))

    def loader(self):
        return cl.make_dataloader(self._blend, micro_batch_size=2)

    def sampler(self):
        return cl.EpochSampler(25)

    def load_loader(self, state):
        loader = self.loader()
        loader.load_state_dict(state)
        self._blend.order.sample(min(loader.consumed_samples, 10**15))

    def load_sampler(self, state):
        sampler = self.sampler()
        sampler.load_state_dict(state)
        assert len(list(sampler)) == len(sampler)

    def load_megatron(self, state):
        self._blend.resume(OrderState.read(state, "checkpoint").spec, 4)

    def sound(self):
        loader = self.loader()
        with loader:
            next(iter(loader))
        spec = self._blend.spec
        stage = {"data_stage": "one", "data_stage_start": 0}
        nanotron = sealed(OrderState(spec=spec, consumed=4, more=stage).fields())
        states = {
            "loader_state": loader.state_dict(),
            "sampler_state": self.sampler().state_dict(),
            "nanotron_state": nanotron,
            "megatron_state": OrderState(spec=spec, consumed=4).leaf(),
        }
        # The leaf's content, where a mutation meets a field.
        plain = sealed(OrderState(spec=spec, consumed=4, more={"step_start": 4}).fields())
        found = {name: [json.dumps(state).encode()] for name, state in states.items()}
        for name in ("loader_state", "megatron_state"):
            found[name].append(json.dumps(plain).encode())
        return found | {name: [data] for name, data in self._kept().items()}

    def _kept(self):
        """What a run leaves next to its checkpoints, and its order spec."""
        with TemporaryDirectory() as folder, self.loader() as loader:
            loader.log_start(folder, 0)
            log = RunLog(folder)
            kept = {"run_log": log.path.read_bytes()}
        return kept | {"order_spec": json.dumps(self._blend.spec.to_dict()).encode()}

    def targets(self):
        return {
            "loader_state": parsed(self.load_loader),
            "sampler_state": parsed(self.load_sampler),
            "megatron_state": parsed(self.load_megatron),
            "nanotron_state": nanotron_state,
        }


def parsed(take):
    """A target for JSON objects: torch.load and the frameworks give dicts."""

    def run(_directory, data):
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            return
        if isinstance(value, dict):
            take(value)

    return run


def nanotron_state(directory, data):
    (directory / NAME).write_bytes(data)
    State.read(directory)
