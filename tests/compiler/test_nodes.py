"""Nodes: one object for one expression, immutable, with complaints that name both operands."""

import copy
import gc
import os
import pickle
import signal
import sys
import threading
import weakref

import pytest
from upsweep._compiler.formulas import nodes
from upsweep._compiler.formulas.nodes import (
    MAX_TEXT,
    constant,
    key_text,
    make,
    order,
    substitute,
    text,
    variable,
    variables,
    zero,
)

x, y, p = variable(0, 3, "i"), variable(1, 3, "j"), variable(2, 1, "p")


def test_the_same_expression_is_the_same_object():
    assert make("exp", make("sub", x, y)) is make("exp", make("sub", x, y))
    assert make("sub", x, y) is not make("sub", y, x)
    assert variable(0, 3, "i") is x and variable(0, 3, "j") is not x and variable(0, 2, "i") is not x
    assert make("pow", x, static=(3,)) is make("pow", x, static=(3,)) is not make("pow", x, static=(2,))


def test_numbers_differ_by_their_bits():
    assert constant(0.0) is not constant(-0.0)
    assert constant(float("nan")) is constant(float("nan"))
    assert constant(1) is constant(1.0) is constant(True)
    assert make("clampint", x, static=(0, 1)) is not make("clampint", x, static=(0.0, 1.0))
    assert constant(1).static == (1.0,) and constant(1) is not zero(1)


def test_nodes_cannot_be_changed_or_made_by_hand():
    with pytest.raises(AttributeError, match="immutable"):
        x.dim = 4
    with pytest.raises(TypeError, match="make"):
        nodes.Node("exp")


def test_nodes_survive_copies_and_processes():
    formula = make("mul", make("exp", make("neg", make("sqdist", x, y))), p)
    assert pickle.loads(pickle.dumps(formula)) is formula
    assert copy.deepcopy({"formula": formula})["formula"] is formula


def test_what_nobody_holds_is_forgotten():
    formula = make("tanh", make("mul", x, constant(0.12345)))
    constructed = [formula, formula.args[0], formula.args[0].args[1]]
    assert all(any(node is known for known in list(nodes._table.values())) for node in constructed)
    refs = [weakref.ref(node) for node in constructed]
    del formula, constructed
    gc.collect()
    assert [ref() for ref in refs] == [None] * 3


def test_several_threads_build_the_same_nodes():
    n_threads = 4
    built, start = [], threading.Barrier(n_threads)

    def build():
        for first in range(100):
            start.wait()
            built.append([make("mul", x, constant(1000 * first + n)) for n in range(20)])

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that threads meet in the middle of the table's work
    try:
        threads = [threading.Thread(target=build) for _ in range(n_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert len(built) == 100 * n_threads
    assert len({node for nodes in built for node in nodes}) == 100 * 20


def test_a_fork_while_another_thread_has_the_table():
    with nodes._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            formula = make("exp", make("cos", x))
            os._exit(0 if formula.dim == 3 else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_kinds_and_dims_and_order():
    formula = make("mul", make("sqdist", x, y), p)
    assert formula.kinds == {"i", "j", "p"} and formula.dim == 1
    assert make("exp", x).kinds == {"i"} and constant(1).kinds == frozenset()
    assert [node.op for node in order(formula)] == ["variable", "variable", "sqdist", "variable", "mul"]
    assert variables(formula) == (x, y, p)


def test_a_formula_deeper_than_the_stack():
    node = x
    for _ in range(5000):
        node = make("sin", node)
    assert len(order(node)) == 5001
    assert (
        text(node).startswith("Sin(Sin(")
        and len(text(node, None)) == 5000 * 5 + len(text(x))
        and text(node, limit=20) == "Sin(Sin(Sin(Sin(S..."[:20]
    )
    assert substitute(node, {x: y}).kinds == {"j"}


def test_a_formula_whose_tree_is_huge():
    node = x
    for _ in range(100):
        node = make("mul", node, make("add", node, p))
    assert len(key_text(node)) < 5000
    assert key_text(node) != key_text(make("mul", node, p))
    assert len(text(node, limit=80)) <= 80 and len(repr(node)) <= 2000
    assert len(text(node)) == MAX_TEXT


def test_substitute():
    formula = make("exp", make("sub", x, y))
    assert substitute(formula, {y: make("neg", x)}) is make("exp", make("sub", x, make("neg", x)))
    with pytest.raises(ValueError, match=r"Var\(1,3,1\) of dim 3 cannot become Var\(2,1,2\) of 1"):
        substitute(formula, {y: p})


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: make("expp", x), "no operation 'expp'; did you mean exp"),
        (lambda: make("sq_dist", x, y), "did you mean sqdist"),
        (lambda: make("wvuy", x), "no operation 'wvuy'$"),
        (lambda: make("sub", x, variable(3, 2, "j")),
         r"in Subtract\(Var\(0,3,0\), Var\(3,2,1\)\): dims have to be equal, or 1: Var\(0,3,0\) has 3 and "
         r"Var\(3,2,1\) has 2"),
        (lambda: make("exp", x, y), "Exp takes 1 argument, not 2"),
        (lambda: make("pow", x), r"Pow takes 1 numbers, not \(\)"),
        (lambda: make("pow", x, static=(2.5,)), "the number has to be an integer, not 2.5"),
        (lambda: make("round", x, static=("1",)), "the number has to be an integer, not '1'"),
        (lambda: make("elem", x, static=(3,)),
         r"in Elem\(Var\(0,3,0\), 3\): the index has to be an integer from 0 to 2"),
        (lambda: make("elem", x, static=(-1,)), "integer from 0 to 2, not -1"),
        (lambda: make("elem", x, static=(1.5,)), "integer from 0 to 2, not 1.5"),
        (lambda: make("extract", x, static=(1, 3)),
         "the number of features has to be an integer from 1 to 2, not 3"),
        (lambda: make("extractT", x, static=(1, 3)), "of at least 4"),
        (lambda: make("sumT", x, static=(3,)), "SumT takes an argument of dim 1: Var"),
        (lambda: make("matvecmult", x, variable(1, 2, "j")), "multiple of the vector's"),
        (lambda: make("weightedsqnorm", variable(1, 2, "j"), x), "the weights' dim has to be 1, 3 or 9"),
        (lambda: make("tensordot", x, y, static=((2,), (3,), (), ())), "do not have the arguments' dims"),
        (lambda: make("tensordot", x, y, static=((3,), (3,), (1,), (0,))), r"\[1\] are not axes"),
        (lambda: make("tensordot", x, y, static=((3,), (3,), (), (), (0, 0))), "not a permutation of 2 axes"),
        (lambda: make("clampint", x, static=("a", 1)), "'a' is not a number"),
        (lambda: variable(0, 0, "i"), "variable 0 has to have at least one feature"),
        (lambda: variable(0, 1, "k"), "one of i, j, p, not 'k'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()
