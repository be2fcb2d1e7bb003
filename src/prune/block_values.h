// The values between two blocks of a model, one for each batch: in memory, or in a file.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "ebb/tensor.h"

namespace ebb {
class UnnamedFile;
}

namespace ebb::prune {

class BlockValues {
 public:
  // With a folder, the values go to a file without a name in it.
  BlockValues(const TensorType& type, std::size_t count,
              const std::optional<std::filesystem::path>& folder);
  ~BlockValues();
  BlockValues(BlockValues&&) noexcept;

  std::size_t size() const { return count_; }
  Tensor get(std::size_t i) const;
  void set(std::size_t i, const Tensor& value);

 private:
  TensorType type_;
  std::size_t count_;
  std::vector<Tensor> values_;
  std::unique_ptr<UnnamedFile> file_;
};

}  // namespace ebb::prune
