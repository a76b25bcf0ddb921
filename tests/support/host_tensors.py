"""Tensors on the CPU that are taken for some on a device, whose kernels the C++ compiler compiles."""

import host_device
import pytest
from upsweep._arrays.device_view import DeviceView, Origin
from upsweep._arrays.torch import TORCH

DEVICES = ["host", pytest.param("cuda", marks=pytest.mark.cuda)]


class HostTensors(type(TORCH)):
    """Tensors on the CPU as those of a device."""

    def view(self, value, name):
        array = value.detach().numpy()
        return DeviceView(value.data_ptr(), array.shape, array.strides, array.dtype, Origin(value, self, 0, None))

    def stream(self, ordinal):
        return 0

    def new(self, shape, dtype, ordinal, stream, order=None):
        return self.torch.full(shape, 77, dtype=self._dtype(dtype))

    def workspace(self, n_bytes, ordinal):
        memory = self.torch.empty(n_bytes, dtype=self.torch.uint8)
        return memory.data_ptr(), memory


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("scans")


@pytest.fixture(params=DEVICES)
def device(request, monkeypatch, folder):
    if request.param == "cuda":
        return "cuda"
    if not host_device.has_compiler:
        pytest.skip("no C++ compiler")
    request.getfixturevalue("fake_cuda")
    from upsweep._torch import user_scan_tensors

    host_device.install(monkeypatch, folder)
    monkeypatch.setattr(user_scan_tensors, "view_tensor", HostTensors("tensor").view)
    monkeypatch.setattr(user_scan_tensors, "is_cuda", lambda tensor: tensor.ndim > 0)
    monkeypatch.setattr(user_scan_tensors, "send_numbers", lambda values, ordinal: values)
    return "cpu"
