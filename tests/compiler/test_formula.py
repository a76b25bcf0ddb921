"""Formulas, aliases and reductions as text: KeOps' language, round trips, and what is refused by name."""

import numpy as np
import pytest
from formulas import CASES, IDS, case_formula, random_formula
from hypothesis import given
from hypothesis import strategies as st
from upsweep._compiler.formulas import ops
from upsweep._compiler.formulas.derivative import differential, divergence, gradient, gradient_matrix, laplacian
from upsweep._compiler.formulas.nodes import constant, make, text, variable, zero
from upsweep._compiler.formulas.parser import parse, parse_aliases, reduction_name
from upsweep._compiler.formulas.reduction import PairReduction
from upsweep._compiler.formulas.rules import simplify

x, y, g, b = variable(0, 3, "i"), variable(1, 3, "j"), variable(2, 1, "p"), variable(3, 2, "j")
ALIASES = ["X = Vi(0,3)", "Y=Vj(1, 3)", "G = Pm(1)", "B = Vj(2)"]
D = make("sqdist", x, y)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_round_trip(case):
    if case[:2] == ("softdtw_sqdist", (3, 4, 1)):
        pytest.skip("a small graph whose tree, and text, is too large to be written")
    formula = case_formula(case)
    assert parse(text(formula)) is formula
    assert parse(text(simplify(formula))) is simplify(formula)


@pytest.mark.parametrize("seed", range(30))
def test_round_trip_of_random_formulas(seed):
    formula = random_formula(np.random.default_rng(seed), depth=3)
    assert parse(text(formula)) is formula
    derived = gradient(formula, variable(0, 3, "i"), constant(1))
    assert parse(text(derived)) is derived


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -2.5, 1e-300, 1e22, 0.1, np.inf, -np.inf, np.nan])
def test_round_trip_of_numbers(value):
    for formula in (constant(value), make("neg", constant(value)), make("sub", x, constant(value))):
        assert parse(text(formula)) is formula
    bounds = make("clampint", x, static=(value, 3))
    assert parse(text(bounds)) is bounds


@pytest.mark.parametrize("name", ops.TABLE)
def test_every_operation_is_read_by_its_name(name):
    case = next(case for case in CASES if case[0] == name)
    _, dims, static, _ = case
    written = [f"Var({n},{dim},{n})" for n, dim in enumerate(dims)]
    written += [str(list(part)) if isinstance(part, tuple) else str(part) for part in static]
    assert parse(f"{ops.TABLE[name].keops}({', '.join(written)})") is case_formula(case)


@pytest.mark.parametrize("name", ["Kron", "TensorDot"])
def test_lists_of_numbers_as_in_keops_documents(name):
    case = next(case for case in CASES if ops.TABLE[case[0]].keops == name)
    written = [f"Var({n},{dim},{n})" for n, dim in enumerate(case[1])]
    written += [f"Ind({', '.join(map(str, part))})" for part in case[2]]
    assert parse(f"{name}({', '.join(written)})") is case_formula(case)


