#include "ebb/report/memory_profile.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "ebb/storage.h"
#include "report/tensor_names.h"

namespace ebb::report {
namespace {

// The bytes that a buffer counts for: its size in the arena, whole pages otherwise.
Bytes counted(const Plan& plan, const Buffer& buffer) {
  return plan.persists(buffer) ? Storage::reservation(plan.device, buffer.size) : buffer.size;
}

std::string cut(const std::string& path, int depth) {
  std::size_t end = 0;
  for (int part = 0; part < depth; ++part) {
    end = path.find('.', end);
    if (end == std::string::npos) return path;
    ++end;
  }
  return path.substr(0, end - 1);
}

// "h.11.mlp" → "h.*.mlp"
std::string without_numbers(const std::string& path) {
  std::string result;
  for (std::size_t begin = 0; begin <= path.size();) {
    std::size_t end = std::min(path.find('.', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    const bool number = !part.empty() && std::all_of(part.begin(), part.end(), [](unsigned char c) {
      return c >= '0' && c <= '9';
    });
    result += number ? "*" : part;
    if (end == path.size()) break;
    result += '.';
    begin = end + 1;
  }
  return result;
}

constexpr std::string_view nameless = "(top level)";
std::string shown(const std::string& path) { return path.empty() ? std::string(nameless) : path; }

// A drawing of live bytes: columns of time, eight heights a line.
std::string drawing(const MemoryProfile& profile) {
  constexpr int columns = 72, lines = 8;
  constexpr std::array<std::string_view, 9> steps{" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const std::size_t count = profile.live.size();
  std::vector<double> column(columns);
  double most = 1.0;
  for (std::size_t i = 0; i < count; ++i) {
    double& c = column[i * columns / count];
    c = std::max(c, static_cast<double>(profile.live[i].total().count));
    most = std::max(most, c);
  }
  for (int c = 1; c < columns; ++c)  // fewer instructions than columns
    if (column[static_cast<std::size_t>(c)] == 0.0)
      column[static_cast<std::size_t>(c)] = column[static_cast<std::size_t>(c - 1)];
  std::string text;
  for (int line = lines - 1; line >= 0; --line) {
    text += fmt::format("{:>12} |",
                        line == lines - 1 ? to_string(Bytes{static_cast<std::int64_t>(most)}) : "");
    for (double bytes : column) {
      const int eighths = static_cast<int>(bytes / most * lines * 8.0 + 0.5) - 8 * line;
      text += steps[static_cast<std::size_t>(std::clamp(eighths, 0, 8))];
    }
    text += '\n';
  }
  return text + fmt::format("{:>12} +{:-<{}}\n{:>12}  first instruction{:>{}}\n", "0", "", columns,
                            "", fmt::format("last ({})", count), columns - 17);
}

}  // namespace

MemoryProfile profile(const Plan& plan, int depth) {
  MemoryProfile result;
  const std::size_t count = plan.instructions.size();
  result.peak_instruction = plan.peak_instruction.number();
  std::vector<CategoryBytes> change(count + 1);
  std::map<std::string, CategoryBytes> modules;
  const TensorNames tensors = tensor_names(plan);
  for (const BufferId id : plan.buffers.ids()) {
    const Buffer& buffer = plan.buffers[id];
    // Tensors that no module made are named by their role: logits, an input.
    const std::string& path = buffer.path.empty() ? tensors.buffers[id.index()] : buffer.path;
    if (plan.tier_of(buffer) != Tier::device) continue;
    const bool stays = !buffer.in_arena();
    const int first = stays ? 0 : buffer.first.number();
    const int last = stays ? static_cast<int>(count) - 1 : buffer.last.number();
    const int peak = plan.peak_instruction.number();
    if (last < first) continue;
    change[static_cast<std::size_t>(first)][buffer.category] += counted(plan, buffer);
    change[static_cast<std::size_t>(last) + 1][buffer.category] -= counted(plan, buffer);
    if (first > peak || last < peak) continue;
    result.at_peak.push_back(
        {path, std::string(buffer.op), buffer.category, counted(plan, buffer), first, last});
    modules[cut(path, depth)][buffer.category] += counted(plan, buffer);
  }
  CategoryBytes live;
  for (std::size_t i = 0; i < count; ++i) {
    for (int c = 0; c < category_count; ++c)
      live[static_cast<Category>(c)] += change[i][static_cast<Category>(c)];
    result.live.push_back(live);
  }
  std::stable_sort(result.at_peak.begin(), result.at_peak.end(),
                   [](const LiveTensor& a, const LiveTensor& b) { return a.bytes > b.bytes; });
  for (const auto& [path, bytes] : modules) result.modules.push_back({path, bytes});
  std::stable_sort(
      result.modules.begin(), result.modules.end(),
      [](const ModuleBytes& a, const ModuleBytes& b) { return a.bytes.total() > b.bytes.total(); });
  std::map<std::pair<std::string, std::string>, DecisionGroup> groups;
  for (const Decision& decision : plan.decisions) {
    const std::string path = without_numbers(decision.path);
    DecisionGroup& group = groups[{path, decision.op}];
    group.path = path, group.op = decision.op;
    ++group.count;
    group.bytes += decision.bytes;
    group.ms += decision.recompute_ms;
  }
  for (const auto& [key, group] : groups) result.decisions.push_back(group);
  std::stable_sort(
      result.decisions.begin(), result.decisions.end(),
      [](const DecisionGroup& a, const DecisionGroup& b) { return a.bytes > b.bytes; });
  return result;
}

std::string to_string(const MemoryProfile& profile, int rows) {
  if (profile.live.empty()) return "nothing runs\n";
  const auto few = [&](std::size_t size) { return std::min(size, static_cast<std::size_t>(rows)); };
  std::string text = drawing(profile);
  text += fmt::format("\nlargest of {} tensors alive at the peak (instruction {})\n",
                      profile.at_peak.size(), profile.peak_instruction);
  for (std::size_t i = 0; i < few(profile.at_peak.size()); ++i) {
    const LiveTensor& t = profile.at_peak[i];
    text += fmt::format("  {:>12}  {:<12} {:<20} {}\n", ebb::to_string(t.bytes), name(t.category),
                        t.op, shown(t.path));
  }
  text += "\nmodules at the peak\n";
  for (std::size_t i = 0; i < few(profile.modules.size()); ++i)
    text += fmt::format("  {:>12}  {}\n", ebb::to_string(profile.modules[i].bytes.total()),
                        shown(profile.modules[i].path));
  if (!profile.decisions.empty()) {
    text += "\ncomputed again instead of kept (bytes freed, time to compute them)\n";
    for (std::size_t i = 0; i < few(profile.decisions.size()); ++i) {
      const DecisionGroup& d = profile.decisions[i];
      text += fmt::format("  {:>12}  {:>9.3f} ms  {:>4} × {:<20} {}\n", ebb::to_string(d.bytes),
                          d.ms, d.count, d.op, shown(d.path));
    }
  }
  return text;
}

std::string to_json(const MemoryProfile& profile, const Plan& plan) {
  using Json = nlohmann::ordered_json;
  const auto categories = [](const CategoryBytes& bytes) {
    Json object;
    for (int c = 0; c < category_count; ++c)
      object[std::string(name(static_cast<Category>(c)))] = bytes[static_cast<Category>(c)].count;
    return object;
  };
  Json live, modules = Json::array(), decisions = Json::array(), buffers = Json::array(),
             instructions = Json::array(), at_peak = Json::array();
  for (int c = 0; c < category_count; ++c) {
    Json& line = live[std::string(name(static_cast<Category>(c)))] = Json::array();
    for (const CategoryBytes& bytes : profile.live)
      line.push_back(bytes[static_cast<Category>(c)].count);
  }
  for (const ModuleBytes& m : profile.modules)
    modules.push_back({{"path", m.path}, {"bytes", categories(m.bytes)}});
  for (const DecisionGroup& d : profile.decisions)
    decisions.push_back({{"path", d.path},
                         {"op", d.op},
                         {"count", d.count},
                         {"bytes", d.bytes.count},
                         {"ms", d.ms}});
  for (const LiveTensor& t : profile.at_peak)
    at_peak.push_back({{"path", t.path},
                       {"op", t.op},
                       {"category", name(t.category)},
                       {"bytes", t.bytes.count},
                       {"first", t.first},
                       {"last", t.last}});
  for (const Buffer& b : plan.buffers)
    buffers.push_back({{"path", b.path},
                       {"op", b.op},
                       {"category", name(b.category)},
                       {"bytes", counted(plan, b).count},
                       {"first", b.first.number()},
                       {"last", b.last.number()},
                       {"offset", b.in_arena() ? Json(b.place.offset.count) : Json()}});
  for (const Instruction& i : plan.instructions)
    instructions.push_back({{"op", i.op->name()},
                            {"path", i.path},
                            {"ms", i.predicted_ms},
                            {"recomputed", i.recomputed}});
  return json_text(Json{{"peak_instruction", profile.peak_instruction},
                        {"live_bytes", live},
                        {"at_peak", at_peak},
                        {"modules_at_peak", modules},
                        {"decisions", decisions},
                        {"buffers", buffers},
                        {"instructions", instructions}});
}

}  // namespace ebb::report
