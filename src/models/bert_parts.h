// What BERT's classifier and its head for masked words share.
#pragma once

#include "ebb/models/bert.h"

namespace ebb::models {

// The config itself, or an error that names the field.
const BertConfig& checked(const BertConfig& config);

inline nn::Initial initial(const BertConfig& c) { return nn::Initial::normal(c.initial_deviation); }

}  // namespace ebb::models
