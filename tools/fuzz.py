#!/usr/bin/env python3
"""Fuzzes every reader of files (tests/fuzz/readers.h) with libFuzzer and the address and
undefined-behaviour sanitizers.

    tools/fuzz.py --seconds 60             # all readers, a minute each, as many at a time as there are cores
    tools/fuzz.py --reader idx --seconds 3600
    tools/fuzz.py --within 900             # less than a minute each where all of it would take longer than 900 s
    tools/fuzz.py --keep 40                # then keeps at most 40 short inputs a reader in tests/fuzz/corpus

Needs clang 14 with its runtime (Debian: clang-14 libclang-rt-14-dev). A crash, a hang of more than thirty
seconds, memory above 2 GiB or an exception that is no error of ebb is a finding: its input is kept in
build/fuzz/findings, and the exit code is 1. To mend one: put it into tests/fuzz/corpus/READER under a
name that says what it is, where the tests replay it.
"""
import argparse
import concurrent.futures
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

root = pathlib.Path(__file__).resolve().parent.parent
corpus = root / "tests/fuzz/corpus"
release, build = root / "build/release", root / "build/fuzz"
longest = 4096  # bytes of an input
starting = 3  # seconds that a fuzzer takes besides: reading its inputs, writing its statistics


def run(*command, **options):
    subprocess.run([str(part) for part in command], check=True, **options)


def readers():
    text = (root / "tests/fuzz/readers.h").read_text()
    return [name for line in re.findall(r"^  X\(.*", text, re.M) for name in re.findall(r"X\((\w+)\)", line)]


def compile_fuzzers(compiler, jobs):
    """Installs the library of build/release (the target "ebb" is the program) and builds the fuzzers with clang."""
    quiet = {"stdout": subprocess.DEVNULL}
    if not (release / "CMakeCache.txt").exists():
        run("cmake", "--preset", "release", cwd=root, **quiet)
    run("cmake", "--build", release, "--parallel", jobs, "--target", "libebb.a", **quiet)
    run("cmake", "--install", release, "--prefix", build / "ebb", "--component", "Unspecified", **quiet)
    # The library's OpenMP is GCC's; readers use none.
    gomp = subprocess.check_output(["g++", "-print-file-name=libgomp.so"], text=True).strip()
    launcher = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    run("cmake", "-S", root / "tests/fuzz", "-B", build, "-G", "Ninja", f"-DCMAKE_CXX_COMPILER={compiler}",
        f"-DCMAKE_PREFIX_PATH={build / 'ebb'}", f"-DCMAKE_MODULE_PATH={root / 'cmake'}",
        "-DOpenMP_CXX_FLAGS=-fopenmp=libgomp", "-DOpenMP_CXX_LIB_NAMES=gomp",
        f"-DOpenMP_gomp_LIBRARY={gomp}", *launcher, **quiet)
    run("cmake", "--build", build, "--parallel", jobs, **quiet)


def environment(scratch):
    return os.environ | {"TMPDIR": scratch, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
                         "UBSAN_OPTIONS": "print_stacktrace=1", "ASAN_OPTIONS": "detect_leaks=1"}


def memory_folder():
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def fuzz(reader, seconds):
    """True, or the text of a finding."""
    found, findings = build / "found" / reader, build / "findings" / reader
    for folder in (found, findings, corpus / reader):
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=memory_folder(), prefix="ebb_fuzz_") as scratch:
        result = subprocess.run(
            [build / f"fuzz_{reader}", found, corpus / reader, build / "good" / reader,
             f"-max_total_time={seconds}", f"-max_len={longest}", "-timeout=30", "-rss_limit_mb=2048",
             f"-dict={root / 'tests/fuzz/json.dict'}", f"-artifact_prefix={findings}/", "-print_final_stats=1"],
            env=environment(scratch), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace")
    (build / f"{reader}.log").write_text(result.stdout)
    rate = re.search(r"number_of_executed_units: (\d+)", result.stdout)
    coverage = re.findall(r"cov: (\d+)", result.stdout)
    good = result.returncode == 0
    print(f"{reader:24} {rate[1] if rate else '?':>9} runs, {coverage[-1] if coverage else '?':>6} edges"
          f"{'' if good else ', A FINDING in ' + str(findings.relative_to(root))}", flush=True)
    return True if good else f"{reader}:\n" + result.stdout[-6000:]


def keep(reader, most):
    """Keeps the inputs that together reach everything fuzzing has reached, the shortest first."""
    kept = build / "kept" / reader
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=memory_folder(), prefix="ebb_fuzz_") as scratch:
        run(build / f"fuzz_{reader}", "-merge=1", kept, corpus / reader, build / "found" / reader,
            env=environment(scratch), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    inputs = sorted((path for path in kept.iterdir() if path.stat().st_size <= longest), key=lambda p: p.stat().st_size)
    step = max(1, -(-len(inputs) // most))
    # Named by a person: what a finding left.
    for path in (corpus / reader).iterdir():
        if re.fullmatch(r"[0-9a-f]{12}", path.name):
            path.unlink()
    for path in inputs[::step]:
        content = path.read_bytes()
        (corpus / reader / hashlib.sha1(content).hexdigest()[:12]).write_bytes(content)


def seconds_each(options, readers, begun):
    """How long each reader is fuzzed, so that the whole run ends in time."""
    if options.within is None:
        return options.seconds
    left = options.within - (time.monotonic() - begun)
    rounds = -(-readers // options.jobs)
    return max(options.at_least, min(options.seconds, int(left / rounds) - starting))


def main():
    begun = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="for each reader (default: 60)")
    parser.add_argument("--within", type=int, metavar="S", help="fuzz each reader for less time, so that all of it takes at most S seconds")
    parser.add_argument("--at-least", type=int, default=20, metavar="S", help="with --within: the shortest time for each reader (default: 20)")
    parser.add_argument("--reader", action="append", choices=readers(), help="only this one; may be repeated")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="fuzzers and compilers at a time")
    parser.add_argument("--keep", type=int, metavar="N", help="renew tests/fuzz/corpus: at most N inputs a reader")
    parser.add_argument("--compiler", default="clang++-14")
    options = parser.parse_args()
    if not shutil.which(options.compiler):
        sys.exit(f"fuzz.py: {options.compiler} is not installed (Debian: clang-14 libclang-rt-14-dev)")
    build.mkdir(parents=True, exist_ok=True)
    compile_fuzzers(options.compiler, options.jobs)
    with tempfile.TemporaryDirectory(prefix="ebb_fuzz_") as scratch:
        run(build / "write_good_inputs", build / "good", env=environment(scratch))
    chosen = options.reader or readers()
    seconds = seconds_each(options, len(chosen), begun)
    print(f"{seconds} seconds for each of {len(chosen)} readers, {options.jobs} at a time", flush=True)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        findings = [r for r in pool.map(lambda reader: fuzz(reader, seconds), chosen) if r is not True]
    if options.keep:
        for reader in chosen:
            keep(reader, options.keep)
    for finding in findings:
        print("\n" + finding, file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
