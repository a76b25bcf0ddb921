"""Scalar programs: they mean what the formula means, are short, hoist, and have loops only where they are long."""

import numpy as np
import pytest
from formulas import CASES, IDS, arrays_for, case_arrays, case_formula, over_pairs, random_formula
from interpreter import run
from upsweep._compiler.formulas import ops
from upsweep._compiler.formulas.derivative import gradient
from upsweep._compiler.formulas.nodes import constant, make, variable, variables, zero
from upsweep._compiler.formulas.reduction import PairReduction
from upsweep._compiler.formulas.reference import evaluate
from upsweep._compiler.lowering.lower import lower, lower_formulas
from upsweep._compiler.lowering.lower_elementwise import RULES
from upsweep._compiler.lowering.lower_features import AT, EACH, Lowering

x, y, p = variable(0, 3, "i"), variable(1, 3, "j"), variable(2, 1, "p")
D = make("sqdist", x, y)
GAUSSIAN = make("exp", make("neg", make("mul", D, p)))
NAN, INF = np.nan, np.inf


def same(formula, program, arrays, rtol=1e-12):
    """The program's values are those of the formula."""
    actual = variables(formula)
    by_position = dict(
        zip([v.static[0] for v in actual], over_pairs(actual, [arrays[v.static[0]] for v in actual]))
    )
    operands = [by_position.get(n, array) for n, array in enumerate(arrays)]
    result, _ = run(program, arrays)
    expected = evaluate(formula, operands)
    shape = np.broadcast_shapes(expected.shape, result.shape)  # simplification may lose a variable
    result, expected = np.broadcast_to(result, shape), np.broadcast_to(expected, shape)
    np.testing.assert_allclose(result, expected, rtol=rtol, atol=1e-13)


def loops_only(formula):
    """The program in which every vector is walked by a loop."""
    return Lowering([formula], 1, np.inf, True).program()


@pytest.mark.parametrize("lowered", [lower_formulas, loops_only], ids=["short", "loops"])
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_every_operation(case, lowered):
    formula = case_formula(case)
    for seed in range(2):
        same(formula, lowered(formula), case_arrays(case, seed))


@pytest.mark.parametrize("lowered", [lower_formulas, loops_only], ids=["short", "loops"])
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_features_of_every_operation_at_an_index_of_a_loop(case, lowered):
    vector = case_formula(case)
    inside = make("concat", make("mul", vector, vector), make("sin", vector))
    other = variable(len(case[1]), inside.dim, "i")
    formula = make("sum", make("mul", inside, other))
    arrays = [*case_arrays(case), *arrays_for([other])]
    same(formula, lowered(formula), arrays)


@pytest.mark.parametrize("seed", range(60))
def test_random_formulas(seed):
    formula = random_formula(np.random.default_rng(seed))
    known = [variable(0, 3, "i"), variable(1, 3, "j"), variable(2, 1, "p"), variable(3, 1, "j")]
    arrays = arrays_for(known, seed=seed)
    same(formula, lower_formulas(formula), arrays, rtol=1e-9)
    same(formula, loops_only(formula), arrays, rtol=1e-9)


def test_every_operation_has_one_rule():
    rules = [*RULES, *AT, *EACH]
    assert len(set(rules)) == len(rules)
    assert set(rules) == {name for name, row in ops.TABLE.items() if row.expand is None}
    assert set(RULES) == {name for name, row in ops.TABLE.items() if row.elementwise}


def per_pair(program):
    return [step.op for step in program.values if step.level == "ij"]


GAUSSIANS = {
    "-D p": GAUSSIAN,
    "-p D": make("exp", make("mul", make("neg", p), D)),
    "(-D) p": make("exp", make("mul", make("neg", D), p)),
    "-D / p": make("exp", make("neg", make("div", D, p))),
    "(-D) / (2 p^2)": make("exp", make("div", make("neg", D), make("mul", constant(2), make("square", p)))),
    "-0.5 D p": make("exp", make("mul", make("mul", constant(-0.5), D), p)),
    "-D / 2": make("exp", make("neg", make("div", D, constant(2)))),
    "-sum((x-y)**2) p": make("exp", make("mul", make("neg", make("sum", make("square", make("sub", x, y)))), p)),
    "-|x-y|^2 p": make("exp", make("neg", make("mul", p, make("sqnorm2", make("sub", x, y))))),
    "-<x-y,x-y> p": make(
        "exp", make("neg", make("mul", make("scalprod", make("sub", x, y), make("sub", x, y)), p))
    ),
}


