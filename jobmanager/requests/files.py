"""Reads a request from a file: in RSL, or in the form of SAMGrid's old job description files."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from jobmanager.requests.attributes import BadRequest, Given, read_type
from jobmanager.requests.job_description_file import drop_meaningless, is_job_description, read_job_description
from jobmanager.requests.job_types import find_job_type
from jobmanager.requests.rsl import MAX_BYTES, Relations, RslError, read_rsl


def read_request_file(file: str, site_modules: Sequence[str]) -> tuple[Given, Path]:
    """A request's attributes, and the folder that its file names start from; ``-`` is standard input.

    What an old file says to nobody any more is named on stderr.

    :param site_modules: the site's modules with job types.
    :raises BadRequest: it is no request.
    """
    if file == "-":
        data, folder = sys.stdin.buffer.read(MAX_BYTES + 1), Path.cwd()
    else:
        with open(file, "rb") as stream:
            data, folder = stream.read(MAX_BYTES + 1), Path(file).resolve().parent
    try:
        text = data.decode()
        if not is_job_description(text):
            known = {name: os.environ[name] for name in ("HOME", "LOGNAME") if name in os.environ}
            return _read_given(read_rsl(text, known)), folder
        given = _read_given(read_job_description(text))
    except RslError as error:
        raise BadRequest([f"{file}: {error}"]) from error
    except UnicodeDecodeError as error:
        raise BadRequest([f"{file}: byte {error.start + 1} is no UTF-8 text"]) from error
    kept, ignored = drop_meaningless(given, find_job_type(read_type(given), site_modules))
    if ignored:
        print(f"samgrid: ignored: {', '.join(ignored)}", file=sys.stderr)
    return kept, folder


def _read_given(relations: Relations) -> Given:
    return [(relation.name, relation.values) for relation in relations]
