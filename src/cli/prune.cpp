// `ebb prune`: a smaller or a sparser model from a Hugging Face folder.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <charconv>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/calibration.h"
#include "cli/finite_loss.h"
#include "cli/memory_check.h"
#include "cli/one_shot.h"
#include "cli/options.h"
#include "cli/outputs.h"
#include "cli/prune_report.h"
#include "cli/verb.h"
#include "core/json.h"
#include "ebb/ebb.h"
#include "ebb/io/hugging_face.h"
#include "ebb/nn/adapt.h"
#include "ebb/optim/by_name.h"
#include "ebb/prune/models.h"
#include "ebb/train/eval_step.h"
#include "ebb/train/non_finite.h"
#include "io/hugging_face/open.h"

namespace ebb::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

template <class Model>
using Open = io::OpenFolder<Model> (*)(const fs::path&, Device, DType);

// A folder's model, without values, in the dtype of its weights or, if they differ, in float32, so
// that none loses digits.
template <class Model>
io::OpenFolder<Model> open_as_stored(Open<Model> open, const fs::path& folder) {
  const io::OpenFolder<Model> shapes = open(folder, device::cpu, f32);
  if (const auto& missing = shapes.model->origin().initialised; !missing.empty())
    throw FileError(
        fmt::format("{}: the folder has no {}, which would start from random numbers: train the "
                    "model first and prune the saved folder",
                    folder.string(), fmt::join(missing, ", ")));
  if (nn::has_packed_weights(*shapes.model))
    throw FileError(fmt::format(
        "{}: its weights are already in few bits: prune the folder that it was made from",
        folder.string()));
  if (nn::has_pairs(*shapes.model))
    throw FileError(
        fmt::format("{}: its weights are already stored without the zeros of their pattern 2:4: "
                    "prune the folder that it was made from",
                    folder.string()));
  if (shapes.weights.absent()) shapes.weights.load(*shapes.model);  // throws what is missing
  std::set<DType> stored;
  for (const nn::NamedVariable& p : shapes.model->parameters())
    stored.insert(shapes.weights.stored_dtype(p.path));
  const DType one = stored.size() == 1 ? *stored.begin() : f32;
  return open(folder, device::cpu, one == bf16 || one == f16 ? one : f32);
}

template <class Model>
LossFunction loss_of(Model& model) {
  if constexpr (std::is_base_of_v<models::CausalLm, Model>)
    return [&model](const Batch& b) { return model.loss(b.x(), b.y()); };
  else  // groups and memory do not depend on the meaning of labels
    return [&model](const Batch& b) { return mean(model(b.x())); };
}

class Prune : public Verb {
 public:
  Prune()
      : Verb("prune", "Remove parts of a model, or set weights to zero",
             "ebb prune --model gpt2/ --keep 0.7 --score taylor --data text.txt --save smaller/") {}

