#include "plan/recompute/simulation.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace ebb {

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
  find_anchors();
  for (std::size_t v = 0; v < model.values.size(); ++v)
    if (model.values[v].producer < 0) inputs_.push_back(static_cast<int>(v));
  newest_.resize(model.values.size());
  done_.resize(model.steps.size());
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
  place_.push_back(0);
  for (std::size_t s = 0; s < model_.steps.size(); ++s) {
    anchor_.push_back(is_anchor[s] ? place_[s] : -1);
    place_.push_back(place_[s] + is_anchor[s]);
  }
  anchors_ = place_.back();
  for (const ModelStep& step : model_.steps)
    valid_until_.push_back(
        place_[std::min(static_cast<std::size_t>(step.valid_until), model_.steps.size())]);
}

bool Simulation::run(Runs& runs) {
  if (!follow(runs)) return false;
  if (find_readers(runs)) {
    follow(runs);
    find_readers(runs);
  }
  sweep(runs);
  return true;
}

// Which copies every run reads and makes.
bool Simulation::follow(const Runs& runs) {
  read_begin_.resize(runs.size() + 1), made_begin_.resize(runs.size() + 1);
  read_begin_[0] = 0, made_begin_[0] = static_cast<int>(inputs_.size());
  for (std::size_t r = 0; r < runs.size(); ++r) {
    const ModelStep& step = model_.steps[static_cast<std::size_t>(runs[r])];
    read_begin_[r + 1] = read_begin_[r] + static_cast<int>(step.inputs.size());
    made_begin_[r + 1] = made_begin_[r] + static_cast<int>(step.outputs.size());
  }
  reads_.resize(static_cast<std::size_t>(read_begin_.back()));
  copies_.resize(static_cast<std::size_t>(made_begin_.back()));
  again_.resize(runs.size());
  std::fill(done_.begin(), done_.end(), 0);
  std::fill(newest_.begin(), newest_.end(), -1);
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    newest_[static_cast<std::size_t>(inputs_[i])] = static_cast<int>(i);
    copies_[i] = {inputs_[i]};
  }
  int anchors_done = 0;
  for (std::size_t r = 0; r < runs.size(); ++r) {
    const std::size_t s = static_cast<std::size_t>(runs[r]);
    const ModelStep& step = model_.steps[s];
    const bool again = std::exchange(done_[s], 1) != 0;
    if (anchor_[s] >= 0 && !again) {
      if (anchor_[s] != anchors_done++) return false;
    } else if (anchors_done < place_[s] || anchors_done > valid_until_[s] ||
               (again && !step.recomputable)) {
      return false;
    }
    again_[r] = again;
    std::size_t read = static_cast<std::size_t>(read_begin_[r]);
    for (int input : step.inputs) {
      const int copy = newest_[static_cast<std::size_t>(input)];
      if (copy < 0) return false;
      reads_[read++] = copy;
    }
    int made = made_begin_[r];
    for (int output : step.outputs) {
      const ModelValue& value = model_.values[static_cast<std::size_t>(output)];
      // What lies outside or waits to be copied out is read as first made.
      if (!again || (value.in_arena && !value.copied_out))
        newest_[static_cast<std::size_t>(output)] = made;
      copies_[static_cast<std::size_t>(made++)] = {output, static_cast<int>(r), -1,
                                                   again || value.in_arena, false};
    }
  }
  return anchors_done == anchors_;
}

// The last reader of every copy. True when runs have been taken out.
bool Simulation::find_readers(Runs& runs) {
  alive_.assign(runs.size(), 0);
  bool all_alive = true;
  for (std::size_t r = runs.size(); r-- > 0;) {
    const int made_end = made_begin_[r + 1];
    bool alive = anchor_[static_cast<std::size_t>(runs[r])] >= 0 && !again_[r];
    for (int c = made_begin_[r]; c < made_end && !alive; ++c)
      alive = copies_[static_cast<std::size_t>(c)].last >= 0;
    alive_[r] = alive;
    all_alive &= alive;
    if (!alive) continue;
    for (int c = made_begin_[r]; c < made_end; ++c) {
      int& last = copies_[static_cast<std::size_t>(c)].last;
      last = std::max(last, static_cast<int>(r));
    }
    for (int i = read_begin_[r]; i < read_begin_[r + 1]; ++i) {
      int& last = copies_[static_cast<std::size_t>(reads_[static_cast<std::size_t>(i)])].last;
      last = std::max(last, static_cast<int>(r));
    }
  }
  if (all_alive) return false;
  std::size_t kept = 0;
  for (std::size_t r = 0; r < runs.size(); ++r)
    if (alive_[r]) runs[kept++] = runs[r];
  runs.resize(kept);
  return true;
}

// Live bytes from run to run, with outputs written over inputs that die as lowering does it.
void Simulation::sweep(const Runs& runs) {
  profile_.resize(runs.size());
  peak_ = 0;
  ms_ = 0.0;
  std::int64_t live = 0;
  const auto bytes = [&](const Copy& copy) {
    return copy.in_arena ? model_.values[static_cast<std::size_t>(copy.value)].bytes : 0;
  };
  for (std::size_t c = 0; c < inputs_.size(); ++c) live += bytes(copies_[c]);
  for (std::size_t r = 0; r < runs.size(); ++r) {
    const ModelStep& step = model_.steps[static_cast<std::size_t>(runs[r])];
    ms_ += step.ms;
    const std::span<const int> read = reads(static_cast<int>(r));
    const std::span<Copy> made =
        std::span(copies_).subspan(static_cast<std::size_t>(made_begin_[r]), step.outputs.size());
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
      bool over = !made[o].in_arena;  // takes no bytes either
      for (const Overwrite& pair : step.overwrites)
        if (pair.output == static_cast<int>(o) && !over) over = take_over(pair.input);
      if (!over) live += bytes(made[o]);
    }
    profile_[r] = live + step.workspace;
    peak_ = std::max(peak_, profile_[r]);
    // What nobody reads later goes now.
    const auto release = [&](const Copy& copy) {
      if (!copy.taken_over && copy.last == static_cast<int>(r)) live -= bytes(copy);
    };
    for (int c : read) release(copies_[static_cast<std::size_t>(c)]);
    for (const Copy& copy : made) release(copy);
    if (r == 0)  // inputs that nobody reads
      for (std::size_t c = 0; c < inputs_.size(); ++c)
        if (copies_[c].last < 0) live -= bytes(copies_[c]);
  }
}

}  // namespace ebb
