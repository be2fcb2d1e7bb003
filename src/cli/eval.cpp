// `ebb eval`: the mean loss of a model from a Hugging Face folder on a file of tokens.
#include <fmt/core.h>

#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/memory_check.h"
#include "cli/options.h"
#include "cli/verb.h"
#include "core/json.h"
#include "ebb/data/text.h"
#include "ebb/ebb.h"
#include "ebb/io/hugging_face.h"
#include "ebb/train/eval_step.h"

namespace ebb::cli {
namespace {

namespace fs = std::filesystem;

class Eval : public Verb {
 public:
  Eval()
      : Verb("eval", "Measure a model's loss on tokens",
             "ebb eval --model gpt2/ --tokens tokens.bin") {}

 protected:
  void configure(CLI::App& app) override {
    add_option(app, "--model", model_, "A Hugging Face folder of a GPT-2 or Llama model")
        .required()
        .existing_folder();
    add_option(app, "--tokens", tokens_, "Little-endian int32 tokens").required().existing_file();
    add_option(app, "--batch", batch_, "Windows at a time").positive().show_default();
    add_overcommit_option(app, overcommit_);
  }

  // The tokens are cut into consecutive windows of the model's context; every position of a window
  // predicts the token after it. What is left at the end is a shorter window.
  int run() override {
    io::LoadedLm model = io::load_causal_lm(model_, device::cpu, f32);
    EvalStep step(*model.module,
                  [&](const Batch& b) { return std::vector{model.lm->loss(b.x(), b.y())}; });
    const data::TokenStream stream =
        data::TokenStream::file(tokens_, data::TokenWidth::int32, model.lm->vocabulary());
    const std::int64_t context = model.lm->context(), predicted = stream.size() - 1,
                       whole = predicted > 0 ? predicted / context : 0;
    if (predicted < 1)
      throw FileError(fmt::format("{}: at least two tokens are needed, but there are {}",
                                  tokens_.string(), stream.size()));
    const std::int64_t at_once = std::min(batch_, std::max<std::int64_t>(whole, 1));
    const TensorType ids{{at_once, std::min(predicted, context)}, i32};
    // The weights have been read already: what is still to be allocated is the arena.
    require_memory(step.plan({ids, ids}).arena(), device::cpu, overcommit_,
                   "a smaller --batch takes less");
    double total = 0.0;
    const auto add = [&](std::int64_t begin, std::int64_t rows, std::int64_t length) {
      total +=
          step(window(stream, begin, rows, length)).front() * static_cast<double>(rows * length);
    };
    for (std::int64_t i = 0; i < whole; i += batch_)
      add(i * context, std::min(batch_, whole - i), context);
    if (predicted > whole * context) add(whole * context, 1, predicted - whole * context);
    const double loss = total / static_cast<double>(predicted);
    if (json())
      std::cout << json_text(nlohmann::ordered_json{{"loss", loss}, {"tokens", predicted}}) << "\n";
    else
      fmt::print("loss {:.6f} over {} tokens\n", loss, predicted);
    return success;
  }

 private:
  static Batch window(const data::TokenStream& stream, std::int64_t begin, std::int64_t rows,
                      std::int64_t length) {
    std::vector<std::int32_t> x(static_cast<std::size_t>(rows * length)), y(x.size());
    stream.read(begin, x);
    stream.read(begin + 1, y);
    return {{Tensor::from(x, {rows, length}), Tensor::from(y, {rows, length})}};
  }

  fs::path model_, tokens_;
  std::int64_t batch_ = 1;
  bool overcommit_ = false;
};

}  // namespace

std::unique_ptr<Verb> eval_verb() { return std::make_unique<Eval>(); }

}  // namespace ebb::cli
