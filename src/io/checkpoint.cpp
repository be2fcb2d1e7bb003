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

using Variables = std::map<std::string, Variable>;

// Every variable of the model, by its name in the file.
Variables model_variables(const nn::ModuleBase& model) {
  Variables all;
  for (const nn::NamedVariable& p : model.parameters())
    all.emplace(std::string(weight) + p.path, p.variable);
  for (const nn::NamedVariable& b : model.buffers())
    all.emplace(std::string(buffer) + b.path, b.variable);
  return all;
}

Variables state_variables(TrainStep& step) {
  Variables all;
  step.make_state();
  for (const auto& [path, variable] : step.optimizer_state().all())
    all.emplace(std::string(optimizer) + path, variable);
  return all;
}

// The types of these tensors in the file: of those that ranks share, the whole ones.
std::map<std::string, TensorType> types_in_file(const Variables& variables,
                                                const std::map<std::string, TensorType>& sharded) {
  std::map<std::string, TensorType> types;
  for (const auto& [name, variable] : variables) types[name] = variable.type();
  for (const auto& [path, type] : sharded) types[std::string(optimizer) + path] = type;
  return types;
}

// Covers the properties of a model that its tensors do not show: how parameters are used, and which
// are trained.
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
std::vector<std::string> misfits(const SafetensorsFile& file,
                                 const std::map<std::string, TensorType>& expected,
                                 const auto& of_this_kind) {
  std::vector<std::string> found;
  for (const auto& [name, type] : expected) {
    const auto entry = file.entries().find(name);
    if (entry == file.entries().end())
      found.push_back(fmt::format("there is no tensor \"{}\"", name));
    else if (entry->second.type != type)
      found.push_back(fmt::format("\"{}\" is {}, but the model has {}", name,
                                  to_string(entry->second.type), to_string(type)));
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
Variables fitting(const SafetensorsFile& file, const Variables& state,
                  const std::map<std::string, TensorType>& types) {
  Variables result;
  for (const auto& [name, variable] : state) {
    const auto entry = file.entries().find(name);
    if (entry != file.entries().end() && entry->second.type == types.at(name))
      result.emplace(name, variable);
  }
  return result;
}

}  // namespace

void save_checkpoint(const std::filesystem::path& path, const nn::ModuleBase& model,
                     TrainStep& step, const Notes& notes) {
  const std::uint64_t seed = step.options().compile.seed;
  std::vector<NamedTensor> tensors;
  for (const auto& [name, variable] : model_variables(model)) {
    variable.materialise(seed);
    tensors.push_back({name, variable});
  }
  const Variables state = state_variables(step);
  const auto types = types_in_file(state, sharded_state(model, step));
  ShardedTensors shared(step.options());
  for (const auto& [name, variable] : state) {
    variable.materialise();
    if (types.at(name) == variable.type())
      tensors.push_back({name, variable});
    else
      tensors.push_back(shared.add(name, variable, types.at(name)));
  }
  if (step.options().ranks.rank != 0) return shared.give();
  const ShardedTensors::TakeRest rest(shared);
  write_checkpoint_file(path, step_format, std::move(tensors),
                        {{"step", std::to_string(step.step())},
                         {"optimizer_start", std::to_string(step.optimizer_start())},
                         {"seed", std::to_string(seed)},
                         {"model", fingerprint(model)},
                         {"schedule", step.options().schedule->save()}},
                        notes);
}

Notes load_checkpoint(const std::filesystem::path& path, nn::ModuleBase& model, TrainStep& step,
                      SavedState saved) {
  const CheckpointFile checkpoint(path, step_format);
  const SafetensorsFile& file = checkpoint.file();
  // Everything that can fail comes before the first variable is written.
  const Variables variables = model_variables(model);
  Variables state = state_variables(step);
  const auto is_state = [](const std::string& name) { return name.starts_with(optimizer); };
  const auto types = types_in_file(state, sharded_state(model, step));
  std::vector<std::string> wrong = misfits(
      file, types_in_file(variables, {}), [&](const std::string& name) { return !is_state(name); });
  if (saved == SavedState::all) {
    const std::vector<std::string> more = misfits(file, types, is_state);
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
  if (saved == SavedState::fitting) state = fitting(file, state, types);
  step.options().schedule->restore(checkpoint.text("schedule"));
  for (const auto& [name, variable] : variables) file.load(name, variable);
  for (const auto& [name, variable] : state) {
    if (types.at(name) == variable.type())
      file.load(name, variable);
    else
      load_own_range(file, name, variable, step.options().ranks.rank);
  }
  step.set_step(steps, saved == SavedState::none ? steps : start);
  return checkpoint.notes();
}

void load_masks(const std::filesystem::path& path, TrainStep& step) {
  const CheckpointFile checkpoint(path, step_format);
  const SafetensorsFile& file = checkpoint.file();
  Variables masks;
  for (const auto& [weight_path, mask] : step.masks())
    masks.emplace(fmt::format("{}{}.mask", optimizer, weight_path), mask);
  require_none(checkpoint, misfits(file, types_in_file(masks, {}), [](const std::string& name) {
                 return name.starts_with(optimizer) && name.ends_with(".mask");
               }));
  file.check_tensors();
  for (const auto& [name, variable] : masks) file.load(name, variable);
}

CheckpointSummary read_summary(const std::filesystem::path& path) {
  const CheckpointFile checkpoint(path, {});
  return {checkpoint.count("step"), checkpoint.notes()};
}

Bytes checkpoint_bytes(const nn::ModuleBase& model, TrainStep& step) {
  Bytes total;
  for (const auto& [name, variable] : model_variables(model)) total += variable.type().bytes();
  for (const auto& [name, type] : types_in_file(state_variables(step), sharded_state(model, step)))
    total += type.bytes();
  return total;
}

}  // namespace ebb::io
