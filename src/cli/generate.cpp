// `ebb generate`: continues prompts with a model from a Hugging Face folder, in planned memory.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "cli/accepted_by.h"
#include "cli/generation.h"
#include "cli/interrupt.h"
#include "cli/memory_check.h"
#include "cli/numbers.h"
#include "cli/options.h"
#include "cli/planning.h"
#include "cli/text_stream.h"
#include "cli/verb.h"
#include "core/json.h"
#include "data/prompts.h"
#include "ebb/error.h"
#include "ebb/generate/generator.h"
#include "ebb/io/open_lm.h"
#include "ebb/text/tokenizer.h"

namespace ebb::cli {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<std::int32_t>;

Ids parse_ids(const std::string& text) {
  Ids ids;
  for (const char *at = text.data(), *end = at + text.size(); at != end + 1;) {
    std::int32_t id = 0;
    const auto [next, error] = std::from_chars(at, end, id);
    if (error != std::errc{} || id < 0 || (next != end && *next != ','))
      throw UsageError(fmt::format(
          "--prompt-ids takes ids joined by commas, such as 5,17,2, but \"{}\" came", text));
    ids.push_back(id);
    at = next + 1;
  }
  return ids;
}

class Generate : public Verb {
 public:
  Generate()
      : Verb("generate", "Continue prompts with a model",
             "ebb generate --model gpt2/ --prompt \"Once upon a time\" --max-tokens 50") {}

 protected:
  void configure(CLI::App& app) override {
    add_option(app, "--model", model_,
               "A Hugging Face folder of a model that predicts the next token")
        .required()
        .existing_folder();
    add_option(app, "--prompt", prompt_, "The text to continue (needs the folder's tokenizer.json)")
        .type_name("TEXT");
    add_option(app, "--prompt-ids", prompt_ids_, "The ids to continue, such as 5,17,2")
        .type_name("IDS")
        .excludes("--prompt");
    add_option(app, "--batch", batch_,
               "File of prompts, one per line; in .jsonl files {\"prompt\": TEXT} or {\"ids\": [5, "
               "17]} per line. Sequences join and leave within the planned memory")
        .existing_file()
        .excludes("--prompt")
        .excludes("--prompt-ids");
    add_option(app, "--max-tokens", max_tokens_, "Most tokens to generate for each prompt")
        .required()
        .positive();
    const char* sampling = "Sampling";
    add_flag(app, "--greedy", greedy_, "Take the most likely token; the default").group(sampling);
    add_option(app, "--temperature", temperature_,
               "Draw tokens, with logits divided by this; default: 1 if --top-k, --top-p or --seed "
               "is given, otherwise --greedy")
        .check(FiniteNumber::positive())
        .excludes("--greedy")
        .group(sampling);
    add_option(app, "--top-k", top_k_, "Draw from this many of the most likely tokens")
        .positive()
        .excludes("--greedy")
        .group(sampling);
    add_option(app, "--top-p", top_p_,
               "Draw from the most likely tokens that together have this probability")
        .check([](const std::string& text) -> std::string {
          const std::string problem = FiniteNumber::positive()(text);
          return problem.empty() ? FiniteNumber::between(0.0, 1.0)(text) : problem;
        })
        .excludes("--greedy")
        .group(sampling);
    add_option(app, "--seed", seed_, "Of the draws; default 0")
        .check(seed_problem)
        .excludes("--greedy")
        .group(sampling);
    add_option(app, "--stop", stop_, "End a text before this text appears in it").type_name("TEXT");
    add_flag(app, "--ignore-end", ignore_end_,
             "Continue after the token that ends a text (eos_token_id)");
    add_option(app, "--budget", budget_text_,
               "Memory limit for weights, keys, values and workspace, such as 2GiB")
        .check(accepted_by([](const std::string& text) { parse_bytes(text); }))
        .type_name("SIZE");
    add_option(app, "--sequences", sequences_,
               "Most sequences of --batch that run at a time; fewer if the budget requires it")
        .positive()
        .needs("--batch");
    add_option(app, "--precision", precision_, "Dtype of weights, keys and values")
        .one_of({"fp32", "bf16", "fp16"})
        .show_default();
    bits_.add_options(app);
    add_option(app, "--device", device_, "cpu, cuda or cuda:N")
        .check([](const std::string& text) -> std::string {
          return named_device(text) ? "" : fmt::format("there is no device \"{}\"", text);
        })
        .show_default();
    add_overcommit_option(app, overcommit_);
  }

