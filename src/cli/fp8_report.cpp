#include "cli/fp8_report.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

namespace ebb::cli {

std::string to_string(const Fp8Products& products) {
  std::string text = fmt::format("{} products in fp8, of forward and backward", products.in_fp8);
  if (!products.others.empty())
    text += fmt::format("; {} of forward inside blocks in bfloat16:", products.others.size());
  for (const Fp8Products::Other& other : products.others)
    text += fmt::format("\n  {}: {}", other.path, other.obstacle);
  return text + "\n";
}

nlohmann::ordered_json to_json(const Fp8Products& products) {
  nlohmann::ordered_json others = nlohmann::ordered_json::array();
  for (const Fp8Products::Other& other : products.others)
    others.push_back({{"module", other.path}, {"obstacle", other.obstacle}});
  return {{"in_fp8", products.in_fp8}, {"in_bfloat16", others}};
}

}  // namespace ebb::cli
