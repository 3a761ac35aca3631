"""The scripts of GRAM 1.5 (Globus 2.0), ``globus-script-samgrid-submit``, ``-poll``, ``-rm`` and ``-signal``."""

import argparse
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from adapters import Value, canonical_name
from batch_adapters.states import GramError, State
from gram_shims.program import PATIENCE, Reply, answer_call, make_failure, seal
from gram_shims.request import BadDescription, JobDescription
from jobmanager.gram.answers import GramAnswer, refuse
from jobmanager.requests.rsl import RslError, read_rsl

logger = logging.getLogger(__name__)

STATE_VARIABLE = "samgrid_told_state"
"""Ours: the number of the state that was last reported to GRAM."""
_ASSIGNMENT = re.compile(r"^([A-Za-z_][A-Za-z0-9_]*)=", re.MULTILINE)
_STATES = {str(state.value): state for state in State}
_JOB_TYPES = {"0": "mpi", "1": "single", "2": "multiple", "3": "condor"}
_LIMITS = ("maxtime", "maxwalltime", "maxcputime", "maxmemory", "minmemory", "hostcount")
_NAMES = {"program": "executable", "args": "arguments", "env": "environment"}
_RAW = ("condorarch", "condoros", "jobid", "stderr", "stdout", "uniqid")
"""Written without the escapes of words."""
_NAMING = {"jobid", "signal", "signalarg", "uniqid"}
"""GRAM names the job with these; a client must not, as it could name another's job."""
_LIST = "schedulerspecific"
_REQUEST = f"{_LIST}samgridrsl"
"""Ours: attributes as one word of RSL, because lists of words cannot contain parentheses."""


def read_argument_file(text: str) -> tuple[JobDescription, State]:
    """What one argument file, or several joined ones, say of a job, and the state that GRAM was last told.

    Limits of 0 mean none.

    The file assigns shell variables. Values are single-quoted; lists in them are double-quoted words for
    ``eval set -- $grami_args``. In a word ``"`` is written ``\\"``, a backslash as four, ``'`` as ``'"'"'`` and ``$``
    as ``'"\\\\$"'`` (globus_l_gram_param_prepare).

    :raises BadDescription: it is not an argument file.
    """
    variables = dict(_read_assignments(text))
    reported = _STATES.get(variables.pop(STATE_VARIABLE, ""), State.PENDING)
    attributes: dict[str, tuple[Value, ...]] = {}
    specific: dict[str, tuple[Value, ...]] = {}
    environment = {}
    for name, value in variables.items():
        if not name.startswith("grami_"):
            environment[name] = value
            continue
        key = canonical_name(name.removeprefix("grami_"))
        key = _NAMES.get(key, key)
        values = _read_values(key, value)
        if key == _REQUEST:
            specific.update(_read_request(values))
        elif key.startswith(_LIST):
            specific[key.removeprefix(_LIST)] = values
        elif not (key in _LIMITS and values in (("",), ("0",))):
            attributes[key] = values
    if named := sorted(_NAMING & specific.keys()):
        raise BadDescription(f"scheduler_specific: {named[0]} is GRAM's own")
    if "environment" in specific:
        specific["environment"] = (*attributes.get("environment", ()), *specific["environment"])
    attributes.update(specific)
    if not attributes.keys() & {"executable", "jobid", "signal"}:
        raise BadDescription("the argument file names no grami_program")
    return JobDescription(attributes, environment), reported


def _read_values(key: str, value: str) -> tuple[Value, ...]:
    if key in _RAW:
        return (value,)
    if key == "jobtype":
        return (_JOB_TYPES.get(value, value),)
    if key == "environment":
        words = list(_read_words(value))
        if len(words) % 2:
            raise BadDescription("grami_env has a name without a value")
        return tuple(zip(words[::2], words[1::2], strict=True))
    if key == "arguments" or key.startswith(_LIST):
        return tuple(_read_words(value))
    return tuple(_read_words(f'"{value}"'))


def _read_request(words: Iterable[Value]) -> Iterator[tuple[str, tuple[Value, ...]]]:
    try:
        for relation in read_rsl(" ".join(map(str, words))):
            yield canonical_name(relation.name), relation.values
    except RslError as error:
        raise BadDescription(f"samgrid_rsl: {error}") from error


def _read_assignments(text: str) -> Iterator[tuple[str, str]]:
    position = 0
    while match := _ASSIGNMENT.search(text, position):
        value, position = _read_shell_word(text, match.end())
        yield match[1], value