  int run() override {
    check_options();
    const Device device = *named_device(drivable_device(device_));
    const io::OpenLm open = io::open_causal_lm(model_, device, generation_dtype(precision_));
    bits_.apply(open);
    read_tokenizer(open.model.lm->vocabulary());
    const std::vector<generate::Request> requests = read_requests(*open.model.lm);
    const generate::Options options = choose_options(open.model, requests, device);
    generate::Generator generator(*open.model.module, *open.model.lm, options);
    require_memory(generator.footprint().peak, device, overcommit_,
                   "smaller --sequences or --max-tokens take less memory");
    open.load();
    generator.allocate();
    tell_unused_settings(options.sampling.temperature > 0.0);
    const Interrupt interrupt;
    const std::vector<generate::Result> results = generator.run(requests, on_token(interrupt));
    if (streams()) {
      if (results[0].ended != generate::Ended::caller) pending_ += stream_->rest(results[0].ids);
      fmt::print("{}\n", pending_);
    }
    std::fflush(stdout);  // before the line on standard error
    print(generator, results);
    return outcome(results, interrupt.signal());
  }

 private:
  void check_options() const {
    if (!prompt_ && !prompt_ids_ && !batch_)
      throw UsageError("generate needs --prompt TEXT, --prompt-ids IDS or --batch FILE");
    if (stop_ && stop_->empty()) throw UsageError("--stop needs a text that is not empty");
  }

  bool streams() const { return prompt_ && !json(); }

  void read_tokenizer(std::int64_t vocabulary) {
    if (fs::exists(model_ / "tokenizer.json")) {
      tokenizer_ = text::Tokenizer::load(model_);
      if (tokenizer_->vocabulary() > vocabulary)
        throw FileError(fmt::format("{}: its ids go up to {}, but the model's vocabulary is {}",
                                    (model_ / "tokenizer.json").string(),
                                    tokenizer_->vocabulary() - 1, vocabulary));
      return;
    }
    if (prompt_ || stop_) fail_without_tokenizer();
  }

  [[noreturn]] void fail_without_tokenizer() const {
    throw UsageError(
        fmt::format("{} has no tokenizer.json, so text cannot be used: use --prompt-ids, or "
                    "--batch with {{\"ids\": [...]}} lines in a .jsonl file, and no --stop",
                    model_.string()));
  }

  Ids ids_of(const data::Prompt& prompt) const {
    if (const Ids* ids = std::get_if<Ids>(&prompt)) return *ids;
    if (!tokenizer_) fail_without_tokenizer();
    return tokenizer_->encode(std::get<std::string>(prompt), text::Specials::with);
  }

  std::vector<generate::Request> read_requests(const models::CausalLm& lm) const {
    std::vector<Ids> prompts;
    if (prompt_ids_) prompts.push_back(parse_ids(*prompt_ids_));
    if (prompt_) prompts.push_back(ids_of(*prompt_));
    if (batch_)
      for (const data::Prompt& prompt : data::read_prompts(*batch_))
        prompts.push_back(ids_of(prompt));
    std::vector<generate::Request> requests;
    for (Ids& prompt : prompts) {
      if (prompt.empty())
        throw ValueError(fmt::format("prompt {} has no tokens", requests.size() + 1));
      for (const std::int32_t id : prompt)
        if (id >= lm.vocabulary())
          throw ValueError(fmt::format("prompt {} has the id {}, outside the vocabulary of {}",
                                       requests.size() + 1, id, lm.vocabulary()));
      if (static_cast<std::int64_t>(prompt.size()) >= lm.context())
        throw ValueError(
            fmt::format("prompt {} has {} tokens, but the model's context of {} must hold the "
                        "prompt and the generated tokens",
                        requests.size() + 1, prompt.size(), lm.context()));
      requests.push_back({std::move(prompt), max_tokens_});
    }
    return requests;
  }

