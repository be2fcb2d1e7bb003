#include "ebb/storage.h"

#include <atomic>

#include "core/backend.h"

namespace ebb {
namespace {

std::atomic<std::int64_t> reserved_bytes = 0, allocations_made = 0;

Bytes size_of(std::span<const std::byte> bytes) {
  return {static_cast<std::int64_t>(bytes.size())};
}

}  // namespace

Storage::Storage(Device device, Bytes limit, PageSize pages)
    : device_(device), pages_(pages), limit_(limit) {
  allocations_made.fetch_add(1, std::memory_order_relaxed);
}

Storage::~Storage() { reserved_bytes.fetch_sub(reserved_.count, std::memory_order_relaxed); }

void Storage::set_size(Bytes size, Bytes reserved) {
  reserved_bytes.fetch_add((reserved - reserved_).count, std::memory_order_relaxed);
  size_ = size, reserved_ = reserved;
}

std::shared_ptr<Storage> Storage::allocate(Device device, Bytes size, PageSize pages) {
  return backend_of(device).allocate(device, size, pages);
}

std::shared_ptr<Storage> Storage::growable(Device device, Bytes limit) {
  return backend_of(device).growable(device, limit);
}

std::int64_t Storage::allocations() { return allocations_made.load(std::memory_order_relaxed); }

Bytes Storage::reservation(Bytes size, PageSize pages) {
  return reservation(device::cpu, size, pages);
}

Bytes Storage::reservation(Device device, Bytes size, PageSize pages) {
  return backend_of(device).reservation(size, pages);
}

void Storage::write(std::span<const std::byte> bytes) {
  backend_of(device_).write(device_, data_, bytes.data(), size_of(bytes));
}

void Storage::read(std::span<std::byte> bytes, Bytes offset) const {
  backend_of(device_).read(device_, bytes.data(), data_ + offset.count, size_of(bytes));
}

bool Storage::on_host() const { return device_ == device::cpu && data_ != nullptr; }

Bytes live_bytes() { return {reserved_bytes.load(std::memory_order_relaxed)}; }

}  // namespace ebb
