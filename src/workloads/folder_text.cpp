#include "workloads/folder_text.h"

#include <fmt/core.h>

#include <algorithm>

#include "data/file.h"
#include "ebb/data/labelled_text.h"
#include "ebb/error.h"
#include "ebb/text/tokenizer.h"
#include "workloads/families.h"

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
  std::vector<std::int32_t> encode(std::string_view text, Specials specials,
                                   const std::string& place) const {
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

DataPart part_of(const fs::path& file, std::int64_t begin, std::int64_t end) {
  return {fmt::format("{}, texts {} to {}", file.string(), begin, end)};
}

TextData of_documents(const io::ModelFolder& folder, const fs::path& file, std::int64_t sequence) {
  const DocumentTokens tokens = document_tokens(folder, file, sequence);
  const auto count = static_cast<std::int64_t>(tokens.first_part.size()) - 1,
             cut = count - held_out(count, file.string());
  const data::SequenceOptions options{.sequence = sequence, .padding = folder.padding.value_or(0)};
  const auto make = [&](std::int64_t begin, std::int64_t end, DataPart& part) {
    const auto at = [&](std::int64_t document) {
      return tokens.parts.begin() + tokens.first_part[static_cast<std::size_t>(document)];
    };
    auto made = std::make_shared<data::SequenceDataset>(
        std::vector<data::TokenSequence>(at(begin), at(end)), options);
    part = part_of(file, begin, end), part.tokens = made->tokens();
    return made;
  };
  TextData data;
  data.train = make(0, cut, data.train_part);
  data.test = make(cut, count, data.test_part);
  data.vocabulary = folder.lm->vocabulary();
  return data;
}

TextData of_labelled(const io::ModelFolder& folder, const fs::path& file, std::int64_t sequence) {
  const auto all = std::make_shared<data::LabelledTokenDataset>(
      labelled_tokens(folder, file, sequence),
      data::SequenceOptions{.sequence = sequence, .padding = folder.padding.value_or(0)});
  const std::int64_t count = all->size(), cut = count - held_out(count, file.string());
  return {data::Subset::range(all, 0, cut), data::Subset::range(all, cut, count),
          part_of(file, 0, cut), part_of(file, cut, count), folder.classifier->vocabulary()};
}

}  // namespace

bool is_json_lines(const fs::path& file) { return file.extension() == ".jsonl"; }

data::TokenStream running_text(const io::ModelFolder& folder, const fs::path& file) {
  const std::int64_t vocabulary = folder.lm->vocabulary();
  if (file.extension() == ".bin")
    return data::TokenStream::file(file, data::TokenWidth::int32, vocabulary);
  const FileTokenizer tokenizer(folder, file, vocabulary);
  std::vector<std::int32_t> ids;
  tokenizer.encode(data::File(file).text(), Specials::with, ids);
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
                                                  const fs::path& file, std::int64_t sequence) {
  const models::TextClassifier& model = *folder.classifier;
  if (!model.chooses_one())
    throw ValueError(fmt::format(
        "{}: files give each text one class of several, but the model's outputs are of another "
        "kind: \"problem_type\" must be \"single_label_classification\" or null with at least 2 "
        "classes",
        folder.path.string()));
  const bool csv = file.extension() == ".csv";
  if (!csv && !is_json_lines(file))
    throw ValueError(
        fmt::format("{}: a classifier takes labelled texts, .csv or .jsonl", file.string()));
  const data::LabelledTextsPtr texts = csv ? data::read_labelled_csv(file, model.classes())
                                           : data::read_labelled_jsonl(file, model.classes());
  const FileTokenizer tokenizer(folder, file, model.vocabulary());
  std::vector<data::LabelledTokens> result;
  for (std::size_t i = 0; i < texts->texts.size(); ++i)
    result.push_back(
        {cut_inside(texts->texts[i], tokenizer, sequence, text_number(i)), texts->labels[i]});
  return result;
}

TextData folder_text(const io::ModelFolder& folder, const fs::path& file, std::int64_t sequence) {
  if (fs::is_directory(file))
    throw FileError(
        fmt::format("{}: a model from a folder takes one file of text or tokens, not a "
                    "folder",
                    file.string()));
  if (folder.classifier) return of_labelled(folder, file, sequence);
  if (is_json_lines(file)) return of_documents(folder, file, sequence);
  return divided(running_text(folder, file), sequence);
}

}  // namespace ebb::workloads
