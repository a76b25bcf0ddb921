"""Hazard: a README whose examples do not run, or show another output than they give."""

import doctest
import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_examples_give_the_output_shown():
    # The fence that ends a block of code is not part of the output above it.
    text = re.sub(r"^```.*$", "", README.read_text(), flags=re.MULTILINE)
    test = doctest.DocTestParser().get_doctest(text, {}, "README.md", str(README), 0)
    assert len(test.examples) >= 3
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    runner.run(test)
    assert runner.summarize().failed == 0


def test_every_python_block_has_an_output():
    for block in re.findall(r"```(?:python|pycon)\n(.*?)```", README.read_text(), flags=re.DOTALL):
        assert ">>>" in block


def test_the_two_commands_are_there():
    text = README.read_text()
    assert 'pip install ".[expr]" && python -m upsweep demo' in text
    assert 'pip install ".[test]" && python -m pytest' in text
