#include "cli/ablate/published.h"

#include "ebb/workloads/settings.h"

namespace ebb::cli {
namespace {

struct Sizes {
  std::optional<std::int64_t> layers = {}, width = {}, hidden = {}, heads = {},
                              key_value_heads = {}, vocabulary = {}, sequence = {}, depth = {},
                              batch = {};
  std::optional<std::string> classifier = {};
};

struct PublishedStudy {
  const char* workload;
  Sizes cpu, gpu;
};

const PublishedStudy published_studies[] = {
    {"lm",
     {.hidden = 128, .vocabulary = 2000, .sequence = 20, .batch = 64},
     {.hidden = 2048, .vocabulary = 10000, .sequence = 20, .batch = 2048}},
    {"gpt2",
     {.layers = 4, .width = 128, .heads = 4, .vocabulary = 16000, .sequence = 128, .batch = 8},
     {.sequence = 1024, .batch = 16}},
    {"bert",
     {.layers = 4, .width = 128, .heads = 4, .vocabulary = 5000, .sequence = 128, .batch = 8},
     {.sequence = 512, .batch = 32}},
    {"llama",
     {.layers = 4,
      .width = 128,
      .hidden = 352,
      .heads = 4,
      .key_value_heads = 2,
      .vocabulary = 5000,
      .sequence = 128,
      .batch = 8},
     {.sequence = 2048, .batch = 1}},
    {"resnet", {.depth = 32, .batch = 16}, {.depth = 50, .batch = 128}},
    {"reweight", {.batch = 8, .classifier = "resnet32"}, {.batch = 100, .classifier = "resnet50"}},
    {"mlp",
     {.layers = 4, .hidden = 512, .batch = 256},
     {.layers = 8, .hidden = 4096, .batch = 4096}},
};

}  // namespace

std::string study_rows(const std::string& workload) {
  // Betty's own table, the baseline and half precision, and what it names but does not measure.
  if (workload == "reweight")
    return "fp16,bf16,pure-bf16,accumulate,accumulate+fp16,blocks,auto,least,fusion,early-updates,"
           "accumulate+blocks,bf16+auto,defaults,all";
  const std::string recompute = workload == "lm"
                                    ? "segment-2,segment-4,segment-8,segment-all,auto,least"
                                    : "segment-4,blocks,auto,least";
  const std::string pairs = workload == "lm"
                                ? "accumulate+segment-all,fused-loss+bf16"
                                : "accumulate+blocks,fused-loss+bf16,bf16+blocks,auto+adamw8bit";
  return "fusion,fused-loss,early-updates,accumulate," + recompute +
         ",adamw8bit,adafactor,fp16,bf16,pure-bf16,early-updates+adafactor," + pairs +
         ",defaults,all";
}

void fill_in_sizes(workloads::MultilevelOptions& several) {
  workloads::Options& options = several.common;
  for (const PublishedStudy& study : published_studies) {
    if (options.name != study.workload) continue;
    const Sizes& sizes = options.device.kind == Device::Kind::cuda ? study.gpu : study.cpu;
    // What is not typed and would have no effect with what is, such as a vocabulary of bytes, stays
    // unset.
    const auto fill = [](auto& option, const auto& size, bool used = true) {
      if (!option && used) option = size;
    };
    fill(several.classifier, sizes.classifier);
    const auto used = [&](workloads::Setting setting) {
      return several.classifier ? uses(several, setting) : uses(options, setting);
    };
    using enum workloads::Setting;
    fill(options.layers, sizes.layers, used(layers));
    const bool width_given = options.width.has_value();
    fill(options.hidden, sizes.hidden, used(hidden));
    if (width_given && !used(width)) options.hidden.reset();  // a perceptron has one of them
    fill(options.width, sizes.width, used(width));
    fill(options.heads, sizes.heads, used(heads));
    fill(options.key_value_heads, sizes.key_value_heads, used(key_value_heads));
    if (!options.data) fill(options.vocabulary, sizes.vocabulary, used(vocabulary));
    fill(options.sequence, sizes.sequence, used(sequence));
    fill(options.depth, sizes.depth, used(depth));
    fill(options.batch, sizes.batch);
  }
}

}  // namespace ebb::cli
