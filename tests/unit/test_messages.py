"""A message missing in one language, a fact that only one language shows, an error without a Chinese text."""

from __future__ import annotations

import ast
import string
from pathlib import Path

import pytest

from launcher.errors import MindnanoError, PackageError, RequestError, ResourceError, UsageError
from launcher.messages import Catalogue, Language, choose_language, en, zh

ROOT = Path(__file__).resolve().parents[2]


def facts(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def test_both_languages_have_the_same_messages() -> None:
    assert set(en.TEXTS) == set(zh.TEXTS)


@pytest.mark.parametrize("slug", sorted(en.TEXTS))
def test_both_languages_show_the_same_facts(slug: str) -> None:
    assert facts(en.TEXTS[slug]) == facts(zh.TEXTS[slug])


def raised_slugs() -> set[str]:
    """First arguments of every call of an error class in the launcher."""
    classes = {cls.__name__ for cls in all_errors(MindnanoError)}
    found = set()
    for path in (ROOT / "launcher").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in classes:
                first = node.args[0]
                assert isinstance(first, ast.Constant), f"{path}:{node.lineno}: the slug is not a literal"
                found.add(str(first.value))
    return found


def all_errors(cls: type[MindnanoError]) -> set[type[MindnanoError]]:
    """Without what answers to HTTP requests: JSON stays English."""
    if cls is RequestError:
        return set()
    return {cls, *(sub for child in cls.__subclasses__() for sub in all_errors(child))}


def test_every_error_has_a_chinese_text() -> None:
    assert raised_slugs() == set(zh.ERRORS)


def hints_with_facts() -> set[str]:
    """Slugs of errors whose hint holds something that is only known when they are raised."""
    classes = {cls.__name__ for cls in all_errors(MindnanoError)}
    found = set()
    for path in (ROOT / "launcher").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in classes):
                continue
            hint = next((keyword.value for keyword in node.keywords if keyword.arg == "hint"), None)
            names = {part.id for part in ast.walk(hint) if isinstance(part, ast.Name)} if hint is not None else set()
            if any(not name.isupper() for name in names) and isinstance(node.args[0], ast.Constant):
                found.add(str(node.args[0].value))
    return found


@pytest.mark.parametrize("slug", sorted(hints_with_facts()))
def test_chinese_hint_keeps_the_facts_of_the_english_one(slug: str) -> None:
    hint = zh.ERRORS[slug][1]
    assert not hint or "{hint}" in hint


def test_chinese_hint_names_the_context_that_fits() -> None:
    error = ResourceError("memory-plan", "x", hint="use --context 4096")
    assert "use --context 4096" in Catalogue(Language.CHINESE).error(error)


@pytest.mark.parametrize("slug", sorted(zh.ERRORS))
def test_chinese_hint_has_no_other_fields(slug: str) -> None:
    assert facts(zh.ERRORS[slug][1]) <= {"hint"}


def test_failure_in_a_report_speaks_its_language() -> None:
    slug, message, hint = ("package-missing", "cannot open x.l3r", "check the path")
    assert Catalogue(Language.ENGLISH).failure(slug, message, hint) == (message, hint)
    assert Catalogue(Language.CHINESE).failure(slug, message, hint) == (
        "找不到模型包（cannot open x.l3r）",
        "检查路径，或用 --demo 运行内置模型",
    )


def test_error_says_what_and_what_next() -> None:
    error = PackageError("package-damaged", "x.l3r: bad magic", hint="download it again")
    assert Catalogue(Language.ENGLISH).error(error) == (
        "error (package-damaged): x.l3r: bad magic\n  next: download it again"
    )
    chinese = Catalogue(Language.CHINESE).error(error)
    assert "模型包已损坏" in chinese
    assert "x.l3r: bad magic" in chinese


@pytest.mark.parametrize(
    ("argument", "environ", "expected"),
    [
        ("zh", {"MINDNANO_LANG": "en"}, Language.CHINESE),
        (None, {"MINDNANO_LANG": "zh", "LANG": "en_US.UTF-8"}, Language.CHINESE),
        (None, {"LANG": "zh_CN.UTF-8"}, Language.CHINESE),
        (None, {"LC_ALL": "C", "LANG": "zh_CN.UTF-8"}, Language.ENGLISH),
        (None, {"LC_ALL": "", "LC_MESSAGES": "zh_TW", "LANG": "C"}, Language.CHINESE),
        (None, {}, Language.ENGLISH),
    ],
)
def test_language_is_chosen_in_order(argument: str | None, environ: dict[str, str], expected: Language) -> None:
    assert choose_language(argument, environ) is expected


def test_unknown_language_in_the_environment_is_an_error() -> None:
    with pytest.raises(UsageError, match="expected en or zh"):
        choose_language(None, {"MINDNANO_LANG": "fr"})
