"""Vector mathematics in LLVM IR: exp, log, sin, ... for floats of 32 and 64 bits, any number of lanes.

Each is within 2 units in the last place over the whole range, subnormal results too, and has the special values
of C's library; exp by a table is within 2.5 and has no subnormal results. The polynomials are in `coefficients`.
Functions that few programs use (tan, sinh, cosh, asinh, acosh, atanh, erf, fmod, hypot) are C's own, lane by lane.
Arguments are reduced as Cody and Waite do ("Software Manual for the Elementary Functions", 1980); log of float64
follows the scheme of Tang ("Table-driven implementation of the logarithm function", ACM TOMS 16, 1990) without a
table.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from upsweep._compiler.llvm import coefficients as c
from upsweep._compiler.llvm.vectors import Body, Value, Vectors


def _horner(v: Vectors, x: Value, coefs: Sequence[float]) -> Value:
    """The polynomial with these coefficients, lowest first."""
    result = v.const(coefs[-1])
    for coef in reversed(coefs[:-1]):
        result = v.fma(result, x, v.const(coef))
    return result


def _round_to_integer(v: Vectors, x: Value, scale: float, bias: int = 0) -> tuple[Value, Value]:
    """round(x * scale) as a number, and a number whose last bits hold that integer plus `bias`.

    Adding 1.5 * 2^mantissa leaves no room for a fraction.
    """
    magic = v.const(1.5 * 2.0**v.mantissa + bias)
    shifted = v.fma(x, v.const(scale), magic)
    return v.sub(shifted, magic), shifted


def _has_scale(v: Vectors) -> bool:
    return v.target.avx512 and v.bits * v.lanes == 512


def _scaled(v: Vectors, x: Value, n: Value, shifted: Value) -> Value:
    """x * 2^n with one rounding, for x near 1; `shifted` holds n + 2 * bias.

    Two factors, each a normal number, reach every exponent from subnormals to infinity.
    """
    if _has_scale(v):
        name = f"llvm.x86.avx512.mask.scalef.p{'s' if v.bits == 32 else 'd'}.512"
        mask = (f"i{v.lanes}", "-1")
        return v.body.call(v.kind, name, (v.kind, x), (v.kind, n), (v.kind, x), mask, ("i32", 4))
    both = v.to_bits(shifted)
    first = v.integer("lshr", both, 1)
    second = v.integer("sub", both, first)
    for half in (first, second):
        x = v.mul(x, v.from_bits(v.integer("shl", half, v.mantissa)))
    return x


# Beyond these exp is infinite, or less than half the smallest subnormal.
_EXP_LIMITS = {32: (89.0, -104.0), 64: (710.0, -746.0)}


def _less_powers(v: Vectors, x: Value, n: Value, parts: int = 1) -> Value:
    """x - n ln 2 / parts. The high part of ln 2 has so few bits that n times it is exact where `parts` is 1."""
    r = v.fma(n, v.const(-c.LN2_HIGH[v.bits] / parts), x)
    return v.fma(n, v.const(-c.LN2_LOW[v.bits] / parts), r)


def _has_table(v: Vectors) -> bool:
    """Whether eight float32 of a vector can be looked up at once."""
    return v.bits == 32 and v.lanes >= 8 and v.lanes * 4 == v.target.vector_bytes


def _exp_by_table(v: Vectors, x: Value, *, never_positive: bool, negated: bool) -> Value:
    """exp(x), or exp(-x), where it is 0 or a normal number: 2^(m / 8) exp(r) with |r| <= ln 2 / 16.

    The powers 2^(k / 8) lie in a vector, which a permutation looks up by the last bits of m. So three
    multiply-adds of a polynomial are enough instead of six: with a table 12 instead of 15 operations of a Gaussian
    in three dimensions use the two pipes that multiply. Within 1.5 units in the last place where the exponent is
    never positive.
    """
    low = -v.bias * math.log(2)
    x = v.at_most(x, v.const(-low)) if negated else v.at_least(x, v.const(low))
    if not never_positive:  # infinity stays; what lies between is not met
        high = (v.bias + 1) * math.log(2)
        x = v.at_least(x, v.const(-high)) if negated else v.at_most(x, v.const(high))
    n, shifted = _round_to_integer(v, x, -8 * math.log2(math.e) if negated else 8 * math.log2(math.e))
    r = _less_powers(v, v.neg(x) if negated else x, n, 8)
    # m << 20 is the exponent and k << 20, which the table leaves out.
    powers = [v.bits_of(2.0 ** (k / 8)) - (k << v.mantissa - 3) for k in range(8)] * (v.lanes // 8)
    table = v.body.constant(v.ints, f"<{', '.join(f'i32 {power}' for power in powers)}>")
    look_up = "llvm.x86.avx512.permvar.si.512" if v.lanes == 16 else "llvm.x86.avx2.permd"
    power = v.body.call(v.ints, look_up, (v.ints, table), (v.ints, v.to_bits(shifted)))
    power = v.from_bits(v.integer("add", power, v.integer("shl", v.to_bits(shifted), v.mantissa - 3)))
    tail = _horner(v, r, (1.0, *c.EXP_EIGHTH))
    if never_positive:
        return v.fma(power, v.mul(r, tail), power)
    return v.mul(power, v.fma(r, tail, v.const(1.0)))  # infinity times a positive number


def exp(
    v: Vectors,
    x: Value,
    *,
    never_positive: bool = False,
    never_large: bool = False,
    negated: bool = False,
    flush: bool = False,
    table: bool = False,
) -> Value:
    """exp(x), or exp(-x) if `negated`.

    `never_positive` says so of the exponent, and saves a comparison; `never_large` that it is at most 80 (float32)
    or 300 (float64), or infinite. With `flush` subnormal results are 0, in kernels that run in that mode: one
    factor is enough then. `table` allows other bits in whole vectors than in shorter ones, of which user-defined
    scans have both.
    """
    if table and flush and (never_positive or never_large) and _has_table(v):
        return _exp_by_table(v, x, never_positive=never_positive, negated=negated)
    high, low = _EXP_LIMITS[v.bits]
    native = _has_scale(v)
    short = flush and (never_positive or never_large) and not native
    if short:
        low, high = -v.bias * math.log(2), (v.bias + 1) * math.log(2)
    if not never_positive:
        x = v.at_least(x, v.const(-high)) if negated else v.at_most(x, v.const(high))
    x = v.at_most(x, v.const(-low)) if negated else v.at_least(x, v.const(low))
    log2_e = -math.log2(math.e) if negated else math.log2(math.e)
    n, shifted = _round_to_integer(v, x, log2_e, v.bias if short else 2 * v.bias)
    result = _horner(v, _less_powers(v, v.neg(x) if negated else x, n), (1.0, 1.0, *c.EXP[v.bits]))
    if short:
        # The least n is -bias, which as an exponent is that of 0; the largest is that of infinity.
        return v.mul(result, v.from_bits(v.integer("shl", v.to_bits(shifted), v.mantissa)))
    return _scaled(v, result, n, shifted)


def exp2(v: Vectors, x: Value) -> Value:
    """2^x: the integer part is an exponent, the rest a power of e."""
    x = v.at_least(v.at_most(x, v.const(v.bias + 2.0)), v.const(-v.bias - v.mantissa - 2.0))
    n, shifted = _round_to_integer(v, x, 1.0, 2 * v.bias)
    rest = v.sub(x, n)
    # The rest times ln 2 in two parts, of which the second is a correction of the last bits.
    high = v.mul(rest, v.const(c.LN2[v.bits]))
    if v.target.fma:
        error = v.fma(rest, v.const(c.LN2[v.bits]), v.neg(high))
        high = v.add(high, v.fma(rest, v.const(c.LN2_REST[v.bits]), error))
    return _scaled(v, _horner(v, high, (1.0, 1.0, *c.EXP[v.bits])), n, shifted)


def _split_exponent(v: Vectors, x: Value) -> tuple[Value, Value]:
    """f and e: x = 2^e (1 + f) with 1 + f between the roots of 1/2 and 2, for positive finite x."""
    smallest = 2.0 ** (1 - v.bias)
    lift = v.mantissa + 1
    is_small = v.compare("olt", x, v.const(smallest))
    x = v.select(is_small, v.mul(x, v.const(2.0**lift)), x)
    offset = v.select(is_small, v.const(-v.bias - lift), v.const(-v.bias))
    raw = v.to_bits(x)
    up = v.integer("add", raw, v.bits_of(1.0) - v.bits_of(math.sqrt(0.5)))
    biased = v.integer("lshr", up, v.mantissa)
    # An integer below 2^mantissa becomes a number by the exponent of 2^mantissa.
    lifted = v.from_bits(v.integer("or", biased, v.bits_of(2.0**v.mantissa)))
    e = v.add(v.sub(lifted, v.const(2.0**v.mantissa)), offset)
    without = v.integer("sub", raw, v.integer("shl", v.integer("sub", biased, v.bias), v.mantissa))
    return v.sub(v.from_bits(without), v.const(1.0)), e


def log(v: Vectors, x: Value, *, base: int | None = None) -> Value:
    """The logarithm, natural or to the base 2 or 10; -inf at zeros, NaN below."""
    f, e = _split_exponent(v, x)
    half_square = v.mul(v.mul(f, f), v.const(0.5))
    if v.bits == 32:
        cube, series = v.mul(v.mul(f, f), f), _horner(v, f, c.LOG1P)
        tail = v.mul(cube, series) if base else v.fma(cube, series, v.mul(e, v.const(c.LN2_LOW[32])))
        result = v.add(f, v.sub(tail, half_square))
    else:
        s = v.div(f, v.add(f, v.const(2.0)))
        z = v.mul(s, s)
        tail = v.mul(s, v.add(half_square, v.mul(z, _horner(v, z, c.ATANH))))
        tail = tail if base else v.fma(e, v.const(c.LN2_LOW[64]), tail)
        result = v.sub(f, v.sub(half_square, tail))
    if base == 2:
        result = v.fma(result, v.const(math.log2(math.e)), e)
    elif base == 10:
        rest = v.fma(result, v.const(math.log10(math.e)), v.mul(e, v.const(c.LOG10_2_LOW[v.bits])))
        result = v.fma(e, v.const(c.LOG10_2_HIGH[v.bits]), rest)
    else:
        result = v.fma(e, v.const(c.LN2_HIGH[v.bits]), result)
    result = v.select(v.compare("olt", x, v.const(math.inf)), result, x)
    below = v.select(v.compare("oeq", x, v.const(0.0)), v.const(-math.inf), v.const(math.nan))
    return v.select(v.compare("ole", x, v.const(0.0)), below, result)


def log1p(v: Vectors, x: Value) -> Value:
    """log(1 + x): the logarithm of the rounded sum, and what the rounding lost, relative to the sum."""
    total = v.add(x, v.const(1.0))
    lost = v.div(v.sub(x, v.sub(total, v.const(1.0))), total)
    result = log(v, total)
    # At -1 and infinity the quotient is NaN.
    result = v.select(v.compare("ord", lost, lost), v.add(result, lost), result)
    return v.copysign(result, x)


# ---- trigonometry --------------------------------------------------------------------------------------------

# Up to here the parts of pi / 2 are enough; there are few arguments beyond, which C's library takes.
_TRIGONOMETRIC_LIMIT = {32: 100000.0, 64: 1000000.0}


def _exact_fma(v: Vectors, a: Value, b: Value, addend: Value) -> Value:
    """a * b + c with the product exact; on machines without it, float32 goes through float64."""
    if v.target.fma or v.bits == 64:
        return v.fma(a, b, addend)
    wide = v.with_bits(64, v.lanes)
    a, b, addend = v.widened(a), v.widened(b), v.widened(addend)
    return wide.narrowed(wide.add(wide.mul(a, b), addend))


def _by_library(v: Vectors, *args: Value, name: str) -> Value:
    """C's function on each lane, in a function of its own, which keeps it out of the registers of its caller."""

    def write(v: Vectors, *args: Value) -> Value:
        inner = v.body
        each = [inner.stack(v.kind, 1, 64) for _ in args]
        for arg, memory in zip(args, each):
            v.store(arg, memory, 64)
        with inner.loop("loop", v.lanes) as loop:
            numbers = [inner.emit(f"load {v.scalar}, ptr {v.at(memory, loop.index)}") for memory in each]
            if v.bits == 32:
                numbers = [inner.emit(f"fpext float {number} to double") for number in numbers]
            value = inner.call("double", name, *(("double", number) for number in numbers))
            if v.bits == 32:
                value = inner.emit(f"fptrunc double {value} to float")
            inner.do(f"store {v.scalar} {value}, ptr {v.at(each[0], loop.index)}")
        return v.load(each[0], 64)

    return _called(v, f"each_{name}", write, args, "noinline cold")