@pytest.mark.parametrize("name", GAUSSIANS)
def test_a_gaussian_takes_ten_operations_a_pair(name):
    program = lower_formulas(GAUSSIANS[name])
    assert sorted(per_pair(program)) == ["add"] * 2 + ["exp"] + ["mul"] * 4 + ["sub"] * 3
    same(GAUSSIANS[name], program, arrays_for([x, y, p]))


def test_signs_cost_nothing_where_something_changes_rarely():
    k = make("exp", D)
    row, column = make("elem", x, static=(0,)), make("elem", y, static=(0,))
    products = [
        make("neg", make("mul", make("mul", row, column), k)),
        make("mul", make("mul", make("neg", k), make("neg", row)), make("neg", column)),
        make("mul", make("neg", make("mul", make("mul", row, column), k)), make("sub", x, y)),
        make("mul", make("neg", row), make("neg", column)),
        make("mul", make("neg", row), make("mul", column, make("neg", p))),
    ]
    for product in products:
        program = lower_formulas(product)
        assert "neg" not in per_pair(program)
        same(product, program, arrays_for([x, y, p]))
    assert per_pair(lower_formulas(make("neg", k))).count("neg") == 1


def test_what_changes_rarely_is_computed_rarely():
    weighted = make("mul", make("exp", make("sqnorm2", x)), make("mul", make("normalize", y), make("sqrt", p)))
    program = lower_formulas(weighted)
    assert len(per_pair(program)) == 3 and set(per_pair(program)) == {"mul"}
    levels = {step.op: step.level for step in program.values if step.op in ("exp", "rsqrt", "sqrt")}
    assert levels == {"exp": "i", "rsqrt": "j", "sqrt": "p"}
    quotient = make("div", make("scalprod", x, y), make("norm2", y))
    assert [step.level for step in lower_formulas(quotient).values if step.op == "div"] == ["j"]


def test_common_values_are_computed_once():
    twice = make("add", make("exp", make("sub", x, y)), make("sin", make("exp", make("sub", x, y))))
    assert per_pair(lower_formulas(twice)).count("exp") == 3
    swapped = make("mul", make("add", x, y), make("sin", make("add", y, x)))
    assert per_pair(lower_formulas(swapped)).count("add") == 3


def test_constants_are_folded():
    formula = make("mul", make("exp", constant(1)), make("mul", make("sqrt", constant(4)), x))
    constants = [step.static[0] for step in lower_formulas(formula).values if step.op == "const"]
    assert constants == [2 * np.e]
    assert [step.op for step in lower_formulas(zero(2)).values] == ["const"]


def test_what_is_not_needed_is_left_out():
    program = lower_formulas(make("elem", make("concat", make("exp", x), y), static=(4,)))
    assert [step.op for step in program.values] == ["load"] and program.i_components == ()
    assert program.j_components == ((1, 3),)


LONG_X, LONG_Y, B = variable(0, 100, "i"), variable(1, 100, "j"), variable(2, 100, "j")


def test_long_distances_are_one_instruction():
    formula = make("exp", make("neg", make("sqdist", LONG_X, LONG_Y)))
    program = lower_formulas(formula)
    assert [step.op for step in program.values] == ["sqdist", "neg", "exp"]
    assert program.values[0].static == (0, 0, 100) and program.values[0].level == "ij"
    same(formula, program, arrays_for([LONG_X, LONG_Y]))
    plain = lower_formulas(formula, distances=False)
    assert "sqdist" not in [step.op for step in plain.values] and len(plain.values) == 11
    same(formula, plain, arrays_for([LONG_X, LONG_Y]))
    product = make("scalprod", LONG_Y, LONG_X)
    assert [step.op for step in lower_formulas(product).values] == ["dot"]
    same(product, lower_formulas(product), arrays_for([LONG_X, LONG_Y]))


