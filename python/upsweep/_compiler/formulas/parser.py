"""Parser of formulas and aliases in KeOps' language, whose grammar is that of Python's expressions.

    Exp(-G * SqDist(X, Y)) * B          with aliases "X = Vi(0, 3)", "Y = Vj(1, 3)", "G = Pm(1)", "B = Vj(2)"

Python's parser makes the syntax tree; nothing is evaluated. Errors quote the part of the text that they concern.
"""

from __future__ import annotations

import ast
import ctypes
import math
import operator
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from upsweep._compiler.formulas import derivative, ops
from upsweep._compiler.formulas.nodes import KINDS, Node, constant, make, variable, variables, zero

_ALIAS = re.compile(
    r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<category>Vi|Vj|Vx|Vy|Pm|Var)\((?P<numbers>-?\d+(?:,-?\d+)*)\)", re.ASCII
)
_CATEGORIES = {"Vi": "i", "Vj": "j", "Vx": "i", "Vy": "j", "Pm": "p"}  # Vx and Vy are older names of KeOps
_BINARY = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.BitOr: "scalprod"}
_COMPARED = {ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "lt", ast.GtE: "le"}
_CONSTANTS = {"inf": math.inf, "nan": math.nan}

_REDUCTIONS = {  # names here by those of KeOps
    "Sum": "sum", "LogSumExp": "logsumexp", "LogSumExpWeight": "logsumexp", "SumSoftMaxWeight": "sumsoftmaxweight",
    "SoftMax": "sumsoftmaxweight", "Min": "min", "Max": "max", "ArgMin": "argmin", "ArgMax": "argmax",
    "Min_ArgMin": "min_argmin", "MinArgMin": "min_argmin", "Max_ArgMax": "max_argmax", "MaxArgMax": "max_argmax",
    "KMin": "kmin", "ArgKMin": "argkmin", "KMin_ArgKMin": "kmin_argkmin", "KMinArgKMin": "kmin_argkmin",
}  # fmt: skip

_COMPLEX = "; complex numbers are two real formulas here"
_UNSUPPORTED = {
    **dict.fromkeys(("TraceOperator", "AdjointOperator", "SumLinOperator"), ""),
    **dict.fromkeys(("Real2Complex", "Imag2Complex", "Conj"), _COMPLEX),
    "Max_SumShiftExp": "; LogSumExp is what it is for",
    "Max_SumShiftExpWeight": "; LogSumExpWeight and SumSoftMaxWeight are what it is for",
    "ZeroReduction": "",
}


class Aliases(NamedTuple):
    """The variables that a list of aliases declares: those with a name, and all of them by position."""

    names: dict[str, Node]
    variables: tuple[Node, ...]


def parse_aliases(aliases: Sequence[str]) -> Aliases:
    """Parse KeOps' declarations of variables.

    Each is ``"x = Vi(dim)"`` or ``"x = Vi(position, dim)"``, with Vi, Vj or Pm, with or without the name; or
    ``"Var(position, dim, category)"``, where the category is 0 for i, 1 for j, 2 for parameters. The default
    position is that in the list. Raises TypeError for one str instead of a sequence, and ValueError for another
    form, a duplicate name or position, or a position without a declaration.

    >>> parse_aliases(["x = Vi(3)", "Pm(1)"])
    Aliases(names={'x': Var(0,3,0)}, variables=(Var(0,3,0), Var(1,1,2)))
    """
    if isinstance(aliases, str):  # a sequence of its characters
        raise TypeError(f"aliases: expected a sequence of str, one for each array, got {aliases!r}")
    names: dict[str, Node] = {}
    by_position: dict[int, Node] = {}
    for n, alias in enumerate(aliases):
        name, node = _alias(alias, n)
        position = node.static[0]
        if position in by_position:
            known = by_position[position]
            raise ValueError(f"aliases: {alias!r} declares array {position} again, which is {known!r}")
        if name in names:
            raise ValueError(f"aliases: {alias!r} declares {name} again, which is {names[name]!r}")
        if name in ops.BY_KEOPS or name in _SPECIAL or name in _CONSTANTS:
            raise ValueError(f"aliases: {name} in {alias!r} is the name of an operation or a number")
        by_position[position] = node
        if name is not None:
            names[name] = node
    missing = sorted(set(range(len(by_position))) - set(by_position))
    if missing:
        raise ValueError(f"aliases: no alias declares array {missing[0]}; there are arrays {sorted(by_position)}")
    return Aliases(names, tuple(by_position[position] for position in sorted(by_position)))


