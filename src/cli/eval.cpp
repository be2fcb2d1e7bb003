// `ebb eval`: how well a model from a Hugging Face folder does on text or tokens.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/accepted_by.h"
#include "cli/calibration.h"
#include "cli/finite_loss.h"
#include "cli/memory_check.h"
#include "cli/options.h"
#include "cli/outputs.h"
#include "cli/verb.h"
#include "core/json.h"
#include "ebb/data/sequences.h"
#include "ebb/ebb.h"
#include "ebb/io/adapter.h"
#include "ebb/io/hugging_face.h"
#include "ebb/nn/adapt.h"
#include "ebb/nn/decode_scope.h"
#include "ebb/train/eval_step.h"
#include "ebb/train/non_finite.h"
#include "io/hugging_face/packed.h"
#include "workloads/accuracy.h"
#include "workloads/folder_text.h"

namespace ebb::cli {
namespace {

namespace fs = std::filesystem;

// Sums of metrics, and the number of predicted tokens or texts that the means are over.
struct Totals {
  std::vector<double> sums;
  std::int64_t count = 0;

  void add(const std::vector<double>& means, std::int64_t of) {
    sums.resize(means.size());
    for (std::size_t i = 0; i < means.size(); ++i) sums[i] += means[i] * static_cast<double>(of);
    count += of;
  }
  double mean(std::size_t metric) const { return sums[metric] / static_cast<double>(count); }
};

class Eval : public Verb {
 public:
  Eval()
      : Verb("eval", "Measure a model's loss on text or tokens",
             "ebb eval --model gpt2/ --text input.txt") {}

 protected:
  void configure(CLI::App& app) override {
    add_option(app, "--model", model_, "A Hugging Face folder").required().existing_folder();
    add_option(app, "--text", text_,
               "Text file, or .jsonl with \"text\" or with \"prompt\" and \"answer\"; for "
               "classifiers .csv or .jsonl with labels")
        .existing_file();
    add_option(app, "--tokens", tokens_, "File of little-endian int32 tokens, instead of --text")
        .existing_file()
        .excludes("--text");
    add_option(app, "--batch", batch_, "Windows or texts at a time").positive().show_default();
    add_option(app, "--sequence", sequence_, "Tokens of a window; default: the model's context")
        .positive();
    add_option(app, "--base", base_,
               "Store weights of linear layers in few bits, or without the zeros of their pattern "
               "2:4; default: as in the folder")
        .one_of({"int8", "int4", "nf4", "2:4"});
    add_option(app, "--calibrate", calibrate_,
               "With --base int8, int4 or nf4: choose the codes by GPTQ on this text, or on int32 "
               "tokens in FILE.bin; default: plain rounding")
        .existing_file()
        .needs("--base");
    add_option(app, "--save", save_,
               "With --base int8, int4 or nf4: write the packed model to this folder, which only "
               "ebb can read")
        .needs("--base")
        .type_name("DIR");
    add_option(app, "--cache-bits", cache_bits_,
               "Round keys and values to 8 bits, as ebb generate --cache-bits 8 stores them")
        .one_of({"8"});
    add_option(app, "--adapter", adapter_, "A folder of an adapter in PEFT's format")
        .existing_folder()
        .type_name("DIR");
    add_option(app, "--budget", budget_,
               "Memory limit for weights and evaluation, such as 2GiB; the batch is made smaller "
               "if necessary. Not with --calibrate, whose memory is not planned")
        .check(accepted_by([](const std::string& text) { parse_bytes(text); }))
        .excludes("--calibrate")
        .type_name("SIZE");
    add_overcommit_option(app, overcommit_);
  }

