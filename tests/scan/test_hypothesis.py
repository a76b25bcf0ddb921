"""Random shapes, dtypes, axes, strides and keywords, against the reference implementations."""

import hypothesis.strategies as st
import numpy as np
from helpers import DTYPES, SCANS, check, random, wide
from hypothesis import given, settings
from upsweep import reference


@st.composite
def arrays(draw, shape, dtype, low=-1.0, high=1.0):
    """An array of this shape whose axes may be permuted, stepped over or reversed in memory."""
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([1, 1, 1, -1, 2, -3])) for _ in shape]
    memory = [shape[axis] * abs(steps[axis]) for axis in order]
    x = random(memory, dtype, draw(st.integers(0, 999)), low, high).transpose(np.argsort(order))
    x = x[tuple(slice(None, None, step) for step in steps)]
    if draw(st.integers(0, 5)) == 0 and x.size:
        x.flat[draw(st.integers(0, x.size - 1))] = draw(st.sampled_from([np.nan, np.inf, -np.inf, 0.0]))
    return x


@st.composite
def shapes(draw):
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 5, 8, 17, 33, 70]), min_size=1, max_size=3))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    if draw(st.integers(0, 9)) == 0:
        shape[draw(st.integers(0, len(shape) - 1))] = 0
    return tuple(shape), axis


@st.composite
def calls(draw):
    name = draw(st.sampled_from(SCANS))
    shape, axis = draw(shapes())
    dtype = draw(st.sampled_from(DTYPES))
    keywords = {"axis": axis, "reverse": draw(st.booleans())}
    x = draw(arrays(shape, dtype))
    partly = tuple(draw(st.sampled_from([n, n, 1])) for n in shape)
    if name == "cumulative_sum":
        operands = (x,)
    elif name == "discounted_cumsum":
        gamma = draw(st.sampled_from([0.0, 0.5, 0.99, 1.0, -0.8, 1.1]))
        operands = (x, draw(st.one_of(st.just(gamma), arrays(partly, dtype, -0.7, 0.7))))
    else:
        operands = (draw(arrays(partly, dtype, -0.7, 0.7)), x)
    if draw(st.booleans()):
        generator = np.random.default_rng(draw(st.integers(0, 99)))
        keywords["reset"] = generator.random(partly) < draw(st.sampled_from([0.02, 0.3, 1.0]))
    gamma = np.shape(operands[1]) if name == "discounted_cumsum" else ()
    if name == "discounted_cumsum" and (not gamma or gamma[axis] == 1) and draw(st.integers(0, 3)) == 0:
        keywords["window"] = draw(st.integers(1, 40))
        return name, operands, keywords
    extras = ["exclusive", "return_final"] + (["include_initial"] if name == "cumulative_sum" else [])
    for extra in extras:
        if draw(st.integers(0, 3)) == 0 and not (extra == "include_initial" and keywords.get("exclusive")):
            keywords[extra] = True
    if draw(st.booleans()):
        state = shape[: axis % len(shape)] + shape[axis % len(shape) + 1 :]
        keywords["initial"] = draw(st.one_of(st.just(0.5), arrays(state, dtype)))
    return name, operands, keywords


@settings(max_examples=150)
@given(calls())
def test_scans(call):
    name, operands, keywords = call
    check(name, *operands, **keywords)


@settings(max_examples=40)
@given(shapes(), st.sampled_from(["int8", "uint16", "int32", "int64", "bool"]), st.booleans(), st.data())
def test_sums_of_integers(shape_and_axis, dtype, reverse, data):
    shape, axis = shape_and_axis
    x = (100 * data.draw(arrays(shape, np.float64, 0.0, 1.0))).clip(0, 100)
    x = np.nan_to_num(x).astype(dtype)
    check("cumulative_sum", x, axis=axis, reverse=reverse, exclusive=data.draw(st.booleans()), return_final=True)


@settings(max_examples=60)
@given(st.data())
def test_counts(data):
    import upsweep

    n_bins = data.draw(st.sampled_from([1, 2, 100, 5000]))
    n = data.draw(st.sampled_from([0, 1, 7, 1000]))
    dtype = data.draw(st.sampled_from(["int16", "uint16", "int32", "uint32", "int64", "uint64"]))
    step = data.draw(st.sampled_from([1, 2, -1]))
    generator = np.random.default_rng(data.draw(st.integers(0, 99)))
    keys = generator.integers(0, n_bins, n).astype(dtype)[::step]
    weights = data.draw(st.sampled_from([None, "float32", "float64", "int32"]))
    if weights is not None:
        weights = (10 * generator.random(n)).astype(weights)[::step]
    keywords = data.draw(
        st.sampled_from([{}, {"minlength": 50}, {"length": 5000}, {"length": 60, "invalid": "drop"}])
    )
    result = upsweep.bincount(keys, weights, **keywords)
    expected = reference.bincount(keys, weights if weights is None else wide(weights), **keywords)
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)
