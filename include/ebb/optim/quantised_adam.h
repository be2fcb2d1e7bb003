// Adam and AdamW with moments in 8 or 4 bits, quantised block by block: each block stores its
// largest magnitude in float32 and one code per element. A step decodes a block, updates it in
// float32 and encodes it again; the parameter is updated with the moments before encoding.
//
// Parameters that are small or tables (nn::Role::table: embeddings, whose rows see very different
// gradients) keep moments in float32; a Group's `quantise` overrides this.
#pragma once

#include <cstdint>

#include "ebb/optim/rule.h"

namespace ebb::optim {

// Dettmers et al., 2021: blocks of 256, dynamic maps.
struct Adam8bit {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0.0;  // through the gradient
  std::int64_t min_quantised_elements = 4096;
  bool quantise_tables = false;

  void visit(auto&& field) const {
    field("beta1", beta1);
    field("beta2", beta2);
    field("eps", eps);
    field("weight_decay", weight_decay);
    field("min_quantised_elements", min_quantised_elements);
    field("quantise_tables", quantise_tables);
  }
};
RulePtr make_rule(const Adam8bit& options);

struct AdamW8bit {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0.01;  // on the parameter itself
  std::int64_t min_quantised_elements = 4096;
  bool quantise_tables = false;

  void visit(auto&& field) const {
    field("beta1", beta1);
    field("beta2", beta2);
    field("eps", eps);
    field("weight_decay", weight_decay);
    field("min_quantised_elements", min_quantised_elements);
    field("quantise_tables", quantise_tables);
  }
};
RulePtr make_rule(const AdamW8bit& options);

// Li et al., 2023: blocks of 128, a dynamic map for the mean and a linear one without zero for the
// mean square.
struct AdamW4bit {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0.01;  // on the parameter itself
  std::int64_t min_quantised_elements = 4096;
  bool quantise_tables = false;

  void visit(auto&& field) const {
    field("beta1", beta1);
    field("beta2", beta2);
    field("eps", eps);
    field("weight_decay", weight_decay);
    field("min_quantised_elements", min_quantised_elements);
    field("quantise_tables", quantise_tables);
  }
};
RulePtr make_rule(const AdamW4bit& options);

}  // namespace ebb::optim