SAME = {
    "Exp(-G*SqDist(X,Y))*B": make("mul", make("exp", make("mul", make("neg", g), D)), b),
    "Exp( - G *\n SqDist( X , Y ) ) * B": make("mul", make("exp", make("mul", make("neg", g), D)), b),
    "X - Y + X": make("add", make("sub", x, y), x),
    "X / Y * 2": make("mul", make("div", x, y), constant(2)),
    "X | Y": make("scalprod", x, y),
    "(X|Y) + 1": make("add", make("scalprod", x, y), constant(1)),
    "X ** 2": make("square", x),
    "X ** 3": make("pow", x, static=(3,)),
    "X ** -1": make("pow", x, static=(-1,)),
    "G ** 0.5": make("sqrt", g),
    "G ** -0.5": make("rsqrt", g),
    "G ** 1.5": make("powf", g, constant(1.5)),
    "X ** G": make("powf", x, g),
    "-X ** 2": make("neg", make("square", x)),
    "X == Y": make("eq", x, y),
    "X != Y": make("ne", x, y),
    "X < Y": make("lt", x, y),
    "X > Y": make("lt", y, x),
    "X <= 0": make("le", x, constant(0)),
    "X >= 0": make("le", constant(0), x),
    "+X": x,
    "X[1]": make("elem", x, static=(1,)),
    "X[-1]": make("elem", x, static=(2,)),
    "X[1:]": make("extract", x, static=(1, 2)),
    "X[:2]": make("extract", x, static=(0, 2)),
    "Var(0,3,0) + X": make("add", x, x),
    "Vi(0,3) + Pm(2,1)": make("add", x, g),
    "IntCst(2)*X": make("mul", constant(2), x),
    "RatCst(1,4)*X": make("mul", constant(0.25), x),
    "IntInv(4)*X": make("mul", constant(0.25), x),
    "Zero(3)": zero(3),
    "-2.5e-1": constant(-0.25),
    "Grad(Exp(-SqDist(X,Y)), X, G)": gradient(make("exp", make("neg", D)), x, g),
    "Grad(Exp(-SqDist(X,Y)), X)": gradient(make("exp", make("neg", D)), x, variable(2, 1, "j")),
    "GradMatrix(X * Y, X)": gradient_matrix(make("mul", x, y), x),
    "Diff(X * Y, X, Y)": differential(make("mul", x, y), x, y),
    "Divergence(Sin(X), X)": divergence(make("sin", x), x),
    "Laplacian(Exp(-SqDist(X,Y)), X)": laplacian(make("exp", make("neg", D)), x),
}


@pytest.mark.parametrize("written", SAME)
def test_the_language(written):
    assert parse(written, ALIASES) is SAME[written]
    assert parse(written, parse_aliases(ALIASES)) is SAME[written]


def test_a_long_sum():
    assert parse("+".join(["X"] * 300), ALIASES).op == "add"
    for nested in ("(" * 300 + "X" + ")" * 300, "X ** " * 3000 + "X", "-" * 3000 + "X"):
        with pytest.raises(ValueError, match=r"nested too deeply|too many"):
            parse(nested, ALIASES)
    deep = parse("Exp(" * 90 + "X" + ")" * 90, ALIASES)
    assert deep.op == "exp"


def test_aliases():
    names, actual = parse_aliases(["x = Vi(3)", "y=Vj(1,3)", "Pm(1)", "Var(3,2,1)"])
    assert names == {"x": x, "y": y} and actual == (x, y, g, b)
    assert parse_aliases(["b=Vj(1,4)", "a = Vx(0,2)"]).variables == (variable(0, 2, "i"), variable(1, 4, "j"))
    assert parse_aliases([]) == ({}, ())


@pytest.mark.parametrize(
    "aliases, message",
    [
        (["x = Vk(3)"], r"aliases: 'x = Vk\(3\)' is none of"),
        (["x = Vi(3,"], "is none of"),
        (["x = Vi(1,2,3)"], "is none of"),
        (["Var(0,3,4)"], "is none of"),
        (["2x = Vi(3)"], "is none of"),
        ([3], "3 is none of"),
        (["x = Vi(3)", "x = Vj(3)"], "declares x again"),
        (["x = Vi(0,3)", "y = Vj(0,3)"], r"declares array 0 again, which is Var\(0,3,0\)"),
        (["x = Vi(0,3)", "y = Vj(2,3)"], "no alias declares array 1"),
        (["Exp = Vi(3)"], "Exp in 'Exp = Vi"),
        (["x = Vi(0)"], "at least one feature"),
    ],
)
def test_aliases_that_are_refused(aliases, message):
    with pytest.raises(ValueError, match=message):
        parse_aliases(aliases)


