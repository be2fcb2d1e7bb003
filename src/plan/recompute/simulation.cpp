#include "plan/recompute/simulation.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace ebb::planning {

Runs keep_all(const StepModel& model) {
  Runs runs(model.steps.size());
  std::iota(runs.begin(), runs.end(), 0);
  return runs;
}

bool droppable(const StepModel& model, int value) {
  const ModelValue& v = model.values[static_cast<std::size_t>(value)];
  return v.producer >= 0 && v.in_arena && !v.copied_out &&
         model.steps[static_cast<std::size_t>(v.producer)].recomputable;
}

Simulation::Simulation(const StepModel& model) : model_(model) {
  flatten();
  find_anchors();
  for (std::size_t v = 0; v < model.values.size(); ++v)
    if (model.values[v].producer < 0) inputs_.push_back(static_cast<int>(v));
  newest_.resize(model.values.size());
  done_.resize(model.steps.size());
}

void Simulation::flatten() {
  const auto size32 = [](const auto& list) { return static_cast<std::uint32_t>(list.size()); };
  for (const ModelStep& from : model_.steps) {
    Step& to = steps_.emplace_back();
    to.inputs = size32(operands_);
    operands_.insert(operands_.end(), from.inputs.begin(), from.inputs.end());
    to.outputs = size32(operands_);
    operands_.insert(operands_.end(), from.outputs.begin(), from.outputs.end());
    to.end = size32(operands_);
    to.overwrites = size32(overwrites_);
    overwrites_.insert(overwrites_.end(), from.overwrites.begin(), from.overwrites.end());
    to.overwrites_end = size32(overwrites_);
    to.workspace = from.workspace, to.ms = from.ms, to.recomputable = from.recomputable;
  }
  for (const ModelValue& value : model_.values) {
    bytes_.push_back(value.bytes);
    in_arena_.push_back(value.in_arena);
    // If a value is outside the arena, or copied to a variable at the end, its first copy is the
    // one that is read.
    newest_counts_.push_back(value.in_arena && !value.copied_out);
  }
}

void Simulation::find_anchors() {
  std::vector<char> wanted(model_.values.size()), is_anchor(model_.steps.size());
  for (std::size_t s = model_.steps.size(); s-- > 0;) {
    const ModelStep& step = model_.steps[s];
    bool anchor = step.outputs.empty(), read = false;
    for (int output : step.outputs) {
      const ModelValue& value = model_.values[static_cast<std::size_t>(output)];
      anchor |= !value.in_arena || value.copied_out;
      read |= wanted[static_cast<std::size_t>(output)] != 0;
    }
    is_anchor[s] = anchor || (read && !step.recomputable);
    if (anchor || read)
      for (int input : step.inputs) wanted[static_cast<std::size_t>(input)] = 1;
  }
  for (std::size_t s = 0; s < steps_.size(); ++s) {
    steps_[s].place = anchors_;
    if (is_anchor[s]) steps_[s].anchor = anchors_++;
  }
  for (std::size_t s = 0; s < steps_.size(); ++s) {
    const std::size_t until = static_cast<std::size_t>(model_.steps[s].valid_until);
    steps_[s].valid_until = until < steps_.size() ? steps_[until].place : anchors_;
  }
}

bool Simulation::run(Runs& runs) {
  if (!follow(runs)) return false;
  if (!all_are_read(runs)) find_readers(runs), take_out_dead(runs);
  sweep(runs);
  return true;
}

