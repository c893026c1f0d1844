"""pretrain_gpt.py of a checkout with the forward_step of docs/distillation.md, taken from the page (DISTILLATION)."""

import os
import re
from pathlib import Path

import pretrain_gpt as stock
from megatron.core import parallel_state
from megatron.core.utils import get_attr_wrapped_model
from own_pretrain import main

from tests.columns.plain_loss import compare, plain_losses

page = Path(os.environ["DISTILLATION"]).read_text("utf-8")
blocks = re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def get_batch(data_iterator, vp_stage):
    """As releases return it; main has keys in alphabetical order."""
    found = stock.get_batch(data_iterator, vp_stage)
    if not hasattr(stock, "BATCH_KEYS"):
        return (*found, None)[:6]
    batch = dict(zip(stock.BATCH_KEYS, found, strict=True))
    return *(batch[name] for name in ("tokens", "labels", "loss_mask", "attention_mask", "position_ids")), None


# What the page leaves to the script.
names = {"get_batch": get_batch, "loss_func": stock.loss_func}
names["get_attr_wrapped_model"] = get_attr_wrapped_model
for block in blocks:
    if "nanotron" not in block and "transformers" not in block:
        exec(compile(block, "docs/distillation.md", "exec"), names)
of_page = names["kd_losses"]


def kd_losses(logits, labels, columns):
    """As of the page, and compared with those of the whole vocabulary in one process."""
    values = {name: columns[name] for name in ("teacher_ids", "teacher_logprobs")}
    group = parallel_state.get_tensor_model_parallel_group()
    compare(lambda part: of_page(part, labels, columns), lambda all: plain_losses(all, labels, **values), logits, group)
    return of_page(logits, labels, columns)


names["kd_losses"] = kd_losses


if __name__ == "__main__":
    main(names["forward_step"])
