#include "cli/outputs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <limits>

#include "cli/ranks.h"
#include "cli/verb.h"
#include "ebb/error.h"
#include "ebb/io/atomic_file.h"
#include "ebb/report/log_reader.h"
#include "io/write_target.h"

namespace ebb::cli {
namespace {

namespace fs = std::filesystem;

}  // namespace

void try_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw FileError(
        fmt::format("{}: cannot make the folder: {}", folder.string(), error.message()));
  const fs::path probe = folder / ".ebb-can-write";
  {
    io::AtomicFile file(probe);
    file.write("ebb");
    file.commit();
  }
  fs::remove(probe, error);
}

namespace {

// Checks that a file of that name can be put into the existing folder.
void try_file(const fs::path& file) {
  if (const io::WriteTarget target = io::write_target(file); !target.is_regular())
    throw FileError(fmt::format("{}: a file must be written here, but this is a pipe or a device",
                                file.string()));
  const io::AtomicFile beside(file);  // removed again, because it is not committed
}

}  // namespace

void refuse_over_input(std::string_view output_option, const fs::path& output,
                       std::string_view input_option, const fs::path& input) {
  std::error_code error;
  const bool same = fs::equivalent(output, input, error);
  if (same)
    throw UsageError(fmt::format("{} {} is the input of {}: choose another path", output_option,
                                 output.string(), input_option));
  const fs::path folder = output.has_parent_path() ? output.parent_path() : fs::path(".");
  const std::string name = output.filename().string();
  constexpr std::string_view known[] = {"config.json",
                                        "generation_config.json",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "run.json",
                                        "log.jsonl",
                                        "model.safetensors.index.json",
                                        "adapter_config.json"};
  const bool stored = name.ends_with(".safetensors") || name.ends_with(".bin") ||
                      std::find(std::begin(known), std::end(known), name) != std::end(known);
  if (stored && fs::is_regular_file(output, error) && fs::equivalent(folder, input, error))
    throw UsageError(
        fmt::format("{} {} would replace a file of the input of {}: choose another path",
                    output_option, output.string(), input_option));
}

TriedFolder::TriedFolder(fs::path folder) : folder_(std::move(folder)) {
  for (fs::path missing = folder_; !missing.empty() && !fs::exists(missing);
       missing = missing.parent_path())
    new_.push_back(missing);
  try_folder(folder_);
  remove_new();
}

TriedFolder::~TriedFolder() { remove_new(); }

void TriedFolder::remove_new() const {
  std::error_code ignored;
  for (const fs::path& folder : new_) fs::remove(folder, ignored);  // unless it has contents
}

std::optional<std::string> PersistentLog::begin(std::int64_t step, std::string_view run) {
  try {
    log_->text(report::begin_tag, step, run);
    return {};
  } catch (const FileError& error) {
    log_.reset();
    return error.what();
  }
}

std::optional<std::string> PersistentLog::scalar(std::string_view tag, std::int64_t step,
                                                 double value) {
  if (!log_ && step < next_try_) return {};
  try {
    if (!log_) log_ = open_();
    log_->scalar(tag, step, value);
    return {};
  } catch (const FileError& error) {
    log_.reset();
    next_try_ = step + wait_, wait_ *= 2;
    return error.what();
  }
}

std::optional<std::string> PersistentLog::close() {
  try {
    if (log_) log_->close();
    return {};
  } catch (const FileError& error) {
    return error.what();
  }
}

Outputs::Outputs(const TrainCommand& command)
    : leads_(leads(command.planning)),
      steps_(command.steps),
      every_(command.checkpoint_every.value_or(0)),
      save_(command.save) {
  if (command.save && leads_) {
    try_folder(*command.save);
    for (const char* file :
         {"config.json", "model.safetensors", "adapter_config.json", "adapter_model.safetensors"})
      try_file(*command.save / file);
  }
  if (command.checkpoint) {
    if (leads_) {
      try_folder(*command.checkpoint);
      lock_.emplace(*command.checkpoint);
      const CheckpointFolder folder(*command.checkpoint, 1);
      folder.sweep();
      try_file(folder.newest());
      if (command.keep > 1 || command.keep_best) try_file(folder.best());
    }
    folder_.emplace(
        *command.checkpoint, command.keep,
        command.keep_best ? CheckpointFolder::Best::of_test : CheckpointFolder::Best::of_training);
  }
  if (!command.log || !leads_) return;
  const fs::path log = *command.log;
  try_folder(log);
  for (const char* file : {"run.json", "summary.html"}) try_file(log / file);
  logs_.emplace_back([log] { return report::json_lines(log / "log.jsonl"); });
  logs_.emplace_back([log] { return report::tensorboard(log); });
}

void Outputs::note(std::string_view what, const std::string& failure) {
  if (std::find(failed_.begin(), failed_.end(), what) != failed_.end()) return;
  failed_.emplace_back(what);
  say(fmt::format("ebb: {} failed{}: {}", what, ended_.empty() ? ", training continues" : "",
                  failure));
}

void Outputs::say(const std::string& line) const {
  if (leads_) std::cerr << line << std::endl;
}

