#include "ebb/io/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/hash64.h"
#include "ebb/error.h"
#include "io/checkpoint_file.h"
#include "io/sharded_tensors.h"

namespace ebb::io {
namespace {

// Prefixes of names in the file: the kind of a variable, followed by its path.
constexpr std::string_view weight = "model.", buffer = "buffer.", optimizer = "optimizer.";

// A tensor of the file.
struct Stored {
  Variable variable;
  TensorType type;        // in the file
  bool is_range = false;  // the variable is this rank's range of it
};
using Variables = std::map<std::string, Stored>;  // by name in the file

// Every variable of the model.
Variables model_variables(const nn::ModuleBase& model, TrainStep& step) {
  Variables all;
  const std::vector<nn::NamedVariable> parameters = model.parameters(), held = step.weights();
  for (std::size_t i = 0; i < parameters.size(); ++i)
    all.emplace(std::string(weight) + parameters[i].path,
                Stored{held[i].variable, parameters[i].variable.type(),
                       held[i].variable != parameters[i].variable});
  for (const nn::NamedVariable& b : model.buffers())
    all.emplace(std::string(buffer) + b.path, Stored{b.variable, b.variable.type()});
  return all;
}

Variables state_variables(const nn::ModuleBase& model, TrainStep& step) {
  Variables all;
  step.make_state();
  for (const auto& [path, variable] : step.optimizer_state().all())
    all.emplace(std::string(optimizer) + path, Stored{variable, variable.type()});
  for (const auto& [path, type] : sharded_state(model, step)) {
    Stored& stored = all.at(std::string(optimizer) + path);
    stored.type = type, stored.is_range = true;
  }
  return all;
}

// A hash of the properties of a model that its tensors do not show: how parameters are used, and
// which are trained.
std::string fingerprint(const nn::ModuleBase& model) {
  Hash64 hash;
  const auto add = [&](std::string_view kind, const nn::NamedVariable& v) {
    hash.add(fmt::format("{} {} {} {}\n", kind, v.path, to_string(v.variable.type()),
                         static_cast<int>(v.role)));
  };
  for (const nn::NamedVariable& p : model.parameters()) add("parameter", p);
  for (const nn::NamedVariable& p : model.trainable_parameters()) add("trained", p);
  for (const nn::NamedVariable& b : model.buffers()) add("buffer", b);
  return hex(hash.value());
}

// Differences between the file and `expected`: missing tensors, other types, unexpected tensors.
std::vector<std::string> misfits(const SafetensorsFile& file, const Variables& expected,
                                 const auto& of_this_kind) {
  std::vector<std::string> found;
  for (const auto& [name, stored] : expected) {
    const auto entry = file.entries().find(name);
    if (entry == file.entries().end())
      found.push_back(fmt::format("there is no tensor \"{}\"", name));
    else if (entry->second.type != stored.type)
      found.push_back(fmt::format("\"{}\" is {}, but the model has {}", name,
                                  to_string(entry->second.type), to_string(stored.type)));
  }
  for (const auto& [name, entry] : file.entries())
    if (of_this_kind(name) && !expected.contains(name))
      found.push_back(fmt::format("\"{}\" belongs to no part of the model", name));
  return found;
}

void require_none(const CheckpointFile& checkpoint, const std::vector<std::string>& misfits) {
  if (misfits.empty()) return;
  constexpr std::size_t told = 4;
  const std::size_t count = std::min(told, misfits.size());
  std::string text = fmt::format(
      "{}", fmt::join(misfits.begin(), misfits.begin() + static_cast<std::ptrdiff_t>(count), "; "));
  if (misfits.size() > count) text += fmt::format("; and {} more", misfits.size() - count);
  checkpoint.fail(text);
}

// The part of the state that the file contains.
Variables fitting(const SafetensorsFile& file, const Variables& state) {
  Variables result;
  for (const auto& [name, stored] : state) {
    const auto entry = file.entries().find(name);
    if (entry != file.entries().end() && entry->second.type == stored.type)
      result.emplace(name, stored);
  }
  return result;
}

}  // namespace

void save_checkpoint(const std::filesystem::path& path, const nn::ModuleBase& model,
                     TrainStep& step, const Notes& notes) {
  const std::uint64_t seed = step.options().compile.seed;
  std::vector<TensorOfRanks> tensors;
  const auto add = [&](const Variables& variables, std::uint64_t initial) {
    for (const auto& [name, stored] : variables) {
      stored.variable.materialise(initial);
      tensors.push_back({name, stored.variable, stored.type, stored.is_range});
    }
  };
  add(model_variables(model, step), seed);
  add(state_variables(model, step), 0);
  const std::map<std::string, std::string> facts{
      {"step", std::to_string(step.step())},
      {"optimizer_start", std::to_string(step.optimizer_start())},
      {"seed", std::to_string(seed)},
      {"model", fingerprint(model)},
      {"schedule", step.options().schedule->save()}};
  if (step.options().ranks.count > 1) {
    if (!step.options().compile.communicator)
      throw ValueError(
          "a checkpoint of several ranks is written by all, but they are not connected");
    return write_checkpoint_file(path, step_format, std::move(tensors), facts, notes,
                                 *step.options().compile.communicator);
  }
  std::vector<NamedTensor> whole;
  for (const TensorOfRanks& t : tensors) whole.push_back({t.name, t.value});
  write_checkpoint_file(path, step_format, std::move(whole), facts, notes);
}

Notes load_checkpoint(const std::filesystem::path& path, nn::ModuleBase& model, TrainStep& step,
                      SavedState saved) {
  const CheckpointFile checkpoint(path, step_format);
  const SafetensorsFile& file = checkpoint.file();
  // Everything that can fail comes before the first variable is written.
  const Variables variables = model_variables(model, step);
  Variables state = state_variables(model, step);
  const auto is_state = [](const std::string& name) { return name.starts_with(optimizer); };
  std::vector<std::string> wrong =
      misfits(file, variables, [&](const std::string& name) { return !is_state(name); });
  if (saved == SavedState::all) {
    const std::vector<std::string> more = misfits(file, state, is_state);
    wrong.insert(wrong.end(), more.begin(), more.end());
  }
  require_none(checkpoint, wrong);
  if (checkpoint.text("model") != fingerprint(model))
    checkpoint.fail(
        "the tensors are those of the model, but which of them are trained, or how they "
        "are used, is not");
  const std::int64_t steps = checkpoint.count("step"), start = checkpoint.count("optimizer_start");
  if (start > steps) checkpoint.fail("\"optimizer_start\" is after \"step\"");
  if (checkpoint.seed() != step.options().compile.seed)
    checkpoint.fail(fmt::format("the run was started with seed {}, not {}", checkpoint.seed(),
                                step.options().compile.seed));
  file.check_tensors();
  if (saved == SavedState::none) state.clear();
  if (saved == SavedState::fitting) state = fitting(file, state);
  step.options().schedule->restore(checkpoint.text("schedule"));
  for (const Variables* all : std::initializer_list<const Variables*>{&variables, &state})
    for (const auto& [name, stored] : *all) {
      if (stored.is_range)
        load_own_range(file, name, stored.variable, step.options().ranks.rank);
      else
        file.load(name, stored.variable);
    }
  step.set_step(steps, saved == SavedState::none ? steps : start);
  return checkpoint.notes();
}

void load_masks(const std::filesystem::path& path, TrainStep& step) {
  const CheckpointFile checkpoint(path, step_format);
  const SafetensorsFile& file = checkpoint.file();
  Variables masks;
  for (const auto& [weight_path, mask] : step.masks())
    masks.emplace(fmt::format("{}{}.mask", optimizer, weight_path), Stored{mask, mask.type()});
  require_none(checkpoint, misfits(file, masks, [](const std::string& name) {
                 return name.starts_with(optimizer) && name.ends_with(".mask");
               }));
  file.check_tensors();
  for (const auto& [name, stored] : masks) file.load(name, stored.variable);
}

CheckpointSummary read_summary(const std::filesystem::path& path) {
  const CheckpointFile checkpoint(path, {});
  return {checkpoint.count("step"), checkpoint.notes()};
}

void gather_weights(const nn::ModuleBase& model, TrainStep& step) {
  if (!step.options().ranks.shards(Shard::parameters)) return;
  const std::vector<nn::NamedVariable> parameters = model.parameters(), held = step.weights();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (held[i].variable == parameters[i].variable) continue;
    held[i].variable.materialise(step.options().compile.seed);
    const std::vector<std::byte> bytes = gather_ranges_of(
        parameters[i].path, held[i].variable, parameters[i].variable.type(), step.options());
    if (step.options().ranks.rank == 0) Variable(parameters[i].variable).assign_bytes(bytes);
  }
}

Bytes checkpoint_bytes(const nn::ModuleBase& model, TrainStep& step) {
  Bytes total;
  for (const Variables& all : {model_variables(model, step), state_variables(model, step)})
    for (const auto& [name, stored] : all) total += stored.type.bytes();
  return total;
}

}  // namespace ebb::io
