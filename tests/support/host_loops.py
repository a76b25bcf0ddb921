"""Kernels of loop nests on a device that is none: their text compiled by the C++ compiler and run on the host.

Memory is the host's too, through `devices.FakeCuda`; what is allocated holds NaN.
"""

import ctypes

import host_device
from upsweep._backends.cuda import loops, user_scan_launch
from upsweep._compiler.cuda import nvrtc
from upsweep._compiler.cuda.scans import render
from upsweep._utils.lru_cache import LRUCache


class HostFunction(host_device.HostFunction):
    """A kernel; the device keeps what was launched."""

    def __init__(self, library, name, device):
        super().__init__(library, name, 1)
        self.name, self.device = name, device

    def launch(self, n_blocks, n_threads, stream, structure, shared_bytes=0, together=False):
        assert 0 < n_threads <= 1024 and 0 < n_blocks < 2**31 and shared_bytes <= self.device.shared_bytes
        self.device.launches.append((self.name, n_blocks, n_threads, shared_bytes, stream))
        super().launch(n_blocks, n_threads, stream, structure, shared_bytes, together)


class HostModule:
    def __init__(self, path, device):
        self.library, self.device = ctypes.CDLL(str(path)), device

    def function(self, name):
        return HostFunction(self.library, name, self.device)


class HostDevice:
    """Stands in for `driver.Device`; `launches` are those so far."""

    def __init__(self, folder):
        self.folder, self.ordinal, self.capability, self.shared_bytes = folder, 0, 90, 227 * 1024
        self.n_processors = 8
        self.launches, self.texts = [], []

    fill = host_device.HostDevice.fill

    def load(self, text):
        text = text.decode()
        self.texts.append(text)
        return HostModule(host_device.build(self.folder, text, "-O0"), self)


def install(monkeypatch, folder, fake_cuda):
    """Let kernels of nests run on the host, in the memory of a pretended device."""
    device = HostDevice(folder)
    monkeypatch.setattr(loops.driver, "device", lambda ordinal: device)
    monkeypatch.setattr(nvrtc, "fetch_or_compile", lambda text, options, capability: text.encode())
    monkeypatch.setattr(render, "JOINERS", (16,))  # threads that wait for each other are slow on the host
    monkeypatch.setattr(user_scan_launch, "_kernels", LRUCache(user_scan_launch.MAX_KERNELS))
    allocate = fake_cuda.allocate

    def poisoned(ordinal, stream, n_bytes, pointer):
        allocate(ordinal, stream, n_bytes, pointer)
        ctypes.memset(pointer._obj.value, 255, n_bytes)

    monkeypatch.setattr(fake_cuda, "allocate", poisoned)
    return device
