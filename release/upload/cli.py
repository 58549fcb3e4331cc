"""The command line of `mindnano publish`."""

from __future__ import annotations

import argparse
from pathlib import Path

from launcher.errors import MindnanoError
from release.arguments import label


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.description = (
        "Verifies a release folder and shows the one commit that would bring a Hugging Face repository to its public"
        " files. With --yes the commit is made. The token is that of HF_TOKEN or of `hf auth login`; HF_ENDPOINT names"
        " another server."
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="release folder, as mindnano finalize made it")
    parser.add_argument("--repo", required=True, metavar="ORG/NAME", help="model repository")
    parser.add_argument("--branch", default="main", metavar="NAME", help="branch of it (default: %(default)s)")
    parser.add_argument(
        "--message", type=label, metavar="TEXT", help="of the commit (default: model and version of the release)"
    )
    others = parser.add_mutually_exclusive_group()
    others.add_argument(
        "--delete", action="store_true", help="also delete files that are not of a release; an earlier one's always go"
    )
    others.add_argument(
        "--leave",
        action="store_true",
        help="let files that are not of a release stay, although a download then does not pass mindnano verify",
    )
    parser.add_argument("--create", action="store_true", help="make the repository where it is not there")
    parser.add_argument("--private", action="store_true", help="with --create: only its owners see it")
    parser.add_argument("--parent", metavar="COMMIT", help="refuse unless the branch is still here, as shown before")
    parser.add_argument("--yes", action="store_true", help="upload; without it nothing is changed")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def run(arguments: argparse.Namespace) -> None:
    """Verifies, shows, and with --yes uploads."""
    from release.showing import show
    from release.upload.plan import failure_json
    from release.upload.publish import PublishOptions, publish

    options = PublishOptions(
        folder=arguments.folder,
        repository=arguments.repo,
        branch=arguments.branch,
        message=arguments.message,
        delete=arguments.delete,
        leave=arguments.leave,
        create=arguments.create,
        private=arguments.private,
        parent=arguments.parent,
        confirmed=arguments.yes,
    )
    try:
        result = publish(options)
    except MindnanoError as error:
        if arguments.json:
            show(failure_json(arguments.repo, error))
        raise
    print(result.to_json() if arguments.json else result.to_text())