void Outputs::log(std::string_view tag, std::int64_t step, double value) {
  for (PersistentLog& log : logs_)
    if (const auto failure = log.scalar(tag, step, value)) note("a log", *failure);
}

void Outputs::begin_log(std::int64_t step) {
  if (logs_.empty()) return;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  run_ = fmt::format("{}.{}", std::chrono::duration_cast<std::chrono::nanoseconds>(now).count(),
                     getpid());
  if (const auto failure = logs_.front().begin(step, run_)) {
    note("a log", *failure);
    run_.clear();
  }
}

void Outputs::keep_by(Write write, io::Notes notes, Sizes sizes, std::int64_t first_step) {
  if (leads_) require_room(sizes, first_step);
  if (!folder_) return;
  write_ = std::move(write), notes_ = std::move(notes);
  if (first_step > 0) kept_ = first_step;
}

void Outputs::require_room(Sizes sizes, std::int64_t first_step) const {
  if (folder_) {
    const bool one_disk = save_ && on_one_disk(*save_, folder_->path());
    const std::int64_t before_last = every_ > 0 ? (steps_ - 1) / every_ - first_step / every_ : 0;
    folder_->require_space(sizes.checkpoint, 1 + before_last, one_disk ? sizes.model : Bytes{});
  }
  if (save_) require_space(*save_, sizes.model);
}

void Outputs::after_step(std::int64_t step, double loss) {
  loss_sum_ += loss, ++loss_count_;
  if (every_ > 0 && step % every_ == 0 && step < steps_) keep(step);
}

bool Outputs::keep(std::int64_t step) {
  if (!folder_ || kept_ == step) return folder_.has_value();
  const double loss = loss_count_ > 0 ? loss_sum_ / static_cast<double>(loss_count_)
                                      : std::numeric_limits<double>::infinity();
  io::Notes notes = notes_;
  notes["loss"] = fmt::format("{}", loss);
  try {
    write(step, loss, notes);
  } catch (const FileError& error) {
    note("a checkpoint", error.what());
    return false;
  }
  kept_ = step;
  loss_sum_ = 0.0, loss_count_ = 0;
  return true;
}

void Outputs::write(std::int64_t step, double loss, const io::Notes& notes) {
  if (!leads_) return write_({}, notes);  // sends the first rank its part
  folder_->keep(step, loss, [&](const fs::path& file) { write_(file, notes); });
}

void Outputs::keep_best(std::int64_t step, double test_loss) {
  if (!folder_) return;
  io::Notes notes = notes_;
  notes["test_loss"] = fmt::format("{}", test_loss);
  try {
    folder_->keep_best([&](const fs::path& file) { write_(file, notes); });
  } catch (const FileError& error) {
    note("the best checkpoint", fmt::format("step {}: {}", step, error.what()));
  }
}

bool Outputs::close() {
  for (PersistentLog& log : logs_)
    if (const auto failure = log.close()) note("a log", *failure);
  if (failed_.empty()) return true;
  say(fmt::format("ebb: error: the run {}; {} could not be written completely", ended_,
                  fmt::join(failed_, " and ")));
  return false;
}

namespace {

std::string what_is_kept(const Outputs& outputs) {
  if (!outputs.keeps_checkpoints()) return "nothing is kept, because --checkpoint was not given";
  if (!outputs.kept()) return "no checkpoint could be kept";
  const std::string folder = outputs.checkpoint_path().string(),
                    text =
                        fmt::format("the checkpoint of step {} is in {}", *outputs.kept(), folder);
  if (*outputs.kept() == outputs.steps()) return text;
  return fmt::format("{}; continue with --resume {}", text, folder);
}

}  // namespace

void keep_last_whole_step(Outputs& outputs, std::int64_t step, bool intact) {
  outputs.end("ended by an error");
  try {
    if (intact && step > 0) outputs.keep(step);
  } catch (const Error& error) {  // the error that ends the run is reported last
    outputs.say(fmt::format("ebb: no checkpoint of step {}: {}", step, error.what()));
  }
  if (outputs.keeps_checkpoints())
    outputs.say(fmt::format("ebb: training ends after {} complete steps{}; {}", step,
                            intact ? "" : ", and the next step had begun to change the weights",
                            what_is_kept(outputs)));
  outputs.close();
}

std::string text_of_non_finite(double value) {
  return std::isnan(value) ? "nan" : value > 0.0 ? "inf" : "-inf";  // a NaN's sign means nothing
}

void tell_not_finite(Outputs& outputs) {
  outputs.end("ended by an error");
  if (outputs.kept()) outputs.say("ebb: " + what_is_kept(outputs));
  outputs.close();
}

void tell_lost_rank(Outputs& outputs, std::int64_t step) {
  outputs.end("ended by an error");
  outputs.say(
      fmt::format("ebb: training ends after {} complete steps; {}", step, what_is_kept(outputs)));
  outputs.close();
}

void tell_interruption(Outputs& outputs, std::int64_t step, std::int64_t steps) {
  outputs.end("was interrupted");
  if (step > 0) outputs.keep(step);
  outputs.say(
      fmt::format("ebb: interrupted after {} of {} steps; {}", step, steps, what_is_kept(outputs)));
  outputs.close();
}

}  // namespace ebb::cli