def _called(
    v: Vectors, name: str, write: Callable[..., Value], args: Sequence[Value], attributes: str = "noinline"
) -> Value:
    """A call of a function that is in the module once; `write` emits its body, as it would in the caller."""
    full = f"@{name}_{v.suffix}"
    operands = ", ".join(f"{v.kind} {arg}" for arg in args)
    if full not in v.body.needs:
        names = [f"%a{i}" for i in range(len(args))]
        inner = Vectors(Body(), v.target, v.bits, v.lanes)
        inner.body.do(f"ret {v.kind} {write(inner, *names)}")
        parameters = ", ".join(f"{v.kind} {each}" for each in names)
        v.body.needs |= inner.body.needs
        v.body.needs[full] = inner.body.define(f"internal {v.kind} {full}({parameters}) {attributes} #0")
    return v.body.emit(f"call {v.kind} {full}({operands})")


def _unless(v: Vectors, mask: Value, usual: Value, name: str, *args: Value) -> Value:
    """`usual`, and C's function where a lane is set; nothing of it runs if none is."""
    with v.body.when(v.any(mask), "rare", rarely=True) as rare:
        other = v.select(mask, _by_library(v, *args, name=name), usual)
    return rare.phi(v.kind, usual, other)


def _less_quadrants(v: Vectors, x: Value, n: Value) -> tuple[Value, Value | None]:
    """x - n pi / 2, and the rounding error of it in float64."""
    first, second, third = (v.const(-part) for part in c.HALF_PI_PARTS[v.bits])
    nearly = _exact_fma(v, n, first, x)
    r = _exact_fma(v, n, second, nearly)
    if v.bits == 32:
        return _exact_fma(v, n, third, r), None
    # n times the second part has no more bits than a number: what this rounding lost is known.
    lost = v.fma(n, second, v.sub(nearly, r))
    correction = v.fma(n, third, lost)
    result = v.add(r, correction)
    return result, v.add(v.sub(r, result), correction)


