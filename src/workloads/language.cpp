// Language modelling workloads, which predict the next token: lm, gpt2 and llama.
#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "ebb/data/generated.h"
#include "ebb/data/text.h"
#include "ebb/error.h"
#include "ebb/io/atomic_file.h"
#include "ebb/io/hugging_face.h"
#include "ebb/models/gpt2.h"
#include "ebb/models/language_model.h"
#include "ebb/models/llama.h"
#include "ebb/prune/models.h"
#include "ebb/workloads/settings.h"
#include "workloads/families.h"
#include "workloads/text_data.h"
#include "workloads/text_files.h"

namespace ebb::workloads {
namespace {

namespace fs = std::filesystem;

TextData windows_of(const data::TokenStream& train, const data::TokenStream& test,
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
  return windows_of(text.part(0, cut), text.part(cut, text.size()), sequence, source(0, cut),
                    source(cut, text.size()));
}

// The tokens of text: a stream for each file, and the vocabulary as a tokenizer.
class TextReader {
 public:
  TextReader(const Options& options, std::int64_t sequence)
      : options_(options), sequence_(sequence), files_(text_files(*options.data)) {}

  TextData read() {
    TextData data = files_.test ? two_files() : one_file();
    data.tokens = std::string(name(kind_));
    data.tokenizer_json = tokenizer_json_;
    // Reports choices that no option made, in the line that describes the data.
    for (DataPart* part : {&data.train_part, &data.test_part})
      part->source += fmt::format(", read as {}{}", name(kind_), note_);
    return data;
  }

 private:
  TextData two_files() {
    const std::optional<TokenKind> kinds[] = {token_kind(options_, files_.train),
                                              token_kind(options_, *files_.test)};
    if (kinds[0] != kinds[1])
      throw ValueError(fmt::format(
          "{} and {} would be read as different tokens; the option tokens says as which",
          files_.train.string(), files_.test->string()));
    const data::TokenStream train = stream(files_.train, data::Vocabulary::whole_text);
    const TokenKind kind = kind_;
    const data::TokenStream test = stream(*files_.test, data::Vocabulary::whole_text);
    if (kind != kind_)
      throw ValueError(fmt::format("{} looks like {}, but {} like {}; the option tokens says which",
                                   files_.train.string(), name(kind), files_.test->string(),
                                   name(kind_)));
    return windows(train, test, sequence_);
  }

  TextData one_file() {
    if (token_kind(options_, files_.train) != TokenKind::words) {
      const data::TokenStream whole = stream(files_.train, data::Vocabulary::whole_text);
      return workloads::divided(whole, sequence_);
    }
    const std::int64_t cut =
        cut_of(files_.train.string(), data::count_words(files_.train), sequence_);
    return divided(stream(files_.train, cut), cut, sequence_);
  }

  // The words are those of the first `seen` tokens of the first text.
  data::TokenStream stream(const fs::path& file, std::int64_t seen) {
    const std::optional<TokenKind> kind = token_kind(options_, file);
    if (kind == TokenKind::bytes) {
      kind_ = *kind, tokenizer_json_ = byte_tokenizer_json();
      return data::TokenStream::bytes(file);
    }
    if (kind != TokenKind::words) return numbers(file);
    kind_ = *kind;
    if (!words_) {
      words_ = data::Vocabulary::of_text(
          file, options_.vocabulary.value_or(data::Vocabulary::no_limit), seen);
      tokenizer_json_ = word_tokenizer_json(*words_);
    }
    return data::TokenStream::words(file, *words_);
  }

  // Tokens from other programs. nanoGPT's meta.pkl gives their vocabulary; an option may request a
  // larger one.
  data::TokenStream numbers(const fs::path& file) {
    std::int64_t vocabulary = options_.vocabulary.value_or(50257);
    if (const std::optional<data::NanoGptMeta> meta = meta_beside(file)) {
      if (options_.vocabulary.value_or(meta->vocabulary) < meta->vocabulary)
        throw ValueError(fmt::format(
            "{}: meta.pkl beside it has {} tokens, but the option vocabulary is {}; without the "
            "option, meta.pkl says it",
            file.string(), meta->vocabulary, *options_.vocabulary));
      vocabulary = options_.vocabulary.value_or(meta->vocabulary);
      if (!meta->characters.empty()) tokenizer_json_ = character_tokenizer_json(meta->characters);
      note_ = fmt::format(" with the {} {} of meta.pkl", meta->vocabulary,
                          meta->characters.empty() ? "tokens" : "characters");
    }
    return token_file(options_, file, vocabulary, kind_);
  }

  const Options& options_;
  const std::int64_t sequence_;
  const TextFiles files_;
  std::string note_;  // on how tokens are read
  TokenKind kind_ = TokenKind::bytes;
  std::optional<data::Vocabulary> words_;
  std::string tokenizer_json_;
};

TextData from_files(const Options& options, std::int64_t sequence) {
  constexpr std::int64_t longest = std::numeric_limits<std::int32_t>::max();
  if (sequence < 1 || sequence > longest)
    throw ValueError(
        fmt::format("the option sequence must be between 1 and {}, but is {}", longest, sequence));
  return TextReader(options, sequence).read();
}

TextData text_data(const Options& options, std::int64_t sequence, std::int64_t vocabulary) {
  return options.data ? from_files(options, sequence)
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
      : rate_(rate), fused_loss_(options.fused_loss) {
    const nn::MakeScope scope(options.device, options.dtype);
    model_ = std::make_unique<Model>(config);
    train = text.train, test = text.test, limit = text.limit;
    train_part = text.train_part, test_part = text.test_part;
    tokenizer_json = text.tokenizer_json, settings.tokens = text.tokens;
    fuses_loss = true;
    saves = requires { io::save(*model_, fs::path()); };
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
  nn::ModuleBase& model() override { return *model_; }
  Tensor loss(const Batch& b) override {
    return fused_loss_ ? model_->loss(b.x(), b.y()) : cross_entropy(model_->logits(b.x()), b.y());
  }
  optim::Optimizer optimizer() const override {
    return optim::Optimizer(optim::AdamW{.lr = rate_}).with(optim::no_decay_for_vectors());
  }
  bool save(const fs::path& folder) const override {
    if constexpr (requires { io::save(*model_, folder); }) {
      io::save(*model_, folder);
      if (tokenizer_json.empty()) return true;
      io::AtomicFile file(folder / "tokenizer.json");
      file.write(tokenizer_json);
      file.commit();
      return true;
    } else {
      return false;
    }
  }
  void shrink(const prune::Structure& structure, const prune::Removal& removal,
              prune::Values values) override {
    prune::shrink(model_, structure, removal, values);
  }
  std::optional<std::string> refused_by_transformers() const override {
    if constexpr (requires { prune::refused_by_transformers(model_->config()); })
      return prune::refused_by_transformers(model_->config());
    else
      return {};
  }

 private:
  std::unique_ptr<Model> model_;
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

TextData windows(const data::TokenStream& train, const data::TokenStream& test,
                 std::int64_t sequence) {
  return windows_of(train, test, sequence, train.name(), test.name());
}

TextData divided(const data::TokenStream& text, std::int64_t sequence) {
  return divided(text, cut_of(text.name(), text.size(), sequence), sequence);
}

bool read_as_bytes(const Options& options) {
  try {
    return token_kind(options, text_files(*options.data).train) == TokenKind::bytes;
  } catch (const Error&) {
    return false;  // reading says what is wrong
  }
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
