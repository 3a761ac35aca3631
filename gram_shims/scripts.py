"""The scripts of GRAM 1.5 (Globus 2.0), ``globus-script-samgrid-submit``, ``-poll``, ``-rm`` and ``-signal``."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from batch_adapters.states import State
from gram_shims.answers import Answer, refuse, render_old_answer
from gram_shims.argument_file import STATE_VARIABLE, ArgumentFile, read_argument_file
from gram_shims.description import BadDescription, JobDescription
from gram_shims.errors import GramError
from gram_shims.origin import find_contact
from gram_shims.program import PATIENCE, Reply, answer_call, find_failure
from gram_shims.sealed import seal

logger = logging.getLogger(__name__)

COMMANDS = {"submit": "submit", "poll": "poll", "rm": "cancel", "signal": "signal"}
"""By the last word of a script's name: what it asks for."""


def main(argv: list[str]) -> int:
    """Answer what the argument file asks for; of what is printed only the last line counts.

    The last word of the program's name is one of the keys of `COMMANDS`.
    """
    script = Path(sys.argv[0]).name.rpartition("-")[2]
    parser = argparse.ArgumentParser(prog=f"globus-script-samgrid-{script}", description=__doc__)
    parser.add_argument("--state-dir", help="state folder of the account")
    # For a signal the file of the job and then that of the signal.
    parser.add_argument("files", nargs="+", type=Path, metavar="ARGFILE")
    options = parser.parse_args(argv)
    _, sink = seal()
    try:
        asked = _read_files(options.files)
    except (OSError, BadDescription) as error:
        logger.error("%s", error)
        Reply(sink, lambda answer: render_old_answer(answer, State.PENDING)).give(
            refuse(GramError.BAD_SCRIPT_ARG_FILE, str(error))
        )
        return 1
    reply = Reply(sink, lambda answer: render_old_answer(answer, asked.told))
    command = COMMANDS[script]
    reply.give_after(PATIENCE, find_failure(command, f"no answer within {PATIENCE:g} s"))
    answer = answer_call(command, options.state_dir, _name_request(asked.description, options.files[0]))
    _append_answer(options.files[0], asked, answer)
    reply.give(answer)
    return 0


def _read_files(files: Sequence[Path]) -> ArgumentFile:
    return read_argument_file("\n".join(os.fsdecode(file.read_bytes()) for file in files))


def _name_request(description: JobDescription, file: Path) -> JobDescription:
    """GRAM 1.5 may name a job by no more than a pid, which others will have: its file and contact tell it from them."""
    name = f"{description.word('uniqid')}{file.absolute()} {find_contact(description)}"
    return replace(description, attributes={**description.attributes, "uniqid": (name,)})


def _append_answer(file: Path, asked: ArgumentFile, answer: Answer) -> None:
    """Keep in the argument file, as its protocol wants it, what the next scripts have to know."""
    lines = [f"grami_job_id='{answer.job_id}'\n"] if answer.job_id else []
    if answer.state not in (None, asked.told):
        lines.append(f"{STATE_VARIABLE}='{answer.state.value}'\n")
    if not lines:
        return
    try:
        with file.open("a") as sink:
            sink.writelines(lines)
    except OSError as error:
        logger.warning("%s: %s", file, error)