def _sine(v: Vectors, x: Value, name: str, quarter: int) -> Value:
    """sin(x + quarter * pi / 2) of |x|: polynomials of sine and cosine, chosen by the quadrant."""
    size = v.abs(x)
    n, shifted = _round_to_integer(v, size, 2 / math.pi)
    r, rest = _less_quadrants(v, size, n)
    quadrant = v.integer("add", v.to_bits(shifted), quarter)
    z = v.mul(r, r)
    sine = v.fma(v.mul(r, z), _horner(v, z, c.SIN[v.bits]), r if rest is None else rest)
    sine = sine if rest is None else v.add(r, sine)
    half = v.mul(z, v.const(0.5))
    tail = v.mul(v.mul(z, z), _horner(v, z, c.COS[v.bits]))
    tail = tail if rest is None else v.sub(tail, v.mul(r, rest))
    # 1 - z / 2 is rounded; what is lost is put back.
    top = v.sub(v.const(1.0), half)
    cosine = v.add(top, v.add(v.sub(v.sub(v.const(1.0), top), half), tail))
    odd = v.body.emit(f"icmp ne {v.ints} {v.integer('and', quadrant, 1)}, {v.int_const(0)}")
    value = v.select(odd, cosine, sine)
    sign = v.integer("shl", v.integer("and", quadrant, 2), v.bits - 2)
    if name == "sin":
        sign = v.integer("xor", sign, v.integer("and", v.to_bits(x), -(1 << (v.bits - 1))))
    value = v.from_bits(v.integer("xor", v.to_bits(value), sign))
    beyond = v.compare("ogt", size, v.const(_TRIGONOMETRIC_LIMIT[v.bits]))
    return _unless(v, beyond, value, name, x)


