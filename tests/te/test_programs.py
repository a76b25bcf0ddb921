"""Random programs under random schedules: the definitions, the nest and the machine code agree."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from te_programs import Program
from te_reference import run_nest
from upsweep import te
from upsweep.te.lowering import lower_for

pytest.importorskip("llvmlite")


@settings(max_examples=60, deadline=None)
@given(some.data())
def test_random_programs(data):
    program = Program(data.draw)
    s = program.schedule(data.draw)
    args = program.args()
    x, expected = program.case(data.draw)

    walked = [np.full(x.shape, np.nan) for _ in args[1:]]
    lowered = lower_for(s, args)
    run_nest(lowered.body, lowered.buffers, [x, *walked], program.sizes)
    outputs = [np.full(x.shape, np.nan) for _ in args[1:]]
    function = te.build(s, args)
    function(x, *outputs)
    for want, slow, fast in zip(expected, walked, outputs):
        np.testing.assert_allclose(slow, want, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(fast, want, rtol=1e-9, atol=1e-9)
