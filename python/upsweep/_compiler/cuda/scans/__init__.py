"""CUDA kernels of user-defined scans, as C++ text for NVRTC. `_backends.cuda.user_scan_launch` calls
`render.ScanKernels`.

    render        ScanRequest -> text: sizes, the functions of a recurrence, and the templates in ``kernels/``
    steps         the functions of one step
    single_pass   tile sizes of lines that are scanned in one pass

Start reading at `render.ScanRequest`, which lists what the text depends on.
"""