  int run() override {
    std::error_code ignored;
    if (save_ && fs::equivalent(model_, *save_, ignored))
      throw UsageError("--save must name another folder than --model");
    if (save_ && adapter_)
      throw UsageError("--save writes weights without adapters: leave out --adapter");
    if (base_ == "2:4" && calibrate_)
      throw UsageError(
          "--calibrate chooses codes in few bits, which --base 2:4 does not have: use --base int8, "
          "int4 or nf4");
    if (base_ == "2:4" && save_)
      throw UsageError(
          "--save is for weights in few bits; ebb prune --pattern 2:4 --packed writes a folder "
          "without zeros, in the folder's own dtype");
    if (text_.empty() && tokens_.empty())
      throw UsageError("eval needs --text FILE or --tokens FILE");
    std::optional<TriedFolder> tried;
    if (save_) tried.emplace(*save_);
    const bool labelled = text_.empty() || workloads::has_labels(text_);
    folder_ = io::open_folder(model_, device::cpu, f32,
                              labelled ? io::EncoderHead::classifier : io::EncoderHead::masked_lm);
    if (cache_bits_ && !folder_.lm)
      throw UsageError("--cache-bits is for models that predict the next token: GPT-2 and Llama");
    if (calibrate_)
      pack_calibrated();
    else if (base_)
      nn::adapt(*folder_.module, {.base = nn::weight_form_by_name(*base_)});
    require_trained_head();
    if (adapter_) io::load_adapter(*adapter_, *folder_.module);
    if (!folder_.lm && !tokens_.empty())
      throw FileError(
          fmt::format("{}: --tokens is for models that predict the next token, but this is a "
                      "classifier: use --text FILE with labelled texts",
                      model_.string()));
    const std::int64_t context = folder_.lm          ? folder_.lm->context()
                                 : folder_.masked_lm ? folder_.masked_lm->context()
                                                     : folder_.classifier->context();
    if (sequence_ && *sequence_ > context)
      throw UsageError(fmt::format("--sequence {} is more than the model's context of {} tokens",
                                   *sequence_, context));
    const std::int64_t window = sequence_.value_or(context);
    if (folder_.classifier)
      judge_labelled(window);
    else if (folder_.masked_lm)
      judge_masked(sequence_.value_or(std::min<std::int64_t>(window, 128)));
    else if (tokens_.empty() && data::is_json_lines(text_))
      judge_documents(window);
    else
      judge_running_text(window);
    require_finite_loss(totals_.mean(0), model_,
                        [&] { return non_finite_variable(*folder_.module); });
    report();
    if (save_) {
      io::save_packed(*folder_.module, *save_);
      io::copy_tokenizer(model_, *save_);
    }
    return success;
  }

 private:
  // A head that the folder lacks would start from random numbers, and adapters do not contain one.
  void require_trained_head() const {
    const auto* model = dynamic_cast<const models::HasOrigin*>(folder_.module.get());
    if (!model || model->origin().initialised.empty()) return;
    throw FileError(
        fmt::format("{}: the folder has no {}, which would start from random numbers: train the "
                    "model first and evaluate the saved folder",
                    model_.string(), fmt::join(model->origin().initialised, ", ")));
  }

  // Reads all weights at once: GPTQ needs all of them, and the inputs of every layer.
  void pack_calibrated() {
    if (!folder_.lm)
      throw UsageError("--calibrate is for models that predict the next token: GPT-2 and Llama");
    Bytes weights;
    for (const nn::NamedVariable& p : folder_.module->parameters())
      weights += p.variable.type().bytes();
    require_memory(weights, device::cpu, overcommit_,
                   "plain rounding takes less memory: leave out --calibrate");
    folder_.load();
    loaded_ = true;
    pack_on_data(*folder_.module, *folder_.lm, low_bits_by_name(*base_), *calibrate_, model_);
  }

  // Plans for batches of `types(rows)`, and reads the weights once it is known that everything
  // fits. Returns the number of rows of a batch.
  std::int64_t prepare(std::int64_t rows,
                       const std::function<std::vector<TensorType>(std::int64_t)>& types) {
    step_.emplace(*folder_.module, [this](const Batch& b) { return metrics(b); });
    if (budget_) {
      const Bytes budget = parse_bytes(*budget_);
      while (rows > 1 && step_->plan(types(rows)).peak > budget) rows = (rows + 1) / 2;
      if (const Bytes peak = step_->plan(types(rows)).peak; peak > budget)
        throw MemoryError(fmt::format("a budget of {} cannot be kept: one row at a time takes {}{}",
                                      to_string(budget), to_string(peak),
                                      folder_.lm ? "; a smaller --sequence takes less" : ""));
    }
    const Plan& plan = step_->plan(types(rows));
    require_memory(plan.peak, device::cpu, overcommit_, "a smaller --batch takes less");
    peak_ = plan.peak;
    if (!loaded_) folder_.load();
    return rows;
  }

  std::vector<Tensor> metrics(const Batch& b) {
    if (folder_.lm && cache_bits_) return {loss_over_cache(b.x(), b.y())};
    if (folder_.lm) return {folder_.lm->loss(b.x(), b.y())};
    if (folder_.masked_lm) return {folder_.masked_lm->loss(b.x(), b.y(), b.at(2))};
    const Tensor logits = folder_.classifier->logits(b.x(), b.at(2));
    return {cross_entropy(logits, b.y()), workloads::share_right(logits, b.y())};
  }

  // Every token attends over a cache in 8 bits that contains all tokens of its row.
  Tensor loss_over_cache(const Tensor& ids, const Tensor& targets) {
    const std::int64_t rows = ids.shape()[0], length = ids.shape()[1];
    nn::KeyValueCache cache(rows, length, nn::CacheForm::int8);
    const Tensor positions = expand(unsqueeze(arange(length, i32), 0), {rows, length});
    const nn::DecodeScope scope(cache, positions, arange(rows, i32));
    return folder_.lm->loss(ids, targets);
  }

