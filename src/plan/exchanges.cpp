#include "plan/exchanges.h"

#include <algorithm>

namespace ebb::planning {
namespace {

// A time in which the lane of the computation is idle, and the instruction that ends it; no
// instruction at the end of the step.
struct Idle {
  double from, to;
  InstructionId waiter;
};

struct Timeline {
  std::vector<double> ends;  // by instruction, ms
  std::vector<Idle> idle;
  double last = 0.0;
};

// Times of the lanes, which wait for each other as planned. Instructions take `ms`, of which
// `link_ms` are on the link. The second lane takes time from the first for the part of its
// instructions that uses the device: everything except the time on the link.
Timeline timeline_of(const Plan& plan, const std::vector<double>& ms,
                     const std::vector<double>& link_ms) {
  Timeline times;
  std::vector<double> free_at(plan.lanes.size());
  for (const InstructionId i : plan.instructions.ids()) {
    const Instruction& instruction = plan.instructions[i];
    double& own = free_at[instruction.lane.index()];
    double start = own;
    for (const InstructionId other : instruction.waits)
      start = std::max(start, times.ends[other.index()]);
    if (instruction.lane == LaneId(0) && start > own) times.idle.push_back({own, start, i});
    own = start + ms[i.index()];
    times.ends.push_back(own);
    if (plan.runs_beside(instruction)) free_at[0] += ms[i.index()] - link_ms[i.index()];
  }
  times.last = *std::max_element(free_at.begin(), free_at.end());
  if (times.last > free_at[0]) times.idle.push_back({free_at[0], times.last, {}});
  return times;
}

// The first later instruction that reads the result of this one. own_range does not count its
// second input, which only delays it.
InstructionId first_reader(const Plan& plan, InstructionId maker) {
  const auto& made = plan.instructions[maker].outputs;
  const auto is_made = [&](const Operand& input) {
    return std::any_of(made.begin(), made.end(),
                       [&](const Operand& output) { return output.buffer == input.buffer; });
  };
  for (InstructionId i = maker + 1; i.index() < plan.instructions.size(); ++i) {
    const Instruction& later = plan.instructions[i];
    const auto end = later.op == &own_range_op() ? later.inputs.begin() + 1 : later.inputs.end();
    if (std::any_of(later.inputs.begin(), end, is_made)) return i;
  }
  return {};
}

std::vector<Exchange> on_the_link(const Plan& plan, const Rates& rates) {
  std::vector<Exchange> all;
  for (const InstructionId i : plan.instructions.ids()) {
    const Instruction& instruction = plan.instructions[i];
    if (!is_collective(*instruction.op)) continue;
    std::vector<TensorType> inputs, outputs;
    for (const Operand& o : instruction.inputs) inputs.push_back(o.type);
    for (const Operand& o : instruction.outputs) outputs.push_back(o.type);
    const LinkUse use =
        link_use(*instruction.op, inputs, outputs,
                 instruction.attributes.as<CollectiveAttributes>(), plan.device.kind);
    if (use.exchanges > 0)
      all.push_back({i, use, rates.exchange_ms(use.sent, use.exchanges), 0.0, {}});
  }
  return all;
}

// A plan's times with the link as it is, and with a link that takes no time.
struct Both {
  Timeline with, without;
};

Both timelines_of(const Plan& plan, const std::vector<Exchange>& exchanges) {
  const std::vector<double> none(plan.instructions.size());
  std::vector<double> ms, link_ms = none;
  for (const Instruction& instruction : plan.instructions) ms.push_back(instruction.predicted_ms);
  for (const Exchange& one : exchanges)
    link_ms[one.instruction.index()] = std::min(one.link_ms, ms[one.instruction.index()]);
  Both times{timeline_of(plan, ms, link_ms), {}};
  for (std::size_t i = 0; i < ms.size(); ++i) ms[i] -= link_ms[i];
  times.without = timeline_of(plan, ms, none);
  return times;
}

// Whether it runs beside the computation.
bool is_beside(const Plan& plan, const Exchange& one) {
  return plan.instructions[one.instruction].lane != LaneId(0);
}

// Attributes to exchanges beside the computation the time in which the computation is idle while
// they are on the link. Returns the sum.
double share_idle_time(const Plan& plan, const Timeline& times, std::vector<Exchange>& all) {
  double sum = 0.0;
  for (Exchange& one : all) {
    if (!is_beside(plan, one)) continue;
    const double end = times.ends[one.instruction.index()], begin = end - one.link_ms;
    double longest = 0.0;
    for (const Idle& idle : times.idle) {
      const double ms = std::min(end, idle.to) - std::max(begin, idle.from);
      if (ms <= 0.0) continue;
      one.exposed_ms += ms;
      if (ms > longest) longest = ms, one.waiter = idle.waiter;
    }
    sum += one.exposed_ms;
  }
  return sum;
}

}  // namespace

std::vector<Exchange> exchanges_of(const Plan& plan, const Rates& rates) {
  std::vector<Exchange> all = on_the_link(plan, rates);
  if (all.empty()) return all;
  const Both times = timelines_of(plan, all);
  double beside_ms = times.with.last - times.without.last;  // of the exchanges in other lanes
  for (Exchange& one : all) {
    if (is_beside(plan, one)) continue;
    one.exposed_ms = one.link_ms;
    one.waiter = first_reader(plan, one.instruction);
    beside_ms -= one.link_ms;
  }
  beside_ms = std::max(0.0, beside_ms);
  // Idle time also has other reasons, and at the end of a step other instructions may follow the
  // last exchange. So the exposed times are scaled to sum to the time by which exchanges make the
  // step longer.
  const double shared = share_idle_time(plan, times.with, all);
  const double scale = shared > beside_ms ? beside_ms / shared : 1.0;
  double rest = std::max(0.0, beside_ms - shared);
  for (auto one = all.rbegin(); one != all.rend(); ++one) {
    if (!is_beside(plan, *one)) continue;
    const double more = std::min(rest, one->link_ms - one->exposed_ms);
    one->exposed_ms = scale * one->exposed_ms + more;
    rest -= more;
  }
  return all;
}

void hide_exchanges(Plan& plan, const Rates& rates) {
  const std::vector<Exchange> all = on_the_link(plan, rates);
  if (std::none_of(all.begin(), all.end(), [&](const Exchange& e) { return is_beside(plan, e); }))
    return;
  const double hidden_ms = std::max(0.0, plan.predicted_ms - timelines_of(plan, all).with.last);
  plan.predicted_ms -= hidden_ms;
  plan.predicted_keep_all_ms -= hidden_ms;
}

}  // namespace ebb::planning
