#include "ebb/workloads/workload.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ebb/error.h"
#include "workloads/families.h"

namespace ebb::workloads {
namespace {

struct Row {
  const char* name;
  std::unique_ptr<Workload> (*make)(const Options&);
};

constexpr Row rows[] = {{"lm", make_lm},       {"gpt2", make_gpt2},     {"bert", make_bert},
                        {"llama", make_llama}, {"resnet", make_resnet}, {"mlp", make_mlp}};

}  // namespace

std::vector<std::string> workload_names() {
  std::vector<std::string> names;
  for (const Row& row : rows) names.emplace_back(row.name);
  return names;
}

std::unique_ptr<Workload> make_workload(const Options& options) {
  for (const Row& row : rows)
    if (options.name == row.name) return row.make(options);
  throw ValueError(fmt::format("there is no workload \"{}\"; there are: {}", options.name,
                               fmt::join(workload_names(), ", ")));
}

data::LoaderOptions training_loader(std::int64_t batch, std::uint64_t seed, Device device) {
  data::LoaderOptions options{.batch = batch, .seed = seed, .last = data::LastBatch::drop};
  if (device.kind == Device::Kind::cuda) options.workers = options.prefetch = 4;
  return options;
}

}  // namespace ebb::workloads
