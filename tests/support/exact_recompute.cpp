#include "support/exact_recompute.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <queue>
#include <stdexcept>

namespace ebb::test {

using namespace planning;
namespace {

using Set = std::uint64_t;  // of values

constexpr Set bit(int value) { return Set{1} << value; }
bool any(Set set) { return set != 0; }

template <class Function>
void for_each(Set set, const Function& function) {
  for (; any(set); set &= set - 1) function(std::countr_zero(set));
}

// A* over (anchors run, values that lie in memory). Having more values never hurts, as freeing
// costs nothing; so a value is freed only when a run needs its bytes, and a state is dropped when
// another one that was as cheap has all its values.
class Exact {
 public:
  enum class Cost : std::uint8_t { time, none };

  Exact(const StepModel& model, std::int64_t limit, Cost cost) : model_(model), limit_(limit) {
    if (model.values.size() > 64) throw std::invalid_argument("exact_recompute: over 64 values");
    const std::vector<char> is_anchor = find_anchors(model);
    anchor_of_.assign(model.steps.size(), -1);
    for (std::size_t s = 0; s < model.steps.size(); ++s) {
      places_.push_back(static_cast<int>(anchors_.size()));
      if (is_anchor[s]) {
        anchor_of_[s] = static_cast<int>(anchors_.size());
        anchors_.push_back(static_cast<int>(s));
      }
      ms_.push_back(cost == Cost::time ? model.steps[s].ms : 0.0);
      Set reads = 0, makes = 0;
      for (int value : model.steps[s].inputs)
        if (in_arena(value)) reads |= bit(value);
      for (int value : model.steps[s].outputs)
        if (in_arena(value)) makes |= bit(value);
      reads_.push_back(reads), makes_.push_back(makes);
    }
    for (std::size_t v = 0; v < model.values.size(); ++v) {
      if (model.values[v].producer < 0) inputs_ |= bit(static_cast<int>(v));
      if (model.values[v].copied_out) copied_out_ |= bit(static_cast<int>(v));
    }
    find_useful();
    expanded_.resize(anchors_.size() + 1);
  }

  std::optional<Runs> run() {
    push({0, inputs_, 0.0, -1, -1});
    while (!queue_.empty()) {
      const int number = queue_.top().node;
      queue_.pop();
      const Node node = nodes_[static_cast<std::size_t>(number)];
      if (node.done == static_cast<int>(anchors_.size())) return runs_to(number);
      if (dominated(node)) continue;
      // At the beginning all inputs lie there, wanted or not; no state with fewer is worse for it.
      if (number > 0)
        expanded_[static_cast<std::size_t>(node.done)].push_back({node.present, node.ms});
      for (int s = 0; s < static_cast<int>(model_.steps.size()); ++s)
        if (possible(s, node.done) && !any(reads_[at(s)] & ~node.present)) expand(number, s);
    }
    return std::nullopt;
  }

 private:
  struct Node {
    int done;     // anchors that have run
    Set present;  // values in memory
    double ms;
    int parent, step;
  };
  struct Entry {
    double bound;  // on the time of all runs through here
    int done, node;
    bool operator<(const Entry& other) const {
      return bound != other.bound ? bound > other.bound : done < other.done;
    }
  };
  struct Expanded {
    Set present;
    double ms;
  };

  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
  bool in_arena(int value) const { return model_.values[at(value)].in_arena; }
  std::int64_t bytes(Set set) const {
    std::int64_t sum = 0;
    for_each(set, [&](int value) { sum += model_.values[at(value)].bytes; });
    return sum;
  }

  bool next_anchor(int s, int done) const { return anchor_of_[at(s)] == done; }
  bool possible(int s, int done) const {
    if (next_anchor(s, done)) return true;
    const ModelStep& step = model_.steps[at(s)];
    return places_[at(s)] <= done && anchor_of_[at(s)] < done &&
           (anchor_of_[at(s)] < 0 || step.recomputable) &&
           (done == 0 || anchors_[at(done - 1)] < step.valid_until);
  }

  // What may still be read once so many anchors have run, and what must not be freed then.
  void find_useful() {
    for (int done = 0; done <= static_cast<int>(anchors_.size()); ++done) {
      Set useful = 0, forced = 0;
      for (std::size_t s = model_.steps.size(); s-- > 0;) {
        const bool to_come = anchor_of_[s] >= done;
        if (to_come) forced |= reads_[s] & copied_out_;
        const bool may_run = places_[s] > done || possible(static_cast<int>(s), done);
        if (to_come || (may_run && any(makes_[s] & useful))) useful |= reads_[s];
      }
      useful_.push_back(useful), forced_.push_back(forced);
    }
  }

  // Every anchor to come runs, and what those miss is made at least once.
  double least_to_come(int done, Set present) const {
    double sum = 0.0;
    Set missing = 0;
    for (std::size_t s = model_.steps.size(); s-- > 0;) {
      if (anchor_of_[s] < done && !any(makes_[s] & missing)) continue;
      if (anchor_of_[s] < done && places_[s] <= done && !possible(static_cast<int>(s), done))
        return std::numeric_limits<double>::infinity();
      sum += ms_[s];
      missing |= reads_[s] & ~present;
    }
    return any(missing & inputs_) ? std::numeric_limits<double>::infinity() : sum;
  }

