"""Random shapes, numbers and layouts, which the families share."""

import numpy as np
from helpers import INPUT_LAYOUTS, LAYOUTS, relaid

THREADS = (1, 2, 3, 7)
FINITE = (0.0, -0.0, 1e-40, 6e-8, 5e-324)  # with subnormal numbers, of float16 as well
NORMAL = (0.0, -0.0, 60000.0, np.nan, np.inf, -np.inf)


def pick(rng, *choices):
    """One of the choices, as it is."""
    return choices[rng.integers(len(choices))]


def chance(rng, share):
    """True in this share of the calls."""
    return rng.random() < share


def shape(rng, most_axes=3, most=4000):
    """A shape, its axes mostly short, at times empty or around the edges of vectors and tiles."""
    lengths = (1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 64, 70, 100, 257, 1000, 3001)
    while True:
        result = tuple(int(pick(rng, *lengths)) for _ in range(rng.integers(1, most_axes + 1)))
        if np.prod(result) <= most:
            break
    if chance(rng, 0.04):
        axis = rng.integers(len(result))
        result = (*result[:axis], 0, *result[axis + 1 :])
    return result


def partly_broadcast(rng, shape):
    """A shape that broadcasts to this one: some axes are 1, some of the first are left out."""
    result = tuple(int(pick(rng, n, n, n, 1)) for n in shape)
    return result if chance(rng, 0.8) else result[rng.integers(len(result) + 1) :]


def numbers(rng, shape, dtype, low=-1.0, high=1.0, special=(*FINITE, *NORMAL)):
    """Random numbers; of floating dtypes at times with some of the special ones among them."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if chance(rng, 0.5):
            return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
        return rng.integers(max(-100, limits.min), 100, shape).astype(dtype)
    x = rng.uniform(low, high, shape)
    if dtype.kind == "c":
        x = x + 1j * rng.uniform(low, high, shape)
    x = np.asarray(x).astype(dtype)
    if special and x.size and chance(rng, 0.25):
        with np.errstate(over="ignore"):
            for place in rng.integers(x.size, size=rng.integers(1, 4)):
                x.flat[place] = pick(rng, *special)
    return x


def laid_out(rng, x, share=0.4):
    """The same numbers, at times in another layout: strides, byte order, alignment."""
    x = np.asarray(x)
    if not x.ndim or not chance(rng, share):
        return x
    if chance(rng, 0.25):
        axis = rng.integers(x.ndim)
        if (x == np.take(x, [0], axis)).all() if x.shape[axis] else False:
            return np.broadcast_to(np.take(x, [0], axis), x.shape)  # stride 0
    layouts = [name for name in INPUT_LAYOUTS if name != "other byte order" or x.dtype.kind in "iufc"]
    return relaid(x, pick(rng, *layouts))


def output(rng, like):
    """Memory for a result of this shape and dtype, in some layout."""
    return relaid(np.zeros(like.shape, like.dtype), pick(rng, *LAYOUTS)) if like.ndim else np.zeros_like(like)


def described(*values, **keywords):
    """Arguments of a call in words: dtypes, shapes and strides of arrays, other values as they are."""

    def one(value):
        if isinstance(value, np.ndarray) and value.size > 6:
            return f"<{value.dtype.str} {value.shape} strides {value.strides}>"
        return repr(value)

    return ", ".join([*map(one, values), *(f"{name}={one(value)}" for name, value in keywords.items())])
