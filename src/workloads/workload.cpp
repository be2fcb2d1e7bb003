#include "ebb/workloads/workload.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "ebb/error.h"
#include "ebb/io/adapter.h"
#include "ebb/nn/adapt.h"
#include "ebb/workloads/settings.h"
#include "workloads/families.h"

namespace ebb::workloads {
namespace {

struct WorkloadRow {
  const char* name;
  std::unique_ptr<Workload> (*make)(const Options&);
};

constexpr WorkloadRow workload_rows[] = {{"lm", make_lm},
                                         {"gpt2", make_gpt2},
                                         {"bert", make_bert},
                                         {"llama", make_llama},
                                         {"resnet", make_resnet},
                                         {"mlp", make_mlp},
                                         {folder_workload, make_folder}};

// The adapters that options ask for, if any.
std::optional<nn::LoraOptions> lora_of(const Options& o) {
  if (!o.lora) return {};
  return nn::LoraOptions{.rank = *o.lora,
                         .alpha = o.lora_alpha.value_or(2.0 * static_cast<double>(*o.lora)),
                         .dropout = o.lora_dropout.value_or(0.0)};
}

// To be called before the model has any bytes, so that weights are packed one by one.
void adapt_model(const Options& o, nn::ModuleBase& model) {
  if (!o.lora && !o.adapter) return;
  nn::AdaptOptions how{.lora = lora_of(o), .modules = o.lora_modules};
  if (o.base) how.base = nn::weight_form_by_name(*o.base);
  nn::adapt(model, how);
  if (o.adapter) io::load_adapter(*o.adapter, model);
}

}  // namespace

std::vector<std::string> workload_names() {
  std::vector<std::string> names;
  for (const WorkloadRow& row : workload_rows)
    if (row.make != make_folder) names.emplace_back(row.name);
  return names;
}

std::string to_string(const DataPart& part) {
  return fmt::format("{} items{} of {}", part.items,
                     part.tokens ? fmt::format(" ({} tokens)", *part.tokens) : "", part.source);
}

std::int64_t held_out(std::int64_t count, const std::string& source) {
  constexpr std::int64_t most = 2000;
  if (count < 2)
    throw ValueError(fmt::format(
        "{}: one item to train on and another to test with are needed, but there are {}", source,
        count));
  return std::clamp<std::int64_t>(count / 10, 1, most);
}

void require_items(const DataPart& part, std::int64_t needed, const std::string& what_for) {
  if (part.items < needed)
    throw ValueError(fmt::format("{} {} needed for {}, but there {} {}", needed,
                                 needed == 1 ? "item is" : "items are", what_for,
                                 part.items == 1 ? "is" : "are", to_string(part)));
}

void add_asked(const Options& asked, Options& used) {
  used.name = asked.name, used.data = asked.data, used.seed = asked.seed;
  used.model = asked.model, used.pack = asked.pack;
  used.lora = asked.lora, used.lora_modules = asked.lora_modules, used.adapter = asked.adapter;
  used.base = asked.base, used.merge = asked.merge;
  if (const auto lora = lora_of(asked))
    used.lora_alpha = lora->alpha, used.lora_dropout = lora->dropout;
  used.device = asked.device, used.dtype = asked.dtype, used.fused_loss = asked.fused_loss;
}

std::unique_ptr<Workload> make_workload(const Options& options) {
  for (const WorkloadRow& row : workload_rows) {
    if (options.name != row.name) continue;
    if (options.model.has_value() != (options.name == folder_workload))
      throw ValueError(fmt::format(
          "the option model is for the workload \"{}\" alone, which needs it; the workload is "
          "\"{}\"",
          folder_workload, options.name));
    if (const auto wrong = misfit(options))
      throw ValueError(fmt::format("the option {} {}", name(wrong->setting), wrong->why));
    if (options.batch && *options.batch < 1)
      throw ValueError(
          fmt::format("the option batch must be at least 1, but is {}", *options.batch));
    std::unique_ptr<Workload> made = row.make(options);
    adapt_model(options, made->model());
    add_asked(options, made->settings);
    made->train_part.items = made->train->size(), made->test_part.items = made->test->size();
    require_items(made->train_part, made->batch_size, "a batch");
    require_items(made->test_part, 1, "testing");
    return made;
  }
  throw ValueError(fmt::format("there is no workload \"{}\"; there are: {}", options.name,
                               fmt::join(workload_names(), ", ")));
}

data::LoaderOptions training_loader(std::int64_t batch, std::uint64_t seed, Device device) {
  data::LoaderOptions options{.batch = batch, .seed = seed, .last = data::LastBatch::drop};
  if (device.kind == Device::Kind::cuda) options.workers = options.prefetch = 4;
  return options;
}

void Workload::shrink(const prune::Structure&, const prune::Removal&, prune::Values) {
  throw ValueError("the model of this workload cannot lose heads, neurons or channels");
}

}  // namespace ebb::workloads