  // Bytes of outputs that lie over inputs of which these die.
  std::int64_t saved(int s, Set dying) const {
    const ModelStep& step = model_.steps[at(s)];
    dying &= ~copied_out_;
    std::int64_t sum = 0;
    for (std::size_t o = 0; o < step.outputs.size(); ++o)
      for (const Overwrite& pair : step.overwrites)
        if (pair.output == static_cast<int>(o) && any(dying & bit(pair.input)) &&
            counted(step.outputs[o])) {
          dying &= ~bit(pair.input);
          sum += model_.values[at(step.outputs[o])].bytes;
          break;
        }
    return sum;
  }
  // Whether the output takes bytes of the arena: what runs again always writes there.
  bool counted(int output) const { return again_ || in_arena(output); }

  void expand(int number, int s) {
    const Node node = nodes_[at(number)];
    const int done = node.done + (next_anchor(s, node.done) ? 1 : 0);
    const Set useful = useful_[at(done)], forced = forced_[at(done)];
    // What waits to be copied out stays as first made; readers of the rest go on with the new copy.
    again_ = done == node.done && anchor_of_[at(s)] >= 0;
    const Set fresh = makes_[at(s)] & ~(again_ ? copied_out_ : 0);
    if (done == node.done && !any(fresh & useful & ~node.present)) return;

    std::int64_t made = model_.steps[at(s)].workspace;
    for (int output : model_.steps[at(s)].outputs)
      if (counted(output)) made += model_.values[at(output)].bytes;
    const Set kept = node.present & ~fresh & (useful | forced);
    const Set dying = reads_[at(s)] & ~kept;
    const Set during = number == 0 ? node.present : kept | reads_[at(s)];
    const std::int64_t over = bytes(during) + made - saved(s, dying) - limit_;
    const Set optional = kept & ~forced;
    const auto reach = [&](Set freed) {
      push({done, (kept & ~freed) | (fresh & (useful | forced)), node.ms + ms_[at(s)], number, s});
    };
    if (over <= 0) return reach(0);
    // All ways to make room that free no value too many: of the inputs those that outputs can lie
    // over, of the other values from the largest on.
    std::vector<int> others;
    if (number > 0)
      for_each(optional & ~reads_[at(s)], [&](int value) { others.push_back(value); });
    std::stable_sort(others.begin(), others.end(), [&](int a, int b) {
      return model_.values[at(a)].bytes > model_.values[at(b)].bytes;
    });
    Set over_inputs = 0;
    for (const Overwrite& pair : model_.steps[at(s)].overwrites)
      over_inputs |= bit(pair.input) & optional & reads_[at(s)];
    for (Set inputs = over_inputs;; inputs = (inputs - 1) & over_inputs) {
      const std::int64_t gained = saved(s, dying | inputs) - saved(s, dying);
      make_room(others, 0, inputs, over - gained, reach);
      if (!any(inputs)) break;
    }
  }

  template <class Reach>
  void make_room(const std::vector<int>& values, std::size_t from, Set freed, std::int64_t over,
                 const Reach& reach) {
    if (over <= 0) return reach(freed);
    for (std::size_t i = from; i < values.size(); ++i) {
      const std::int64_t size = model_.values[at(values[i])].bytes;
      if (size > 0) make_room(values, i + 1, freed | bit(values[i]), over - size, reach);
    }
  }

  void push(const Node& node) {
    const double to_come = least_to_come(node.done, node.present);
    if (to_come == std::numeric_limits<double>::infinity() || dominated(node)) return;
    queue_.push({node.ms + to_come, node.done, static_cast<int>(nodes_.size())});
    nodes_.push_back(node);
  }

  bool dominated(const Node& node) const {
    const auto& list = expanded_[at(node.done)];
    return std::any_of(list.begin(), list.end(), [&](const Expanded& other) {
      return other.ms <= node.ms && !any(node.present & ~other.present);
    });
  }

  Runs runs_to(int number) const {
    Runs runs;
    for (; nodes_[at(number)].parent >= 0; number = nodes_[at(number)].parent)
      runs.push_back(nodes_[at(number)].step);
    std::reverse(runs.begin(), runs.end());
    return runs;
  }

  const StepModel& model_;
  std::int64_t limit_;
  std::vector<int> anchors_;    // steps
  std::vector<int> anchor_of_;  // number of a step among the anchors, or -1
  std::vector<int> places_;     // how many anchors come before a step
  std::vector<double> ms_;
  std::vector<Set> reads_, makes_;    // of every step, in the arena
  std::vector<Set> useful_, forced_;  // by anchors run
  Set inputs_ = 0, copied_out_ = 0;
  bool again_ = false;

