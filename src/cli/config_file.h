// Options from a file: `--config run.toml`. Every option of `ebb train` is a key of the same name;
// options of levels are in tables [levels.NAME]. Other verbs take the keys that they share with
// `ebb train` and ignore the rest, so that one file serves all. The command line overrides the
// file.
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
  // Keys to skip although this verb has an option of that name, because the option has another
  // meaning.
  using Skips = std::function<bool(const CLI::App& app, const std::string& key)>;

  // Adds --config. Must be called before any other option is added: options are parsed in that
  // order, and the file then gives values to the later ones that were not typed.
  void attach(CLI::App& app, Skips skips = {});

  const std::string& path() const { return path_; }  // empty without --config

  // The message, preceded by the place in the file if the first option it names comes from there:
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
  std::set<const CLI::Option*> given_;  // the same options; an option may have two names
};

// The type of a key's value.
enum class KeyKind : std::uint8_t { truth, whole, number, text, text_or_whole, texts };
// Every key; those of levels as "classifier.lr".
const std::map<std::string, KeyKind>& config_keys();

}  // namespace ebb::cli
