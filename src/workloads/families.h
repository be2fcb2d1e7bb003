#pragma once

#include "ebb/workloads/multilevel.h"
#include "ebb/workloads/workload.h"

namespace ebb::workloads {

std::unique_ptr<Workload> make_lm(const Options& options);
std::unique_ptr<Workload> make_gpt2(const Options& options);
std::unique_ptr<Workload> make_llama(const Options& options);
std::unique_ptr<Workload> make_bert(const Options& options);
std::unique_ptr<Workload> make_resnet(const Options& options);
std::unique_ptr<Workload> make_mlp(const Options& options);
std::unique_ptr<MultilevelWorkload> make_reweight(const MultilevelOptions& options);

}  // namespace ebb::workloads
