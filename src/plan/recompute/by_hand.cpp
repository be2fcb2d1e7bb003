#include "plan/recompute/by_hand.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

namespace ebb::planning {
namespace {

// The region of every step; 0: none. Steps of backward belong to no region.
using Regions = std::vector<std::uint32_t>;

const Marks& marks_of(const Question& q, std::size_t step) {
  return q.plan.instructions[InstructionId(step)].marks;
}

template <class RegionOf>
Regions regions(const Question& q, const RegionOf& region_of) {
  Regions result(q.model.steps.size());
  for (std::size_t s = 0; s < result.size(); ++s)
    if (!q.model.steps[s].backward) result[s] = region_of(s);
  return result;
}

// The values to free: those that are made in a region and that no step of forward outside it reads.
// Every n-th such value of a region is kept, where n is `keep_one_in`, by default the mark of the
// region's steps; with 0, none is kept.
std::vector<int> inside(const Question& q, const Regions& region,
                        std::optional<std::int64_t> keep_one_in = {}) {
  std::vector<int> values;
  std::map<std::uint32_t, std::int64_t> counts;
  for (std::size_t v = 0; v < q.model.values.size(); ++v) {
    const ModelValue& value = q.model.values[v];
    if (last_in_forward(q.model, static_cast<int>(v)) < 0) continue;
    const std::size_t producer = static_cast<std::size_t>(value.producer);
    const std::uint32_t here = region[producer];
    if (here == 0) continue;
    const bool handed_on =
        std::any_of(value.positions.begin() + 1, value.positions.end(), [&](int reader) {
          const std::size_t r = static_cast<std::size_t>(reader);
          return !q.model.steps[r].backward && region[r] != here;
        });
    if (handed_on) continue;
    const std::int64_t one_in = keep_one_in.value_or(marks_of(q, producer).keep_one_in);
    // Keeps the last of every n values, not the first: the first is close to the region's inputs,
    // which are kept anyway.
    if (one_in > 0 && ++counts[here] % one_in == 0) continue;
    values.push_back(static_cast<int>(v));
  }
  return values;
}

// The values that regions read from outside: regions are recomputed from these.
std::vector<int> entering(const Question& q, const Regions& region) {
  std::vector<int> values;
  for (std::size_t v = 0; v < q.model.values.size(); ++v) {
    const ModelValue& value = q.model.values[v];
    if (value.producer < 0) continue;
    const std::uint32_t here = region[static_cast<std::size_t>(value.producer)];
    if (std::any_of(value.positions.begin() + 1, value.positions.end(), [&](int reader) {
          const std::uint32_t there = region[static_cast<std::size_t>(reader)];
          return there != 0 && there != here;
        }))
      values.push_back(static_cast<int>(v));
  }
  return values;
}

class KeepAll : public Strategy {
 public:
  std::string_view name() const override { return "none"; }
  Runs decide(const Question& q) const override { return keep_all(q.model); }
};

class Marked : public Strategy {
 public:
  std::string_view name() const override { return "marked"; }
  Runs decide(const Question& q) const override {
    const Regions region = regions(q, [&](std::size_t s) { return marks_of(q, s).checkpoint; });
    return freed_after_forward(q.model, inside(q, region), entering(q, region));
  }
};

class Blocks : public Strategy {
 public:
  std::string_view name() const override { return "blocks"; }
  Runs decide(const Question& q) const override {
    return freed_after_forward(
        q.model, inside(q, regions(q, [&](std::size_t s) { return marks_of(q, s).block; }), 0));
  }
};

// n consecutive blocks in √n groups. Without blocks, the n steps of forward are cut into √n groups.
class Sqrt : public Strategy {
 public:
  std::string_view name() const override { return "sqrt"; }
  Runs decide(const Question& q) const override {
    std::map<std::uint32_t, std::uint32_t> order;  // block → number of blocks before it
    std::uint32_t forward = 0;
    for (std::size_t s = 0; s < q.model.steps.size(); ++s) {
      if (q.model.steps[s].backward) continue;
      ++forward;
      if (const std::uint32_t block = marks_of(q, s).block)
        order.try_emplace(block, static_cast<std::uint32_t>(order.size()));
    }
    const bool by_blocks = order.size() > 1;
    const std::uint32_t size =
        groups_of(by_blocks ? static_cast<std::uint32_t>(order.size()) : forward);
    std::uint32_t step = 0;
    const Regions group = regions(q, [&](std::size_t s) -> std::uint32_t {
      if (!by_blocks) return step++ / size + 1;
      const std::uint32_t block = marks_of(q, s).block;
      return block ? order.at(block) / size + 1 : 0;
    });
    return freed_after_forward(q.model, inside(q, group, 0));
  }

