"""Collectives of NCCL that gloo lacks, as far as nanotron asks for them."""

import torch.distributed as dist


class Averaged:
    """Work handle of a sum that becomes a mean when it is waited for: gloo has no AVG."""

    def __init__(self, work, tensor, size):
        self.work, self.tensor, self.size, self.done = work, tensor, size, False

    def wait(self, *args, **kwargs):
        self.work.wait()
        if not self.done:
            self.tensor.div_(self.size)
            self.done = True
        return True

    def is_completed(self):
        return bool(self.work.is_completed())


class Several:
    def __init__(self, works):
        self.works = works

    def wait(self, *args, **kwargs):
        for work in self.works:
            work.wait()


def install():
    real_all_reduce, real_scatter = dist.all_reduce, dist.reduce_scatter_tensor
    add = dist.ReduceOp.SUM

    def all_reduce(tensor, op=add, group=None, async_op=False):
        if op != dist.ReduceOp.AVG:
            return real_all_reduce(tensor, op=op, group=group, async_op=async_op)
        data = tensor.detach()
        work = Averaged(real_all_reduce(data, op=add, group=group, async_op=True), data, dist.get_world_size(group))
        return work if async_op else work.wait() and None

    def all_reduce_coalesced(tensors, op=add, group=None, async_op=False):
        work = Several([all_reduce(tensor, op=op, group=group, async_op=True) for tensor in tensors])
        return work if async_op else work.wait()

    def reduce_scatter_tensor(output, input, op=add, group=None, async_op=False):
        # gloo compares the first dimension where NCCL compares the number of elements
        return real_scatter(output.view(-1), input.reshape(-1), op=op, group=group, async_op=async_op)

    dist.all_reduce, dist.all_reduce_coalesced = all_reduce, all_reduce_coalesced
    dist.reduce_scatter_tensor = reduce_scatter_tensor