// Finds the copies that every run reads and makes, and the last run that reads each copy. False if
// the list is not valid.
bool Simulation::follow(const Runs& runs) {
  read_begin_.resize(runs.size() + 1), made_begin_.resize(runs.size() + 1);
  std::size_t reads = 0, made_in_all = inputs_.size();
  for (std::size_t r = 0; r < runs.size(); ++r) {
    const Step& s = step(runs[r]);
    read_begin_[r] = static_cast<int>(reads), made_begin_[r] = static_cast<int>(made_in_all);
    reads += s.outputs - s.inputs, made_in_all += s.end - s.outputs;
  }
  read_begin_[runs.size()] = static_cast<int>(reads);
  made_begin_[runs.size()] = static_cast<int>(made_in_all);
  reads_.resize(reads);
  copies_.resize(made_in_all);
  again_.resize(runs.size());
  std::fill(done_.begin(), done_.end(), 0);
  std::fill(newest_.begin(), newest_.end(), -1);
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    newest_[static_cast<std::size_t>(inputs_[i])] = static_cast<int>(i);
    copies_[i] = {inputs_[i]};
  }
  int anchors_done = 0;
  int* read = reads_.data();
  int made = static_cast<int>(inputs_.size());
  for (std::size_t r = 0; r < runs.size(); ++r) {
    const Step& s = step(runs[r]);
    const bool again = std::exchange(done_[static_cast<std::size_t>(runs[r])], 1) != 0;
    if (s.anchor >= 0 && !again) {
      if (s.anchor != anchors_done++) return false;
    } else if (anchors_done < s.place || anchors_done > s.valid_until ||
               (again && !s.recomputable)) {
      return false;
    }
    again_[r] = again;
    std::size_t at = s.inputs;
    for (; at < s.outputs; ++at) {
      const int copy = newest_[static_cast<std::size_t>(operands_[at])];
      if (copy < 0) return false;
      *read++ = copy;
      copies_[static_cast<std::size_t>(copy)].last = static_cast<int>(r);
    }
    for (; at < s.end; ++at, ++made) {
      const std::size_t value = static_cast<std::size_t>(operands_[at]);
      if (!again || newest_counts_[value]) newest_[value] = made;
      copies_[static_cast<std::size_t>(made)] = {operands_[at], static_cast<int>(r), -1,
                                                 again || in_arena_[value], false};
    }
  }
  return anchors_done == anchors_;
}

// Whether a result of every run is read, or wanted for its own sake. Then all runs are needed and
// follow() has found the last readers; only copies that nobody reads are left.
bool Simulation::all_are_read(const Runs& runs) {
  for (std::size_t r = 0; r < runs.size(); ++r) {
    bool read = step(runs[r]).anchor >= 0 && !again_[r];
    for (int c = made_begin_[r]; c < made_begin_[r + 1]; ++c) {
      int& last = copies_[static_cast<std::size_t>(c)].last;
      read |= last >= 0;
      last = std::max(last, static_cast<int>(r));
    }
    if (!read) return false;
  }
  return true;
}

// Finds the runs that are needed and the last of them that reads each copy.
void Simulation::find_readers(const Runs& runs) {
  for (Copy& copy : copies_) copy.last = -1;
  alive_.resize(runs.size());
  for (std::size_t r = runs.size(); r-- > 0;) {
    const int made_end = made_begin_[r + 1];
    bool alive = step(runs[r]).anchor >= 0 && !again_[r];
    for (int c = made_begin_[r]; c < made_end && !alive; ++c)
      alive = copies_[static_cast<std::size_t>(c)].last >= 0;
    alive_[r] = alive;
    if (!alive) continue;
    const auto use = [&](int c) {
      int& last = copies_[static_cast<std::size_t>(c)].last;
      last = std::max(last, static_cast<int>(r));
    };
    for (int c = made_begin_[r]; c < made_end; ++c) use(c);
    for (int i = read_begin_[r]; i < read_begin_[r + 1]; ++i)
      use(reads_[static_cast<std::size_t>(i)]);
  }
}

