"""Tensors on the CPU that are taken for some on a device, whose kernels the C++ compiler compiles."""

import shutil

import host_device
import pytest
from upsweep._arrays import libraries

DEVICES = ["host", pytest.param("cuda", marks=pytest.mark.cuda)]


class HostTensors(type(libraries._torch_memory)):
    """Tensors on the CPU as those of a device."""

    def view(self, value, name):
        array = value.detach().numpy()
        shape, strides = array.shape, array.strides
        held = libraries.Origin(value, self, 0, None)
        return libraries._on_device(value.data_ptr(), shape, strides, array.dtype, held)

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
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    request.getfixturevalue("fake_cuda")
    from upsweep._torch import user_scan_cuda

    host_device.install(monkeypatch, folder)
    monkeypatch.setattr(user_scan_cuda, "view_tensor", HostTensors().view)
    monkeypatch.setattr(user_scan_cuda, "is_cuda", lambda tensor: tensor.ndim > 0)
    monkeypatch.setattr(user_scan_cuda, "send_numbers", lambda values, ordinal: values)
    return "cpu"
