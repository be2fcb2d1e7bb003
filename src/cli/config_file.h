// Options from a file: `--config run.toml`. Every option of `ebb train` is a key of the same name,
// those of levels in tables [levels.NAME]. Verbs that share options with `ebb train` take the keys
// of theirs and leave the others to it, so that one file serves all. What is typed wins.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "cli/options.h"
#include "core/toml.h"

namespace ebb::cli {

class ConfigFile {
 public:
  // Keys that this verb has an option for, but one of another meaning.
  using Skips = std::function<bool(const CLI::App& app, const std::string& key)>;

  // Adds --config. To be called before any other option is added: options are read in that order,
  // and the file gives the later ones what was not typed.
  void attach(CLI::App& app, Skips skips = {});

  // The message with the place in the file before it, if the first option it names is from there:
  // "run.toml:7: --heads does not apply to mlp".
  std::string located(const std::string& message) const;

 private:
  void read(CLI::App& app, const std::filesystem::path& path);
  void take_level(CLI::App& app, const toml::Entry& level);
  void take(CLI::App& app, const std::string& name, const toml::Entry& entry);
  [[noreturn]] void fail(toml::Position at, const std::string& what) const;

  Skips skips_;
  std::string path_;
  std::map<std::string, int> lines_;    // of options that the file gave, such as "--lr"
  std::set<const CLI::Option*> given_;  // the same; an option may have two names
};

// What a key's value may be.
enum class KeyKind : std::uint8_t { truth, whole, number, text, text_or_whole, texts };
// Every key, levels' as "classifier.lr".
const std::map<std::string, KeyKind>& config_keys();

}  // namespace ebb::cli
