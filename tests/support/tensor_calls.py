"""`_calls.TensorCalls` of tensors on the CPU, which stand for some on a device."""

from call_library import STREAM
from tensors import torch
from torch.autograd import forward_ad
from upsweep._backends.cuda import _calls, abi
from upsweep._torch import executors

EXCHANGE = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)


def calls_of(library, exchange, empty=executors._empty, empty_here=None):
    return _calls.TensorCalls(
        load=lambda: library, check_device=lambda device: None, exchange=exchange,
        dtypes={dtype: abi.DTYPES[name] for dtype, name in executors.NAMES.items()}, plain_types=executors.PLAIN,
        watchers=executors.WATCHERS, forward_ad=forward_ad, is_grad_enabled=torch.is_grad_enabled,
        is_neg=torch.Tensor.is_neg, stream=lambda device: STREAM, workspace=library.workspace,
        empty_like=torch.empty_like, empty=empty, empty_here=empty_here,
        increment_version=executors._find_increment_version(), device_type=1,
    )  # fmt: skip
