"""Runs Globus' own job manager script with our Perl module, as the GRAM job manager does, in a site of its own."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tests.samgrid import LAUNCH

SCRIPT = Path("/usr/share/globus/globus-job-manager-script.pl")
MODULE = LAUNCH.parents[1] / "gram_shims" / "perl" / "samgrid.pm"
CONTACT = "https://localhost:2119/16001/1700000000/"

Words = Sequence["str | bytes | Words"]
Answer = list[tuple[str, str]]


class Interpreter:
    """One pooled interpreter: commands go in, answers come out."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd=folder,
            close_fds=False,
        )

    def __enter__(self) -> "Interpreter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.process.kill()
        self.process.communicate()

    def send(self, request: bytes) -> None:
        """Say a request."""
        assert self.process.stdin is not None
        self.process.stdin.write(request)
        self.process.stdin.flush()

    def read(self) -> Answer:
        """The next answer, without what goes to the job manager's log."""
        assert self.process.stdout is not None
        lines = []
        while (line := self.process.stdout.readline()) != b"\n":
            assert line, "the interpreter has ended"
            lines.append(line)
        return read_lines(lines)

    def ask(self, command: str, **attributes: Words) -> Answer:
        """Say a request, and the answer."""
        self.send(render_request(command, attributes))
        return self.read()


@dataclass(frozen=True)
class GramSite:
    """A host with GRAM and our module: everything in one folder."""

    folder: Path
    settings: Mapping[str, str]

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def install(self, python: str | None = None) -> None:
        """Put the module where Perl finds it, and its configuration; ``python`` is the site's own."""
        modules = self.folder / "lib" / "Globus" / "GRAM" / "JobManager"
        modules.mkdir(parents=True)
        (modules / "samgrid.pm").write_bytes(MODULE.read_bytes())
        elsewhere = f"require Globus::Core::Paths; $Globus::Core::Paths::sysconfdir = '{self.folder}/etc'; 1;"
        (self.folder / "lib" / "SiteOfTest.pm").write_text(f"package SiteOfTest; {elsewhere}\n")
        self.home.mkdir()
        (self.folder / "scratch").mkdir()
        variables = "".join(f"export {name}='{value}'\n" for name, value in self.settings.items())
        own = self.folder / "python"
        own.write_text(f'#!/bin/sh\n{variables}exec {sys.executable} "$@"\n')
        own.chmod(0o755)
        (self.folder / "etc" / "globus").mkdir(parents=True)
        (self.folder / "etc" / "globus" / "globus-samgrid.conf").write_text(
            f'python="{python or own}"\nlaunch="{LAUNCH}"\nstate="$(HOME)/../state"\n'
        )

    def environment(self) -> dict[str, str]:
        """What GRAM's job manager gives its scripts."""
        return {
            "HOME": str(self.home),
            "LOGNAME": "griduser",
            "PATH": os.environ["PATH"],
            "PERL5LIB": str(self.folder / "lib"),
            "PERL5OPT": "-MSiteOfTest",
        }

    def start(self) -> Interpreter:
        """An interpreter as GRAM's job manager starts it."""
        command = ["perl", str(SCRIPT), "-m", "samgrid", "-c", "interactive", "-l", "/usr/lib"]
        return Interpreter(command, self.environment(), self.home)

    def run_once(self, command: str, **attributes: Words) -> Answer:
        """The answer of the one-shot form, which reads a file."""
        file = self.folder / "description"
        file.write_bytes(_render_description(attributes))
        words = ["perl", str(SCRIPT), "-m", "samgrid", "-c", command, "-f", str(file)]
        done = subprocess.run(words, capture_output=True, env=self.environment(), cwd=self.home, check=False)
        return read_lines(done.stdout.splitlines(keepends=True))

    def describe(self, uniqid: str, **attributes: Words) -> dict[str, Words]:
        """The attributes that GRAM gives each job, and these."""
        return {
            "executable": ["/bin/true"],
            "directory": [str(self.home)],
            "stdin": ["/dev/null"],
            "stdout": [str(self.folder / "out")],
            "stderr": [str(self.folder / "err")],
            "count": ["1"],
            "jobtype": ["multiple"],
            "dryrun": ["no"],
            "grammyjob": ["collective"],
            "savejobdescription": ["no"],
            "expiration": ["14400"],
            "streamingrequested": ["0"],
            "environment": [["HOME", str(self.home)], ["GLOBUS_GRAM_JOB_CONTACT", CONTACT]],
            "uniqid": [uniqid],
            "cachetag": [CONTACT],
            "jobdir": [str(self.folder / "jobdir")],
            **attributes,
        }


def read_lines(lines: Sequence[bytes]) -> Answer:
    """Keys and values of an answer; what is none fails the test, as it fails the job."""
    answer = []
    for line in lines:
        key, colon, value = line.decode().partition(":")
        assert colon, line
        assert key.startswith("GRAM_SCRIPT_"), line
        if key != "GRAM_SCRIPT_LOG":
            answer.append((key.removeprefix("GRAM_SCRIPT_"), value.removesuffix("\n")))
    return answer


def render_request(command: str, attributes: Mapping[str, Words]) -> bytes:
    """A request as GRAM's job manager writes it."""
    head = (
        f"{command}\n$ENV{{X509_USER_PROXY}} = '/tmp/x509up';\n$ENV{{GLOBUS_GRAM_JOB_CONTACT}} = '{CONTACT}';\n"
    ).encode()
    return head + _render_description(attributes) + b"\n"


def _render_description(attributes: Mapping[str, Words]) -> bytes:
    lines = [b"    '%s' => %s ,\n" % (name.encode(), _render(words)) for name, words in attributes.items()]
    return b"$description =\n{\n" + b"".join(lines) + b"};\n"


def _render(value: "str | bytes | Words") -> bytes:
    if isinstance(value, str | bytes):
        word = os.fsencode(value)
        return b"'" + word.replace(b"\\", b"\\\\").replace(b"'", b"\\'") + b"'"
    return b"[" + b",".join(map(_render, value)) + b"]"