  std::vector<Node> nodes_;
  std::priority_queue<Entry> queue_;
  std::vector<std::vector<Expanded>> expanded_;  // by anchors run
};

}  // namespace

std::vector<char> find_anchors(const StepModel& model) {
  std::vector<char> anchors(model.steps.size()), wanted(model.values.size());
  for (std::size_t s = model.steps.size(); s-- > 0;) {
    const ModelStep& step = model.steps[s];
    bool anchor = step.outputs.empty(), read = false;
    for (int output : step.outputs) {
      const ModelValue& value = model.values[static_cast<std::size_t>(output)];
      read |= wanted[static_cast<std::size_t>(output)] != 0;
      anchor |= !value.in_arena || (value.copied_out && wanted[static_cast<std::size_t>(output)]);
    }
    anchors[s] = anchor || (read && !step.recomputable);
    if (anchor || read)
      for (int input : step.inputs) wanted[static_cast<std::size_t>(input)] = 1;
  }
  return anchors;
}

std::optional<std::int64_t> peak_of(const StepModel& model, std::span<const int> runs) {
  struct Copy {
    int value, made, last;  // runs
    bool in_arena, taken_over = false;
  };
  const std::vector<char> anchor = find_anchors(model);
  const auto at = [](int index) { return static_cast<std::size_t>(index); };
  std::vector<Copy> copies;
  std::vector<int> newest(model.values.size(), -1);
  for (std::size_t v = 0; v < model.values.size(); ++v)
    if (model.values[v].producer < 0) {
      newest[v] = static_cast<int>(copies.size());
      copies.push_back({static_cast<int>(v), -1, 0, true});
    }
  std::vector<std::vector<int>> reads(runs.size()), makes(runs.size());
  std::vector<char> done(model.steps.size());
  int last_anchor = -1;
  for (int r = 0; r < static_cast<int>(runs.size()); ++r) {
    const int s = runs[at(r)];
    const ModelStep& step = model.steps[at(s)];
    const bool again = done[at(s)] != 0;
    for (int t = last_anchor + 1; t < s; ++t)
      if (anchor[at(t)]) return std::nullopt;  // before its place
    if (anchor[at(s)] && !again) {
      last_anchor = s;
    } else if (last_anchor >= step.valid_until || (again && !step.recomputable)) {
      return std::nullopt;
    }
    done[at(s)] = 1;
    for (int input : step.inputs) {
      if (newest[at(input)] < 0) return std::nullopt;
      reads[at(r)].push_back(newest[at(input)]);
      copies[at(newest[at(input)])].last = r;
    }
    for (int output : step.outputs) {
      const ModelValue& value = model.values[at(output)];
      makes[at(r)].push_back(static_cast<int>(copies.size()));
      // What lies outside or waits to be copied out is read as first made.
      if (!again || (value.in_arena && !value.copied_out))
        newest[at(output)] = static_cast<int>(copies.size());
      copies.push_back({output, r, r, again || value.in_arena});
    }
  }
  for (std::size_t s = 0; s < model.steps.size(); ++s)
    if (anchor[s] && !done[s]) return std::nullopt;

  const auto bytes = [&](const Copy& c) {
    return c.in_arena ? model.values[at(c.value)].bytes : 0;
  };
  std::int64_t live = 0, peak = 0;
  for (const Copy& copy : copies)
    if (copy.made < 0) live += bytes(copy);
  for (int r = 0; r < static_cast<int>(runs.size()); ++r) {
    const ModelStep& step = model.steps[at(runs[at(r)])];
    for (std::size_t o = 0; o < step.outputs.size(); ++o) {
      const Copy& output = copies[at(makes[at(r)][o])];
      bool over = !output.in_arena;  // takes no bytes
      for (const Overwrite& pair : step.overwrites)
        for (int read : reads[at(r)]) {
          Copy& input = copies[at(read)];
          if (over || pair.output != static_cast<int>(o) || pair.input != input.value ||
              input.last != r || input.taken_over || model.values[at(pair.input)].copied_out)
            continue;
          input.taken_over = over = true;
        }
      if (!over) live += bytes(output);
    }
    peak = std::max(peak, live + step.workspace);
    for (const Copy& copy : copies)
      if (copy.last == r && copy.made <= r && !copy.taken_over) live -= bytes(copy);
  }
  return peak;
}

double ms_of(const StepModel& model, std::span<const int> runs) {
  double sum = 0.0;
  for (int s : runs) sum += model.steps[static_cast<std::size_t>(s)].ms;
  return sum;
}

std::optional<Runs> exact_recompute(const StepModel& model, std::int64_t limit) {
  return Exact(model, limit, Exact::Cost::time).run();
}

std::int64_t exact_least_peak(const StepModel& model) {
  std::int64_t low = 0, high = 1;
  for (const ModelValue& value : model.values) high += value.bytes;
  std::int64_t workspace = 0;
  for (const ModelStep& step : model.steps) workspace = std::max(workspace, step.workspace);
  high += workspace;
  // `high` can be done; below `low` nothing can.
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    const auto runs = Exact(model, middle, Exact::Cost::none).run();
    if (runs)
      high = *peak_of(model, *runs);
    else
      low = middle + 1;
  }
  return high;
}

}  // namespace ebb::test
