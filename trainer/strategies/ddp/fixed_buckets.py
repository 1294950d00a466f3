"""torch's DistributedDataParallel with buckets that are the same in every step of every session."""

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override


class FixedBuckets(DistributedDataParallel):
    """DistributedDataParallel whose buckets hold the parameters in reverse order of registration from the start.

    torch's own lays them anew after the first backward of a process, in the order in which gradients became ready.
    gloo and NCCL add the gradients of three workers and more in an order that depends on their place in the bucket: a
    resumed training then differed in its last bits from an undisturbed one. With `find_unused_parameters` alone torch
    does not lay them anew.
    """

    def __init__(self, module: nn.Module, **options: Any):
        super().__init__(module, **options)
        # the order of ready gradients that torch would find out: as if each had been seen
        self.reducer._push_all_rebuilt_params()
        self.reducer._rebuild_buckets()

    @override
    def _ddp_init_helper(
        self,
        parameters: list[nn.Parameter],
        expect_sparse_gradient: list[bool],
        param_to_name_mapping: Any,
        static_graph: bool,
    ) -> None:
        if static_graph or not self.find_unused_parameters:
            parameters, expect_sparse_gradient = parameters[::-1], expect_sparse_gradient[::-1]
            param_to_name_mapping = self._build_debug_param_to_name_mapping(parameters)
        super()._ddp_init_helper(parameters, expect_sparse_gradient, param_to_name_mapping, static_graph)
