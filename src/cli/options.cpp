#include "cli/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>

#include "cli/did_you_mean.h"
#include "cli/member_of.h"
#include "cli/numbers.h"

namespace ebb::cli {
namespace {

namespace fs = std::filesystem;

// A path that cannot be examined, such as one with too long a name, counts as missing.
bool exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

}  // namespace

// The list is the description, so that help and completion show it.
CLI::Validator member_of(const std::vector<std::string>& texts) {
  return {[texts](std::string& text) -> std::string {
            if (std::find(texts.begin(), texts.end(), text) != texts.end()) return {};
            return fmt::format("\"{}\" is none of {}{}", shortened(text), fmt::join(texts, ", "),
                               did_you_mean(text, texts));
          },
          fmt::format("{{{}}}", fmt::join(texts, ",")), "member"};
}

CLI::Validator existing_file_at() {
  return {[](std::string& text) -> std::string {
            if (std::error_code error; fs::is_directory(text, error))
              return fmt::format("{} is a folder, not a file", text);
            return exists(text) ? "" : fmt::format("there is no file {}", text);
          },
          "", "file"};
}

Option& Option::required() { return option_->required(), *this; }
Option& Option::needs(const std::string& other) { return option_->needs(other), *this; }
Option& Option::excludes(const std::string& other) { return option_->excludes(other), *this; }
Option& Option::positive() { return option_->check(WholeNumber(1)), *this; }
Option& Option::not_negative() { return option_->check(WholeNumber(0)), *this; }
Option& Option::between(int least, int most) {
  return option_->check(WholeNumber(least, most)), *this;
}
Option& Option::one_of(const std::vector<std::string>& texts) {
  return option_->check(member_of(texts)), *this;
}
Option& Option::existing_file() { return option_->check(existing_file_at()), *this; }
Option& Option::existing_folder() {
  return check([](const std::string& text) -> std::string {
    if (std::error_code error; fs::is_directory(text, error)) return {};
    return exists(text) ? fmt::format("{} is no folder", text)
                        : fmt::format("there is no folder {}", text);
  });
}
Option& Option::existing_path() {
  return check([](const std::string& text) {
    return exists(text) ? "" : fmt::format("there is no file or folder {}", text);
  });
}
Option& Option::check(std::function<std::string(const std::string&)> problem) {
  return option_->check(std::move(problem)), *this;
}
Option& Option::transform(std::function<std::string(std::string)> replace) {
  return option_->transform(std::move(replace)), *this;
}
Option& Option::type_name(const std::string& name) { return option_->type_name(name), *this; }
Option& Option::group(const std::string& name) { return option_->group(name), *this; }
Option& Option::show_default() { return option_->capture_default_str(), *this; }

template <class T>
Option add_option(CLI::App& app, const std::string& name, T& value, const std::string& help) {
  return Option(app.add_option(name, value, help));
}
#define EBB_INSTANTIATE(T) \
  template Option add_option(CLI::App&, const std::string&, T&, const std::string&)
EBB_INSTANTIATE(int);
EBB_INSTANTIATE(std::int64_t);
EBB_INSTANTIATE(std::uint64_t);
EBB_INSTANTIATE(std::string);
EBB_INSTANTIATE(std::filesystem::path);
EBB_INSTANTIATE(std::optional<double>);
EBB_INSTANTIATE(std::optional<std::int64_t>);
EBB_INSTANTIATE(std::optional<std::uint64_t>);
EBB_INSTANTIATE(std::optional<std::string>);
EBB_INSTANTIATE(std::optional<std::filesystem::path>);
EBB_INSTANTIATE(std::vector<std::filesystem::path>);
#undef EBB_INSTANTIATE

Option add_option(CLI::App& app, const std::string& name,
                  std::function<void(const std::string&)> set, const std::string& help) {
  return Option(app.add_option_function<std::string>(name, set, help));
}

Option add_flag(CLI::App& app, const std::string& name, bool& value, const std::string& help) {
  return Option(app.add_flag(name, value, help));
}

Option option(CLI::App& app, const std::string& name) { return Option(app.get_option(name)); }

void remove_option(CLI::App& app, const std::string& name) {
  app.remove_option(app.get_option(name));
}

bool given(const CLI::App& app, const std::string& name) {
  return app.get_option(name)->count() > 0;
}

std::string given_text(const CLI::App& app, const std::string& name, const std::string& otherwise) {
  const CLI::Option& option = *app.get_option(name);
  return option.count() > 0 ? option.results().front() : otherwise;
}

}  // namespace ebb::cli
