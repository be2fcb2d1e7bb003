// `ebb prune`: a smaller or a sparser model from a Hugging Face folder.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <charconv>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/calibration.h"
#include "cli/memory_check.h"
#include "cli/options.h"
#include "cli/prune_report.h"
#include "cli/verb.h"
#include "core/json.h"
#include "ebb/ebb.h"
#include "ebb/io/hugging_face.h"
#include "ebb/optim/by_name.h"
#include "ebb/prune/models.h"
#include "ebb/prune/weights.h"
#include "ebb/train/eval_step.h"
#include "io/hugging_face/open.h"

namespace ebb::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Files that belong to a model besides its config and weights.
constexpr const char* companions[] = {"tokenizer.json",
                                      "tokenizer_config.json",
                                      "tokenizer.model",
                                      "special_tokens_map.json",
                                      "added_tokens.json",
                                      "vocab.json",
                                      "vocab.txt",
                                      "merges.txt",
                                      "generation_config.json",
                                      "chat_template.jinja"};

// A folder's model in the dtype that its weights are stored in.
template <class Model>
std::unique_ptr<Model> load(io::OpenFolder<Model> (*open)(const fs::path&, Device, DType),
                            const fs::path& folder) {
  const io::OpenFolder<Model> shapes = open(folder, device::cpu, f32);
  if (const auto& missing = shapes.model->origin().initialised; !missing.empty())
    throw FileError(fmt::format(
        "{}: it has no {}, which would start from random numbers; train the model and prune what "
        "is saved",
        folder.string(), fmt::join(missing, ", ")));
  const std::string path = shapes.model->parameters().front().path;
  const DType stored = shapes.weights.at(path).type.dtype;
  io::OpenFolder<Model> opened =
      open(folder, device::cpu, stored == bf16 || stored == f16 ? stored : f32);
  opened.weights.load(*opened.model);
  for (const nn::NamedVariable& p : opened.model->parameters())
    if (!p.variable.has_value()) p.variable.materialise();
  return std::move(opened.model);
}

