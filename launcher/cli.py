"""`mindnano-infer`: arguments -> options -> one command, and the one place where errors become exit codes."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from launcher import __version__
from launcher.errors import EXIT_SIGHUP, EXIT_SIGINT, InternalError, MindnanoError, resource_error
from launcher.interrupts import end_in_good_order
from launcher.messages import Catalogue, Language
from launcher.options.parse import Options, language_of, parse
from launcher.options.table import ColorMode, Command
from launcher.terminal import abandon_stdout, let_go_of_lost_terminal

_NPU_CHILD = "--npu-child"  # how --check=deep starts this program for its self-test


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program and returns its exit code."""
    environ = dict(os.environ)
    _open_closed_streams()
    _speak_utf8()
    given = sys.argv[1:] if arguments is None else list(arguments)
    texts = Catalogue(Language.ENGLISH)
    try:
        if given[:1] == [_NPU_CHILD]:
            return _npu_child(given[1:])
        texts = Catalogue(language_of(given, environ))
        options = parse(given, environ)
        texts = Catalogue(options.language)  # a configuration file may name another one
        code = _run(options, texts, environ)
        sys.stdout.flush()  # a full disk shows here at the latest
        return code
    except MindnanoError as error:
        print(texts.error(error), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_SIGINT
    except SystemExit as end:
        if end.code:  # a signal, and the terminal may be gone
            let_go_of_lost_terminal()
        raise
    except BrokenPipeError:  # the reader of stdout has seen enough
        abandon_stdout()
        return 0
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.EIO and let_go_of_lost_terminal():
            return EXIT_SIGHUP  # whether its signal or the failed write came first
        short = resource_error(error)
        if short is not None:
            if isinstance(error, OSError):
                abandon_stdout()  # what it still holds could not be written either
            print(texts.error(short), file=sys.stderr)
            return short.exit_code
        traceback.print_exc()
        internal = InternalError("internal", repr(error), hint="please report this with the command that led to it")
        print(texts.error(internal), file=sys.stderr)
        return internal.exit_code


def _open_closed_streams() -> None:
    """Gives a stream that was closed at the start to the null device, so that no file opened later takes its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115


def _speak_utf8() -> None:
    """UTF-8 on all three streams, whatever the locale says. Input must be valid; output replaces what cannot be."""
    for stream, errors in ((sys.stdin, "strict"), (sys.stdout, "replace"), (sys.stderr, "replace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors)


def _run(options: Options, texts: Catalogue, environ: Mapping[str, str]) -> int:
    end_in_good_order()
    run = _COMMANDS.get(options.command)
    return _talk(options, texts, environ) if run is None else run(options, texts, environ)


def _npu_child(words: Sequence[str]) -> int:
    from launcher.npu.child import main as run_child

    return run_child(words)


def _version(options: Options, _texts: Catalogue, _environ: Mapping[str, str]) -> int:
    if options.json:
        from launcher.version import version_document

        print(json.dumps(version_document(), indent=2))
    else:
        print(f"mindnano-infer {__version__}")
    return 0


def _exit_codes(_options: Options, texts: Catalogue, _environ: Mapping[str, str]) -> int:
    print(texts("exit-codes"))
    return 0


def _check(options: Options, texts: Catalogue, environ: Mapping[str, str]) -> int:
    from launcher.check import run_check

    return run_check(options, environ, texts)


def _list_contexts(options: Options, texts: Catalogue, environ: Mapping[str, str]) -> int:
    from launcher.list_contexts import run_list_contexts

    return run_list_contexts(options, environ, texts)


def _verify(options: Options, texts: Catalogue, environ: Mapping[str, str]) -> int:
    from launcher.integrity.verify import run_verify

    return run_verify(options, environ, texts)


def _download(options: Options, texts: Catalogue, environ: Mapping[str, str]) -> int:
    from launcher.download.download import run_download
    from launcher.system import SystemView

    return run_download(options, environ, texts, SystemView())


def _print_config(options: Options, texts: Catalogue, environ: Mapping[str, str]) -> int:
    from launcher.options.print_config import run_print_config

    return run_print_config(options, environ, texts)


def _print_completion(options: Options, _texts: Catalogue, _environ: Mapping[str, str]) -> int:
    from launcher.options.completion import completion

    print(completion(options.operand or ""))
    return 0


def _print_unit(options: Options, _texts: Catalogue, _environ: Mapping[str, str]) -> int:
    from launcher.service import unit
    from launcher.system import SystemView

    print(unit(options, SystemView()))
    return 0


def _notices(options: Options, _texts: Catalogue, _environ: Mapping[str, str]) -> int:
    from launcher.payload.carried import carried
    from launcher.payload.notices import run_notices

    return run_notices(options.operand, sys.stdout, carried())


def _sbom(_options: Options, _texts: Catalogue, _environ: Mapping[str, str]) -> int:
    from launcher.payload.carried import carried
    from launcher.payload.notices import run_sbom

    return run_sbom(sys.stdout, carried())


def _list_payload(options: Options, texts: Catalogue, _environ: Mapping[str, str]) -> int:
    from launcher.payload.commands import document, require_payload, run_list

    payload = require_payload()
    if options.json:
        print(json.dumps(document(payload), indent=2))
        return 0
    return run_list(texts, sys.stdout, payload)


def _unpack(options: Options, texts: Catalogue, _environ: Mapping[str, str]) -> int:
    from launcher.payload.commands import require_payload, run_unpack

    return run_unpack(Path(options.operand or ""), texts, sys.stderr, require_payload())


def _verify_self(_options: Options, texts: Catalogue, _environ: Mapping[str, str]) -> int:
    from launcher.payload.commands import require_payload, run_verify_self

    return run_verify_self(texts, sys.stdout, require_payload())


def _serve(options: Options, texts: Catalogue, environ: Mapping[str, str]) -> int:
    from launcher.server.serve import run_serve

    return run_serve(options, environ, texts)


def _talk(options: Options, texts: Catalogue, environ: Mapping[str, str]) -> int:
    from launcher.chat import answer_once, read_question, run_chat
    from launcher.download.first_start import first_start
    from launcher.download.model_store import find_model
    from launcher.system import SystemView
    from launcher.talk import open_talk
    from launcher.terminal import Console, is_terminal

    console = Console(texts, out=sys.stdout, err=sys.stderr, color=options.color, environ=environ)
    question = options.question
    if question is None and not is_terminal(sys.stdin):
        question = read_question(sys.stdin)
    system = SystemView()
    if not options.demo and find_model(options, environ) is None:
        options = replace(options, model=first_start(options, environ, texts, system))
    with open_talk(options, environ, system) as talk:
        if question is not None:
            return answer_once(talk, console, question)
        console.say("chat-banner", name=talk.name, context=talk.context, threads=talk.threads, simd=talk.simd)
        if options.demo:
            console.say("chat-demo")
        return run_chat(talk, console, _line_reader(sys.stderr, options.color))


def _line_reader(stream: TextIO, color: ColorMode) -> Callable[[], str]:
    from launcher.line_editor import line_reader

    return line_reader(stream, color)


_COMMANDS: Mapping[Command, Callable[[Options, Catalogue, Mapping[str, str]], int]] = {
    Command.VERSION: _version,
    Command.EXIT_CODES: _exit_codes,
    Command.CHECK: _check,
    Command.LIST_CONTEXTS: _list_contexts,
    Command.VERIFY: _verify,
    Command.DOWNLOAD: _download,
    Command.PRINT_CONFIG: _print_config,
    Command.PRINT_COMPLETION: _print_completion,
    Command.PRINT_UNIT: _print_unit,
    Command.SERVE: _serve,
    Command.NOTICES: _notices,
    Command.SBOM: _sbom,
    Command.LIST_PAYLOAD: _list_payload,
    Command.UNPACK: _unpack,
    Command.VERIFY_SELF: _verify_self,
}
