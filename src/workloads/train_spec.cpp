#include "ebb/workloads/train_spec.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "core/utf8.h"
#include "ebb/error.h"

namespace ebb::workloads {
namespace {

using Json = nlohmann::ordered_json;

// --- Values

template <class T>
Json json_of(const T& value) {
  return value;
}
// JSON has no bytes that are not UTF-8, and paths may hold any.
Json json_of(const std::filesystem::path& path) {
  const std::string& text = path.native();
  if (valid_utf8(text) == text) return text;
  std::vector<int> bytes;
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}
template <class T>
Json json_of(const std::optional<T>& value) {
  return value ? json_of(*value) : Json(nullptr);
}

void read(const Json& json, std::string& value) { value = json.get_ref<const std::string&>(); }
void read(const Json& json, std::filesystem::path& value) {
  if (json.is_string()) {
    value = json.get_ref<const std::string&>();
    return;
  }
  std::string text;
  for (const Json& byte : json.get_ref<const Json::array_t&>())
    text += static_cast<char>(byte.get<int>());
  value = text;
}
void read(const Json& json, bool& value) { value = json.get_ref<const bool&>(); }
void read(const Json& json, std::int64_t& value) {
  if (!json.is_number_integer()) throw ValueError("a whole number");
  value = json.get<std::int64_t>();
}
void read(const Json& json, std::uint64_t& value) {
  if (!json.is_number_unsigned()) throw ValueError("a whole number of at least 0");
  value = json.get<std::uint64_t>();
}
void read(const Json& json, double& value) {
  if (!json.is_number()) throw ValueError("a number");
  value = json.get<double>();
}
template <class T>
void read(const Json& json, std::optional<T>& value) {
  value.reset();
  if (!json.is_null()) read(json, value.emplace());
}

// --- Whole specifications

template <class Spec>
Json object_of(const Spec& spec) {
  Json object = Json::object();
  Spec::visit(
      spec, [&](const char* name, const auto& value, OnResume) { object[name] = json_of(value); });
  return object;
}

template <class Spec>
void read_object(const Json& object, const std::string& prefix, Spec& spec) {
  if (!object.is_object()) throw ValueError(fmt::format("\"{}\" must be an object", prefix));
  std::set<std::string> known{"levels"};
  Spec::visit(spec, [&](const char* name, auto& value, OnResume) {
    known.insert(name);
    const auto found = object.find(name);
    if (found == object.end())
      throw ValueError(fmt::format("the field \"{}{}\" is missing", prefix, name));
    try {
      read(*found, value);
    } catch (const std::exception&) {
      throw ValueError(fmt::format("the field \"{}{}\" cannot be {}", prefix, name, found->dump()));
    }
  });
  for (const auto& [name, value] : object.items())
    if (!known.contains(name))
      throw ValueError(fmt::format("there is no field \"{}{}\"", prefix, name));
}

Json whole_object(const TrainSpec& spec) {
  Json object = object_of(spec);
  object["levels"] = Json::object();
  for (const auto& [name, level] : spec.levels) object["levels"][name] = object_of(level);
  return object;
}

TrainSpec spec_of(const Json& object) {
  TrainSpec spec;
  read_object(object, "", spec);
  const auto levels = object.find("levels");
  if (levels == object.end() || !levels->is_object())
    throw ValueError("the field \"levels\" must be an object");
  for (const auto& [name, level] : levels->items())
    read_object(level, name + ".", spec.levels[name]);
  return spec;
}

// The option that a field follows from: "optimizer" for "optimizer.rule".
std::string option_of(std::string field) {
  constexpr std::string_view rule = ".rule";
  if (field.ends_with(rule)) field.resize(field.size() - rule.size());
  return field;
}

std::string text_of(const Json& value) {
  return value.is_null() ? "nothing" : value.is_string() ? value.get<std::string>() : value.dump();
}

template <class Spec>
void compare(const Spec& saved, const Spec& given, const std::string& prefix,
             std::vector<Difference>& found) {
  const Json before = object_of(saved);
  Spec::visit(given, [&](const char* name, const auto& value, OnResume on_resume) {
    const Json now = json_of(value);
    if (on_resume != OnResume::free && before[name] != now)
      found.push_back({prefix + option_of(name), text_of(before[name]), text_of(now), on_resume});
  });
}

template <class Spec>
void list_changeable(const Spec& spec, const std::string& prefix, std::vector<std::string>& names) {
  Spec::visit(spec, [&](const char* name, const auto&, OnResume on_resume) {
    if (on_resume == OnResume::by_name || std::string_view(name) == "steps")
      names.push_back(prefix + option_of(name));
  });
}

}  // namespace

std::string to_json(const TrainSpec& spec) { return whole_object(spec).dump(); }

TrainSpec train_spec_from_json(std::string_view text) {
  const Json object = Json::parse(text.begin(), text.end(), nullptr, false);
  if (object.is_discarded()) throw ValueError("the specification is not JSON");
  return spec_of(object);
}

std::vector<Difference> differences(const TrainSpec& saved, const TrainSpec& given) {
  std::vector<Difference> found;
  compare(saved, given, "", found);
  for (const auto& [name, level] : given.levels) {
    const auto before = saved.levels.find(name);
    compare(before == saved.levels.end() ? LevelSpec{} : before->second, level, name + ".", found);
  }
  return found;
}

TrainSpec overlaid(const TrainSpec& saved, const TrainSpec& given,
                   const std::function<bool(const std::string& option)>& wanted) {
  Json result = whole_object(saved);
  const Json with = whole_object(given);
  for (const auto& [name, value] : with.items())
    if (name != "levels" && wanted(name)) result[name] = value;
  for (const auto& [level, fields] : with["levels"].items())
    for (const auto& [name, value] : fields.items())
      if (!saved.levels.contains(level) || wanted(level + "." + name))
        result["levels"][level][name] = value;
  return spec_of(result);
}

std::vector<std::string> changeable_options(const TrainSpec& spec) {
  std::vector<std::string> names;
  list_changeable(spec, "", names);
  for (const auto& [name, level] : spec.levels) list_changeable(level, name + ".", names);
  return names;
}

}  // namespace ebb::workloads