  // Cuts the tokens into consecutive windows; every position of a window predicts the next token.
  // The remainder at the end is a shorter window.
  void judge_running_text(std::int64_t window) {
    const fs::path& file = tokens_.empty() ? text_ : tokens_;
    const data::TokenStream stream =
        tokens_.empty()
            ? workloads::running_text(folder_, file)
            : data::TokenStream::file(file, data::TokenWidth::int32, folder_.lm->vocabulary());
    const std::int64_t predicted = stream.size() - 1,
                       whole = predicted > 0 ? predicted / window : 0;
    if (predicted < 1)
      throw FileError(fmt::format("{}: at least two tokens are needed, but there are {}",
                                  file.string(), stream.size()));
    const std::int64_t rows =
        prepare(std::min(batch_, std::max<std::int64_t>(whole, 1)), [&](std::int64_t count) {
          const TensorType ids{{count, std::min(predicted, window)}, i32};
          return std::vector{ids, ids};
        });
    const auto add = [&](std::int64_t begin, std::int64_t count, std::int64_t length) {
      totals_.add((*step_)(windows(stream, begin, count, length)), count * length);
    };
    for (std::int64_t i = 0; i < whole; i += rows)
      add(i * window, std::min(rows, whole - i), window);
    if (predicted > whole * window) add(whole * window, 1, predicted - whole * window);
  }

  void judge_documents(std::int64_t window) {
    const workloads::DocumentTokens tokens = workloads::document_tokens(folder_, text_, window);
    const data::SequenceDataset items(tokens.parts,
                                      {.sequence = window, .padding = folder_.padding.value_or(0)});
    judge(items, [&](std::int64_t item) {
      const data::TokenSequence& s = tokens.parts[static_cast<std::size_t>(item)];
      return static_cast<std::int64_t>(s.tokens.size()) - s.first_target;
    });
  }

  void judge_labelled(std::int64_t window) {
    const data::LabelledTokenDataset items(
        workloads::labelled_tokens(folder_, text_, window),
        {.sequence = window, .padding = folder_.padding.value_or(0)});
    judge(items, [](std::int64_t) { return std::int64_t{1}; });
  }

  // Words are masked as in the test data of training.
  void judge_masked(std::int64_t window) {
    workloads::MaskedText text = workloads::masked_text(folder_, text_, window);
    text.masking.fixed_seed = workloads::test_masks;
    const data::MaskedTokenDataset items(std::move(text.windows), text.masking);
    judge(items, [&](std::int64_t item) { return items.targets(item); });
  }

  // `counted(item)` is the number of targets or texts that the metrics of an item are means over.
  void judge(const data::Dataset& items, const std::function<std::int64_t(std::int64_t)>& counted) {
    const std::int64_t rows = prepare(std::min(batch_, items.size()),
                                      [&](std::int64_t count) { return items.types(count); });
    for (std::int64_t begin = 0; begin < items.size(); begin += rows) {
      std::vector<std::int64_t> some;
      std::int64_t count = 0;
      for (std::int64_t i = begin; i < std::min(items.size(), begin + rows); ++i)
        some.push_back(i), count += counted(i);
      totals_.add((*step_)(items.batch(some, RandomState{})), count);
    }
  }

  void report() const {
    const double loss = totals_.mean(0);
    if (!folder_.classifier) {
      if (json())
        std::cout << json_text(nlohmann::ordered_json{{"loss", loss},
                                                      {"perplexity", std::exp(loss)},
                                                      {"tokens", totals_.count},
                                                      {"planned_peak_bytes", peak_.count}})
                  << "\n";
      else
        fmt::print("loss {:.6f}, perplexity {:.4f} over {} {}\n", loss, std::exp(loss),
                   totals_.count, folder_.lm ? "tokens" : "masked tokens");
      return;
    }
    if (json())
      std::cout << json_text(nlohmann::ordered_json{{"loss", loss},
                                                    {"accuracy", totals_.mean(1)},
                                                    {"texts", totals_.count},
                                                    {"planned_peak_bytes", peak_.count}})
                << "\n";
    else
      fmt::print("loss {:.6f}, accuracy {:.4f} over {} texts\n", loss, totals_.mean(1),
                 totals_.count);
  }

  static Batch windows(const data::TokenStream& stream, std::int64_t begin, std::int64_t rows,
                       std::int64_t length) {
    std::vector<std::int32_t> x(static_cast<std::size_t>(rows * length)), y(x.size());
    stream.read(begin, x);
    stream.read(begin + 1, y);
    return {{Tensor::from(x, {rows, length}), Tensor::from(y, {rows, length})}};
  }

  fs::path model_, text_, tokens_;
  std::int64_t batch_ = 1;
  std::optional<std::int64_t> sequence_;
  std::optional<std::string> budget_, base_, cache_bits_;
  std::optional<fs::path> adapter_, calibrate_, save_;
  bool loaded_ = false;  // the weights of the folder
  bool overcommit_ = false;
  io::ModelFolder folder_;
  std::optional<EvalStep> step_;
  Totals totals_;
  Bytes peak_;
};

}  // namespace

std::unique_ptr<Verb> eval_verb() { return std::make_unique<Eval>(); }

}  // namespace ebb::cli
