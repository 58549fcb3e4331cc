"""Runs in the Python under test and prints, as JSON, what that Python is and can do."""

import ctypes
import hashlib
import importlib
import json
import platform
import socket
import ssl
import struct
import sys
import sysconfig
import threading
import zlib


def missing_modules() -> list[str]:
    """Top-level modules of the standard library that cannot be imported."""
    missing = []
    for name in sorted(sys.stdlib_module_names):
        if name in ("antigravity", "this", "__main__"):
            continue
        try:
            importlib.import_module(name)
        except ImportError:
            missing.append(name)
    return missing


def tls_version(certificate: str, key: str) -> str:
    """The protocol that a client and a server of this Python agree on, having exchanged a word."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    client = ssl.create_default_context(cafile=certificate)
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with server.wrap_socket(theirs, server_side=True) as stream:
            stream.sendall(stream.recv(5))

    thread = threading.Thread(target=serve)
    thread.start()
    with client.wrap_socket(ours, server_hostname="localhost") as stream:
        stream.sendall(b"hello")
        answer = stream.recv(5)
        version = stream.version()
    thread.join()
    return f"{version} {answer.decode()}"


callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_double, ctypes.c_int)(lambda a, b: int(a * b))
print(
    json.dumps(
        {
            "version": sys.version,
            "build": list(platform.python_build()),
            "platform": sysconfig.get_platform(),
            "machine": platform.machine(),
            "hash": hash("mindnano"),
            "hash_algorithm": [sys.hash_info.algorithm, sys.hash_info.hash_bits, sys.hash_info.modulus],
            "pointer": struct.calcsize("P"),
            "openssl": ssl.OPENSSL_VERSION,
            "sha256_of": type(hashlib.sha256()).__module__,
            "sha256": hashlib.sha256(b"abc").hexdigest(),
            "zlib": zlib.ZLIB_RUNTIME_VERSION,
            "zlib_round_trip": zlib.decompress(zlib.compress(b"abc" * 1000)) == b"abc" * 1000,
            "ctypes": [callback(2.5, 4), ctypes.CDLL(None).abs(-3)],
            "builtins": sorted(sys.builtin_module_names),
            "missing": missing_modules(),
            "files": sorted(
                name for name, module in sys.modules.items() if str(getattr(module, "__file__", "")).endswith(".so")
            ),
            "prefix": sys.prefix,
            "tls": tls_version(*sys.argv[1:3]) if len(sys.argv) > 2 else "",
        }
    )
)
