"""Hazard: Ctrl-C during a long call. The exception comes, and nothing is corrupted."""

from helpers import run_python

CODE = """
    import _thread, signal, sys, threading, time
    import numpy as np, upsweep
    x = np.random.default_rng(0).random((1, 3_000_000))
    keys = (x[0] * 1000).astype(np.int64)
    before = x.copy()
    gates = np.full(x.shape, 0.999)
    operations = [
        lambda: upsweep.discounted_cumsum(x, 0.999),
        lambda: upsweep.linear_recurrence(gates, x),
        lambda: upsweep.bincount(keys),
    ]
    expected = [operation() for operation in operations]
    interrupted = 0
    def interrupt(signum, frame):
        raise KeyboardInterrupt
    signal.signal(signal.SIGALRM, interrupt)
    for operation, right in zip(operations, expected):
        for attempt in range(10):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.004 * (attempt + 1))
                while True:
                    y = operation()
            except KeyboardInterrupt:
                interrupted += 1
            assert operation().tobytes() == right.tobytes()
    assert (x == before).all() and (gates == 0.999).all()
    assert (np.full(3, 1e-310) * 0.5).all()
    print(interrupted)
"""


def test_after_many_interrupts_all_is_as_before():
    assert run_python(CODE).strip() == "30"


def test_an_interrupt_during_a_call_into_out_leaves_whole_results():
    code = """
    import signal
    import numpy as np, upsweep
    x = np.random.default_rng(0).random((1, 3_000_000))
    expected = upsweep.cumulative_sum(x)
    def interrupt(signum, frame):
        raise KeyboardInterrupt
    signal.signal(signal.SIGALRM, interrupt)
    whole = 0
    for attempt in range(10):
        out = np.full(x.shape, np.nan)
        finished = False
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.004 * (attempt + 1))
            while True:
                upsweep.cumulative_sum(x, out=out)
                finished = True
        except KeyboardInterrupt:
            pass
        # A signal is seen between two calls, never inside a kernel: out is all written, or not at all.
        assert np.isnan(out).all() or out.tobytes() == expected.tobytes()
        whole += finished or not np.isnan(out).any()
    print(whole > 0)
    """
    assert run_python(code).strip() == "True"
