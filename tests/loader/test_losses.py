"""token_mean and TokenMean, where labels do not count, and over ranks and batches of any size."""

import math
import multiprocessing as mp

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

import conceptloader as cl
from conceptloader.testing import random_documents, write_dataset


def losses_of(logits, batch):
    return cross_entropy(logits.transpose(1, 2), batch["labels"], reduction="none")


def test_a_batch_without_labels_has_loss_0_and_gradients_of_0():
    """Also where the losses there are no numbers."""
    logits, labels = torch.randn(2, 4, 5, requires_grad=True), torch.zeros(2, 4, dtype=torch.int64)
    for total in (None, 0, 3, torch.tensor(0)):
        losses = losses_of(logits, {"labels": labels}) + torch.tensor([math.nan, math.inf, 0, 0])
        loss = cl.token_mean(losses, {"loss_mask": torch.zeros(2, 4)}, total)
        assert loss == 0
        assert (torch.autograd.grad(loss, logits)[0] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.int32])
def test_the_mean_is_over_labels_that_count(dtype):
    losses, mask = torch.tensor([[1.0, math.nan], [5.0, 9.0]]), torch.tensor([[1, 0], [1, 0]]).to(dtype)
    assert cl.token_mean(losses, {"loss_mask": mask}) == 3
    assert cl.token_mean(losses, {"loss_mask": mask}, total=1.5) == 4
    assert cl.token_mean(losses.bfloat16(), {"loss_mask": mask.float()}).dtype == torch.float32


@pytest.mark.parametrize("batch", [{}, {"loss_mask": torch.ones(2, 3)}, {"loss_mask": torch.ones(6)}])
@pytest.mark.parametrize("losses", [torch.ones(()), torch.ones(2, 1)])
def test_means_and_other_shapes_are_rejected(losses, batch):
    for call in (cl.token_mean, cl.TokenMean().add):
        with pytest.raises(cl.errors.ConfigError, match="reduction"):
            call(losses, batch)


def evaluate(rank, ranks, micro, samples, config, folder):
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    logits = torch.randn(300, 300, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mean = cl.TokenMean()
    options = {"dp_rank": rank, "dp_size": ranks, "micro_batch_size": micro, "num_samples": samples}
    for batch in cl.EvaluationLoader(config, **options):
        batch["loss_mask"] = batch["loss_mask"] * (batch["sample_index"] % 3 > 0)[:, None]  # rows without labels
        mean.add(losses_of(logits[batch["input_ids"]], batch), batch)
    return mean.finish()


@pytest.mark.parametrize("samples", [1, 3, 11])
def test_an_evaluation_is_the_same_at_any_batch_size_and_number_of_ranks(tmp_path, samples):
    """Also where ranks have no rows in the last batch."""
    write_dataset(tmp_path / "data", random_documents(40, seed=1, vocab_size=300), vocab_size=300)
    config = {"seq_len": 16, "order": "sequential", "datasets": {"a": {"path": str(tmp_path / "data")}}}
    config["outputs"] = {"sample_index": True}
    alone = [evaluate(0, 1, micro, samples, config, "") for micro in (1, 4, 16)]
    if samples == 1:  # which has none
        assert all(map(math.isnan, alone))
        return
    assert alone[1:] == pytest.approx([alone[0]] * 2, rel=1e-12)
    for micro in (1, 4):
        (folder := tmp_path / f"of{micro}").mkdir()
        with mp.get_context("fork").Pool(2) as pool:
            jobs = [(rank, 2, micro, samples, config, str(folder)) for rank in (0, 1)]
            assert pool.starmap(evaluate, jobs, chunksize=1) == pytest.approx([alone[0]] * 2, rel=1e-12)
