"""A pretraining script as a user might write it, on the parts of a checkout's pretrain_gpt.py.

SET_WEIGHTS=N: all weight on the dataset code, set in step N (from 0). METRICS=FILE: those of every step, to FILE.RANK.
LEARNS=1: losses of each token.
FAIL_IN=N: an exception in step N, once, after which the training starts anew in the same process: by the wrapper of
nvidia-resiliency-ext with Megatron's --inprocess-restart, else as that does it.
It is started by the launcher, or calls install() itself, with the same options; its forward_step asks for the concept
tensors.
"""

import json
import os
import sys
from dataclasses import asdict
from functools import partial

import pretrain_gpt as stock
import torch
from megatron.core.enums import ModelType
from megatron.core.utils import get_attr_wrapped_model
from megatron.training import get_args, pretrain

import conceptloader as cl
from conceptloader.integrations import megatron_lm

SET_WEIGHTS = os.environ.get("SET_WEIGHTS")
FAIL_IN = os.environ.get("FAIL_IN")
LEARNS = "LEARNS" in os.environ
if "METRICS" in os.environ:
    METRICS = open(f"{os.environ['METRICS']}.{os.environ['RANK']}", "a", buffering=1)  # noqa: SIM115 - until the end
    cl.metrics.on_step(lambda metrics: METRICS.write(json.dumps(asdict(metrics)) + "\n"))


def observed(loss_func, concepts, losses):
    megatron_lm.add_losses(losses, {**concepts, "loss_mask": loss_func.args[0]})  # of each token, with the loss mask
    return loss_func(losses)


def forward_step(data_iterator, model):
    global SET_WEIGHTS, FAIL_IN
    if str(get_args().curr_iteration) == FAIL_IN:
        FAIL_IN = None
        raise RuntimeError("a failing step")
    if str(get_args().curr_iteration) == SET_WEIGHTS:
        assert megatron_lm.set_weights({"code": 1}) == (int(SET_WEIGHTS) + 1) * get_args().global_batch_size
        SET_WEIGHTS = None
    vp_stage = get_attr_wrapped_model(model, "vp_stage")
    result = stock.forward_step(data_iterator, model)
    concepts = megatron_lm.concepts(data_iterator, vp_stage)
    assert concepts is None or "topic_ids" not in concepts or concepts["topic_ids"].dim() == 3
    return result if concepts is None or not LEARNS else (result[0], partial(observed, result[1], concepts))


def main(forward_step=forward_step):
    provider = stock.train_valid_test_datasets_provider
    provider.is_distributed = True
    kind, run, options = ModelType.encoder_or_decoder, pretrain, {"get_embedding_ranks": stock.get_embedding_ranks}
    if "--inprocess-restart" in sys.argv:
        from megatron.training.inprocess_restart import maybe_wrap_for_inprocess_restart

        run, options["store"] = maybe_wrap_for_inprocess_restart(pretrain)
        assert run is not pretrain
    if hasattr(stock, "parse_and_validate_args"):  # main
        args = stock.parse_and_validate_args(args_defaults={"tokenizer_type": "GPT2BPETokenizer"})
        model = stock.gpt_config_from_args(args)
        config = stock.pretrain_cfg_container_from_args(args, model)
        run(config, provider, kind, forward_step, **options)
    else:
        builder = partial(stock.model_provider, stock.gpt_builder)
        run(provider, builder, kind, forward_step, **options)


def with_restart():
    """What inprocess_restart does between two calls of pretrain(): abort communication, destroy Megatron's state."""
    from megatron.training import training

    try:
        main()
    except RuntimeError as error:
        if str(error) != "a failing step":
            raise
        torch.distributed.destroy_process_group()
        training.destroy_global_state()
        main()


if __name__ == "__main__":
    megatron_lm.install()
    with_restart()
