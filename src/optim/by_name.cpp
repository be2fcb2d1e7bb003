#include "ebb/optim/by_name.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ebb/error.h"

namespace ebb::optim {
namespace {

struct Row {
  std::string_view name;
  Optimizer (*make)(DType state);
};

template <class Options>
Optimizer with_defaults(DType state) {
  Options options;
  if constexpr (requires { options.state; }) options.state = state;
  if constexpr (requires { options.rounding; })
    if (state == bf16) options.rounding = Rounding::stochastic;
  return options;
}

constexpr Row rows[] = {
    {"sgd", with_defaults<SGD>},
    {"adam", with_defaults<Adam>},
    {"adamw", with_defaults<AdamW>},
    {"adafactor", with_defaults<Adafactor>},
    {"adam8bit", with_defaults<Adam8bit>},
    {"adamw8bit", with_defaults<AdamW8bit>},
    {"adamw4bit", with_defaults<AdamW4bit>},
    {"lion", with_defaults<Lion>},
    {"lomo", with_defaults<LOMO>},
};

}  // namespace

std::vector<std::string_view> names() {
  std::vector<std::string_view> all;
  for (const Row& row : rows) all.push_back(row.name);
  return all;
}

Optimizer by_name(std::string_view name, std::optional<double> rate, DType state) {
  for (const Row& row : rows)
    if (row.name == name) return rate ? row.make(state).with_rate(*rate) : row.make(state);
  throw ValueError(fmt::format("there is no optimizer \"{}\"; the optimizers are {}", name,
                               fmt::join(names(), ", ")));
}

}  // namespace ebb::optim
