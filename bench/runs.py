"""Shared by the measurements: a run as a separate process, which prints its results as lines of JSON."""
import json
import os
import shlex
import subprocess
import sys


def json_lines(command, environment=None):
    """All results of a run; if there are none, prints what went wrong. `environment` is added to the present one."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **(environment or {})})
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not results:
        print(f"{shlex.join(map(str, command))} failed:\n{done.stdout[-500:]}{done.stderr[-2000:]}", file=sys.stderr)
    return results


def run(command):
    """Its last result, or None."""
    return next(reversed(json_lines(command)), None)


def needed(command, environment=None):
    """The last result of a run; the measurement cannot continue without it."""
    results = json_lines(command, environment)
    return results[-1] if results else sys.exit(1)
