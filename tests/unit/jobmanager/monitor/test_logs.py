"""Logs of our processes, which experiments' code writes to as well."""

import io
import logging

import pytest

from jobmanager.monitor.logs import log_to


def test_a_call_with_wrong_arguments_fails_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    log_to(logging.StreamHandler(stream), "aaaaaaaa")
    logging.getLogger("experiment").info("found files", 3)
    logging.getLogger("experiment").info("found %d files", 3)
    assert "not all arguments converted" in capsys.readouterr().err
    assert stream.getvalue().endswith(" INFO aaaaaaaa found 3 files\n")
