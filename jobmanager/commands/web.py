"""``samgrid web``: grid jobs in a browser; the web framework is loaded only here."""

import argparse
from importlib.util import find_spec
from pathlib import Path

from jobmanager.commands.arguments import AddCommand, AddForJob
from jobmanager.commands.grid_jobs import CommandError
from jobmanager.site.account import look_into_account

_DEFAULT_ADDRESS = "127.0.0.1:8642"

_HELP = """\
Shows grid jobs, local jobs, progress, outputs and answers to XPath queries; changes nothing. Ends on control-C.
Without a token it answers to this account's own processes on this host only. For others, put a token into a file that
you alone can read (umask 077; openssl rand -hex 32 >FILE): the page then asks for it once. docs/web.md has the rest."""


def add_commands(add: AddCommand, _: AddForJob) -> None:
    """Make the command known to the command line."""
    command = add("web", web, "Show grid jobs in a browser.", _HELP)
    command.add_argument(
        "--listen",
        metavar="ADDRESS:PORT",
        default=_DEFAULT_ADDRESS,
        help="where (default: %(default)s; port 0: any that is free)",
    )
    command.add_argument("--token-file", metavar="FILE", help="readers have to know the token in it")


def web(options: argparse.Namespace) -> int:
    """Serve the pages until a signal ends them."""
    for module in ("starlette", "uvicorn"):
        if find_spec(module) is None:
            raise CommandError(f'this needs the Python package "{module}": pip install "samgrid-jobmanager[web]"')
    from jobmanager.web.access import TokenFileError, read_token
    from jobmanager.web.serving import ListenError, read_listen, serve

    try:
        listen = read_listen(options.listen)
        token = read_token(Path(options.token_file)) if options.token_file else None
        serve(look_into_account(options.state_dir), listen, token)
    except (ListenError, TokenFileError) as error:
        raise CommandError(str(error)) from error
    return 0
