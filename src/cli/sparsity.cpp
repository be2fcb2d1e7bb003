#include "cli/sparsity.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <array>

#include "cli/accepted_by.h"
#include "cli/member_of.h"
#include "cli/numbers.h"
#include "cli/verb.h"
#include "ebb/error.h"

namespace ebb::cli {
namespace {

constexpr const char* sparsity_group = "Pruning";

using workloads::SparsityOptions;

// A usage error if any of them is given.
void refuse_all(const std::string& why, std::initializer_list<std::pair<bool, const char*>> given) {
  for (const auto& [is_given, option] : given)
    if (is_given) throw UsageError(fmt::format("{} {}", option, why));
}

}  // namespace

void add_sparsity_options(CLI::App& app, SparsityOptions& options) {
  app.add_option("--sparsity", options.share,
                 "Share of zeros in every weight of a product or convolution, with masks of one "
                 "bit a weight that are learned; embeddings and the output layer of language "
                 "models stay dense; default: none")
      ->check(FiniteNumber::between(0.0, 1.0))
      ->type_name("SHARE")
      ->group(sparsity_group);
  app.add_option("--sparsity-pattern", options.pattern,
                 "Instead of --sparsity: keep N of every M weights along the inputs")
      ->check(accepted_by([](const std::string& text) { pattern_named(text); }))
      ->type_name("N:M")
      ->excludes("--sparsity")
      ->group(sparsity_group);
  app.add_option(
         "--sparsity-method", options.method,
         "Which weights become zero: magnitude (the smallest; the default), movement (those "
         "that training moves towards zero) or rigl (random at first, then exchanged)")
      ->check(member_of({"magnitude", "movement", "rigl"}))
      ->group(sparsity_group);
  app.add_option("--sparsity-schedule", options.schedule,
                 "cubic: gradually until --sparsity-until (the default, except for rigl); "
                 "constant: all at once after --sparsity-from steps")
      ->check(member_of({"cubic", "constant"}))
      ->group(sparsity_group);
  app.add_option("--sparsity-from", options.from,
                 "Steps before the first weight becomes zero; default: 0")
      ->check(WholeNumber(0))
      ->type_name("N")
      ->group(sparsity_group);
  app.add_option("--sparsity-until", options.until,
                 "Steps after which masks do not change any more")
      ->check(WholeNumber(1))
      ->type_name("N")
      ->group(sparsity_group);
  app.add_option("--sparsity-every", options.every,
                 "Steps from one change of masks to the next; default: 100")
      ->check(WholeNumber(1))
      ->type_name("N")
      ->group(sparsity_group);
}

void add_masks_option(CLI::App& app, SparsityOptions& options) {
  app.add_option("--sparsity-masks", options.masks,
                 "Use the masks of the checkpoint in this folder and do not change them (a lottery "
                 "ticket); the weights are this run's own")
      ->type_name("DIR")
      ->check(CLI::ExistingDirectory)
      ->excludes("--sparsity")
      ->excludes("--sparsity-pattern")
      ->group(sparsity_group);
}

std::optional<SparseTraining> sparse_training(const SparsityOptions& o) {
  const bool wanted = o.share || o.pattern;
  if (!wanted)
    refuse_all(o.masks ? "decides how masks change, but --sparsity-masks keeps them: leave it out"
                       : "needs --sparsity SHARE or --sparsity-pattern N:M",
               {{o.method.has_value(), "--sparsity-method"},
                {o.schedule.has_value(), "--sparsity-schedule"},
                {o.from.has_value(), "--sparsity-from"},
                {o.until.has_value(), "--sparsity-until"},
                {o.every.has_value(), "--sparsity-every"}});
  if (wanted && o.masks)
    throw UsageError("--sparsity-masks keeps the masks of another run: leave out --sparsity");
  SparseTraining sparse;
  if (o.masks) {
    sparse.method = MaskMethod::fixed, sparse.schedule = MaskSchedule::constant;
    return sparse;
  }
  if (!wanted) return {};
  sparse.method = mask_method_named(o.method.value_or("magnitude"));
  const bool grows = sparse.method == MaskMethod::rigl;
  sparse.schedule = mask_schedule_named(o.schedule.value_or(grows ? "constant" : "cubic"));
  sparse.sparsity = o.share.value_or(0.0);
  if (o.pattern) sparse.pattern = pattern_named(*o.pattern);
  const bool changes = grows || sparse.schedule == MaskSchedule::cubic;
  if (changes && !o.until)
    throw UsageError(
        fmt::format("--sparsity with {} needs --sparsity-until N: the steps after which masks do "
                    "not change any more",
                    grows ? "rigl" : "a cubic schedule"));
  if (!changes)
    refuse_all(
        "has no effect: a constant schedule changes masks once",
        {{o.until.has_value(), "--sparsity-until"}, {o.every.has_value(), "--sparsity-every"}});
  sparse.from = o.from.value_or(0), sparse.until = o.until.value_or(0);
  sparse.every = o.every.value_or(sparse.every);
  try {
    sparse.check();
  } catch (const ValueError& error) {
    throw UsageError(fmt::format("--sparsity: {}", error.what()));
  }
  return sparse;
}

std::span<const char* const> sparsity_option_names() {
  static constexpr std::array names{"sparsity",          "sparsity-pattern", "sparsity-method",
                                    "sparsity-schedule", "sparsity-from",    "sparsity-until",
                                    "sparsity-every",    "sparsity-masks"};
  return names;
}

}  // namespace ebb::cli
