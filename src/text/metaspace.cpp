#include "text/metaspace.h"

#include "text/characters.h"

namespace ebb::text {

MetaspaceSettings read_metaspace(const Field& field) {
  field.allow_only(
      {"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"});
  MetaspaceSettings settings;
  const Field replacement = field["replacement"];
  settings.replacement = replacement.text();
  if (settings.replacement.empty() ||
      character_at(settings.replacement.data()).size != settings.replacement.size())
    replacement.fail_expecting("one character");
  if (const auto old = field.find("str_rep"); old && old->text() != settings.replacement)
    old->fail_expecting("the same as \"replacement\"");
  const auto scheme = field.find("prepend_scheme");
  if (scheme) {
    const std::string& name = scheme->text();
    if (name == "never")
      settings.prepend = PrependScheme::never;
    else if (name == "first")
      settings.prepend = PrependScheme::first;
    else if (name != "always")
      scheme->fail_expecting("always, first or never");
  }
  // The setting that older files have.
  if (const auto add = field.find("add_prefix_space"); add && !add->flag()) {
    if (scheme && settings.prepend != PrependScheme::never)
      add->fail_expecting("true where \"prepend_scheme\" is not \"never\"");
    settings.prepend = PrependScheme::never;
  }
  settings.split = field.flag("split", true);
  return settings;
}

}  // namespace ebb::text
