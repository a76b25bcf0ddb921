"""The benchmark cases of upsweep, for CPU and CUDA, and the code that checks and times them.

One module per operation has its `Case`, the list `cases(quick, device)` and the `Arrays` that a case runs on:
`scans`, `counts`, `histograms`, `pairs`, `user_scans`, `te_programs`. `distributed` has the scans over ranks. The
list is used by the command line (`cli`, as ``python asv_bench/run.py``) and by asv (``asv_bench/benchmarks``).

    cli, asv  ->  compare.measure_case(case)  ->  case.arrays()            inputs, reference, error
                                              ->  peers.bind(name, case)   other packages
                                              ->  upsweep.bench.timing     CPU samples, copies
                                              ->  graph_timing             CUDA samples, copies
              ->  threshold_table, upsweep.bench.report, figures           tables, JSON, plots

Start reading at `case`, then `scans`.
"""
