// A folder's model is replaced by another of the same family, such as a smaller one.
#pragma once

#include <memory>

#include "ebb/io/hugging_face.h"

namespace ebb::io {

// `save` writes the new model from then on. Its weights are its own: `load` is an error.
template <class Model>
void replace_model(ModelFolder& folder, std::unique_ptr<Model> model);

}  // namespace ebb::io
