// Options of verbs, declared without CLI11's headers, which take longer to compile than the rest of
// a verb. Sources that need more of CLI11 than this include them.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace ebb::cli {

// An option that has been added. Each member restricts its values or extends its help, and returns
// the option.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option& required();
  Option& needs(const std::string& other);     // another option of the verb
  Option& excludes(const std::string& other);  // likewise

  Option& positive();      // a whole number
  Option& not_negative();  // likewise
  Option& between(int least, int most);
  Option& one_of(const std::vector<std::string>& texts);
  Option& existing_file();
  Option& existing_folder();
  Option& existing_path();
  // `problem` returns an empty text for a valid value, and otherwise says what is wrong.
  Option& check(std::function<std::string(const std::string&)> problem);
  // Replaces the typed text before it is checked.
  Option& transform(std::function<std::string(std::string)> replace);

  Option& type_name(const std::string& name);
  Option& group(const std::string& name);
  Option& show_default();  // the current value of the variable

 private:
  CLI::Option* option_;
};

// The types of values that options.cpp instantiates.
template <class T>
Option add_option(CLI::App& app, const std::string& name, T& value, const std::string& help);
Option add_option(CLI::App& app, const std::string& name,
                  std::function<void(const std::string&)> set, const std::string& help);
Option add_flag(CLI::App& app, const std::string& name, bool& value, const std::string& help);

Option option(CLI::App& app, const std::string& name);
void remove_option(CLI::App& app, const std::string& name);
bool given(const CLI::App& app, const std::string& name);
// What was given for the option, or else `otherwise`.
std::string given_text(const CLI::App& app, const std::string& name, const std::string& otherwise);

}  // namespace ebb::cli