def _alias(alias: str, n: int) -> tuple[str | None, Node]:
    """The name and the variable that alias `n` declares."""
    match = _ALIAS.fullmatch(alias.replace(" ", "")) if isinstance(alias, str) else None
    if match is not None:
        name, category = match["name"], match["category"]
        numbers = [int(number) for number in match["numbers"].split(",")]
        if category == "Var" and len(numbers) == 3 and 0 <= numbers[2] < len(KINDS):
            return name, variable(numbers[0], numbers[1], KINDS[numbers[2]])
        if category != "Var" and len(numbers) <= 2:
            return name, variable(numbers[0] if len(numbers) == 2 else n, numbers[-1], _CATEGORIES[category])
    raise ValueError(
        f"aliases: {alias!r} is none of 'x = Vi(dim)' and 'x = Vi(position, dim)', with Vi, Vj or Pm, and "
        "'Var(position, dim, category)'"
    )


# Twice the C stack that CPython's parser uses for a bracket and for an operator (1.6 and 0.25 KiB, measured with
# 3.11). It stops by itself before it uses _MAX_STACK. No thread of Python has less than _MIN_STACK. From 3.14 on
# CPython itself measures the stack; in the last part of it, _RESERVED, not even the parser's error can be caught.
_STACK_OF_BRACKET, _STACK_OF_OPERATOR, _MAX_STACK = 3 << 10, 1 << 9, 1 << 20
_MIN_STACK, _RESERVED = (52 << 10, 48 << 10) if sys.version_info >= (3, 14) else (32 << 10, 0)
_NESTING = re.compile(r"[-+*/~.]|\b(?:not|else|lambda|await)\b")


def _check_stack(text: str) -> None:
    """Raise if `ast.parse`, which recurses in C, might overflow the stack of the calling thread."""
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    need = min(deepest * _STACK_OF_BRACKET + len(_NESTING.findall(text)) * _STACK_OF_OPERATOR, _MAX_STACK)
    need = 2 * need + _RESERVED  # the other half remains for the callers
    if need > _MIN_STACK and need > (size := _stack_bytes()):
        raise ValueError(
            f"{_shortened(text)!r} is no formula: it is nested too deeply for the {size >> 10} KiB of this "
            "thread's stack; call threading.stack_size(4 << 20) before the thread starts, or use LazyTensor"
        )


def _stack_bytes() -> int:
    """The size of the calling thread's C stack; 256 KiB if it is unknown."""
    size, base = ctypes.c_size_t(256 << 10), ctypes.c_void_p()
    library = ctypes.CDLL(None)
    try:
        library.pthread_self.restype = ctypes.c_void_p
        thread = ctypes.c_void_p(library.pthread_self())
        if sys.platform == "darwin":
            library.pthread_get_stacksize_np.restype = ctypes.c_size_t
            return int(library.pthread_get_stacksize_np(thread))
        attributes = (ctypes.c_longlong * 32)()  # a pthread_attr_t has 56 bytes on 64-bit Linux
        if library.pthread_getattr_np(thread, attributes) == 0:
            library.pthread_attr_getstack(attributes, ctypes.byref(base), ctypes.byref(size))
            library.pthread_attr_destroy(attributes)
    except AttributeError:  # another C library
        pass
    return size.value


