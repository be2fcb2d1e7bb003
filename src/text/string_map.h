// A map from strings to numbers for millions of lookups a second: one table of slots with open
// addressing, and all keys in one buffer.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace ebb::text {

inline std::uint64_t mixed(std::uint64_t value) {
  value ^= value >> 32;
  value *= 0x9E3779B97F4A7C15u;
  value ^= value >> 29;
  value *= 0xBF58476D1CE4E5B9u;
  return value ^ value >> 32;
}

inline std::uint64_t hash_of(std::string_view key) {
  std::uint64_t hash = key.size() * 0xD6E8FEB86659FD93u;
  const char* at = key.data();
  std::size_t left = key.size();
  for (; left >= 8; at += 8, left -= 8) {
    std::uint64_t word;
    std::memcpy(&word, at, 8);
    hash = mixed(hash ^ word);
  }
  std::uint64_t word = 0;
  if (left > 0) std::memcpy(&word, at, left);
  return mixed(hash ^ word);
}

class StringMap {
 public:
  struct Entry {
    std::uint32_t begin, size;  // of the key in the buffer
    std::int32_t value;
  };

  std::size_t size() const { return entries_.size(); }
  std::string_view key(const Entry& entry) const {
    return std::string_view(keys_).substr(entry.begin, entry.size);
  }
  const std::vector<Entry>& entries() const { return entries_; }

  const std::int32_t* find(std::string_view key) const { return find(key, hash_of(key)); }
  const std::int32_t* find(std::string_view key, std::uint64_t hash) const {
    if (slots_.empty()) return nullptr;
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t at = hash & mask;; at = (at + 1) & mask) {
      const Slot& slot = slots_[at];
      if (slot.entry == 0) return nullptr;
      if (slot.tag != static_cast<std::uint32_t>(hash >> 32)) continue;
      const Entry& entry = entries_[slot.entry - 1];
      if (entry.size == key.size() &&
          std::memcmp(keys_.data() + entry.begin, key.data(), key.size()) == 0)
        return &entry.value;
    }
  }

  // A key that is there already keeps its place and takes the new value. Keys have less than 4 GiB
  // together; Tokenizer limits the size of files.
  void set(std::string_view key, std::int32_t value) {
    const std::uint64_t hash = hash_of(key);
    if (const std::int32_t* old = find(key, hash)) {
      *const_cast<std::int32_t*>(old) = value;
      return;
    }
    if (2 * (entries_.size() + 1) > slots_.size()) grow();
    entries_.push_back(
        {static_cast<std::uint32_t>(keys_.size()), static_cast<std::uint32_t>(key.size()), value});
    keys_ += key;
    place(hash, static_cast<std::uint32_t>(entries_.size()));
  }

  void clear() {
    slots_.assign(slots_.size(), {});
    entries_.clear();
    keys_.clear();
  }

 private:
  struct Slot {
    std::uint32_t tag = 0;    // the upper half of the key's hash
    std::uint32_t entry = 0;  // its index + 1; 0: empty
  };

  void place(std::uint64_t hash, std::uint32_t entry) {
    const std::size_t mask = slots_.size() - 1;
    std::size_t at = hash & mask;
    while (slots_[at].entry != 0) at = (at + 1) & mask;
    slots_[at] = {static_cast<std::uint32_t>(hash >> 32), entry};
  }

  void grow() {
    slots_.assign(slots_.empty() ? 64 : 2 * slots_.size(), {});
    for (std::size_t i = 0; i < entries_.size(); ++i)
      place(hash_of(key(entries_[i])), static_cast<std::uint32_t>(i + 1));
  }

  std::vector<Slot> slots_;  // a power of two, at most half full
  std::vector<Entry> entries_;
  std::string keys_;
};

}  // namespace ebb::text
