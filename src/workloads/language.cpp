// Workloads that predict the next token: lm, gpt2 and llama.
#include <fmt/format.h>

#include "ebb/data/generated.h"
#include "ebb/data/text.h"
#include "ebb/error.h"
#include "ebb/io/hugging_face.h"
#include "ebb/models/gpt2.h"
#include "ebb/models/language_model.h"
#include "ebb/models/llama.h"
#include "workloads/families.h"

namespace ebb::workloads {
namespace {

namespace fs = std::filesystem;

struct TextData {
  data::DatasetPtr train, test;
  std::int64_t vocabulary = 0;
  std::optional<Limit> limit;
};

TextData generated(const Options& options, std::int64_t sequence, std::int64_t vocabulary) {
  data::MarkovOptions source;
  source.symbols = vocabulary;
  source.branches = std::min<std::int64_t>(4, vocabulary);
  source.sequence = sequence;
  source.seed = options.seed;
  const auto text = std::make_shared<data::MarkovText>(source);
  return {data::Subset::range(text, 0, text->size() - 4096),
          data::Subset::range(text, text->size() - 4096, text->size()), vocabulary,
          Limit{Limit::Kind::loss, text->best_loss()}};
}

fs::path first_existing(const fs::path& folder, std::initializer_list<const char*> names) {
  std::string tried;
  for (const char* name : names) {
    if (fs::exists(folder / name)) return folder / name;
    tried += fmt::format("{}{}", tried.empty() ? "" : ", ", name);
  }
  throw FileError(fmt::format("{}: expected one of {} in the folder", folder.string(), tried));
}

TextData windows(const data::TokenStream& train, const data::TokenStream& test,
                 std::int64_t sequence) {
  const data::WindowOptions options{.sequence = sequence};
  return {std::make_shared<data::WindowDataset>(train, options),
          std::make_shared<data::WindowDataset>(test, options),
          train.vocabulary(),
          {}};
}

// A folder of words in PTB's form, a token file (.bin, little-endian int32), or any file as bytes.
TextData from_files(const fs::path& path, std::int64_t sequence,
                    std::optional<std::int64_t> vocabulary) {
  if (fs::is_directory(path)) {
    const fs::path train =
        first_existing(path, {"train.txt", "ptb.train.txt", "valid.txt", "input.txt"});
    const fs::path test =
        first_existing(path, {"test.txt", "ptb.test.txt", "valid.txt", "input.txt"});
    const data::Vocabulary words =
        data::Vocabulary::of_text(train, vocabulary.value_or(data::Vocabulary::no_limit));
    return windows(data::TokenStream::words(train, words), data::TokenStream::words(test, words),
                   sequence);
  }
  const data::TokenStream stream =
      path.extension() == ".bin"
          ? data::TokenStream::file(path, data::TokenWidth::int32, vocabulary.value_or(50257))
          : data::TokenStream::bytes(path);
  return windows(stream, stream, sequence);
}

TextData text_data(const Options& options, std::int64_t sequence, std::int64_t vocabulary) {
  return options.data ? from_files(*options.data, sequence, options.vocabulary)
                      : generated(options, sequence, vocabulary);
}

template <class Model>
class LanguageWorkload : public Workload {
 public:
  template <class Config>
  LanguageWorkload(const Options& options, const Config& config, std::int64_t default_batch,
                   const TextData& text, double rate)
      : model_(make<Model>(options.device, options.dtype, config)),
        rate_(rate),
        fused_loss_(options.fused_loss) {
    train = text.train, test = text.test, limit = text.limit;
    fuses_loss = true;
    saves = requires { io::save(model_, fs::path()); };
    batch_size = options.batch.value_or(default_batch);
    settings.sequence = config.context, settings.layers = config.layers;
    settings.heads = config.heads, settings.batch = batch_size;
    settings.vocabulary = options.data ? options.vocabulary : config.vocabulary;
    if constexpr (requires { config.width; }) settings.width = config.width;
    if constexpr (requires { config.embedding; }) settings.width = config.embedding;
    if constexpr (requires { config.hidden; }) settings.hidden = config.hidden;
    if constexpr (requires { config.key_value_heads; })
      settings.key_value_heads = config.key_value_heads;
    if constexpr (requires { config.dropout; }) settings.dropout = config.dropout;
  }
  nn::ModuleBase& model() override { return model_; }
  Tensor loss(const Batch& b) override {
    return fused_loss_ ? model_.loss(b.x(), b.y()) : cross_entropy(model_.logits(b.x()), b.y());
  }
  optim::Optimizer optimizer() const override {
    return optim::Optimizer(optim::AdamW{.lr = rate_}).with(optim::no_decay_for_vectors());
  }
  bool save(const fs::path& folder) const override {
    if constexpr (requires { io::save(model_, folder); })
      return io::save(model_, folder), true;
    else
      return false;
  }

 private:
  Model model_;
  double rate_;
  bool fused_loss_;
};

}  // namespace

std::unique_ptr<Workload> make_lm(const Options& o) {
  models::LanguageModelConfig c;
  c.context = o.sequence.value_or(c.context);
  const TextData text = text_data(o, c.context, o.vocabulary.value_or(64));
  c.vocabulary = text.vocabulary;
  c.embedding = o.width.value_or(c.embedding);
  c.hidden = o.hidden.value_or(c.hidden);
  c.layers = o.layers.value_or(c.layers);
  c.heads = o.heads.value_or(c.heads);
  c.dropout = o.dropout.value_or(c.dropout);
  return std::make_unique<LanguageWorkload<models::LanguageModel>>(o, c, 256, text, 3e-3);
}

std::unique_ptr<Workload> make_gpt2(const Options& o) {
  models::Gpt2Config c;
  c.context = o.sequence.value_or(c.context);
  const TextData text = text_data(o, c.context, o.vocabulary.value_or(c.vocabulary));
  c.vocabulary = text.vocabulary;
  c.layers = o.layers.value_or(c.layers);
  c.heads = o.heads.value_or(c.heads);
  c.width = o.width.value_or(c.width);
  c.dropout = o.dropout.value_or(c.dropout);
  return std::make_unique<LanguageWorkload<models::Gpt2>>(o, c, 4, text, 3e-4);
}

std::unique_ptr<Workload> make_llama(const Options& o) {
  models::LlamaConfig c;
  c.context = o.sequence.value_or(c.context);
  const TextData text = text_data(o, c.context, o.vocabulary.value_or(c.vocabulary));
  c.vocabulary = text.vocabulary;
  c.layers = o.layers.value_or(c.layers);
  c.heads = o.heads.value_or(c.heads);
  c.key_value_heads = o.key_value_heads.value_or(o.heads ? c.heads : c.key_value_heads);
  c.width = o.width.value_or(c.width);
  c.hidden = o.hidden.value_or(c.hidden);
  return std::make_unique<LanguageWorkload<models::Llama>>(o, c, 1, text, 3e-4);
}

}  // namespace ebb::workloads
