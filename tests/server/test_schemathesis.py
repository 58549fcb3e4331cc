"""Requests made from the API's description that the real server answers otherwise than described."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.specs.openapi import checks

from launcher.server.openapi import openapi_document
from tests.support.server_process import ServerProcess

# A list that is too long may be a body that is too large.
CONFIG = """
[checks]
negative_data_rejection.expected-statuses = [400, 404, 408, 413, 415, 503]
"""
SCHEMA = schemathesis.openapi.from_dict(
    openapi_document("1.2.3"), config=schemathesis.Config.from_dict(tomllib.loads(CONFIG))
)
OPERATIONS = {
    f"{operation.ok().method.upper()} {operation.ok().path}": operation.ok()
    for operation in SCHEMA.get_all_operations()
}
# What is no body cannot be wrong: a name in a path is any text. Nor can one that is any bytes.
CASES = [(name, GenerationMode.POSITIVE) for name in OPERATIONS] + [
    (name, GenerationMode.NEGATIVE)
    for name, operation in OPERATIONS.items()
    if any(body.media_type == "application/json" for body in operation.body)
]
# That a server may say 504 or 503 and a reply be cut by its deadline is described, so `not_a_server_error` is not here:
# the test looks for 500. Nor is `positive_data_acceptance`: what fields demand of each other is not in the schemas.
CHECKS = (
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
    checks.missing_required_header,
    checks.unsupported_method,
    checks.allow_header_conformance,
)
_EXAMPLES = 25
_BARE_EXAMPLES = 3  # where nothing is sent, nothing can differ


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Replies are short, and one that is asked to be long is ended."""
    folder = tmp_path_factory.mktemp("described")
    with ServerProcess(folder, "--request-timeout", "1", "--max-tokens", "4") as server:
        yield server


def test_the_server_gives_its_own_description(described: ServerProcess) -> None:
    served = described.ask("GET", "/openapi.json").json()
    expected = openapi_document(served["info"]["version"])
    assert served == expected
    schemathesis.openapi.from_dict(served).validate()


@pytest.mark.parametrize(("name", "mode"), CASES, ids=lambda part: getattr(part, "value", part))
def test_answers_are_as_described(described: ServerProcess, name: str, mode: GenerationMode) -> None:
    operation = OPERATIONS[name]
    takes = bool(operation.body) or bool(operation.path_parameters)

    @given(data=st.data())
    @settings(
        max_examples=_EXAMPLES if takes else _BARE_EXAMPLES,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def run(data: st.DataObject) -> None:
        case: Any = data.draw(operation.as_strategy(generation_mode=mode))
        answer = case.call(base_url=described.url, timeout=60)
        assert answer.status_code != 500, answer.text
        case.validate_response(answer, checks=CHECKS)

    run()
    assert described.process.poll() is None, described.stderr()


def test_corners_of_every_schema(described: ServerProcess, tmp_path: Path) -> None:
    """The limits of every field, one after the other, wrong types, and methods that are not described."""
    (tmp_path / "schemathesis.toml").write_text(CONFIG, encoding="utf-8")
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{described.url}/openapi.json"),
            *("--phases", "coverage", "--generation-deterministic", "--no-shrink", "--request-timeout", "60"),
            *("--exclude-checks", "positive_data_acceptance,not_a_server_error", "--no-color"),
        ],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    count = re.search(r"(\d+) generated, (\d+) passed", ran.stdout)
    assert count is not None, ran.stdout
    assert count[1] == count[2]
    assert int(count[1]) > 1000


def test_the_server_has_said_nothing_of_a_failure(described: ServerProcess) -> None:
    described.wait_idle()
    assert "Traceback" not in described.stderr()
    assert described.ask("GET", "/readyz").status == 200
