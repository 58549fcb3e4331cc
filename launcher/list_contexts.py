"""`--list-contexts`: opens the package, plans every context, prints the table."""

from __future__ import annotations

import json
from collections.abc import Mapping

from launcher.contexts import failure_document, table_text
from launcher.errors import MindnanoError
from launcher.messages import Catalogue
from launcher.model import context_table, metadata_of, model_name, open_package
from launcher.options.parse import Options
from launcher.system import SystemView
from launcher.terminal import emit


def run_list_contexts(options: Options, environ: Mapping[str, str], texts: Catalogue) -> int:
    """Prints what each context costs with these options; returns the exit code.

    Raises:
        EngineError, PackageError, UsageError: the package does not open, or cannot serve the options; with `--json` the
            document says so all the same.
    """
    try:
        with open_package(options, environ) as package:
            table = context_table(package, model_name(metadata_of(package), package.path), options, SystemView())
    except MindnanoError as error:
        if options.json:
            emit(json.dumps(failure_document(error), indent=2))
        raise
    emit(json.dumps(table.document(), indent=2) if options.json else table_text(table, texts))
    return 0
