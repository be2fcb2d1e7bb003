#include "workloads/folder_text.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <utility>

#include "core/json.h"
#include "data/gzip.h"
#include "ebb/data/labelled_text.h"
#include "ebb/error.h"
#include "ebb/text/tokenizer.h"
#include "workloads/families.h"
#include "workloads/random_parts.h"
#include "workloads/text_files.h"

namespace ebb::workloads {
namespace {

namespace fs = std::filesystem;
using text::Specials;

// The folder's tokenizer, with errors that name the text's file.
class FileTokenizer {
 public:
  FileTokenizer(const io::ModelFolder& folder, const fs::path& file, std::int64_t vocabulary)
      : folder_(folder.path),
        file_(file),
        vocabulary_(vocabulary),
        tokenizer_(text::Tokenizer::load(folder.path)) {}

  // Appends the tokens of `text`. `place` names it in errors.
  void encode(std::string_view text, Specials specials, std::vector<std::int32_t>& ids,
              const std::string& place = {}) const {
    const std::size_t before = ids.size();
    try {
      tokenizer_.encode(text, specials, ids);
    } catch (const ValueError& error) {
      throw FileError(fmt::format("{}: {}{}", file_.string(), place, error.what()));
    }
    for (std::size_t i = before; i < ids.size(); ++i)
      if (ids[i] >= vocabulary_)
        throw FileError(
            fmt::format("{}: its tokenizer.json gives token {} for {}, but the model has tokens "
                        "below {}",
                        folder_.string(), ids[i], file_.string(), vocabulary_));
  }
  std::vector<std::int32_t> special_ids() const { return tokenizer_.special_ids(); }
  std::int32_t mask_token() const {
    for (const char* name : {"[MASK]", "<mask>"})
      if (const auto id = tokenizer_.id(name); id && *id < vocabulary_) return *id;
    throw FileError(fmt::format(
        "{}: its tokenizer.json has no token that hides another, [MASK] or <mask>, below the {} "
        "tokens of the model",
        folder_.string(), vocabulary_));
  }

  std::vector<std::int32_t> encode(std::string_view text, Specials specials,
                                   const std::string& place = {}) const {
    std::vector<std::int32_t> ids;
    encode(text, specials, ids, place);
    return ids;
  }

