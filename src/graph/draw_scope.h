// While it exists, random keys are drawn as if they were the first ones of sequence `number` under
// the current path. Afterwards the path's own sequence continues as if nothing had been drawn.
#pragma once

#include <cstdint>

namespace ebb {

class DrawScope {
 public:
  explicit DrawScope(std::uint64_t number);
  ~DrawScope();
  DrawScope(const DrawScope&) = delete;
  DrawScope& operator=(const DrawScope&) = delete;

 private:
  std::uint64_t outer_draws_;
};

}  // namespace ebb
