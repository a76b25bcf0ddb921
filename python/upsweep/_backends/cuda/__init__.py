"""CUDA backend: runs the checked problems of `_core` on arrays in device memory.

::

    _backends (executor lookup), _user_scan, te           _torch, distributed (`_torch.executors`
          |  problem, device views or numpy arrays              |  describes tensors)
          v                                                     |
    executors: scan (also aggregates), bincount (also           |
          |  histograms), pairs, loops, user_scan               |
          |  open a context: `context` for device arrays,       |
          |  `staging` for numpy arrays with a device           |
          v                                                     v
    launch modules: scan_launch, bincount_launch, pairs_launch (pairs_plan),
                    user_scan_launch (linear_update)
          |  requests of the C interface                        |  kernels of _compiler/cuda
          v                                                     v
    abi (structures), library (libupsweep_cuda.so)        driver (modules, launches)

An executor checks no argument but the keys of a count, which only the device can read. It allocates results in the
arrays' library, describes operands as `ArrayDescriptor` (`descriptor`), and starts kernels on its current stream.
It waits for the device only where a result depends on the data (`bincount_launch`), or to copy results to numpy
arrays. Launch modules know pointers, a stream and an allocator only, so that tensors, whose allocation and streams
are torch's, use them directly. `loops` prepares and starts its kernels itself (`driver.PreparedCall`).

Scans, aggregates and plain counts of CUDA tensors skip the launch modules: `_calls`, compiled from
src/bindings/_calls.pyx, describes tensors and calls the library through addresses that `library` hands over
(`Library.functions`).

`memory` is the driver's allocator, for numpy arrays and for libraries that allocate nothing. Only this folder uses
ctypes for CUDA; every call of the C library goes through `library.load()`, which tests replace. Start reading at
`scan.run_scan`, then `context`, then `scan_launch`.
"""
