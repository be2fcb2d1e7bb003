#!/usr/bin/env python3
"""Kills ranks of a run at random until it has ended, and compares its bits with those of an undisturbed run.

  tools/kill_campaign.py build/release/ebb --kills 50 [--ranks 3] [--seed 0] [--workload gpt2] [--json]

A campaign is a training run that is started again from its last checkpoint after every attack, on a number of ranks that is
drawn anew each time. An attack is kill -9 or kill -STOP of a random rank at a random moment, also while a checkpoint is written
(one is written after every second step). After each attack the tool checks that

- every process of the run ends within `--patience` seconds, with a code that is not 0,
- a rank that is left names the lost one (unless the attack came before ranks were connected),
- the last checkpoint can be loaded, and no temporary file stays behind once the next run has written one.

When the attacks are over the run ends in peace. Its weights and its optimizer's state must then have the checksums of a run of
one process that was never attacked. Ends with 1 if anything differs.
"""
import argparse, collections, json, os, random, shutil, signal, struct, subprocess, sys, tempfile, time
from pathlib import Path

TASKS = {
    "gpt2": "--workload gpt2 --layers 1 --width 32 --heads 2 --sequence 32 --vocabulary 211 --dropout 0.1 --clip 1",
    "reweight": "--workload reweight --hidden 16",
}
SHARDS = {"gpt2": ["0", "1", "2", "3"], "reweight": ["0"]}


def checksums(file):
    """The checksums of all tensors, which are the end of a checkpoint; without that of the header, which tells of the run's options."""
    with open(file, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(size))
        begin, end = header["checksums"]["data_offsets"]
        f.seek(8 + size + begin)
        return f.read(end - begin - 8), sorted(n for n in header if n not in ("checksums", "__metadata__"))


