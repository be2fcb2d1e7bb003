// Memory of all levels together: planned, minimal and measured.
#include <algorithm>
#include <unordered_set>

#include "ebb/arena.h"
#include "ebb/mlo/engine.h"
#include "ebb/node.h"
#include "ebb/storage.h"
#include "mlo/engine_state.h"

namespace ebb::mlo {
namespace {

// Joins plans that run one after the other in one arena.
class Joining {
 public:
  explicit Joining(Device device) { whole_.device = device; }

  // `share`: how often it runs per step of the engine.
  void add(const Plan& plan, double share) {
    const int from = static_cast<int>(whole_.instructions.size());
    const std::vector<int> places = add_buffers(plan, from);
    for (Instruction instruction : plan.instructions) {
      for (auto* operands : {&instruction.inputs, &instruction.outputs})
        for (Operand& operand : *operands)
          operand.buffer = places[static_cast<std::size_t>(operand.buffer)];
      if (instruction.workspace >= 0)
        instruction.workspace = places[static_cast<std::size_t>(instruction.workspace)];
      whole_.instructions.push_back(std::move(instruction));
    }
    for (Decision decision : plan.decisions) {
      decision.freed_after += from, decision.needed_by += from;
      whole_.decisions.push_back(std::move(decision));
    }
    if (plan.live_peak > whole_.live_peak) {
      whole_.live_peak = plan.live_peak;
      whole_.peak_instruction = from + plan.peak_instruction;
    }
    whole_.predicted_ms += share * plan.predicted_ms;
    whole_.predicted_keep_all_ms += share * plan.predicted_keep_all_ms;
    whole_.made_in_ms += plan.made_in_ms;
    needs_arena(plan.arena);
  }

  // For a plan that runs at other times in the same arena: only its memory counts.
  void add_bytes_of(const Plan& plan) {
    needs_arena(plan.arena);
    for (const Buffer& buffer : plan.buffers)
      if (!buffer.in_arena()) add_staying(buffer);
  }

  void add_state(const Variable& variable) {
    Buffer buffer;
    buffer.size = variable.type().bytes();
    buffer.category = variable.node()->category();
    buffer.persistent = variable.node();
    buffer.path = variable.path();
    buffer.op = variable.node()->op().name();
    add_staying(buffer);
  }

  Plan finish() {
    const int last = static_cast<int>(whole_.instructions.size()) - 1;
    for (Buffer& buffer : whole_.buffers) {
      const int at = whole_.peak_instruction;
      if (!buffer.in_arena()) {
        buffer.first = 0, buffer.last = last;
        const Bytes bytes = Storage::reservation(whole_.device, buffer.size);
        whole_.persistent += bytes;
        whole_.at_peak[buffer.category] += bytes;
      } else if (buffer.first <= at && buffer.last >= at) {
        whole_.at_peak[buffer.category] += buffer.size;
      }
    }
    std::stable_sort(whole_.decisions.begin(), whole_.decisions.end(),
                     [](const Decision& a, const Decision& b) { return a.bytes > b.bytes; });
    whole_.peak = whole_.arena + whole_.persistent;
    return std::move(whole_);
  }

 private:
  void needs_arena(Bytes bytes) { whole_.arena = std::max(whole_.arena, bytes); }

  // Where each of the plan's buffers is now.
  std::vector<int> add_buffers(const Plan& plan, int from) {
    std::vector<int> places;
    for (Buffer buffer : plan.buffers) {
      if (buffer.in_arena()) {
        buffer.first += from, buffer.last += from;
        places.push_back(static_cast<int>(whole_.buffers.size()));
        whole_.buffers.push_back(std::move(buffer));
      } else {
        places.push_back(add_staying(buffer));
      }
    }
    return places;
  }

  // Variables and constants that several programs read count once; each program has its own
  // outputs.
  int add_staying(Buffer buffer) {
    const int place = static_cast<int>(whole_.buffers.size());
    if (buffer.persistent) {
      const auto [found, is_new] = staying_.try_emplace(buffer.persistent.get(), place);
      if (!is_new) return found->second;
    } else {
      buffer.output = outputs_++;
    }
    whole_.buffers.push_back(std::move(buffer));
    return place;
  }

  Plan whole_;
  std::unordered_map<const Node*, int> staying_;
  int outputs_ = 0;
};

}  // namespace

Engine::WholePlan Engine::plan() {
  WholePlan whole;
  Joining joining(state_->arena->device());
  for (const auto& level : state_->levels) {
    const Plan& plan = level->plan(StepKind::update);
    whole.levels.push_back({level->name(), plan});
    joining.add(plan, level->runs_for_each());
    if (level->accumulates()) joining.add_bytes_of(level->plan(StepKind::accumulate));
    level->trace_once();
  }
  // State that no update of these reads or writes, such as snapshots.
  for (const auto& level : state_->levels)
    for (const Variable& variable : level->variables()) joining.add_state(variable);
  whole.together = joining.finish();
  whole.arena = whole.together.arena;
  whole.persistent = whole.together.persistent;
  whole.peak = whole.together.peak;
  return whole;
}

Bytes Engine::least_budget() {
  Bytes least;
  for (const auto& level : state_->levels) least = std::max(least, level->least_budget());
  return least;
}

Bytes Engine::resident() const {
  const Bytes arena = state_->arena->resident();
  Bytes total = arena;
  std::unordered_set<const Node*> counted;
  const auto bytes_of = [](const Node& node) {
    return node.storage() ? node.storage()->resident() : Bytes{};
  };
  const auto count = [&](const Node& node) {
    if (counted.insert(&node).second) total += bytes_of(node);
  };
  for (const auto& level : state_->levels) {
    level->each_program([&](const Program& program) {
      Bytes results = program.resident() - arena;
      for (const Buffer& buffer : program.plan().buffers)
        if (buffer.persistent) {
          results -= bytes_of(*buffer.persistent);
          count(*buffer.persistent);
        }
      total += results;
    });
    for (const Variable& variable : level->variables()) count(*variable.node());
  }
  return total;
}

}  // namespace ebb::mlo
