"""Requests that do not know of us end as under GRAM's own job manager fork: the same bytes, exit codes and errors."""

import re
from dataclasses import dataclass

import pytest

from tests.gram.gram_site import FORK, OURS, GramSite, Outcome, quote, sh, without_details

SHOW = 'for word; do printf "[%s]" "$word"; done; echo "$#"'
NASTY = (
    "", " ", "  a  ", "it's", 'say "hi"', "back\\slash", "\\\\", "\\", "$HOME", "$(id)", "`id`", "a;b", "a&b", "a|b",
    "*", "?", "~", "#x", "-n", "--", "a\tb", "two\nlines", "\n", "end\n", "%s%d", "!", "(a)(b)", "=", "é", "日本",
    "a,b", "\x01\x7f", "'", '"', "''", "'\"'\"'", "{a,b}", "\\n", "\r",
)  # fmt: skip
VARIABLES = "".join(
    f"({name} {quote(value)})"
    for name, value in (("A", "1"), ("B", " two words "), ("C", "q'\"$x`y\\"), ("D", ""), ("E", "\nlines\n"))
)

SAME = {
    "an-argument": "(executable=/bin/echo)(arguments=hello)",
    "no-argument": "(executable=/bin/echo)",
    "every-word": sh(SHOW, *NASTY),
    "bytes-that-are-no-utf-8": sh(SHOW, "\udcff\udcfe", "a\udce9b"),
    "a-long-argument": sh(SHOW, "x" * 10_000),
    "many-arguments": sh(SHOW, *map(str, range(1000))),
    "stderr": sh("echo out; echo err >&2"),
    "no-line-break-at-the-end": sh("printf out; printf err >&2"),
    "binary-output": sh(r"printf '\000\001\377\r\n\000'"),
    "much-output": sh("seq 1 300000"),
    "no-output": "(executable=/bin/true)",
    "exit-code": sh("echo before; exit 3"),
    "a-signal": sh("echo before; kill -9 $$"),
    "directory": "(executable=/bin/pwd)(directory=/usr/share)",
    "default-directory": "(executable=/bin/pwd)",
    "directory-seen-from-home": sh("pwd") + "(directory=.globus)",
    "default-stdin": "(executable=/bin/cat)",
    "stdin": "(executable=/bin/cat)(stdin=HOME/stdin)",
    "stdin-of-each-process": "(executable=/bin/cat)(stdin=HOME/stdin)(count=3)",
    "stdin-from-the-client": "(executable=/bin/cat)(stdin=$(GLOBUSRUN_GASS_URL)HOME/stdin)",
    "program-from-the-client": "(executable=$(GLOBUSRUN_GASS_URL)HOME/program)(arguments=a 'b c')",
    "program-seen-from-its-directory": "(directory=HOME)(executable=program)(arguments=x)",
    "count": sh("echo one") + "(count=4)",
    "single-counted": sh("echo one") + "(count=4)(job_type=single)",
    "part-of-a-job-type": "(executable=/bin/echo)(arguments=x)(job_type=mult)",
    "multiple": sh("echo one") + "(count=2)(job_type=multiple)",
    "environment": sh('printf "%s|" "$A" "$B" "$C" "$D" "$E"') + f"(environment={VARIABLES})",
    "no-limits": sh("echo x") + "(max_time=0)(max_wall_time=0)(max_cpu_time=0)(max_memory=0)(min_memory=0)",
    "limits": sh("echo x") + "(max_wall_time=5)(max_cpu_time=5)(max_memory=500)",
    "library-path": sh('echo "$LD_LIBRARY_PATH"') + "(library_path=/opt/one /opt/two)",
    "substitution": "(executable=$(HOME)/../../bin/echo)(arguments=$(LOGNAME) $(X))(rsl_substitution=(X 'y z'))",
    "umask": sh("umask"),
    "dry-run": "(executable=/bin/echo)(arguments=x)(dry_run=yes)",
    "proxy": sh('head -c 27 "$X509_USER_PROXY"; stat -c %a "$X509_USER_PROXY"'),
    "a-proxy-of-its-own": sh('echo "$X509_USER_PROXY"') + "(environment=(X509_USER_PROXY /tmp/mine))",
    "gone-directory": "(executable=/bin/pwd)(directory=/nowhere)",
    "directory-is-a-file": "(executable=/bin/pwd)(directory=/etc/passwd)",
    "no-such-program": "(executable=/nowhere/program)",
    "program-may-not-run": "(executable=/etc/passwd)",
    "program-is-a-folder": "(executable=/etc)",
    "no-such-stdin": "(executable=/bin/cat)(stdin=/nowhere/file)",
    "nested-arguments": "(executable=/bin/echo)(arguments=(a b))",
    "environment-without-value": "(executable=/bin/echo)(environment=(A))",
    "environment-without-parentheses": "(executable=/bin/echo)(environment=A)",
    "count-is-a-word": "(executable=/bin/echo)(count=many)",
    "two-programs": "(executable=/bin/echo /bin/true)",
    "two-directories": "(executable=/bin/echo)(directory=/ /tmp)",
    "no-program": "(arguments=x)",
    "unknown-attribute": "(executable=/bin/echo)(nonsense=x)",
    "stdout-cannot-be-written": "(executable=/bin/echo)(arguments=x)(stdout=/nowhere/file)",
    "stderr-cannot-be-written": "(executable=/bin/echo)(arguments=x)(stderr=/nowhere/file)",
    "stage-in-fails": "(executable=/bin/echo)(file_stage_in=(file:///nowhere/file HOME/never))",
    "stage-out-fails": "(executable=/bin/echo)(file_stage_out=(/nowhere/file file:///tmp/never))",
}
"""By name: requests whose clients see the same under both; HOME is the account's folder."""