@pytest.mark.parametrize(
    "written, message",
    [
        ("Expp(X)", "'Expp' is no operation; did you mean Exp"),
        ("sqdist(X, Y)", "is no operation; did you mean SqDist"),
        ("SqDistance(X, Y)", "did you mean SqDist"),
        ("X + Z", r"'Z' is not the name of an alias; there are X, Y, G, B \(in 'X \+ Z'\)"),
        ("X - B", r"in Subtract\(Var\(0,3,0\), Var\(3,2,1\)\): dims have to be equal, or 1: Var\(0,3,0\) has 3 "
         r"and Var\(3,2,1\) has 2 \(in 'X - B'\)"),
        ("Exp(X, Y)", "'Y' has to be a number"),
        ("Exp()", "Exp takes 1 argument, not 0"),
        ("Elem(X, 7)", "the index has to be an integer from 0 to 2, not 7"),
        ("X[7]", "from 0 to 2, not 7"),
        ("X[::2]", "has a step"),
        ("X[G]", "'G' has to be a number"),
        ("X +", "is no formula: invalid syntax"),
        ("X.T", "'X.T' is no part of a formula"),
        ("__import__('os')", "'__import__' is no operation"),
        ("'X'", "has to be a number"),
        ("True", "has to be a number"),
        ("X < Y < G", "is no part of a formula"),
        ("X if G else Y", "is no part of a formula"),
        ("Exp(x=X)", "by keyword"),
        ("TraceOperator(X, G)", "is KeOps' and is not supported"),
        ("BSpline(X, G, 3)", "order 3 takes 5 knots or more, and a number"),
        ("SoftDTW_SqDist(X, Y, B)", "gamma has to be a number"),
        ("ComplexMult(X, Y)", "not supported; complex numbers are two real formulas"),
        ("Conj(X)", "not supported; complex"),
        ("Var(0,2,0) + X", r"'Var\(0,2,0\)' is declared as Var\(0,3,0\) by an alias"),
        ("Var(0,2)", "takes 3 numbers, not 2"),
        ("Var(0,2,5)", "has a category other than 0, 1 and 2"),
        ("Var(0,2.5,1)", "takes integers"),
        ("RatCst(1,0)", "divides by zero"),
        ("Zero(0)", "takes a dim of at least 1"),
        ("Grad(Exp(X), Sin(X), X)", "cannot be taken: gradients are taken of variables"),
        ("Grad(X, X, B)", "cannot be taken: the gradient of"),
        ("Grad(G, G)", "takes a cotangent"),
        ("Grad(X)", "takes 2 or 3 arguments, not 1"),
    ],
)  # fmt: skip
def test_formulas_that_are_refused(written, message):
    with pytest.raises(ValueError, match=message):
        parse(written, ALIASES)


PIECES = [
    "X", "Y", "G", "B", "Exp", "SqDist", "Elem", "Var", "Grad", "(", ")", ",", "+", "-", "*", "/", "**", "|", "<",
    "[", "]", ":", "0", "2", "0.5", "inf", " ", ".", "=", "lambda", "\n", "\0",
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::SyntaxWarning")  # Python's own, of numbers that names follow
@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
def test_whatever_is_written_is_read_or_refused(written):
    try:
        formula = parse(written, ALIASES)
    except ValueError:
        return
    assert parse(text(formula)) is formula


def test_only_text_is_read():
    with pytest.raises(ValueError, match="a formula is a str, not int"):
        parse(3)


def test_names_of_reductions():
    names = {"Sum": "sum", "MaxArgMax": "max_argmax", "Min_ArgMin": "min_argmin", "ArgKMin": "argkmin",
             "LogSumExpWeight": "logsumexp", "SumSoftMaxWeight": "sumsoftmaxweight"}  # fmt: skip
    assert {name: reduction_name(name) for name in names} == names


@pytest.mark.parametrize(
    "name, message",
    [
        ("Summ", "no reduction 'Summ'; did you mean Sum"),
        ("Max_SumShiftExp", "not supported; LogSumExp is what it is for"),
    ],
)
def test_names_of_reductions_that_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        reduction_name(name)


def test_a_reduction_of_exponentials_takes_a_number():
    with pytest.raises(ValueError, match="takes a formula of dim 1, not 3"):
        PairReduction(x, "logsumexp")