  generate::Options choose_options(const io::LoadedLm& model,
                                   const std::vector<generate::Request>& requests, Device device) {
    generate::Options options;
    options.cache = bits_.cache_form();
    std::int64_t longest = 0;
    for (const generate::Request& request : requests)
      longest = std::max(longest, static_cast<std::int64_t>(request.prompt.size()));
    const std::int64_t left = model.lm->context() - longest;
    options.tokens = longest + std::min(left, max_tokens_);
    if (max_tokens_ > left)
      std::cerr << fmt::format(
                       "ebb: --max-tokens {}: after a prompt of {} tokens the model's context of "
                       "{} has room for {}",
                       max_tokens_, longest, model.lm->context(), left)
                << std::endl;
    if (temperature_ || top_k_ || top_p_ || seed_)
      options.sampling = {temperature_.value_or(1.0), top_k_.value_or(0), top_p_.value_or(1.0)};
    options.seed = seed_.value_or(0);
    if (!ignore_end_)
      for (const std::int32_t id : io::end_ids(model_))
        if (id < model.lm->vocabulary()) options.end.push_back(id);
    options.sequences = static_cast<std::int64_t>(requests.size());
    const std::int64_t usual = device.kind == Device::Kind::cpu ? 8 : 64;
    options.sequences = std::min(options.sequences, sequences_.value_or(usual));
    if (budget_text_) {
      options.budget = parse_bytes(*budget_text_);
      const std::int64_t fit = generate::sequences_that_fit(*model.module, *model.lm, options,
                                                            *options.budget, options.sequences);
      options.sequences = std::max<std::int64_t>(fit, 1);  // none: the generator throws
    }
    return options;
  }

  // Prints a single text as it grows, and ends sequences at the stop text.
  generate::OnToken on_token(const Interrupt& interrupt) {
    if (streams()) stream_.emplace(*tokenizer_);
    return [this, &interrupt](std::size_t, std::span<const std::int32_t> ids) {
      if (interrupt.asked()) return generate::Continue::stop_all;
      if (stream_) {
        pending_ += stream_->next(ids);
        print_pending(stop_ ? stop_->size() - 1 : 0);
      }
      if (!stop_) return generate::Continue::yes;
      // Earlier tokens cannot be part of a stop text that ends now.
      const std::size_t count = std::min(ids.size(), stop_->size() + 16);
      const std::string text = tokenizer_->decode(ids.last(count));
      if (text.find(*stop_) == std::string::npos) return generate::Continue::yes;
      if (stream_) pending_.clear();
      return generate::Continue::no;
    };
  }

  // The folder's own settings of generation are not applied; names those that would have an effect.
  void tell_unused_settings(bool draws) const {
    std::vector<std::string> names = io::unused_generation_settings(model_);
    if (draws) std::erase(names, "do_sample");
    if (!names.empty())
      std::cerr << fmt::format(
                       "ebb: warning: {} sets {}, which ebb generate does not apply; only the "
                       "options of the command decide how tokens are chosen",
                       model_.string(), fmt::join(names, ", "))
                << std::endl;
  }

  // The exit code. All generated text has been printed, even if an error occurred.
  static int outcome(const std::vector<generate::Result>& results, int signal) {
    std::int64_t done = 0;
    std::string wrong;  // prompts by number
    for (std::size_t r = 0; r < results.size(); ++r) {
      if (results[r].ended == generate::Ended::not_finite)
        wrong += fmt::format("{}prompt {} after {} generated tokens", wrong.empty() ? "" : ", ",
                             r + 1, results[r].ids.size());
      done += results[r].ended != generate::Ended::stopped;
    }
    std::cout.flush();
    if (!wrong.empty())
      std::cerr << fmt::format("ebb: error: the model's logits are not finite: {}", wrong)
                << std::endl;
    if (signal != 0)
      std::cerr << fmt::format("ebb: interrupted: {} of {} prompts are done", done, results.size())
                << std::endl;
    return signal != 0 ? 128 + signal : wrong.empty() ? success : failure;
  }

