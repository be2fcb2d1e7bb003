#!/usr/bin/env python3
"""Checks that TensorBoard reads back what ebb's event files hold.

Run by a developer when src/report changes, never by the build; needs the tensorboard package:
  python3 tools/check_tensorboard.py [build/release]

Compiles a program that logs the same scalars and texts through report::tensorboard and report::json_lines, links it
with the build's libebb.a, runs it, and compares what EventAccumulator finds in the one with the lines of the other.
"""
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.plugins.text import metadata as text_plugin

SOURCE = r"""
#include <cmath>
#include <limits>
#include <string>

#include "ebb/report/run_log.h"

int main(int, char** arguments) {
  using namespace ebb;
  const std::filesystem::path folder = arguments[1];
  std::vector<std::unique_ptr<report::RunLog>> logs;
  logs.push_back(report::tensorboard(folder / "events"));
  logs.push_back(report::json_lines(folder / "log.jsonl"));
  const auto log = report::all_of(std::move(logs));
  for (int step = 0; step < 1000; ++step) {
    log->scalar("train/loss", step, 3.0f * std::exp(-0.01f * static_cast<float>(step)));
    log->scalar("lernrate/größe", step, 1e-3f / static_cast<float>(step + 1));
  }
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float value : {infinity, -infinity, std::nanf(""), 0.0f, 3.4028235e38f, 1e-45f})
    log->scalar("odd", std::int64_t{1} << 40, value);
  log->scalar("not \xFF utf-8", -1, 0.5);
  log->text("sample", 10, "# Title\n\nsome *text*, 日本語");
  log->text("sample", 20, std::string(100000, 'x'));
  log->text("sample", 30, "not \xFF utf-8");
  log->close();
}
"""

ODD = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def write_sample(build: Path, folder: Path) -> None:
    include = Path(__file__).resolve().parent.parent / "include"
    program = folder / "sample"
    subprocess.run(
        [os.environ.get("CXX", "c++"), "-std=c++20", f"-I{include}", "-x", "c++", "-", "-x", "none",
         build / "libebb.a", "-lfmt", "-o", program],
        input=SOURCE.encode(), check=True)
    subprocess.run([program, folder], check=True)


def main() -> None:
    build = Path(sys.argv[1] if len(sys.argv) > 1 else "build/release")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_sample(build, folder)
        scalars, texts = {}, {}  # tag -> [(step, value)], as the JSON lines have them
        lines = (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
        for line in map(json.loads, lines):
            if "text" in line:
                texts.setdefault(line["tag"], []).append((line["step"], line["text"]))
            else:
                value = ODD[line["note"]] if line["value"] is None else line["value"]
                scalars.setdefault(line["tag"], []).append((line["step"], value))

        # Every record passes its checksums: a reader stops at the first that does not.
        (events_file,) = (folder / "events").iterdir()
        assert len(list(RawEventFileLoader(str(events_file)).Load())) == len(lines) + 1

        keep_all = {event_accumulator.SCALARS: 0, event_accumulator.TENSORS: 0}
        events = event_accumulator.EventAccumulator(str(folder / "events"), size_guidance=keep_all)
        events.Reload()
        tags = events.Tags()
        assert events.file_version == 2.0, events.file_version
        assert set(tags["scalars"]) == set(scalars), tags
        assert set(tags["tensors"]) == set(texts), tags
        for tag, want in scalars.items():
            got = events.Scalars(tag)
            assert [e.step for e in got] == [step for step, _ in want], tag
            # To the bit: nine digits determine a float32.
            numpy.testing.assert_array_equal(numpy.float32([e.value for e in got]),
                                             numpy.float32([value for _, value in want]))
        for tag, want in texts.items():
            assert events.SummaryMetadata(tag).plugin_data.plugin_name == text_plugin.PLUGIN_NAME
            got = [(e.step, e.tensor_proto.string_val[0].decode("utf-8")) for e in events.Tensors(tag)]
            assert got == want, tag
        print(f"TensorBoard reads back {sum(map(len, scalars.values()))} scalars of {len(scalars)} tags and "
              f"{sum(map(len, texts.values()))} texts of {len(texts)}")


if __name__ == "__main__":
    main()
