// Language modelling workloads, which predict the next token: lm, gpt2 and llama.
#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "ebb/data/generated.h"
#include "ebb/data/text.h"
#include "ebb/error.h"
#include "ebb/io/hugging_face.h"
#include "ebb/models/gpt2.h"
#include "ebb/models/language_model.h"
#include "ebb/models/llama.h"
#include "ebb/workloads/settings.h"
#include "workloads/families.h"
#include "workloads/text_data.h"

namespace ebb::workloads {
namespace {

namespace fs = std::filesystem;

// The first of these files that exists in the folder.
std::optional<fs::path> first_existing(const fs::path& folder,
                                       std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (fs::exists(folder / name)) return folder / name;
  return {};
}

TextData windows(const data::TokenStream& train, const data::TokenStream& test,
                 std::int64_t sequence, const std::string& train_source,
                 const std::string& test_source) {
  const data::WindowOptions options{.sequence = sequence};
  return {std::make_shared<data::WindowDataset>(train, options),
          std::make_shared<data::WindowDataset>(test, options),
          {train_source, 0, train.size()},
          {test_source, 0, test.size()},
          train.vocabulary()};
}

// The position at which a text of `size` tokens is split: the tokens after it are held out for
// testing. That is the last tenth, at most 2000 windows and at least one. A window has `sequence`
// tokens plus the next token as its last target.
std::int64_t cut_of(const std::string& name, std::int64_t size, std::int64_t sequence) {
  constexpr std::int64_t most_windows = 2000;
  const std::int64_t window = sequence + 1;
  if (size < 2 * window)
    throw ValueError(fmt::format(
        "{}: a window of {} tokens to train on and another to test with are needed, but there are "
        "{} tokens; a shorter sequence would do",
        name, window, size));
  return size - std::clamp(size / 10, window, most_windows * sequence + 1);
}

// Trains and tests on parts of one text.
TextData divided(const data::TokenStream& text, std::int64_t cut, std::int64_t sequence) {
  const auto source = [&](std::int64_t begin, std::int64_t end) {
    return fmt::format("{}, tokens {} to {}", text.name(), begin, end);
  };
  return windows(text.part(0, cut), text.part(cut, text.size()), sequence, source(0, cut),
                 source(cut, text.size()));
}

TextData from_folder(const fs::path& folder, std::int64_t sequence, std::int64_t limit) {
  const auto train = first_existing(
                 folder, {"train.txt", "ptb.train.txt", "input.txt", "valid.txt", "ptb.valid.txt"}),
             test =
                 first_existing(folder, {"test.txt", "ptb.test.txt", "valid.txt", "ptb.valid.txt"});
  if (!train)
    throw FileError(
        fmt::format("{}: expected train.txt, ptb.train.txt, input.txt or valid.txt in the folder",
                    folder.string()));
  if (!test || fs::equivalent(*train, *test)) {
    const std::int64_t cut = cut_of(train->string(), data::count_words(*train), sequence);
    const data::Vocabulary words = data::Vocabulary::of_text(*train, limit, cut);
    return divided(data::TokenStream::words(*train, words), cut, sequence);
  }
  const data::Vocabulary words = data::Vocabulary::of_text(*train, limit);
  return windows(data::TokenStream::words(*train, words), data::TokenStream::words(*test, words),
                 sequence, train->string(), test->string());
}

// Reads a folder of text files in the format of the Penn Treebank (a token per word), a token file
// (.bin, little-endian int32), or any other file (a token per byte).
TextData from_files(const fs::path& path, std::int64_t sequence,
                    std::optional<std::int64_t> vocabulary) {
  constexpr std::int64_t longest = std::numeric_limits<std::int32_t>::max();
  if (sequence < 1 || sequence > longest)
    throw ValueError(
        fmt::format("the option sequence must be between 1 and {}, but is {}", longest, sequence));
  if (fs::is_directory(path))
    return from_folder(path, sequence, vocabulary.value_or(data::Vocabulary::no_limit));
  const data::TokenStream stream =
      read_as_bytes(path)
          ? data::TokenStream::bytes(path)
          : data::TokenStream::file(path, data::TokenWidth::int32, vocabulary.value_or(50257));
  return workloads::divided(stream, sequence);
}

TextData text_data(const Options& options, std::int64_t sequence, std::int64_t vocabulary) {
  return options.data ? from_files(*options.data, sequence, options.vocabulary)
                      : generated_text(sequence, vocabulary, options.seed);
}

// The dropout probability of a model: `Options::dropout` sets all of its dropouts to one value.
double dropout_of(const models::LanguageModelConfig& c) { return c.dropout; }
double dropout_of(const models::Gpt2Config& c) { return c.dropout.residual; }
double dropout_of(const models::LlamaConfig& c) { return c.attention_dropout; }

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
    train_part = text.train_part, test_part = text.test_part;
    fuses_loss = true;
    saves = requires { io::save(model_, fs::path()); };
    batch_size = options.batch.value_or(default_batch);
    settings.sequence = config.context, settings.layers = config.layers;
    settings.heads = config.heads, settings.batch = batch_size;
    settings.vocabulary = options.data ? options.vocabulary : config.vocabulary;
    if constexpr (requires { config.width; }) settings.width = config.width;
    if constexpr (requires { config.embedding; }) settings.width = config.embedding;
    if (uses(options, Setting::hidden)) settings.hidden = config.hidden;
    if constexpr (requires { config.key_value_heads; })
      settings.key_value_heads = config.key_value_heads;
    settings.dropout = dropout_of(config);
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

TextData generated_text(std::int64_t sequence, std::int64_t vocabulary, std::uint64_t seed) {
  data::MarkovOptions source;
  source.symbols = vocabulary;
  source.branches = std::min<std::int64_t>(4, vocabulary);
  source.sequence = sequence;
  source.seed = seed;
  const auto text = std::make_shared<data::MarkovText>(source);
  constexpr std::int64_t tests = 4096;
  const DataPart part{"generated Markov text"};
  return {data::Subset::range(text, 0, text->size() - tests),
          data::Subset::range(text, text->size() - tests, text->size()),
          part,
          part,
          vocabulary,
          Limit{Limit::Kind::loss, text->best_loss()}};
}

TextData divided(const data::TokenStream& text, std::int64_t sequence) {
  return divided(text, cut_of(text.name(), text.size(), sequence), sequence);
}

bool read_as_bytes(const fs::path& file) {
  return !fs::is_directory(file) && file.extension() != ".bin";
}

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
  if (o.dropout) c.dropout = *o.dropout;
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
  c.attention_dropout = o.dropout.value_or(c.attention_dropout);
  return std::make_unique<LanguageWorkload<models::Llama>>(o, c, 1, text, 3e-4);
}

}  // namespace ebb::workloads