def ranks_of(mark):
    """The processes of the run, by rank."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if mark.encode() not in (entry / "cmdline").read_bytes():
                continue
            for variable in (entry / "environ").read_bytes().split(b"\0"):
                if variable.startswith(b"RANK="):
                    found[int(variable[5:])] = int(entry.name)
        except OSError:  # it has ended
            continue
    return found


class Campaign:
    def __init__(self, options):
        self.o = options
        self.draw = random.Random(options.seed)
        self.failures = []
        self.seen = collections.Counter()
        self.slowest = 0.0
        self.unnamed = 0

    def command(self, folder, ranks, steps, shard):
        o = self.o
        task = TASKS[o.workload].split() + ["--batch", "8", "--leaves", "8", "--eval-batches", "0", "--threads", "1", "--steps",
                                           str(steps), "--checkpoint", str(folder), "--resume", "auto", "--checkpoint-every", "2"]
        if ranks == 1:
            return [o.ebb, "train"] + task
        return [o.ebb, "launch", "-n", str(ranks), "--", "train"] + task + ["--shard", shard]

    def fail(self, what):
        self.failures.append(what)
        print("FAILED:", what, file=sys.stderr)

    def attack(self, folder, number):
        """Starts the run, attacks one rank and waits for all to end. Returns whether there was a rank to attack."""
        ranks = self.draw.randint(2, self.o.ranks)
        shard = self.draw.choice(SHARDS[self.o.workload])
        kind = self.draw.choice([signal.SIGKILL] * 3 + [signal.SIGSTOP])
        log = tempfile.TemporaryFile()
        run = subprocess.Popen(self.command(folder, ranks, 10**6, shard), stdout=log, stderr=subprocess.STDOUT)
        file = folder / "checkpoint.safetensors"
        before = file.stat().st_mtime_ns if file.exists() else 0
        until = time.time() + 60
        while time.time() < until and run.poll() is None:  # until it has taken a step
            if file.exists() and file.stat().st_mtime_ns != before:
                break
            time.sleep(0.005)
        time.sleep(self.draw.random() * self.o.spread)
        processes = ranks_of(str(folder))
        victim = self.draw.randrange(ranks)
        if victim not in processes or run.poll() is not None:
            run.kill()
            run.wait()
            return False
        os.kill(processes[victim], kind)
        begin = time.time()
        try:
            code = run.wait(timeout=self.o.patience)
        except subprocess.TimeoutExpired:
            code = None
            self.fail(f"attack {number}: the run did not end within {self.o.patience} s of {kind.name} to rank {victim} of {ranks}")
            run.kill()
            run.wait()
        took = time.time() - begin
        self.slowest = max(self.slowest, took)
        left = ranks_of(str(folder))
        if left:
            self.fail(f"attack {number}: processes stay behind: {left}")
            for process in left.values():
                os.kill(process, signal.SIGKILL)
        log.seek(0)
        text = log.read().decode(errors="replace")
        if code == 0:
            self.fail(f"attack {number}: the run ended with code 0")
        if f"rank {victim} was lost" not in text:
            self.unnamed += 1
            self.fail(f"attack {number}: {kind.name} to rank {victim} of {ranks} is not named:\n{text[-2000:]}")
        self.seen[kind.name] += 1
        print(f"attack {number}: {kind.name} to rank {victim} of {ranks}, shard {shard}, ended after {took:.1f} s", file=sys.stderr)
        return True

    def steps_of(self, folder):
        with open(folder / "checkpoint.safetensors", "rb") as f:
            size = struct.unpack("<Q", f.read(8))[0]
            return int(json.loads(f.read(size))["__metadata__"]["step"])

    def run(self, work):
        folder, peaceful = work / "attacked", work / "peaceful"
        number, tries = 0, 0
        while number < self.o.kills and tries < 3 * self.o.kills + 10:
            tries += 1
            number += self.attack(folder, number)
        if number < self.o.kills:
            self.fail(f"only {number} attacks found a rank to attack")
        steps = self.steps_of(folder) + 3
        for place, ranks in ((folder, self.o.ranks), (peaceful, 1)):
            done = subprocess.run(self.command(place, ranks, steps, "1" if self.o.workload == "gpt2" else "0"), capture_output=True, text=True)
            if done.returncode != 0:
                self.fail(f"the run in {place.name} ends with {done.returncode}: {done.stderr[-2000:]}")
                return steps
        if checksums(folder / "checkpoint.safetensors") != checksums(peaceful / "checkpoint.safetensors"):
            self.fail("the attacked run has other bits than the peaceful one")
        rest = [f.name for f in folder.iterdir() if f.name.endswith(".tmp")]
        if rest:
            self.fail(f"temporary files stay behind: {rest}")
        return steps


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ebb")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=3, help="at most; each run draws its number from 2 on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workload", choices=sorted(TASKS), default="gpt2")
    parser.add_argument("--spread", type=float, default=0.5, help="seconds within which an attack comes after a checkpoint")
    parser.add_argument("--patience", type=float, default=20.0, help="seconds in which all processes must have ended")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.ebb = shutil.which(options.ebb) or str(Path(options.ebb).resolve())
    work = Path(tempfile.mkdtemp(prefix="ebb-kills-"))
    campaign = Campaign(options)
    try:
        steps = campaign.run(work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    result = {"kills": sum(campaign.seen.values()), "by_signal": dict(campaign.seen), "steps": steps, "slowest_end_s": round(campaign.slowest, 2),
              "failures": campaign.failures, "same_bits": not any("other bits" in f for f in campaign.failures)}
    if options.json:
        print(json.dumps(result))
    else:
        print(f"{result['kills']} attacks ({', '.join(f'{n} {k}' for k, n in sorted(campaign.seen.items()))}), {steps} steps; the slowest end took "
              f"{result['slowest_end_s']} s; {len(campaign.failures)} failures")
    return 1 if campaign.failures else 0


if __name__ == "__main__":
    sys.exit(main())
