// `ebb tokenize`: converts text to a file of tokens.
#include <fmt/core.h>

#include <chrono>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/outputs.h"
#include "cli/verb.h"
#include "core/json.h"
#include "data/gzip.h"
#include "ebb/bytes.h"
#include "ebb/data/sequences.h"
#include "ebb/io/atomic_file.h"
#include "ebb/text/tokenizer.h"

namespace ebb::cli {
namespace {

namespace fs = std::filesystem;

class Tokenize : public Verb {
 public:
  Tokenize()
      : Verb("tokenize", "Convert text to a file of tokens",
             "ebb tokenize --tokenizer gpt2/ --data input.txt --out tokens.bin") {}

 protected:
  void configure(CLI::App& app) override {
    add_option(app, "--tokenizer", tokenizer_, "A tokenizer.json, or a folder that has one")
        .required()
        .existing_path();
    add_option(
        app, "--data", data_,
        "Files of UTF-8 text, also compressed (.gz); their tokens are written one after another")
        .required()
        .type_name("TEXT");
    add_option(app, "--out", out_, "The file of tokens").required().type_name("FILE.bin");
    add_option(app, "--dtype", dtype_,
               "Little-endian type of a token. ebb train reads both, ebb eval reads uint32")
        .one_of({"uint16", "uint32"})
        .show_default();
    add_flag(app, "--add-special", add_special_,
             "Add the tokenizer's special tokens, such as [CLS], around each file's tokens");
  }

  int run() override {
    using Clock = std::chrono::steady_clock;
    for (const fs::path& path : data_) refuse_over_input("--out", out_, "--data", path);
    refuse_over_input("--out", out_, "--tokenizer", tokenizer_);
    const text::Tokenizer tokenizer = text::Tokenizer::load(tokenizer_);
    const std::size_t width = dtype_ == "uint16" ? 2 : 4;
    if (width == 2 && tokenizer.vocabulary() > 1 << 16)
      throw UsageError(fmt::format("--dtype uint16 is for ids below 65536, but {} has ids up to {}",
                                   tokenizer_.string(), tokenizer.vocabulary() - 1));
    for (const fs::path& path : data_)
      if (data::is_json_lines(path))
        throw UsageError(fmt::format(
            "--data {}: its lines are JSON, not running text; ebb train and ebb eval read such "
            "files themselves, each text by itself",
            path.string()));
    io::AtomicFile out(out_);
    std::int64_t tokens = 0, bytes = 0;
    double seconds = 0.0;
    for (const fs::path& path : data_) {
      const std::string text = data::whole_text(path);
      const auto start = Clock::now();
      const std::vector<text::TokenId> ids = encode(tokenizer, text, path);
      seconds += std::chrono::duration<double>(Clock::now() - start).count();
      write(ids, width, out);
      tokens += static_cast<std::int64_t>(ids.size());
      bytes += static_cast<std::int64_t>(text.size());
    }
    out.commit();
    const double rate = seconds > 0.0 ? static_cast<double>(tokens) / seconds : 0.0;
    if (json())
      std::cout << json_text(nlohmann::ordered_json{{"tokens", tokens},
                                                    {"bytes", bytes},
                                                    {"tokens_per_s", rate},
                                                    {"vocabulary", tokenizer.vocabulary()},
                                                    {"dtype", dtype_},
                                                    {"out", out_.string()}})
                << '\n';
    else
      fmt::print("{}: {} tokens of {}, {:.2f} million tokens a second, vocabulary {}\n",
                 out_.string(), tokens, to_string(Bytes{bytes}), rate * 1e-6,
                 tokenizer.vocabulary());
    return success;
  }

 private:
  std::vector<text::TokenId> encode(const text::Tokenizer& tokenizer, const std::string& text,
                                    const fs::path& path) const {
    try {
      return tokenizer.encode(text, add_special_ ? text::Specials::with : text::Specials::without);
    } catch (const ValueError& error) {
      throw FileError(fmt::format("{}: {}", path.string(), error.what()));
    }
  }

  static void write(const std::vector<text::TokenId>& ids, std::size_t width, io::AtomicFile& out) {
    std::string buffer;
    buffer.reserve(ids.size() * width);
    for (text::TokenId id : ids)
      for (std::size_t b = 0; b < width; ++b)
        buffer += static_cast<char>(static_cast<std::uint32_t>(id) >> 8 * b & 0xFF);
    out.write(buffer);
  }

  fs::path tokenizer_, out_;
  std::vector<fs::path> data_;
  std::string dtype_ = "uint32";
  bool add_special_ = false;
};

}  // namespace

std::unique_ptr<Verb> tokenize_verb() { return std::make_unique<Tokenize>(); }

}  // namespace ebb::cli
