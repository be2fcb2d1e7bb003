// The line of source code that made a module, for reports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ebb::nn {

struct SourceLine {
  const char* file = "";  // as the compiler names it
  std::uint32_t line = 0;

  // Where it is called; as a default argument, where the function with that argument is called.
  static constexpr SourceLine here(const char* file = __builtin_FILE(),
                                   std::uint32_t line = __builtin_LINE()) {
    return {file, line};
  }
};

// "src/models/gpt2.cpp:57"; empty if nothing is known.
std::string to_string(const SourceLine& source);

// The name of a module's child, written as a literal, and its line. The constructor runs at compile
// time because only then the line in a default member initializer, `Linear in{at("in"), 4, 8};`,
// is that of the member and not that of the class.
struct ChildName {
  std::string_view name;
  SourceLine source;

  template <std::size_t Size>
  consteval ChildName(const char (&literal)[Size], const char* file = __builtin_FILE(),
                      std::uint32_t line = __builtin_LINE())
      : name(literal, Size - 1), source{file, line} {}
};

}  // namespace ebb::nn
