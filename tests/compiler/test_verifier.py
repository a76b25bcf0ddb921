"""The grammar between passes: every kind of bad graph and bad program is found."""

from dataclasses import replace

import pytest
from upsweep._compiler.formulas.nodes import check_formula, check_variables, intern, make, variable
from upsweep._compiler.formulas.reduction import PairReduction
from upsweep._compiler.formulas.reference import pair_reduction
from upsweep._compiler.lowering.lower import lower, lower_formulas
from upsweep._compiler.lowering.program import Instruction, Program, check_program

x, y = variable(0, 3, "i"), variable(1, 3, "j")


def test_an_array_that_is_read_in_two_ways():
    formula = make("sum", make("concat", x, variable(0, 2, "i")))
    for call in (check_variables, lower_formulas, lambda f: lower(PairReduction(f, "sum"))):
        with pytest.raises(ValueError, match=r"array 0 cannot be Var\(0,3,0\) and Var\(0,2,0\) in one formula"):
            call(formula)
    with pytest.raises(ValueError, match="array 0 cannot be"):
        pair_reduction(PairReduction(make("sum", x), "logsumexp", variable(0, 3, "j")), [], 1, 1)


@pytest.mark.parametrize(
    "node, message",
    [
        (intern("expp", (x,), (), 3), "no operation expp"),
        (intern("norm2", (x,), (), 1), "Norm2 is a composite operation"),
        (intern("exp", (x, y), (), 3), "Exp of 2 arguments"),
        (intern("exp", (x,), (), 2), "Exp of dim 2, which should be 3"),
        (intern("pow", (x,), (), 3), "Pow with the numbers"),
        (intern("constant", (), (1.0, 2.0), 1), "a malformed constant"),
        (intern("variable", (), (0, "k"), 1), "a variable of kind k"),
    ],
)
def test_bad_formulas(node, message):
    with pytest.raises(AssertionError, match=message):
        check_formula(make("sum", node))


LONG = [variable(n, 100, kind) for n, kind in enumerate("ij")]
LOOPS = lower_formulas(make("max", make("concat", make("sub", *LONG), make("argmax", make("sub", *LONG)))))
LOOPS_OUT = lower_formulas(make("exp", make("concat", make("sub", *LONG), make("max", make("sub", *LONG)))))
SHORT = lower_formulas(make("relu", make("sub", x, y)))


def changed(program, name, **fields):
    """The program with its first instruction of a name changed; a field may be a function of the old one."""
    n = next(n for n, step in enumerate(program.values) if step.op == name)
    step = program.values[n]
    fields = {key: value(getattr(step, key)) if callable(value) else value for key, value in fields.items()}
    return replace(program, values=(*program.values[:n], replace(step, **fields), *program.values[n + 1 :]))


def appended(program, *steps):
    return replace(program, values=(*program.values, *steps))


BAD = {
    "reads what comes later": (
        changed(SHORT, "sub", args=lambda args: (args[0], len(SHORT.values) - 1)),
        "reads v",
    ),
    "a level below its argument's": (changed(SHORT, "sub", level="i"), "of level i reads v"),
    "a mask as a number": (changed(SHORT, "sub", op="select"), "reads a mask as a number"),
    "a number too many": (changed(SHORT, "sub", args=lambda args: (*args, args[0])), "sub of 3 arguments"),
    "outside of the record": (changed(SHORT, "load", static=("i", 3)), "leaves what it reads"),
    "a place without its loop": (changed(SHORT, "load", static=("i", 0, 1)), "no place"),
    "too few results": (replace(SHORT, results=SHORT.results[:2]), "results are missing"),
    "results that are masks": (replace(SHORT, results=(SHORT.results[0] - 1,) * 3), "results are no numbers"),
    "results of nothing": (replace(LOOPS_OUT, n_weights=2), "weights are missing"),
    "a loop of another level": (changed(LOOPS, "number", level="p"), "in a loop of ij"),
    "a loop that does not end": (appended(LOOPS, Instruction("loop", (), (3,), "ij")), "a loop without an end"),
    "an end that gives too little": (
        changed(LOOPS, "end", args=lambda args: args[:2]),
        "does not give all carries",
    ),
    "beyond the array": (changed(LOOPS, "array", static=(100,)), "leaves what it reads or writes"),
    "an end of no loop": (appended(SHORT, Instruction("end", (0,), (), "ij")), "of no loop"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_programs(what):
    program, message = BAD[what]
    with pytest.raises(AssertionError, match=message):
        check_program(program)


def test_what_a_loop_computed_cannot_be_read_behind_it():
    inside = next(n for n, step in enumerate(LOOPS.values) if step.op == "number")
    with pytest.raises(AssertionError, match=f"reads v{inside} outside of its loop"):
        check_program(appended(LOOPS, Instruction("exp", (inside,), (), "ij")))


def test_a_carry_that_comes_late():
    steps = (
        Instruction("const", (), (0.0,), "p"),
        Instruction("loop", (), (3,), "p"),
        Instruction("number", (1,), (), "p"),
        Instruction("carry", (0, 1), (), "p"),
        Instruction("end", (1, 2), (), "p"),
    )
    with pytest.raises(AssertionError, match="not directly behind its loop"):
        check_program(Program(steps, (3,), (), 1, 0, (), (), ()))


def test_good_ones_pass():
    for program in (LOOPS, LOOPS_OUT, SHORT):
        check_program(program)
    check_formula(x, make("sqdist", x, y))
