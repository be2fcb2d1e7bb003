// Options of kinds CLI11 does not know.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "ebb/bytes.h"
#include "ebb/error.h"

namespace ebb::cli {

// A number of bytes: "2GiB", "300MB", "4096".
inline CLI::Option* add_bytes(CLI::App& app, const std::string& name, Bytes& value,
                              const std::string& help) {
  return app
      .add_option_function<std::string>(
          name,
          [&value, name](const std::string& text) {
            try {
              value = parse_bytes(text);
            } catch (const Error& e) {
              throw CLI::ValidationError(name, e.what());
            }
          },
          help)
      ->type_name("BYTES");
}

}  // namespace ebb::cli
