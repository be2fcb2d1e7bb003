// Memory of all levels together: planned, minimal and measured.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "core/tier_block.h"
#include "ebb/arena.h"
#include "ebb/mlo/engine.h"
#include "ebb/node.h"
#include "ebb/storage.h"
#include "mlo/engine_state.h"
#include "report/tensor_names.h"

namespace ebb::mlo {
namespace {

// Joins plans that run one after the other in one arena.
class Joining {
 public:
  Joining(Device device, const Homes& homes) : homes_(homes) {
    whole_.device = device;
    space_ = whole_.spaces.add({});
  }

  // `level` names tensors and instructions that belong to no module: "reweight, input 0". `share`
  // is how often the plan runs per step of the engine.
  void add(const Plan& plan, const std::string& level, double share) {
    const report::TensorNames names = report::tensor_names(plan);
    const auto named = [&](std::string& path, const std::string& name) {
      if (path.empty()) path = name.empty() ? level : fmt::format("{}, {}", level, name);
    };
    const std::int32_t from = static_cast<std::int32_t>(whole_.instructions.size());
    const std::int32_t values = static_cast<std::int32_t>(whole_.values.size());
    if (plan.lanes.size() > whole_.lanes.size()) whole_.lanes = plan.lanes;
    for (Value value : plan.values) {
      if (value.maker) value.maker = value.maker + from;
      whole_.values.add(std::move(value));
    }
    const std::vector<BufferId> places = add_buffers(plan, from);
    for (std::size_t i = 0; i < places.size(); ++i)
      if (Buffer& buffer = whole_.buffers[places[i]]; !buffer.place.leaf)
        named(buffer.path, names.buffers[i]);
    for (Instruction instruction : plan.instructions) {
      named(instruction.path,
            names.instructions[whole_.instructions.size() - static_cast<std::size_t>(from)]);
      for (auto* operands : {&instruction.inputs, &instruction.outputs})
        for (Operand& operand : *operands) {
          operand.buffer = places[operand.buffer.index()];
          operand.value = operand.value + values;
        }
      if (instruction.workspace) instruction.workspace = places[instruction.workspace.index()];
      for (InstructionId& other : instruction.waits) other = other + from;
      whole_.instructions.add(std::move(instruction));
    }
    for (Decision decision : plan.decisions) {
      decision.computed_at = decision.computed_at + from;
      decision.recomputed_at = decision.recomputed_at + from;
      whole_.decisions.push_back(std::move(decision));
    }
    if (plan.live_peak > whole_.live_peak) {
      whole_.live_peak = plan.live_peak;
      whole_.peak_instruction = plan.peak_instruction + from;
    }
    whole_.predicted_ms += share * plan.predicted_ms;
    whole_.predicted_keep_all_ms += share * plan.predicted_keep_all_ms;
    whole_.made_in_ms += plan.made_in_ms;
    for (const Tier tier : {Tier::host, Tier::disk}) {
      const auto part = [&](Bytes bytes) {
        return Bytes{std::llround(share * static_cast<double>(bytes.count))};
      };
      whole_.moved[tier].fetched += part(plan.moved[tier].fetched);
      whole_.moved[tier].stored += part(plan.moved[tier].stored);
    }
    needs_arena(plan.arena());
  }

  // For a plan that runs at other times in the same arena: only its memory counts.
  void add_bytes_of(const Plan& plan) {
    needs_arena(plan.arena());
    for (const Buffer& buffer : plan.buffers)
      if (plan.persists(buffer)) add_staying(plan, buffer);
  }

  void add_state(const Variable& variable) {
    const Node& node = *variable.node();
    const auto home = homes_.find(node.id());
    const Tier tier = home == homes_.end() ? Tier::device : home->second;
    add_leaf({Leaf::Kind::variable, node.path(), variable.type(), {}, node.id(), tier},
             {.size = leaf_size(variable.type(), tier),
              .category = node.category(),
              .first = {},
              .last = {},
              .place = {},
              .path = node.path(),
              .op = node.op().name()});
  }

  Plan finish() {
    const InstructionId last(static_cast<int>(whole_.instructions.size()) - 1);
    for (Buffer& buffer : whole_.buffers) {
      const InstructionId at = whole_.peak_instruction;
      if (!buffer.in_arena()) {
        buffer.first = InstructionId(0), buffer.last = last;
        if (const Tier tier = whole_.tier_of(buffer); tier != Tier::device) {
          whole_.held[tier] += buffer.size;
          continue;
        }
        const Bytes bytes = Storage::reservation(whole_.device, buffer.size);
        whole_.persistent += bytes;
        whole_.at_peak[buffer.category] += bytes;
      } else if (buffer.first <= at && buffer.last >= at) {
        whole_.at_peak[buffer.category] += buffer.size;
      }
    }
    std::stable_sort(whole_.decisions.begin(), whole_.decisions.end(),
                     [](const Decision& a, const Decision& b) { return a.bytes > b.bytes; });
    whole_.peak = whole_.arena() + whole_.persistent;
    whole_.held[Tier::device] = whole_.peak;
    return std::move(whole_);
  }

