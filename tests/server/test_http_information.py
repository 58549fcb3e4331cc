"""Metrics that Prometheus does not read or that count wrongly, a page that cannot work, models and health untold."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from launcher.server.ports import CacheState
from tests.support.http_bench import HttpBench, Job, chat_body, eventually, raw_request, read_until
from tests.support.server_child import events

CHAT = "/v1/chat/completions"
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[HttpBench]:
    with HttpBench(log=tmp_path / "log.jsonl") as running:
        yield running


def samples(bench: HttpBench) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    answer = requests.get(bench.url + "/metrics", timeout=60)
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def answer_two(job: Job) -> None:
    job.say("a", "b")
    job.finish()


def test_metrics_count_requests_tokens_and_times(bench: HttpBench) -> None:
    bench.scheduler.react = answer_two
    for stream in (True, False):
        requests.post(bench.url + CHAT, data=chat_body(stream=stream), headers=JSON, timeout=60)
    requests.post(bench.url + CHAT, data=b"{", headers=JSON, timeout=60)
    requests.get(bench.url + "/secret-path", timeout=60)
    found = samples(bench)
    assert found["mindnano_requests_total", (("route", CHAT), ("status", "200"))] == 2
    assert found["mindnano_requests_total", (("route", CHAT), ("status", "400"))] == 1
    assert found["mindnano_requests_total", (("route", "unmatched"), ("status", "404"))] == 1
    assert found["mindnano_tokens_total", (("kind", "prompt"),)] == 6
    assert found["mindnano_tokens_total", (("kind", "cached"),)] == 2
    assert found["mindnano_tokens_total", (("kind", "generated"),)] == 4
    assert found["mindnano_time_to_first_token_seconds_count", ()] == 2
    assert found["mindnano_time_to_first_token_seconds_sum", ()] == 1
    assert found["mindnano_request_seconds_count", (("route", CHAT),)] == 2
    assert found["mindnano_queue_requests", (("state", "waiting"),)] == 2
    assert found["mindnano_queue_limit", ()] == 8
    assert found["mindnano_session_cache_bytes", (("place", "ram"),)] == 7
    assert found["mindnano_session_cache_budget_bytes", (("place", "ram"),)] == 9
    assert found["mindnano_session_cache_entries", ()] == 1
    assert found["mindnano_session_cache_lookups_total", (("result", "hit"),)] == 4
    assert found["mindnano_resident_bytes", ()] == 1 << 20
    assert found["mindnano_build_info", (("model", "tiny"), ("version", "1"))] == 1
    assert found["mindnano_ready", ()] == 1
    assert not any("secret" in str(key) for key in found)
    assert not any(name.endswith("_created") for name, _ in found)


def test_what_is_refused_before_its_route_is_counted_with_it() -> None:
    with HttpBench(keys=("key",)) as bench:
        url = bench.url + "/v1/models"
        requests.get(url, timeout=60)
        requests.get(url, headers={"Host": "evil.example"}, timeout=60)
        requests.options(url, timeout=60)
        requests.get(url + "/tiny", timeout=60)
        requests.get(bench.url + "/secret-path", timeout=60)
        page = requests.get(bench.url + "/metrics", headers={"Authorization": "Bearer key"}, timeout=60).text
    for route, status in (("/v1/models", 401), ("/v1/models", 403), ("/v1/models", 204), ("unmatched", 401)):
        assert f'mindnano_requests_total{{route="{route}",status="{status}"}} 1.0' in page
    assert 'route="/v1/models/{name:path}",status="401"} 1.0' in page


def test_a_client_that_left_is_counted_and_logged(bench: HttpBench, tmp_path: Path) -> None:
    with bench.connect() as connection:
        connection.sendall(raw_request(CHAT, chat_body(stream=True, session_id="secret")))
        bench.scheduler.job().say("a")
    eventually(lambda: samples(bench)["mindnano_clients_gone_total", ()] == 1, "it was counted")
    eventually(lambda: len(events(tmp_path / "log.jsonl")) == 1, "it was logged")
    (line,) = events(tmp_path / "log.jsonl")
    assert (line["client_gone"], line["status"], line["id"]) == (True, 200, "chatcmpl-1")
    assert "secret" not in str(line)


def test_metrics_that_wait_for_the_disk_keep_nobody_else_waiting(bench: HttpBench) -> None:
    """Sizes of the session cache are read under a lock that a save holds while the disk works."""
    asked, done = threading.Event(), threading.Event()

    def slow() -> CacheState:
        asked.set()
        done.wait(60)
        return CacheState(bytes=7)

    bench.journal.metrics.watch(bench.backend.queue, slow, bench.backend.id)
    with bench.connect() as scraper:
        scraper.sendall(raw_request("/metrics", method="GET"))
        assert asked.wait(60)
        try:
            assert requests.get(bench.url + "/health", timeout=60).status_code == 200
        finally:
            done.set()
        read_until(scraper, b"mindnano_session_cache_bytes")


def test_metrics_are_there_while_the_model_loads() -> None:
    with HttpBench(loaded=False) as bench:
        assert samples(bench)["mindnano_ready", ()] == 0
        for path in ("/readyz", "/v1/models", "/v1/sessions", "/props"):
            answer = requests.get(bench.url + path, timeout=60)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert requests.get(bench.url + "/health", timeout=60).status_code == 200


def test_the_page_comes_with_its_parts_and_loads_nothing_from_elsewhere(bench: HttpBench) -> None:
    kinds = {"/": "text/html", "/page.css": "text/css", "/page.js": "text/javascript"}
    for path, kind in kinds.items():
        answer = requests.get(bench.url + path, timeout=60)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(kind)
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.content


def test_models_by_name(bench: HttpBench) -> None:
    listed = requests.get(bench.url + "/v1/models", timeout=60).json()
    assert listed["object"] == "list"
    (model,) = listed["data"]
    assert requests.get(bench.url + f"/v1/models/{model['id']}", timeout=60).json() == model
    other = requests.get(bench.url + "/v1/models/other", timeout=60)
    assert (other.status_code, other.json()["error"]["code"]) == (404, "model_not_found")
    assert "'other'" in other.json()["error"]["message"]
    assert repr(model["id"]) in other.json()["error"]["message"]


def test_every_answer_has_an_id_and_the_machine(bench: HttpBench) -> None:
    for path in ("/health", "/nowhere", "/v1/models"):
        headers = requests.get(bench.url + path, timeout=60).headers
        assert headers["x-request-id"]
        assert headers["x-served-by"] == "here"
