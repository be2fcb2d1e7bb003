#include "ebb/io/checkpoint.h"

#include <fmt/format.h>

#include <charconv>

#include "ebb/error.h"
#include "ebb/io/safetensors.h"

namespace ebb::io {
namespace {

// Names in the file: what kind of thing, then its path.
constexpr std::string_view weight = "model.", buffer = "buffer.", optimizer = "optimizer.";
constexpr std::string_view format = "ebb-checkpoint-1";
constexpr std::string_view note = "note.";

std::string named(std::string_view kind, const std::string& path) {
  return std::string(kind) + path;
}

// Every variable of the model, by its name in the file.
std::map<std::string, Variable> model_variables(const nn::ModuleBase& model) {
  std::map<std::string, Variable> all;
  for (const nn::NamedVariable& p : model.parameters())
    all.emplace(named(weight, p.path), p.variable);
  for (const nn::NamedVariable& b : model.buffers()) all.emplace(named(buffer, b.path), b.variable);
  return all;
}

const std::string& required(const SafetensorsFile& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end())
    throw FileError(
        fmt::format("{}: not a checkpoint: \"{}\" is missing", file.path().string(), key));
  return found->second;
}

template <class Number>
Number number(const SafetensorsFile& file, const std::string& key) {
  const std::string& text = required(file, key);
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || text.starts_with('-'))
    throw FileError(fmt::format("{}: \"{}\" must be a whole number, but is \"{:.100}\"",
                                file.path().string(), key, text));
  return value;
}

void check_fits(const SafetensorsFile& file, const std::map<std::string, Variable>& variables) {
  const auto fail = [&](const std::string& what) {
    throw FileError(fmt::format("{}: {}", file.path().string(), what));
  };
  if (required(file, "format") != format)
    fail(fmt::format("its format is \"{}\", but \"{}\" is expected", required(file, "format"),
                     format));
  for (const auto& [name, variable] : variables)
    if (file.at(name).type != variable.type())
      fail(fmt::format("\"{}\" is {}, but the model has {}", name, to_string(file.at(name).type),
                       to_string(variable.type())));
  for (const auto& [name, entry] : file.entries())
    if (!variables.contains(name) && !name.starts_with(optimizer))
      fail(fmt::format("\"{}\" belongs to no part of the model", name));
}

}  // namespace

void save_checkpoint(const std::filesystem::path& path, const nn::ModuleBase& model,
                     TrainStep& step, const Notes& notes) {
  std::vector<NamedTensor> tensors;
  for (const auto& [name, variable] : model_variables(model)) {
    variable.materialise(step.options().compile.seed);
    tensors.push_back({name, variable});
  }
  for (const auto& [name, variable] : step.optimizer_state().all()) {
    variable.materialise();
    tensors.push_back({named(optimizer, name), variable});
  }
  Notes metadata{{"format", std::string(format)},
                 {"step", std::to_string(step.step())},
                 {"seed", std::to_string(step.options().compile.seed)},
                 {"schedule", step.options().schedule->save()}};
  for (const auto& [key, value] : notes) metadata.emplace(named(note, key), value);
  write_safetensors(path, std::move(tensors), metadata);
}

Notes load_checkpoint(const std::filesystem::path& path, nn::ModuleBase& model, TrainStep& step) {
  const SafetensorsFile file(path);
  const std::map<std::string, Variable> variables = model_variables(model);
  check_fits(file, variables);
  const std::int64_t steps = number<std::int64_t>(file, "step");
  if (number<std::uint64_t>(file, "seed") != step.options().compile.seed)
    throw FileError(fmt::format("{}: the run was started with seed {}, not {}", path.string(),
                                required(file, "seed"), step.options().compile.seed));
  // All that can fail comes before the first byte is written.
  std::map<std::string, Variable> state;
  for (const auto& [name, entry] : file.entries())
    if (name.starts_with(optimizer))
      state.emplace(name, step.optimizer_state().get(name.substr(optimizer.size()), entry.type,
                                                     model.device()));
  step.options().schedule->restore(required(file, "schedule"));
  for (const auto& [name, variable] : variables) file.load(name, variable);
  for (const auto& [name, variable] : state) file.load(name, variable);
  step.set_step(steps);
  Notes notes;
  for (const auto& [key, value] : file.metadata())
    if (key.starts_with(note)) notes.emplace(key.substr(note.size()), value);
  return notes;
}

}  // namespace ebb::io
