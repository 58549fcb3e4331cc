"""A real librknnrt.so, version 1.5.2, out of the Python package `rknpu`; kept in the cache, known by its SHA-256.

Its maker changed SONAME and search path of Rockchip's file, so it is not the published one byte for byte.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from engine.fetch import cache_root, file_sha256
from tests.support.availability import unavailable

_WHEEL_SHA256 = "486e0714f3097ee9301cc01bd24bc89b4364a14f0078c63b92b6bd53ce7f962d"
_MEMBER = "rknpu.libs/librknnrt-db603b2a.so"
SHA256 = "1b278f220361ffda3a91ba69affb650c2dd8acaa295b6883da8d6ea966fb8e32"
VERSION = "librknnrt version: 1.5.2 (c6b7b351a@2023-08-23T15:28:22)"


def real_librknnrt() -> Path:
    """The library for aarch64; skips or fails the test with the reason where it cannot be had."""
    target = cache_root() / "rknn" / f"librknnrt-1.5.2-{SHA256[:16]}.so"
    if target.is_file() and file_sha256(target) == SHA256:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        words = ["--no-deps", "--only-binary=:all:", "--python-version=3.11", "--platform=manylinux2014_aarch64"]
        command = [sys.executable, "-m", "pip", "download", "-q", *words, "--dest", scratch, "rknpu==1.5.2"]
        done = subprocess.run(command, capture_output=True, text=True)
        wheels = list(Path(scratch).glob("rknpu-*.whl"))
        if done.returncode != 0 or not wheels:
            unavailable(f"the package rknpu 1.5.2 cannot be downloaded: {done.stderr.strip()[-300:]}")
        found = file_sha256(wheels[0])
        if found != _WHEEL_SHA256:
            unavailable(f"the package rknpu 1.5.2 has SHA-256 {found}, expected {_WHEEL_SHA256}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            data = wheel.read(_MEMBER)
        assert hashlib.sha256(data).hexdigest() == SHA256
        partial = Path(scratch) / "library"
        partial.write_bytes(data)
        partial.replace(target)
    return target
