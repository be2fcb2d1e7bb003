#include "cli/one_shot.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "cli/finite_loss.h"
#include "cli/memory_check.h"
#include "cli/planning.h"
#include "cli/process_memory.h"
#include "cli/verb.h"
#include "ebb/error.h"
#include "ebb/prune/gptq.h"
#include "prune/folder_store.h"

namespace ebb::cli {
namespace {

// Memory of the process before and beside the walk.
Bytes fixed_cost(Bytes budget) {
  PlanningOptions planning;
  planning.budget = std::to_string(budget.count), planning.whole_process = true;
  return measure_fixed_cost(planning, {});
}

}  // namespace

int OneShot::run(const std::vector<Batch>& batches, const std::vector<TensorType>& types,
                 nlohmann::ordered_json& result) const {
  prune::WalkOptions walk;
  walk.folder = save, walk.losses = !batches.empty();
  if (budget) {
    return_large_blocks_at_once();
    walk.budget = budget, walk.fixed = fixed_cost(*budget);
  } else if (const auto available = available_memory(device::cpu); available && !overcommit) {
    walk.budget = available;
  }
  io::FolderWriter writer(form, save);
  prune::FolderStore store(weights, model.dtype(), writer);
  walk.store = &store;
  const auto take = [&](const std::string& path, const std::vector<std::uint8_t>& bytes) {
    if (!writer.form(path).packed)
      throw ValueError("it is not the weight of a linear layer that can be packed");
    writer.write(path, std::as_bytes(std::span(bytes)));
  };
  prune::WalkReport report;
  try {
    if (bits) {
      const auto done = prune::pack_blocks(model, loss, batches, *bits, take, {}, walk);
      result["method"] = "gptq";
      result["bits"] = ebb::name(*bits);
      result["matrices"] = done.matrices, result["weights"] = done.weights;
      report = done.walk;
    } else {
      const auto done =
          prune::prune_weights(model, loss, batches, types, method, sparsity, {}, walk);
      result["method"] = prune::name(method);
      if (sparsity.pattern)
        result["pattern"] = fmt::format("{}:{}", sparsity.pattern->kept, sparsity.pattern->of);
      else
        result["sparsity"] = sparsity.share;
      result["matrices"] = done.matrices, result["weights"] = done.weights;
      result["zeros"] = done.zeros;
      report = done.walk;
    }
  } catch (const MemoryError& error) {
    if (budget) throw;
    throw MemoryError(fmt::format(
        "the available memory is too small: {}; --overcommit starts anyway", error.what()));
  } catch (const ValueError& error) {  // may name the first matrix that meets such a value
    const auto weight = non_finite_weight(model, weights);
    const std::string text = error.what();
    if (weight && !text.starts_with(*weight))
      throw ValueError(
          fmt::format("{}; \"{}\" of {} is not finite", text, *weight, folder.string()));
    throw;
  }
  for (const auto& of : {report.loss_before, report.loss_after})
    if (of) require_finite_loss(*of, folder, [&] { return non_finite_weight(model, weights); });
  writer.commit();
  if (report.loss_before)
    result["loss"] = {{"before", *report.loss_before}, {"after", *report.loss_after}};
  if (!budget) return success;
  const Kept kept{budget, process_peak(), true};
  result["budget_bytes"] = budget->count;
  result["planned_peak_bytes"] = report.planned.count;
  result["process_peak_bytes"] = kept.taken.count;
  result["values_in_file"] = report.values_in_file;
  result["one_input_at_a_time"] = report.one_input_at_a_time;
  return kept.report();
}

}  // namespace ebb::cli
