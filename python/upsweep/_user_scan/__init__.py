"""User-defined scans: arguments, compiled scans, gradients and aggregates of `upsweep.scan`.

The public modules `user_scan`, `filters` and `blockwise`, and `_torch` and `_dask` call it.

    problem.check     arguments -> Problem (arrays, Traced update, ScanSpec)
        |
        +-- cached_calls   Problem -> CompiledScan, which later calls of the same signature run again
        +-- run            scans that are not cached: scans_on() -> HostScans or DeviceScans; run_block
                gradient       the adjoint recurrence, backwards in time
                aggregates     what a block does to the state: scan.carry

`_core.user_scan` has the parameter object of a scan and the choice of its path; the executors are
`_backends.cpu.user_scan` and `_backends.cuda.user_scan`. Start reading at `cached_calls.scan_arrays`.
"""
