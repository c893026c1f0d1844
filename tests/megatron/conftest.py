import warnings
from collections.abc import Iterator

import pytest
import torch.distributed as dist


@pytest.fixture
def one_process() -> Iterator[None]:
    """Process groups of this process alone, as Megatron wants them."""
    from megatron.core import parallel_state

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        parallel_state.initialize_model_parallel()
    yield
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()
