// Checks of models' configurations, before any module is made from them. Errors name the model and
// the field.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace ebb::models {

struct SizeField {
  std::string_view name;
  std::int64_t value;
};

// Every size is at least 1 and small enough to be multiplied by another one.
void check_sizes(std::string_view model, std::initializer_list<SizeField> sizes);

// The number of blocks, which is limited because modules are made one by one.
int block_count(std::string_view model, std::int64_t layers);

// `width` divides into `heads`, and those into `groups` that share keys and values.
void check_heads(std::string_view model, std::int64_t width, std::int64_t heads,
                 std::int64_t groups);

void check_dropout(std::string_view model, double probability);  // in [0, 1)
void check_not_negative(std::string_view model, std::string_view field,
                        double value);                                              // and finite
void check_positive(std::string_view model, std::string_view field, double value);  // and finite

}  // namespace ebb::models
