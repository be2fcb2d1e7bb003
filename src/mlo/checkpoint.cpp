// The whole state of an engine in one safetensors file. Tensors are named by problem, kind and path
// ("classifier/optimizer.layers.0.weight.exp_avg"); counters, schedules and the positions of
// loaders are metadata. The file also has the batches that later updates will read: those collected
// for an unfinished update, and those of the last updates, which higher levels differentiate
// through. Batches are stored whole, so that a file does not depend on the number of ranks.
#include "ebb/io/checkpoint.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>

#include "ebb/error.h"
#include "io/checkpoint_file.h"
#include "mlo/batches_of_ranks.h"
#include "mlo/engine_state.h"

namespace ebb::mlo {
namespace {

constexpr std::string_view weight = "model.", buffer = "buffer.", optimizer = "optimizer.",
                           kept = "kept.", snapshot = "snapshot.", pending = "pending.",
                           taken = "taken.";

using Variables = std::map<std::string, Variable>;

// The variables that steps change, by kind and path.
Variables stepped(Level& level) {
  Variables all;
  for (const nn::NamedVariable& p : level.problem().module().parameters())
    all.emplace(std::string(weight) + p.path, p.variable);
  for (const nn::NamedVariable& b : level.problem().module().buffers())
    all.emplace(std::string(buffer) + b.path, b.variable);
  for (const auto& [path, variable] : level.optimizer_state().all())
    all.emplace(std::string(optimizer) + path, variable);
  return all;
}

std::string batch_name(std::string_view kind, std::size_t update, std::size_t batch,
                       std::size_t tensor) {
  return fmt::format("{}{}.{}.{}", kind, update, batch, tensor);
}

template <class Add>
void add_batches(std::string_view kind, std::size_t update, const std::vector<Batch>& batches,
                 const Add& add) {
  for (std::size_t b = 0; b < batches.size(); ++b)
    for (std::size_t t = 0; t < batches[b].tensors.size(); ++t)
      add(batch_name(kind, update, b, t), batches[b].tensors[t]);
}

std::string text_of(const Level::Counters& c) {
  std::string text = fmt::format("{} {} {} {} {:d} {:d}", c.count, c.updates, c.schedule_steps,
                                 c.snapshot_updates, c.loop_starts, c.loop_over);
  for (bool ready : c.ready) text += fmt::format(" {:d}", ready);
  return text;
}

std::string text_of(const std::vector<LoaderPtr>& loaders) {
  std::string text;
  for (const LoaderPtr& loader : loaders) {
    const data::Loader::State at = loader->save();
    text += fmt::format("{} {} {} {} {} ", at.seed, at.epoch, at.position, at.items, at.batch);
  }
  return text;
}

std::string text_of(const std::deque<Taken>& history) {
  std::string text;
  for (const Taken& update : history)
    text += fmt::format("{} {:a} {:a} ", update.batches.size(), update.rate, update.step);
  return text;
}

// Reads the parts that only checkpoints of engines have.
class Reader : public io::CheckpointFile {
 public:
  explicit Reader(const std::filesystem::path& path) : CheckpointFile(path, io::engine_format) {}

  // The numbers in a text that must contain nothing else.
  std::vector<double> numbers(const std::string& key) const {
    std::istringstream words(text(key));
    std::vector<double> result;
    for (std::string word; words >> word;) {
      char* end = nullptr;
      result.push_back(std::strtod(word.c_str(), &end));
      if (*end != '\0') fail(fmt::format("\"{}\" holds \"{}\", which is no number", key, word));
    }
    return result;
  }
  std::vector<double> numbers(const std::string& key, std::size_t count) const {
    const std::vector<double> result = numbers(key);
    if (result.size() != count)
      fail(fmt::format("\"{}\" must hold {} numbers, but holds {}", key, count, result.size()));
    return result;
  }

  // One of the numbers of a text as a count.
  std::int64_t whole(const std::string& key, double value) const {
    constexpr double most = 9007199254740992.0;  // 2^53: larger doubles skip whole numbers
    if (!(value >= 0.0 && value <= most) || std::floor(value) != value)
      fail(fmt::format("\"{}\" holds {}, but a whole number is expected there", key, value));
    return static_cast<std::int64_t>(value);
  }

