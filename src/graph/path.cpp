#include <utility>

#include "ebb/node.h"
#include "ebb/random.h"
#include "graph/draw_scope.h"

namespace ebb {
namespace {

thread_local std::string path;
thread_local std::uint64_t draws = 0;  // keys drawn and scopes entered under the current path

// The finaliser of SplitMix64: every input bit reaches every output bit.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

std::uint64_t hash(std::string_view text) {
  std::uint64_t h = 0xCBF29CE484222325ull;  // FNV-1a
  for (char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  return h;
}

}  // namespace

PathScope::PathScope(std::string_view name, Kind kind) : outer_path_(path), outer_draws_(draws) {
  if (kind == Kind::absolute) path.clear();
  if (!path.empty() && !name.empty()) path += '.';
  path += name;
  draws = mix(outer_draws_ + 0x9E3779B97F4A7C15ull);
}

PathScope::~PathScope() {
  path = std::move(outer_path_);
  draws = outer_draws_ + 1;
}

const std::string& current_path() { return path; }

TraceScope::TraceScope(std::string start)
    : outer_path_(std::exchange(path, std::move(start))), outer_draws_(std::exchange(draws, 0)) {}

TraceScope::~TraceScope() {
  path = std::move(outer_path_);
  draws = outer_draws_;
}

DrawScope::DrawScope(std::uint64_t number)
    : outer_draws_(std::exchange(draws, mix(number + 0xD1B54A32D192ED03ull))) {}

DrawScope::~DrawScope() { draws = outer_draws_; }

RandomKey next_random_key() { return {mix(hash(path) ^ mix(draws++))}; }

}  // namespace ebb
