"""What nanotron itself needs to run on CPU, and to step around bugs of its own that no loader can mend."""

import importlib.util
import inspect
import os
import sys
import types

import torch


def install():
    """Import nanotron (the checkout's or the wheel's) and patch it."""
    if not os.environ.get("NANOTRON_SRC"):
        import_wheel()
    if importlib.util.find_spec("nanotron.data") is None:  # the 0.4 wheel
        import nanotron.trainer

        # asserts a CUDA device; training uses flash_attn's rotary embedding instead
        nanotron.trainer.RotaryEmbedding.init_rotary_embeddings = lambda self: None
        return
    _datatrove()
    _blending()
    import nanotron.scaling.parametrization as parametrization
    import nanotron.serialize.optimizer as optimizer
    import nanotron.trainer as trainer

    optimizer.state_dict_to_device = trainer.state_dict_to_device = lambda state, device: None  # asserts a CUDA device
    _parametrizator(parametrization.StandardParametrizator)
    _step_logs(trainer.DistributedTrainer)


def import_wheel():
    """nanotron 0.4 from PyPI: its logging and its config import each other. A placeholder breaks the circle."""
    if importlib.util.find_spec("nanotron") is None or "nanotron.logging" in sys.modules:
        return
    package, module = types.ModuleType("nanotron.config"), types.ModuleType("nanotron.config.config")
    package.LoggingArgs = module.LoggingArgs = object
    package.__path__, package.config = [], module
    sys.modules["nanotron.config"], sys.modules["nanotron.config.config"] = package, module
    try:
        import nanotron.logging  # noqa: F401
    finally:
        del sys.modules["nanotron.config"], sys.modules["nanotron.config.config"]
    if hasattr(sys.modules["nanotron"], "config"):
        del sys.modules["nanotron"].config


def _datatrove():
    """No released datatrove has the folder dataset that nanotron main calls: forward what the released one knows."""
    import datatrove.utils.dataset as dataset

    real = dataset.DatatroveFolderDataset
    known = inspect.signature(real.__init__).parameters
    if "matched_files" in known:
        return

    class FolderDataset(real):
        def __init__(self, folder_path, seq_len, eos_token_id=None, **kwargs):
            kwargs = {key: value for key, value in kwargs.items() if key in known}
            super().__init__(folder_path, seq_len, positions_from_eos_token_id=eos_token_id, **kwargs)
            self._folder_path = folder_path

        @property
        def folder_path(self):
            return self._folder_path

    dataset.DatatroveFolderDataset = FolderDataset


def _blending():
    """In place of a module that the stock loader compiles in the checkout, for which the system's Python has to have
    pybind11: the dataset that lags most behind its weight is next."""
    import nanotron.data.nemo_dataset as package
    import nanotron.data.nemo_dataset.dataset_utils as utils

    def build_blending_indices(datasets, samples, counts, weights, number, size, verbose):
        for k in range(size):
            datasets[k] = (weights * max(k, 1) - counts).argmax()
            samples[k] = counts[datasets[k]]
            counts[datasets[k]] += 1

    helpers = types.ModuleType(f"{package.__name__}.helpers")
    helpers.build_blending_indices = build_blending_indices
    sys.modules[helpers.__name__] = package.helpers = helpers
    utils.compile_helper = lambda: None


def _parametrizator(cls):
    """llama.py:1095 passes config.model where the class reads config.model.init_method and config.parallelism."""
    real = cls.__init__

    def init(self, config):
        if not hasattr(config, "model"):
            config = types.SimpleNamespace(model=config, parallelism=types.SimpleNamespace(tp=1))
        real(self, config)

    cls.__init__ = init


def _step_logs(cls):
    """trainer.py:781 calls loss_avg.item() on ranks that have no loss."""
    real = cls.train_step_logs

    def train_step_logs(self, outputs, loss_avg, z_loss_avg, tbi_logs):
        return real(self, outputs, torch.tensor(float("nan")) if loss_avg is None else loss_avg, z_loss_avg, tbi_logs)

    cls.train_step_logs = train_step_logs