_PIECE = re.compile(
    r"""'(?P<single>[^']*)'|"(?P<double>(?:[^"\\]|\\.)*)"|\\(?P<escaped>.?)|(?P<plain>[^ \t\n;'"\\]+)""", re.DOTALL
)
"""A piece of a shell word: quoted, escaped or plain."""
_ESCAPED = re.compile(r'\\([$`"\\\n])')
"""sh(1): within double quotes a backslash escapes only these."""


def _read_shell_word(text: str, start: int) -> tuple[str, int]:
    """The shell word at a position, unquoted, and its end."""
    parts: list[str] = []
    place = start
    while place < len(text) and text[place] not in " \t\n;":
        piece = _PIECE.match(text, place)
        if piece is None:
            kind = "single" if text[place] == "'" else "double"
            raise BadDescription(f"a {kind} quote in the argument file is not closed")
        part = piece[piece.lastgroup or 0]
        if piece.lastgroup == "double":
            part = _ESCAPED.sub(lambda found: found[1].replace("\n", ""), part)
        parts.append(part)
        place = piece.end()
    return "".join(parts), place


def _read_words(text: str) -> Iterator[str]:
    """The words of a list, as ``eval set --`` would read them."""
    place = 0
    while place < len(text):
        if text[place] in " \t\n":
            place += 1
            continue
        word, place = _read_shell_word(text, place)
        # GRAM writes four backslashes for one, because shells of its time read them twice.
        yield word.replace("\\\\", "\\")
        if text[place : place + 1] == ";":
            raise BadDescription("an unquoted ; in a list of the argument file")


COMMANDS = {"submit": "submit", "poll": "poll", "rm": "cancel", "signal": "signal"}
"""The call of each script, by the last word of its name."""


def main(argv: list[str]) -> int:
    """Answer the call of an argument file. The last word of the program's name is a key of `COMMANDS`."""
    script = Path(sys.argv[0]).name.rpartition("-")[2]
    parser = argparse.ArgumentParser(prog=f"globus-script-samgrid-{script}", description=__doc__)
    parser.add_argument("--state-dir", help="state folder of the account")
    # For a signal: the job's file, then the signal's.
    parser.add_argument("files", nargs="+", type=Path, metavar="ARGFILE")
    options = parser.parse_args(argv)
    _, sink = seal()
    try:
        description, reported = read_argument_file("\n".join(os.fsdecode(file.read_bytes()) for file in options.files))
    except (OSError, BadDescription) as error:
        logger.error("%s", error)
        Reply(sink, lambda answer: render_old_answer(answer, State.PENDING)).give(
            refuse(GramError.BAD_SCRIPT_ARG_FILE, str(error))
        )
        return 1
    reply = Reply(sink, lambda answer: render_old_answer(answer, reported))
    command = COMMANDS[script]
    if command == "poll" and not description.word("jobid"):
        reply.give(refuse(GramError.BAD_SCRIPT_ARG_FILE, "the argument file names no grami_job_id"))
    reply.give_after(PATIENCE, make_failure(command, f"no answer within {PATIENCE:g} s"))
    answer = answer_call(command, options.state_dir, _name_request(description, options.files[0]))
    _append_answer(options.files[0], reported, answer)
    reply.give(answer)
    return 0


def _name_request(description: JobDescription, file: Path) -> JobDescription:
    """Add file and contact to the job's id: GRAM 1.5 may use only a pid, which other jobs will have."""
    name = f"{description.word('uniqid')}{file.absolute()} {description.contact}"
    return replace(description, attributes={**description.attributes, "uniqid": (name,)})


def _append_answer(file: Path, reported: State, answer: GramAnswer) -> None:
    """Append to the argument file, as the protocol demands, what the next scripts must know."""
    lines = [f"grami_job_id='{answer.job_id}'\n"] if answer.job_id else []
    if answer.state not in (None, reported):
        lines.append(f"{STATE_VARIABLE}='{answer.state.value}'\n")
    if not lines:
        return
    try:
        with file.open("a") as sink:
            sink.writelines(lines)
    except OSError as error:
        logger.warning("%s: %s", file, error)


def render_old_answer(answer: GramAnswer, before: State) -> str:
    """The output of a GRAM 1.5 script, of which GRAM reads the last line.

    :param before: the last reported state, as GRAM 1.5 cannot express "no change".
    """
    lines = [f"GRAM_SCRIPT_JOB_ID:{answer.job_id}"] if answer.job_id else []
    if answer.error is not None:
        lines.append(f"GRAM_SCRIPT_ERROR:{answer.error.value}")
    else:
        lines.append(f"GRAM_SCRIPT_SUCCESS:{(answer.state or before).value}")
    return "".join(f"{line}\n" for line in lines)