// Removes dead runs from the list and from all arrays. The remaining runs still read the same
// copies: a copy that was the newest when one of them read it is not dead.
void Simulation::take_out_dead(Runs& runs) {
  moved_copies_.resize(copies_.size()), moved_runs_.resize(runs.size());
  for (std::size_t i = 0; i < inputs_.size(); ++i) moved_copies_[i] = static_cast<int>(i);
  std::size_t kept = 0, reads = 0, copies = inputs_.size();
  for (std::size_t r = 0; r < runs.size(); ++r) {
    if (!alive_[r]) continue;
    const std::size_t first_read = static_cast<std::size_t>(read_begin_[r]),
                      end_read = static_cast<std::size_t>(read_begin_[r + 1]),
                      first_made = static_cast<std::size_t>(made_begin_[r]),
                      end_made = static_cast<std::size_t>(made_begin_[r + 1]);
    moved_runs_[r] = static_cast<int>(kept);
    runs[kept] = runs[r], again_[kept] = again_[r];
    read_begin_[kept] = static_cast<int>(reads), made_begin_[kept] = static_cast<int>(copies);
    for (std::size_t i = first_read; i < end_read; ++i)
      reads_[reads++] = moved_copies_[static_cast<std::size_t>(reads_[i])];
    for (std::size_t c = first_made; c < end_made; ++c) {
      moved_copies_[c] = static_cast<int>(copies);
      copies_[copies] = copies_[c];
      copies_[copies++].made = static_cast<int>(kept);
    }
    ++kept;
  }
  runs.resize(kept);
  read_begin_.resize(kept + 1), made_begin_.resize(kept + 1);
  read_begin_[kept] = static_cast<int>(reads), made_begin_[kept] = static_cast<int>(copies);
  reads_.resize(reads), copies_.resize(copies), again_.resize(kept);
  for (Copy& copy : copies_)
    if (copy.last >= 0) copy.last = moved_runs_[static_cast<std::size_t>(copy.last)];
}

// Sums up live bytes run by run. Outputs overwrite inputs that die there, as in lowering.
void Simulation::sweep(const Runs& runs) {
  profile_.resize(runs.size());
  peak_ = 0;
  ms_ = 0.0;
  std::int64_t live = 0;
  const auto size = [&](const Copy& copy) {
    return copy.in_arena ? bytes_[static_cast<std::size_t>(copy.value)] : 0;
  };
  for (std::size_t c = 0; c < inputs_.size(); ++c) live += size(copies_[c]);
  for (std::size_t r = 0; r < runs.size(); ++r) {
    const Step& s = step(runs[r]);
    ms_ += s.ms;
    const std::span<const int> read = reads(static_cast<int>(r));
    const std::span<Copy> made =
        std::span(copies_).subspan(static_cast<std::size_t>(made_begin_[r]), s.end - s.outputs);
    const auto take_over = [&](int input) {
      for (int c : read) {
        Copy& copy = copies_[static_cast<std::size_t>(c)];
        if (copy.value != input) continue;
        if (!copy.in_arena || copy.taken_over || copy.last != static_cast<int>(r) ||
            model_.values[static_cast<std::size_t>(input)].copied_out)
          return false;
        return copy.taken_over = true;
      }
      return false;
    };
    for (std::size_t o = 0; o < made.size(); ++o) {
      bool over = !made[o].in_arena;  // outside the arena it takes no new bytes either
      for (std::size_t i = s.overwrites; i < s.overwrites_end && !over; ++i)
        if (overwrites_[i].output == static_cast<int>(o)) over = take_over(overwrites_[i].input);
      if (!over) live += size(made[o]);
    }
    profile_[r] = live + s.workspace;
    peak_ = std::max(peak_, profile_[r]);
    // Free the copies whose last reader is this run.
    const auto release = [&](const Copy& copy) {
      if (!copy.taken_over && copy.last == static_cast<int>(r)) live -= size(copy);
    };
    for (int c : read) release(copies_[static_cast<std::size_t>(c)]);
    for (const Copy& copy : made) release(copy);
    if (r == 0)  // inputs without a reader are live during the first run only
      for (std::size_t c = 0; c < inputs_.size(); ++c)
        if (copies_[c].last < 0) live -= size(copies_[c]);
  }
}

}  // namespace ebb::planning
