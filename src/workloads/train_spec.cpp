#include "ebb/workloads/train_spec.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "core/json.h"
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
Json json_of(const std::filesystem::path& path) {
  const std::string& text = path.native();
  if (is_utf8(text)) return text;
  std::vector<int> bytes;  // JSON strings must be UTF-8, but a path may have any bytes
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}
Json json_of(ImageLayout value) { return name(value); }
Json json_of(mlo::Method value) { return name(value); }
Json json_of(Precision value) { return name(value); }
Json json_of(const Recompute& value) { return to_string(value); }
Json json_of(Bytes value) { return std::to_string(value.count); }
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
  for (const Json& byte : json.get_ref<const Json::array_t&>()) {
    const std::int64_t number = byte.is_number_integer() ? byte.get<std::int64_t>() : -1;
    if (number < 0 || number > 255) throw ValueError("bytes");
    text += static_cast<char>(number);
  }
  value = text;
}
void read(const Json& json, bool& value) { value = json.get_ref<const bool&>(); }
void read(const Json& json, std::int64_t& value) {
  constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max();
  if (!json.is_number_integer() || (json.is_number_unsigned() && json.get<std::uint64_t>() > most))
    throw ValueError("a whole number");
  value = json.get<std::int64_t>();
}
void read(const Json& json, int& value) {
  std::int64_t wide = 0;
  read(json, wide);
  value = static_cast<int>(wide);
  if (value != wide) throw ValueError("a smaller number");
}
void read(const Json& json, std::uint64_t& value) {
  if (!json.is_number_unsigned()) throw ValueError("a whole number of at least 0");
  value = json.get<std::uint64_t>();
}
void read(const Json& json, double& value) {
  if (!json.is_number()) throw ValueError("a number");
  value = json.get<double>();
}
const std::string& text_in(const Json& json) { return json.get_ref<const std::string&>(); }
void read(const Json& json, ImageLayout& value) {
  const std::string& text = text_in(json);
  value = text == name(ImageLayout::channels_last) ? ImageLayout::channels_last
                                                   : ImageLayout::channels_first;
  if (text != name(value)) throw ValueError("a layout");
}
void read(const Json& json, mlo::Method& value) { value = mlo::method_by_name(text_in(json)); }
void read(const Json& json, Precision& value) { value = precision_by_name(text_in(json)); }
void read(const Json& json, Recompute& value) { value = Recompute::parse(text_in(json)); }
void read(const Json& json, Bytes& value) { value = parse_bytes(text_in(json)); }
void read(const Json& json, std::vector<std::string>& value) {
  value.clear();
  for (const Json& text : json.get_ref<const Json::array_t&>()) value.push_back(text_in(text));
}
template <class T>
void read(const Json& json, std::optional<T>& value) {
  value.reset();
  if (!json.is_null()) read(json, value.emplace());
}

// --- Whole specifications

// The options of a level and its optimizer's rule, to be visited together.
template <class Options, class Rule>
struct LevelOf {
  Options& options;
  Rule& rule;
};

template <class Field>
void visit(const TrainSpec& spec, Field&& field) {
  TrainSpec::visit(spec, field);
}
template <class Field>
void visit(TrainSpec& spec, Field&& field) {
  TrainSpec::visit(spec, field);
}
template <class Options, class Rule, class Field>
void visit(const LevelOf<Options, Rule>& level, Field&& field) {
  TrainSpec::visit_level(level.options, level.rule, field);
}

using SavedLevel = LevelOf<const LevelOptions, const std::string>;

// The entry of that name, or an empty one.
template <class T>
const T& found_or_empty(const std::map<std::string, T>& all, const std::string& name) {
  static const T empty{};
  const auto found = all.find(name);
  return found == all.end() ? empty : found->second;
}
SavedLevel level_of(const TrainSpec& spec, const std::string& name) {
  return {found_or_empty(spec.task.levels, name), found_or_empty(spec.level_rules, name)};
}

std::vector<std::string> levels_of(const TrainSpec& spec) {
  const std::string& workload = spec.task.common.name;
  return is_multilevel(workload) ? level_names(workload) : std::vector<std::string>{};
}

template <class Visited>
Json object_of(const Visited& visited) {
  Json object = Json::object();
  visit(visited,
        [&](const char* name, const auto& value, OnResume) { object[name] = json_of(value); });
  return object;
}

template <class Visited>
void read_object(const Json& object, const std::string& prefix, Visited&& visited) {
  if (!object.is_object()) throw ValueError(fmt::format("\"{}\" must be an object", prefix));
  std::set<std::string> known{"levels"};
  visit(visited, [&](const char* name, auto& value, OnResume) {
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
  for (const std::string& name : levels_of(spec))
    object["levels"][name] = object_of(level_of(spec, name));
  return object;
}

TrainSpec spec_of(const Json& object) {
  TrainSpec spec;
  read_object(object, "", spec);
  const auto levels = object.find("levels");
  if (levels == object.end() || !levels->is_object())
    throw ValueError("the field \"levels\" must be an object");
  const std::vector<std::string> known = levels_of(spec);
  for (const auto& [name, level] : levels->items()) {
    if (std::find(known.begin(), known.end(), name) == known.end())
      throw ValueError(fmt::format("{} has no level \"{}\"", spec.task.common.name, name));
    read_object(level, name + ".",
                LevelOf<LevelOptions, std::string>{spec.task.levels[name], spec.level_rules[name]});
  }
  return spec;
}

// The option that determines a field: "optimizer" for "optimizer.rule".
std::string option_of(std::string field) {
  constexpr std::string_view rule = ".rule";
  if (field.ends_with(rule)) field.resize(field.size() - rule.size());
  return field;
}

std::string text_of(const Json& value) {
  return value.is_null() ? "nothing" : value.is_string() ? value.get<std::string>() : value.dump();
}

template <class Visited>
void compare(const Visited& saved, const Visited& given, const std::string& prefix,
             std::vector<Difference>& found) {
  const Json before = object_of(saved);
  visit(given, [&](const char* name, const auto& value, OnResume on_resume) {
    const Json now = json_of(value);
    if (on_resume != OnResume::free && before[name] != now)
      found.push_back({prefix + option_of(name), text_of(before[name]), text_of(now), on_resume});
  });
}

template <class Visited>
void list_changeable(const Visited& visited, const std::string& prefix,
                     std::vector<std::string>& names) {
  visit(visited, [&](const char* name, const auto&, OnResume on_resume) {
    if (on_resume == OnResume::by_name || std::string_view(name) == "steps")
      names.push_back(prefix + option_of(name));
  });
}

}  // namespace

std::string to_json(const TrainSpec& spec) { return whole_object(spec).dump(); }

TrainSpec train_spec_from_json(std::string_view text) { return spec_of(parse_ordered_json(text)); }

bool operator==(const TrainSpec& a, const TrainSpec& b) {
  return whole_object(a) == whole_object(b);
}

std::vector<Difference> differences(const TrainSpec& saved, const TrainSpec& given) {
  std::vector<Difference> found;
  compare(saved, given, "", found);
  for (const std::string& name : levels_of(given))
    compare(level_of(saved, name), level_of(given, name), name + ".", found);
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
      if (!saved.task.levels.contains(level) || wanted(level + "." + name))
        result["levels"][level][name] = value;
  return spec_of(result);
}

std::vector<std::string> changeable_options(const TrainSpec& spec) {
  std::vector<std::string> names;
  list_changeable(spec, "", names);
  for (const std::string& name : levels_of(spec))
    list_changeable(level_of(spec, name), name + ".", names);
  return names;
}

}  // namespace ebb::workloads
