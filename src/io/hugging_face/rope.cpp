// Rotary settings: "rope_scaling", "rope_parameters" and the plain fields beside them.
#include <fmt/core.h>

#include <cmath>

#include "core/json.h"
#include "io/hugging_face/family.h"

namespace ebb::io {
namespace {

using models::Rope, models::RopeScaling;

struct ScalingName {
  const char* name;
  RopeScaling scaling;
};
constexpr ScalingName scaling_names[] = {{"default", RopeScaling::none},
                                         {"linear", RopeScaling::linear},
                                         {"dynamic", RopeScaling::dynamic},
                                         {"llama3", RopeScaling::llama3},
                                         {"yarn", RopeScaling::yarn}};

// One object of settings. Every key is read, or refused by its name.
class RopeObject {
 public:
  RopeObject(const Fields& fields, std::string field, const nlohmann::json& object)
      : fields_(fields), field_(std::move(field)), object_(object) {
    if (!object_.is_null() && !object_.is_object())
      fields_.fail(fmt::format("\"{}\" must be an object or null, but is {}", field_,
                               json_excerpt(object_)));
  }

  bool given() const { return object_.is_object() && !object_.empty(); }

  RopeFields read(RopeFields result, std::int64_t context) {
    if (!object_.is_object()) return result;
    result.base = number("rope_theta", result.base, Above::zero);
    result.share = number("partial_rotary_factor", result.share, Above::zero);
    if (find("partial_rotary_factor")) result.share_field = field_ + ".partial_rotary_factor";
    result.rope = scaled(context);
    for (const auto& [key, value] : object_.items())
      if (!known_.contains(key))
        fields_.fail(fmt::format(
            "\"{}.{}\" (here {}) is not a setting of rotary embeddings of type \"{}\" that ebb has",
            field_, key, json_excerpt(value), type_));
    return result;
  }

 private:
  enum class Above : std::uint8_t { zero, nothing };

  const nlohmann::json* find(const char* key) {
    known_.insert(key);
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  [[noreturn]] void wrong(const char* key, const char* expected) const {
    fields_.fail(fmt::format("\"{}.{}\" must be {}, but is {}", field_, key, expected,
                             json_excerpt(object_.at(key))));
  }
  double number(const char* key, double otherwise, Above above) {
    const nlohmann::json* value = find(key);
    if (!value) return otherwise;
    if (!value->is_number() || !std::isfinite(value->get<double>()) ||
        (above == Above::zero ? value->get<double>() <= 0.0 : value->get<double>() < 0.0))
      wrong(key, above == Above::zero ? "a number above 0" : "a number of at least 0");
    return value->get<double>();
  }
  double required(const char* key) {
    if (!find(key))
      fields_.fail(fmt::format("\"{}\" of type \"{}\" needs \"{}\"", field_, type_, key));
    return number(key, 0.0, Above::zero);
  }

  RopeScaling scaling() {
    const nlohmann::json *name = find("rope_type"), *old = find("type");
    if (!name) name = old;
    if (!name) return RopeScaling::none;
    for (const ScalingName& row : scaling_names)
      if (*name == row.name) return type_ = row.name, row.scaling;
    fields_.fail(fmt::format(
        "\"{}.{}\" is {}, but ebb supports only \"default\", \"linear\", \"dynamic\", \"llama3\" "
        "and \"yarn\"",
        field_, find("rope_type") ? "rope_type" : "type", json_excerpt(*name)));
  }

  Rope scaled(std::int64_t context) {
    Rope r{.scaling = scaling()};
    if (r.scaling == RopeScaling::none) return r;
    if (r.scaling == RopeScaling::linear || r.scaling == RopeScaling::dynamic) {
      r.factor = required("factor");
      return r;
    }
    r.original_context = original(context);
    if (r.scaling == RopeScaling::llama3) {
      r.factor = required("factor");
      r.low = required("low_freq_factor"), r.high = required("high_freq_factor");
      if (r.low >= r.high) wrong("high_freq_factor", "above \"low_freq_factor\"");
      return r;
    }
    yarn(r, context);
    return r;
  }

  std::int64_t original(std::int64_t context) {
    constexpr const char* key = "original_max_position_embeddings";
    const nlohmann::json* value = find(key);
    if (!value) return context;
    if (!value->is_number_integer() || *value < 1 || *value > largest_size)
      wrong(key, "a whole number of at least 1");
    return value->get<std::int64_t>();
  }

  void yarn(Rope& r, std::int64_t context) {
    if (!object_.contains("factor")) required("factor");
    // null stands for the growth of the context.
    const double growth_of_context =
        static_cast<double>(context) / static_cast<double>(r.original_context);
    r.factor = number("factor", growth_of_context, Above::zero);
    // As in transformers, 0 stands for the usual value.
    const double fast = number("beta_fast", 0.0, Above::nothing),
                 slow = number("beta_slow", 0.0, Above::nothing);
    r.fast = fast > 0.0 ? fast : 32.0, r.slow = slow > 0.0 ? slow : 1.0;
    if (const nlohmann::json* value = find("truncate")) {
      if (!value->is_boolean()) wrong("truncate", "true or false");
      r.whole_pairs = value->get<bool>();
    }
    const double mscale = number("mscale", 0.0, Above::nothing),
                 all = number("mscale_all_dim", 0.0, Above::nothing);
    const auto growth = [&](double scale) {
      return r.factor <= 1.0 ? 1.0 : 0.1 * scale * std::log(r.factor) + 1.0;
    };
    r.magnitude =
        number("attention_factor",
               mscale > 0.0 && all > 0.0 ? growth(mscale) / growth(all) : growth(1.0), Above::zero);
  }

  const Fields& fields_;
  std::string field_, type_ = "default";
  const nlohmann::json& object_;
  std::set<std::string> known_;
};

}  // namespace

// rope_scaling has precedence over rope_parameters, and both over the plain fields.
RopeFields read_rope(Fields& f, std::int64_t context, const RopeFields& usual) {
  const nlohmann::json scaling = f.value("rope_scaling"), parameters = f.value("rope_parameters");
  RopeObject first(f, "rope_scaling", scaling), second(f, "rope_parameters", parameters);
  const RopeFields from_second = second.read(usual, context);
  return first.given() ? first.read(usual, context) : from_second;
}

nlohmann::json write_rope(const models::LlamaConfig& c) {
  nlohmann::json rope{{"rope_theta", c.rope_base}};
  for (const ScalingName& row : scaling_names)
    if (row.scaling == c.rope.scaling) rope["rope_type"] = row.name;
  const Rope& r = c.rope;
  if (r.scaling == RopeScaling::none) return rope;
  rope["factor"] = r.factor;
  if (r.scaling == RopeScaling::llama3 || r.scaling == RopeScaling::yarn)
    rope["original_max_position_embeddings"] = r.original_context;
  if (r.scaling == RopeScaling::llama3)
    rope["low_freq_factor"] = r.low, rope["high_freq_factor"] = r.high;
  if (r.scaling == RopeScaling::yarn) {
    rope["beta_fast"] = r.fast, rope["beta_slow"] = r.slow;
    rope["truncate"] = r.whole_pairs, rope["attention_factor"] = r.magnitude;
  }
  return rope;
}

}  // namespace ebb::io