 private:
  void needs_arena(Bytes bytes) {
    whole_.spaces[space_].size = std::max(whole_.spaces[space_].size, bytes);
  }

  // The new ids of the plan's buffers.
  std::vector<BufferId> add_buffers(const Plan& plan, std::int32_t from) {
    std::vector<BufferId> places;
    for (Buffer buffer : plan.buffers) {
      if (buffer.in_arena()) {
        buffer.first = buffer.first + from, buffer.last = buffer.last + from;
        buffer.place.space = space_;
        places.push_back(whole_.buffers.add(std::move(buffer)));
      } else {
        places.push_back(add_staying(plan, std::move(buffer)));
      }
    }
    return places;
  }

  // Variables and constants that several programs read count once; each program has its own
  // outputs.
  BufferId add_staying(const Plan& plan, Buffer buffer) {
    if (const LeafId leaf = buffer.place.leaf)
      return add_leaf(plan.leaves[leaf], std::move(buffer));
    buffer.place.output = outputs_++;
    return whole_.buffers.add(std::move(buffer));
  }

  BufferId add_leaf(Leaf leaf, Buffer buffer) {
    const auto found = staying_.find(leaf.node);
    if (found != staying_.end()) return found->second;
    const std::uint64_t node = leaf.node;
    buffer.place = {.space = {}, .leaf = whole_.leaves.add(std::move(leaf))};
    return staying_[node] = whole_.buffers.add(std::move(buffer));
  }

  const Homes& homes_;
  Plan whole_;
  SpaceId space_;
  std::unordered_map<std::uint64_t, BufferId> staying_;  // by Node::id
  int outputs_ = 0;
};

}  // namespace

Engine::WholePlan Engine::plan() {
  WholePlan whole;
  state_->settle_homes(config_.compile);
  Joining joining(state_->arena->device(), state_->homes);
  for (const auto& level : state_->levels) {
    const Plan& plan = level->plan(StepKind::update);
    whole.levels.push_back({level->name(), plan, level->runs_for_each()});
    joining.add(plan, level->name(), level->runs_for_each());
    if (level->accumulates()) joining.add_bytes_of(level->plan(StepKind::accumulate));
    level->trace_once();
  }
  // State that none of these updates reads or writes, such as snapshots.
  for (const auto& level : state_->levels)
    for (const Variable& variable : level->variables()) joining.add_state(variable);
  whole.together = joining.finish();
  whole.arena = whole.together.arena();
  whole.persistent = whole.together.persistent;
  whole.peak = whole.together.peak;
  return whole;
}

Bytes Engine::least_budget() {
  const auto least_with = [&](const Homes& homes) {
    Bytes least;
    for (const auto& level : state_->levels) {
      level->set_homes(homes);
      least = std::max(least, level->least_budget());
    }
    return least;
  };
  const OffloadOptions& offload = config_.compile.plan.offload;
  Bytes least = least_with({});
  if (offload.any()) least = std::min(least, least_with(most_homes(state_->levels, offload)));
  for (const auto& level : state_->levels) level->set_homes(state_->homes);
  return least;
}

ByTier<Bytes> Engine::held() const {
  ByTier<Bytes> held;
  for (const TierBlock* block : state_->blocks()) held[block->tier()] += block->held();
  held[Tier::device] = resident();
  return held;
}

Program::FileTraffic Engine::file_traffic() const {
  Program::FileTraffic traffic;
  for (const TierBlock* block : state_->blocks())
    if (const OffloadFile* file = block->file()) {
      const OffloadFile::Moved moved = file->moved();
      traffic.read += moved.read, traffic.written += moved.written;
      traffic.read_seconds += moved.read_seconds, traffic.write_seconds += moved.write_seconds;
    }
  return traffic;
}

std::set<TierBlock*> Engine::State::blocks() const {
  std::set<TierBlock*> all;
  for (const auto& level : levels)
    for (const Variable& variable : level->variables())
      if (variable.has_value())
        if (TierBlock* block = variable.node()->storage()->part().block) all.insert(block);
  return all;
}

Leaves Engine::leaves() const {
  Leaves all;
  std::unordered_set<const Node*> known;
  const auto add = [&](const std::shared_ptr<Node>& node) {
    if (known.insert(node.get()).second) all.push_back(node);
  };
  for (const auto& level : state_->levels) {
    level->each_program([&](const Program& program) {
      for (const auto& leaf : program.leaves()) add(leaf);
    });
    for (const Variable& variable : level->variables()) add(variable.node());
  }
  return all;
}

Bytes Engine::resident() const {
  const auto bytes_of = [](const Leaves& leaves) {
    Bytes total;
    for (const auto& leaf : leaves)
      if (leaf->storage()) total += leaf->storage()->resident();
    return total;
  };
  const Bytes arena = state_->arena->resident();
  Bytes total = arena + bytes_of(leaves());
  for (const auto& level : state_->levels)
    level->each_program([&](const Program& program) {
      total += program.resident() - arena - bytes_of(program.leaves());  // results
    });
  return total;
}

}  // namespace ebb::mlo
