// Options of one level of a multilevel problem. Names and defaults are Betty's where Betty has
// them. docs/multilevel.md says what each does.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "ebb/bytes.h"
#include "ebb/parameter_form.h"
#include "ebb/precision.h"
#include "ebb/recompute.h"

namespace ebb::mlo {

// How levels above differentiate through the best response of a level.
enum class Method : std::uint8_t {
  darts,      // inverse Hessian replaced by the identity, mixed derivative by finite differences
  sama,       // the same, preconditioned by the level's optimizer
  neumann,    // the inverse Hessian by a Neumann series
  cg,         // the inverse Hessian by conjugate gradients
  reinforce,  // for losses that sample: score-function estimator with a baseline
  unrolled,   // through the last `unroll_steps` updates of the level
};
std::string_view name(Method method);
std::vector<std::string_view> method_names();
Method method_by_name(std::string_view name);  // an unknown name is an error that lists the known

struct Config {
  Method type = Method::darts;    // how levels above differentiate through this one
  std::int64_t unroll_steps = 1;  // updates of this level for each step of the levels above
  bool first_order =
      true;  // hypergradients use the loss of a level below, not its own hypergradients

  std::int64_t gradient_accumulation = 1;  // local steps, each with a batch, for one update
  double gradient_clipping = 0.0;          // global norm to clip gradients to; 0: no clipping
  std::int64_t warmup_steps = 0;           // local steps before levels above begin

  // The precision in which the level's loss is computed, in the programs of all levels. pure_bf16
  // and split_bf16 exclude methods that take differences of parameters or differentiate updates.
  Precision precision = Precision::fp32;
  // How bfloat16 parameters are stored; without a value, as TrainOptions::form.
  std::optional<ParameterForm> form = {};
  double initial_dynamic_scale = 4096.0;  // initial loss scale in float16
  double scale_factor = 2.0;  // factor by which the loss scale grows, and shrinks after an overflow

  std::int64_t log_step = -1;   // local steps between two records of the log; below 1: none
  bool log_local_step = false;  // records carry the local step instead of the engine's

  double darts_alpha = 0.01;     // norm of the difference in parameters
  double sama_adam_alpha = 1.0;  // the same
  std::int64_t neumann_iterations = 1;
  double neumann_alpha = 1.0;
  std::int64_t cg_iterations = 1;
  double cg_alpha = 1.0;
  double reinforce_alpha = 0.01;  // as darts_alpha
  double reinforce_baseline_decay =
      0.99;  // of the running mean of the reward, which is the baseline

  Recompute recompute = {};  // of the level's programs
  std::optional<Bytes> budget =
      {};  // for all memory in use while the level runs: arena and all variables
};

// Throws a ValueError that names `problem` for invalid values.
void check(const Config& config, std::string_view problem);
// The same, for a level that others differentiate through.
void check_below_others(const Config& config, std::string_view problem);

}  // namespace ebb::mlo