 private:
  static std::uint32_t groups_of(std::uint32_t count) {
    return std::max(1u, static_cast<std::uint32_t>(std::lround(std::sqrt(count))));
  }
};

// Frees the values inside each block (without blocks: all of forward), except every n-th.
class Segment : public Strategy {
 public:
  explicit Segment(std::int64_t segment) : segment_(segment) {}
  std::string_view name() const override { return "segment"; }
  Runs decide(const Question& q) const override {
    Regions blocks = regions(q, [&](std::size_t s) { return marks_of(q, s).block; });
    if (std::all_of(blocks.begin(), blocks.end(), [](std::uint32_t block) { return block == 0; }))
      blocks = regions(q, [](std::size_t) { return 1u; });
    return freed_after_forward(q.model, inside(q, blocks, segment_));
  }

 private:
  std::int64_t segment_;
};

// Frees the outputs of cheap ops, which compute little per byte moved: norms, activations and other
// elementwise work.
class Selective : public Strategy {
 public:
  std::string_view name() const override { return "selective"; }
  Runs decide(const Question& q) const override {
    std::vector<int> freed;
    std::vector<char> available(q.model.values.size());  // freed, but recomputable from kept values
    for (std::size_t v = 0; v < q.model.values.size(); ++v) {
      const int last = last_in_forward(q.model, static_cast<int>(v));
      if (last < 0) continue;
      const ModelValue& value = q.model.values[v];
      const int needed = value.positions[static_cast<std::size_t>(last) + 1];
      const std::size_t producer = static_cast<std::size_t>(value.producer);
      const auto& inputs = q.model.steps[producer].inputs;
      const bool from_kept = std::all_of(inputs.begin(), inputs.end(), [&](int input) {
        const ModelValue& i = q.model.values[static_cast<std::size_t>(input)];
        return i.producer < 0 || available[static_cast<std::size_t>(input)] ||
               i.positions.back() >= needed;
      });
      if (!from_kept || !cheap(q, producer)) continue;
      available[v] = 1;
      freed.push_back(static_cast<int>(v));
    }
    return freed_after_forward(q.model, freed);
  }

 private:
  static bool cheap(const Question& q, std::size_t step) {
    return q.plan.instructions[InstructionId(step)].work == Work::elementwise;
  }
};

// Goes through the steps in order and recomputes inputs that have been freed.
class AfterForward {
 public:
  AfterForward(const StepModel& model, const std::vector<int>& values,
               const std::optional<std::vector<int>>& held)
      : model_(model),
        freed_at_(model.values.size(), -1),
        held_(model.values.size()),
        by_region_(held.has_value()),
        state_(model.values.size()) {
    for (int value : held.value_or(std::vector<int>{}))
      held_[static_cast<std::size_t>(value)] = true;
    for (int value : values)
      freed_at_[static_cast<std::size_t>(value)] = last_in_forward(model, value);
    reached_.resize(model.steps.size(), -1);
  }