 private:
  fs::path folder_, file_;
  std::int64_t vocabulary_;
  text::Tokenizer tokenizer_;
};

std::string text_number(std::size_t i) { return fmt::format("text {}: ", i + 1); }

data::TokenSequence tokens_of(const data::Document& document, const FileTokenizer& tokenizer,
                              std::optional<std::int32_t> end, const std::string& place) {
  data::TokenSequence s;
  if (document.has_prompt) {
    tokenizer.encode(document.prompt, Specials::with, s.tokens, place);
    s.first_target = std::max<std::int64_t>(1, static_cast<std::int64_t>(s.tokens.size()));
    tokenizer.encode(document.text, Specials::without, s.tokens, place);
  } else {
    tokenizer.encode(document.text, Specials::with, s.tokens, place);
  }
  if (end && (s.tokens.empty() || s.tokens.back() != *end)) s.tokens.push_back(*end);
  return s;
}

// The text's tokens with the special ones around them, at most `most` in all. Only tokens of the
// text are left out, from its end.
std::vector<std::int32_t> cut_inside(const std::string& text, const FileTokenizer& tokenizer,
                                     std::int64_t most, const std::string& place) {
  std::vector<std::int32_t> whole = tokenizer.encode(text, Specials::with, place);
  const auto limit = static_cast<std::size_t>(most);
  if (whole.size() <= limit) return whole;
  const std::vector<std::int32_t> plain = tokenizer.encode(text, Specials::without, place);
  const std::size_t special = whole.size() - plain.size();
  if (special >= limit)
    throw ValueError(
        fmt::format("a sequence of {} tokens has no room for text beside the {} special tokens",
                    most, special));
  const auto inner = std::search(whole.begin(), whole.end(), plain.begin(), plain.end());
  const auto before = inner - whole.begin();
  std::vector<std::int32_t> cut(whole.begin(), inner);
  cut.insert(cut.end(), plain.begin(),
             plain.begin() + static_cast<std::ptrdiff_t>(limit - special));
  cut.insert(cut.end(), whole.begin() + before + static_cast<std::ptrdiff_t>(plain.size()),
             whole.end());
  return cut;
}

// The special tokens that the tokenizer puts before and after a text.
struct Frame {
  std::vector<std::int32_t> before, after;
};
Frame frame_of(const FileTokenizer& tokenizer) {
  const std::string_view sample = "a";
  const std::vector<std::int32_t> whole = tokenizer.encode(sample, Specials::with),
                                  plain = tokenizer.encode(sample, Specials::without);
  const auto inner = std::search(whole.begin(), whole.end(), plain.begin(), plain.end());
  return {{whole.begin(), inner}, {inner + static_cast<std::ptrdiff_t>(plain.size()), whole.end()}};
}

// Some documents of a file, in this order.
template <class Documents>
std::shared_ptr<Documents> some_documents(const io::ModelFolder& folder,
                                          const DocumentTokens& tokens, std::int64_t sequence,
                                          std::span<const std::int64_t> documents) {
  std::vector<data::TokenSequence> parts;
  for (const std::int64_t document : documents) {
    const auto first = static_cast<std::size_t>(document);
    parts.insert(parts.end(), tokens.parts.begin() + tokens.first_part[first],
                 tokens.parts.begin() + tokens.first_part[first + 1]);
  }
  return std::make_shared<Documents>(
      std::move(parts),
      data::SequenceOptions{.sequence = sequence, .padding = folder.padding.value_or(0)});
}

std::vector<std::int64_t> all_of(std::int64_t count) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

template <class Documents>
TextData of_documents(const io::ModelFolder& folder, const TextFiles& files,
                      std::int64_t sequence) {
  TextData data;
  const std::string name = files.train.string();
  const auto make = [&](const DocumentTokens& tokens, std::span<const std::int64_t> documents,
                        const std::string& source, DataPart& part) {
    auto made = some_documents<Documents>(folder, tokens, sequence, documents);
    part = {source}, part.tokens = made->tokens();
    return made;
  };
  const auto whole = [](const fs::path& file, const DocumentTokens& tokens) {
    return fmt::format("{}, all {} texts", file.string(), tokens.documents());
  };
  const DocumentTokens train = document_tokens(folder, files.train, sequence);
  if (files.test) {
    const DocumentTokens test = document_tokens(folder, *files.test, sequence);
    data.train = make(train, all_of(train.documents()), whole(files.train, train), data.train_part);
    data.test = make(test, all_of(test.documents()), whole(*files.test, test), data.test_part);
  } else {
    const Parts parts = random_parts(train.documents(), name);
    data.train = make(train, parts.train, train_source(parts, name, "texts"), data.train_part);
    data.test = make(train, parts.test, test_source(parts, name, "texts"), data.test_part);
  }
  data.vocabulary = folder.lm->vocabulary();
  return data;
}

TextData of_labelled(const io::ModelFolder& folder, const fs::path& file, std::int64_t sequence,
                     std::optional<std::int64_t> first_label) {
  std::vector<data::LabelledTokens> texts = labelled_tokens(folder, file, sequence, first_label);
  std::vector<std::int32_t> labels;
  for (const data::LabelledTokens& text : texts) labels.push_back(text.label);
  const std::string name = file.string();
  Parts parts = random_parts(labels, name);
  TextData data;
  data.train_part = {train_source(parts, name, "texts")};
  data.test_part = {test_source(parts, name, "texts")};
  const auto all = std::make_shared<data::LabelledTokenDataset>(
      std::move(texts),
      data::SequenceOptions{.sequence = sequence, .padding = folder.padding.value_or(0)});
  data.train = std::make_shared<data::Subset>(all, std::move(parts.train));
  data.test = std::make_shared<data::Subset>(all, std::move(parts.test));
  data.vocabulary = folder.classifier->vocabulary();
  return data;
}

// Moves the windows of some texts out of `text`.
MaskedText without_texts(MaskedText& text, std::span<const std::int64_t> chosen) {
  MaskedText taken;
  taken.masking = text.masking;
  const auto count = static_cast<std::int64_t>(text.windows.size());
  std::vector<char> gone(text.windows.size());
  for (const std::int64_t number : chosen) {
    const auto i = static_cast<std::size_t>(number);
    const std::int64_t end = i + 1 < text.first_window.size() ? text.first_window[i + 1] : count;
    for (auto window = static_cast<std::size_t>(text.first_window[i]);
         window < static_cast<std::size_t>(end); ++window) {
      taken.windows.push_back(std::move(text.windows[window]));
      gone[window] = 1;
    }
  }
  std::vector<std::vector<std::int32_t>> left;
  for (std::size_t i = 0; i < gone.size(); ++i)
    if (!gone[i]) left.push_back(std::move(text.windows[i]));
  text.windows = std::move(left);
  return taken;
}

TextData of_masked(const io::ModelFolder& folder, const TextFiles& files, std::int64_t sequence) {
  TextData data;
  MaskedText train = masked_text(folder, files.train, sequence), test;
  const std::string name = files.train.string();
  std::string train_from = name, test_from;
  const auto count = static_cast<std::int64_t>(train.windows.size()),
             texts = static_cast<std::int64_t>(train.first_window.size());
  if (files.test) {
    test = masked_text(folder, *files.test, sequence);
    test_from = files.test->string();
  } else if (data::is_json_lines(files.train)) {
    const Parts parts = random_parts(texts, name);
    test = without_texts(train, parts.test);
    train_from = train_source(parts, name, "texts"), test_from = test_source(parts, name, "texts");
  } else {
    const std::int64_t cut = count - held_out(count, name);
    const auto at = train.windows.begin() + cut;
    test.windows.assign(std::make_move_iterator(at), std::make_move_iterator(train.windows.end()));
    train.windows.erase(at, train.windows.end());
    test.masking = train.masking;
    train_from = fmt::format("{}, windows 0 to {}", name, cut);
    test_from = fmt::format("{}, windows {} to {}", name, cut, count);
  }
  test.masking.fixed_seed = test_masks;
  const auto make = [](MaskedText& text, const std::string& source, DataPart& part) {
    auto made = std::make_shared<data::MaskedTokenDataset>(std::move(text.windows), text.masking);
    part = {source}, part.tokens = made->tokens();
    return made;
  };
  data.train = make(train, train_from, data.train_part);
  data.test = make(test, test_from, data.test_part);
  data.vocabulary = folder.masked_lm->vocabulary();
  return data;
}

}  // namespace

bool has_labels(const fs::path& file) {
  if (data::without_gzip(file).extension() == ".csv") return true;
  if (!data::is_json_lines(file)) return false;
  data::GzipFile input(file);
  std::string line(1 << 20, '\0');
  line.resize(input.some(std::as_writable_bytes(std::span(line))));
  const std::size_t begin = line.find_first_not_of(" \t\r\n");
  if (begin == std::string::npos) return false;
  try {
    return parse_json(line.substr(begin, line.find('\n', begin) - begin)).contains("label");
  } catch (const ValueError&) {
    return false;  // reading says what is wrong
  }
}

MaskedText masked_text(const io::ModelFolder& folder, const fs::path& file, std::int64_t sequence) {
  const FileTokenizer tokenizer(folder, file, folder.masked_lm->vocabulary());
  const Frame frame = frame_of(tokenizer);
  const auto special = static_cast<std::int64_t>(frame.before.size() + frame.after.size());
  if (special >= sequence)
    throw ValueError(
        fmt::format("a sequence of {} tokens has no room for text beside the {} special tokens",
                    sequence, special));
  MaskedText result;
  result.masking = {.sequence = sequence,
                    .padding = folder.padding.value_or(0),
                    .mask = tokenizer.mask_token(),
                    .vocabulary = folder.masked_lm->vocabulary(),
                    .special = tokenizer.special_ids(),
                    .fixed_seed = {}};
  const auto add = [&](const std::string& text, const std::string& place) {
    const std::vector<std::int32_t> tokens = tokenizer.encode(text, Specials::without, place);
    const auto room = static_cast<std::size_t>(sequence - special);
    for (std::size_t begin = 0; begin < tokens.size(); begin += room) {
      std::vector<std::int32_t> window = frame.before;
      const std::size_t end = std::min(tokens.size(), begin + room);
      window.insert(window.end(), tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                    tokens.begin() + static_cast<std::ptrdiff_t>(end));
      window.insert(window.end(), frame.after.begin(), frame.after.end());
      result.windows.push_back(std::move(window));
    }
  };
  if (data::is_json_lines(file)) {
    const std::vector<data::Document> documents = data::read_documents(file);
    for (std::size_t i = 0; i < documents.size(); ++i) {
      if (documents[i].has_prompt)
        throw FileError(
            fmt::format("{}: {}a prompt and its answer are for models that predict the next token; "
                        "masked words are of a \"text\"",
                        file.string(), text_number(i)));
      const auto first = static_cast<std::int64_t>(result.windows.size());
      add(documents[i].text, text_number(i));
      if (first < static_cast<std::int64_t>(result.windows.size()))
        result.first_window.push_back(first);
    }
  } else {
    add(data::whole_text(file), {});
  }
  if (result.windows.empty())
    throw FileError(fmt::format("{}: text is expected, but it has no token", file.string()));
  return result;
}

data::TokenStream running_text(const io::ModelFolder& folder, const fs::path& file,
                               const Options& options) {
  const std::int64_t vocabulary = folder.lm->vocabulary();
  const bool numbers = file.extension() == ".bin";
  if (options.tokens && (!numbers || token_kind(options, file) == TokenKind::bytes))
    throw ValueError(
        fmt::format("{}: the option tokens is uint16 or int32 and says how a .bin file is read; "
                    "text is read by "
                    "the model's tokenizer",
                    file.string()));
  if (numbers) {
    TokenKind kind = TokenKind::int32;
    return token_file(options, file, vocabulary, kind);
  }
  const FileTokenizer tokenizer(folder, file, vocabulary);
  std::vector<std::int32_t> ids;
  tokenizer.encode(data::whole_text(file), Specials::with, ids);
  return data::TokenStream::of(std::move(ids), vocabulary, file.string());
}

DocumentTokens document_tokens(const io::ModelFolder& folder, const fs::path& file,
                               std::int64_t sequence) {
  const std::vector<data::Document> documents = data::read_documents(file);
  const FileTokenizer tokenizer(folder, file, folder.lm->vocabulary());
  DocumentTokens result;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    result.first_part.push_back(static_cast<std::int64_t>(result.parts.size()));
    const data::TokenSequence whole =
        tokens_of(documents[i], tokenizer, folder.end_of_text, text_number(i));
    if (static_cast<std::int64_t>(whole.tokens.size()) <= whole.first_target)
      throw FileError(
          fmt::format("{}: {}there is no token to predict in it", file.string(), text_number(i)));
    for (data::TokenSequence& part : data::cut_to(whole, sequence))
      result.parts.push_back(std::move(part));
  }
  result.first_part.push_back(static_cast<std::int64_t>(result.parts.size()));
  return result;
}