def parse(formula: str, aliases: Aliases | Sequence[str] = ()) -> Node:
    """Parse a formula in KeOps' language, in which `aliases` are the variables that have names.

    It has operations by name, ``+ - * / **``, ``|`` for scalar products, comparisons, numbers, the names of
    aliases, ``f[k]`` and ``f[a:b]`` for features. Raises ValueError for a text that is no formula, has an unknown
    name (the nearest is suggested) or dims that do not match, or is nested too deeply for Python's parser or for
    the stack of the calling thread.

    >>> parse("Exp(-G * SqDist(X, Y)) * B", ["X = Vi(3)", "Y = Vj(3)", "G = Pm(1)", "B = Vj(2)"])
    Exp((-Var(2,1,2) * SqDist(Var(0,3,0),Var(1,3,1)))) * Var(3,2,1)
    """
    if not isinstance(formula, str):
        raise ValueError(f"a formula is a str, not {type(formula).__name__}")
    declared = aliases if isinstance(aliases, Aliases) else parse_aliases(aliases)
    source = " ".join(formula.split())
    _check_stack(source)
    try:
        return _Reader(source, declared).node(ast.parse(source, mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else "too many nested operations"
        reason = _TOO_DEEP if reason.startswith("too many nested") else reason
        raise ValueError(f"{_shortened(formula)!r} is no formula: {reason}") from None


def reduction_name(name: str) -> str:
    """The name here of a reduction that KeOps calls `name`, such as "LogSumExp" or "KMin_ArgKMin".

    Raises ValueError if there is none; the nearest is suggested.
    """
    if name in _UNSUPPORTED:
        raise ValueError(f"the reduction {name} of KeOps is not supported{_UNSUPPORTED[name]}")
    if name not in _REDUCTIONS:
        raise ValueError(f"there is no reduction {name!r}{ops.suggestion(name, list(_REDUCTIONS))}")
    return _REDUCTIONS[name]


_TOO_DEEP = (
    "it is nested too deeply for Python's parser, in brackets or in operations one after the other; "
    "build it of LazyTensor, whose formulas may be of any depth"
)


def _shortened(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:150]} ... {text[-45:]}"


class _Reader:
    """The visitor of one syntax tree."""

    def __init__(self, source: str, aliases: Aliases) -> None:
        self._source = source
        self._names = aliases.names
        self._by_position = {node.static[0]: node for node in aliases.variables}

    def node(self, tree: ast.expr) -> Node:
        """The node of a part of the formula."""
        spine = []
        # Long sums are deep on the left: no recursion there.
        while isinstance(tree, ast.BinOp) and type(tree.op) in _BINARY:
            spine.append(tree)
            tree = tree.left
        node = self._leaf(tree)
        for part in reversed(spine):
            node = self._make(part, _BINARY[type(part.op)], node, self.node(part.right))
        return node

    def number(self, tree: ast.expr) -> Any:
        """A number, or a list of them: ``[2, 3]`` or KeOps' ``Ind(2, 3)``."""
        if isinstance(tree, (ast.List, ast.Tuple)):
            return tuple(map(self.number, tree.elts))
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "Ind":
            return tuple(map(self.number, tree.args))
        if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, (ast.USub, ast.UAdd)):
            value = self.number(tree.operand)
            if not isinstance(value, tuple):
                return -value if isinstance(tree.op, ast.USub) else value
        if isinstance(tree, ast.Name) and tree.id in _CONSTANTS:
            return _CONSTANTS[tree.id]
        if isinstance(tree, ast.Constant) and type(tree.value) in (int, float):
            return tree.value
        raise self._error(tree, "has to be a number")

    def _leaf(self, tree: ast.expr) -> Node:
        if isinstance(tree, ast.Name):
            return self._named(tree)
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
            return self._call(tree, tree.func.id)
        if isinstance(tree, ast.Constant):
            return constant(self.number(tree))
        if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, (ast.USub, ast.UAdd)):
            return self._signed(tree)
        if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Pow):
            return self._power(tree)
        if isinstance(tree, ast.Compare) and len(tree.ops) == 1 and type(tree.ops[0]) in _COMPARED:
            operands = [self.node(tree.left), self.node(tree.comparators[0])]
            turned = isinstance(tree.ops[0], (ast.Gt, ast.GtE))
            return self._make(tree, _COMPARED[type(tree.ops[0])], *(operands[::-1] if turned else operands))
        if isinstance(tree, ast.Subscript):
            return self._features(tree)
        raise self._error(tree, "is no part of a formula")

    def _named(self, tree: ast.Name) -> Node:
        if tree.id in _CONSTANTS:
            return constant(_CONSTANTS[tree.id])
        if tree.id not in self._names:
            near = ops.suggestion(tree.id, list(self._names))
            known = ", ".join(self._names) or "none"
            raise self._error(tree, f"is not the name of an alias{near or f'; there are {known}'}")
        return self._names[tree.id]

    def _signed(self, tree: ast.UnaryOp) -> Node:
        literal = isinstance(tree.operand, ast.Constant) or getattr(tree.operand, "id", None) in _CONSTANTS
        if literal:
            return constant(self.number(tree))
        operand = self.node(tree.operand)
        return self._make(tree, "neg", operand) if isinstance(tree.op, ast.USub) else operand

    def _power(self, tree: ast.BinOp) -> Node:
        base = self.node(tree.left)
        try:
            exponent = self.number(tree.right)
        except ValueError:
            return self._make(tree, "powf", base, self.node(tree.right))
        known = {2: "square", 0.5: "sqrt", -0.5: "rsqrt"}
        if exponent in known:
            return self._make(tree, known[exponent], base)
        if isinstance(exponent, int):
            return self._make(tree, "pow", base, static=(exponent,))
        return self._make(tree, "powf", base, constant(exponent))

    def _features(self, tree: ast.Subscript) -> Node:
        value = self.node(tree.value)
        if not isinstance(tree.slice, ast.Slice):
            return self._make(tree, "elem", value, static=(self._index(tree.slice, value.dim),))
        if tree.slice.step is not None:
            raise self._error(tree, "has a step, and features are taken in a row")
        begin = 0 if tree.slice.lower is None else self._index(tree.slice.lower, value.dim)
        end = value.dim if tree.slice.upper is None else self._index(tree.slice.upper, value.dim)
        return self._make(tree, "extract", value, static=(begin, end - begin))

    def _index(self, tree: ast.expr, dim: int) -> int:
        index = self.number(tree)
        if not isinstance(index, int):
            raise self._error(tree, "has to be an integer")
        return index + dim if index < 0 else index

    def _call(self, tree: ast.Call, name: str) -> Node:
        if tree.keywords or any(isinstance(arg, ast.Starred) for arg in tree.args):
            raise self._error(tree, "has arguments by keyword, or stars")
        if name in _SPECIAL:
            return _SPECIAL[name](self, tree)
        if name in _UNSUPPORTED or name.startswith("Complex"):
            raise self._error(tree, f"is KeOps' and is not supported{_UNSUPPORTED.get(name, _COMPLEX)}")
        if name not in ops.BY_KEOPS:
            near = ops.suggestion(name, [*ops.BY_KEOPS, *_SPECIAL])
            raise self._error(tree.func, f"is no operation{near}")
        row = ops.TABLE[ops.BY_KEOPS[name]]
        operands = map(self.node, tree.args[: row.arity])
        return self._make(tree, row.name, *operands, static=tuple(map(self.number, tree.args[row.arity :])))

    def _make(self, tree: ast.expr, op: str, *args: Node, static: tuple[Any, ...] = ()) -> Node:
        try:
            return make(op, *args, static=static)
        except ValueError as error:
            raise ValueError(f"{error} (in {_shortened(self._segment(tree))!r})") from None

    def _segment(self, tree: ast.expr) -> str:
        return ast.get_source_segment(self._source, tree) or self._source

    def _error(self, tree: ast.expr, what: str) -> ValueError:
        segment = self._segment(tree)
        where = "" if segment == self._source else f" (in {_shortened(self._source)!r})"
        return ValueError(f"{_shortened(segment)!r} {what}{where}")

    # Calls that are not operations of the table

    def _arguments(self, tree: ast.Call, counts: tuple[int, ...], what: str = "arguments") -> list[Any]:
        if len(tree.args) not in counts:
            raise self._error(tree, f"takes {' or '.join(map(str, counts))} {what}, not {len(tree.args)}")
        return [self.number(arg) if what == "numbers" else self.node(arg) for arg in tree.args]

    def _numbers(self, tree: ast.Call, count: int) -> list[Any]:
        return self._arguments(tree, (count,), "numbers")

    def var(self, tree: ast.Call) -> Node:
        category = getattr(tree.func, "id", "")
        numbers = self._numbers(tree, 3 if category == "Var" else 2)
        if any(not isinstance(number, int) for number in numbers):
            raise self._error(tree, "takes integers: position, dim, and of Var the category")
        kind = _CATEGORIES.get(category) or dict(enumerate(KINDS)).get(numbers[2])
        if kind is None:
            raise self._error(tree, "has a category other than 0, 1 and 2")
        node = variable(numbers[0], numbers[1], kind)
        declared = self._by_position.get(numbers[0], node)
        if declared is not node:
            raise self._error(tree, f"is declared as {declared!r} by an alias")
        return node

    def zero(self, tree: ast.Call) -> Node:
        (dim,) = self._numbers(tree, 1)
        if not isinstance(dim, int) or dim < 1:
            raise self._error(tree, "takes a dim of at least 1")
        return zero(dim)

    def number_call(self, tree: ast.Call, count: int, number: Callable[..., float]) -> Node:
        """A constant that is a function of numbers."""
        try:
            return constant(number(*self._numbers(tree, count)))
        except ZeroDivisionError:
            raise self._error(tree, "divides by zero") from None

    def grad(self, tree: ast.Call) -> Node:
        """KeOps' Grad; the default cotangent is a new variable of the other kind."""
        formula, of, *cotangent = self._arguments(tree, (2, 3))
        if not cotangent:
            if of.op != "variable" or of.static[1] == "p":
                raise self._error(tree, "takes a cotangent, unless it is of a variable of i or j")
            other = "j" if of.static[1] == "i" else "i"
            position = 1 + max((v.static[0] for v in variables(formula)), default=-1)
            cotangent = [variable(position, formula.dim, other)]
        return self.derived(tree, derivative.gradient, formula, of, *cotangent)

    def derived(self, tree: ast.Call, function: Callable[..., Node], *args: Node) -> Node:
        try:
            return function(*args)
        except ValueError as error:
            raise self._error(tree, f"cannot be taken: {error}") from None


def _derivative(function: Callable[..., Node], count: int) -> Callable[[_Reader, ast.Call], Node]:
    return lambda reader, tree: reader.derived(tree, function, *reader._arguments(tree, (count,)))


_SPECIAL: dict[str, Callable[[_Reader, ast.Call], Node]] = {
    **dict.fromkeys(("Var", *_CATEGORIES), _Reader.var),
    "IntCst": lambda reader, tree: reader.number_call(tree, 1, float),
    "RatCst": lambda reader, tree: reader.number_call(tree, 2, operator.truediv),
    "IntInv": lambda reader, tree: reader.number_call(tree, 1, lambda number: 1 / number),
    "Zero": _Reader.zero,
    "Grad": _Reader.grad,
    "Diff": _derivative(derivative.differential, 3),
    "GradMatrix": _derivative(derivative.gradient_matrix, 2),
    "Divergence": _derivative(derivative.divergence, 2),
    "Laplacian": _derivative(derivative.laplacian, 2),
}
