// Numbers of rows in tables. Each kind of row has a type of number of its own, so that the number
// of a buffer cannot be used to look up an instruction.
#pragma once

#include <compare>
#include <concepts>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace ebb {

template <class Row>
class Id {
 public:
  constexpr Id() = default;  // the number of no row
  constexpr explicit Id(std::integral auto number) : number_(static_cast<std::int32_t>(number)) {}

  constexpr explicit operator bool() const { return number_ >= 0; }
  constexpr std::int32_t number() const { return number_; }
  constexpr std::size_t index() const { return static_cast<std::size_t>(number_); }

  friend constexpr auto operator<=>(Id, Id) = default;
  constexpr Id& operator++() {
    ++number_;
    return *this;
  }
  friend constexpr Id operator+(Id id, std::int32_t rows) { return Id(id.number_ + rows); }

 private:
  std::int32_t number_ = -1;
};

// Consecutive numbers, to loop over.
template <class Row>
class Ids {
 public:
  class Iterator {
   public:
    constexpr explicit Iterator(Id<Row> id) : id_(id) {}
    constexpr Id<Row> operator*() const { return id_; }
    constexpr Iterator& operator++() {
      ++id_;
      return *this;
    }
    friend constexpr bool operator==(Iterator, Iterator) = default;

   private:
    Id<Row> id_;
  };

  constexpr explicit Ids(std::size_t count) : end_(count) {}
  constexpr Iterator begin() const { return Iterator(Id<Row>(0)); }
  constexpr Iterator end() const { return Iterator(end_); }

 private:
  Id<Row> end_;
};

// Rows that are looked up by their number.
template <class Row>
class Table {
 public:
  Id<Row> add(Row row) {
    rows_.push_back(std::move(row));
    return Id<Row>(rows_.size() - 1);
  }

  Row& operator[](Id<Row> id) { return rows_[id.index()]; }
  const Row& operator[](Id<Row> id) const { return rows_[id.index()]; }
  bool contains(Id<Row> id) const { return id && id.index() < rows_.size(); }

  std::size_t size() const { return rows_.size(); }
  bool empty() const { return rows_.empty(); }
  auto begin() { return rows_.begin(); }
  auto end() { return rows_.end(); }
  auto begin() const { return rows_.begin(); }
  auto end() const { return rows_.end(); }
  std::span<Row> rows() { return rows_; }
  std::span<const Row> rows() const { return rows_; }

  // All numbers, in order.
  Ids<Row> ids() const { return Ids<Row>(rows_.size()); }

 private:
  std::vector<Row> rows_;
};

}  // namespace ebb
