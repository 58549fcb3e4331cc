"""`--tls-cert` and `--tls-key`, read before anything else so that a mistake shows at once."""

from __future__ import annotations

import ssl

from launcher.errors import UsageError
from launcher.options.parse import ServerOptions


def server_context(options: ServerOptions) -> ssl.SSLContext | None:
    """The context for HTTPS with TLS 1.2 or later; None for plain HTTP.

    Raises:
        UsageError: only one of the two files is given, one cannot be read, or they do not belong together.
    """
    if options.tls_cert is None and options.tls_key is None:
        return None
    if options.tls_cert is None or options.tls_key is None:
        raise UsageError(
            "tls-files", "--tls-cert and --tls-key belong together, one is missing", hint="give both, or neither"
        )
    for path in (options.tls_cert, options.tls_key):
        try:
            path.read_bytes()
        except OSError as error:
            raise UsageError(
                "tls-files", f"cannot read {path}: {error.strerror}", hint="check the path and the file's permissions"
            ) from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        # A key with a passphrase would ask on the terminal; an empty one makes it fail instead.
        context.load_cert_chain(options.tls_cert, options.tls_key, password="")
    except (ssl.SSLError, ValueError, OSError) as error:
        raise UsageError(
            "tls-files",
            f"{options.tls_cert} and {options.tls_key} do not make a certificate and its private key: {error}",
            hint="give a PEM certificate chain and its unencrypted private key",
        ) from error
    return context