  Runs run() {
    for (int t = 0; t < static_cast<int>(model_.steps.size()); ++t) {
      const ModelStep& step = model_.steps[static_cast<std::size_t>(t)];
      for (int s : missing(t)) again(s);
      runs_.push_back(t);
      for (int value : step.inputs) ++state_[static_cast<std::size_t>(value)].position;
      for (int value : step.inputs) settle(value);
      for (int value : step.outputs) settle(value);
      // Values recomputed on the way are kept only while readers are left. In regions all are kept:
      // backward may need them later, since it may go through a region from either end.
      for (int value : made_again_)
        if (over(value) && !by_region_) state_[static_cast<std::size_t>(value)].present = false;
      made_again_.clear();
    }
    return std::move(runs_);
  }

 private:
  struct State {
    bool present = true;
    int position = 0;  // index of the last of its `positions` that has run
  };

  bool over(int value) const {
    return state_[static_cast<std::size_t>(value)].position + 1 ==
           static_cast<int>(model_.values[static_cast<std::size_t>(value)].positions.size());
  }
  void settle(int value) {
    State& state = state_[static_cast<std::size_t>(value)];
    state.present = !droppable(model_, value) || held_[static_cast<std::size_t>(value)] ||
                    (state.position != freed_at_[static_cast<std::size_t>(value)] && !over(value));
  }

  // The steps that must run again before `step` for its inputs, in topological order. A value that
  // can no longer be recomputed, because a variable has changed, stays live until now instead.
  std::vector<int> missing(int step) {
    std::vector<int> result, stack = {step};
    while (!stack.empty()) {
      const int s = stack.back();
      stack.pop_back();
      for (int value : model_.steps[static_cast<std::size_t>(s)].inputs) {
        const int producer = model_.values[static_cast<std::size_t>(value)].producer;
        if (state_[static_cast<std::size_t>(value)].present ||
            model_.steps[static_cast<std::size_t>(producer)].valid_until < step ||
            std::exchange(reached_[static_cast<std::size_t>(producer)], step) == step)
          continue;
        result.push_back(producer);
        stack.push_back(producer);
      }
    }
    std::sort(result.begin(), result.end());
    return result;
  }

  void again(int step) {
    runs_.push_back(step);
    for (int value : model_.steps[static_cast<std::size_t>(step)].outputs) {
      state_[static_cast<std::size_t>(value)].present = true;
      made_again_.push_back(value);
    }
  }

  const StepModel& model_;
  std::vector<int> freed_at_;  // by value: index in `positions` after which it is freed, or -1
  std::vector<bool> held_;
  bool by_region_;
  std::vector<State> state_;
  std::vector<int> reached_;  // for every step, the last step that `missing` reached it from
  std::vector<int> made_again_;
  Runs runs_;
};

}  // namespace

int last_in_forward(const StepModel& model, int value) {
  if (!droppable(model, value)) return -1;
  const ModelValue& v = model.values[static_cast<std::size_t>(value)];
  const auto backward = [&](int step) {
    return model.steps[static_cast<std::size_t>(step)].backward;
  };
  for (std::size_t i = 0; i + 1 < v.positions.size(); ++i)
    if (!backward(v.positions[i]) && backward(v.positions[i + 1])) return static_cast<int>(i);
  return -1;
}

Runs freed_after_forward(const StepModel& model, const std::vector<int>& values,
                         const std::optional<std::vector<int>>& held) {
  return AfterForward(model, values, held).run();
}

std::unique_ptr<const Strategy> keep_all_strategy() { return std::make_unique<KeepAll>(); }
std::unique_ptr<const Strategy> marked_strategy() { return std::make_unique<Marked>(); }
std::unique_ptr<const Strategy> blocks_strategy() { return std::make_unique<Blocks>(); }
std::unique_ptr<const Strategy> sqrt_strategy() { return std::make_unique<Sqrt>(); }
std::unique_ptr<const Strategy> segment_strategy(std::int64_t segment) {
  return std::make_unique<Segment>(segment);
}
std::unique_ptr<const Strategy> selective_strategy() { return std::make_unique<Selective>(); }

}  // namespace ebb::planning