std::vector<data::LabelledTokens> labelled_tokens(const io::ModelFolder& folder,
                                                  const fs::path& file, std::int64_t sequence,
                                                  std::optional<std::int64_t> first_label) {
  const models::TextClassifier& model = *folder.classifier;
  if (!model.chooses_one())
    throw ValueError(fmt::format(
        "{}: files give each text one class of several, but the model's outputs are of another "
        "kind: \"problem_type\" must be \"single_label_classification\" or null with at least 2 "
        "classes",
        folder.path.string()));
  const bool csv = data::without_gzip(file).extension() == ".csv";
  if (!csv && !data::is_json_lines(file))
    throw ValueError(
        fmt::format("{}: a classifier takes labelled texts, .csv or .jsonl", file.string()));
  const std::int64_t first = first_label.value_or(csv ? 1 : 0);
  const data::LabelledTextsPtr texts =
      csv ? data::read_labelled_csv(file, model.classes(), first)
          : data::read_labelled_jsonl(file, model.classes(), first);
  const FileTokenizer tokenizer(folder, file, model.vocabulary());
  std::vector<data::LabelledTokens> result;
  for (std::size_t i = 0; i < texts->texts.size(); ++i)
    result.push_back(
        {cut_inside(texts->texts[i], tokenizer, sequence, text_number(i)), texts->labels[i]});
  return result;
}

TextData folder_text(const io::ModelFolder& folder, const Options& options, std::int64_t sequence) {
  const fs::path& file = *options.data;
  if (folder.classifier) return of_labelled(folder, file, sequence, options.labels_from);
  const TextFiles files = text_files(file);
  if (folder.masked_lm) return of_masked(folder, files, sequence);
  if (options.pack && !data::is_json_lines(files.train))
    throw ValueError(fmt::format(
        "{}: the option pack is for texts of their own, one in each line of a .jsonl file; other "
        "files are one running text, which leaves no gaps",
        file.string()));
  if (data::is_json_lines(files.train))
    return options.pack ? of_documents<data::PackedDataset>(folder, files, sequence)
                        : of_documents<data::SequenceDataset>(folder, files, sequence);
  const data::TokenStream train = running_text(folder, files.train, options);
  return files.test ? windows(train, running_text(folder, *files.test, options), sequence)
                    : divided(train, sequence);
}

}  // namespace ebb::workloads
