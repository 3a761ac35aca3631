"""Where every program of ours starts: puts our private folders on the module path, then enters one of them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def samgrid() -> int:
    """Run the command line for people; the exit status is the result."""
    if sys.argv[1:2] == ["gram"]:
        from gram_shims.installing import main as gram_main

        return gram_main(sys.argv[2:])
    from jobmanager.cli import main

    return main(sys.argv[1:])


def monitor() -> int:
    """Run the job state monitor of one account."""
    from jobmanager.monitor import main

    return main(sys.argv[1:])


def worker() -> int:
    """Do one task of one grid job, or look at one batch system."""
    from jobmanager.worker import main

    return main(sys.argv[1:])


def query() -> int:
    """Answer one question to the job database, within limits."""
    from jobmanager.query_program import main

    return main()


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


def event_collector() -> int:
    """Run the collector of the grid jobs' events, one for all accounts of a host."""
    from batch_adapters.generator.collector import main

    return main(sys.argv[1:])


def gram() -> int:
    """Answer the calls of GRAM's Perl module."""
    import gc

    # Each is over before there is anything to collect, and GRAM waits.
    gc.disable()
    from gram_shims.program import main

    return main(sys.argv[1:])


def gram_script() -> int:
    """Run a script of GRAM 1.5; the last word of the program's name says which."""
    from gram_shims.scripts import main

    return main(Path(sys.argv[0]).name.rpartition("-")[2], sys.argv[1:])


PROGRAMS = {
    "samgrid": samgrid,
    "samgrid-monitor": monitor,
    "samgrid-worker": worker,
    "samgrid-query": query,
    "samgrid-fork": fork_queue,
    "samgrid-fork-starter": fork_starter,
    "samgrid-scheduler-event-generator": generator,
    "samgrid-event-collector": event_collector,
    "samgrid-gram": gram,
    **{f"globus-script-samgrid-{script}": gram_script for script in ("submit", "poll", "rm", "signal")},
}

if __name__ == "__main__":
    # As a console script has it: the name, and what follows.
    del sys.argv[0]
    sys.exit(PROGRAMS[sys.argv[0]]())
