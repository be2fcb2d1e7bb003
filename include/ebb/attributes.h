// Typed attributes of ops, held by nodes without their type.
//
// An attribute struct is a plain aggregate with `operator==` and a `visit` that names its fields:
//
//   struct SoftmaxAttributes {
//     int axis = -1;
//     bool operator==(const SoftmaxAttributes&) const = default;
//     void visit(auto&& field) const { field("axis", axis); }
//   };
#pragma once

#include <memory>
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
  void visit(auto&&) const {}
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
  std::string text() const { return held_->text(); }
  friend bool operator==(const Attributes& a, const Attributes& b) {
    return a.held_ == b.held_ || a.held_->equals(*b.held_);
  }

 private:
  [[noreturn]] static void wrong_type(const std::type_info& held, const std::type_info& asked);

  struct Concept {
    virtual ~Concept() = default;
    virtual const std::type_info& type() const = 0;
    virtual bool equals(const Concept& other) const = 0;
    virtual std::string text() const = 0;
  };
  template <class A>
  struct Held final : Concept {
    explicit Held(A v) : value(std::move(v)) {}
    const std::type_info& type() const override { return typeid(A); }
    bool equals(const Concept& other) const override {
      return other.type() == typeid(A) && static_cast<const Held&>(other).value == value;
    }
    std::string text() const override {
      AttributePrinter printer;
      value.visit(printer);
      return printer.text();
    }
    A value;
  };
  std::shared_ptr<const Concept> held_;
};

}  // namespace ebb