def _odd_series(v: Vectors, x: Value, z: Value, coefs: Sequence[float]) -> Value:
    """x + x z P(z)."""
    return v.fma(v.mul(x, z), _horner(v, z, coefs), x)


def _half_power(v: Vectors, x: Value) -> tuple[Value, Value, Value, Value]:
    """2^n / 2, r, r^2 and P with exp(x) = 2^n (1 + r + r^2 P), for x above -40; halved, it does not overflow."""
    n, shifted = _round_to_integer(v, x, math.log2(math.e), v.bias - 1)
    r = _less_powers(v, x, n)
    power = v.from_bits(v.integer("shl", v.to_bits(shifted), v.mantissa))
    return power, r, v.mul(r, r), _horner(v, r, c.EXP[v.bits])


def expm1(v: Vectors, x: Value) -> Value:
    """exp(x) - 1, of which the largest terms cancel before the others are added."""
    size = v.at_least(v.at_most(x, v.const(_EXP_LIMITS[v.bits][0])), v.const(-40.0))
    power, r, square, series = _half_power(v, size)
    half = v.fma(power, v.mul(square, series), v.fma(power, r, v.sub(power, v.const(0.5))))
    return v.copysign(v.add(half, half), x)


def tanh(v: Vectors, x: Value) -> Value:
    """E / (E + 1) with E = (exp(2 |x|) - 1) / 2; a polynomial below 1/2, where the quotient would lose bits."""
    size = v.abs(x)
    power, r, square, series = _half_power(v, v.at_most(v.add(size, size), v.const(44.0)))
    e = v.fma(power, v.fma(square, series, r), v.sub(power, v.const(0.5)))
    quotient = v.div(e, v.add(e, v.const(1.0)))
    series = _odd_series(v, size, v.mul(size, size), c.TANH[v.bits])
    return v.copysign(v.select(v.compare("olt", size, v.const(0.5)), series, quotient), x)