def test_long_distances_between_parts_of_records():
    parts = make("sqdist", make("extract", LONG_Y, static=(5, 40)), make("extract", LONG_X, static=(60, 40)))
    formula = make("add", parts, make("sum", x3 := variable(2, 3, "i")))
    program = lower_formulas(formula)
    assert next(step for step in program.values if step.op == "sqdist").static == (60, 5, 40)
    same(formula, program, arrays_for([LONG_X, LONG_Y, x3]))
    for other in (make("sqdist", LONG_Y, B), make("sqdist", LONG_X, make("sin", LONG_Y))):
        program = lower_formulas(other)
        assert "sqdist" not in [step.op for step in program.values]
        same(other, program, arrays_for([LONG_X, LONG_Y, B]))


def test_a_distance_of_one_record_is_computed_once_a_column():
    program = lower_formulas(make("sqdist", LONG_Y, B))
    assert {step.level for step in program.values} == {"p", "j"}


@pytest.mark.parametrize("dim", [65, 500, 5000])
def test_a_formula_too_large_for_registers(dim):
    a, b, c = variable(0, dim, "i"), variable(1, dim, "j"), variable(2, dim, "j")
    formula = make("mul", make("exp", make("neg", make("sqdist", a, b))), make("add", c, make("normalize", b)))
    program = lower_formulas(formula)
    assert len(program.values) < 60 and program.results == () and program.n_results == dim
    same(formula, program, arrays_for([a, b, c], -0.1, 0.1))


def test_long_vectors_made_of_pieces():
    pieces = make("concat", make("extractT", make("sub", LONG_X, LONG_Y), static=(7, 150)), make("sin", B))
    formula = make("mul", make("max", pieces), make("exp", pieces))
    program = lower_formulas(formula)
    assert "array" in [step.op for step in program.values]
    same(formula, program, arrays_for([LONG_X, LONG_Y, B]))
    weight = lower(PairReduction(make("sum", pieces), "sumsoftmaxweight", pieces))
    _, weights = run(weight, arrays_for([LONG_X, LONG_Y, B]))
    assert weights.shape == (5, 4, 250) and not np.isnan(weights).any()
    same(make("sum", pieces), lower_formulas(make("sum", pieces)), arrays_for([LONG_X, LONG_Y, B]))


def test_a_vector_of_a_thousand_pieces():
    node = p
    for n in range(1000):
        node = make("concat", node, make("mul", p, constant(n)))
    arrays = arrays_for([x, y, p])
    same(node, lower_formulas(node), arrays)
    last, first = make("elem", node, static=(1000,)), make("elem", node, static=(1,))
    same(make("sub", last, first), lower_formulas(make("sub", last, first)), arrays)
    assert gradient(make("sum", node), p).dim == 1


def test_large_matrices():
    matrix, vector = variable(0, 70 * 30, "i"), variable(1, 30, "j")
    formula = make("matvecmult", matrix, vector)
    same(formula, lower_formulas(formula), arrays_for([matrix, vector]))
    formula = make("vecmatmult", vector, make("sin", matrix))
    same(formula, lower_formulas(formula), arrays_for([matrix, vector]))
    formula = make("sqnorm2", make("matvecmult", make("tensorprod", vector, vector), vector))
    same(formula, lower_formulas(formula), arrays_for([matrix, vector]))
    static = ((70, 30), (30,), (1,), (0,))
    formula = make("cos", make("tensordot", matrix, vector, static=static))
    same(formula, lower_formulas(formula), arrays_for([matrix, vector]))


def test_a_deep_formula_of_short_and_of_long_vectors():
    for dim in (1, 100):
        node = variable(0, dim, "i")
        for _ in range(1000):
            node = make("sin", make("add", node, constant(0.1)))
        program = lower_formulas(node)
        same(node, program, arrays_for([variable(0, dim, "i")]))


def test_long_straight_programs_become_loops():
    formula = make("tensorprod", make("sub", x50 := variable(0, 50, "i"), y50 := variable(1, 50, "j")), x50)
    program = lower_formulas(formula)
    assert len(program.values) < 50
    same(formula, program, arrays_for([x50, y50]))


def test_a_large_constant_does_not_join_a_parameter():
    formula = make("mul", constant(1e200), make("mul", D, p))
    same(formula, lower_formulas(formula), [np.zeros((5, 3)), np.full((4, 3), 1e-150), np.array([[1e300]])])


def inside_loops(program):
    """The instructions inside of loops, each with how many loops it is in."""
    depth, actual = 0, []
    for step in program.values:
        depth -= step.op == "end"
        actual += [(step, depth)] if depth else []
        depth += step.op == "loop"
    return actual


