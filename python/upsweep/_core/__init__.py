"""Problems: checked and normalised calls, without a backend in them.

::

    scan, bincount, histogram    the problem class of an operation, and the checks of its arguments
    user_scan                    the parameter object of a user-defined scan, and the choice of its path
    checks                       checks and error messages that arrays of all libraries share
    bin_thresholds               from the edges of bins to the numbers that the kernels compare with
    cluster                      array operations of `upsweep.cluster`
    layout                       axes, shapes and shared memory of operands, used by all of them

Operands are ndarrays, or device views (`_arrays.DeviceView`). Every check that needs no element is made here once
for both, and its error names the argument. The public functions build a problem, and `_backends` runs it. Where a
check needs elements, such as the range of a histogram, the caller passes the backend's function that reads them.
Start reading at `scan.normalise`.
"""
