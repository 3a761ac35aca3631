#!/usr/bin/env python3
"""A command for [notification]: mails the addresses among the request's ``notify`` (docs/notification.md)."""

import json
import os
import shutil
import subprocess
import sys
from email.message import EmailMessage

told = json.load(sys.stdin)
job = told["grid_job"]
addresses = [word for word in told["notify"] if "@" in word]
if not addresses:
    sys.exit()
mail = EmailMessage()
mail["To"] = ", ".join(addresses)
mail["Subject"] = f"{told['event']}: {job['name'] or job['id']}"
counts = ", ".join(f"{count:,} {state}" for state, count in job["counts"].items())
lines = [f"Grid job {job['id']} ({job['type']}) at {told['site']}: {told['event']}.", *told["why"]]
mail.set_content("\n".join([*lines, f"Local jobs: {counts}", f"More: samgrid status {job['id']}"]))
program = shutil.which("sendmail", path=f"{os.environ['PATH']}:/usr/sbin") or "sendmail"
subprocess.run([program, "-i", "--", *addresses], input=mail.as_bytes(), check=True)