template <class Model>
LossFunction loss_of(Model& model) {
  if constexpr (std::is_base_of_v<models::CausalLm, Model>)
    return [&model](const Batch& b) { return model.loss(b.x(), b.y()); };
  else  // whatever the labels mean, groups and memory are the same
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
               "Share of heads, neurons or blocks that stays, in every layer; the rest is removed")
        .type_name("SHARE");
    add_option(app, "--score", score_,
               "What goes first: magnitude, taylor or activation; the last two need --data "
               "(default: magnitude)")
        .type_name("NAME");
    add_option(app, "--structure", structure_,
               "What is removed, with commas: heads, neurons, blocks (default: heads,neurons; for "
               "BERT neurons)")
        .type_name("LIST");
    add_option(app, "--multiple", structured_.multiple,
               "The number of neurons that stay is a multiple of this; GPUs like 64")
        .positive()
        .show_default();
    add_option(app, "--sparsity", sparsity_text_,
               "Instead of --keep: share of the weights of each matrix that becomes zero")
        .type_name("SHARE");
    add_option(app, "--pattern", pattern_text_,
               "Instead of --keep: N:M keeps N of every M neighbouring weights, such as 2:4")
        .type_name("N:M");
    add_option(app, "--method", method_text_,
               "For --sparsity and --pattern: magnitude, wanda or sparsegpt; the last two need "
               "--data (default: magnitude)")
        .type_name("NAME");
    add_option(app, "--data", data_,
               "Text for the model's tokenizer.json, or int32 tokens as FILE.bin; the loss before "
               "and after is of the same windows")
        .existing_file();
    add_option(app, "--samples", windows_.samples, "Windows of the data, evenly spread")
        .positive()
        .show_default();
    add_option(app, "--sequence", windows_.sequence,
               "Tokens of a window (default: the model's context)")
        .positive();
    add_option(app, "--batch", windows_.batch, "Windows at a time").positive().show_default();
    add_overcommit_option(app, overcommit_);
  }

  int run() override {
    read_options();
    const std::string type = io::model_type(model_);
    if (type == "gpt2") return write_pruned(load(io::open_gpt2, model_));
    if (type == "llama") return write_pruned(load(io::open_llama, model_));
    if (type != "bert")
      throw FileError(fmt::format("{}: ebb prune takes gpt2, llama and bert models, but this is {}",
                                  model_.string(), type));
    if (!data_.empty())
      throw UsageError("--data is for models that predict the next token: GPT-2 and Llama");
    return write_pruned(load(io::open_bert, model_));
  }

 private:
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
    const int ways = !keep_text_.empty() + !sparsity_text_.empty() + !pattern_text_.empty();
    if (ways != 1) throw UsageError("say how much goes by one of --keep, --sparsity and --pattern");
    std::error_code ignored;
    if (fs::equivalent(model_, save_, ignored))
      throw UsageError("--save must name another folder than --model");
    try {
      keep_text_.empty() ? read_sparse() : read_structured();
    } catch (const ValueError& error) {
      throw UsageError(error.what());
    }
  }

  void read_structured() {
    structured_.keep = share("--keep", keep_text_, true);
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
        "--structure takes heads, neurons, channels and blocks, with commas, but \"{}\" came",
        name));
  }

  void read_sparse() {
    for (const auto& [option, text] : {std::pair("--score", score_), {"--structure", structure_}})
      if (!text.empty())
        throw UsageError(fmt::format("{} is for --keep; for weights, give --method", option));
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
  int write_pruned(std::unique_ptr<Model> dense) {
    const auto batches = read_batches(*dense);
    const std::vector<TensorType> types =
        batches.empty() ? trace_types(*dense) : batches.front().types();
    Json result{{"model", model_.string()},
                {"save", save_.string()},
                {"family", io::model_type(model_)},
                {"dtype", ebb::name(dense->dtype())}};
    const auto config = dense->config();
    const Size before = size_of(*dense);
    if (!batches.empty()) result["loss"]["before"] = mean_loss(*dense, batches);
    std::unique_ptr<Model> made = keep_text_.empty()
                                      ? with_zeros(std::move(dense), batches, types, result)
                                      : smaller(std::move(dense), batches, types, result);
    const Size after = size_of(*made);
    result["parameters"] = {{"before", before.parameters}, {"after", after.parameters}};
    result["bytes"] = {{"before", before.bytes.count}, {"after", after.bytes.count}};
    if (!batches.empty()) {
      result["loss"]["after"] = mean_loss(*made, batches);
      result["loss"]["tokens"] =
          static_cast<std::int64_t>(batches.size()) * types.front().shape.elements();
    }
    result["planned_step"] = {{"batch", types.front().shape[0]},
                              {"sequence", types.front().shape[1]},
                              {"before", planned<Model>(config, types)},
                              {"after", planned<Model>(made->config(), types)}};
    const auto refused = prune::refused_by_transformers(made->config());
    result["loads_in_transformers"] = !refused;
    if (refused) result["why_not"] = *refused;
    io::save(*made, save_);
    copy_companions();
    if (json())
      std::cout << json_text(result) << "\n";
    else
      print_pruned(result);
    return success;
  }

  struct Size {
    std::int64_t parameters = 0;
    Bytes bytes;
  };
  static Size size_of(const nn::ModuleBase& model) {
    Size size;
    for (const nn::NamedVariable& p : model.parameters()) {
      size.parameters += p.variable.shape().elements();
      size.bytes = size.bytes + p.variable.type().bytes();
    }
    return size;
  }

  template <class Model>
  std::vector<Batch> read_batches(const Model& model) const {
    if constexpr (std::is_base_of_v<models::CausalLm, Model>) {
      if (data_.empty()) return {};
      WindowChoice choice = windows_;
      if (choice.sequence > model.context())
        throw UsageError(fmt::format("--sequence is at most the model's context, {}, but is {}",
                                     model.context(), choice.sequence));
      if (choice.sequence == 0) choice.sequence = model.context();
      return spread_windows(read_tokens(data_, model_, model.vocabulary()), choice);
    }
    return {};
  }

  template <class Model>
  std::vector<TensorType> trace_types(const Model& model) const {
    const std::int64_t context = model.config().context;
    const std::int64_t length = windows_.sequence ? std::min(windows_.sequence, context) : context;
    return {{{1, length}, i32}, {{1, length}, i32}};
  }

  template <class Model>
  double mean_loss(Model& model, const std::vector<Batch>& batches) const {
    const LossFunction loss = loss_of(model);
    EvalStep step(model, [&](const Batch& b) { return std::vector{loss(b)}; });
    require_memory(step.plan(batches.front().types()).arena(), device::cpu, overcommit_,
                   "a smaller --batch or --sequence takes less");
    double total = 0.0;
    for (const Batch& batch : batches) total += step(batch).front();
    return total / static_cast<double>(batches.size());
  }

  template <class Model>
  std::unique_ptr<Model> smaller(std::unique_ptr<Model> dense, const std::vector<Batch>& batches,
                                 const std::vector<TensorType>& types, Json& result) const {
    const prune::Structure structure = prune::find_structure(*dense, loss_of(*dense), types);
    prune::StructuredOptions options = structured_;
    constexpr bool bert = std::is_same_v<Model, models::BertClassifier>;
    if (bert) options.under = "bert.encoder";  // the pooler has the model's width
    if (options.kinds.empty() && !options.blocks) {
      options.kinds = {prune::Kind::neurons};
      if (!bert) options.kinds.insert(prune::Kind::heads);
    }
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

  template <class Model>
  std::unique_ptr<Model> with_zeros(std::unique_ptr<Model> dense, const std::vector<Batch>& batches,
                                    const std::vector<TensorType>& types, Json& result) const {
    const prune::PrunedWeights report =
        prune::prune_weights(*dense, loss_of(*dense), batches, types, method_, sparsity_);
    result["method"] = prune::name(method_);
    if (sparsity_.pattern)
      result["pattern"] = fmt::format("{}:{}", sparsity_.pattern->kept, sparsity_.pattern->of);
    else
      result["sparsity"] = sparsity_.share;
    result["matrices"] = report.matrices;
    result["weights"] = report.weights;
    result["zeros"] = report.zeros;
    return dense;
  }

  // A training step of AdamW in float32, by plan alone: the model gets no bytes.
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

  void copy_companions() const {
    for (const char* name : companions) {
      std::error_code error;
      if (!fs::exists(model_ / name)) continue;
      fs::copy_file(model_ / name, save_ / name, fs::copy_options::overwrite_existing, error);
      if (error)
        throw FileError(fmt::format("{}: cannot be copied to {}: {}", (model_ / name).string(),
                                    save_.string(), error.message()));
    }
  }

  fs::path model_, save_, data_;
  std::string keep_text_, score_, structure_, sparsity_text_, pattern_text_, method_text_;
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
