// A check of an option's text by the library's own parser.
#pragma once

#include <string>

#include "ebb/error.h"

namespace ebb::cli {

// A check for CLI11 that gives the library's own message.
template <class Parse>
auto accepted_by(const Parse& parse) {
  return [parse](const std::string& text) -> std::string {
    try {
      parse(text);
      return {};
    } catch (const Error& error) {
      return error.what();
    }
  };
}

}  // namespace ebb::cli
