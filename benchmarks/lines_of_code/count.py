"""Compares how many lines of code the same services take: ``python benchmarks/lines_of_code/count.py``.

Blank lines, comments and docstrings do not count. All files are formatted by the same rules.
"""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
EXAMPLES = FOLDER.parents[1] / "examples"
SERVICES = {"File types": "file_types", "OCR": "ocr", "Digits": "digits"}
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def lines_of_code(source: str) -> int:
    """Counts the lines of a program that hold code.

    Examples:
        >>> lines_of_code('"A docstring."' + chr(10) + "x = 1  # a comment" + chr(10) + "# another")
        1
    """
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    code = {line for token in tokens if token.type not in _NO_CODE for line in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            code.difference_update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    return len(code)


def counts(name: str) -> tuple[int, int]:
    """Returns the lines of a service here and in LitServe."""
    files = (EXAMPLES / name / "server.py", FOLDER / f"litserve_{name}.py")
    ours, theirs = (lines_of_code(file.read_text()) for file in files)
    return ours, theirs


def table() -> str:
    """Returns the comparison as a table in Markdown."""
    rows = ["| Service | PyTriton | LitServe | ratio |", "| --- | ---: | ---: | ---: |"]
    for title, name in SERVICES.items():
        ours, theirs = counts(name)
        rows.append(f"| {title} | {ours} | {theirs} | {ours / theirs:.2f} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
