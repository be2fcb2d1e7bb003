// The smallest files that `ebb train --log` and `ebb ablate` leave, and settings of generation.
#pragma once

#include <string_view>

namespace ebb::fuzz {

inline constexpr std::string_view
    small_log = R"({"step":0,"tag":"begin","text":"a run"}
{"step":1,"tag":"loss","value":2.5}
)",
    small_run = R"({"command":"ebb train","workload":"lm","params":12,"planned_peak_bytes":640,
"eval_loss":2.5,"eval_accuracy_by_class":[0.5,1],"options":{"lr":0.1,"levels":{"classifier":
{"optimizer.rule":"sgd","lr":0.1}}},"log":"a run"})",
    // The second row failed.
    small_results = R"({"format":"ebb ablation 1","settings":{"workload":"lm"},"rows":[
{"name":"baseline","techniques":[],"planned_peak_bytes":640,"measured_peak_bytes":700,
"planned_by_category":{"weights":64,"gradients":64,"optimizer":128,"activations":256,"inputs":64,
"workspace":64},"planned_arena_bytes":512,"measured_staying_by_category":{"weights":64,"gradients":0,
"optimizer":128,"activations":0,"inputs":0,"workspace":0},"measured_transient_bytes":508,
"step_ms":{"median":1.5,"low":1,"high":2,"runs":[1,2]},"predicted_step_ms":1.25,"overhead":1,
"plan_ms":0.5,"instructions":9,"recomputed_nodes":0,"budget_bytes":1024,"loss":2,
"losses":[2.5,null]},{"name":"bf16","techniques":["bf16"],"error":"x"}]})",
    small_timelines = R"({"baseline":{"buffers":[]}})",
    small_generation = R"({"eos_token_id":[1,2],"do_sample":true,"num_beams":4,"min_p":0.1})";

}  // namespace ebb::fuzz
