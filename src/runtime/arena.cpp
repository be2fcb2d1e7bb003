#include "ebb/arena.h"

#include "ebb/storage.h"

namespace ebb {

Arena::Arena(Device device, const MachineOptions& machine) : device_(device), machine_(machine) {}

Bytes Arena::size() const { return storage_ ? storage_->size() : Bytes{}; }
Bytes Arena::resident() const { return storage_ ? storage_->resident() : Bytes{}; }
std::byte* Arena::data() const { return storage_ ? storage_->data() : nullptr; }

void Arena::reserve(Bytes size) {
  if (size <= this->size()) return;
  storage_.reset();  // frees the old block first, so that both never exist at once
  holder_ = nullptr;
  ++generation_;
  storage_ = allocate_arena(device_, size, machine_, report_);
  storage_->populate();  // touches all pages now, so that a later run cannot run out of memory
}

}  // namespace ebb