# ---- inverse trigonometry ------------------------------------------------------------------------------------


def _from_half_pi(v: Vectors, x: Value, times: float = 1.0, rest: Value | None = None) -> Value:
    """pi / 2 - x, or with `times` 2 pi - x; pi is in two parts, and x may have a rest."""
    low = v.const(times * c.HALF_PI_REST[v.bits])
    high = v.const(times * c.HALF_PI[v.bits])
    if rest is None:
        return v.sub(high, v.sub(x, low))
    return v.sub(v.sub(high, x), v.sub(rest, low))


def _arc(v: Vectors, x: Value) -> tuple[Value, Value, Value]:
    """Whether |x| > 1/2, and asin of |x|, or there of sqrt((1 - |x|) / 2): half the angle from the other axis.

    The root comes as a number with half of the bits, whose square is exact, and what it lacks is in the rest.
    """
    size = v.abs(x)
    is_big = v.compare("ogt", size, v.const(0.5))
    other = v.mul(v.sub(v.const(1.0), size), v.const(0.5))
    root = v.sqrt(other)
    short = v.from_bits(v.integer("and", v.to_bits(root), -(1 << (v.mantissa + 1) // 2)))
    missing = v.div(v.sub(other, v.mul(short, short)), v.add(root, short))
    missing = v.select(v.compare("oeq", other, v.const(0.0)), other, missing)
    z = v.select(is_big, other, v.mul(size, size))
    root = v.select(is_big, root, size)
    tail = v.mul(v.mul(root, z), _horner(v, z, c.ASIN[v.bits]))
    return is_big, v.select(is_big, short, size), v.select(is_big, v.add(tail, missing), tail)


def asin(v: Vectors, x: Value) -> Value:
    is_big, head, tail = _arc(v, x)
    angle = _from_half_pi(v, v.add(head, head), rest=v.add(tail, tail))
    return v.copysign(v.select(is_big, angle, v.add(head, tail)), x)


def acos(v: Vectors, x: Value) -> Value:
    is_big, head, tail = _arc(v, x)
    twice, rest = v.add(head, head), v.add(tail, tail)
    negative = v.compare("olt", x, v.const(0.0))
    far = v.select(negative, _from_half_pi(v, twice, 2.0, rest), v.add(twice, rest))
    near = _from_half_pi(v, v.copysign(head, x), rest=v.copysign(tail, x))
    return v.select(is_big, far, near)


def atan(v: Vectors, x: Value) -> Value:
    size = v.abs(x)
    is_big = v.compare("ogt", size, v.const(1.0))
    t = v.select(is_big, v.div(v.const(1.0), size), size)
    angle = _odd_series(v, t, v.mul(t, t), c.ATAN[v.bits])
    return v.copysign(v.select(is_big, _from_half_pi(v, angle), angle), x)


def atan2(v: Vectors, y: Value, x: Value) -> Value:
    """The angle of (x, y), with C's values at zeros and infinities of either sign."""
    above, along = v.abs(y), v.abs(x)
    steep = v.compare("ogt", above, along)
    small, large = v.select(steep, along, above), v.select(steep, above, along)
    ratio = v.div(small, large)
    same = v.compare("oeq", small, large)  # distinguishes 0 / 0 and inf / inf from NaN
    at_zero = v.compare("oeq", large, v.const(0.0))
    ratio = v.select(same, v.select(at_zero, v.const(0.0), v.const(1.0)), ratio)
    # abs drops the sign of NaN only: what is NaN stays so by the sum.
    ratio = v.select(v.compare("uno", x, y), v.add(x, y), ratio)
    angle = _odd_series(v, ratio, v.mul(ratio, ratio), c.ATAN[v.bits])
    angle = v.select(steep, _from_half_pi(v, angle), angle)
    backward = v.body.emit(f"icmp slt {v.ints} {v.to_bits(x)}, {v.int_const(0)}")
    angle = v.select(backward, _from_half_pi(v, angle, 2.0), angle)
    return v.copysign(angle, y)


# ---- powers --------------------------------------------------------------------------------------------------


def _power32(v: Vectors, x: Value, y: Value) -> Value:
    """float32 through float64: exp(y log |x|), then the sign and the cases that C names."""
    half = v.lanes // 2
    wide, short = v.with_bits(64, half), v.with_bits(32, half)
    results = []
    size = v.abs(x)
    for lanes in (range(half), range(half, v.lanes)):
        base, exponent = short.widened(v.part(size, lanes)), short.widened(v.part(y, lanes))
        results.append(wide.narrowed(exp(wide, wide.mul(exponent, log(wide, base)))))
    value = short.joined(*results)
    zero, one = v.const(0.0), v.const(1.0)
    halved = v.mul(y, v.const(0.5))
    is_integer = v.compare("oeq", v.floor(y), y)
    is_odd = v.logical("and", is_integer, v.compare("one", v.floor(halved), halved))
    is_odd = v.logical("and", is_odd, v.compare("olt", v.abs(y), v.const(2.0**24)))
    value = v.select(is_odd, v.copysign(value, x), value)
    finite_negative = v.logical("and", v.compare("olt", x, zero), v.compare("ogt", x, v.const(-math.inf)))
    no_root = v.logical("and", finite_negative, v.compare("one", v.floor(y), y))
    value = v.select(no_root, v.const(math.nan), value)
    endless = v.compare("oeq", v.abs(y), v.const(math.inf))
    value = v.select(v.logical("and", v.compare("oeq", size, one), endless), one, value)
    return v.select(v.logical("or", v.compare("oeq", x, one), v.compare("oeq", y, zero)), one, value)


def power(v: Vectors, x: Value, y: Value) -> Value:
    """x to the power y. In float64 the logarithm would be needed to twice as many bits: C's library takes it."""
    return _power32(v, x, y) if v.bits == 32 else _by_library(v, x, y, name="pow")


def rsqrt(v: Vectors, x: Value) -> Value:
    """1 / sqrt(x). AVX-512 has 14 bits of it for float32, which one step of a series makes all bits."""
    if v.bits == 64 or not v.target.avx512:
        return v.div(v.const(1.0), v.sqrt(x))
    if not _has_scale(v):  # by a whole vector, whose bits those of shorter ones are to be
        whole = v.with_bits(32, 16)
        return whole.part(rsqrt(whole, v.part(x, [lane % v.lanes for lane in range(16)])), range(v.lanes))
    first = v.body.call(v.kind, "llvm.x86.avx512.rsqrt14.ps.512", (v.kind, x), (v.kind, x), ("i16", -1))
    error = v.fma(v.neg(v.mul(x, first)), first, v.const(1.0))
    series = v.mul(v.fma(error, v.const(0.375), v.const(0.5)), v.mul(error, first))
    # At 0 and infinity the first is exact, and the error NaN.
    return v.select(v.compare("ord", error, error), v.add(first, series), first)


OF_LIBRARY = ("tan", "sinh", "cosh", "asinh", "acosh", "atanh", "erf", "fmod", "hypot")

FUNCTIONS: dict[str, Callable[..., Value]] = {
    "exp": exp, "exp2": exp2, "expm1": expm1, "log": log, "log2": functools.partial(log, base=2),
    "log10": functools.partial(log, base=10), "log1p": log1p,
    "sin": functools.partial(_sine, name="sin", quarter=0), "cos": functools.partial(_sine, name="cos", quarter=1),
    "tanh": tanh, "asin": asin, "acos": acos, "atan": atan, "atan2": atan2, "pow": power,
    "rsqrt": rsqrt, "sqrt": Vectors.sqrt, "floor": Vectors.floor, "rint": Vectors.rint, "abs": Vectors.abs,
    "copysign": Vectors.copysign, **{name: functools.partial(_by_library, name=name) for name in OF_LIBRARY},
}  # fmt: skip

# Functions are inlined while a body has fewer lines. The time of LLVM's register allocator grows with
# the square of a block's length: 1,000 inlined tanh (86,000 lines) took 17 s, with calls after 5,000 lines they
# take 1 s (AVX-512, LLVM 22, 2026-11). In parts of long programs they are called.
_LONGEST_INLINED = 5_000
_INSTRUCTIONS = ("sqrt", "floor", "rint", "abs", "copysign")


def function(v: Vectors, name: str, *args: Value, **options: bool) -> Value:
    """The value of a function of `FUNCTIONS`: inlined, or called where the body is long already. Same bits."""
    write = FUNCTIONS[name]
    if name in _INSTRUCTIONS or (len(v.body.lines) < _LONGEST_INLINED and not v.body.is_part):
        return write(v, *args, **options)
    variant = "_".join([name, *(option for option, value in options.items() if value)])
    return _called(v, variant, functools.partial(write, **options), args)
