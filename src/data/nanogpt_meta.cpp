#include "data/nanogpt_meta.h"

#include <limits>

#include "core/utf8.h"
#include "data/file.h"
#include "data/pickle.h"

namespace ebb::data {
namespace {

class MetaReader {
 public:
  explicit MetaReader(const std::filesystem::path& path)
      : path_(path), pickle_(Pickle::read(path)) {}

  NanoGptMeta read() {
    const Pickle::Value *vocabulary = nullptr, *itos = nullptr, *stoi = nullptr;
    for (const auto& [key, value] : dictionary(pickle_.root(), "the file")) {
      const std::string& name = text(pickle_[key], "a key of the file");
      const Pickle::Value** slot = name == "vocab_size" ? &vocabulary
                                   : name == "itos"     ? &itos
                                   : name == "stoi"     ? &stoi
                                                        : nullptr;
      if (!slot)
        fail("the keys are \"vocab_size\", \"itos\" and \"stoi\", but it has \"{}\"", name);
      if (*slot) fail("it has the key \"{}\" twice", name);
      *slot = &pickle_[value];
    }
    if (!vocabulary) fail("the key \"vocab_size\" is missing");
    if (!itos != !stoi) fail("it has only one of the keys \"itos\" and \"stoi\"");
    meta_.vocabulary = integer(*vocabulary, "\"vocab_size\"");
    constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
    if (meta_.vocabulary < 1 || meta_.vocabulary > most)
      fail("\"vocab_size\" must be between 1 and {}, but is {}", most, meta_.vocabulary);
    if (itos) read_characters(dictionary(*itos, "\"itos\""), dictionary(*stoi, "\"stoi\""));
    return std::move(meta_);
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    fail_file(path_, "{}", fmt::format(format, std::forward<Args>(args)...));
  }

  std::int64_t integer(const Pickle::Value& value, const char* what) const {
    if (const auto* found = std::get_if<std::int64_t>(&value)) return *found;
    fail("{} must be an integer", what);
  }
  const std::string& text(const Pickle::Value& value, const char* what) const {
    if (const auto* found = std::get_if<std::string>(&value)) return *found;
    fail("{} must be a text", what);
  }
  const Pickle::Dictionary& dictionary(const Pickle::Value& value, const char* what) const {
    if (const auto* found = std::get_if<Pickle::Dictionary>(&value)) return *found;
    fail("{} must be a dictionary", what);
  }

  std::size_t token(const Pickle::Value& value, const char* what) const {
    const std::int64_t token = integer(value, what);
    if (token < 0 || token >= meta_.vocabulary)
      fail("tokens must be below \"vocab_size\", {}, but {} is {}", meta_.vocabulary, what, token);
    return static_cast<std::size_t>(token);
  }

  // Both must pair each token with one character.
  void read_characters(const Pickle::Dictionary& itos, const Pickle::Dictionary& stoi) {
    for (const auto& [of, name] : {std::pair{&itos, "itos"}, {&stoi, "stoi"}})
      if (of->size() != static_cast<std::size_t>(meta_.vocabulary))
        fail("\"vocab_size\" is {}, but \"{}\" has {} entries", meta_.vocabulary, name, of->size());
    meta_.characters.resize(itos.size());
    for (const auto& [key, value] : itos) {
      std::string& at = meta_.characters[token(pickle_[key], "a key of \"itos\"")];
      if (!at.empty()) fail("\"itos\" has a token twice");
      at = text(pickle_[value], "a value of \"itos\"");
      if (at.empty() || first_code_point(at).length != at.size())
        fail("\"itos\" must give each token one character, but gives \"{}\"", at);
    }
    std::vector<bool> seen(stoi.size());
    for (const auto& [key, value] : stoi) {
      const std::string& character = text(pickle_[key], "a key of \"stoi\"");
      const std::size_t number = token(pickle_[value], "a value of \"stoi\"");
      if (seen[number] || meta_.characters[number] != character)
        fail("\"stoi\" gives \"{}\" the token {}, but \"itos\" does not", character, number);
      seen[number] = true;
    }
  }

  const std::filesystem::path& path_;
  Pickle pickle_;
  NanoGptMeta meta_;
};

}  // namespace

NanoGptMeta read_nanogpt_meta(const std::filesystem::path& path) { return MetaReader(path).read(); }

}  // namespace ebb::data