  // The tensors of a batch, at least one: a count of batches in the file cannot be trusted.
  Batch batch(const std::string& problem, std::string_view kind, std::size_t update,
              std::size_t number, const RankOptions& ranks) const {
    Batch result;
    for (std::size_t t = 0;; ++t) {
      const auto found = file().entries().find(problem + batch_name(kind, update, number, t));
      if (found == file().entries().end()) break;
      try {
        result.tensors.push_back(
            part_of_rank(file().bytes(found->first), found->second.type, ranks));
      } catch (const ShapeError& error) {
        fail(fmt::format("\"{}\": {}", found->first, error.what()));
      }
    }
    if (result.tensors.empty())
      fail(fmt::format("there is no tensor \"{}\", though the counts of batches ask for it",
                       problem + batch_name(kind, update, number, 0)));
    return result;
  }
};

// The file's contents for one level, read and checked before anything is changed.
struct Restored {
  Level::Counters counters;
  std::vector<data::Loader::State> loaders;
  std::vector<Batch> pending;
  std::deque<Taken> history;
  std::map<std::string, Variable> variables;  // by name in the file
};

Level::Counters read_counters(const Reader& reader, const std::string& name, const Level& level) {
  const std::string key = name + "counters";
  const std::vector<double> n = reader.numbers(key);
  if (n.size() != 6 && n.size() != 6 + level.lowers.size())
    reader.fail(fmt::format("\"{}counters\" must hold 6 or {} numbers, but holds {}", name,
                            6 + level.lowers.size(), n.size()));
  const auto count = [&](std::size_t i) { return reader.whole(key, n[i]); };
  Level::Counters c{count(0), count(1), count(2), count(3), n[4] != 0.0, n[5] != 0.0, {}};
  for (std::size_t i = 6; i < n.size(); ++i) c.ready.push_back(n[i] != 0.0);
  return c;
}

std::vector<data::Loader::State> read_loaders(const Reader& reader, const std::string& name,
                                              const Level& level) {
  std::vector<data::Loader::State> states;
  std::istringstream words(reader.text(name + "loaders"));
  for (const LoaderPtr& loader : level.problem().options().loaders) {
    data::Loader::State at;
    if (!(words >> at.seed >> at.epoch >> at.position >> at.items >> at.batch))
      reader.fail(fmt::format("\"{}loaders\" must hold five numbers for each loader", name));
    const data::Loader::State now = loader->save();
    if (at.items != now.items || at.batch != now.batch)
      reader.fail(fmt::format("a loader of \"{}\" had {} items in batches of {}, but has {} in {}",
                              level.name(), at.items, at.batch, now.items, now.batch));
    states.push_back(at);
  }
  return states;
}

// Variables of the level by name in the file: those that steps change, and the others. Tracing has
// made all of them.
Variables known_variables(Level& level) {
  level.trace_once();
  Variables all = stepped(level);
  for (const auto& [path, variable] : level.kept().all())
    all.emplace(std::string(kept) + path, variable);
  return all;
}

// The variable that a name of the file belongs to: a known one, or the snapshot of one.
Variable variable_for(const Reader& reader, Level& level, const Variables& known,
                      std::string_view name) {
  const bool copied = name.starts_with(snapshot);
  const auto found = known.find(std::string(copied ? name.substr(snapshot.size()) : name));
  if (found == known.end())
    reader.fail(fmt::format("\"{}/{}\" belongs to no part of the problem", level.name(), name));
  return copied ? level.snapshot().copy_of(found->second) : found->second;
}

bool is_of_model(std::string_view name) {
  return name.starts_with(weight) || name.starts_with(buffer);
}

// A level with another optimizer or inner loop begins a new loop: updates of an unfinished loop are
// dropped.
void begin_loop(Restored& restored, const Level& level, io::SavedState state) {
  restored.pending.clear(), restored.history.clear();
  Level::Counters& c = restored.counters;
  const std::int64_t length = level.loop_length();
  c.count = (c.count + length - 1) / length * length;
  c.loop_starts = true, c.loop_over = false;
  if (state == io::SavedState::none) c.updates = c.snapshot_updates = 0;
}

Restored read_level(const Reader& reader, Level& level, io::SavedState state) {
  const std::string name = level.name() + "/";
  const bool unchanged = state == io::SavedState::all;
  Restored result;
  result.counters = read_counters(reader, name, level);
  result.loaders = read_loaders(reader, name, level);
  const auto batches = [&](const char* key, std::string_view kind, double count,
                           std::size_t update) {
    const auto number = static_cast<std::size_t>(reader.whole(name + key, count));
    std::vector<Batch> all;
    for (std::size_t b = 0; b < number; ++b)
      all.push_back(reader.batch(name, kind, update, b, level.ranks()));
    return all;
  };
  result.pending = batches("pending", pending, reader.numbers(name + "pending", 1)[0], 0);
  const std::vector<double> updates = reader.numbers(name + "taken");
  if (updates.size() % 3 != 0)
    reader.fail(fmt::format("\"{}taken\" must hold three numbers for each update, but holds {}",
                            name, updates.size()));
  for (std::size_t u = 0; u < updates.size(); u += 3) {
    Taken update{batches("taken", taken, updates[u], u / 3), updates[u + 1], updates[u + 2]};
    result.history.push_back(std::move(update));
  }
  if (!unchanged) begin_loop(result, level, state);
  const Variables known = known_variables(level);
  for (const auto& [variable_name, variable] : known)
    if (unchanged || is_of_model(variable_name)) reader.file().at(name + variable_name);
  for (const auto& [full_name, entry] : reader.file().entries()) {
    if (!full_name.starts_with(name)) continue;
    const std::string_view rest = std::string_view(full_name).substr(name.size());
    if (rest.starts_with(pending) || rest.starts_with(taken)) continue;
    if (!unchanged && !is_of_model(rest)) {  // sums and snapshots belong to the saved loop
      const auto found = known.find(std::string(rest));
      if (state == io::SavedState::fitting && rest.starts_with(optimizer) && found != known.end() &&
          found->second.type() == entry.type)
        result.variables.emplace(full_name, found->second);
      continue;
    }
    const Variable variable = variable_for(reader, level, known, rest);
    if (variable.type() != entry.type)
      reader.fail(fmt::format("\"{}\" is {}, but the problem has {}", full_name,
                              to_string(entry.type), to_string(variable.type())));
    result.variables.emplace(full_name, variable);
  }
  return result;
}

}  // namespace

void Engine::save(const std::filesystem::path& file,
                  const std::map<std::string, std::string>& notes) {
  State& s = *state_;
  s.materialise(config_.compile);
  std::vector<io::TensorOfRanks> tensors;
  std::map<std::string, std::string> metadata{
      {"seed", std::to_string(config_.seed)},
      {"step", std::to_string(s.global_step)},
      {"engine", fmt::format("{:a} {} {:d}", s.best, s.waited, s.stopped)}};
  for (const auto& level : s.levels) {
    const std::string name = level->name() + "/";
    const auto add = [&](const std::string& what, const Tensor& value) {
      tensors.push_back({name + what, value, value.type()});
    };
    const Variables known = known_variables(*level);
    const auto& copies = level->snapshot().copies();
    for (const auto& [what, variable] : known) {
      variable.materialise();
      add(what, variable);
      const auto copy = copies.find(variable);
      if (copy == copies.end()) continue;
      copy->second.materialise();
      add(std::string(snapshot) + what, copy->second);
    }
    const auto add_whole = [&](const std::string& what, const Tensor& part) {
      add(what, whole_of_ranks(part, config_.ranks, config_.compile.communicator.get()));
    };
    add_batches(pending, 0, level->pending(), add_whole);
    for (std::size_t u = 0; u < level->history().size(); ++u)
      add_batches(taken, u, level->history()[u].batches, add_whole);
    metadata[name + "counters"] = text_of(level->counters());
    metadata[name + "loaders"] = text_of(level->problem().options().loaders);
    metadata[name + "pending"] = std::to_string(level->pending().size());
    metadata[name + "taken"] = text_of(level->history());
    metadata[name + "schedule"] = level->problem().options().schedule->save();
    metadata[name + "state"] = level->problem().save_state();
  }
  if (config_.ranks.count > 1)
    return io::write_checkpoint_file(file, io::engine_format, std::move(tensors), metadata, notes,
                                     connected(config_.compile.communicator.get()));
  std::vector<io::NamedTensor> whole;
  for (const io::TensorOfRanks& t : tensors) whole.push_back({t.name, t.value});
  io::write_checkpoint_file(file, io::engine_format, std::move(whole), metadata, notes);
}

std::map<std::string, std::string> Engine::load(
    const std::filesystem::path& file, const std::map<std::string, io::SavedState>& changed) {
  State& s = *state_;
  const Reader reader(file);
  if (reader.seed() != config_.seed)
    reader.fail(
        fmt::format("the run was started with seed {}, not {}", reader.seed(), config_.seed));
  const std::int64_t steps = reader.count("step");
  const std::vector<double> engine = reader.numbers("engine", 3);
  const std::int64_t waited = reader.whole("engine", engine[1]);
  for (const auto& [name, entry] : reader.file().entries())
    if (std::none_of(s.levels.begin(), s.levels.end(), [&name = name](const auto& level) {
          return name.starts_with(level->name() + "/");
        }))
      reader.fail(fmt::format("\"{}\" belongs to no problem of the engine", name));
  std::vector<Restored> restored;
  for (const auto& level : s.levels) {
    const auto found = changed.find(level->name());
    restored.push_back(
        read_level(reader, *level, found == changed.end() ? io::SavedState::all : found->second));
  }
  reader.file().check_tensors();
  if (config_.compile.plan.offload.any()) s.materialise(config_.compile);

  for (std::size_t i = 0; i < s.levels.size(); ++i) {
    Level& level = *s.levels[i];
    const ProblemOptions& options = level.problem().options();
    options.schedule->restore(reader.text(level.name() + "/schedule"));
    for (const auto& [name, variable] : restored[i].variables) reader.file().load(name, variable);
    for (std::size_t k = 0; k < options.loaders.size(); ++k)
      options.loaders[k]->restore(restored[i].loaders[k]);
    level.pending() = std::move(restored[i].pending);
    level.history() = std::move(restored[i].history);
    level.restore(restored[i].counters);
    level.problem().restore_state(reader.text(level.name() + "/state"));
  }
  s.global_step = steps;
  s.best = engine[0];
  s.waited = waited;
  s.stopped = engine[2] != 0.0;
  s.materialised = true;
  return reader.notes();
}

}  // namespace ebb::mlo
