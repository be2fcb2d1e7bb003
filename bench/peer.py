"""What the comparisons with another system share: a run of either, as a process of its own that ends with a line of JSON."""
import json
import shlex
import subprocess
import sys


def last_json(text):
    for line in reversed(text.strip().splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    return None


def run(command):
    """Its result, or None after saying what went wrong."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    result = last_json(done.stdout)
    if result is None:
        print(f"{shlex.join(map(str, command))} failed:\n{done.stdout[-500:]}{done.stderr[-2000:]}", file=sys.stderr)
    return result
