"""Hazard: words that only this project's authors understand, where the field has a standard term.

The glossary of CONTRIBUTING.md has the standard terms. As a script, this lists the places in files or folders:

    python tests/packaging/test_private_terms.py python/upsweep/te
"""

import io
import re
import sys
import tokenize
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
FOLDERS = ("python", "src", "cuda", "tests", "asv_bench", "examples", "docs", "cmake", "packaging")
GENERATED = (CHECKOUT / "docs" / "gallery", CHECKOUT / "docs" / "reference" / "generated")
SUFFIXES = {".py", ".pyi", ".pyx", ".pxd", ".cpp", ".hpp", ".cu", ".cuh", ".h", ".md", ".sh", ".cmake"}
# Parts of identifiers between underscores, or whole identifiers.
PARTS = {
    "lent", "lend", "lender", "lending", "told", "heard", "said", "mine", "theirs", "wires", "wired", "unwire",
    "letter", "letters", "mail", "twin", "twins", "kept", "surroundings", "elsewhere", "asker", "heres",
}  # fmt: skip
WHOLE = {
    "at_home", "home", "its", "there", "here", "lying", "given", "made", "found", "wanted", "facts", "taken",
    "useless", "ways", "guess", "beside",
}  # fmt: skip
# In comments, docstrings and documents.
PHRASES = [
    r"\b(?:at|from) home\b", r"\b(?:is|are|was|were|been|be) (?:lent|told|heard)\b", r"\blends?\b", r"\blent\b",
    r"\btwins?\b", r"\bwires\b", r"\bsurroundings\b", r"\bone behind the other\b", r"\bside by side\b",
    r"\bas (?:they|it) lies?\b", r"\bthere and back\b", r"\btaken in order\b", r"\bnot to be trusted\b",
    r"\bpast (?:its|the|so many|their) steps\b", r"\bdealt out\b", r"\bhanded? on\b", r"\bwho(?:ever)? wants\b",
    r"\bletters?\b(?= of| to| that)", r"\bmail\b", r"\bits own monoid\b", r"\brested longest\b",
]  # fmt: skip
PHRASE = re.compile("|".join(PHRASES), re.IGNORECASE)
WORD = re.compile(r"[A-Za-z_]\w*")


def is_private(identifier):
    if identifier.startswith("test_"):  # sentences; nobody else uses these names
        return False
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", identifier).lower().strip("_")
    return words in WHOLE or bool(PARTS & set(words.split("_")))


def split(path):
    """The identifiers of a file and its prose, each as pairs of a line number and a text."""
    text = path.read_text()
    identifiers, prose = [], []
    if path.suffix in (".py", ".pyi"):
        text = re.sub(r"(@|hypothesis\.|from hypothesis import .*)\bgiven\b", r"\1g", text)
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME:
                identifiers.append((token.start[0], token.string))
            elif token.type in (tokenize.COMMENT, tokenize.STRING):
                prose.append((token.start[0], token.string))
    elif path.suffix != ".md":
        mark = "//" if path.suffix in (".cpp", ".hpp", ".cu", ".cuh", ".h") else "#"
        text = re.sub(
            r'/\*.*?\*/|""".*?"""',
            lambda match: f"{mark} {match[0]}".replace("\n", f"\n{mark} "),
            text,
            flags=re.DOTALL,
        )
        for number, line in enumerate(text.splitlines(), 1):
            code, _, comment = line.partition(mark)
            identifiers += [(number, word) for word in WORD.findall(re.sub(r'"[^"]*"', "", code))]
            prose.append((number, comment))
    else:
        prose = list(enumerate(text.splitlines(), 1))
    return identifiers, prose


def places(path):
    """Every private term in a file, as ``line: term``."""
    identifiers, prose = split(path)
    found_terms = [f"{line}: {name}" for line, name in identifiers if is_private(name)]
    for line, text in prose:
        for match in PHRASE.finditer(text):
            found_terms.append(f"{line + text[: match.start()].count(chr(10))}: {match[0]}")
    return found_terms


def sources(roots):
    for root in roots:
        files = [root] if root.is_file() else sorted(root.rglob("*"))
        yield from (
            path
            for path in files
            if path.suffix in SUFFIXES
            and path.resolve() != Path(__file__).resolve()
            and not any(map(path.is_relative_to, GENERATED))
        )


@pytest.mark.parametrize(
    "path",
    list(sources([CHECKOUT / folder for folder in FOLDERS])),
    ids=lambda path: str(path.relative_to(CHECKOUT)),
)
def test_no_private_terms(path):
    assert not places(path)


def test_terms_are_recognised():
    assert (
        is_private("at_home") and is_private("_kept_calls") and is_private("askTwin") and not is_private("is_kind")
    )
    assert PHRASE.search("compared with its naive twin") and not PHRASE.search("a kernel is launched")


if __name__ == "__main__":
    for path in sources([Path(argument) for argument in sys.argv[1:]]):
        for place in places(path):
            print(f"{path}:{place}")
