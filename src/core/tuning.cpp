#include "ebb/tuning.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "core/json.h"
#include "ebb/error.h"

namespace ebb {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t version = 1;             // of the text
constexpr std::int64_t most_choices = 1 << 16;  // no library offers that many
constexpr std::int64_t most_workspace = std::int64_t{1} << 40;

class Reader {
 public:
  explicit Reader(const std::string& place) : place_(place) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw ValueError(fmt::format("{}: {}", place_, what));
  }

  const Json& member(const Json& object, const std::string& name) const {
    const auto found = object.is_object() ? object.find(name) : object.end();
    if (!object.is_object() || found == object.end()) fail(fmt::format("\"{}\" is missing", name));
    return *found;
  }

  std::string text(const Json& object, const std::string& name) const {
    const Json& value = member(object, name);
    if (!value.is_string())
      fail(fmt::format("\"{}\" must be a text, but is {}", name, json_excerpt(value)));
    return value.get<std::string>();
  }

  const Json& object(const Json& parent, const std::string& name) const {
    const Json& value = member(parent, name);
    if (!value.is_object())
      fail(fmt::format("\"{}\" must be an object, but is {}", name, json_excerpt(value)));
    return value;
  }

  TunedCall call(const std::string& name, const Json& row) const {
    const bool valid = row.is_array() && row.size() == 3 && row[0].is_number_integer() &&
                       row[1].is_number_integer() && row[2].is_number() && row[0] >= -1 &&
                       row[0] < most_choices && row[1] >= 0 && row[1] <= most_workspace &&
                       row[2] >= 0.0;
    if (!valid)
      fail(fmt::format("call \"{}\" must be [choice, workspace in bytes, milliseconds], but is {}",
                       name, json_excerpt(row)));
    return {row[0].get<int>(), {row[1].get<std::int64_t>()}, row[2].get<double>()};
  }

 private:
  const std::string& place_;
};

}  // namespace

void Tuning::take(const Tuning& other) {
  device = other.device;
  for (const auto& [name, from] : other.libraries) {
    LibraryTuning& own = libraries[name];
    if (own.version != from.version) own = {from.version, {}};
    for (const auto& [call, found] : from.calls) own.calls[call] = found;
  }
}

TuningUse::TuningUse(const Tuning& known, std::function<void()> before_asking)
    : known_(&known), before_asking_(std::move(before_asking)) {
  used_.device = known.device;
}

const TunedCall* TuningUse::find(const std::string& library, const std::string& call,
                                 const std::string& version) {
  for (const Tuning* tuning : {known_, static_cast<const Tuning*>(&used_)}) {
    const auto own = tuning->libraries.find(library);
    if (own == tuning->libraries.end() || (!version.empty() && own->second.version != version))
      continue;
    const auto found = own->second.calls.find(call);
    if (found == own->second.calls.end()) continue;
    LibraryTuning& used = used_.libraries[library];
    used.version = own->second.version;
    return &(used.calls[call] = found->second);
  }
  missing_.emplace(library, call);
  return nullptr;
}

const TunedCall* TuningUse::add(const std::string& library, const std::string& call,
                                const std::string& version, const std::function<TunedCall()>& ask) {
  if (added_ == 0 && before_asking_) before_asking_();
  ++added_;
  missing_.erase({library, call});
  LibraryTuning& own = used_.libraries[library];
  own.version = version;
  return &(own.calls[call] = ask());
}

std::string TuningUse::version_of(const std::string& library) const {
  const auto found = known_->libraries.find(library);
  return found == known_->libraries.end() ? "" : found->second.version;
}

// One line per call, so that files can be compared with diff.
std::string tuning_text(const Tuning& tuning) {
  const auto quoted = [](const std::string& text) { return json_text(Json(text)); };
  std::string text = fmt::format("{{\"version\": {}, \"device\": {}, \"libraries\": {{", version,
                                 quoted(tuning.device));
  const char* next_library = "";
  for (const auto& [name, library] : tuning.libraries) {
    text += fmt::format("{}\n {}: {{\"version\": {}, \"calls\": {{", next_library, quoted(name),
                        quoted(library.version));
    const char* next_call = "";
    for (const auto& [call, found] : library.calls) {
      text += fmt::format("{}\n  {}: {}", next_call, quoted(call),
                          json_text(Json{found.choice, found.workspace.count, found.ms}));
      next_call = ",";
    }
    text += "}}";
    next_library = ",";
  }
  return text + "}}";
}

Tuning parse_tuning(std::string_view text, const std::string& place) {
  const Reader reader(place);
  Json all;
  try {
    all = parse_ordered_json(text);
  } catch (const ValueError& error) {
    reader.fail(error.what());
  }
  if (const Json& found = reader.member(all, "version"); found != version)
    reader.fail(
        fmt::format("it has version {}, but this ebb reads {}", json_excerpt(found), version));
  Tuning tuning{.device = reader.text(all, "device"), .libraries = {}};
  for (const auto& [name, object] : reader.object(all, "libraries").items()) {
    LibraryTuning& library = tuning.libraries[name];
    library.version = reader.text(object, "version");
    for (const auto& [call, row] : reader.object(object, "calls").items())
      library.calls[call] = reader.call(call, row);
  }
  return tuning;
}

}  // namespace ebb
