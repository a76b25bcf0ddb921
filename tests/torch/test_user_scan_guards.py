"""Updates under torch.compile: results follow what an update captures, by a guard or by a graph break."""

import enum
import functools
import operator
from typing import NamedTuple

import numpy as np
import pytest
import upsweep
from tensors import torch
from upsweep._torch import user_scan_guards, user_scan_ops

VERSION = tuple(map(int, torch.__version__.split(".")[:2]))
MODE, NUMBER, PAIR = "grow", np.float64(0.5), (0.5, 1.0)


class Settings:
    rate = 0.5


class Cell:
    rate = 0.5

    def __init__(self, rate=0.5):
        self.own = rate

    def __call__(self, s, x):
        return self.own * s + x

    def step(self, s, x):
        return self.own * s + x

    @classmethod
    def shared(cls, s, x):
        return cls.rate * s + x

    @staticmethod
    def static(s, x):
        return Settings.rate * s + x


CELL = Cell()


class Kind(enum.Enum):
    SLOW = 0.5
    FAST = 0.25


class Rates(NamedTuple):
    rate: float


def helper(s):
    return Settings.rate * s


def linear(rate):
    return lambda s: rate * s


HALF, QUARTER = linear(0.5), linear(0.25)


def calling(f, g):
    return lambda s, x: f(s) + g(s) + x


def by_attribute(owner):
    return lambda s, x: owner.rate * s + x


def with_default(owner):
    return lambda s, x, owner=owner: owner.rate * s + x


def run(function, fullgraph=False):
    torch._dynamo.reset()
    return torch.compile(function, backend="eager", fullgraph=fullgraph)


def scan(x, update):
    return upsweep.scan(update, 0.0, x)


X = torch.linspace(-1, 1, 6, dtype=torch.float64)

# Two updates of one code, and whether every version of torch guards what they capture.
PAIRS = {
    "text": (lambda mode: lambda s, x: s + x if mode == "grow" else s - x, "grow", "shrink", True),
    "enum": (lambda kind: lambda s, x: (0.5 if kind.name == "SLOW" else 0.25) * s + x, *Kind, True),
    "enum that is global, too": (
        lambda kind: lambda s, x: (0.5 if kind is Kind.SLOW else 0.25) * s + x,
        *Kind,
        False,
    ),
    "numpy scalar": (lambda rate: lambda s, x: rate * s + x, np.float64(0.5), np.float64(0.25), True),
    "float32": (lambda rate: lambda s, x: rate * s + x, np.float32(0.5), np.float32(0.25), False),
    "none": (lambda rate: lambda s, x: (0.5 if rate is None else 0.25) * s + x, None, 1, True),
    "tuple": (lambda pair: lambda s, x: pair[0] * s + x, (0.5, 1.0), (0.25, 1.0), True),
    "namedtuple": (by_attribute, Rates(0.5), Rates(0.25), True),
    "function": (lambda f: lambda s, x: f(s) + x, HALF, QUARTER, True),
    "builtin": (lambda f: lambda s, x: f(s) + x, operator.neg, operator.pos, True),
    "one function in two cells": (lambda g: calling(HALF, g), HALF, QUARTER, True),
    "partial": (lambda rate: functools.partial(lambda rate, s, x: rate * s + x, rate), 0.5, 0.25, True),
    "method": (lambda rate: Cell(rate).step, 0.5, 0.25, False),
    "object": (Cell, 0.5, 0.25, VERSION >= (2, 13)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_updates_of_one_code(name):
    make, *values, is_guarded = PAIRS[name]
    compiled = run(scan)
    for value in (*values, values[0]):
        torch.testing.assert_close(compiled(X, make(value)), scan(X, make(value)))
    assert not torch.equal(scan(X, make(values[0])), scan(X, make(values[1])))
    whole = run(scan, fullgraph=True)
    if is_guarded:
        torch.testing.assert_close(whole(X, make(values[0])), scan(X, make(values[0])))
    else:
        with pytest.raises(torch._dynamo.exc.Unsupported, match=r"pass (it|what it reads of self) in xs"):
            whole(X, make(values[0]))


# An update, and the variable that changes: the owner, its name and another value.
VARIABLES = {
    "global text": (lambda s, x: s + x if MODE == "grow" else s - x, globals(), "MODE", "shrink"),
    "global numpy scalar": (lambda s, x: NUMBER * s + x, globals(), "NUMBER", np.float64(0.25)),
    "global tuple": (lambda s, x: PAIR[0] * s + x, globals(), "PAIR", (0.25, 1.0)),
    "class": (lambda s, x: Settings.rate * s + x, Settings, "rate", 0.25),
    "class in a helper": (lambda s, x: helper(s) + x, Settings, "rate", 0.25),
    "class in a cell": (by_attribute(Settings), Settings, "rate", 0.25),
    "class as a default": (with_default(Settings), Settings, "rate", 0.25),
    "static method": (Cell.static, Settings, "rate", 0.25),
    "class method": (Cell.shared, Cell, "rate", 0.25),
    "method": (CELL.step, CELL, "own", 0.25),
    "object": (CELL, CELL, "own", 0.25),
}


def assert_follows(compiled, expected, monkeypatch, owner, name, value):
    before = expected()
    torch.testing.assert_close(compiled(), before)
    (monkeypatch.setitem if isinstance(owner, dict) else monkeypatch.setattr)(owner, name, value)
    torch.testing.assert_close(compiled(), expected())
    assert not torch.equal(before, expected())
    monkeypatch.undo()
    torch.testing.assert_close(compiled(), before)


@pytest.mark.parametrize("name", VARIABLES)
def test_variables_that_change(name, monkeypatch):
    update, *change = VARIABLES[name]
    compiled = run(lambda x: scan(x, update))
    assert_follows(lambda: compiled(X), lambda: scan(X, update), monkeypatch, *change)


@pytest.mark.parametrize("make", [by_attribute, with_default, lambda c: functools.partial(by_attribute(c))])
def test_a_class_that_an_update_of_traced_code_captures(make, monkeypatch):
    def function(x):
        return upsweep.scan(make(Settings), 0.0, x)

    compiled = run(function)
    assert_follows(lambda: compiled(X), lambda: function(X), monkeypatch, Settings, "rate", 0.25)


@pytest.mark.skipif(VERSION < (2, 13), reason="this torch takes attributes of classes as constants, not guarded")
def test_attributes_of_classes_are_guarded(monkeypatch):
    compiled = run(lambda x: scan(x, Cell.static), fullgraph=True)
    assert_follows(lambda: compiled(X), lambda: scan(X, Cell.static), monkeypatch, Settings, "rate", 0.25)


def test_guards_of_another_graph_do_not_count(monkeypatch):
    """Where the compiler cannot trace the reading, the scan runs in Python."""

    def read_captured(update):
        torch._dynamo.graph_break()
        return read(update)

    read = user_scan_guards.read_captured
    monkeypatch.setattr(user_scan_ops, "read_captured", read_captured)
    compiled = run(scan)
    for rate in (0.5, 0.25):
        update = by_attribute(Rates(rate))
        torch.testing.assert_close(compiled(X, update), scan(X, update))


def test_updates_with_very_many_variables_are_a_break_of_the_graph():
    pairs = functools.reduce(lambda pair, _: (pair, pair), range(11), (0.5,))
    with pytest.raises(torch._dynamo.exc.Unsupported, match="pass it in xs"):
        run(scan, fullgraph=True)(X, lambda s, x: s + x * len(pairs))
