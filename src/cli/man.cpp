// `ebb man`: the manual page, made from the help of the verbs.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <iostream>

#include "cli/verb.h"
#include "ebb/version.h"

namespace ebb::cli {
namespace {

// Text for roff: no line becomes a command by accident, and dashes are option dashes.
std::string roff(const std::string& text) {
  std::string result;
  bool line_start = true;
  for (const char c : text) {
    if (line_start && (c == '.' || c == '\'')) result += "\\&";
    line_start = c == '\n';
    if (c == '\\')
      result += "\\e";
    else if (c == '-')
      result += "\\-";
    else
      result += c;
    if (c == '\n') result += ".br\n";
  }
  return result;
}

std::string upper(std::string text) {
  for (char& c : text)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  return text;
}

std::string option_text(const CLI::Option& option) {
  std::string names = option.get_name(false, true);
  for (std::size_t at = names.find(','); at != std::string::npos; at = names.find(',', at + 2))
    names.replace(at, 1, ", ");
  const std::string type = option.get_type_size() > 0 || option.get_items_expected_max() > 0
                               ? option.get_type_name()
                               : "";
  const std::string value = option.get_default_str();
  return fmt::format(".TP\n.B {}{}\n{}{}\n", roff(names),
                     type.empty() ? "" : " \\fR" + roff(type) + "\\fP",
                     roff(option.get_description()),
                     value.empty() ? "" : fmt::format("; default: {}", roff(value)));
}

class Man : public Verb {
 public:
  Man() : Verb("man", "Print the manual page", "ebb man | man -l -") {}

 protected:
  void configure(CLI::App&) override {}

  int run() override {
    const CLI::App& program = *app().get_parent();
    std::cout << fmt::format(
        ".TH EBB 1 \"\" \"ebb {}\" \"User Commands\"\n.SH NAME\nebb \\- trains neural networks "
        "inside a memory budget\n.SH SYNOPSIS\n.B ebb\n.I VERB\n[\\fIoptions\\fP]\n.SH "
        "DESCRIPTION\n"
        "{}\n.SH VERBS\n",
        version(), roff(program.get_description()));
    const auto verbs = program.get_subcommands([](const CLI::App*) { return true; });
    for (const CLI::App* verb : verbs)
      std::cout << fmt::format(".TP\n.B {}\n{}\n", roff(verb->get_name()),
                               roff(verb->get_description()));
    for (const CLI::App* verb : verbs) {
      std::cout << fmt::format(".SH EBB {}\n{}.\n", roff(upper(verb->get_name())),
                               roff(verb->get_description()));
      for (const CLI::Option* option : verb->get_options()) std::cout << option_text(*option);
      std::cout << ".PP\n" << roff(verb->get_footer()) << "\n";
    }
    std::cout << ".SH EXIT STATUS\n" << roff(program.get_footer()) << "\n";
    return success;
  }
};

}  // namespace

std::unique_ptr<Verb> man_verb() { return std::make_unique<Man>(); }

}  // namespace ebb::cli
