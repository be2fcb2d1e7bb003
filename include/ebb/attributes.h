// Typed attributes of ops, held by nodes without their type.
//
// An attribute struct is a plain aggregate with `operator==` and a `visit` that names all its
// fields, by which they are printed, written to files and read from them (see AttributeFields):
//
//   struct SoftmaxAttributes {
//     int axis = -1;
//     bool operator==(const SoftmaxAttributes&) const = default;
//     void visit(auto&& field) { field("axis", axis); }
//   };
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <vector>

#include "ebb/dtype.h"
#include "ebb/shape.h"

namespace ebb {

struct NoAttributes {
  bool operator==(const NoAttributes&) const = default;
  void visit(auto&&) {}
};

// A visitor of the fields of an attribute struct: writers take the values, readers set them.
class AttributeFields {
 public:
  virtual ~AttributeFields() = default;

  virtual void operator()(std::string_view field, bool& value) = 0;
  virtual void operator()(std::string_view field, std::int64_t& value) = 0;
  virtual void operator()(std::string_view field, std::uint64_t& value) = 0;
  virtual void operator()(std::string_view field, double& value) = 0;
  virtual void operator()(std::string_view field, IntList& value) = 0;
  virtual void operator()(std::string_view field, std::vector<std::int64_t>& value) = 0;
  virtual void operator()(std::string_view field, DType& value) = 0;
  virtual void operator()(std::string_view field, std::string& value) = 0;
  void operator()(std::string_view field, int& value);

  // An enumerator: number i has the name names[i].
  template <class Enum>
  void choice(std::string_view field, Enum& value, std::span<const std::string_view> names) {
    value = static_cast<Enum>(choose(field, static_cast<std::size_t>(value), names));
  }

  // A list of structs that are visited themselves.
  template <class Item>
  void list(std::string_view field, std::vector<Item>& items) {
    items.resize(begin_list(field, items.size()));
    for (Item& item : items) {
      begin_item();
      item.visit(*this);
      end_item();
    }
    end_list();
  }

  // Begins a list. `size` is the number of items to write; the result is the number of items that
  // the list has.
  virtual std::size_t begin_list(std::string_view field, std::size_t size) = 0;
  virtual void begin_item() = 0;
  virtual void end_item() = 0;
  virtual void end_list() = 0;

 private:
  std::size_t choose(std::string_view field, std::size_t value,
                     std::span<const std::string_view> names);
};

// Writes fields as "axis=-1, keep=true".
class AttributePrinter {
 public:
  void operator()(std::string_view field, bool value);
  void operator()(std::string_view field, double value);
  void operator()(std::string_view field, const IntList& value);
  void operator()(std::string_view field, const std::vector<std::int64_t>& value);
  void operator()(std::string_view field, DType value) { add(field, std::string(name(value))); }
  void operator()(std::string_view field, const std::string& value) { add(field, value); }
  template <class T>
  requires std::is_integral_v<T>
  void operator()(std::string_view field, T value) { add(field, std::to_string(value)); }

  const std::string& text() const { return text_; }

 private:
  void add(std::string_view field, const std::string& value);
  std::string text_;
};

class Attributes {
 public:
  Attributes() : Attributes(NoAttributes{}) {}
  template <class A>
  requires(!std::is_same_v<std::decay_t<A>, Attributes>) Attributes(A attributes)
      : held_(std::make_shared<const Held<A>>(std::move(attributes))) {}

  template <class A>
  const A& as() const {
    if (held_->type() != typeid(A)) wrong_type(held_->type(), typeid(A));
    return static_cast<const Held<A>&>(*held_).value;
  }
  void visit(AttributeFields& fields) const { held_->visit(fields); }
  std::string text() const;  // the fields, as "axis=-1, keep=true"
  friend bool operator==(const Attributes& a, const Attributes& b) {
    return a.held_ == b.held_ || a.held_->equals(*b.held_);
  }

 private:
  [[noreturn]] static void wrong_type(const std::type_info& held, const std::type_info& asked);

  struct Concept {
    virtual ~Concept() = default;
    virtual const std::type_info& type() const = 0;
    virtual bool equals(const Concept& other) const = 0;
    virtual void visit(AttributeFields& fields) const = 0;
  };
  template <class A>
  struct Held final : Concept {
    explicit Held(A v) : value(std::move(v)) {}
    const std::type_info& type() const override { return typeid(A); }
    bool equals(const Concept& other) const override {
      return other.type() == typeid(A) && static_cast<const Held&>(other).value == value;
    }
    void visit(AttributeFields& fields) const override {
      A copy = value;
      copy.visit(fields);
    }
    A value;
  };
  std::shared_ptr<const Concept> held_;
};

}  // namespace ebb
