#pragma once

#include "ebb/workloads/multilevel.h"
#include "ebb/workloads/workload.h"

namespace ebb::workloads {

// Whether text in this file is taken byte by byte.
bool read_as_bytes(const std::filesystem::path& file);

// Items of `count` that are held out for testing: the last tenth, at least one and at most 2000.
// An error that names `source` where nothing is left to train on.
std::int64_t held_out(std::int64_t count, const std::string& source);

// An error where a part has fewer items than are needed.
void require_items(const DataPart& part, std::int64_t needed, const std::string& what_for);

// Adds what is used as it is asked for: all but sizes, which have defaults of their own.
void add_asked(const Options& asked, Options& used);

std::unique_ptr<Workload> make_lm(const Options& options);
std::unique_ptr<Workload> make_gpt2(const Options& options);
std::unique_ptr<Workload> make_llama(const Options& options);
std::unique_ptr<Workload> make_bert(const Options& options);
std::unique_ptr<Workload> make_resnet(const Options& options);
std::unique_ptr<Workload> make_mlp(const Options& options);
std::unique_ptr<MultilevelWorkload> make_reweight(const MultilevelOptions& options);

}  // namespace ebb::workloads
