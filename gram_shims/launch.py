"""Where every program of ours starts: puts our private folders on the module path, then enters one of them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def samgrid() -> int:
    """Run the command line for people; the exit status is the result."""
    from jobmanager.cli import main

    return main(sys.argv[1:])


def monitor() -> int:
    """Run the job state monitor of one account."""
    from jobmanager.monitor import main

    return main(sys.argv[1:])


def worker() -> int:
    """Run one step (submit, cancel or collect) of one grid job."""
    from jobmanager.worker import main

    return main(sys.argv[1:])


def fork_queue() -> int:
    """Run the commands of the embedded batch system."""
    from batch_adapters.fork.commands import main

    return main(sys.argv[1:])


def fork_starter() -> int:
    """Run the fork starter, which speaks Globus' 100/101/102 protocol."""
    from batch_adapters.fork.starter import main

    return main(sys.argv[1:])


def generator() -> int:
    """Run the scheduler event generator."""
    from batch_adapters.generator.main import main

    return main(sys.argv[1:])


PROGRAMS = {
    "samgrid": samgrid,
    "samgrid-monitor": monitor,
    "samgrid-worker": worker,
    "samgrid-fork": fork_queue,
    "samgrid-fork-starter": fork_starter,
    "samgrid-scheduler-event-generator": generator,
}

if __name__ == "__main__":
    name = sys.argv.pop(1)
    sys.exit(PROGRAMS[name]())
