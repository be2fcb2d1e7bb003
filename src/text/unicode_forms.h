// Forms of Unicode text that several normalizers need.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "text/characters.h"

namespace ebb::text {

// One character at a time: a letter does not depend on its neighbours.
void make_lower_case(std::string& text);

// The canonical decomposition (NFD).
void decompose(std::string& text);

// Keeps the characters for which keep(code) is true.
template <class Keep>
void filter_characters(std::string& text, Keep&& keep) {
  std::string kept;
  kept.reserve(text.size());
  each_character(text, [&](char32_t code, std::string_view bytes) {
    if (keep(code)) kept += bytes;
  });
  text = std::move(kept);
}

}  // namespace ebb::text
