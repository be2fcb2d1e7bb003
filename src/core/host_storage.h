#pragma once

#include <cstdint>

#include "ebb/storage.h"

namespace ebb {

// Whole pages.
Bytes host_reservation(Bytes size, PageSize pages);

class HostStorage final : public Storage {
 public:
  enum class Memory : std::uint8_t { at_once, on_resize };
  HostStorage(Bytes limit, PageSize pages, Memory memory);
  ~HostStorage() override;

  void resize(Bytes size) override;
  void populate() override;
  Bytes resident() const override;

 private:
  void provide(Bytes size, Bytes pages_of_size);  // once those pages, and no others, can be used
};

}  // namespace ebb
