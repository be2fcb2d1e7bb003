#include "cli/activation_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace ebb::cli {
namespace {

struct ModuleRow {
  std::string module, op;
  std::int64_t count = 0;
  Bytes whole = {}, codes = {};
};

// The path with * for the numbers of blocks.
std::string without_numbers(const std::string& path) {
  std::string result;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    result += (begin == 0 ? "" : ".") + (number ? "*" : part);
    begin = end + 1;
  }
  return result;
}

std::vector<ModuleRow> rows_of(const std::vector<CodedActivations::Value>& values) {
  std::vector<ModuleRow> rows;
  for (const CodedActivations::Value& value : values) {
    const std::string module = without_numbers(value.path);
    auto row = std::ranges::find_if(
        rows, [&](const ModuleRow& r) { return r.module == module && r.op == value.op; });
    if (row == rows.end()) row = rows.insert(row, {.module = module, .op = value.op});
    ++row->count;
    row->whole += value.type.bytes(), row->codes += value.codes;
  }
  return rows;
}

nlohmann::ordered_json to_json(const std::vector<CodedActivations::Value>& values) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const ModuleRow& row : rows_of(values))
    rows.push_back({{"module", row.module},
                    {"op", row.op},
                    {"values", row.count},
                    {"whole_bytes", row.whole.count},
                    {"code_bytes", row.codes.count}});
  return rows;
}

}  // namespace

std::string to_string(const CodedActivations& activations) {
  std::string text = fmt::format("activations in 8 bits: {} of {}\n",
                                 to_string(activations.codes()), to_string(activations.whole()));
  for (const ModuleRow& row : rows_of(activations.kept))
    text += fmt::format("  {:<36} {:<14} {:>4} × {} as {}\n", row.module, row.op, row.count,
                        to_string(Bytes{row.whole.count / row.count}),
                        to_string(Bytes{row.codes.count / row.count}));
  for (const ModuleRow& row : rows_of(activations.again))
    text += fmt::format("  {:<36} {:<14} {:>4} × {} computed again\n", row.module, row.op,
                        row.count, to_string(Bytes{row.whole.count / row.count}));
  return text;
}

nlohmann::ordered_json to_json(const CodedActivations& activations) {
  return {{"bits", 8},
          {"whole_bytes", activations.whole().count},
          {"code_bytes", activations.codes().count},
          {"kept", to_json(activations.kept)},
          {"again", to_json(activations.again)}};
}

}  // namespace ebb::cli
