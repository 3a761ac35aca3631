"""One submission: an array of local jobs that run the same command, and the start request of each of them."""

import dataclasses
import json
from dataclasses import dataclass

from batch_adapters.fork.protocol import StartRequest

# How long after SIGXCPU, in seconds of cpu time, a program that goes on gets SIGKILL.
CPU_GRACE_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Submission:
    """Local jobs FIRST to LAST of one token; a limit of 0 is none, texts are as `protocol.read_wire` makes them."""

    token: str
    first: int
    last: int
    submitted: int
    """When, in nanoseconds since the epoch: the order in which submissions are served."""
    command: tuple[str, ...]
    directory: str
    environment: tuple[tuple[str, str], ...]
    stdout: str = "/dev/null"
    stderr: str = "/dev/null"
    wall_minutes: int = 0
    cpu_minutes: int = 0
    memory_mb: int = 0

    @property
    def indices(self) -> range:
        """The indices of its local jobs."""
        return range(self.first, self.last + 1)


def render_submission(submission: Submission) -> str:
    """The submission as JSON; pure ASCII, so that any byte of an argument survives."""
    return json.dumps(dataclasses.asdict(submission), indent=1) + "\n"


def read_submission(text: str) -> Submission:
    """The submission that `render_submission` wrote; raises ValueError where the text is none."""
    try:
        fields = json.loads(text)
        environment = tuple((name, value) for name, value in fields.pop("environment"))
        return Submission(command=tuple(fields.pop("command")), environment=environment, **fields)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it does not describe a submission: {error}") from error


def render_local_id(token: str, index: int) -> str:
    """The local id of one job of a submission: TOKEN.INDEX."""
    return f"{token}.{index}"


def render_job(submission: Submission, index: int) -> StartRequest:
    """What the fork starter is asked, to start one local job of the submission."""
    local_id = render_local_id(submission.token, index)
    executable, *arguments = _render_limited(submission)
    own = (("SAMGRID_FORK_ID", local_id), ("SAMGRID_FORK_INDEX", str(index)))
    return StartRequest(
        tag=local_id,
        executable=executable,
        arguments=tuple(arguments),
        directory=submission.directory,
        environment=(*submission.environment, *own),
        stdout=(submission.stdout.replace("%i", str(index)),),
        stderr=(submission.stderr.replace("%i", str(index)),),
    )


def _render_limited(submission: Submission) -> tuple[str, ...]:
    limits = []
    if submission.cpu_minutes:
        seconds = submission.cpu_minutes * 60
        limits += [f"ulimit -S -t {seconds}", f"ulimit -H -t {seconds + CPU_GRACE_SECONDS}"]
    if submission.memory_mb:
        limits += [f"ulimit -v {submission.memory_mb * 1024}"]
    if not limits:
        return submission.command
    # The shell sets the limits and becomes the program: same pid, and a limit it cannot set is its error message.
    return ("/bin/sh", "-c", " && ".join([*limits, 'exec "$@"']), "sh", *submission.command)