def test_short_vectors_stay_straight_beside_long_ones():
    a, b = variable(3, 50, "i"), variable(4, 50, "j")
    formula = make("sin", make("mul", GAUSSIAN, make("exp", make("tensorprod", a, b))))
    program = lower_formulas(formula)
    kinds = [step.op for step in program.values]
    assert kinds.count("loop") == 2 and "array" not in kinds
    same(formula, program, arrays_for([x, y, p, a, b]))


def test_what_a_loop_does_not_change_lies_before_it():
    a, b = variable(0, 70, "i"), variable(1, 70, "j")
    inside = inside_loops(lower_formulas(make("tensorprod", make("exp", a), make("mul", constant(3), b))))
    assert "const" not in [step.op for step, _ in inside]
    assert [depth for step, depth in inside if step.op == "exp"] == [1]


def test_zeros_of_placed_features():
    unit = make("elemT", p, static=(3, 1))
    for op in ("sub", "add", "mul"):
        for formula in (make(op, unit, y), make(op, y, unit)):
            same(formula, lower_formulas(formula), arrays_for([x, y, p]))


@pytest.mark.parametrize("divisor", [0.0, -0.0, 5e-324, 1e-310, 3.0, INF, NAN])
def test_division_by_constants(divisor):
    formula = make("div", variable(0, 1, "i"), constant(divisor))
    result, _ = run(lower_formulas(formula), [SPECIAL])
    np.testing.assert_allclose(result, evaluate(formula, [SPECIAL])[:, None], rtol=1e-15)


def test_products_of_large_and_small_constants_do_not_overflow():
    a = variable(0, 1, "i")
    formula = make("mul", constant(1e200), make("mul", make("mul", a, constant(1e-200)), constant(1e200)))
    program = lower_formulas(formula)
    same(formula, program, [np.array([[1e100]])])
    assert [step.op for step in program.values].count("mul") == 3


SPECIAL = np.array([[0.0], [-0.0], [1.0], [-1.0], [0.5], [-2.5], [INF], [-INF], [NAN], [1e300]])


ELEMENTWISE = sorted(name for name, row in ops.TABLE.items() if row.elementwise)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_special_numbers(name):
    row = ops.TABLE[name]
    static = {"pow": (3,), "round": (0,), "clampint": (-1, 1), "diffclampint": (-1, 1)}.get(name, ())
    formula = make(name, *(variable(n, 1, "iji"[n]) for n in range(row.arity)), static=static)
    arrays = [SPECIAL, SPECIAL, SPECIAL[::-1]][: row.arity]
    result, _ = run(lower_formulas(formula), arrays)
    expected = evaluate(formula, [SPECIAL[:, None], SPECIAL[None], SPECIAL[::-1, None]])
    if name == "div":  # by what changes more rarely: a multiplication by the inverse
        np.testing.assert_allclose(result[:9], np.broadcast_to(expected, result.shape)[:9], rtol=1e-15)
    else:
        np.testing.assert_allclose(result, np.broadcast_to(expected, result.shape), rtol=1e-15)


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
@pytest.mark.parametrize(
    "features", [[1, NAN, 2, NAN], [NAN, 1, 2], [3, 1, 3, 1], [INF, -INF], [-INF, -INF], [INF, INF]]
)
def test_the_best_of_special_features(name, features):
    formula = make(name, variable(0, len(features), "i"))
    for program in (lower_formulas(formula), loops_only(formula)):
        same(formula, program, [np.array([features], float)])


def test_weights_and_layout():
    weight = make("mul", y, p)
    program = lower(PairReduction(GAUSSIAN, "logsumexp", weight))
    assert program.i_components == ((0, 3),) and program.j_components == ((1, 3),)
    assert program.p_components == ((2, 1),) and program.width("j") == 3
    assert (program.n_results, program.n_weights) == (1, 3) == (len(program.results), len(program.weights))
    arrays = arrays_for([x, y, p])
    _, weights = run(program, arrays)
    np.testing.assert_allclose(weights, np.broadcast_to(arrays[1] * arrays[2], (5, 4, 3)))


def test_programs_are_the_same_every_time():
    formula = random_formula(np.random.default_rng(5))
    assert lower_formulas(formula) == lower_formulas(formula)
    assert str(lower_formulas(formula)) == str(lower_formulas(formula))
