#include "cli/generation.h"

#include <fmt/core.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/options.h"
#include "cli/planning.h"
#include "cli/verb.h"
#include "core/json.h"
#include "ebb/nn/adapt.h"

namespace ebb::cli {
namespace {

// The most tokens of one sequence that fit into a budget too small for the request.
std::int64_t tokens_that_fit(nn::ModuleBase& module, models::CausalLm& lm,
                             const GenerationQuestion& question, std::int64_t asked) {
  const auto fits = [&](std::int64_t tokens) {
    generate::Options options;
    options.tokens = tokens, options.cache = question.bits.cache_form();
    return generate::sequences_that_fit(module, lm, options, question.budget, 1) == 1;
  };
  if (asked <= 2 || !fits(2)) return 0;
  std::int64_t good = 2, bad = asked;
  while (bad - good > 1) {
    const std::int64_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good;
}

}  // namespace

DType generation_dtype(const std::string& precision) {
  return precision == "bf16" ? bf16 : precision == "fp16" ? f16 : f32;
}

void GenerationBits::add_options(CLI::App& app) {
  add_option(app, "--bits", weights,
             "Store the weights of linear layers as integers of 8 or 4 bits; default: as "
             "--precision says")
      .one_of({"8", "4"});
  add_option(app, "--cache-bits", cache,
             "Store keys and values in 8 bits (CPU); default: as --precision says")
      .one_of({"8"});
}

void GenerationBits::apply(const io::OpenLm& open) const {
  if (!weights) return;
  nn::adapt(*open.model.module, {.base = *weights == "8" ? LowBits::int8 : LowBits::int4});
}

nn::CacheForm GenerationBits::cache_form() const {
  return cache ? nn::CacheForm::int8 : nn::CacheForm::model;
}

int fit_generation(const GenerationQuestion& question, bool as_json) {
  const Device device = named_device(question.device).value();
  const io::OpenLm open =
      io::open_causal_lm(question.model, device, generation_dtype(question.precision));
  question.bits.apply(open);
  generate::Options options;
  options.cache = question.bits.cache_form();
  options.tokens = question.tokens.value_or(open.model.lm->context());
  nn::ModuleBase& module = *open.model.module;
  const std::int64_t largest =
      generate::sequences_that_fit(module, *open.model.lm, options, question.budget, question.most);
  if (largest == 0) {
    const Bytes least = generate::Generator(module, *open.model.lm, options).footprint().peak;
    const std::int64_t tokens = tokens_that_fit(module, *open.model.lm, question, options.tokens);
    throw MemoryError(fmt::format(
        "not even one sequence of {} tokens fits in {}: it takes {}{}", options.tokens,
        to_string(question.budget), to_string(least),
        tokens > 0 ? fmt::format("; one of {} tokens fits (--max-tokens {})", tokens, tokens)
                   : ""));
  }
  options.sequences = largest;
  const generate::Footprint footprint =
      generate::Generator(module, *open.model.lm, options).footprint();
  if (as_json) {
    std::cout << json_text(nlohmann::ordered_json{{"model", question.model.string()},
                                                  {"budget_bytes", question.budget.count},
                                                  {"sequences", largest},
                                                  {"tokens", options.tokens},
                                                  {"planned_peak_bytes", footprint.peak.count},
                                                  {"cache_bytes", footprint.cache.count},
                                                  {"arena_bytes", footprint.arena.count},
                                                  {"persistent_bytes", footprint.persistent.count}})
              << "\n";
  } else {
    fmt::print("{}: {} sequences of {} tokens{} fit in {}\n", question.model.string(), largest,
               options.tokens, largest == question.most ? ", the most that was tried," : "",
               to_string(question.budget));
    fmt::print("planned peak {}: weights and state {}, keys and values {}, workspace {}\n",
               to_string(footprint.peak), to_string(footprint.persistent - footprint.cache),
               to_string(footprint.cache), to_string(footprint.arena));
  }
  return success;
}

}  // namespace ebb::cli
