"""The figures of a served benchmark as JSON and as Markdown."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from launcher.errors import UsageError
from launcher.progress import format_bytes
from release.bench.machine import Resident
from release.bench.server import Completion
from release.output import partial_file

SCHEMA: Final = "mindnano.bench"
VERSION: Final = 1
_METHOD: Final = (
    "Through POST /v1/completions of the local server, one request at a time: random token ids, temperature 0, "
    "ignore_eos. Nothing is reused: every request has a session of its own, which is deleted after it, and a first "
    "token that no other prompt has; each reply says that 0 tokens were cached. Medians of the repeats. TTFT runs from "
    "acceptance to the first token; decoding is counted from the second token on."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One length of the input.

    Attributes:
        runs: one for each repeat.
        resident: of the server after the last of them; the peak is that of this row where `peak_reset`.
        sensors: least and most of what was sampled meanwhile.
    """

    input_tokens: int
    runs: tuple[Completion, ...]
    resident: Resident | None
    peak_reset: bool
    sensors: Mapping[str, tuple[float, float]]

    def median(self, figure: Callable[[Completion], float]) -> float:
        """Of one figure over the repeats."""
        return statistics.median(map(figure, self.runs))

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "input_tokens": self.input_tokens,
            "output_tokens": self.runs[0].generated_tokens,
            "ttft_seconds": self.median(lambda run: run.first_seconds),
            "client_first_text_seconds": self.median(lambda run: run.client_first_seconds),
            "prefill_tokens_per_second": self.median(lambda run: run.prefill_rate),
            "decode_tokens_per_second": self.median(lambda run: run.decode_rate),
            "peak_rss_bytes": None if self.resident is None else self.resident.peak,
            "peak_rss_reset": self.peak_reset,
            "rss_anonymous_bytes": None if self.resident is None else self.resident.anonymous,
            "rss_files_bytes": None if self.resident is None else self.resident.files,
            "sensors": {name: {"least": least, "most": most} for name, (least, most) in self.sensors.items()},
            "runs": [asdict(run) for run in self.runs],
        }

    def cells(self) -> tuple[str, ...]:
        """For the table."""
        peak = "-" if self.resident is None else f"{self.resident.peak / 2**20:.0f} MiB"
        return (
            str(self.input_tokens),
            f"{self.median(lambda run: run.first_seconds):.3f} s",
            f"{self.median(lambda run: run.prefill_rate):.1f}",
            f"{self.median(lambda run: run.decode_rate):.2f}",
            peak if self.peak_reset else f"{peak} *",
        )


@dataclass(slots=True, kw_only=True)
class ServedReport:
    """Everything about one run; rows are added as they are measured, so that what ends early keeps them.

    Attributes:
        facts: what was measured where: program, package, machine, clocks.
        ended: why it is not complete; None where it is.
    """

    output_tokens: int
    repeat: int
    facts: dict[str, Any]
    left_out: tuple[int, ...] = ()
    rows: list[Row] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    ended: str | None = None

    def to_json(self) -> str:
        """One JSON document with `schema` and `version`."""
        document = {
            "schema": SCHEMA,
            "version": VERSION,
            "complete": self.ended is None,
            "ended": self.ended,
            "method": _METHOD,
            "output_tokens": self.output_tokens,
            "repeat": self.repeat,
            "inputs_beyond_context": list(self.left_out),
            "warnings": self.warnings,
            **self.facts,
            "rows": [row.document() for row in self.rows],
        }
        return json.dumps(document, indent=1, ensure_ascii=False)

    def to_markdown(self) -> str:
        """The table, what it was measured on, and how."""
        lines = [
            "| input | TTFT | prefill tok/s | decode tok/s | peak RSS |",
            "|---|---|---|---|---|",
            *("| " + " | ".join(row.cells()) + " |" for row in self.rows),
            "",
        ]
        if any(not row.peak_reset for row in self.rows):
            lines += ["\\* since the start of the process: the peak could not be reset.", ""]
        if self.left_out:
            lines += [f"Beyond the context of the package: {', '.join(map(str, self.left_out))}.", ""]
        if self.ended is not None:
            lines += [f"**Not complete:** {self.ended}", ""]
        repeats = "one repeat" if self.repeat == 1 else f"{self.repeat} repeats"
        lines += [f"{self.output_tokens} tokens out, {repeats}. {_METHOD}", ""]
        lines += [f"- {name}: {text}" for name, text in self._about() if text]
        lines += [f"- warning: {warning}" for warning in self.warnings]
        return "\n".join(lines).rstrip("\n")

    def _about(self) -> list[tuple[str, str]]:
        machine, package, program = (self.facts[name] for name in ("machine", "package", "program"))
        governors = {name: policy["governor"] for name, policy in machine["cpu_policies"].items()}
        hot: dict[str, float] = {}
        for row in self.rows:
            for name, (_, most) in row.sensors.items():
                if name.endswith("_celsius"):
                    hot[name] = max(most, hot.get(name, most))
        server = self.facts.get("server") or {}
        return [
            ("board", " ".join(filter(None, (machine["board"], machine["soc"] and f"({machine['soc']})")))),
            ("processor", f"{', '.join(machine['cpu'])}, {machine['cpu_count']} cores, {machine['machine']}"),
            ("kernel", machine["kernel"]),
            ("memory", format_bytes(machine["memory"]["MemTotal"] or 0)),
            ("governors", ", ".join(f"{name} {governor}" for name, governor in governors.items())),
            ("clocks", "locked to their maximum" if self.facts["clocks"]["pinned"] else "not locked"),
            ("highest temperatures", ", ".join(f"{name[:-8]} {value:.1f} °C" for name, value in hot.items())),
            ("load", f"before {self.facts['load_before']}, after {self.facts.get('load_after') or '?'}"),
            ("package", f"{package['file']}, {format_bytes(package['bytes'])}, SHA-256 {package['sha256']}"),
            ("program", f"{program['name']} {(program['version'] or {}).get('program_version', '?')}"),
            (
                "server",
                ", ".join(
                    f"{key} {server[key]}" for key in ("context", "kv_cache", "threads", "simd") if key in server
                ),
            ),
            ("options", " ".join(program["options"])),
            ("measured", f"{self.facts['started']} to {self.facts.get('ended_at') or '?'}"),
        ]


def result_files(output: Path | None) -> tuple[Path, ...]:
    """NAME.json and NAME.md, checked before any work.

    Raises:
        UsageError: one of them exists. Results are never replaced.
    """
    if output is None:
        return ()
    if not output.name:
        raise UsageError("bench-options", f"{output} is no name for results", hint="Give one such as results/board.")
    files = tuple(output.with_name(output.name + suffix) for suffix in (".json", ".md"))
    for path in files:
        if path.exists() or path.is_symlink():
            hint = "Results are never replaced: give another name, or move it away."
            raise UsageError("output-exists", f"{path} exists", hint=hint)
    return files


def write_results(report: ServedReport, files: tuple[Path, ...]) -> None:
    """Writes both files.

    Raises:
        UsageError: one of them appeared meanwhile.
        ResourceError: they cannot be written.
    """
    for path, text in zip(files, (report.to_json(), report.to_markdown()), strict=False):
        with partial_file(path, force=False) as file:
            file.write(text.encode(errors="backslashreplace") + b"\n")  # names of files need not be UTF-8
