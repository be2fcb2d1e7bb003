#pragma once

#include "ebb/workloads/multilevel.h"
#include "ebb/workloads/workload.h"

namespace ebb::workloads {

// Whether each byte of Options::data is a token.
bool read_as_bytes(const Options& options);

// How many of `count` items are held out for testing: a tenth, at least 1 and at most 2000. Throws
// an error that names `source` if nothing would be left to train on.
std::int64_t held_out(std::int64_t count, const std::string& source);

// Throws an error if a part has fewer items than needed.
void require_items(const DataPart& part, std::int64_t needed, const std::string& what_for);

// Copies the options that are used as given: all except sizes, which have defaults per workload.
void add_asked(const Options& asked, Options& used);

std::unique_ptr<Workload> make_lm(const Options& options);
std::unique_ptr<Workload> make_gpt2(const Options& options);
std::unique_ptr<Workload> make_llama(const Options& options);
std::unique_ptr<Workload> make_bert(const Options& options);
std::unique_ptr<Workload> make_folder(const Options& options);  // from Options::model
std::unique_ptr<Workload> make_resnet(const Options& options);
std::unique_ptr<Workload> make_mlp(const Options& options);
std::unique_ptr<MultilevelWorkload> make_reweight(const MultilevelOptions& options);

}  // namespace ebb::workloads