 protected:
  void configure(CLI::App& app) override {
    add_option(app, "--model", model_, "A Hugging Face folder of a GPT-2, Llama or BERT model")
        .required()
        .existing_folder();
    add_option(app, "--save", save_, "The folder to write").required().type_name("DIR");
    add_option(app, "--keep", keep_text_,
               "Share of heads, neurons or blocks to keep, in every layer; the rest is removed")
        .type_name("SHARE");
    add_option(app, "--score", score_,
               "Score by which parts are removed, lowest first: magnitude, taylor or activation; "
               "the last two need --data (default: magnitude)")
        .type_name("NAME");
    add_option(app, "--structure", structure_,
               "Parts to remove, joined by commas: heads, neurons, blocks (default: heads,neurons; "
               "for encoders and GPT-NeoX neurons)")
        .type_name("LIST");
    add_option(app, "--multiple", structured_.multiple,
               "Keep a multiple of this number of neurons; 64 is fast on GPUs")
        .positive()
        .show_default();
    add_option(app, "--sparsity", sparsity_text_,
               "Instead of --keep: set this share of the weights of each matrix to zero")
        .type_name("SHARE");
    add_option(app, "--pattern", pattern_text_,
               "Instead of --keep: keep N of every M neighbouring weights, such as 2:4, and set "
               "the others to zero")
        .type_name("N:M");
    add_option(app, "--bits", bits_text_,
               "Instead of --keep: store the linear layers in int8, int4 or nf4, rounded by GPTQ "
               "on --data")
        .type_name("NAME");
    add_flag(app, "--packed", packed_,
             "With --pattern 2:4: store the matrices without their zeros, in 9/16 of their bytes "
             "in bfloat16; only ebb can read the folder");
    add_option(app, "--method", method_text_,
               "For --sparsity and --pattern: magnitude, wanda or sparsegpt; the last two need "
               "--data (default: magnitude)")
        .type_name("NAME");
    add_option(app, "--data", data_,
               "Text for the model's tokenizer.json, or int32 tokens as FILE.bin; also used to "
               "measure the loss before and after")
        .existing_file();
    add_option(app, "--samples", windows_.samples, "Windows of the data, evenly spread")
        .positive()
        .show_default();
    add_option(app, "--sequence", windows_.sequence,
               "Tokens of a window (default: the model's context)")
        .positive();
    add_option(app, "--batch", windows_.batch, "Windows at a time").positive().show_default();
    add_option(app, "--budget", budget_text_,
               "Memory limit of the process for --sparsity, --pattern and --bits, such as 2GiB: "
               "one block's weights are in memory at a time, and the values between blocks go to a "
               "file if necessary")
        .type_name("SIZE");
    add_overcommit_option(app, overcommit_);
  }

  int run() override {
    read_options();
    const TriedFolder tried(save_);
    return write_pruned();
  }

 private:
  int write_pruned() {
    const std::string type = io::model_type(model_);
    if (type == "gpt2") return write_pruned<models::Gpt2>(io::open_gpt2);
    if (io::predicts_next_token(model_)) return write_pruned<models::Llama>(io::open_llama);
    if (!data_.empty())
      throw UsageError(
          fmt::format("--data is for models that predict the next token, but this is {}", type));
    // A folder without a classifier may have the head for masked words.
    const auto complete = [](const auto& folder) {
      return folder.model->origin().initialised.empty();
    };
    if (!complete(io::open_bert(model_, device::cpu, f32)) &&
        complete(io::open_bert_masked_lm(model_, device::cpu, f32)))
      return write_pruned<models::BertMaskedLm>(io::open_bert_masked_lm);
    return write_pruned<models::BertClassifier>(io::open_bert);
  }

