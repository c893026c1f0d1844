"""Train a small GPT with a concept head, with megatron-core alone: tensor, pipeline, context and data parallel.

One process on a CPU (the tests' harness stands in for CUDA), 8 GPUs, 1024 GPUs, with DATA="--config data.yaml --save
checkpoints":

    torchrun --nproc_per_node 1 tests/megatron/harness/run.py examples/megatron/train.py $DATA
    torchrun --nproc_per_node 8 examples/megatron/train.py $DATA --tp 2 --pp 2 --global-batch-size 256
    torchrun --nnodes 128 --nproc_per_node 8 --rdzv-backend c10d --rdzv-endpoint $HEAD:29500 \\
        examples/megatron/train.py $DATA --tp 8 --pp 8 --layers 8 --micro-batch-size 1 --global-batch-size 2048

Every data-parallel size trains on the same samples in the same step, and a run may be resumed with other sizes.
"""

import argparse
import json
import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from concept_gpt import ConceptGPT
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.datasets.gpt_dataset import GPTDatasetConfig
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.num_microbatches_calculator import get_num_microbatches, init_num_microbatches_calculator
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig

from conceptloader.integrations import megatron_lm

SEQ_LENGTH, VOCAB, EOD = 64, 256, 255


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, required=True, help="YAML of the data")
    for name, what in (("tp", "tensor"), ("pp", "pipeline"), ("cp", "context")):
        parser.add_argument(f"--{name}", type=int, default=1, help=f"{what} parallel size")
    parser.add_argument("--chunks", type=int, help="model chunks per pipeline rank (interleaved schedule)")
    sizes = {"steps": 8, "global-batch-size": 8, "micro-batch-size": 2, "layers": 2, "num-workers": 0, "save-every": 4}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    for name in ("recompute", "no-attention-mask"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--save", type=Path, required=True, help="checkpoints; a run goes on from the newest")
    return parser.parse_args()


def start(args):
    """Process groups, seeds, and the division of a global batch into micro batches."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl")
    parallel_state.initialize_model_parallel(
        args.tp, args.pp, virtual_pipeline_model_parallel_size=args.chunks, context_parallel_size=args.cp
    )
    torch.manual_seed(1)
    model_parallel_cuda_manual_seed(1)
    sizes = args.global_batch_size, args.micro_batch_size, parallel_state.get_data_parallel_world_size()
    init_num_microbatches_calculator(torch.distributed.get_rank(), None, *sizes)


def build_model(args):
    """One model chunk per virtual stage, wrapped for data parallelism."""
    config = TransformerConfig(
        num_layers=args.layers,
        hidden_size=64,
        num_attention_heads=8,
        tensor_model_parallel_size=args.tp,
        pipeline_model_parallel_size=args.pp,
        virtual_pipeline_model_parallel_size=args.chunks,
        # Two ranks of an interleaved pipeline are each other's next and previous one: batched sends would be mixed up.
        overlap_p2p_comm=args.chunks is not None,
        batch_p2p_comm=args.chunks is None,
        context_parallel_size=args.cp,
        pipeline_dtype=torch.float32,
        use_cpu_initialization=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        recompute_granularity="full" if args.recompute else None,
        recompute_method="uniform",
        recompute_num_layers=1,
        finalize_model_grads_func=finalize_model_grads,
        calculate_per_token_loss=True,
    )
    chunks = []
    for vp_stage in range(args.chunks or 1):
        where = {"ignore_virtual": args.chunks is None, "vp_stage": vp_stage}
        model = ConceptGPT(
            config,
            get_gpt_layer_local_spec(),
            VOCAB,
            SEQ_LENGTH,
            pre_process=parallel_state.is_pipeline_first_stage(**where),
            post_process=parallel_state.is_pipeline_last_stage(**where),
            position_embedding_type="rope",
            vp_stage=vp_stage if args.chunks else None,
            num_concepts=16,
        )
        chunks.append(DistributedDataParallel(config, DistributedDataParallelConfig(), model.cuda()))
    return chunks


def data_config(args):
    """What a sample holds, in Megatron's words. Neither `blend` nor `split`: the YAML says what is read."""
    tokenizer = SimpleNamespace(vocab_size=VOCAB, eod=EOD, unique_identifiers={"eod": EOD})
    return GPTDatasetConfig(
        random_seed=0,
        sequence_length=SEQ_LENGTH,
        tokenizer=tokenizer,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=True,
        create_attention_mask=not args.no_attention_mask,
    )


def forward_step(data, data_iterator, model):
    """One micro batch through one model chunk. Concept tensors are there on the configured stage, and only there."""
    chunk = model.module
    batch = data.get_batch(data_iterator, chunk.vp_stage)
    output = model(
        batch.get("tokens"),
        batch.get("position_ids"),
        batch.get("attention_mask"),
        labels=batch.get("labels"),
        concepts=batch if "topic_ids" in batch else None,
    )
    return output, partial(token_loss, batch.get("loss_mask"))


def token_loss(loss_mask, losses):
    """Sum of the losses and number of unmasked tokens of this rank; both summed over all ranks for the log.

    Megatron divides the gradients by the tokens of the whole batch: the same however it is cut into micro batches.
    """
    total, tokens = (losses.float() * loss_mask).sum(), loss_mask.sum()
    report = torch.stack((total, tokens)).detach()
    torch.distributed.all_reduce(report, group=parallel_state.get_data_parallel_group(with_context_parallel=True))
    return total, tokens.int(), {"sums": report}


def sharded_state(chunks, optimizer, common, loading):
    """Everything that a checkpoint holds; plain values become its common state."""
    state = {f"model{k}": chunk.module.sharded_state_dict() for k, chunk in enumerate(chunks)}
    return {**state, "optimizer": optimizer.sharded_state_dict(state, is_loading=loading), **common}


def save(args, step, chunks, optimizer, data):
    """Write a checkpoint, and only then its name."""
    folder = args.save / f"step-{step}"
    if torch.distributed.get_rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
    torch.distributed.barrier()
    common = {"step": step, "conceptloader": data.state(step * args.global_batch_size)}
    dist_checkpointing.save(sharded_state(chunks, optimizer, common, loading=False), str(folder))
    if torch.distributed.get_rank() == 0:
        (args.save / "latest.txt").write_text(folder.name)


def main():
    args = arguments()
    start(args)
    latest = args.save / "latest.txt"  # which names the newest complete checkpoint
    checkpoint = args.save / latest.read_text() if latest.exists() else None
    common = dist_checkpointing.load_common_state_dict(str(checkpoint)) if checkpoint else {"step": 0}
    consumed = common["step"] * args.global_batch_size
    # Before anything is read: a configuration that would change the samples behind `consumed` is refused here.
    data = megatron_lm.MegatronData(
        args.config,
        data_config(args),
        [args.steps * args.global_batch_size, 0, 0],
        micro_batch_size=args.micro_batch_size,
        stage="last",
        consumed=consumed,
        saved=common.get("conceptloader"),
    )
    chunks = build_model(args)
    optimizer = get_megatron_optimizer(OptimizerConfig(lr=1e-3, optimizer="adam"), chunks)
    if checkpoint:
        loaded = dist_checkpointing.load(sharded_state(chunks, optimizer, {}, loading=True), str(checkpoint))
        for k, chunk in enumerate(chunks):
            chunk.module.load_state_dict(loaded[f"model{k}"])
        optimizer.load_state_dict(loaded["optimizer"])
    stages = (data.datasets(vp_stage=chunk.module.vp_stage)[0] for chunk in chunks)
    iterators = [data.iterator(stage, num_workers=args.num_workers) for stage in stages]
    train_step = get_forward_backward_func()
    for step in range(common["step"], args.steps):
        for chunk in chunks:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        reports = train_step(
            forward_step_func=partial(forward_step, data),
            data_iterator=iterators if len(chunks) > 1 else iterators[0],
            model=chunks if len(chunks) > 1 else chunks[0],
            num_microbatches=get_num_microbatches(),
            seq_length=SEQ_LENGTH // args.cp,
            micro_batch_size=args.micro_batch_size,
            forward_only=False,
        )
        optimizer.step()
        if reports and parallel_state.get_data_parallel_rank() == parallel_state.get_tensor_model_parallel_rank() == 0:
            total, tokens = sum(report["sums"] for report in reports).tolist()
            print(json.dumps({"step": step + 1, "loss": total / tokens}), flush=True)
        if (step + 1) % args.save_every == 0:
            save(args, step + 1, chunks, optimizer, data)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
