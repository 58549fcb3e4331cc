"""`GET /metrics`: counters and gauges in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from launcher.server.events import CacheSource, Metrics
from launcher.server.ports import CacheState, QueueState

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_FIRST_SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_REQUEST_SECONDS: Final = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)


class ServerMetrics:
    """What the server counts. Only the event loop's thread counts; any thread may ask for the page."""

    def __init__(self, *, version: str, resident: Callable[[], int | None]) -> None:
        """Makes a registry of its own, without what the process as such would add.

        Args:
            version: of the program.
            resident: resident memory of this process in bytes, or None where it is unknown.
        """
        # A second gauge for each counter, which nobody asked for.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        registry = self._registry
        self._requests = Counter("mindnano_requests", "Requests answered.", ["route", "status"], registry=registry)
        self._tokens = Counter("mindnano_tokens", "Tokens by kind.", ["kind"], registry=registry)
        self._hits = Counter("mindnano_prompt_cache", "Prompts by source of reuse.", ["source"], registry=registry)
        self._gone = Counter("mindnano_clients_gone", "Clients that left before their answer.", registry=registry)
        self._first = Histogram(
            "mindnano_time_to_first_token_seconds",
            "From acceptance to the first token.",
            buckets=_FIRST_SECONDS,
            registry=registry,
        )
        self._whole = Histogram(
            "mindnano_request_seconds",
            "From acceptance to the end.",
            ["route"],
            buckets=_REQUEST_SECONDS,
            registry=registry,
        )
        for kind in ("prompt", "cached", "generated"):
            self._tokens.labels(kind)
        for source in CacheSource:
            self._hits.labels(source.value)
        self._state = _State(version, resident)
        registry.register(self._state)

    def watch(self, queue: Callable[[], QueueState], cache: Callable[[], CacheState], model: str) -> None:
        """Reads these whenever the metrics are asked for."""
        self._state.queue, self._state.cache, self._state.model = queue, cache, model

    def answered(self, route: str, status: int) -> None:
        """Counts an answer."""
        self._requests.labels(route, str(status)).inc()

    def generated(self, route: str, choices: tuple[Metrics, ...], seconds: float, *, gone: bool) -> None:
        """Counts what a request for text took."""
        for choice in choices:
            self._tokens.labels("prompt").inc(choice.prompt)
            self._tokens.labels("cached").inc(choice.cached)
            self._tokens.labels("generated").inc(choice.generated)
            self._hits.labels(choice.cache_source.value).inc()
        if choices and choices[0].first_seconds > 0:
            self._first.observe(choices[0].first_seconds)
        self._whole.labels(route).observe(seconds)
        if gone:
            self._gone.inc()

    def text(self) -> bytes:
        """The page."""
        return generate_latest(self._registry)


class _State(Collector):
    """Gauges that are read when they are asked for."""

    def __init__(self, version: str, resident: Callable[[], int | None]) -> None:
        self._version = version
        self._resident = resident
        self.queue: Callable[[], QueueState] | None = None
        self.cache: Callable[[], CacheState] | None = None
        self.model = ""

    def collect(self) -> Iterator[Metric]:
        build = GaugeMetricFamily("mindnano_build_info", "What runs.", labels=("version", "model"))
        build.add_metric((self._version, self.model), 1)
        yield build
        yield GaugeMetricFamily("mindnano_ready", "Whether the model is loaded.", value=int(self.queue is not None))
        resident = self._resident()
        if resident is not None:
            yield GaugeMetricFamily("mindnano_resident_bytes", "Resident memory of the process.", value=resident)
        if self.queue is not None:
            state = self.queue()
            requests = GaugeMetricFamily("mindnano_queue_requests", "Requests by state.", labels=("state",))
            for name in ("running", "waiting", "paused"):
                requests.add_metric((name,), getattr(state, name))
            yield requests
            asleep = int(state.sleeping)
            yield GaugeMetricFamily("mindnano_sleeping", "Whether the memory is given back for now.", value=asleep)
            yield CounterMetricFamily("mindnano_sleeps", "How often it was given back.", value=state.sleeps)
            yield GaugeMetricFamily("mindnano_queue_limit", "Requests that may wait.", value=state.limit)
            work = CounterMetricFamily("mindnano_engine_tokens", "Tokens worked off, as they are.", labels=("kind",))
            for kind in ("generated", "prefilled"):
                work.add_metric((kind,), getattr(state, kind))
            yield work
        if self.cache is not None:
            yield from _cache_gauges(self.cache())


def _cache_gauges(cache: CacheState) -> Iterator[Metric]:
    used = GaugeMetricFamily("mindnano_session_cache_bytes", "Bytes of kept sessions.", labels=("place",))
    budget = GaugeMetricFamily("mindnano_session_cache_budget_bytes", "Most bytes of them.", labels=("place",))
    for place, taken, most in (("ram", cache.bytes, cache.budget), ("disk", cache.disk_bytes, cache.disk_budget)):
        used.add_metric((place,), taken)
        budget.add_metric((place,), most)
    yield used
    yield budget
    yield GaugeMetricFamily("mindnano_session_cache_entries", "Kept sessions.", value=cache.entries)
    lookups = CounterMetricFamily("mindnano_session_cache_lookups", "Looks for a beginning.", labels=("result",))
    for result, count in (("hit", cache.hits), ("miss", cache.misses)):
        lookups.add_metric((result,), count)
    yield lookups
    yield CounterMetricFamily("mindnano_session_cache_evictions", "Sessions put out.", value=cache.evictions)