  static double share(const std::string& option, const std::string& text, bool one_allowed) {
    double value = 0.0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || !(value > 0.0) || value > 1.0 ||
        (value == 1.0 && !one_allowed))
      throw UsageError(fmt::format("{}: a share above 0 and {} 1 is expected, but {} came", option,
                                   one_allowed ? "at most" : "below", text));
    return value;
  }

  void read_options() {
    const int ways = !keep_text_.empty() + !sparsity_text_.empty() + !pattern_text_.empty() +
                     !bits_text_.empty();
    if (ways != 1) throw UsageError("give exactly one of --keep, --sparsity, --pattern and --bits");
    if (packed_ && pattern_text_ != "2:4")
      throw UsageError(fmt::format("--packed stores the pattern 2:4 and needs --pattern 2:4{}",
                                   pattern_text_.empty() ? "" : ", but it is " + pattern_text_));
    std::error_code ignored;
    if (fs::equivalent(model_, save_, ignored))
      throw UsageError("--save must name another folder than --model");
    if (data_.empty())
      for (const char* option : {"--samples", "--batch"})
        if (given(app(), option))
          throw UsageError(fmt::format(
              "{} is for the windows of --data, which is not given: add --data FILE", option));
    try {
      if (budget_text_) budget_ = parse_bytes(*budget_text_);
      if (budget_ && overcommit_)
        throw UsageError(
            "--overcommit has no effect with --budget, which is always kept: leave out one of "
            "them");
      keep_text_.empty() ? read_sparse() : read_structured();
    } catch (const ValueError& error) {
      throw UsageError(error.what());
    }
  }

  // Whether weights are written in another form than they are read.
  bool packs() const { return bits_ || packed_; }

  void read_structured() {
    structured_.keep = share("--keep", keep_text_, true);
    if (budget_)
      throw UsageError(
          "--budget is for --sparsity, --pattern and --bits; --keep needs the whole model in "
          "memory");
    if (!method_text_.empty())
      throw UsageError("--method is for --sparsity and --pattern; for --keep, give --score");
    if (!score_.empty()) chosen_score_ = prune::score_named(score_);
    if (chosen_score_ != prune::Score::magnitude) require_data("--score " + score_);
    std::size_t begin = 0;
    while (!structure_.empty() && begin <= structure_.size()) {
      const std::size_t end = std::min(structure_.find(',', begin), structure_.size());
      add_structure(structure_.substr(begin, end - begin));
      begin = end + 1;
    }
    const bool sized = structure_.empty() || structured_.kinds.contains(prune::Kind::neurons) ||
                       structured_.kinds.contains(prune::Kind::channels);
    if (given(app(), "--multiple") && !sized)
      throw UsageError("--multiple is for neurons and channels, which --structure does not name");
  }

  void add_structure(const std::string& name) {
    if (name == "blocks") {
      structured_.blocks = true;
      return;
    }
    for (const prune::Kind kind : {prune::Kind::heads, prune::Kind::neurons, prune::Kind::channels})
      if (name == prune::name(kind)) {
        structured_.kinds.insert(kind);
        return;
      }
    throw UsageError(fmt::format(
        "--structure takes heads, neurons, channels and blocks, joined by commas, but \"{}\" came",
        name));
  }

  void read_sparse() {
    for (const auto& [option, text] : {std::pair("--score", score_), {"--structure", structure_}})
      if (!text.empty())
        throw UsageError(fmt::format("{} is for --keep; for single weights, use --method", option));
    if (given(app(), "--multiple"))
      throw UsageError(
          "--multiple is for neurons that --keep removes; here single weights are set to zero");
    if (data_.empty() && given(app(), "--sequence"))
      throw UsageError(
          "--sequence is for the windows of --data, which is not given: add --data FILE");
    if (!bits_text_.empty()) {
      bits_ = low_bits_by_name(bits_text_);
      if (!method_text_.empty())
        throw UsageError("--method is for --sparsity and --pattern; --bits uses GPTQ");
      require_data("--bits");
      return;
    }
    if (pattern_text_.empty())
      sparsity_.share = share("--sparsity", sparsity_text_, false);
    else
      sparsity_.pattern = prune::pattern_named(pattern_text_);
    if (!method_text_.empty()) method_ = prune::method_named(method_text_);
    if (method_ != prune::Method::magnitude) require_data("--method " + method_text_);
  }

  void require_data(const std::string& option) const {
    if (data_.empty())
      throw UsageError(fmt::format("{} needs text to measure the model on: --data FILE", option));
  }

  template <class Model>
  int write_pruned(Open<Model> open) {
    io::OpenFolder<Model> folder = open_as_stored(open, model_);
    const auto batches = read_batches(*folder.model);
    const std::vector<TensorType> types =
        batches.empty() ? trace_types(*folder.model) : batches.front().types();
    Json result{{"model", model_.string()},
                {"save", save_.string()},
                {"family", io::model_type(model_)},
                {"dtype", ebb::name(folder.model->dtype())}};
    const int code = keep_text_.empty()
                         ? write_changed(std::move(folder), open, batches, types, result)
                         : write_smaller(std::move(folder), batches, types, result);
    io::copy_tokenizer(model_, save_);
    if (json())
      std::cout << json_text(result) << "\n";
    else
      print_pruned(result);
    return code;
  }

  template <class Model>
  int write_smaller(io::OpenFolder<Model> folder, const std::vector<Batch>& batches,
                    const std::vector<TensorType>& types, Json& result) {
    const Size before = size_of(*folder.model);
    require_memory(before.bytes, device::cpu, overcommit_,
                   "--sparsity and --pattern read the weights block by block");
    folder.weights.load(*folder.model);
    std::unique_ptr<Model> dense = std::move(folder.model);
    const auto config = dense->config();
    if (!batches.empty()) result["loss"]["before"] = mean_loss(*dense, batches);
    const std::unique_ptr<Model> made = smaller(std::move(dense), batches, types, result);
    add_sizes(before, size_of(*made), result);
    if (!batches.empty()) {
      result["loss"]["after"] = mean_loss(*made, batches);
      result["loss"]["tokens"] = tokens_of(batches);
    }
    result["planned_step"] = {{"batch", types.front().shape[0]},
                              {"sequence", types.front().shape[1]},
                              {"before", planned<Model>(config, types)},
                              {"after", planned<Model>(made->config(), types)}};
    add_transformers(made->config(), result);
    io::save(*made, save_);
    return success;
  }

  // Weights are read, changed and written block by block: the model is never in memory as a whole.
  template <class Model>
  int write_changed(io::OpenFolder<Model> folder, Open<Model> open,
                    const std::vector<Batch>& batches, const std::vector<TensorType>& types,
                    Json& result) {
    const Model& model = *folder.model;
    std::unique_ptr<Model> form;  // how weights are written, if otherwise than they are read
    if (packs()) {
      form = open(model_, device::cpu, model.dtype()).model;
      nn::pack_layers(*form, bits_ ? nn::WeightForm(*bits_) : nn::Pairs{});
    }
    add_sizes(size_of(model), size_of(form ? *form : model), result);
    add_transformers(model.config(), result);
    if (packs()) {
      result["loads_in_transformers"] = false;
      result["why_not"] =
          bits_ ? "weights in few bits have a format of ebb's own"
                : "weights without the zeros of their pattern have a format of ebb's own";
    }
    OneShot one_shot{*folder.model, folder.weights, form ? *form : model, loss_of(*folder.model)};
    one_shot.method = method_, one_shot.sparsity = sparsity_, one_shot.bits = bits_;
    one_shot.folder = model_, one_shot.save = save_, one_shot.overcommit = overcommit_;
    one_shot.budget = budget_;
    const int code = one_shot.run(batches, types, result);
    if (!batches.empty()) result["loss"]["tokens"] = tokens_of(batches);
    return code;
  }

  static std::int64_t tokens_of(const std::vector<Batch>& batches) {
    return static_cast<std::int64_t>(batches.size()) *
           batches.front().types().front().shape.elements();
  }

  template <class Config>
  static void add_transformers(const Config& config, Json& result) {
    const auto refused = prune::refused_by_transformers(config);
    result["loads_in_transformers"] = !refused;
    if (refused) result["why_not"] = *refused;
  }

  struct Size {
    std::int64_t parameters = 0;
    Bytes bytes;
  };
  static Size size_of(const nn::ModuleBase& model) {
    Size size;
    for (const nn::NamedVariable& p : model.parameters()) {
      size.parameters += p.shape().elements();
      size.bytes += p.variable.type().bytes();
      if (p.pairs) size.bytes += p.pairs->positions.type().bytes();
    }
    return size;
  }
  static void add_sizes(const Size& before, const Size& after, Json& result) {
    result["parameters"] = {{"before", before.parameters}, {"after", after.parameters}};
    result["bytes"] = {{"before", before.bytes.count}, {"after", after.bytes.count}};
  }

  [[noreturn]] void too_long(std::int64_t context) const {
    throw UsageError(fmt::format("--sequence is at most the model's context, {}, but is {}",
                                 context, windows_.sequence));
  }

  template <class Model>
  std::vector<Batch> read_batches(const Model& model) const {
    if constexpr (std::is_base_of_v<models::CausalLm, Model>) {
      if (data_.empty()) return {};
      WindowChoice choice = windows_;
      if (choice.sequence > model.context()) too_long(model.context());
      if (choice.sequence == 0) choice.sequence = model.context();
      return spread_windows(read_tokens(data_, model_, model.vocabulary()), choice);
    }
    return {};
  }

  template <class Model>
  std::vector<TensorType> trace_types(const Model& model) const {
    const std::int64_t context = model.context();
    if (windows_.sequence > context) too_long(context);
    const std::int64_t length = windows_.sequence ? windows_.sequence : context;
    return {{{1, length}, i32}, {{1, length}, i32}};
  }

  template <class Model>
  double mean_loss(Model& model, const std::vector<Batch>& batches) const {
    const LossFunction loss = loss_of(model);
    EvalStep step(model, [&](const Batch& b) { return std::vector{loss(b)}; });
    require_memory(step.plan(batches.front().types()).arena(), device::cpu, overcommit_,
                   "a smaller --batch or --sequence takes less memory");
    double total = 0.0;
    for (const Batch& batch : batches) total += step(batch).front();
    require_finite_loss(total, model_, [&] { return non_finite_variable(model); });
    return total / static_cast<double>(batches.size());
  }

  template <class Model>
  std::unique_ptr<Model> smaller(std::unique_ptr<Model> dense, const std::vector<Batch>& batches,
                                 const std::vector<TensorType>& types, Json& result) const {
    const prune::Structure structure = prune::find_structure(*dense, loss_of(*dense), types);
    prune::StructuredOptions options = structured_;
    const prune::StructuredOptions usual = prune::usual_structure(*dense);
    options.under = usual.under;
    if (options.kinds.empty() && !options.blocks) options.kinds = usual.kinds;
    const prune::Scores scores = scored(structure, batches);
    const prune::Removal removal = prune::choose(structure, scores, options);
    Json removed = Json::array();
    for (std::size_t d = 0; d < removal.groups.size(); ++d)
      if (const std::size_t count = removal.groups[d].size())
        removed.push_back({{"path", structure.dimensions[d].path},
                           {"kind", prune::name(structure.dimensions[d].kind)},
                           {"before", structure.dimensions[d].groups.size()},
                           {"after", structure.dimensions[d].groups.size() - count}});
    for (const std::size_t b : removal.blocks)
      removed.push_back({{"path", structure.blocks[b].path}, {"kind", "blocks"}});
    if (removed.empty() && options.keep < 1.0)
      throw UsageError(
          fmt::format("--keep {} removes nothing: in no layer does the removed share amount to a "
                      "whole part, in multiples of --multiple {}",
                      keep_text_, options.multiple));
    result["score"] = prune::name(chosen_score_);
    result["keep"] = options.keep;
    result["removed"] = removed;
    return prune::pruned(*dense, structure, removal, prune::Release::yes);
  }

  prune::Scores scored(const prune::Structure& structure, const std::vector<Batch>& batches) const {
    if (chosen_score_ == prune::Score::magnitude) return prune::magnitude_scores(structure);
    prune::DataScores data(structure, chosen_score_);
    for (const Batch& batch : batches) data.add(batch);
    return data.scores();
  }

  // Plans a training step of AdamW in float32; the model gets no bytes.
  template <class Model, class Config>
  static Json planned(const Config& config, const std::vector<TensorType>& types) {
    const nn::MakeScope scope(device::cpu, f32);
    Model model(config);
    TrainStep step(model, optim::by_name("adamw"), loss_of(model));
    const Plan& plan = step.plan(types);
    const Bytes weights = plan.at_peak[Category::weights],
                gradients = plan.at_peak[Category::gradients],
                state = plan.at_peak[Category::optimizer];
    return {{"peak", plan.peak.count},
            {"weights", weights.count},
            {"gradients", gradients.count},
            {"optimizer", state.count},
            {"weights_gradients_state", (weights + gradients + state).count}};
  }

  fs::path model_, save_, data_;
  std::string keep_text_, score_, structure_, sparsity_text_, pattern_text_, bits_text_,
      method_text_;
  std::optional<std::string> budget_text_;
  std::optional<Bytes> budget_;  // of the process
  bool packed_ = false;
  std::optional<LowBits> bits_;
  prune::Score chosen_score_ = prune::Score::magnitude;
  prune::StructuredOptions structured_;
  prune::Sparsity sparsity_;
  prune::Method method_ = prune::Method::magnitude;
  WindowChoice windows_;
  bool overcommit_ = false;
};

}  // namespace

std::unique_ptr<Verb> prune_verb() { return std::make_unique<Prune>(); }

}  // namespace ebb::cli
