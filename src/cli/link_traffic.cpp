#include "cli/link_traffic.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/ranks.h"
#include "plan/exchanges.h"

namespace ebb::cli {

void LinkTraffic::Waiter::add(const Waiter& other, double times) {
  calls += times * other.calls, exposed_ms += times * other.exposed_ms;
  if (other.longest_ms > longest_ms) longest_ms = other.longest_ms, longest_at = other.longest_at;
}

LinkTraffic link_traffic(const Plan& plan, const Rates& rates) {
  LinkTraffic traffic;
  for (const planning::Exchange& one : planning::exchanges_of(plan, rates)) {
    traffic.sent += one.use.sent, traffic.exchanges += one.use.exchanges, ++traffic.collectives;
    traffic.predicted_ms += one.link_ms, traffic.exposed_ms += one.exposed_ms;
    LinkTraffic::Kind& kind =
        traffic.kinds[std::string(plan.instructions[one.instruction].op->name())];
    kind.calls += 1.0, kind.sent += static_cast<double>(one.use.sent.count);
    kind.predicted_ms += one.link_ms, kind.exposed_ms += one.exposed_ms;
    if (one.exposed_ms <= 0.0) continue;
    // If nothing waits, the path is that of the collective.
    const Instruction& named = plan.instructions[one.waiter ? one.waiter : one.instruction];
    kind.waiters[one.waiter ? std::string(named.op->name()) : ""].add(
        {1.0, one.exposed_ms, one.exposed_ms, named.path});
  }
  return traffic;
}

namespace {

using Waiters = std::vector<std::pair<std::string, LinkTraffic::Waiter>>;

// Sorted by waiting time, longest first.
Waiters by_time(const LinkTraffic::Kind& kind) {
  Waiters all(kind.waiters.begin(), kind.waiters.end());
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return a.second.exposed_ms > b.second.exposed_ms;
  });
  return all;
}

nlohmann::ordered_json kind_fields(const LinkTraffic& link) {
  nlohmann::ordered_json kinds = nlohmann::ordered_json::object();
  for (const auto& [name, kind] : link.kinds) {
    nlohmann::ordered_json waiters = nlohmann::ordered_json::array();
    for (const auto& [op, waiter] : by_time(kind))
      waiters.push_back({{"op", op.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(op)},
                         {"calls", waiter.calls},
                         {"exposed_ms", waiter.exposed_ms},
                         {"longest_ms", waiter.longest_ms},
                         {"longest_at", waiter.longest_at}});
    kinds[name] = {{"calls", kind.calls},
                   {"bytes_sent", kind.sent},
                   {"predicted_ms", kind.predicted_ms},
                   {"exposed_ms", kind.exposed_ms},
                   {"waited_for_by", std::move(waiters)}};
  }
  return kinds;
}

}  // namespace

nlohmann::ordered_json link_fields(const PlanningOptions& options, const LinkTraffic& link) {
  const LeafBlocks blocks = LeafBlocks::of(rank_options(options));
  return {{"ranks", options.ranks},
          {"shard", std::stoi(options.shard)},
          {"leaves", blocks.leaves},
          {"leaves_per_rank", blocks.per_rank()},
          {"bytes_sent_per_rank", link.sent.count},
          {"collectives", link.collectives},
          {"exchanges", link.exchanges},
          {"predicted_link_ms", link.predicted_ms},
          {"exposed_link_ms", link.exposed_ms},
          {"by_collective", kind_fields(link)}};
}

std::string link_text(const PlanningOptions& options, const LinkTraffic& link, const Rates& rates) {
  const LeafBlocks blocks = LeafBlocks::of(rank_options(options));
  std::string text = fmt::format(
      "{} ranks, shard {}, {} leaves, {} of them on a rank; a rank sends {} a step in {} "
      "collectives, {:.2f} ms at {:.3g} GB/s and {:.3g} µs an exchange; computation waits for "
      "{:.2f} ms of it\n",
      options.ranks, options.shard, blocks.leaves, blocks.per_rank(), to_string(link.sent),
      link.collectives, link.predicted_ms, rates.ranks.bandwidth * 1e-9, rates.ranks.latency_us,
      link.exposed_ms);
  for (const auto& [name, kind] : link.kinds) {
    text += fmt::format("  {:<14} {:>6.4g} calls, {:>12}, {:>9.2f} ms, of which {:.2f} exposed\n",
                        name, kind.calls, to_string(Bytes{std::llround(kind.sent)}),
                        kind.predicted_ms, kind.exposed_ms);
    for (const auto& [op, waiter] : by_time(kind)) {
      const std::string who = op.empty() ? "the next step" : op;
      const std::string at =
          waiter.longest_at.empty() ? "" : fmt::format(" at \"{}\"", waiter.longest_at);
      text += fmt::format("    {} waits for {:.4g}: {:.2f} ms, for one at most {:.2f}{}\n", who,
                          waiter.calls, waiter.exposed_ms, waiter.longest_ms, at);
    }
  }
  return text;
}

}  // namespace ebb::cli
