// The folder that a model was read from.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace ebb::models {

struct Origin {
  std::string config = {};  // its config.json; saving writes back every field of it
  // Parameters that the folder did not have. They start from random values and need training.
  std::vector<std::string> initialised = {};
  // Tensors of the folder that belong to heads this model does not have.
  std::vector<std::string> unused = {};
};

class HasOrigin {
 public:
  // Empty for a model that was not read from a folder.
  const Origin& origin() const { return origin_; }
  void set_origin(Origin origin) { origin_ = std::move(origin); }

 private:
  Origin origin_;
};

}  // namespace ebb::models
