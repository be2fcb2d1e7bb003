#include "plan/recompute/simulation.h"

#include <algorithm>
#include <utility>

namespace ebb {

Holds keep_all(const StepModel& model) {
  Holds holds(static_cast<std::size_t>(model.gaps), Hold::keep);
  for (const ModelValue& value : model.values)
    holds[static_cast<std::size_t>(value.first_gap) + value.positions.size() - 1] = Hold::free;
  return holds;
}

bool droppable(const StepModel& model, int value) {
  const ModelValue& v = model.values[static_cast<std::size_t>(value)];
  return v.producer >= 0 && v.in_arena && !v.copied_out &&
         model.steps[static_cast<std::size_t>(v.producer)].recomputable;
}

Holds made_possible(const StepModel& model, Holds holds) {
  Simulation simulation(model);
  while (!simulation.run(holds))
    holds[static_cast<std::size_t>(simulation.failed_gap())] = Hold::keep;
  return holds;
}

Simulation::Simulation(const StepModel& model) : model_(model) {
  present_.resize(model.values.size());
  version_.resize(model.values.size());
  position_.resize(model.values.size());
  touched_.resize(model.values.size());
  settled_.resize(model.values.size());
  reached_.resize(model.steps.size());
  profile_.resize(model.steps.size());
}

bool Simulation::run(const Holds& holds) {
  events_.clear(), idles_.clear(), versions_.clear(), reads_.clear(), reads_end_.clear(),
      made_begin_.clear();
  std::fill(reached_.begin(), reached_.end(), 0);
  search_ = 0;
  for (std::size_t v = 0; v < model_.values.size(); ++v) {
    const bool input = model_.values[v].producer < 0;
    present_[v] = input;
    position_[v] = 0;
    touched_[v] = settled_[v] = -1;
    if (input) {
      version_[v] = static_cast<int>(versions_.size());
      versions_.push_back({static_cast<int>(v), -1, model_.values[v].in_arena, false});
    }
  }
  const int count = static_cast<int>(model_.steps.size());
  for (int t = 0; t < count; ++t) {
    const ModelStep& step = model_.steps[static_cast<std::size_t>(t)];
    made_again_.clear();
    if (!emit_missing(t)) return false;
    emit(t, t);
    for (int value : step.inputs) {
      ++position_[static_cast<std::size_t>(value)];
      settle(value, t, holds);
    }
    for (int value : step.outputs) settle(value, t, holds);
    // What was computed again on the way, and is not read by this step itself.
    for (int value : made_again_) {
      const std::size_t v = static_cast<std::size_t>(value);
      if (settled_[v] == t) continue;
      const ModelValue& made = model_.values[v];
      const Hold hold = holds[static_cast<std::size_t>(made.first_gap + position_[v])];
      present_[v] = hold == Hold::stay;
    }
  }
  find_readers();
  sweep();
  return true;
}

// Runs again whatever the step's inputs need, in the order of the first time.
bool Simulation::emit_missing(int step) {
  missing_.clear();
  ++search_;
  stack_.assign(1, step);
  while (!stack_.empty()) {
    const int s = stack_.back();
    stack_.pop_back();
    for (int value : model_.steps[static_cast<std::size_t>(s)].inputs) {
      if (present_[static_cast<std::size_t>(value)]) continue;
      const int producer = model_.values[static_cast<std::size_t>(value)].producer;
      if (reached_[static_cast<std::size_t>(producer)] == search_) continue;
      reached_[static_cast<std::size_t>(producer)] = search_;
      if (!droppable(model_, value) ||
          model_.steps[static_cast<std::size_t>(producer)].valid_until < step) {
        const std::size_t v = static_cast<std::size_t>(value);
        failed_gap_ = model_.values[v].first_gap + position_[v];
        return false;
      }
      missing_.push_back(producer);
      stack_.push_back(producer);
    }
  }
  std::sort(missing_.begin(), missing_.end());
  for (int s : missing_) emit(s, step);
  return true;
}

void Simulation::emit(int step, int before) {
  const ModelStep& s = model_.steps[static_cast<std::size_t>(step)];
  events_.push_back({step, before, 0});
  for (int value : s.inputs) {
    const std::size_t v = static_cast<std::size_t>(value);
    reads_.push_back(version_[v]);
    if (touched_[v] < before) note_idle(value, before);
  }
  reads_end_.push_back(static_cast<int>(reads_.size()));
  made_begin_.push_back(static_cast<int>(versions_.size()));
  for (std::size_t o = 0; o < s.outputs.size(); ++o) {
    const int value = s.outputs[o];
    const std::size_t v = static_cast<std::size_t>(value);
    const bool again = step != before;
    const int number = static_cast<int>(versions_.size());
    versions_.push_back({value, -1, again || model_.values[v].in_arena, false});
    if (present_[v]) continue;  // readers go on with the copy that is there
    events_.back().read |= 1u << o;
    present_[v] = 1;
    version_[v] = number;
    touched_[v] = before;
    if (again) made_again_.push_back(value);
  }
}

// The value has lain there untouched since the step that touched it before.
void Simulation::note_idle(int value, int step) {
  const std::size_t v = static_cast<std::size_t>(value);
  if (touched_[v] >= 0 && touched_[v] + 1 < step)
    idles_.push_back({value, model_.values[v].first_gap + position_[v], touched_[v], step});
  touched_[v] = step;
}

// The step has made or read the value: does it remain?
void Simulation::settle(int value, int step, const Holds& holds) {
  const std::size_t v = static_cast<std::size_t>(value);
  const ModelValue& made = model_.values[v];
  settled_[v] = step;
  present_[v] = !made.in_arena || made.producer < 0 || made.copied_out ||
                holds[static_cast<std::size_t>(made.first_gap + position_[v])] == Hold::keep;
}

// The last reader of every copy. A first run whose results are only read after they have been
// computed again is left out: the value is then made late, not twice.
void Simulation::find_readers() {
  alive_.assign(events_.size(), 0);
  for (std::size_t e = events_.size(); e-- > 0;) {
    const ModelStep& step = model_.steps[static_cast<std::size_t>(events_[e].step)];
    bool wanted = step.outputs.empty();
    for (std::size_t o = 0; o < step.outputs.size(); ++o) {
      Version& version = versions_[static_cast<std::size_t>(made_begin_[e]) + o];
      wanted |= version.last_read >= 0 || !version.in_arena;
    }
    if (!wanted) continue;
    alive_[e] = 1;
    for (std::size_t o = 0; o < step.outputs.size(); ++o) {
      Version& version = versions_[static_cast<std::size_t>(made_begin_[e]) + o];
      if (version.last_read < 0) version.last_read = static_cast<int>(e);
    }
    for (int r = e == 0 ? 0 : reads_end_[e - 1]; r < reads_end_[e]; ++r) {
      Version& version = versions_[static_cast<std::size_t>(reads_[static_cast<std::size_t>(r)])];
      version.last_read = std::max(version.last_read, static_cast<int>(e));
    }
  }
}

// Live bytes from event to event, with outputs written over inputs that die as lowering does it.
void Simulation::sweep() {
  std::fill(profile_.begin(), profile_.end(), 0);
  peak_ = 0;
  ms_ = 0.0;
  std::int64_t live = 0;
  const std::size_t inputs =
      events_.empty() ? versions_.size() : static_cast<std::size_t>(made_begin_.front());
  for (std::size_t i = 0; i < inputs; ++i)
    if (versions_[i].in_arena)
      live += model_.values[static_cast<std::size_t>(versions_[i].value)].bytes;
  bool first = true;
  std::size_t alive = 0;
  for (std::size_t e = 0; e < events_.size(); ++e) {
    if (!alive_[e]) continue;
    const ModelStep& step = model_.steps[static_cast<std::size_t>(events_[e].step)];
    ms_ += step.ms;
    const std::size_t read_begin = e == 0 ? 0 : static_cast<std::size_t>(reads_end_[e - 1]);
    const std::size_t made_begin = static_cast<std::size_t>(made_begin_[e]);
    const auto dying_version_of = [&](int value) -> Version* {
      for (std::size_t r = read_begin; r < static_cast<std::size_t>(reads_end_[e]); ++r) {
        Version& version = versions_[static_cast<std::size_t>(reads_[r])];
        if (version.value == value && version.in_arena && !version.taken_over &&
            version.last_read == static_cast<int>(e) &&
            !model_.values[static_cast<std::size_t>(value)].copied_out)
          return &version;
      }
      return nullptr;
    };
    for (std::size_t o = 0; o < step.outputs.size(); ++o) {
      Version& version = versions_[made_begin + o];
      if (!version.in_arena) continue;
      bool over = false;
      for (const Overwrite& pair : step.overwrites)
        if (pair.output == static_cast<int>(o) && !over)
          if (Version* input = dying_version_of(pair.input)) input->taken_over = over = true;
      if (!over) live += model_.values[static_cast<std::size_t>(version.value)].bytes;
    }
    const std::int64_t now = live + step.workspace;
    peak_ = std::max(peak_, now);
    std::int64_t& at_step = profile_[static_cast<std::size_t>(events_[e].before)];
    at_step = std::max(at_step, now);
    // What nobody reads later goes now.
    const auto release = [&](const Version& version) {
      if (version.in_arena && !version.taken_over && version.last_read == static_cast<int>(e))
        live -= model_.values[static_cast<std::size_t>(version.value)].bytes;
    };
    for (std::size_t r = read_begin; r < static_cast<std::size_t>(reads_end_[e]); ++r)
      release(versions_[static_cast<std::size_t>(reads_[r])]);
    for (std::size_t o = 0; o < step.outputs.size(); ++o) release(versions_[made_begin + o]);
    if (std::exchange(first, false))  // inputs that nobody reads
      for (std::size_t i = 0; i < inputs; ++i)
        if (versions_[i].last_read < 0)
          live -= model_.values[static_cast<std::size_t>(versions_[i].value)].bytes;
    events_[alive++] = events_[e];
  }
  events_.resize(alive);
}

}  // namespace ebb
