#include "ebb/report/timeline.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "core/json.h"
#include "ebb/report/memory_profile.h"
#include "ebb/storage.h"
#include "report/lane_times.h"
#include "report/tensor_names.h"

namespace ebb::report {
namespace {

using Json = nlohmann::ordered_json;

// Microseconds are enough for a picture.
double to_microseconds(double ms) { return std::round(ms * 1e3) / 1e3; }

class Names {
 public:
  int operator()(std::string_view name) {
    const auto [at, is_new] = numbers_.try_emplace(std::string(name), numbers_.size());
    if (is_new) names_.emplace_back(name);
    return static_cast<int>(at->second);
  }
  const std::vector<std::string>& all() const { return names_; }

 private:
  std::map<std::string, std::size_t> numbers_;
  std::vector<std::string> names_;
};

Json categories() {
  Json names = Json::array();
  for (int c = 0; c < category_count; ++c) names.push_back(name(static_cast<Category>(c)));
  return names;
}

Json bytes_of(const CategoryBytes& bytes) {
  Json values = Json::array();
  for (const Bytes& value : bytes.values) values.push_back(value.count);
  return values;
}

enum Phase { forward, backward, update, again };
constexpr const char* phase_names[] = {"forward", "backward", "update", "computed again"};

bool writes_a_variable(const Plan& plan, const Instruction& instruction) {
  return std::any_of(instruction.outputs.begin(), instruction.outputs.end(), [&](const Operand& o) {
    return static_cast<bool>(plan.buffers[o.buffer].place.leaf);
  });
}

// For each instruction, the instructions that read its results.
std::vector<std::vector<std::size_t>> readers_of(const Plan& plan) {
  std::vector<std::vector<std::size_t>> readers(plan.instructions.size());
  for (const InstructionId i : plan.instructions.ids())
    for (const Operand& input : plan.instructions[i].inputs)
      if (const InstructionId maker = plan.values[input.value].maker)
        readers[maker.index()].push_back(i.index());
  return readers;
}

// The update phase: instructions that write a variable, and those that only such instructions read.
std::vector<Phase> phases_of(const Plan& plan) {
  const auto readers = readers_of(plan);
  std::vector<Phase> phases(plan.instructions.size());
  for (std::size_t i = phases.size(); i-- > 0;) {
    const Instruction& instruction = plan.instructions[InstructionId(i)];
    const bool serves_updates =
        !readers[i].empty() && std::all_of(readers[i].begin(), readers[i].end(),
                                           [&](std::size_t r) { return phases[r] == update; });
    if (instruction.recomputed)
      phases[i] = again;
    else if (instruction.marks.backward)
      phases[i] = backward;
    else
      phases[i] = serves_updates || writes_a_variable(plan, instruction) ? update : forward;
  }
  return phases;
}

Json buffers_of(const Plan& plan, const TensorNames& tensors, Names& names) {
  Json path = Json::array(), op = Json::array(), type = Json::array(), category = Json::array(),
       bytes = Json::array(), first = Json::array(), last = Json::array(), offset = Json::array();
  const int end = static_cast<int>(plan.instructions.size()) - 1;
  const std::vector<std::string> types = tensor_types(plan);
  for (const BufferId id : plan.buffers.ids()) {
    const Buffer& b = plan.buffers[id];
    if (plan.tier_of(b) != Tier::device) continue;
    const bool stays = !b.in_arena();
    if (!stays && b.last < b.first) continue;
    path.push_back(names(tensors.buffers[id.index()]));
    op.push_back(names(b.op));
    type.push_back(names(types[id.index()]));
    category.push_back(static_cast<int>(b.category));
    bytes.push_back(stays ? Storage::reservation(plan.device, b.size).count : b.size.count);
    first.push_back(stays ? 0 : b.first.number());
    last.push_back(stays ? end : b.last.number());
    offset.push_back(stays ? -1 : b.place.offset.count);
  }
  return {{"path", path},   {"op", op},       {"type", type}, {"category", category},
          {"bytes", bytes}, {"first", first}, {"last", last}, {"offset", offset}};
}

constexpr const char* lane_names[] = {"compute", "beside", "store", "fetch"};

// Lanes and times of the instructions, for plans with more than one lane.
void add_lanes(const Plan& plan, std::span<const double> measured_ms, Json& result) {
  if (plan.lanes.size() < 2) return;
  Json lane = Json::array(), start = Json::array(), clock = Json::array();
  const std::vector<double> predicted = predicted_times(plan);
  const LaneTimes times =
      lane_times(plan, measured_ms.empty() ? std::span<const double>(predicted) : measured_ms);
  for (const InstructionId i : plan.instructions.ids()) {
    lane.push_back(static_cast<int>(plan.lanes[plan.instructions[i].lane].kind));
    start.push_back(to_microseconds(times.start[i.index()]));
    clock.push_back(to_microseconds(times.clock[i.index()]));
  }
  result["lanes"] = lane_names;
  result["instructions"]["lane"] = lane;
  result["instructions"]["start_ms"] = start;
  result["instructions"]["clock_ms"] = clock;
  result["end_ms"] = to_microseconds(times.end);
}

// Bytes in a tier at every instruction: the variables there, and results of the step.
Json live_bytes(const Plan& plan, Tier tier) {
  const std::size_t count = plan.instructions.size();
  std::vector<std::int64_t> change(count + 1);
  for (const Buffer& b : plan.buffers) {
    if (plan.tier_of(b) != tier) continue;
    const bool stays = !b.place.space;
    if (!stays && b.last < b.first) continue;
    change[stays ? 0 : b.first.index()] += b.size.count;
    change[stays ? count : b.last.index() + 1] -= b.size.count;
  }
  Json live = Json::array();
  std::int64_t now = 0;
  for (std::size_t i = 0; i < count; ++i) live.push_back(now += change[i]);
  return live;
}

// The other tiers that the plan uses, and every copy to and from them.
void add_tiers(const Plan& plan, Json& result) {
  Json tiers = Json::array(), instruction = Json::array(), bytes = Json::array();
  for (const Tier tier : {Tier::host, Tier::disk})
    if (plan.held[tier] > 0_B)
      tiers.push_back({{"name", name(tier)},
                       {"held_bytes", plan.held[tier].count},
                       {"fetched_bytes", plan.moved[tier].fetched.count},
                       {"stored_bytes", plan.moved[tier].stored.count},
                       {"live", live_bytes(plan, tier)}});
  if (tiers.empty()) return;
  for (const InstructionId i : plan.instructions.ids()) {
    const Lane::Kind kind = plan.lanes[plan.instructions[i].lane].kind;
    if (kind != Lane::Kind::store && kind != Lane::Kind::fetch) continue;
    instruction.push_back(i.number());
    bytes.push_back(plan.instructions[i].outputs.front().type.bytes().count);
  }
  result["tiers"] = tiers;
  result["copies"] = {{"instruction", instruction}, {"bytes", bytes}};
}

}  // namespace

std::string timeline_json(const Plan& plan, const SourceLines& sources,
                          std::span<const double> measured_ms) {
  const MemoryProfile memory = profile(plan);
  const std::vector<Phase> phases = phases_of(plan);
  const TensorNames tensors = tensor_names(plan);
  Names names;
  Json op = Json::array(), path = Json::array(), phase = Json::array(), ms = Json::array(),
       measured = Json::array();
  for (std::size_t k = 0; k < plan.instructions.size(); ++k) {
    const Instruction& i = plan.instructions[InstructionId(k)];
    op.push_back(names(i.op->name()));
    path.push_back(names(tensors.instructions[k]));
    phase.push_back(static_cast<int>(phases[k]));
    ms.push_back(to_microseconds(i.predicted_ms));
  }
  for (double time : measured_ms) measured.push_back(to_microseconds(time));
  Json decisions = Json::array(), modules = Json::array();
  for (const DecisionGroup& d : memory.decisions)
    decisions.push_back({{"path", d.path},
                         {"op", d.op},
                         {"count", d.count},
                         {"bytes", d.bytes.count},
                         {"ms", to_microseconds(d.ms)}});
  for (const ModuleBytes& m : memory.modules)
    modules.push_back({{"path", m.path}, {"bytes", bytes_of(m.bytes)}});
  Json result{
      {"peak_bytes", plan.peak.count},
      {"arena_bytes", plan.arena().count},
      {"peak_instruction", plan.peak_instruction.number()},
      {"categories", categories()},
      {"phases", phase_names},
      {"instructions",
       {{"op", op}, {"path", path}, {"phase", phase}, {"ms", ms}, {"measured_ms", measured}}},
      {"buffers", buffers_of(plan, tensors, names)},
      {"decisions", decisions},
      {"modules", modules}};
  if (auto lines = sources.by_path(); !lines.empty()) result["sources"] = std::move(lines);
  add_lanes(plan, measured_ms, result);
  add_tiers(plan, result);
  result["names"] = names.all();
  return json_text(result);
}

std::string chrome_trace(const Plan& plan, std::span<const double> measured_ms) {
  const MemoryProfile memory = profile(plan);
  const std::vector<Phase> phases = phases_of(plan);
  Json events = Json::array();
  const auto describe = [&](const char* what, int track, const std::string& text) {
    events.push_back(
        {{"ph", "M"}, {"name", what}, {"pid", 1}, {"tid", track}, {"args", {{"name", text}}}});
  };
  describe("process_name", 0,
           measured_ms.empty() ? "ebb step, predicted times" : "ebb step, measured times");
  for (int p = forward; p <= again; ++p) describe("thread_name", p, phase_names[p]);
  double at = 0.0;  // microseconds
  for (std::size_t i = 0; i < plan.instructions.size(); ++i) {
    const Instruction& instruction = plan.instructions[InstructionId(i)];
    const double us = 1e3 * (measured_ms.empty() ? instruction.predicted_ms : measured_ms[i]);
    Json live;
    for (int c = 0; c < category_count; ++c)
      live[std::string(name(static_cast<Category>(c)))] =
          memory.live[i][static_cast<Category>(c)].count;
    events.push_back({{"ph", "C"},
                      {"name", "live bytes"},
                      {"pid", 1},
                      {"ts", to_microseconds(at)},
                      {"args", live}});
    events.push_back({{"ph", "X"},
                      {"name", instruction.op->name()},
                      {"cat", phase_names[phases[i]]},
                      {"pid", 1},
                      {"tid", static_cast<int>(phases[i])},
                      {"ts", to_microseconds(at)},
                      {"dur", to_microseconds(us)},
                      {"args",
                       {{"module", instruction.path},
                        {"instruction", i},
                        {"predicted_ms", to_microseconds(instruction.predicted_ms)}}}});
    at += us;
  }
  return json_text(Json{{"displayTimeUnit", "ms"}, {"traceEvents", events}});
}

}  // namespace ebb::report
