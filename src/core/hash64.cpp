#include "core/hash64.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace ebb {
namespace {

// The algorithm's own constants.
constexpr std::uint64_t p1 = 0x9E3779B185EBCA87, p2 = 0xC2B2AE3D27D4EB4F, p3 = 0x165667B19E3779F9,
                        p4 = 0x85EBCA77C2B2AE63, p5 = 0x27D4EB2F165667C5;

template <class Word>
Word word_at(const std::byte* bytes) {
  static_assert(std::endian::native == std::endian::little);
  Word word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

std::uint64_t round(std::uint64_t lane, std::uint64_t word) {
  return std::rotl(lane + word * p2, 31) * p1;
}

}  // namespace

void Hash64::mix(const std::byte* bytes) {
  for (std::size_t i = 0; i < 4; ++i)
    lanes_[i] = round(lanes_[i], word_at<std::uint64_t>(bytes + 8 * i));
}

Hash64& Hash64::add(std::span<const std::byte> bytes) {
  length_ += bytes.size();
  if (waiting_ > 0) {
    const std::size_t taken = std::min(stripe - waiting_, bytes.size());
    std::copy_n(bytes.begin(), taken, rest_.begin() + static_cast<std::ptrdiff_t>(waiting_));
    waiting_ += taken;
    bytes = bytes.subspan(taken);
    if (waiting_ < stripe) return *this;
    mix(rest_.data());
    waiting_ = 0;
  }
  for (; bytes.size() >= stripe; bytes = bytes.subspan(stripe)) mix(bytes.data());
  std::copy(bytes.begin(), bytes.end(), rest_.begin());
  waiting_ = bytes.size();
  return *this;
}

Hash64::State Hash64::state() const {
  State state;
  std::byte* at = state.data();
  const auto put = [&](const void* bytes, std::size_t size) {
    std::memcpy(at, bytes, size);
    at += size;
  };
  const std::uint64_t waiting = waiting_;
  put(lanes_.data(), sizeof lanes_), put(rest_.data(), sizeof rest_);
  put(&waiting, sizeof waiting), put(&length_, sizeof length_);
  return state;
}

Hash64 Hash64::from(const State& state) {
  Hash64 hash;
  const std::byte* at = state.data();
  const auto take = [&](void* bytes, std::size_t size) {
    std::memcpy(bytes, at, size);
    at += size;
  };
  std::uint64_t waiting = 0;
  take(hash.lanes_.data(), sizeof hash.lanes_), take(hash.rest_.data(), sizeof hash.rest_);
  take(&waiting, sizeof waiting), take(&hash.length_, sizeof hash.length_);
  hash.waiting_ = std::min<std::size_t>(waiting, stripe - 1);
  return hash;
}

std::uint64_t Hash64::value() const {
  std::uint64_t hash = p5;
  if (length_ >= stripe) {
    hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) +
           std::rotl(lanes_[3], 18);
    for (const std::uint64_t lane : lanes_) hash = (hash ^ round(0, lane)) * p1 + p4;
  }
  hash += length_;
  const std::byte *at = rest_.data(), *end = at + waiting_;
  for (; end - at >= 8; at += 8)
    hash = std::rotl(hash ^ round(0, word_at<std::uint64_t>(at)), 27) * p1 + p4;
  if (end - at >= 4) {
    hash = std::rotl(hash ^ (word_at<std::uint32_t>(at) * p1), 23) * p2 + p3;
    at += 4;
  }
  for (; at < end; ++at)
    hash = std::rotl(hash ^ (std::to_integer<std::uint64_t>(*at) * p5), 11) * p1;
  hash = (hash ^ (hash >> 33)) * p2;
  hash = (hash ^ (hash >> 29)) * p3;
  return hash ^ (hash >> 32);
}

std::string hex(std::uint64_t value) { return fmt::format("{:016x}", value); }

}  // namespace ebb
