// Modules: parts of a model that own parameters and know their name.
//
//   struct Mlp : nn::Module<Mlp> {
//     nn::Linear in{at("in"), 784, 200}, out{at("out"), 200, 10};
//     Tensor forward(const Tensor& x) { return out(relu(in(x))); }
//   };
//   auto model = make<Mlp>(device::cpu, bf16);
//   Tensor y = model(x);
//
// `at(name)` names a child and gives it its path ("in.weight"), device and dtype. Parameters are
// lazy until a program needs them and are then computed directly into their final storage, so a
// model never exists twice. Modules are neither copied nor moved.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "ebb/device.h"
#include "ebb/graph.h"
#include "ebb/nn/source_line.h"
#include "ebb/node.h"
#include "ebb/quantised.h"
#include "ebb/recompute.h"
#include "ebb/variable.h"

namespace ebb::nn {

class ModuleBase;

// A module's place in its model.
struct Place {
  ModuleBase* parent = nullptr;
  std::string path;
  Device device;
  DType dtype = f32;
  bool in_list = false;  // an element of a List: a block
  SourceLine source = {};
};

// How a parameter starts. Random values are keyed by the seed and the parameter's path alone.
struct Initial {
  enum class Kind : std::uint8_t { constant, uniform, normal } kind = Kind::constant;
  double a = 0.0, b = 0.0;

  static Initial constant(double value) { return {Kind::constant, value, 0.0}; }
  static Initial uniform(double bound) { return {Kind::uniform, -bound, bound}; }
  static Initial normal(double stddev) { return {Kind::normal, 0.0, stddev}; }
};

// Whether the code being traced is for training or for evaluation; dropout and batch norm depend on
// it.
enum class Mode : bool { evaluate, train };

// While it lives, modules on this thread are traced in `mode`, and the updates they make to their
// own buffers (running statistics) are collected. Without one the mode is evaluate.
class ForwardScope {
 public:
  explicit ForwardScope(Mode mode);
  ~ForwardScope();
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;

  static Mode mode();
  // The value of a buffer at this point of the forward pass: the last recorded update, or the
  // buffer itself. A module that computes its update from this value chains the updates of several
  // calls, in their order.
  static Tensor current(const Variable& buffer);
  static void record(const Variable& buffer, const Tensor& value);
  const std::vector<Update>& updates() const { return updates_; }

 private:
  Mode mode_;
  std::vector<Update> updates_;
  ForwardScope* outer_;
};

// The use of a parameter, if its shape does not show it.
enum class Role : std::uint8_t {
  weight,
  table,  // rows are picked by number: an embedding
};

// How a weight of the pattern 2:4 is stored without its zeros (ebb/pairs.h).
struct PairWeight {
  bool transposed = false;  // whether the model's own matrix is the transpose of the stored one
  Variable positions = {};  // a buffer of the same module; the weight's variable has the values
};

// A variable of a module, by its path in the model.
struct NamedVariable {
  std::string path;
  Variable variable;
  Role role = Role::weight;
  std::optional<PackedWeight> packed = {};  // a weight in few bits; never trained
  std::optional<PairWeight> pairs = {};     // a weight of the pattern 2:4; its values are trained

  // Of the weight itself, packed or not.
  Shape shape() const;
};

class ModuleBase {
 public:
  virtual ~ModuleBase() = default;
  ModuleBase(const ModuleBase&) = delete;
  ModuleBase& operator=(const ModuleBase&) = delete;

  const std::string& path() const { return path_; }
  Device device() const { return device_; }
  DType dtype() const { return dtype_; }
  // Where its parent names it with `at`; of a model, its constructor or class.
  const SourceLine& source() const { return source_; }

  // Of this module and its children, in order of registration.
  std::vector<NamedVariable> parameters() const;
  std::vector<NamedVariable> trainable_parameters() const;  // those not frozen
  std::vector<NamedVariable> buffers() const;               // kept state that is not trained
  std::int64_t parameter_count() const;

  // This module and all below it, in order of registration.
  std::vector<ModuleBase*> modules();
  std::vector<const ModuleBase*> modules() const;

  // Frozen parameters get no gradient and no optimizer state. A module follows the nearest setting
  // on its way up: its own, else its parent's, and so on.
  void freeze(bool frozen = true) { frozen_ = frozen; }
  // Whether it is an element of a List, or below one.
  bool in_block() const;
  // Keeps a module and its children in evaluation mode, even in a training step.
  void hold_in_evaluation(bool held = true) { held_ = held; }
  bool training() const;

