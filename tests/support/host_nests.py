"""Kernels of loop nests on a device that is none: their text compiled by the C++ compiler and run on the host."""

import re

import host_device
import numpy as np
from upsweep import _nests_at_home
from upsweep._cuda import nests

LAUNCHER = """
extern "C" void launch_{name}(const Call* call, unsigned n_blocks, unsigned n_threads) {{
    fibers::Launch<Call>::run({name}, *call, n_blocks, n_threads);
}}
"""
SIZE = 'extern "C" long long size_of_call() { return sizeof(Call); }\n'


class HostFunction(host_device.HostFunction):
    def launch(self, n_blocks, n_threads, stream, structure, shared_bytes=0):
        assert 0 < n_threads <= 1024 and 0 < n_blocks < 2**31 and shared_bytes <= 227 << 10
        self.device.launches.append((self.name, n_blocks, n_threads, shared_bytes, stream))
        super().launch(n_blocks, n_threads, stream, structure)


class HostModule(host_device.HostModule):
    def __init__(self, device, *arguments):
        super().__init__(*arguments)
        self.device = device

    def function(self, name):
        function = HostFunction(self.library, name, self.n_slots)
        function.name, function.device = name, self.device
        return function


class HostDevice(host_device.HostDevice):
    """Stands in for `_cuda.driver.Device`; `launches` are those so far."""

    def __init__(self, folder):
        super().__init__(folder, 8)
        self.launches = []

    def load(self, text):
        names = re.findall(rb"__global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(", text)
        launchers = "".join(LAUNCHER.format(name=name.decode()) for name in names) + SIZE
        before = host_device.LAUNCHERS
        host_device.LAUNCHERS = launchers
        try:
            super().load(text)
        finally:
            host_device.LAUNCHERS = before
        return HostModule(self, self.path_of(text), self.n_slots)

    def path_of(self, text):
        return self.folder / f"{host_device.hashlib.sha256(text).hexdigest()[:24]}.so"


class HostMemory:
    """Stands in for `_cuda.host.Memory`: the arrays stay where they are, but for copies that are told apart."""

    def __init__(self, device, stream=0):
        self.device, self.stream, self.kept = device, stream, []

    def close(self):
        self.kept.clear()

    def allocate(self, n_bytes):
        self.kept.append(np.full(n_bytes + 8, 255, np.uint8))
        return self.kept[-1].ctypes.data, None

    def send(self, array):
        self.kept.append(np.array(array, array.dtype.newbyteorder("="), order="C"))
        return host_device.described(self.kept[-1])

    def empty(self, shape, dtype):
        poison = np.full(shape, 77, dtype) if dtype.kind in "iub" else np.full(shape, np.nan, dtype)
        self.kept.append(poison)
        return host_device.described(poison)

    def fetch(self, source, target):
        target[...] = next(a for a in self.kept if a.__array_interface__["data"][0] == source.pointer)


def install(monkeypatch, folder):
    """Let kernels of nests run on the host."""
    device = HostDevice(folder)
    monkeypatch.setattr(nests.driver, "device", lambda ordinal: device)
    monkeypatch.setattr(nests, "_compiled", lambda text, capability: text.encode())
    monkeypatch.setattr(_nests_at_home.host, "Memory", HostMemory)
    return device
