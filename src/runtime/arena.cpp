#include "ebb/arena.h"

#include "ebb/storage.h"

namespace ebb {

Arena::Arena(Device device, const MachineOptions& machine) : device_(device), machine_(machine) {}

Bytes Arena::size() const { return storage_ ? storage_->size() : Bytes{}; }
Bytes Arena::resident() const { return storage_ ? storage_->resident() : Bytes{}; }
std::byte* Arena::data() const { return storage_ ? storage_->data() : nullptr; }

void Arena::reserve(Bytes size) {
  if (size <= this->size()) return;
  storage_.reset();  // the old block goes before the new one comes: never both at once
  holder_ = nullptr;
  ++generation_;
  storage_ = allocate_arena(device_, size, machine_, report_);
}

}  // namespace ebb