@dataclass(frozen=True)
class Both:
    """What became of the same requests under both job managers."""

    ours: dict[str, Outcome]
    forks: dict[str, Outcome]


@pytest.fixture(scope="module")
def both(gram: GramSite) -> Both:
    gram.write("stdin", b"line\n\x00\xff no end")
    gram.write("program", b'#!/bin/sh\necho "ran with $*"\n', 0o700)
    requests = {
        name: rsl.replace("HOME/", f"{gram.home}/").replace("=HOME)", f"={gram.home})") for name, rsl in SAME.items()
    }
    return Both(*gram.run_both(requests, requests))


@pytest.mark.parametrize("name", list(SAME))
def test_a_plain_job_ends_as_under_fork(both: Both, name: str) -> None:
    ours, forks = both.ours[name], both.forks[name]
    assert (ours.status, ours.stdout) == (forks.status, forks.stdout), (ours.words, forks.words)
    assert without_details(ours) == without_details(forks)


def test_a_job_type_that_nobody_knows_is_refused_by_gram_itself(gram: GramSite) -> None:
    ours, forks = (gram.globusrun(service, "(executable=/bin/echo)(job_type=nothing)") for service in (OURS, FORK))
    assert ours.status == forks.status
    assert "error code 19" in without_details(forks)
    # It takes our job types, too, and names them behind its own.
    assert re.sub(r" cdf_[^)]*", "", without_details(ours)) == without_details(forks)


def test_every_promised_variable_is_there(gram: GramSite) -> None:
    request = sh("env -0") + "(environment=(MINE 1))(scratch_dir=.)"
    ours, forks = (_read_environment(gram.globusrun(service, request)) for service in (OURS, FORK))
    # fork.pm keeps the variables of requests that its process has served before.
    forks = {name: value for name, value in forks.items() if not re.fullmatch("[A-E]", name)}
    assert forks.keys() <= ours.keys()
    # A copy of the proxy, which follows GRAM's own.
    assert ours.pop("X509_USER_PROXY").endswith("/credentials/x509_user_proxy")
    forks.pop("X509_USER_PROXY")
    varying = {"GLOBUS_GRAM_JOB_CONTACT", "SCRATCH_DIRECTORY"}
    # In ours a folder of the driver's comes first.
    ours["PATH"] = ours["PATH"].partition(":")[2]
    assert {name: ours[name] for name in forks.keys() - varying} == {
        name: forks[name] for name in forks.keys() - varying
    }
    for name in varying:
        # The six behind gram_scratch_ may begin with digits.
        chance = r"_[A-Za-z0-9]{6}/?$|[0-9]+|[A-Za-z0-9]{6}/?$"
        assert re.sub(chance, "", ours[name]) == re.sub(chance, "", forks[name])


def _read_environment(outcome: Outcome) -> dict[str, str]:
    assert outcome.status == 0, outcome.words
    return dict(pair.split("=", 1) for pair in outcome.stdout.decode().split("\0") if pair)
