"""The code blocks of the README and of the documentation."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from pages import PAGES, ROOT, Block, blocks_of

from pytriton.server.config import ENVIRONMENT_PREFIX, TritonConfig

BLOCKS = [block for page in PAGES for block in blocks_of(page)]
SHELL_BLOCKS = [block for block in BLOCKS if block.language in ("bash", "console")]
SLOW_PAGES = (ROOT / "docs/ray.md",)  # which start and update pools of replicas
PAGES_WITH_PYTHON = [
    pytest.param(page, marks=[pytest.mark.slow] if page in SLOW_PAGES else [])
    for page in dict.fromkeys(block.page for block in BLOCKS if block.language == "python")
]

PROGRAMS = {
    ".",
    ".ci/run",
    "apt-get",
    "buildah",
    "cat",
    "cd",
    "conda",
    "curl",
    "debootstrap",
    "docker",
    "export",
    "git",
    "grep",
    "install",
    "journalctl",
    "kubectl",
    "ldd",
    "mkdocs",
    "nox",
    "pip",
    "ps",
    "pytest",
    "python",
    "python3",
    "pytriton",
    "ray",
    "rm",
    "serve",
    "ss",
    "systemctl",
    "uv",
    "venv-pack",
}
SOURCES = [
    path.read_text()
    for folder in ("pytriton", "build_tools", "cmake")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".cc", ".h", ".cmake")
]


@pytest.mark.parametrize("page", PAGES_WITH_PYTHON, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_of_the_page_runs(page: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/docs/pages.py"), str(page)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_block_has_a_language_and_a_known_directive(block: Block) -> None:
    assert block.language
    assert re.fullmatch(r"|skip \(.+\)|while serving|output|file [\w./]+", block.test), block.test
    assert block.ci in ("", "quickstart", "tests")


@pytest.mark.parametrize("block", SHELL_BLOCKS, ids=str)
def test_commands_name_what_exists(block: Block) -> None:
    folder = ROOT
    for command in _commands(block):
        if command[:1] == ["cd"] and (folder / command[1]).is_dir():
            folder /= command[1]
        _check_command(command, folder)


def test_readme_has_the_two_commands() -> None:
    commands = {block.ci: block for block in blocks_of(ROOT / "README.md") if block.ci}
    assert "examples/add_sub/quickstart.py" in commands["quickstart"].code
    assert "pytest" in commands["tests"].code


def test_readme_shows_eleven_lines_that_run() -> None:
    first = next(block for block in blocks_of(ROOT / "README.md") if block.language == "python")
    assert len([line for line in first.code.splitlines() if line.strip()]) == 11


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page} links to {target}"


def test_documented_environment_variables_are_read() -> None:
    fields = TritonConfig().to_dict()
    for page in PAGES:
        for name in set(re.findall(r"\bPYTRITON_[A-Z0-9_]+\b", page.read_text())):
            field = re.sub(r"_\d+$", "", name.removeprefix(ENVIRONMENT_PREFIX)).lower()
            assert field in fields or name == ENVIRONMENT_PREFIX or any(name in source for source in SOURCES), name


def test_error_sentences_are_those_of_the_code() -> None:
    code = "\n".join(_without_seams(source) for source in SOURCES)
    sentences = re.findall(r"^### `(.*)`$", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE)
    assert len(sentences) > 20
    for sentence in sentences:
        for fragment in sentence.split("…"):
            assert fragment.strip() in code, f"the code says nowhere {fragment!r}"


def _without_seams(source: str) -> str:
    """The source with string literals that stand one behind the other made one."""
    joined = re.sub(r'(?<!\\)"\s*\n\s*f?"', "", source)
    return joined.replace('\\"', '"')


def _commands(block: Block) -> list[list[str]]:
    """The words of each command of a shell block."""
    lexer = shlex.shlex("\n".join(block.commands), posix=True, punctuation_chars="&|;\n")
    lexer.whitespace = " \t"
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set("&|;\n"):
            commands.append([])
        else:
            commands[-1].append(word)
    return commands


def _check_command(words: list[str], folder: Path) -> None:
    while words and re.fullmatch(r"\w+=.*", words[0]):
        words = words[1:]
    if not words:
        return
    program, *arguments = words
    program = program.rpartition("/")[2] if program.startswith("/opt/") else program
    assert program in PROGRAMS, f"unknown program {program!r}"
    for argument in arguments:
        if argument.startswith(("deploy/", "docker/")):
            assert (ROOT / argument).exists(), f"there is no {argument}"
    if program == "uv" and arguments[:1] == ["pip"]:
        program, arguments = "pip", arguments[1:]
    if program in ("python", "python3") and arguments[0].endswith(".py"):
        _check_script(folder / arguments[0], arguments[1:])
    elif program == "pip" and arguments[0] == "install":
        _check_extras(arguments[1:])
    elif program == "pytest":
        _check_pytest(arguments)
    elif program == ".ci/run":
        assert os.access(ROOT / program, os.X_OK)


def _check_script(script: Path, arguments: list[str]) -> None:
    if not script.is_file():
        name = str(script.relative_to(ROOT))
        assert name in ("server.py", "client.py", "app.py"), f"there is no {name}"  # the reader's own
        return
    flags = [argument for argument in arguments if argument.startswith("--")]
    if flags:
        usage = subprocess.run(
            [sys.executable, str(script), "--help"], capture_output=True, text=True, check=True, timeout=60
        ).stdout
        for flag in flags:
            assert flag.split("=")[0] in usage, f"{script} knows no {flag}"


def _check_extras(arguments: list[str]) -> None:
    _, _, optional = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")
    for argument in arguments:
        extras = re.fullmatch(r"\.\[(.*)\]", argument)
        for extra in extras[1].split(",") if extras else ():
            assert re.search(rf"^{re.escape(extra)} = \[", optional, re.MULTILINE), f"there is no extra {extra!r}"


def _check_pytest(arguments: list[str]) -> None:
    for argument in arguments:
        if argument.startswith("tests"):
            assert (ROOT / argument).exists(), f"there is no {argument}"
