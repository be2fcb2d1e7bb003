// The fields of a config.json. Each one must be read or declared: an unknown field is an error, so
// that none is ignored without a reason.
#pragma once

#include <initializer_list>
#include <set>

#include "ebb/nn/layers.h"
#include "io/json_file.h"

namespace ebb::io {

// Sizes up to this keep products of two of them, times a few, within 64 bits.
constexpr std::int64_t largest_size = std::int64_t{1} << 24;
constexpr std::int64_t most_layers = 10'000;

class Fields {
 public:
  explicit Fields(const JsonFile& file) : file_(file) {}

  // A whole number of `low` to largest_size.
  std::int64_t size(const char* field, std::int64_t low, std::int64_t otherwise);
  std::optional<std::int64_t> size_or_null(const char* field, std::int64_t low);
  std::int64_t layers(const char* field, std::int64_t otherwise);  // 0 to most_layers
  // The name under which the file has the field: `other` or, if that is missing, `field`. If both
  // are there they must not contradict each other.
  const char* either(const char* field, const char* other);

  double positive(const char* field, double otherwise);     // at least 0
  double probability(const char* field, double otherwise);  // in [0, 1)
  std::optional<double> probability_or_null(const char* field);
  bool flag(const char* field, bool otherwise);
  nn::Activation activation(const char* field, nn::Activation otherwise);
  // The row of an embedding that is not trained, counted from the end where negative.
  std::optional<std::int64_t> padding(std::int64_t vocabulary);

  // The value itself, for fields of a special form; null if it is missing.
  nlohmann::json value(const char* field);
  // A field of which ebb supports only some values.
  void only(const char* field, std::initializer_list<nlohmann::json> accepted);
  // Fields that change no result.
  void harmless(std::initializer_list<const char*> fields);
  // The fields that every family shares: what generation, tokenizers and labels need, and settings
  // that would change the model and must be off.
  void common();

  // An error if a field was never asked for.
  void finish() const;

  const JsonFile& file() const { return file_; }
  [[noreturn]] void fail(const std::string& what) const { file_.fail(what); }

 private:
  const nlohmann::json* find(const char* field);
  [[noreturn]] void wrong(const char* field, const std::string& expected) const;

  const JsonFile& file_;
  std::set<std::string> known_;
};

}  // namespace ebb::io
