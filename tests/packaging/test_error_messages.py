"""Hazard: an error message that is written twice, and so will say two things one day."""

import ast
from collections import defaultdict
from pathlib import Path

import upsweep

PACKAGE = Path(upsweep.__file__).parent


def template(node):
    """The text of a string expression, with {} for each value that is formatted in; None for other expressions."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part) or "{}" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return f"{template(node.left) or '{}'}{template(node.right) or '{}'}"
    return None


def messages(source):
    """The line and the template of each message that is raised with an exception or returned for one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("Error"):
            text = template(node.args[0]) if node.args else None
            if text and len(text.replace("{}", "").split()) >= 3:
                yield node.lineno, text


def test_each_message_is_written_once():
    places = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for line, text in messages(path.read_text()):
            places[text].append(f"{path.relative_to(PACKAGE)}:{line}")
    assert {text: where for text, where in places.items() if len(where) > 1} == {}


def test_templates_are_compared():
    source = "ValueError(f'x: expected {a} rows, got {b}')\nTypeError('x: expected ' + c + ' rows, got ' + d)"
    assert [text for _, text in messages(source)] == ["x: expected {} rows, got {}"] * 2