  // Prints all but the last `kept` bytes, which may begin a stop text.
  void print_pending(std::size_t kept) {
    if (stop_)
      if (const std::size_t at = pending_.find(*stop_); at != std::string::npos) {
        fmt::print("{}", pending_.substr(0, at));
        pending_.clear();
        return;
      }
    if (pending_.size() <= kept) return;
    std::size_t count = pending_.size() - kept;
    while (count > 0 && (pending_[count] & 0xC0) == 0x80) --count;  // only whole characters
    fmt::print("{}", pending_.substr(0, count));
    if (std::fflush(stdout) != 0) throw std::system_error(errno, std::generic_category());
    pending_.erase(0, count);
  }

  // The generated text, up to the stop text.
  std::string text_of(const Ids& ids) const {
    std::string text = tokenizer_->decode(ids);
    if (stop_) text = text.substr(0, text.find(*stop_));
    return text;
  }

  static const char* name_of(generate::Ended ended) {
    switch (ended) {
      case generate::Ended::length:
        return "length";
      case generate::Ended::token:
        return "end";
      case generate::Ended::caller:
        return "stop";
      case generate::Ended::stopped:
        return "interrupted";
      case generate::Ended::not_finite:
        break;
    }
    return "not finite";
  }

  static std::string line_of(const Ids& ids) {
    std::string line;
    for (const std::int32_t id : ids) line += fmt::format("{}{}", line.empty() ? "" : ",", id);
    return line;
  }

  void print(const generate::Generator& generator, const std::vector<generate::Result>& results) {
    const generate::Generator::Speed& speed = generator.speed();
    if (json()) {
      nlohmann::ordered_json all_ids = nlohmann::ordered_json::array(), texts = all_ids,
                             ends = all_ids;
      for (const generate::Result& result : results) {
        all_ids.push_back(result.ids);
        ends.push_back(name_of(result.ended));
        if (tokenizer_) texts.push_back(text_of(result.ids));
      }
      std::cout << json_text(nlohmann::ordered_json{
                       {"ids", all_ids},
                       {"text", texts},
                       {"ended", ends},
                       {"tokens_per_s", speed.tokens_per_s()},
                       {"prompt_tokens", speed.prefilled},
                       {"prefill_seconds", speed.prefill_seconds},
                       {"decode_seconds", speed.decode_seconds},
                       {"decode_steps", speed.steps},
                       {"planned_peak_bytes", generator.footprint().peak.count},
                       {"measured_peak_bytes", generator.resident().count}})
                << "\n";
      return;
    }
    for (const generate::Result& result : results)
      if (!streams())
        fmt::print("{}\n", tokenizer_ && !prompt_ids_ ? text_of(result.ids) : line_of(result.ids));
    std::cerr << fmt::format("{} prompt tokens in {:.2f} s, then {:.1f} tokens a second; peak {}\n",
                             speed.prefilled, speed.prefill_seconds, speed.tokens_per_s(),
                             to_string(generator.resident()));
  }

  fs::path model_;
  std::optional<std::string> prompt_, prompt_ids_, stop_, budget_text_;
  GenerationBits bits_;
  std::optional<fs::path> batch_;
  std::int64_t max_tokens_ = 0;
  std::optional<std::int64_t> top_k_, sequences_;
  std::optional<double> temperature_, top_p_;
  std::optional<std::uint64_t> seed_;
  std::string precision_ = "fp32", device_ = "cpu";
  bool greedy_ = false, ignore_end_ = false, overcommit_ = false;
  std::optional<text::Tokenizer> tokenizer_;
  std::optional<TextStream> stream_;
  std::string pending_;  // text that is not printed yet
};

}  // namespace

std::unique_ptr<Verb> generate_verb() { return std::make_unique<Generate>(); }

}  // namespace ebb::cli