  // Activation checkpointing: the values of every call of the module are recomputed for backward
  // instead of kept (Recompute::Mode::marked; see recompute.h).
  void recompute(const Checkpoint& how = {}) { checkpoint_ = how; }

 protected:
  explicit ModuleBase(Place place);  // registers with the parent

  Place at(ChildName name) { return place_of(name.name, name.source); }
  // The same for names that are made at run time.
  template <std::convertible_to<std::string_view> Name>
  requires(!std::is_array_v<Name>) Place
      at(const Name& name, SourceLine source = SourceLine::here()) {
    return place_of(name, source);
  }
  // The marks of nodes made in a call of this module.
  Marks call_marks() const;
  Variable parameter(std::string_view name, const Shape& shape, const Initial& initial,
                     Role role = Role::weight);
  Variable buffer(std::string_view name, const TensorType& type, double value);
  // Packs a parameter of this module. Its value, or its initial value, is packed when a program
  // needs it; its own bytes are then no longer held here.
  Variable pack(std::string_view name, const PackedWeight& packed);
  // Packs a matrix of the pattern 2:4; its positions become the buffer "positions". A value with
  // more than two non-zero weights in a group of four is a ValueError; of an initial value, the two
  // largest magnitudes of each group are kept.
  NamedVariable pack(std::string_view name, const PairWeight& pairs);

 private:
  std::string path_of(std::string_view name) const;
  Place place_of(std::string_view name, SourceLine source);
  template <class Visit>
  void visit(const Visit& visit) const;
  bool frozen() const;
  // A parameter that is not packed yet.
  NamedVariable& to_pack(std::string_view name);

  ModuleBase* parent_;
  std::string path_;
  Device device_;
  DType dtype_;
  SourceLine source_;
  std::optional<bool> frozen_;  // empty: as its parent
  bool held_ = false;
  bool block_ = false;  // one of a list
  std::optional<Checkpoint> checkpoint_;
  std::vector<ModuleBase*> children_;
  std::vector<NamedVariable> parameters_, buffers_;
};

// The place that `make` prepares for a root module.
Place root_place(SourceLine source = SourceLine::here());

// What user modules derive from. Calling one runs its `forward` under its path.
template <class Derived>
class Module : public ModuleBase {
 public:
  explicit Module(SourceLine source = SourceLine::here()) : ModuleBase(root_place(source)) {}
  explicit Module(Place place) : ModuleBase(std::move(place)) {}

  template <class... Args>
  auto operator()(Args&&... args) {
    const PathScope scope(path(), PathScope::Kind::absolute);
    const MarkScope marks(call_marks());
    return static_cast<Derived&>(*this).forward(std::forward<Args>(args)...);
  }
};

// A numbered sequence of modules of one type: "h.0", "h.1", ...
template <class M>
class List : public ModuleBase {
 public:
  explicit List(Place place) : ModuleBase(std::move(place)) {}
  // `count` modules, each made with its place and the same further arguments.
  template <class... Args>
  List(Place place, int count, const Args&... args) : ModuleBase(std::move(place)) {
    for (int i = 0; i < count; ++i) items_.push_back(std::make_unique<M>(next(), args...));
  }
  template <class... Args>
  M& add(Args&&... args) {
    items_.push_back(std::make_unique<M>(next(), std::forward<Args>(args)...));
    return *items_.back();
  }
  int size() const { return static_cast<int>(items_.size()); }
  M& operator[](int i) { return *items_[static_cast<std::size_t>(i)]; }
  auto begin() { return Iterator{items_.data()}; }
  auto end() { return Iterator{items_.data() + items_.size()}; }

 private:
  struct Iterator {
    std::unique_ptr<M>* at;
    M& operator*() const { return **at; }
    Iterator& operator++() { return ++at, *this; }
    bool operator!=(const Iterator& other) const { return at != other.at; }
  };
  Place next() {
    Place place = at(std::to_string(items_.size()), source());
    place.in_list = true;
    return place;
  }
  std::vector<std::unique_ptr<M>> items_;
};

// While it exists, root modules are made on `device` in `dtype`.
class MakeScope {
 public:
  MakeScope(Device device, DType dtype);
  ~MakeScope();
  MakeScope(const MakeScope&) = delete;
  MakeScope& operator=(const MakeScope&) = delete;

 private:
  Place outer_;
};

}  // namespace ebb::nn

namespace ebb {

// Makes a model in place: on its device, at its precision.
template <class Model, class... Args>
Model make(Device device, DType dtype, Args&&... args) {
  const nn::MakeScope scope(device, dtype);
  return Model(std::forward<Args>(args)...);
}

}  // namespace ebb
