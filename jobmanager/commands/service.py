"""The commands of who runs the service: its configuration, and the monitor."""

import argparse
import os

from jobmanager.commands.arguments import AddCommand, AddForJob

CONFIG_HELP = (
    "Later ones win: built-in defaults, /etc/samgrid/samgrid.toml, the file $SAMGRID_CONFIG, SAMGRID_SECTION_KEY."
)

MONITOR_HELP = "Every command starts one when there is work; run it yourself as a service, with --stay."


def add_commands(add: AddCommand, _: AddForJob) -> None:
    """Make the commands known to the command line."""
    add("config", config, "Print every configuration value and where it came from.", CONFIG_HELP)
    command = add("monitor", monitor, "Run the job state monitor in the foreground.", MONITOR_HELP)
    command.add_argument("--stay", action="store_true", help="do not end when there is nothing to do")


def config(options: argparse.Namespace) -> int:
    """Print the configuration."""
    from jobmanager.site.configuration import read_configuration, render_configuration

    print(render_configuration(read_configuration(os.environ)), end="")
    return 0


def monitor(options: argparse.Namespace) -> int:
    """Run the monitor in the foreground."""
    from jobmanager.monitor.monitor import main

    folder = ["--state-dir", options.state_dir] if options.state_dir else []
    return main([*folder, *(["--stay"] if options.stay else [])])
